//! The process of a switch: it moves frames between the ports of [`adverb_switch`] and processes of this
//! host, which come through Unix sockets (`adverb_os::via`).
//!
//! ```text
//! config    the file that says which programs, ports and faults there are
//! process   the loop: waits, takes frames, gives them to the switch, sends what leaves; in claims, who gets
//!           a port
//! reload    another file in the place of the one that runs, and ports that come and go
//! members   processes behind a port, and who of them gets a frame
//! cable     what is behind a port with Ethernet: a virtual machine, or an interface
//! machine   QEMU's socket
//! interface a packet socket
//! ethernet  whose hardware address is which, on a cable
//! line      what stands between a port and the switch: faults and capture
//! control   questions: show, trace, set
//! shifted   the file of queue pairs that the next switch in this place has to know
//! recorded  the switch, as it goes on tape: a recording's file; replay compares one with a switch
//! serve     all of it, as a program's `main` has it
//! error     why it cannot begin
//! ```
#![forbid(unsafe_code)]

mod cable;
mod claims;
pub mod config;
pub mod control;
mod error;
mod ethernet;
mod gate;
mod interface;
mod line;
mod machine;
mod members;
mod process;
mod recorded;
mod reload;
pub mod replay;
mod serve;
pub mod shifted;
pub mod tape;

pub use config::{Config, OwnKind};
pub use control::Question;
pub use error::OpenError;
pub use process::{Process, Stopper};
pub use serve::serve;
pub use toml;
