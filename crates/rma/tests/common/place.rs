//! Where a test lives: a folder, which goes with it, and addresses of its own, so that several runs at a time
//! do not meet.

use std::net::IpAddr;
use std::path::PathBuf;

/// `host` is below 20; `test` counts up within a program.
pub fn address(test: u8, host: u8) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    IpAddr::from([127, 64 + high % 64, low, test % 10 * 20 + host])
}

/// A folder for a test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("adverb-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
