//! Latency and bandwidth between two processes of this host, to measure the loop: `cargo run --release
//! --example transfer -- [write-lat|send-lat|read-lat|write-bw|send-bw] [bytes] [settings] [their settings]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

#[path = "../tests/common/mod.rs"]
mod common;

use adverb_nic::SendOp;
use adverb_wire::Key;
use common::{Endpoint, Helper, Remote, listen, role, say};
use std::sync::atomic::Ordering;
use std::time::Instant;

const WARMUP: usize = 1000;

fn main() {
    match role() {
        Some(role) => serve(&role),
        None => measure(&std::env::args().skip(1).collect::<Vec<_>>()),
    }
}

fn serve(role: &[String]) {
    let (kind, len, count) = (&*role[1], role[2].parse().unwrap(), role[3].parse().unwrap());
    let e = Endpoint::open(&role[0]);
    for i in 0..128 {
        e.recv(i, 1 << 20, 1 << 20);
    }
    say(&e.remote().line());
    let peer = Remote::parse(&listen().unwrap());
    e.connect(&peer);
    say("connected");
    match kind {
        "write-lat" => {
            for i in 1..=count as u64 {
                spin_for(&e, len, i);
                write(&e, &peer, len, i);
                e.wait_ok(1);
            }
        }
        "send-lat" => {
            for i in 0..count {
                e.wait_ok(if i == 0 { 1 } else { 2 });
                e.recv(0, 1 << 20, 1 << 20);
                e.post(1, SendOp::Send, 0, len);
            }
        }
        "send-bw" => {
            let mut left = count;
            while left > 0 {
                let n = e.wait_ok(left.min(16)).len();
                left -= n;
                (0..n).for_each(|_| e.recv(0, 1 << 20, 1 << 20));
            }
        }
        _ => {}
    }
    listen();
    eprintln!("--- target\n{}", interesting(&e));
}

fn interesting(e: &Endpoint) -> String {
    let text = e.host.counters_text();
    text.lines().filter(|l| !l.ends_with(" 0")).collect::<Vec<_>>().join("; ")
}

/// Spins until the last word of the message says `i`.
fn spin_for(e: &Endpoint, len: usize, i: u64) {
    while e.memory[(1 << 17) + (len - 1) / 8].load(Ordering::Acquire) != i {
        std::hint::spin_loop();
    }
}

fn write(e: &Endpoint, peer: &Remote, len: usize, i: u64) {
    e.memory[(len - 1) / 8].store(i, Ordering::Release);
    e.post(1, SendOp::Write(peer.addr + (1 << 20), Key(peer.rkey)), 0, len);
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn measure(args: &[String]) {
    let arg = |i: usize, or: &str| args.get(i).cloned().unwrap_or_else(|| or.to_owned());
    let (kind, len) = (arg(0, "write-lat"), arg(1, "8").parse::<usize>().unwrap());
    let (ours, theirs) = (arg(2, "address=127.0.60.1"), arg(3, &arg(2, "address=127.0.60.1")));
    let default = if kind.ends_with("lat") { 20_000 } else { ((4usize << 30) / len).clamp(1000, 2_000_000) };
    let count: usize = arg(4, &default.to_string()).parse().unwrap();
    let e = Endpoint::open(&ours);
    let mut helper = Helper::start(&[&theirs, &kind, &len.to_string(), &(count + WARMUP).to_string()]);
    let peer = Remote::parse(&helper.hear());
    for i in 0..128 {
        e.recv(i, 1 << 20, 1 << 20);
    }
    helper.tell(&e.remote().line());
    e.connect(&peer);
    assert_eq!(helper.hear(), "connected");
    let key = Key(peer.rkey);
    let mut ns = Vec::new();
    let mut start = Instant::now();
    if kind.ends_with("lat") {
        for i in 1..=(count + WARMUP) as u64 {
            let t = Instant::now();
            match &*kind {
                "write-lat" => {
                    write(&e, &peer, len, i);
                    e.wait_ok(1);
                    spin_for(&e, len, i);
                }
                "send-lat" => {
                    e.post(1, SendOp::Send, 0, len);
                    e.wait_ok(2);
                    e.recv(0, 1 << 20, 1 << 20);
                }
                _ => e.run(SendOp::Read(peer.addr, key), 0, len),
            }
            ns.push(t.elapsed().as_nanos() as u64);
        }
        let ns = &mut ns[WARMUP..];
        ns.sort_unstable();
        let halves = if kind == "read-lat" { 1.0 } else { 2.0 };
        let us = |p: f64| ns[((ns.len() - 1) as f64 * p) as usize] as f64 / 1e3 / halves;
        println!("{kind} {len} B: p50 {:.2} p99 {:.2} p99.9 {:.2} us", us(0.5), us(0.99), us(0.999));
    } else {
        let depth = 64;
        for i in 0..count + WARMUP {
            if i == WARMUP {
                start = Instant::now();
            }
            if i >= depth {
                e.wait_ok(1);
            }
            match &*kind {
                "write-bw" => e.post(1, SendOp::Write(peer.addr + (1 << 20), key), 0, len),
                "read-bw" => e.post(1, SendOp::Read(peer.addr + (1 << 20), key), 0, len),
                _ => e.post(1, SendOp::Send, 0, len),
            }
        }
        e.wait_ok(depth);
        let s = start.elapsed().as_secs_f64();
        println!(
            "{kind} {len} B: {:.2} Gb/s {:.3} M/s",
            (count * len) as f64 * 8.0 / s / 1e9,
            count as f64 / s / 1e6
        );
    }
    eprintln!("--- initiator\n{}", interesting(&e));
    helper.end();
}
