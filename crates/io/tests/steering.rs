//! Datagrams for several processes of one address: each is given to the process that it is for, at once, by
//! the program on the port. What goes astray while a process comes or goes is handed on; then none is.

#![allow(clippy::print_stdout, reason = "a test")]

mod common;

use adverb_nic::SendOp;
use adverb_wire::Key;
use common::{Endpoint, Helper, Remote, folder, listen, local, role, say};
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes of each pair in a round.
const WRITES: u64 = 64;
/// Rounds in which nothing may be handed on.
const ROUNDS: usize = 20;
/// After a birth or a death, nothing is handed on any more within this time: a process looks after its way a
/// few times a second, if it has a processor.
const HEALED: Duration = Duration::from_secs(60);

/// The helper process: a target that tells what its NIC has counted whenever it is asked.
#[test]
fn helper() {
    let Some(role) = role() else { return };
    let endpoint = Endpoint::open(&role[1]);
    say(&endpoint.remote().line());
    endpoint.connect(&Remote::parse(&listen().unwrap()));
    say("connected");
    while listen().is_some() {
        say(&endpoint.host.counters_text().replace('\n', ";"));
    }
}

/// An initiator with an address of its own, and its target, a process of the address that all targets share.
struct Pair {
    endpoint: Endpoint,
    helper: Helper,
    peer: Remote,
}

impl Pair {
    fn start(own: u8, folder: &Path) -> Pair {
        let at = |address: String| format!("address={address},directory={}", folder.display());
        let endpoint = Endpoint::open(&at(local(72, own)));
        let mut helper = Helper::start(&["target", &at(local(73, 1))]);
        let peer = Remote::parse(&helper.hear());
        helper.tell(&endpoint.remote().line());
        endpoint.connect(&peer);
        assert_eq!(helper.hear(), "connected");
        Pair { endpoint, helper, peer }
    }

    fn write(&self) {
        let op = SendOp::Write(self.peer.addr, Key(self.peer.rkey));
        (0..WRITES).for_each(|i| self.endpoint.post(i, op, 0, 64));
        self.endpoint.wait_ok(WRITES as usize);
    }

    fn counter(&mut self, name: &str) -> u64 {
        self.helper.tell("counters");
        let said = self.helper.hear();
        let value = said.split(';').find_map(|row| row.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {said}"))
    }
}

/// What all targets together have counted.
fn total(pairs: &mut [Pair], name: &str) -> u64 {
    pairs.iter_mut().map(|pair| pair.counter(name)).sum()
}

/// Frames that the targets handed on in a round of writes.
fn handed_on(pairs: &mut [Pair]) -> u64 {
    let before = total(pairs, "forwarded_frames");
    pairs.iter().for_each(Pair::write);
    total(pairs, "forwarded_frames") - before
}

/// All frames reach their process at once, after a while; and then for good.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn expect_steered(pairs: &mut [Pair], what: &str) {
    let start = Instant::now();
    let mut astray = Vec::new();
    loop {
        let frames = handed_on(pairs);
        astray.push(frames);
        if astray.len() >= 2 && astray[astray.len() - 2..] == [0, 0] {
            break;
        }
        assert!(start.elapsed() < HEALED, "{what}: handed on in each round: {astray:?}");
    }
    let count = pairs.len() as u64;
    let received: Vec<u64> = pairs.iter_mut().map(|pair| pair.counter("udp_rx_frames")).collect();
    let frames: u64 = (0..ROUNDS).map(|_| handed_on(pairs)).sum();
    assert_eq!(frames, 0, "{what}: with {count} processes; before that {astray:?}");
    for (pair, before) in pairs.iter_mut().zip(received) {
        let came = pair.counter("udp_rx_frames") - before;
        assert!(came >= WRITES * ROUNDS as u64, "{what}: {came} frames came");
        assert_eq!(pair.counter("steering_refused"), 0);
    }
    println!(
        "{what}, {count} processes: handed on before it was well {astray:?}, then 0 of {}",
        count * WRITES * ROUNDS as u64
    );
}

#[test]
fn each_process_of_an_address_gets_its_own_frames_at_once() {
    let folder = folder("steering");
    let mut pairs = vec![Pair::start(1, &folder)];
    expect_steered(&mut pairs, "alone");
    pairs.push(Pair::start(2, &folder));
    expect_steered(&mut pairs, "after a birth");
    pairs.extend((3..=8).map(|own| Pair::start(own, &folder)));
    expect_steered(&mut pairs, "after six births");
    // Their places are taken by the last of the group.
    pairs.remove(0).helper.kill();
    pairs.remove(3).helper.kill();
    expect_steered(&mut pairs, "after two deaths");
    pairs.push(Pair::start(9, &folder));
    expect_steered(&mut pairs, "after a death and a birth");
    pairs.into_iter().for_each(|pair| pair.helper.end());
    std::fs::remove_dir_all(folder).unwrap();
}
