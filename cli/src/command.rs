//! Finding the program, and telling beforehand whether the dynamic linker will give it adverb's library.
//!
//! A program that cannot be captured would run on the system's own RDMA, or on none, and nobody would know.

use crate::elf;
use crate::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const EXECUTE: u32 = 0o111;
/// Whose programs cannot load adverb's library.
const OTHER_LIBC: &str = if cfg!(target_env = "musl") { elf::GLIBC } else { elf::MUSL };
/// Kernels read this much of a script's first line (linux/binfmts.h).
const SCRIPT_LINE: usize = 256;

/// The path of the program, found as a shell finds it and checked.
pub fn resolve(command: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Error> {
    let path = locate(command, search)?;
    check(&path, 0)?;
    Ok(path)
}

fn locate(command: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Error> {
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match fs::metadata(&path) {
            Ok(_) => executable(&path),
            Err(e) => Err(Error::NoProgram(path, e)),
        };
    }
    let mut unusable = None;
    for directory in std::env::split_paths(search.unwrap_or_default()) {
        let path = directory.join(command);
        if path.is_file() {
            match executable(&path) {
                Ok(found) => return Ok(found),
                Err(e) => unusable = unusable.or(Some(e)),
            }
        }
    }
    Err(unusable.unwrap_or_else(|| Error::NoCommand(command.to_os_string())))
}

fn executable(path: &Path) -> Result<PathBuf, Error> {
    match fs::metadata(path) {
        Ok(m) if m.is_file() && m.mode() & EXECUTE != 0 => Ok(path.to_path_buf()),
        _ => Err(Error::NotExecutable(path.to_path_buf())),
    }
}

/// Refuses what the dynamic linker cannot serve. A file that cannot be read is let through: the kernel
/// decides.
fn check(path: &Path, depth: u8) -> Result<(), Error> {
    if changes_identity(path) {
        return Err(Error::SetidCommand(path.to_path_buf()));
    }
    let Ok(mut file) = File::open(path) else { return Ok(()) };
    let mut start = Vec::with_capacity(SCRIPT_LINE);
    if file.by_ref().take(SCRIPT_LINE as u64).read_to_end(&mut start).is_err() {
        return Ok(());
    }
    if start.starts_with(elf::MAGIC) {
        return match linkage(&start, path) {
            Linkage::Dynamic | Linkage::Unknown => Ok(()),
            Linkage::Static => Err(Error::StaticCommand(path.to_path_buf())),
            Linkage::Foreign => Err(Error::ForeignCommand(path.to_path_buf())),
            Linkage::OtherLibc => Err(Error::OtherLibcCommand(path.to_path_buf())),
        };
    }
    // A script is its interpreter's; the kernel follows four, one is enough to catch a static shell.
    match interpreter(&start) {
        Some(program) if depth == 0 => check(Path::new(&program), depth + 1),
        _ => Ok(()),
    }
}

/// Whether the kernel would start it as somebody else, in which case the linker is deaf to the environment.
fn changes_identity(path: &Path) -> bool {
    let (Ok(file), Ok(own)) = (fs::metadata(path), fs::metadata("/proc/self")) else { return false };
    (file.mode() & SETUID != 0 && file.uid() != own.uid())
        || (file.mode() & SETGID != 0 && file.gid() != own.gid())
}

#[derive(Debug, PartialEq, Eq)]
enum Linkage {
    Dynamic,
    Static,
    Foreign,
    OtherLibc,
    Unknown,
}

fn linkage(header: &[u8], path: &Path) -> Linkage {
    if header.len() < elf::HEADER_LEN {
        return Linkage::Unknown;
    }
    let machine = elf::half(header, elf::MACHINE_AT);
    if header[elf::CLASS_AT] != elf::CLASS_64 || elf::MACHINE.is_some_and(|own| machine != Some(own)) {
        return Linkage::Foreign;
    }
    match elf::interpreter(path) {
        Some(Some(linker)) if is_of(&linker, OTHER_LIBC) => Linkage::OtherLibc,
        Some(Some(_)) => Linkage::Dynamic,
        Some(None) => Linkage::Static,
        None => Linkage::Unknown,
    }
}

fn is_of(linker: &Path, libc: &str) -> bool {
    linker.file_name().is_some_and(|name| name.as_bytes().starts_with(libc.as_bytes()))
}

/// The interpreter that a script's first line names.
fn interpreter(start: &[u8]) -> Option<OsString> {
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let word = line.split(|b| matches!(b, b' ' | b'\t')).find(|w| !w.is_empty())?;
    Some(OsStr::from_bytes(word).to_os_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A file of these bytes and this mode, removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, bytes: &[u8], mode: u32) -> Scratch {
            let path = std::env::temp_dir().join(format!("adverb-command-{name}-{}", std::process::id()));
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_file(&self.0).ok();
        }
    }

    /// An ELF file with one program header of the given kind.
    fn elf_file(class: u8, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; elf::HEADER_LEN + 56];
        bytes[..4].copy_from_slice(elf::MAGIC);
        bytes[elf::CLASS_AT] = class;
        bytes[elf::MACHINE_AT..][..2].copy_from_slice(&elf::MACHINE.unwrap_or(0).to_le_bytes());
        bytes[elf::PROGRAM_HEADERS_AT] = elf::HEADER_LEN as u8;
        bytes[elf::PROGRAM_HEADER_SIZE_AT] = 56;
        bytes[elf::PROGRAM_HEADER_COUNT_AT] = 1;
        bytes[elf::HEADER_LEN..][..4].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn a_program_is_found_in_the_path_and_is_dynamic() {
        let found = resolve(OsStr::new("sh"), Some(OsStr::new("/nowhere:/bin:/usr/bin"))).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
        assert!(matches!(resolve(OsStr::new("sh"), Some(OsStr::new("/nowhere"))), Err(Error::NoCommand(_))));
        assert!(matches!(resolve(OsStr::new("/no/such/program"), None), Err(Error::NoProgram(..))));
        assert!(matches!(resolve(OsStr::new("/etc/passwd"), None), Err(Error::NotExecutable(_))));
        assert!(matches!(resolve(OsStr::new("/tmp"), None), Err(Error::NotExecutable(_))));
    }

    #[test]
    fn a_static_program_is_refused_and_a_dynamic_one_is_not() {
        let dynamic = Scratch::new("dynamic", &elf_file(elf::CLASS_64, elf::PROGRAM_INTERPRETER), 0o755);
        assert!(resolve(dynamic.0.as_os_str(), None).is_ok());
        let fixed = Scratch::new("static", &elf_file(elf::CLASS_64, 1), 0o755);
        assert!(matches!(resolve(fixed.0.as_os_str(), None), Err(Error::StaticCommand(_))));
        let narrow = Scratch::new("narrow", &elf_file(1, elf::PROGRAM_INTERPRETER), 0o755);
        assert!(matches!(resolve(narrow.0.as_os_str(), None), Err(Error::ForeignCommand(_))));
    }

    #[test]
    fn a_program_of_another_libc_is_refused() {
        let own = if OTHER_LIBC == elf::MUSL { elf::GLIBC } else { elf::MUSL };
        for (libc, is_refused) in [(OTHER_LIBC, true), (own, false), ("ld-of-its-own", false)] {
            let mut bytes = elf_file(elf::CLASS_64, elf::PROGRAM_INTERPRETER);
            let linker = format!("/lib/{libc}-x86_64.so.1\0");
            let header = &mut bytes[elf::HEADER_LEN..];
            header[8..16].copy_from_slice(&(elf::HEADER_LEN as u64 + 56).to_le_bytes());
            header[32..40].copy_from_slice(&(linker.len() as u64).to_le_bytes());
            bytes.extend_from_slice(linker.as_bytes());
            let program = Scratch::new(libc, &bytes, 0o755);
            let refused = resolve(program.0.as_os_str(), None);
            assert_eq!(matches!(refused, Err(Error::OtherLibcCommand(_))), is_refused, "{libc}");
            assert_eq!(refused.is_err(), is_refused, "{libc}");
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let fixed = Scratch::new("static-shell", &elf_file(elf::CLASS_64, 1), 0o755);
        let text = format!("#! {} -e\necho\n", fixed.0.display());
        let script = Scratch::new("script", text.as_bytes(), 0o755);
        assert!(matches!(resolve(script.0.as_os_str(), None), Err(Error::StaticCommand(p)) if p == fixed.0));
        let plain = Scratch::new("plain", b"#!/bin/sh\n", 0o755);
        assert!(resolve(plain.0.as_os_str(), None).is_ok());
    }

    #[test]
    fn no_header_however_damaged_does_more_than_be_unknown() {
        let whole = elf_file(elf::CLASS_64, elf::PROGRAM_INTERPRETER);
        for len in 0..whole.len() {
            let cut = Scratch::new(&format!("cut{len}"), &whole[..len], 0o755);
            assert!(resolve(cut.0.as_os_str(), None).is_ok(), "{len} bytes");
        }
        for at in elf::PROGRAM_HEADERS_AT..elf::HEADER_LEN {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            let damaged = Scratch::new(&format!("damaged{at}"), &bytes, 0o755);
            // Any verdict will do; what counts is that there is one.
            let _verdict = resolve(damaged.0.as_os_str(), None);
        }
    }
}
