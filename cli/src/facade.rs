//! Showing the device in sysfs and /dev, where programs look for one before they ask the library: to a
//! command of `adverb run`, by a mount namespace or a preloaded library, or in a folder (`adverb facade`).

use crate::args::Nic;
use crate::copies::Copied;
use crate::error::Error;
use crate::library::SONAME;
use crate::settings;
use adverb_io::facade::{CLASSES, NODES, class_files, write_classes, write_root};
use adverb_io::{DeviceInfo, Settings, mounts};
use adverb_os::folders::{private_folder, shared_directory};
use adverb_os::say;
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `adverb facade --help` ends with.
pub const EXAMPLES: &str = "\
The folder gets sys/class/infiniband, sys/class/infiniband_verbs and dev/infiniband, for programs that take
the root of sysfs as an option. There are no counters in it.

Examples:
  adverb facade --out /run/adverb-facade --address 127.0.0.1
  cat /run/adverb-facade/sys/class/infiniband/adverb0/ports/1/state";

/// The library that is preloaded, beside libibverbs.so.1.
const LIBRARY: &str = "libadverb_facade.so";
/// Where that library finds the device's files.
const ROOT: &str = "ADVERB_FACADE";
const PRELOAD: &str = "LD_PRELOAD";
/// The device that makes pseudoterminals.
const MASTER: &str = "ptmx";

/// How programs of `adverb run` find the device in sysfs and /dev.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// A mount namespace where this user may mount, else a preloaded library
    Auto,
    /// A mount namespace; for a user who may not mount, in a user namespace of its own, between which
    /// processes cannot reach each other's memory (process_vm_writev)
    Namespace,
    /// A preloaded library: not seen by static programs, nor in listings of /sys/class and /dev
    Preload,
    /// Not at all: UCX finds no device
    Off,
}

/// `adverb facade`.
#[derive(Args, Debug)]
pub struct Facade {
    /// The folder, which is made
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// IP address of the NIC [default: the one that the default route leaves from]
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
}

/// Writes the device's files into a folder.
pub fn write(arguments: &Facade) -> Result<(), Error> {
    let settings = settings::from_options(&Nic { address: arguments.address, ..Nic::default() })?;
    let out = &arguments.out;
    let failed = |source| Error::File { option: "--out", path: out.clone(), source };
    fs::create_dir(out).map_err(failed)?;
    write_root(out, &device(&settings)?).map_err(failed)
}

fn device(settings: &Settings) -> Result<DeviceInfo, Error> {
    adverb_io::devices(settings).map_err(|e| Error::Device(e.to_string()))
}

/// Shows the device to a command, puts adverb's library in the place of copies of it, and says how.
pub fn show(
    how: How,
    settings: &Settings,
    library: &Path,
    copies: &BTreeSet<Copied>,
    command: &mut Command,
) -> Result<(), Error> {
    let device = match how {
        How::Off => {
            for Copied { path, name } in copies {
                say!("adverb: {} is a copy of {name}, and stays (--facade off)", path.display());
            }
            return Ok(());
        }
        _ => device(settings)?,
    };
    let said = match how {
        How::Auto if mounts::may_mount() => match by_namespace(&device, library, copies, false) {
            Ok(()) => "a mount namespace".to_owned(),
            Err(why) => {
                by_library(&device, settings, library, copies, command)?;
                format!("a preloaded library, since a mount namespace was refused ({why})")
            }
        },
        How::Auto | How::Preload => {
            by_library(&device, settings, library, copies, command)?;
            "a preloaded library".to_owned()
        }
        How::Namespace => {
            let user = !mounts::may_mount();
            by_namespace(&device, library, copies, user).map_err(|why| {
                Error::Facade(format!(
                    "--facade namespace: {why}; give --facade preload, or run where this user may have mount \
                     namespaces"
                ))
            })?;
            match user {
                false => "a mount namespace".to_owned(),
                true => {
                    "a mount namespace in a user namespace of its own, which keeps processes of other runs \
                         from its memory (process_vm_writev)"
                        .to_owned()
                }
            }
        }
        How::Off => return Ok(()),
    };
    say!("adverb: {} shows in sysfs and /dev by {said}", device.name);
    for Copied { path, name } in copies {
        say!("adverb: {} is a copy of {name}: adverb's takes its place there too", path.display());
    }
    Ok(())
}

fn by_namespace(
    device: &DeviceInfo,
    library: &Path,
    copies: &BTreeSet<Copied>,
    user: bool,
) -> io::Result<()> {
    mounts::unshare(user)?;
    let nodes = |dev: &Path| {
        let node = dev.join(NODES).join("uverbs0");
        fs::create_dir(dev.join(NODES))?;
        fs::File::create(&node)?;
        // A character device that everybody may read and write is all that programs ask for.
        mounts::bind(Path::new("/dev/null"), &node)?;
        // A terminal's master looks for `pts` beside itself, which it does not find from where it is shown.
        symlink("pts/ptmx", dev.join(MASTER))
    };
    mounts::show((&CLASSES, |classes: &Path| write_classes(classes, device)), (&[NODES, MASTER], nodes))?;
    copies.iter().try_for_each(|copy| mounts::bind(&library.join(copy.name), &copy.path))
}

fn by_library(
    device: &DeviceInfo,
    settings: &Settings,
    library: &Path,
    copies: &BTreeSet<Copied>,
    command: &mut Command,
) -> Result<(), Error> {
    let preloaded = library.join(LIBRARY);
    if !preloaded.is_file() {
        return Err(Error::Facade(format!(
            "no {LIBRARY} in {}; run `make build`, or give --facade off",
            library.display()
        )));
    }
    let directory = settings.directory.clone().unwrap_or_else(shared_directory);
    let root = kept_root(&directory, device).map_err(|why| {
        Error::Facade(format!(
            "{}: the device's files cannot be written there: {why}; make room, or give --facade off",
            directory.display()
        ))
    })?;
    let mut list = preloaded.into_os_string();
    if !copies.is_empty() {
        // What comes first in the order of symbols is called in place of a copy, which stays loaded.
        list.push(OsStr::new(":"));
        list.push(library.join(SONAME));
    }
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(OsStr::new(":"));
        list.push(others);
    }
    command.env(PRELOAD, list).env(ROOT, root);
    Ok(())
}

/// A root with the device's files that stays for the next run: whoever comes first writes it.
fn kept_root(directory: &Path, device: &DeviceInfo) -> io::Result<PathBuf> {
    private_folder(directory).map_err(io::Error::other)?;
    let root = directory.join(format!("facade-{:016x}", fingerprint(device)));
    if root.is_dir() {
        return Ok(root);
    }
    let own = directory.join(format!("facade-{}.new", std::process::id()));
    let written = write_root(&own, device).and_then(|()| fs::rename(&own, &root));
    if let Err(why) = written {
        // Best effort: what is left costs a few pages.
        let _ = fs::remove_dir_all(&own);
        // Another run was first.
        return if root.is_dir() { Ok(root) } else { Err(why) };
    }
    Ok(root)
}

/// Tells devices with other files apart (FNV-1a).
fn fingerprint(device: &DeviceInfo) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (name, text) in class_files(device) {
        for byte in name.bytes().chain([0]).chain(text.bytes()).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device_at(address: &str) -> DeviceInfo {
        let settings = Settings { address: Some(address.parse().unwrap()), ..Settings::default() };
        device(&settings).unwrap()
    }

    #[test]
    fn a_root_is_written_once_and_differs_by_address() {
        let directory = std::env::temp_dir().join(format!("adverb-roots-{}", std::process::id()));
        fs::remove_dir_all(&directory).ok();
        let first = kept_root(&directory, &device_at("127.0.0.1")).unwrap();
        fs::write(first.join("mark"), "").unwrap();
        assert_eq!(kept_root(&directory, &device_at("127.0.0.1")).unwrap(), first);
        assert!(first.join("mark").exists(), "it was written again");
        assert_ne!(kept_root(&directory, &device_at("127.0.0.2")).unwrap(), first);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2, "nothing is left beside them");
        fs::remove_dir_all(directory).unwrap();
    }
}
