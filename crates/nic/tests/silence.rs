//! A peer that is silent: what its driver knows of that decides whether a retry is spent.

mod world;
use adverb_nic::*;
use adverb_wire::{Duration, Instant};
use std::cell::RefCell;
use std::rc::Rc;
use world::*;

const TOLERANCE: Tolerance =
    Tolerance { excused_max: Duration::from_ms(300), silence_min: Duration::from_ms(100) };

/// A WRITE of 8 bytes whose acknowledgement takes its time.
struct Trial {
    w: World,
    qp: QpId,
    begun: Instant,
    memory: (Memory, Memory),
}

impl Trial {
    fn new(irn: bool, tolerance: Tolerance) -> Trial {
        let mut w = World::with_config(2, 11, |config| {
            config.tolerance = tolerance;
            config.irn = irn.then(IrnConfig::default);
        });
        let (qp, _) = w.pair(QpType::Rc, CAPS, &Link::default());
        let memory = (w.memory(0, 4096), w.memory(1, 4096));
        w.run(Duration::from_ms(1));
        Trial { begun: w.now, w, qp, memory }
    }

    fn write(&mut self) {
        self.begun = self.w.now;
        let (va, rkey) = self.memory.1.at(0);
        self.w.send(0, self.qp, wr(1, SendOp::Write(va, rkey), &[self.memory.0.sge(0, 8)]));
    }

    /// Its outcome, and after how many milliseconds.
    fn end(&mut self) -> (Status, u64) {
        let status = self.w.completion(0).status;
        (status, self.w.now.since(self.begun).as_ns() / 1_000_000)
    }

    fn rule(&mut self) -> &'static str {
        self.w.nodes[0].nic.next_explanation().expect("an explanation").rule
    }
}

/// Nothing of node 1 arrives before this time.
fn silent_until(t: &mut Trial, after: Duration) {
    let now = Rc::new(RefCell::new(t.w.now));
    let end = t.w.now + after;
    let seen = now.clone();
    t.w.ask = Some(Box::new(move |node, overdue| {
        if node == 0 {
            *seen.borrow_mut() = overdue.due;
        }
        Silence::Late
    }));
    t.w.drop_if = Some(Box::new(move |from, _| from == 1 && *now.borrow() < end));
}

#[test]
fn each_silence_and_what_it_costs() {
    // The queue pair's own timeout is 4.096 us * 2^8: eight of 2 ms, the shortest for software.
    for irn in [false, true] {
        for (silence, at_least, at_most, says) in [
            (Silence::Unknown, 100, 110, "the peer did not acknowledge"),
            (Silence::Heard, 100, 110, "the peer runs and took in what arrived"),
            (Silence::Stopped, 100, 110, "the peer's process is stopped"),
            (Silence::Gone, 100, 110, "the peer's process has ended"),
            // As long as it is excused, and then the same.
            (Silence::Unread, 270, 420, "the peer's process lives, but had no processor"),
            (Silence::Late, 270, 420, "the peer's process lives, but it, this one, or a switch"),
        ] {
            let mut t = Trial::new(irn, TOLERANCE);
            t.w.ask = Some(Box::new(move |_, _| silence));
            t.w.drop_if = Some(Box::new(|from, _| from == 1));
            t.write();
            let (status, ms) = t.end();
            assert_eq!(status, Status::TransportRetryExceeded, "{silence:?}, irn {irn}");
            assert!((at_least..=at_most).contains(&ms), "{silence:?}, irn {irn}: {ms} ms");
            assert!(t.rule().starts_with(says), "{silence:?}, irn {irn}");
        }
    }
}

#[test]
fn a_peer_without_a_processor_is_waited_for() {
    for irn in [false, true] {
        // More than twice what the retries come to.
        let mut t = Trial::new(irn, TOLERANCE);
        silent_until(&mut t, Duration::from_ms(250));
        t.write();
        let (status, ms) = t.end();
        assert_eq!(status, Status::Success, "irn {irn}");
        assert!((240..270).contains(&ms), "irn {irn}: {ms} ms");
        assert!(t.w.counter(0, "timeouts_excused") > 50, "irn {irn}");
        // And as long again after it: what was excused before progress is forgotten.
        silent_until(&mut t, Duration::from_ms(250));
        t.write();
        assert_eq!(t.end().0, Status::Success, "irn {irn}");
    }
}

#[test]
fn what_lies_unread_is_not_sent_again() {
    for irn in [false, true] {
        let mut t = Trial::new(irn, TOLERANCE);
        let asked = Rc::new(RefCell::new(0));
        let count = asked.clone();
        t.w.ask = Some(Box::new(move |_, overdue| {
            assert!(overdue.since < overdue.due);
            *count.borrow_mut() += 1;
            if *count.borrow() < 20 { Silence::Unread } else { Silence::Heard }
        }));
        t.w.drop_if = Some(Box::new(|from, _| from == 1));
        t.write();
        t.w.transmit();
        let sent = t.w.counter(0, "tx_packets");
        t.w.run(Duration::from_ms(15));
        assert!(*asked.borrow() < 20 && *asked.borrow() > 5, "{}", asked.borrow());
        assert_eq!(t.w.counter(0, "tx_packets"), sent, "irn {irn}");
        assert_eq!(t.w.counter(0, "timeouts"), 0, "irn {irn}");
        // Then it turns out that it was read, and its answer lost.
        t.w.run(Duration::from_ms(60));
        assert!(t.w.counter(0, "tx_packets") > sent && t.w.counter(0, "timeouts") > 0, "irn {irn}");
        t.w.drop_if = None;
        assert_eq!(t.end().0, Status::Success, "irn {irn}");
    }
}

#[test]
fn hardware_is_excused_nothing() {
    let mut t = Trial::new(false, Tolerance::default());
    t.w.ask = Some(Box::new(|_, _| Silence::Late));
    t.w.drop_if = Some(Box::new(|from, _| from == 1));
    t.write();
    // Eight timeouts of 4.096 us * 2^8.
    assert_eq!(t.end(), (Status::TransportRetryExceeded, 8));
    assert_eq!(t.w.counter(0, "timeouts_excused"), 0);
}

#[test]
fn a_receiver_that_is_not_ready_is_not_asked_about() {
    let mut t = Trial::new(false, TOLERANCE);
    t.w.ask = Some(Box::new(|_, _| panic!("nothing is overdue")));
    t.w.send(0, t.qp, wr(1, SendOp::Send, &[t.memory.0.sge(0, 8)]));
    t.w.run(Duration::from_ms(5));
    assert!(t.w.counter(0, "rnr_naks_received") > 0);
}
