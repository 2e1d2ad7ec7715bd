//! The real loop around one NIC per process: [`Host`].
//!
//! A frame's way out: `core` asks the NIC for it and gives it to `port`, which chooses the path: `rings`
//! (processes of this address, through shared memory) or `udp` (everyone else). Its way in is the same
//! backwards. `progress` decides who makes rounds: the application in its own calls, or a thread.
//!
//! ```text
//! settings device error          what a user chooses, sees, and is told
//! host core progress fork        the NIC, its lock, its rounds, its thread, its process's end
//! port faults capture counters   where frames leave and enter
//! directory rings ring wake      processes of one address
//! udp                            the network
//! batch inbox                    frames on their way to the kernel, and from it
//! sys shm socket                 system calls
//! ```
//! `batch`, `inbox`, `ring`, `shm`, `socket`, `sys` and `faults` also serve the driver of 1RMA, which is a NIC of its own (`crates/rma`).
//!
//! Unsafe code is in `sys`, `shm`, `ring`, `socket`, `inbox`, `fork`, and one cast in `udp`.
#![deny(unsafe_code)]

pub mod batch;
mod capture;
mod core;
mod counters;
mod device;
mod directory;
mod error;
pub mod faults;
mod fork;
mod host;
pub mod inbox;
mod lock;
mod port;
mod progress;
pub mod ring;
mod rings;
mod settings;
pub mod shm;
pub mod socket;
pub mod sys;
mod udp;
mod wake;

pub use counters::{is_json, render as render_counters};
pub use device::{DEVICE_NAME, DeviceInfo, devices};
pub use directory::{default_directory, namespace, private_folder};
pub use error::OpenError;
pub use host::Host;
pub use settings::{Congestion, Direction, PathPolicy, Settings, SettingsError, Transport};

#[cfg(test)]
fn test_folder(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("adverb-io-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a temporary folder");
    path
}
