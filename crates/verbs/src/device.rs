//! The device list.
//!
//! Devices are made once per process and live for ever, because programs keep pointers to them beyond
//! `ibv_free_device_list`.

use crate::abi::*;
use crate::handle::null;
use crate::host;
use adverb_nic::Mtu;
use adverb_wire::Gid;
use core::ffi::{c_char, c_int};
use core::mem::size_of;
use std::sync::OnceLock;

/// Bytes after `ibv_device` that device libraries look at: the rest of their `verbs_device`. Zero there
/// says "not mine" to all of them (libmlx5 compares an operation table's address).
const DRIVER_PART: usize = 256;

/// A device.
#[repr(C)]
pub(crate) struct Device {
    ibv: ibv_device,
    driver_part: [u8; DRIVER_PART],
    /// GID table of its one port.
    pub(crate) gids: Vec<Gid>,
    /// Largest path MTU that its link carries.
    pub(crate) mtu: Mtu,
    /// Index of the network interface that carries its address; 0 if it is not known.
    pub(crate) ifindex: u32,
    /// Its GUID, in host order.
    pub(crate) guid: u64,
    /// Its files in sysfs: name and content.
    pub(crate) files: Vec<(String, String)>,
}

// SAFETY: a device never changes after it was made; its pointers are unused slots.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

impl Device {
    /// The device behind a C pointer.
    ///
    /// # Safety
    /// `device` came from `ibv_get_device_list`.
    pub(crate) unsafe fn of<'a>(device: *mut ibv_device) -> &'a Device {
        // SAFETY: devices begin with their C struct and live for ever.
        unsafe { &*device.cast::<Device>() }
    }

    fn new(index: usize, info: &adverb_io::DeviceInfo) -> Device {
        let uverbs = format!("uverbs{index}");
        let ibv = ibv_device {
            _ops: [core::ptr::null(); 2],
            node_type: IBV_NODE_CA,
            transport_type: IBV_TRANSPORT_IB,
            name: c_text(&info.name),
            dev_name: c_text(&uverbs),
            dev_path: c_text(&format!("/sys/class/infiniband_verbs/{uverbs}")),
            ibdev_path: c_text(&format!("/sys/class/infiniband/{}", info.name)),
        };
        Device {
            ibv,
            driver_part: [0; DRIVER_PART],
            gids: info.gids.clone(),
            mtu: info.active_mtu,
            ifindex: info.interface_index,
            guid: info.node_guid,
            files: adverb_io::facade::attributes(info),
        }
    }

    /// The GID at an index of the table.
    pub(crate) fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied()
    }

    /// Its name.
    pub(crate) fn name(&self) -> &[c_char] {
        &self.ibv.name
    }

    /// Its directory below /sys/class/infiniband.
    pub(crate) fn ibdev_path(&self) -> &[c_char] {
        &self.ibv.ibdev_path
    }
}

/// Text as a zero-terminated C array, cut off where it does not fit.
pub(crate) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

/// The devices, made at the first call that succeeds. `Err` is errno.
pub(crate) fn devices() -> Result<&'static [Device], c_int> {
    if let Some(devices) = DEVICES.get() {
        return Ok(devices);
    }
    let settings = host::settings()?;
    let found = adverb_io::devices(&settings).map_err(|error| host::open_errno(&error))?;
    Ok(DEVICES.get_or_init(|| vec![Device::new(0, &found)]))
}

/// Lists the devices.
///
/// # Safety
/// C ABI: see `ibv_get_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: the caller passes NULL or a place for the count.
        unsafe { *num_devices = 0 };
    }
    let devices = match devices() {
        Ok(devices) => devices,
        Err(errno) => return null(errno),
    };
    // SAFETY: room for a pointer per device and the NULL at the end, which calloc writes.
    let list: *mut *mut ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) }.cast();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    for (index, device) in devices.iter().enumerate() {
        // SAFETY: within the allocation.
        unsafe { *list.add(index) = core::ptr::from_ref(device).cast_mut().cast() };
    }
    if !num_devices.is_null() {
        // SAFETY: as above.
        unsafe { *num_devices = devices.len() as c_int };
    }
    list
}

/// Frees a list, not the devices.
///
/// # Safety
/// C ABI: see `ibv_free_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list came from calloc in `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

/// A device's name.
///
/// # Safety
/// C ABI: see `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of the list.
    unsafe { Device::of(device) }.name().as_ptr()
}

/// A device's index among the kernel's: its place in the list.
///
/// # Safety
/// C ABI: see `ibv_get_device_index(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    let devices = DEVICES.get().map_or(&[][..], Vec::as_slice);
    devices.iter().position(|d| core::ptr::eq(&d.ibv, device)).map_or(-1, |index| index as c_int)
}

/// A device's GUID, in network order.
///
/// # Safety
/// C ABI: see `ibv_get_device_guid(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller passes a device of the list.
    unsafe { Device::of(device) }.guid.to_be()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_off_and_terminated() {
        assert_eq!(c_text::<4>("ab"), [b'a' as c_char, b'b' as c_char, 0, 0]);
        assert_eq!(c_text::<3>("abc"), [b'a' as c_char, b'b' as c_char, 0]);
    }
}
