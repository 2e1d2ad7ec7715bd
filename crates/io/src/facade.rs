//! What Linux shows of a device in sysfs and /dev, for programs that look there: names and contents. The
//! library answers from the same list; `adverb run` and `adverb facade` write it into folders.
//!
//! The names are those of Linux's own devices (Documentation/ABI/stable/sysfs-class-infiniband). There are no
//! counters, because nobody would keep them up to date.

use crate::device::DeviceInfo;
use adverb_wire::Gid;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Entries of the GID table that Linux shows; those without an address are zero.
const GIDS: usize = 16;
/// The class folders of sysfs that a device appears in.
pub const CLASSES: [&str; 2] = ["infiniband", "infiniband_verbs"];
/// The folder of device nodes.
pub const NODES: &str = "infiniband";

/// A GUID as sysfs writes it.
fn guid_text(guid: u64) -> String {
    words(&guid.to_be_bytes())
}

fn words(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks_exact(2).map(|word| format!("{:02x}{:02x}", word[0], word[1])).collect();
    words.join(":")
}

/// The files of the device's folder in `/sys/class/infiniband`: name and content, without the newline.
pub fn attributes(device: &DeviceInfo) -> Vec<(String, String)> {
    let guid = guid_text(device.node_guid);
    let plain = [
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hw_rev", "0"),
        ("hca_type", "adverb"),
        ("board_id", "adverb"),
        ("node_type", "1: CA"),
        ("node_desc", "adverb software RDMA NIC"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        // No processor is nearer than another.
        ("device/numa_node", "-1"),
        ("ports/1/cap_mask", "0x00010000"),
        ("ports/1/lid", "0x0"),
        ("ports/1/lid_mask_count", "0"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/pkeys/0", "0xffff"),
        ("ports/1/rate", "100 Gb/sec (4X EDR)"),
        ("ports/1/sm_lid", "0x0"),
        ("ports/1/sm_sl", "0"),
        ("ports/1/state", "4: ACTIVE"),
    ];
    let mut files: Vec<_> = plain.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    files.push((format!("device/net/{}/ifindex", device.interface), device.interface_index.to_string()));
    for index in 0..GIDS.max(device.gids.len()) {
        let gid = device.gids.get(index).copied();
        files.push((format!("ports/1/gids/{index}"), words(&gid.unwrap_or(Gid([0; 16])).0)));
        if gid.is_some() {
            files.push((format!("ports/1/gid_attrs/types/{index}"), "RoCE v2".to_owned()));
            files.push((format!("ports/1/gid_attrs/ndevs/{index}"), device.interface.clone()));
        }
    }
    files
}

/// All files below `/sys/class`: name and content, without the newline.
pub fn class_files(device: &DeviceInfo) -> Vec<(String, String)> {
    let own = attributes(device).into_iter();
    let mut files: Vec<_> =
        own.map(|(name, text)| (format!("infiniband/{}/{name}", device.name), text)).collect();
    let verbs = [
        ("abi_version", "6"),
        ("uverbs0/abi_version", "1"),
        ("uverbs0/dev", "231:192"),
        ("uverbs0/ibdev", &*device.name),
    ];
    files.extend(verbs.map(|(name, text)| (format!("infiniband_verbs/{name}"), text.to_owned())));
    files
}

/// Writes the class folders into a folder that is there.
pub fn write_classes(classes: &Path, device: &DeviceInfo) -> io::Result<()> {
    for (name, text) in class_files(device) {
        let path = classes.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text + "\n")?;
    }
    Ok(())
}

/// Writes a whole root: `sys/class` and `dev`. The device's node leads to /dev/null: programs ask whether it
/// is a character device that they may read and write, and never open it.
pub fn write_root(root: &Path, device: &DeviceInfo) -> io::Result<()> {
    write_classes(&root.join("sys/class"), device)?;
    let nodes = root.join("dev").join(NODES);
    fs::create_dir_all(&nodes)?;
    symlink("/dev/null", nodes.join("uverbs0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, devices};
    use std::collections::BTreeSet;
    use std::os::unix::fs::FileTypeExt;

    fn device() -> DeviceInfo {
        devices(&Settings::parse("address=127.0.0.1").unwrap()).unwrap()
    }

    #[test]
    fn every_name_stands_once_and_holds_a_line() {
        let files = class_files(&device());
        let names: BTreeSet<&str> = files.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names.len(), files.len());
        assert!(files.iter().all(|(_, text)| !text.is_empty() && !text.contains('\n')));
        let of = |name: &str| &files.iter().find(|(n, _)| n == name).unwrap().1;
        assert_eq!(of("infiniband/adverb0/ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:7f00:0001");
        assert_eq!(of("infiniband/adverb0/ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000");
        assert_eq!(of("infiniband/adverb0/ports/1/gid_attrs/ndevs/1"), "lo");
        assert!(
            !names.contains("infiniband/adverb0/ports/1/gid_attrs/types/2"),
            "an entry without an address"
        );
    }

    #[test]
    fn a_root_has_files_and_a_character_device() {
        let root = std::env::temp_dir().join(format!("adverb-facade-{}", std::process::id()));
        fs::remove_dir_all(&root).ok();
        write_root(&root, &device()).unwrap();
        let state = fs::read_to_string(root.join("sys/class/infiniband/adverb0/ports/1/state")).unwrap();
        assert_eq!(state, "4: ACTIVE\n");
        assert!(fs::metadata(root.join("dev/infiniband/uverbs0")).unwrap().file_type().is_char_device());
        fs::remove_dir_all(root).unwrap();
    }
}
