//! What a process that moves packets needs of Linux. Nothing here knows a NIC: `io` (queue pairs), `rma`
//! (1RMA) and whatever else drives packets build on it.
//!
//! ```text
//! clock            the one place that asks the kernel what time it is
//! sys              other system calls: record locks, FIFOs, ppoll, scheduling, randomness
//! barrier          a memory barrier in every thread of the process
//! interfaces       network interfaces, their addresses and MTUs; which address a host goes by
//! folders          where processes of one user meet
//! mapping shm      memory that several processes map
//! ring             frames from one process to another through such memory
//! socket           UDP in batches, cut apart and put together by the kernel
//! steer            which process of an address gets a datagram: a program for the kernel
//! batch inbox      frames on their way to the kernel, and from it
//! roce framing     RoCEv2 on UDP port 4791; IP packets built around what a socket shows
//! packet           Ethernet frames of an interface
//! unix             sockets that carry descriptors and know who is at the other end
//! socket_file      a daemon's place in the file system for them
//! via              frames to and from a port of a switch's process, through one of them
//! attend           a process that stays beside a program unnoticed
//! terminal         a terminal to draw on: keys, size
//! signals          SIGINT and SIGTERM to wait for; threads that take none; writing without SIGPIPE
//! say              lines for the person who runs the program, which may be lost but harm nothing
//! wake             bells and an alarm for a process or thread that sleeps
//! lock             a lock that leans towards one thread
//! spin             how long to look before sleeping
//! faults capture   harm done to frames on demand; frames written for Wireshark
//! choice           settings that are one of a few names
//! hint sync        prefetches; what synchronises, or a model of it
//! ```
//!
//! Unsafe code is in `attend`, `barrier`, `clock`, `sys`, `signals`, `interfaces`, `mapping`, `shm`, `ring`,
//! `socket`, `inbox`, `packet`, `unix`, `wake`, `lock`, `terminal` and `hint`.
#![deny(unsafe_code)]

pub mod attend;
#[cfg(not(loom))]
mod barrier;
pub mod batch;
pub mod capture;
pub mod choice;
pub mod clock;
pub mod faults;
pub mod folders;
pub mod framing;
mod hint;
pub mod inbox;
pub mod interfaces;
pub mod link;
pub mod lock;
pub mod mapping;
pub mod packet;
pub mod processors;
pub mod ring;
pub mod roce;
pub mod say;
pub mod shm;
pub mod signals;
pub mod socket;
pub mod socket_file;
pub mod spin;
pub mod steer;
mod sync;
pub mod sys;
pub mod terminal;
pub mod unix;
pub mod via;
pub mod wake;

/// Turns the `-1` of a system call into the error it stands for.
fn check(result: i32) -> std::io::Result<i32> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
fn test_folder(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("adverb-os-test-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a temporary folder");
    path
}
