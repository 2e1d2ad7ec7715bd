//! Copies of the verbs libraries that a program brings along, as wheels of Python do: under a name of their
//! own (`libibverbs-0a1b2c3d.so.1.14.48.0`), found by where the program stands (DT_RPATH), not by
//! `LD_LIBRARY_PATH`. A program that has one would never see adverb's library.

use crate::elf;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A library's name before its version or its hash, the name by which programs ask for it, and a symbol that
/// it alone exports.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("libibverbs", "libibverbs.so.1", "ibv_get_device_list"),
    ("librdmacm", "librdmacm.so.1", "rdma_create_event_channel"),
];
/// How the names of the dynamic linkers of glibc and musl begin. Others may have no `--list`, and would run
/// the program.
const LINKERS: [&str; 2] = [elf::GLIBC, elf::MUSL];
/// Where Python keeps packages, below `lib/python3.N`.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];
/// How the folder ends that auditwheel puts a wheel's libraries into.
const BUNDLED: &[u8] = b".libs";

/// A copy of one of adverb's libraries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Copied {
    /// Where it is.
    pub path: PathBuf,
    /// The name of the library that it is a copy of.
    pub name: &'static str,
}

/// Those that a program maps when it begins, and those of Python's packages where the shell finds programs.
/// `search` is the `LD_LIBRARY_PATH` that the program gets, `own` the folder of adverb's libraries.
pub fn found(program: &Path, search: &OsStr, own: &Path) -> BTreeSet<Copied> {
    let bundled = package_folders(program).into_iter().flat_map(|folder| bundled(&folder));
    mapped(program, search).into_iter().chain(bundled).filter_map(|path| copy(&path, own)).collect()
}

/// What a file is a copy of, if it is one.
fn copy(path: &Path, own: &Path) -> Option<Copied> {
    let file = path.file_name()?.as_bytes();
    let (_, name, symbol) = LIBRARIES.into_iter().find(|(stem, ..)| {
        file.strip_prefix(stem.as_bytes()).is_some_and(|rest| matches!(rest.first(), Some(b'-' | b'.')))
    })?;
    let path = path.canonicalize().ok()?;
    (!path.starts_with(own) && elf::exports(&path, symbol) == Some(true)).then_some(Copied { path, name })
}

/// The libraries that the dynamic linker gives a program before it runs.
fn mapped(program: &Path, search: &OsStr) -> Vec<PathBuf> {
    let listed = || {
        let linker = elf::interpreter(program)??;
        let name = linker.file_name()?.as_bytes();
        if !LINKERS.iter().any(|known| name.starts_with(known.as_bytes())) {
            return None;
        }
        let mut list = Command::new(linker);
        list.arg("--list").arg(program.canonicalize().ok()?).env("LD_LIBRARY_PATH", search);
        list.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
    };
    let lines = listed().map(|list| list.stdout).unwrap_or_default();
    lines.split(|byte| *byte == b'\n').filter_map(listed_path).collect()
}

/// The path in a line such as `libibverbs.so.1 => /usr/lib/libibverbs.so.1 (0x00007f3c1a000000)`.
fn listed_path(line: &[u8]) -> Option<PathBuf> {
    let line = std::str::from_utf8(line).ok()?.trim();
    let (line, _) = line.rsplit_once(" (0x")?;
    let path = line.split_once(" => ").map_or(line, |(_, path)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

/// Folders of Python's packages: of the prefixes of all folders in which programs are found.
fn package_folders(program: &Path) -> Vec<PathBuf> {
    let list = |name: &str| std::env::var_os(name).unwrap_or_default();
    let (path, named) = (list("PATH"), list("PYTHONPATH"));
    let mut prefixes: BTreeSet<PathBuf> =
        std::env::split_paths(&path).filter_map(|bin| prefix(&bin)).collect();
    prefixes.extend(program.parent().and_then(prefix));
    prefixes.extend(std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    let mut folders: Vec<PathBuf> = std::env::split_paths(&named).collect();
    for lib in prefixes.iter().flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]) {
        let pythons = entries(&lib).into_iter().filter(|name| name.as_bytes().starts_with(b"python3"));
        folders.extend(pythons.flat_map(|name| PACKAGES.map(|packages| lib.join(&name).join(packages))));
    }
    folders
}

/// What a folder of programs stands in. Of an interpreter that is a link, as in a virtual environment, the
/// link's own folder counts.
fn prefix(bin: &Path) -> Option<PathBuf> {
    bin.canonicalize().ok()?.parent().map(Path::to_path_buf)
}

/// Files in the folders that wheels have beside their packages for libraries.
fn bundled(packages: &Path) -> Vec<PathBuf> {
    let folders = entries(packages).into_iter().filter(|name| name.as_bytes().ends_with(BUNDLED));
    let folders = folders.map(|name| packages.join(name));
    folders.flat_map(|folder| entries(&folder).into_iter().map(move |name| folder.join(name))).collect()
}

/// A folder's names; none of one that is not there or may not be read.
fn entries(folder: &Path) -> Vec<OsString> {
    fs::read_dir(folder).map(|all| all.flatten().map(|entry| entry.file_name()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_linker_names_a_file() {
        let path = |line: &str| listed_path(line.as_bytes());
        let at = Some(PathBuf::from("/opt/x y/libibverbs-1.so.1"));
        assert_eq!(path("\tlibibverbs-1.so.1 => /opt/x y/libibverbs-1.so.1 (0x00007f0)"), at);
        assert_eq!(path("\t/opt/x y/libibverbs-1.so.1 (0x00007f0)"), at);
        assert_eq!(path("\tlinux-vdso.so.1 (0x00007ffd)"), None);
        assert_eq!(path("\tlibibverbs-1.so.1 => not found"), None);
    }

    #[test]
    fn a_program_maps_libc() {
        let shell = mapped(Path::new("/bin/sh"), OsStr::new(""));
        assert!(shell.iter().any(|path| path.ends_with("libc.so.6")), "{shell:?}");
        assert!(mapped(Path::new("/etc/passwd"), OsStr::new("")).is_empty());
    }

    #[test]
    fn what_only_has_the_name_is_no_copy() {
        let folder = std::env::temp_dir().join(format!("adverb-copies-{}", std::process::id()));
        let libs = folder.join("thing.libs");
        fs::remove_dir_all(&folder).ok();
        fs::create_dir_all(&libs).unwrap();
        fs::write(libs.join("libibverbs-0a1b2c3d.so.1"), "not a library").unwrap();
        let libc = mapped(Path::new("/bin/sh"), OsStr::new(""));
        let libc = libc.iter().find(|path| path.ends_with("libc.so.6")).unwrap();
        fs::copy(libc, libs.join("libibverbs-11111111.so.1")).unwrap();
        let files = bundled(&folder);
        assert_eq!(files.len(), 2);
        assert_eq!(files.iter().find_map(|path| copy(path, Path::new("/nowhere"))), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
