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

/// Has `work` done until less than one message went to the kernel for `share` frames of each end. On a busy
/// host a thread that has lost its processor comes back late, and is not trusted for a while; but not always.
fn until_coalesced(ends: &[&Endpoint], share: f64, mut work: impl FnMut()) {
    const TRIES: usize = 100;
    let count = || ends.iter().map(|end| ["udp_tx_messages", "udp_tx_frames"].map(|name| end.counter(name)));
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let before: Vec<_> = count().collect();
        work();
        let grown = count().zip(before).map(|(now, then)| [now[0] - then[0], now[1] - then[1]]);
        let grown: Vec<[u64; 2]> = grown.collect();
        if grown.iter().all(|[messages, frames]| *messages as f64 * share < *frames as f64) {
            return;
        }
        seen.push(grown);
    }
    panic!("messages and frames: {seen:?}");
}

#[test]
fn an_answer_takes_the_acknowledgement_along() {
    let folder = folder("answers");
    let ends = pair(61, &folder);
    ends.iter().for_each(|end| (0..8).for_each(|i| end.recv(i, i as usize * 64, 64)));
    let mut i = 0;
    until_coalesced(&[&ends[0], &ends[1]], 4.0 / 3.0, || {
        for _ in 0..100 {
            let (from, to) = (&ends[i as usize % 2], &ends[(i as usize + 1) % 2]);
            from.fill(4096, 8, i);
            from.post(1000 + i, SendOp::Send, 4096, 8);
            let received = wait_for(to, CompletionOp::Recv);
            to.check(received.wr_id as usize * 64, 8, i);
            to.recv(received.wr_id, received.wr_id as usize * 64, 64);
            i += 1;
        }
    });
    for end in &ends {
        assert_eq!(end.counter("drop_icrc") + end.counter("retransmitted_packets"), 0);
    }
    drop(ends);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn a_row_of_posts_is_few_messages_and_leaves_without_another_call() {
    const ROW: u64 = 24;
    let folder = folder("rows");
    let [a, b] = pair(62, &folder);
    let peer = b.remote();
    let post = |i: u64| {
        a.post(i, SendOp::Write(peer.addr + i * 8, Key(peer.rkey)), i as usize * 8, 8);
    };
    a.fill(0, (ROW * 8) as usize, 1);
    // Twelve, if the first of each row left alone.
    until_coalesced(&[&a], 16.0, || {
        for _ in 0..10 {
            (0..ROW).for_each(post);
            a.wait_ok(ROW as usize);
        }
    });
    b.check(0, (ROW * 8) as usize, 1);
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
