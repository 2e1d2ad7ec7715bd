//! A mount namespace of one's own, and what is shown in it: folders of sysfs and /dev with something added.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Where folders are put together: hidden while that lasts, in this process's namespace only.
const STAGE: &str = "/tmp";
/// CAP_SYS_ADMIN (linux/capability.h).
const ADMIN: u32 = 21;

/// Whether this process may mount where it is.
pub fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok()).is_some_and(|held| held >> ADMIN & 1 == 1)
}

/// Takes a mount namespace of its own, in which nothing that this process mounts reaches anybody else. In a
/// user namespace of its own if `user`, for a process that may not mount: it stays the user that it is. To be
/// called before a second thread begins.
pub fn unshare(user: bool) -> io::Result<()> {
    // SAFETY: queries without pointers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let flags = libc::CLONE_NEWNS | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: takes no pointers.
    done(unsafe { libc::unshare(flags) })?;
    if user {
        // The group may be mapped only once groups can no longer be dropped (user_namespaces(7)).
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // Mounts of the host still come in; none goes out.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_SLAVE)
}

/// Shows `/sys/class` and `/dev` with folders added. `classes` and `nodes` are called with the folders to
/// fill, and replace what is there under the names of `class_names` and `node_names`.
pub fn show(
    (class_names, classes): (&[&str], impl FnOnce(&Path) -> io::Result<()>),
    (node_names, nodes): (&[&str], impl FnOnce(&Path) -> io::Result<()>),
) -> io::Result<()> {
    let stage = Path::new(STAGE);
    mount(Some("tmpfs"), stage, Some("mode=755"), libc::MS_NOSUID)?;
    let shown = put_together(stage, (class_names, classes), (node_names, nodes));
    // Whatever came of it, the host's folder is back.
    let path = c_path(stage)?;
    // SAFETY: a C string.
    done(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) })?;
    shown
}

fn put_together(
    stage: &Path,
    (class_names, classes): (&[&str], impl FnOnce(&Path) -> io::Result<()>),
    (node_names, nodes): (&[&str], impl FnOnce(&Path) -> io::Result<()>),
) -> io::Result<()> {
    let (class, dev) = (stage.join("class"), stage.join("dev"));
    copied(Path::new("/sys/class"), &class, class_names)?;
    classes(&class)?;
    copied(Path::new("/dev"), &dev, node_names)?;
    nodes(&dev)?;
    bind(&class, Path::new("/sys/class"))?;
    bind(&dev, Path::new("/dev"))
}

/// Shows a file or folder at another place too, with what is mounted below.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (c_path(from)?, c_path(to)?);
    let flags = libc::MS_BIND | libc::MS_REC;
    // SAFETY: C strings; a bind reads neither type nor data.
    done(unsafe { libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) })
}

/// A folder that has everything of another one but some names.
fn copied(from: &Path, to: &Path, without: &[&str]) -> io::Result<()> {
    fs::create_dir(to)?;
    // Without sysfs there is nothing to copy.
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if without.iter().any(|without| name == *without) {
            continue;
        }
        let (source, copy) = (entry.path(), to.join(&name));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(source)?, copy)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&copy)?;
        } else {
            fs::File::create(&copy)?;
        }
        bind(&source, &copy)?;
    }
    Ok(())
}

fn mount(kind: Option<&str>, at: &Path, data: Option<&str>, flags: libc::c_ulong) -> io::Result<()> {
    let at = c_path(at)?;
    let kind = kind.map(CString::new).transpose()?;
    let data = data.map(CString::new).transpose()?;
    let (kind, data) = (pointer(kind.as_ref()), pointer(data.as_ref()));
    // SAFETY: C strings, or null where there is none; `data` is text for these file systems.
    done(unsafe { libc::mount(kind, at.as_ptr(), kind, flags, data.cast()) })
}

fn pointer(text: Option<&CString>) -> *const libc::c_char {
    text.map_or(std::ptr::null(), |text| text.as_ptr())
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(outcome: libc::c_int) -> io::Result<()> {
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
