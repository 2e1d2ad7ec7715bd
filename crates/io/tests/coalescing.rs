//! How many messages the kernel gets for small frames over UDP, and that what waits for the application's
//! next call leaves without it too. Two NICs of one process, called by one thread.

mod common;

use adverb_nic::{Completion, CompletionOp, SendOp};
use adverb_wire::Key;
use common::{Endpoint, folder, local};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Two connected queue pairs of two addresses.
fn pair(subnet: u8, folder: &Path) -> [Endpoint; 2] {
    let open = |last| {
        let (address, folder) = (local(subnet, last), folder.display());
        Endpoint::open(&format!("address={address},directory={folder}"))
    };
    let (a, b) = (open(1), open(2));
    a.connect(&b.remote());
    b.connect(&a.remote());
    [a, b]
}

/// A completion of one kind; those of the other kind are passed over.
fn wait_for(endpoint: &Endpoint, op: CompletionOp) -> Completion {
    loop {
        let found = endpoint.wait_ok(1)[0];
        if found.op == op {
            return found;
        }
    }
}

fn messages_and_frames(endpoint: &Endpoint) -> (u64, u64) {
    ["udp_tx_messages", "udp_tx_frames"].map(|name| endpoint.counter(name)).into()
}

#[test]
fn an_answer_takes_the_acknowledgement_along() {
    const ROUNDS: u64 = 500;
    let folder = folder("answers");
    let ends = pair(61, &folder);
    ends.iter().for_each(|end| (0..8).for_each(|i| end.recv(i, i as usize * 64, 64)));
    for i in 0..2 * ROUNDS {
        let (from, to) = (&ends[i as usize % 2], &ends[(i as usize + 1) % 2]);
        from.fill(4096, 8, i);
        from.post(1000 + i, SendOp::Send, 4096, 8);
        let received = wait_for(to, CompletionOp::Recv);
        to.check(received.wr_id as usize * 64, 8, i);
        to.recv(received.wr_id, received.wr_id as usize * 64, 64);
    }
    for end in &ends {
        let (messages, frames) = messages_and_frames(end);
        // Each end sends a message and an acknowledgement in a round.
        assert!(frames >= 2 * ROUNDS - 1, "{frames}");
        assert!(messages * 4 < frames * 3, "{messages} messages of {frames} frames");
        assert_eq!(end.counter("drop_icrc") + end.counter("retransmitted_packets"), 0);
    }
    drop(ends);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn a_row_of_posts_is_few_messages_and_leaves_without_another_call() {
    const ROWS: u64 = 50;
    const ROW: u64 = 24;
    let folder = folder("rows");
    let [a, b] = pair(62, &folder);
    let peer = b.remote();
    let post = |i: u64| {
        a.post(i, SendOp::Write(peer.addr + i * 8, Key(peer.rkey)), i as usize * 8, 8);
    };
    a.fill(0, (ROW * 8) as usize, 1);
    for _ in 0..ROWS {
        (0..ROW).for_each(post);
        a.wait_ok(ROW as usize);
    }
    b.check(0, (ROW * 8) as usize, 1);
    let (messages, frames) = messages_and_frames(&a);
    assert!(frames >= ROWS * ROW, "{frames}");
    assert!(messages * 4 < frames * 3, "{messages} messages of {frames} frames");
    // Now the application goes away after a row, and looks at the peer's memory only.
    a.fill(0, (ROW * 8) as usize, 2);
    (0..ROW).for_each(post);
    let last = (ROW - 1) as usize;
    let wanted = a.memory[last].load(Ordering::Relaxed);
    let start = Instant::now();
    while b.memory[last].load(Ordering::Acquire) != wanted {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", a.host.counters_text());
        std::thread::yield_now();
    }
    a.wait_ok(ROW as usize);
    drop([a, b]);
    std::fs::remove_dir_all(folder).unwrap();
}
