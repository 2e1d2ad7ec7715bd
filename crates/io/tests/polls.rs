//! What a poll finds that has let others run, or has slept until a datagram came.

mod common;

use adverb_io::EmptyPolls;
use adverb_nic::SendOp;
use adverb_wire::Key;
use common::{Endpoint, local};
use std::cell::Cell;
use std::time::Duration;

/// Polls in vain before the caller asks whether others want the processor.
const ROW: usize = 64;
/// The same of one that sleeps.
const ROW_FOR_ONE: usize = 8;

#[test]
fn a_poll_that_let_others_run_finds_what_came_meanwhile() {
    let endpoint = Endpoint::open(&format!("address={}", local(12, 1)));
    let own = endpoint.remote();
    endpoint.connect(&own);
    let calls = Cell::new(0);
    // It wants to sleep, which is for those whom datagrams wake. Meanwhile a write to itself completes.
    let others_ran = |row: EmptyPolls<'_>| {
        calls.set(calls.get() + 1);
        assert!(row.until.is_none());
        endpoint.post(7, SendOp::Write(own.addr, Key(own.rkey)), 64, 8);
        while !endpoint.host.holds_completion(endpoint.cq).unwrap() {
            endpoint.host.look();
        }
        calls.get() > 1
    };
    let poll = || {
        let mut found = Vec::new();
        let rest = (|| true, others_ran);
        let count = endpoint.host.poll_letting(rest, endpoint.cq, 8, |c| found.push(c.wr_id)).unwrap();
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

#[test]
fn who_waits_for_one_datagram_sleeps_until_it_comes() {
    let [one, two] = [1, 2].map(|host| Endpoint::open(&format!("address={},path=udp", local(13, host))));
    one.connect(&two.remote());
    two.connect(&one.remote());
    let send = || {
        two.recv(5, 0, 64);
        one.post(6, SendOp::Send, 64, 8);
    };
    send();
    two.wait_ok(1);
    one.wait_ok(1);
    let (mut polls, mut sleeps, mut woken) = (0, 0u32, 0);
    // Where this process stands still for long the socket is not in use any more, and the thread may be at
    // the datagram first.
    for _ in 0..1000 {
        let rested = Cell::new(false);
        let others_ran = |row: EmptyPolls<'_>| {
            rested.set(true);
            send();
            if let Some(set) = row.until {
                sleeps += 1;
                while !set.is_any_ready(1) && !two.host.holds_completion(two.cq).unwrap() {
                    set.wait(Some(Duration::from_millis(1)));
                }
                woken += u32::from(set.is_any_ready(1));
            }
            true
        };
        let mut found = Vec::new();
        let count = two.host.poll_letting((|| true, others_ran), two.cq, 8, |c| found.push(c.wr_id)).unwrap();
        polls += 1;
        assert_eq!(count, found.len());
        if !rested.get() {
            assert_eq!(count, 0);
            continue;
        }
        assert!(polls == ROW || polls == ROW_FOR_ONE, "{polls} polls in a row");
        polls = 0;
        if woken > 0 {
            assert_eq!(found, [5], "the poll that slept asks the socket");
            break;
        }
        found.extend(two.wait_ok(1 - count).iter().map(|c| c.wr_id));
        assert_eq!(found, [5]);
        one.wait_ok(1);
    }
    assert!(woken == 1 && sleeps > 0, "{woken} woken in {sleeps} sleeps");
    one.wait_ok(1);
    // From now on rows are shorter. It sleeps again, unless it stood still so long that the socket is not in
    // use any more.
    let (rests, slept) = (Cell::new(0), Cell::new(sleeps));
    let others_ran = |row: EmptyPolls<'_>| {
        rests.set(rests.get() + 1);
        slept.set(slept.get() + u32::from(row.until.is_some()));
        true
    };
    for _ in 0..ROW_FOR_ONE {
        assert_eq!(two.host.poll_letting((|| true, others_ran), two.cq, 8, |_| ()).unwrap(), 0);
    }
    assert_eq!(rests.get(), 1);
    assert_eq!(two.counter("caller_sleeps"), u64::from(slept.get()));
}

/// Whose program posts several requests for a completion never sleeps.
#[test]
fn who_posts_rows_does_not_sleep() {
    let [one, two] = [1, 2].map(|host| Endpoint::open(&format!("address={},path=udp", local(14, host))));
    one.connect(&two.remote());
    two.connect(&one.remote());
    let peer = two.remote();
    one.run(SendOp::Write(peer.addr, Key(peer.rkey)), 64, 8);
    (0..5).for_each(|k| one.recv(k, 0, 64));
    let rests = Cell::new(0);
    let others_ran = |row: EmptyPolls<'_>| {
        rests.set(rests.get() + 1);
        assert!(row.until.is_none());
        true
    };
    for _ in 0..2 * ROW {
        assert_eq!(one.host.poll_letting((|| true, others_ran), one.cq, 1, |_| ()).unwrap(), 0);
    }
    // The poll after the rest is the first one of the next row.
    assert_eq!(rests.get(), 2);
}
