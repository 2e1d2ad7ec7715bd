//! What an ELF file says of itself (System V ABI, chapters 4 and 5): 64-bit class, little endian.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub const MAGIC: &[u8] = b"\x7fELF";
pub const CLASS_AT: usize = 4;
pub const CLASS_64: u8 = 2;
pub const MACHINE_AT: usize = 18;
pub const HEADER_LEN: usize = 64;
pub const PROGRAM_HEADERS_AT: usize = 32;
pub const PROGRAM_HEADER_SIZE_AT: usize = 54;
pub const PROGRAM_HEADER_COUNT_AT: usize = 56;
pub const PROGRAM_INTERPRETER: u32 = 3;
const PROGRAM_OFFSET_AT: usize = 8;
const PROGRAM_FILE_SIZE_AT: usize = 32;
const SECTION_HEADERS_AT: usize = 40;
const SECTION_HEADER_SIZE_AT: usize = 58;
const SECTION_HEADER_COUNT_AT: usize = 60;
const SECTION_KIND_AT: usize = 4;
const SECTION_OFFSET_AT: usize = 24;
const SECTION_SIZE_AT: usize = 32;
const SECTION_LINK_AT: usize = 40;
const DYNAMIC_SYMBOLS: u32 = 11;
const SYMBOL_LEN: usize = 24;
const SYMBOL_SECTION_AT: usize = 6;
#[cfg(target_arch = "x86_64")]
pub const MACHINE: Option<u16> = Some(62);
#[cfg(target_arch = "aarch64")]
pub const MACHINE: Option<u16> = Some(183);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub const MACHINE: Option<u16> = None;
/// How the names of two C libraries' dynamic linkers begin.
pub const GLIBC: &str = "ld-linux";
pub const MUSL: &str = "ld-musl";
/// Headers beyond this are not looked at; real files have some dozens.
const HEADERS_MAX: usize = 256;
/// Tables larger than this are not read.
const TABLE_MAX: usize = 1 << 24;

pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn offset(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read(file: &File, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; Some(len).filter(|len| *len <= TABLE_MAX)?];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// A table of headers, one by one: where the file's header says that it is, and how large.
fn headers(file: &File, header: &[u8], at: usize, size: usize, count: usize) -> Option<Vec<Vec<u8>>> {
    let size = usize::from(half(header, size)?);
    let count = usize::from(half(header, count)?).min(HEADERS_MAX);
    let table = read(file, offset(header, at)?, size.checked_mul(count)?)?;
    Some(table.chunks_exact(size.max(1)).map(<[u8]>::to_vec).collect())
}

/// The dynamic linker that a program asks for, if it asks for one; None where the file cannot be made out.
pub fn interpreter(path: &Path) -> Option<Option<PathBuf>> {
    let file = File::open(path).ok()?;
    let header = read(&file, 0, HEADER_LEN)?;
    let programs =
        headers(&file, &header, PROGRAM_HEADERS_AT, PROGRAM_HEADER_SIZE_AT, PROGRAM_HEADER_COUNT_AT)?;
    let Some(asks) = programs.iter().find(|program| word(program, 0) == Some(PROGRAM_INTERPRETER)) else {
        return Some(None);
    };
    let len = usize::try_from(offset(asks, PROGRAM_FILE_SIZE_AT)?).ok()?;
    let name = read(&file, offset(asks, PROGRAM_OFFSET_AT)?, len)?;
    let name = name.split(|byte| *byte == 0).next()?;
    Some(Some(PathBuf::from(OsStr::from_bytes(name))))
}

/// Whether a library exports a symbol; None where the file cannot be made out.
pub fn exports(path: &Path, symbol: &str) -> Option<bool> {
    let file = File::open(path).ok()?;
    let header = read(&file, 0, HEADER_LEN)?;
    if !header.starts_with(MAGIC) || header[CLASS_AT] != CLASS_64 {
        return None;
    }
    let sections =
        headers(&file, &header, SECTION_HEADERS_AT, SECTION_HEADER_SIZE_AT, SECTION_HEADER_COUNT_AT)?;
    let table = |section: &[u8]| {
        let len = usize::try_from(offset(section, SECTION_SIZE_AT)?).ok()?;
        read(&file, offset(section, SECTION_OFFSET_AT)?, len)
    };
    let symbols = sections.iter().find(|section| word(section, SECTION_KIND_AT) == Some(DYNAMIC_SYMBOLS))?;
    let names = table(sections.get(word(symbols, SECTION_LINK_AT)? as usize)?)?;
    let is_it = |entry: &[u8]| {
        let name = word(entry, 0).and_then(|at| names.get(at as usize..));
        let defined = half(entry, SYMBOL_SECTION_AT).is_some_and(|section| section != 0);
        defined && name.and_then(|name| name.split(|byte| *byte == 0).next()) == Some(symbol.as_bytes())
    };
    Some(table(symbols)?.chunks_exact(SYMBOL_LEN).any(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_says_what_it_exports() {
        // What the test itself is linked to.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).unwrap();
        assert_eq!(exports(Path::new(libc), "getaddrinfo"), Some(true));
        assert_eq!(exports(Path::new(libc), "getaddrinf"), Some(false), "a part of a name");
        assert_eq!(exports(Path::new(libc), "ibv_get_device_list"), Some(false));
        // The test imports from it, and exports nothing.
        let own = std::env::current_exe().unwrap();
        assert_ne!(exports(&own, "getaddrinfo"), Some(true), "imported is not exported");
        assert_eq!(exports(Path::new("/proc/self/status"), "x"), None);
        assert!(interpreter(&own).flatten().is_some_and(|linker| linker.is_file()));
        assert_eq!(interpreter(Path::new(libc)).map(|linker| linker.is_some()), Some(true));
    }
}
