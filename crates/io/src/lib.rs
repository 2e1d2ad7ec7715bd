//! The real loop around one NIC per process: [`Host`].
//!
//! A frame's way out: `core` asks the NIC for it and gives it to `port`, which chooses the path: `rings`
//! (processes of this address, through shared memory) or `udp` (everyone else). Its way in is the same
//! backwards. `progress` decides who makes rounds: the application in its own calls, or a thread.
//!
//! ```text
//! settings device error          what a user chooses, sees, and is told
//! facade mounts                  what programs find in sysfs and /dev; a mount namespace that shows it
//! host core fork                 the NIC, its lock, its rounds, its process's end
//! progress guess aside           who makes the rounds, the application or a thread, and where that runs
//! poll vain                      a program's polls; callers that let others run
//! doorbells                      send queues that programs ring through memory
//! port payload counters          where frames leave and enter
//! board                          what is counted, for others to read
//! directory rings                processes of one address
//! cm ports                       the connection manager; the port space that these processes share
//! udp                            the network
//! program                        native programs: adverb_rdma's driver
//! star                           native services without connections
//! asked looks roles              a running process, looked at and told from outside
//! registry                       StaR's registry: rules from an agent, and to one
//! ```
//! Sockets, shared memory, rings, bells, locks, faults and capture are in `adverb_os`.
//!
//! Unsafe code is in `payload`, `fork`, `mounts` and `program/memory`.
#![deny(unsafe_code)]

mod aside;
mod asked;
pub mod board;
pub mod cm;
mod core;
mod counters;
mod device;
mod directory;
mod doorbells;
mod error;
pub mod facade;
mod fork;
mod guess;
mod hold;
mod host;
mod life;
mod locals;
pub mod looks;
pub mod mounts;
pub mod notes;
mod payload;
mod poll;
mod port;
mod ports;
pub mod program;
mod progress;
pub mod registry;
mod rings;
pub mod roles;
mod row;
mod settings;
pub mod star;
mod steering;
mod udp;
mod vain;

pub use adverb_nic::SHORTEST_TIMEOUT;
pub use adverb_os::choice::{Choice, PathPolicy};
pub use adverb_os::faults::{Direction, Faults};
pub use counters::{is_json, render as render_counters};
pub use device::{DEVICE_NAME, DeviceInfo, devices};
pub use error::OpenError;
pub use fork::epoch as forks;
pub use host::{Host, TOLERANCE};
pub use port::Way;
pub use settings::{Congestion, Settings, SettingsError, StarTrust, Transport};
pub use vain::EmptyPolls;
