//! The real loop around one NIC.
#![deny(unsafe_code)]

mod capture;
mod core;
mod counters;
mod device;
mod directory;
mod error;
mod faults;
mod fork;
mod host;
mod port;
mod progress;
mod ring;
mod rings;
mod settings;
mod shm;
mod socket;
mod sys;
mod udp;
mod wake;

pub use device::{DEVICE_NAME, DeviceInfo, devices};
pub use error::OpenError;
pub use host::Host;
pub use settings::{Direction, PathPolicy, Settings, SettingsError};

#[cfg(test)]
fn test_folder(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("adverb-io-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a temporary folder");
    path
}
