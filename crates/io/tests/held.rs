//! Acknowledgements in shared memory that wait for the next call, in a ping-pong of writes whose ends spin
//! on memory: what waits leaves without another call too, and a peer's death is found out in time.
//! What the waiting is worth is for `bench/run` to say: it hangs on who has a processor.

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
/// Words that are not answered: the helper ends, dies, or makes no call until it is told to go on.
const REST: u64 = u64::MAX;
const DIE: u64 = u64::MAX - 1;
const PAUSE: u64 = u64::MAX - 2;

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
    let mut i = 1;
    loop {
        match wait_for_word(&endpoint, |word| word == i || word >= PAUSE) {
            REST => break,
            PAUSE => {
                endpoint.memory[IN / 8].store(0, Ordering::Relaxed);
                say("paused");
                listen();
            }
            DIE => {
                // SAFETY: plain values.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            _ => {
                write_word(&endpoint, &peer, i);
                i += 1;
            }
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

/// Two processes that write words to and fro.
struct PingPong {
    endpoint: Endpoint,
    helper: Helper,
    peer: Remote,
    word: u64,
}

impl PingPong {
    /// In the middle of it, when acknowledgements have begun to wait. On a busy host who has lost its
    /// processor comes back late, and is not trusted for a while; but not always. `timeout` is the encoded
    /// one.
    fn start(address: &str, folder: &Path, timeout: u8) -> PingPong {
        const TRIES: usize = 400;
        let settings = format!("address={address},directory={}", folder.display());
        let endpoint = Endpoint::open(&settings);
        let mut helper = Helper::start(&["answer", &settings]);
        let peer = Remote::parse(&helper.hear());
        helper.tell(&endpoint.remote().line());
        endpoint.connect_with(&peer, timeout, 2);
        assert_eq!(helper.hear(), "connected");
        let mut both = PingPong { endpoint, helper, peer, word: 0 };
        for _ in 0..TRIES {
            both.play();
            if both.endpoint.counter("acks_held") > 0 {
                return both;
            }
        }
        panic!("no acknowledgement waited: {}", both.endpoint.host.counters_text());
    }

    fn play(&mut self) {
        const ROUNDS: u64 = 64;
        for _ in 0..ROUNDS {
            self.word += 1;
            write_word(&self.endpoint, &self.peer, self.word);
            wait_for_word(&self.endpoint, |found| found == self.word);
        }
    }
}

#[test]
fn what_waits_leaves_without_another_call() {
    const PAUSES: usize = 10;
    let folder = folder("held");
    // 1 s: that a packet is sent again means that its acknowledgement did not leave.
    let mut both = PingPong::start(&local(74, 1), &folder, 18);
    for _ in 0..PAUSES {
        both.play();
        // The helper makes no more calls, but sleeps. Its acknowledgement waits if it is trusted just now.
        write_word(&both.endpoint, &both.peer, PAUSE);
        assert_eq!(both.helper.hear(), "paused");
        both.helper.tell("go on");
    }
    write_word(&both.endpoint, &both.peer, REST);
    // One may be a host's that gave the helper no processor for a second.
    assert!(both.endpoint.counter("retransmitted_packets") <= 1, "{}", both.endpoint.host.counters_text());
    assert_eq!(both.endpoint.counter("udp_tx_frames"), 0);
    both.helper.end();
    drop(both.endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what the time is that failing takes")]
fn who_is_killed_while_acknowledgements_wait_is_found_out_in_time() {
    let folder = folder("held-kill");
    // 67 ms for each of three tries.
    let PingPong { endpoint, mut helper, peer, word } = PingPong::start(&local(75, 1), &folder, 14);
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
