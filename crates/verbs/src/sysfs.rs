//! The calls that read sysfs. Whether or not the device is shown there, its files are answered here; all
//! other paths are read as asked.

use crate::abi::ibv_device;
use crate::device::{Device, devices};
use core::ffi::{CStr, c_char, c_int};
use std::io::Read;

/// Where sysfs is.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// The content of a device's file, if it has that file.
fn device_file<'a>(device: &'a Device, file: &str) -> Option<&'a str> {
    device.files.iter().find(|(name, _)| name == file).map(|(_, text)| &**text)
}

/// Bytes of a file, of which at most `room` are wanted.
fn content(directory: &str, file: &str, room: usize) -> Option<Vec<u8>> {
    for device in devices().ok()? {
        // SAFETY: the path is a zero-terminated array that never changes.
        let own = unsafe { CStr::from_ptr(device.ibdev_path().as_ptr()) }.to_bytes();
        if directory.as_bytes() == own {
            return device_file(device, file).map(|text| text.as_bytes().to_vec());
        }
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(format!("{directory}/{file}")).ok()?;
    opened.take(room as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// How these calls fail: -1, and errno.
fn absent(errno: c_int) -> c_int {
    crate::set_errno(errno);
    -1
}

/// Copies a file into a C buffer without its last newline; the length, or -1.
///
/// # Safety
/// `buffer` has room for `size` bytes.
unsafe fn read_into(directory: &str, file: &str, buffer: *mut c_char, size: usize) -> c_int {
    let Some(mut bytes) = content(directory, file, size) else { return absent(libc::ENOENT) };
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if size == 0 {
        return absent(libc::EINVAL);
    }
    bytes.truncate(size - 1);
    // SAFETY: the bytes and the terminating zero fit `size`.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buffer, bytes.len());
        *buffer.add(bytes.len()) = 0;
    }
    bytes.len() as c_int
}

/// Reads a file of a sysfs directory into a buffer as text; returns its length, or -1.
///
/// # Safety
/// C ABI: two C strings, and a buffer of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller passes C strings.
    let names = unsafe { (CStr::from_ptr(directory).to_str(), CStr::from_ptr(file).to_str()) };
    let (Ok(directory), Ok(file)) = names else { return absent(libc::EINVAL) };
    // SAFETY: the caller passes a buffer of `size` bytes.
    unsafe { read_into(directory, file, buffer, size) }
}

/// Reads a file of a device's sysfs directory. Its name is a `printf` format; here it is taken as it
/// stands, which serves every caller that formats nothing.
///
/// # Safety
/// C ABI: a buffer of `size` bytes, a device of the list, a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    device: *mut ibv_device,
    file: *const c_char,
) -> c_int {
    // SAFETY: the caller passes a device and a C string.
    let names = unsafe {
        (CStr::from_ptr(Device::of(device).ibdev_path().as_ptr()).to_str(), CStr::from_ptr(file).to_str())
    };
    let (Ok(directory), Ok(file)) = names else { return absent(libc::EINVAL) };
    // SAFETY: the caller passes a buffer of `size` bytes.
    unsafe { read_into(directory, file, buffer, size) }
}
