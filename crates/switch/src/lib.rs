//! A programmable switch for RoCEv2, sans-IO: no sockets, no clock, no threads.
//!
//! A driver gives it frames ([`Switch::on_frame`]) and the time, and takes frames for ports
//! ([`Switch::next_frame`]). Between, a frame goes to the port that has its destination address, and
//! through the switch's programs in a row ([`program::Program`]). A program parses (the descriptor of
//! `adverb-wire`), matches (tables of a stated size) and acts: changes the frame, drops it for a named
//! reason, keeps it for a while, or makes others. What no program changed leaves bit for bit as it came.
//!
//! ```text
//! frame      a packet: descriptor, and the bytes as they came
//! switch     ports, addresses, the row of programs
//! program    what a program is, and which there are
//! mark       ecn and trim
//! cas_to_write   atomics that the switch decides, and sends on as WRITEs
//! own        the seam for programs of other crates
//! paper      the draft's own scheme for them, for the simulator; for chains it is in steer
//! steer      requests for chains of entries that go to the last one
//! register   arrays with one access a pass; budget: what programs need, against hardware
//! entries    tables and registers, from outside the pipeline
//! stf        cases of packets in and packets out, as text; pairs, as captures
//! keys       programs as files say them
//! counters trace
//! ```
#![forbid(unsafe_code)]

pub mod budget;
pub mod cas_to_write;
pub mod counters;
pub mod entries;
pub mod frame;
pub mod keys;
pub mod mark;
pub mod own;
pub mod pairs;
pub mod paper;
pub mod program;
pub mod register;
pub mod steer;
pub mod stf;
pub mod switch;
pub mod trace;

pub use budget::{Ability, Misfit, Needs, Profile, Shares, Usage};
pub use cas_to_write::{ByteOrder, CasConfig, CasToWrite, Mistake, WordRange};
pub use counters::{Counter, Counters, Drop};
pub use frame::Frame;
pub use mark::{Mark, MarkConfig};
pub use own::{Making, Own, OwnConfig};
pub use paper::{Paper, PaperConfig};
pub use program::{Context, PortId, Program, ProgramConfig};
pub use steer::paper::PaperSteer;
pub use steer::{LinksWait, Steer, SteerConfig, SteerMistake};
pub use switch::{Announcement, Error, Next, PortCounts, Switch};
pub use trace::{Event, Note, Trace};
