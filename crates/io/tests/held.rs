//! Acknowledgements in shared memory that wait for the application's next call: a ping-pong of writes, whose
//! ends spin on memory, needs no progress thread, and what waits leaves without another call too.

mod common;

use adverb_nic::{CompletionOp, SendOp, Status};
use adverb_wire::Key;
use common::{Endpoint, Helper, Remote, folder, listen, local, role, say};
use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The word that the peer writes, and the one that is written to it from.
const IN: usize = 0;
const OUT: usize = 64;
/// Words that end the ping-pong.
const REST: u64 = u64::MAX;
const DIE: u64 = u64::MAX - 1;

/// The helper process. Does nothing when run as a test of its own.
#[test]
fn helper() {
    let Some(role) = role() else { return };
    let endpoint = Endpoint::open(&role[1]);
    endpoint.recv(0, IN, 8);
    say(&endpoint.remote().line());
    let peer = Remote::parse(&listen().unwrap());
    endpoint.connect(&peer);
    say("connected");
    if role[0] == "messages" {
        (0..MESSAGES).for_each(|i| answer_message(&endpoint, i));
        listen();
        return;
    }
    for i in 1.. {
        match wait_for_word(&endpoint, |word| word == i || word >= DIE) {
            REST => break,
            DIE => {
                // SAFETY: plain values.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            _ => write_word(&endpoint, &peer, i),
        }
    }
    listen();
}

/// Messages there and back.
const MESSAGES: u64 = 400;

/// Polls for a message, and sends one.
fn answer_message(endpoint: &Endpoint, i: u64) {
    while endpoint.wait_ok(1)[0].op != CompletionOp::Recv {}
    endpoint.recv(i, IN, 8);
    endpoint.post(i, SendOp::Send, OUT, 8);
}

/// Spins on memory, without a call, as `ib_write_lat` does.
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn wait_for_word(endpoint: &Endpoint, is_it: impl Fn(u64) -> bool) -> u64 {
    let start = Instant::now();
    loop {
        for _ in 0..10_000 {
            let word = endpoint.memory[IN / 8].load(Ordering::Acquire);
            if is_it(word) {
                return word;
            }
            spin_loop();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}", endpoint.host.counters_text());
    }
}

fn post_word(endpoint: &Endpoint, peer: &Remote, word: u64) {
    endpoint.memory[OUT / 8].store(word, Ordering::Relaxed);
    endpoint.post(word, SendOp::Write(peer.addr + IN as u64, Key(peer.rkey)), OUT, 8);
}

fn write_word(endpoint: &Endpoint, peer: &Remote, word: u64) {
    post_word(endpoint, peer, word);
    assert_eq!(endpoint.wait_ok(1)[0].wr_id, word);
}

/// Two processes in the middle of a ping-pong in which acknowledgements wait, and its last word. On a busy
/// host who has lost its processor comes back late, and is not trusted for a while; but not always.
fn ping_pong(address: &str, folder: &Path) -> (Endpoint, Helper, Remote, u64) {
    const ROUNDS: u64 = 400;
    const TRIES: usize = 100;
    let settings = format!("address={address},directory={}", folder.display());
    let endpoint = Endpoint::open(&settings);
    let mut helper = Helper::start(&["answer", &settings]);
    let peer = Remote::parse(&helper.hear());
    helper.tell(&endpoint.remote().line());
    // 67 ms for each of three tries.
    endpoint.connect_with(&peer, 14, 2);
    assert_eq!(helper.hear(), "connected");
    let (mut word, mut seen) = (0, Vec::new());
    for _ in 0..TRIES {
        let count = || [endpoint.counter("acks_held"), endpoint.counter("frames_by_thread")];
        let before = count();
        for _ in 0..ROUNDS {
            word += 1;
            write_word(&endpoint, &peer, word);
            wait_for_word(&endpoint, |found| found == word);
        }
        let now = count();
        let [held, by_thread] = [now[0] - before[0], now[1] - before[1]];
        if held > ROUNDS / 2 && by_thread < ROUNDS / 8 {
            return (endpoint, helper, peer, word);
        }
        seen.push((held, by_thread));
    }
    panic!("acknowledgements that waited, frames that the thread took: {seen:?}");
}

#[test]
fn what_waits_leaves_without_another_call() {
    let folder = folder("held");
    let (endpoint, helper, peer, _) = ping_pong(&local(74, 1), &folder);
    // The helper makes no more calls, but sleeps.
    write_word(&endpoint, &peer, REST);
    assert_eq!(endpoint.counter("retransmitted_packets"), 0);
    assert_eq!(endpoint.counter("udp_tx_frames"), 0);
    helper.end();
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what the time is that failing takes")]
fn who_is_killed_while_acknowledgements_wait_is_found_out_in_time() {
    let folder = folder("held-kill");
    let (endpoint, mut helper, peer, word) = ping_pong(&local(75, 1), &folder);
    post_word(&endpoint, &peer, DIE);
    helper.child.wait().unwrap();
    let start = Instant::now();
    post_word(&endpoint, &peer, word + 1);
    let found = endpoint.wait(2);
    // Whether the word that it died of was acknowledged is left to chance.
    let expected = match found[0].status {
        Status::Success => [Status::Success, Status::TransportRetryExceeded],
        _ => [Status::TransportRetryExceeded, Status::WorkRequestFlushed],
    };
    assert_eq!([found[0].status, found[1].status], expected);
    // Far from the 10 s for which a live peer may be excused.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn who_polls_for_messages_is_shown_acknowledgements_at_once() {
    let folder = folder("held-not");
    let settings = format!("address={},directory={}", local(76, 1), folder.display());
    let endpoint = Endpoint::open(&settings);
    let mut helper = Helper::start(&["messages", &settings]);
    let peer = Remote::parse(&helper.hear());
    helper.tell(&endpoint.remote().line());
    endpoint.connect(&peer);
    assert_eq!(helper.hear(), "connected");
    endpoint.recv(0, IN, 8);
    endpoint.post(0, SendOp::Send, OUT, 8);
    (1..MESSAGES).for_each(|i| answer_message(&endpoint, i));
    while endpoint.wait_ok(1)[0].op != CompletionOp::Recv {}
    assert_eq!(endpoint.counter("acks_held"), 0);
    helper.end();
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}
