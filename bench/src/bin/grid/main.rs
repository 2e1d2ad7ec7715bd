//! Many clients' connections to one server's process, over UDP: what a request costs the server's NIC, by how
//! many connections it has.
//!
//!     grid serve --address 127.0.0.1 --transport rc|star|star-single
//!     grid load --address 127.0.0.2 --transport star --server 127.0.0.1 --at PORT --clients 10000
//!
//! The server prints the TCP port at which it is told of connections and says what it has counted, and
//! sleeps: its NIC's thread does all the work, so that thread's clock is the server's processor time. The
//! client holds all connections in one process. A line of its standard input, `write|read OUTSTANDING
//! MILLISECONDS MICROSECONDS`, has so many requests of 64 bytes outstanding for so long, each over a
//! connection drawn at random, the next ones as many microseconds after the last at the earliest, and is
//! answered by a JSON object. `bench/grid` runs them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of those who build adverb")]

mod end;
mod load;
mod serve;

use adverb_bench::Options;
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts what is allocated: bytes for each connection.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call goes on to the system's allocator as it came; counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are allocated now.
fn live_bytes() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let options = Options::new(words.collect());
    let outcome = match name.as_str() {
        "serve" => serve::run(&options),
        "load" => load::run(&options),
        _ => Err("usage: grid serve|load [--option value]".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("grid: {why}");
            ExitCode::FAILURE
        }
    }
}
