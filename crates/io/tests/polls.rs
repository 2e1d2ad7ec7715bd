//! What a poll finds that has let others run.

mod common;

use adverb_nic::SendOp;
use adverb_wire::Key;
use common::{Endpoint, local};
use std::cell::Cell;

/// Polls in vain before the caller asks whether others want the processor.
const ROW: usize = 64;

#[test]
fn a_poll_that_let_others_run_finds_what_came_meanwhile() {
    let endpoint = Endpoint::open(&format!("address={}", local(12, 1)));
    let own = endpoint.remote();
    endpoint.connect(&own);
    let calls = Cell::new(0);
    // Meanwhile a write to itself completes.
    let others_ran = || {
        calls.set(calls.get() + 1);
        endpoint.post(7, SendOp::Write(own.addr, Key(own.rkey)), 64, 8);
        while !endpoint.host.holds_completion(endpoint.cq).unwrap() {
            endpoint.host.look();
        }
        calls.get() > 1
    };
    let poll = || {
        let mut found = Vec::new();
        let count = endpoint.host.poll_letting(others_ran, endpoint.cq, 8, |c| found.push(c.wr_id)).unwrap();
        assert_eq!(count, found.len());
        found
    };
    for before in 0..ROW {
        assert_eq!((poll().len(), calls.get()), (0, usize::from(before == ROW - 1)), "poll {before}");
    }
    // Had nobody run, the next poll finds it, as ever.
    assert_eq!(poll(), [7]);
    for _ in 1..ROW {
        assert_eq!((poll().len(), calls.get()), (0, 1));
    }
    assert_eq!((poll(), calls.get()), (vec![7], 2), "by the call that let others run");
    assert!(poll().is_empty());
}
