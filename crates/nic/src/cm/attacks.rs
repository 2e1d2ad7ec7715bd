//! Each kind of message, forged and replayed, against a connection that is up: what is counted for it, that
//! nobody is told anything, and that the connection is there afterwards (`docs/cm-attacks.md`).

use super::tests::{World, act, connect, gid, listen, offer};
use super::*;
use adverb_wire::QpNumber;
use adverb_wire::cm::{Drep, Dreq, Mra, Private, Rej, Rep, Rtu, SidrRep, Stage};

const SERVICE: Service = Service { space: PortSpace::Tcp, port: 7174 };
const DATAGRAMS: Service = Service { space: PortSpace::Udp, port: 7174 };
const STRANGER: u8 = 66;

/// Two sides with a connection, and what they said to make it.
struct Up {
    world: World,
    active: ConnectionId,
    passive: ConnectionId,
    said: Vec<Mad>,
}

fn up() -> Up {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 16);
    let active = connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let (mut seen, mut said) = ([0, 0], Vec::new());
    while world.last(1) != Some(&What::Established) {
        world.collect();
        said.extend(world.wire.values().filter_map(|(_, bytes)| Mad::parse(bytes).ok()));
        world.step();
        world.collect();
        act(&mut world, &mut seen, 2);
    }
    let passive = world.told[1][0].id;
    said.dedup();
    Up { world, active, passive, said }
}

impl Up {
    fn said(&self, wanted: fn(&Message) -> bool) -> Message {
        self.said.iter().map(|mad| mad.message).find(wanted).unwrap()
    }

    /// One side gets a message; which counters rise, but for those of all messages, and how many answers it
    /// gives. Nobody is told of it.
    fn after(&mut self, side: usize, from: u8, message: Message) -> (Vec<&'static str>, usize) {
        let cm = &mut self.world.cms[side];
        let before: Vec<u64> = cm.counters().iter().map(|(_, n)| n).collect();
        cm.receive(self.world.now, gid(from), &Mad { transaction: 9, message }.emit());
        cm.check_invariants();
        assert_eq!(cm.next_event(), None, "{message:?}");
        let answers = std::iter::from_fn(|| cm.next_mad()).count();
        let risen = cm.counters().iter().zip(before).filter(|((_, now), before)| now > before);
        let told = risen.map(|((name, _), _)| name).filter(|name| !["cm_received", "cm_sent"].contains(name));
        (told.collect(), answers)
    }

    /// The connection is there, and ends on both sides as it should.
    fn ends_well(mut self) {
        self.world.told.iter_mut().for_each(Vec::clear);
        let now = self.world.now;
        self.world.cms[0].disconnect(now, self.active).unwrap();
        self.world.settle();
        for told in &self.world.told {
            let whats: Vec<&What> = told.iter().map(|event| &event.what).collect();
            assert_eq!(whats, [&What::Disconnected, &What::TimewaitExit]);
        }
    }
}

/// Of each kind, one that a peer may send: to which side, with the ids of both.
fn of_each_kind(up: &Up) -> Vec<(usize, Message)> {
    let (own, peers) = (up.passive.0, up.active.0);
    let is_rep = |message: &Message| matches!(message, Message::Rep(_));
    let is_req = |message: &Message| matches!(message, Message::Req(_));
    let is_rtu = |message: &Message| matches!(message, Message::Rtu(_));
    let qpn = offer(0x20_0002).qpn;
    let private = Private::default();
    vec![
        (1, up.said(is_req)),
        (1, Message::Mra(Mra { local_id: peers, remote_id: own, stage: Stage::Rep, timeout: 31, private })),
        (1, Message::Rej(Rej { local_id: peers, remote_id: own, reason: 28, ..Rej::default() })),
        (0, up.said(is_rep)),
        (1, up.said(is_rtu)),
        (1, Message::Dreq(Dreq { local_id: peers, remote_id: own, qpn, private: Private::default() })),
        (1, Message::Drep(Drep { local_id: peers, remote_id: own, private: Private::default() })),
        (0, Message::SidrRep(SidrRep { request_id: peers, ..SidrRep::default() })),
    ]
}

#[test]
fn a_stranger_who_knows_both_ids_does_nothing_to_a_connection() {
    let mut up = up();
    for (side, message) in of_each_kind(&up) {
        let (counted, answers) = up.after(side, STRANGER, message);
        let expected: (&[&str], usize) = match message {
            // The queue pair that it names has a connection, of another address.
            Message::Req(_) => (&["cm_refused_stale"], 1),
            // The end of what is not there is confirmed; a REP without a REQ is refused.
            Message::Dreq(_) | Message::Rep(_) => (&["cm_unknown"], 1),
            _ => (&["cm_unknown"], 0),
        };
        assert_eq!((&counted[..], answers), expected, "{message:?}");
    }
    up.ends_well();
}

#[test]
fn a_peer_that_guesses_an_id_or_a_queue_pair_wrong_does_nothing_to_a_connection() {
    let mut up = up();
    let wrong = |id: u32| id ^ 0x100;
    for (side, mut message) in of_each_kind(&up) {
        let from = [2, 1][side];
        let mut expected: (&[&str], usize) = (&["cm_unknown"], 0);
        match &mut message {
            // Another id of the peer's is another request, and the queue pair has a connection: tried below.
            Message::Req(_) => continue,
            Message::Mra(Mra { local_id, .. })
            | Message::Rej(Rej { local_id, .. })
            | Message::Rtu(Rtu { local_id, .. })
            | Message::Drep(Drep { local_id, .. }) => *local_id = wrong(*local_id),
            Message::Rep(Rep { local_id, .. }) => {
                *local_id = wrong(*local_id);
                expected.1 = 1;
            }
            Message::SidrRep(SidrRep { request_id, .. }) => *request_id = wrong(*request_id),
            // Both ids, but not the queue pair.
            Message::Dreq(Dreq { qpn, .. }) => {
                *qpn = QpNumber::new(qpn.get() + 1);
                expected = (&["cm_drop_state"], 0);
            }
            Message::SidrReq(_) => unreachable!("not in the list"),
        }
        let (counted, answers) = up.after(side, from, message);
        assert_eq!((&counted[..], answers), expected, "{message:?}");
    }
    up.ends_well();
}

#[test]
fn what_is_replayed_while_a_connection_is_up_changes_nothing() {
    let mut up = up();
    for (side, message) in of_each_kind(&up) {
        let expected: (&[&str], usize) = match message {
            Message::Req(_) => (&["cm_duplicates", "cm_drop_state"], 0),
            // The RTU may have been lost.
            Message::Rep(_) => (&["cm_answered_again", "cm_duplicates"], 1),
            Message::Rtu(_) => (&["cm_duplicates"], 0),
            // The id is no datagram request's.
            Message::SidrRep(_) => (&["cm_unknown"], 0),
            // This one ends it: whoever sends from the peer's address and knows both ids and the queue pair.
            Message::Dreq(_) => continue,
            _ => (&["cm_drop_state"], 0),
        };
        let (mut counted, answers) = up.after(side, [2, 1][side], message);
        counted.sort_unstable();
        let mut expected = (expected.0.to_vec(), expected.1);
        expected.0.sort_unstable();
        assert_eq!((counted, answers), expected, "{message:?}");
    }
    up.ends_well();
}

#[test]
fn what_is_replayed_after_the_end_is_answered_and_changes_nothing() {
    let mut up = up();
    let (side, dreq) = of_each_kind(&up)[5];
    let now = up.world.now;
    up.world.cms[0].disconnect(now, up.active).unwrap();
    while up.world.last(0) != Some(&What::Disconnected) {
        up.world.step();
        up.world.collect();
    }
    for _ in 0..3 {
        let (mut counted, answers) = up.after(side, 1, dreq);
        counted.sort_unstable();
        assert_eq!((counted, answers), (vec!["cm_answered_again", "cm_duplicates"], 1));
    }
    let drep = Drep { local_id: up.passive.0, remote_id: up.active.0, private: Private::default() };
    assert_eq!(up.after(0, 2, Message::Drep(drep)), (vec!["cm_duplicates"], 0));
    let req = up.said(|message| matches!(message, Message::Req(_)));
    let (mut counted, answers) = up.after(1, 1, req);
    counted.sort_unstable();
    assert_eq!((counted, answers), (vec!["cm_duplicates", "cm_refused_stale"], 1));
}

#[test]
fn a_datagram_request_that_is_replayed_is_one_request() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], DATAGRAMS, 16);
    let resolve =
        Resolve { service: DATAGRAMS, dst: gid(2), src: gid(1), src_port: 5, private: &[8; 180], cookie: 77 };
    world.cms[0].resolve(Instant::ZERO, &resolve).unwrap();
    let asked = world.cms[0].next_mad().unwrap();
    let cm = &mut world.cms[1];
    for round in 1..=5 {
        cm.receive(Instant::ZERO, gid(1), &asked.bytes);
        assert_eq!((cm.counters().cm_requests, cm.counters().cm_duplicates), (1, round - 1));
    }
    assert!(!cm.has_mads());
    let id = cm.next_event().unwrap().id;
    cm.answer(Instant::ZERO, id, &Resolved { qpn: QpNumber::new(9), qkey: 1, private: &[] }).unwrap();
    let answer = cm.next_mad().unwrap();
    // Each repeat gets the same answer; from another address it is another request.
    cm.receive(Instant::ZERO, gid(1), &asked.bytes);
    assert_eq!((cm.next_mad(), cm.next_event()), (Some(answer), None));
    cm.receive(Instant::ZERO, gid(STRANGER), &asked.bytes);
    assert_eq!(cm.counters().cm_requests, 2);
    // The answer is believed of who was asked, once.
    let asker = &mut world.cms[0];
    asker.receive(Instant::ZERO, gid(STRANGER), &answer.bytes);
    assert_eq!((asker.counters().cm_unknown, asker.next_event()), (1, None));
    asker.receive(Instant::ZERO, gid(2), &answer.bytes);
    assert!(matches!(asker.next_event().unwrap().what, What::Resolved(..)));
    asker.receive(Instant::ZERO, gid(2), &answer.bytes);
    assert_eq!((asker.counters().cm_duplicates, asker.next_event()), (1, None));
}
