//! What a poll finds that has let others run, or has slept until a datagram came.

mod common;

use adverb_io::EmptyPolls;
use adverb_nic::SendOp;
use adverb_wire::{Duration, Key};
use common::{Endpoint, local};
use std::cell::Cell;
use std::time::Duration as StdDuration;

/// Polls in vain before the caller asks whether others want the processor.
const ROW: usize = 64;
/// The same of one that sleeps, or whose answers come while others run.
const ROW_FOR_ONE: usize = 8;
/// A while for which others run, and one that is a peer's that answers.
const WHILE: Duration = Duration::from_us(64);
const BRIEF: Duration = Duration::from_us(63);

#[test]
fn a_poll_that_let_others_run_finds_what_came_meanwhile() {
    let endpoint = Endpoint::open(&format!("address={}", local(12, 1)));
    let own = endpoint.remote();
    endpoint.connect(&own);
    let calls = Cell::new(0);
    // It wants to sleep, which is for those whom datagrams wake. Meanwhile a write to itself completes.
    let others_ran = |row: EmptyPolls<'_>| {
        calls.set(calls.get() + 1);
        assert!(row.until.is_none() && row.by_memory);
        endpoint.post(7, SendOp::Write(own.addr, Key(own.rkey)), 64, 8);
        while !endpoint.host.holds_completion(endpoint.cq).unwrap() {
            endpoint.host.look();
        }
        (calls.get() > 1).then_some(WHILE)
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
                assert!(!row.by_memory);
                while !set.is_any_ready(1) && !two.host.holds_completion(two.cq).unwrap() {
                    set.wait(Some(StdDuration::from_millis(1)));
                }
                woken += u32::from(set.is_any_ready(1));
            }
            Some(WHILE)
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
        Some(WHILE)
    };
    for _ in 0..ROW_FOR_ONE {
        assert_eq!(two.host.poll_letting((|| true, others_ran), two.cq, 8, |_| ()).unwrap(), 0);
    }
    assert_eq!(rests.get(), 1);
    assert_eq!(two.counter("caller_sleeps"), u64::from(slept.get()));
}

#[test]
fn who_is_answered_on_its_own_processor_lets_its_peer_run_sooner() {
    let [one, two] = [1, 2].map(|host| Endpoint::open(&format!("address={},path=udp", local(15, host))));
    one.connect(&two.remote());
    two.connect(&one.remote());
    // Polls until others run, for so long, and a message has come meanwhile; after how many polls they did.
    let row = |time: Duration| {
        for polls in 1.. {
            let rested = Cell::new(false);
            let others_ran = |row: EmptyPolls<'_>| {
                assert!(row.until.is_none(), "it does not sleep");
                rested.set(true);
                two.recv(5, 0, 64);
                one.post(6, SendOp::Send, 64, 8);
                one.wait_ok(1);
                Some(time)
            };
            let count = two.host.poll_letting((|| false, others_ran), two.cq, 8, |_| ()).unwrap();
            if rested.get() {
                return (polls, count);
            }
            assert_eq!(count, 0);
        }
        unreachable!()
    };
    let mut sooner = 0;
    let mut last = WHILE;
    // Where this process stands still for long the socket is not in use any more.
    for k in 0..40 {
        let time = if k % 4 < 2 { BRIEF } else { WHILE };
        let (polls, count) = row(time);
        match polls {
            ROW => {}
            ROW_FOR_ONE if last == BRIEF => sooner += 1,
            _ => panic!("{polls} polls after {last:?}"),
        }
        // What came is found by that very poll, or by a later one.
        last = if count > 0 { time } else { WHILE };
        if count == 0 {
            two.wait_ok(1);
        }
    }
    assert!(sooner > 0);
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
        Some(WHILE)
    };
    for _ in 0..2 * ROW {
        assert_eq!(one.host.poll_letting((|| true, others_ran), one.cq, 1, |_| ()).unwrap(), 0);
    }
    // The poll after the rest is the first one of the next row.
    assert_eq!(rests.get(), 2);
}
