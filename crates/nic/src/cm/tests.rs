//! Two connection managers face to face over a wire that loses, repeats and delays messages, in steps of
//! virtual time: whatever a seed does, both sides come to an end that fits, once.

use super::*;
use adverb_wire::cm::{Attribute, MAD_LEN};
use adverb_wire::{Psn, QpNumber};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

pub(super) const SERVICE: Service = Service { space: PortSpace::Tcp, port: 7174 };
pub(super) const DATAGRAMS: Service = Service { space: PortSpace::Udp, port: 7174 };

pub(super) fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, last))
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

pub(super) fn offer(qpn: u32) -> Offer {
    Offer {
        qpn: QpNumber::new(qpn),
        psn: Psn::new(qpn * 7),
        responder_resources: 4,
        initiator_depth: 2,
        flow_control: true,
        rnr_retry: 10,
        srq: false,
    }
}

pub(super) fn manager(slot: u8, last: u8, seed: u64) -> Cm {
    let config = CmConfig { slot, ca_guid: u64::from(last), ..CmConfig::default() };
    Cm::new(config, vec![gid(last)], seed)
}

pub(super) fn listen(cm: &mut Cm, service: Service, backlog: u32) -> ListenerId {
    let address = Address::Any { ipv4: true, ipv6: false };
    cm.listen(Instant::ZERO, &Listen { service, address, backlog, cookie: 900 }).unwrap()
}

pub(super) fn connect(cm: &mut Cm, now: Instant, qpn: u32, private: &[u8]) -> ConnectionId {
    let connect = Connect {
        service: SERVICE,
        dst: gid(2),
        src: gid(1),
        src_port: 40000,
        offer: offer(qpn),
        retry_count: 10,
        mtu: 3,
        ack_timeout: 19,
        traffic_class: 0,
        private,
        cookie: qpn.into(),
    };
    cm.connect(now, &connect).unwrap()
}

/// Two managers, what is on its way between them, and what each was told.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) cms: [Cm; 2],
    rng: Rng,
    loss: u64,
    repeats: u64,
    pub(super) wire: BTreeMap<(Instant, u64), (usize, [u8; MAD_LEN])>,
    sent: u64,
    pub(super) told: [Vec<CmEvent>; 2],
    lost: u64,
}

impl World {
    pub(super) fn new(seed: u64, loss: u64, repeats: u64) -> World {
        World {
            now: Instant::ZERO,
            cms: [manager(1, 1, seed), manager(2, 2, seed + 1)],
            rng: Rng(seed),
            loss,
            repeats,
            wire: BTreeMap::new(),
            sent: 0,
            told: [Vec::new(), Vec::new()],
            lost: 0,
        }
    }

    pub(super) fn collect(&mut self) {
        for side in 0..2 {
            while let Some(Outgoing { to, bytes }) = self.cms[side].next_mad() {
                assert_eq!(to, gid([2, 1][side]));
                if self.rng.percent(self.loss) {
                    self.lost += 1;
                    continue;
                }
                let copies = 1 + u64::from(self.rng.percent(self.repeats));
                for _ in 0..copies {
                    // Later ones overtake; a copy may be on its way for as long as a packet can be.
                    let delay = Duration::from_us(1 + self.rng.below(1_000_000));
                    self.sent += 1;
                    self.wire.insert((self.now + delay, self.sent), (1 - side, bytes));
                }
            }
            while let Some(event) = self.cms[side].next_event() {
                self.told[side].push(event);
            }
            self.cms[side].check_invariants();
        }
    }

    /// Goes on to what happens next. False if nothing will.
    pub(super) fn step(&mut self) -> bool {
        self.collect();
        let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
        let timers = self.cms.iter().filter_map(Cm::next_deadline).min();
        let Some(next) = [arrival, timers].into_iter().flatten().min() else { return false };
        self.now = next;
        if arrival == Some(next) {
            let Some((_, (side, bytes))) = self.wire.pop_first() else { return false };
            self.cms[side].receive(next, gid([2, 1][side]), &bytes);
        } else {
            self.cms.iter_mut().for_each(|cm| cm.on_timer(next));
        }
        true
    }

    pub(super) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it goes on for ever");
    }

    pub(super) fn last(&self, side: usize) -> Option<&What> {
        self.told[side].last().map(|event| &event.what)
    }
}

/// What programs do on both sides when they are told something; each event at most once per connection.
pub(super) fn act(world: &mut World, seen: &mut [usize; 2], plan: u64) {
    for (side, seen) in seen.iter_mut().enumerate() {
        while *seen < world.told[side].len() {
            let CmEvent { id, what, .. } = world.told[side][*seen];
            *seen += 1;
            let (now, cm) = (world.now, &mut world.cms[side]);
            match what {
                What::Request(_, request) => {
                    assert_eq!((side, request.offer.rnr_retry, request.retry_count), (1, 7, 7));
                    assert_eq!((request.private.0[0], request.src_port), (42, 40000));
                    match plan % 4 {
                        0 => cm.reject(now, id, Reason::CONSUMER, b"no").unwrap(),
                        1 => cm.destroy(now, id).unwrap(),
                        _ => cm.accept(now, id, &offer(0x20_0002), b"yes").unwrap(),
                    }
                }
                What::Reply(reply) => {
                    assert_eq!((side, reply.offer.psn), (0, offer(0x20_0002).psn));
                    assert_eq!(&reply.private.0[..4], b"yes\0");
                    cm.establish(now, id).unwrap();
                }
                _ => {}
            }
        }
    }
}

/// Counts of one run: came up, refused, unreachable.
#[derive(Default, Debug)]
struct Outcomes {
    up: u32,
    refused: u32,
    unreachable: u32,
    lost: u64,
    repeats: u64,
    answered_again: u64,
}

fn run(seed: u64, outcomes: &mut Outcomes) {
    let mut world = World::new(seed, [0, 10, 30, 60, 97][seed as usize % 5], [0, 30][seed as usize / 5 % 2]);
    let plan = seed / 10;
    listen(&mut world.cms[1], SERVICE, 4);
    let id = connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let mut seen = [0, 0];
    let mut disconnected = false;
    for _ in 0..10_000 {
        let more = world.step();
        world.collect();
        act(&mut world, &mut seen, plan);
        let up = matches!(world.last(1), Some(What::Established));
        if up && !disconnected {
            disconnected = true;
            let side = (plan / 4 % 2) as usize;
            let id = if side == 0 { id } else { world.told[1][0].id };
            let now = world.now;
            world.cms[side].disconnect(now, id).unwrap();
            if plan / 8 % 2 == 1 {
                world.cms[side].destroy(now, id).unwrap();
            }
        }
        if !more && !world.cms.iter().any(Cm::has_mads) {
            break;
        }
    }
    check_end(&mut world, id, (seed, plan));
    let is = |side: usize, wanted: fn(&What) -> bool| world.told[side].iter().any(|e| wanted(&e.what));
    outcomes.up += u32::from(is(1, |what| *what == What::Established));
    outcomes.refused += u32::from(is(0, |what| matches!(what, What::Rejected(..))));
    outcomes.unreachable += u32::from(is(0, |what| *what == What::Unreachable));
    outcomes.lost += world.lost;
    for cm in &world.cms {
        outcomes.repeats += cm.counters().cm_repeats;
        outcomes.answered_again += cm.counters().cm_answered_again;
    }
}

/// Everything has ended, each event came once and in order, and nothing is left but what has an owner.
fn check_end(world: &mut World, id: ConnectionId, run: (u64, u64)) {
    for side in 0..2 {
        let kinds: Vec<u8> = world.told[side]
            .iter()
            .map(|event| match event.what {
                What::Request(..) => 0,
                What::Reply(_) => 1,
                What::Established => 2,
                What::Disconnected | What::DisconnectedAlone => 3,
                What::TimewaitExit => 4,
                What::Rejected(..) | What::Unreachable => 5,
                _ => panic!("{event:?}"),
            })
            .collect();
        let requests = kinds.iter().filter(|kind| **kind == 0).count();
        assert!(requests <= 1, "a repeated REQ is one request: {kinds:?} of {run:?}");
        assert!(kinds.windows(2).all(|two| two[0] < two[1]), "{kinds:?} of {side}, {run:?}");
    }
    let now = world.now;
    // What programs still name goes with a call each; nothing is left then but what lingers.
    let passive = world.told[1].first().map(|event| event.id);
    let _ = world.cms[0].destroy(now, id);
    if let Some(passive) = passive {
        let _ = world.cms[1].destroy(now, passive);
    }
    world.loss = 100;
    world.settle();
    assert!(world.cms.iter().all(Cm::is_empty), "{run:?}");
}

#[test]
fn thousands_of_seeds_end_well() {
    let mut outcomes = Outcomes::default();
    for seed in 0..4000 {
        run(seed, &mut outcomes);
    }
    println!("4000 seeds: {outcomes:?}");
    let Outcomes { up, refused, unreachable, lost, repeats, answered_again } = outcomes;
    assert!(up > 1000 && refused > 1000 && unreachable > 100, "{up} {refused} {unreachable}");
    assert!(lost > 1000 && repeats > 1000 && answered_again > 500, "{lost} {repeats} {answered_again}");
}

#[test]
fn a_connection_without_faults_takes_three_messages_and_ends_with_two() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 0);
    let id = connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let mut seen = [0, 0];
    while world.sent < 3 {
        assert!(world.step());
        world.collect();
        act(&mut world, &mut seen, 2);
    }
    world.step();
    world.collect();
    assert_eq!(world.last(1), Some(&What::Established));
    assert_eq!(world.told[1][0].cookie, 900, "a request brings its listener's cookie");
    assert_eq!(world.told[0][0].cookie, 0x10_0001);
    let passive = world.told[1][0].id;
    assert_eq!((id.0 >> 24, passive.0 >> 24), (1, 2), "the slot is in an id's upper 8 bits");
    let before = world.now;
    world.cms[1].disconnect(before, passive).unwrap();
    world.settle();
    for side in 0..2 {
        assert_eq!(world.last(side), Some(&What::TimewaitExit));
        assert_eq!(world.told[side].iter().filter(|e| e.what == What::Disconnected).count(), 1);
    }
    assert!(world.now.since(before) >= Duration::from_ms(2100));
    assert_eq!(world.sent, 5);
    let now = world.now;
    assert_eq!(world.cms[1].disconnect(now, passive), Ok(()), "of one that has ended nothing is done");
    world.cms[1].destroy(now, passive).unwrap();
    assert_eq!(world.cms[1].destroy(now, passive), Err(CmError::NoSuchObject));
}

#[test]
fn a_slow_listener_asks_for_patience() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 0);
    connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let mut first_repeat = None;
    for _ in 0..4 {
        world.step();
        if world.cms[0].counters().cm_repeats == 1 && first_repeat.is_none() {
            first_repeat = Some(world.now);
        }
    }
    let first_repeat = first_repeat.unwrap();
    assert_eq!(first_repeat, Instant::ZERO + Duration::from_ms(6144));
    assert_eq!(world.cms[1].counters().cm_answered_again, 1, "one MRA");
    let next = world.cms[0].next_deadline().unwrap();
    let patience = Duration::from_ns(4096 << 24) + Duration::from_ms(6144);
    assert!(next.since(first_repeat) >= patience, "silence until then");
}

#[test]
fn nobody_listens_or_answers() {
    let mut world = World::new(1, 0, 0);
    connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    world.settle();
    assert_eq!(world.last(0), Some(&What::Rejected(Reason::INVALID_SERVICE, Default::default())));

    let mut world = World::new(1, 100, 0);
    connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    world.settle();
    assert_eq!(world.last(0), Some(&What::Unreachable));
    assert_eq!(world.cms[0].counters().cm_repeats, 15);
    assert_eq!(world.now, Instant::ZERO + Duration::from_ms(6144).times(16));
}

#[test]
fn private_data_has_bounds() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 0);
    let connect_with = |len: usize| Connect {
        service: SERVICE,
        dst: gid(2),
        src: gid(1),
        src_port: 1,
        offer: offer(1),
        retry_count: 7,
        mtu: 3,
        ack_timeout: 19,
        traffic_class: 0,
        private: &[1; 57][..len],
        cookie: 0,
    };
    assert!(matches!(world.cms[0].connect(Instant::ZERO, &connect_with(57)), Err(CmError::Invalid(_))));
    world.cms[0].connect(Instant::ZERO, &connect_with(56)).unwrap();
    world.step();
    world.collect();
    let CmEvent { id, what: What::Request(_, request), .. } = world.told[1][0] else { panic!() };
    assert_eq!(request.private.0, [1; 56]);
    let now = world.now;
    let refused = world.cms[1].accept(now, id, &offer(2), &[0; 197]);
    assert!(matches!(refused, Err(CmError::Invalid(_))));
    world.settle();
    assert_eq!(world.last(0), Some(&What::Rejected(Reason::CONSUMER, Default::default())));
}

#[test]
fn datagram_services_are_resolved_and_answers_repeated() {
    for (seed, loss) in (0..400).map(|seed| (seed, [0, 40][seed as usize % 2])) {
        let mut world = World::new(seed, loss, 30);
        listen(&mut world.cms[1], DATAGRAMS, 1);
        let resolve = Resolve {
            service: DATAGRAMS,
            dst: gid(2),
            src: gid(1),
            src_port: 5,
            private: &[8; 180],
            cookie: 77,
        };
        world.cms[0].resolve(Instant::ZERO, &resolve).unwrap();
        let mut answered = 0;
        while world.step() {
            world.collect();
            while let Some(event) = world.told[1].get(answered).copied() {
                answered += 1;
                let What::DatagramRequest(_, request) = event.what else { panic!("{event:?}") };
                assert_eq!((request.private.0, request.src_port), ([8; 180], 5));
                let private: &[u8] = &[6; 136];
                let answer = Resolved { qpn: QpNumber::new(9), qkey: 0x0123_4567, private };
                let now = world.now;
                match seed % 3 {
                    0 => world.cms[1].refuse(now, event.id, &[]).unwrap(),
                    _ => world.cms[1].answer(now, event.id, &answer).unwrap(),
                }
            }
        }
        let expected = match seed % 3 {
            0 => What::Unresolved(2, Default::default()),
            _ => What::Resolved(QpNumber::new(9), 0x0123_4567, adverb_wire::cm::Private([6; 136])),
        };
        assert_eq!(world.told[0].len(), 1);
        let last = world.last(0);
        assert!(last == Some(&expected) || (loss > 0 && last == Some(&What::Unreachable)), "{last:?}");
        assert_eq!(world.told[0][0].cookie, 77);
    }
}

#[test]
fn a_flood_of_requests_is_bounded_by_the_backlog() {
    let mut cm = manager(2, 2, 1);
    let listener = listen(&mut cm, SERVICE, 8);
    let mut flooder = manager(1, 1, 2);
    let mut ids = Vec::new();
    for qpn in 0..20_000 {
        ids.push(connect(&mut flooder, Instant::ZERO, qpn, &[42]));
        let mad = flooder.next_mad().unwrap();
        cm.receive(Instant::ZERO, gid(1), &mad.bytes);
        assert!(cm.len() <= 8);
    }
    cm.check_invariants();
    assert_eq!((cm.counters().cm_requests, cm.counters().cm_refused_backlog), (8, 19_992));
    // What waits to be sent is bounded too.
    assert!(cm.counters().cm_drop_full > 10_000);
    let mut rejected = 0;
    while let Some(mad) = cm.next_mad() {
        flooder.receive(Instant::ZERO, gid(2), &mad.bytes);
        rejected += 1;
    }
    assert_eq!(rejected, crate::limits::MAX_CM_MADS);
    let event = flooder.next_event().unwrap();
    assert_eq!(event.what, What::Rejected(Reason::CONSUMER, Default::default()));
    // One that the program has taken makes room for another.
    let first = cm.next_event().unwrap().id;
    cm.taken(first);
    connect(&mut flooder, Instant::ZERO, 30_000, &[42]);
    let mad = flooder.next_mad().unwrap();
    cm.receive(Instant::ZERO, gid(1), &mad.bytes);
    assert_eq!(cm.counters().cm_requests, 9);
    // Who listens no more rejects those that wait, and the taken one is still the program's.
    cm.unlisten(Instant::ZERO, listener).unwrap();
    cm.check_invariants();
    assert_eq!(std::iter::from_fn(|| cm.next_mad()).count(), 8);
    cm.accept(Instant::ZERO, first, &offer(3), &[]).unwrap();
}

/// A connection that is up.
pub(super) fn connected() -> World {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 0);
    connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let mut seen = [0, 0];
    while world.last(1) != Some(&What::Established) {
        world.step();
        world.collect();
        act(&mut world, &mut seen, 2);
    }
    world
}

#[test]
fn a_peer_that_has_begun_anew_ends_the_old_connection() {
    let mut world = connected();
    // The peer's process is another one now, whose queue pair has the same number.
    world.cms[0] = manager(1, 1, 99);
    let now = world.now;
    world.told[0].clear();
    connect(&mut world.cms[0], now, 0x10_0001, &[42]);
    world.settle();
    assert_eq!(world.last(0), Some(&What::Rejected(Reason::STALE, Default::default())));
    assert_eq!(world.last(1), Some(&What::TimewaitExit));
    assert_eq!(world.cms[1].counters().cm_refused_stale, 1);
}

/// Who was refused may ask again at once, with the same queue pair.
#[test]
fn a_refused_queue_pair_may_ask_again() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 0);
    let mut seen = [0, 0];
    for count in 1..4 {
        let now = world.now;
        connect(&mut world.cms[0], now, 0x10_0001, &[42]);
        while world.told[0].len() < count {
            world.step();
            world.collect();
            act(&mut world, &mut seen, 0);
        }
        let mut private = [0; 148];
        private[..2].copy_from_slice(b"no");
        let refused = What::Rejected(Reason::CONSUMER, adverb_wire::cm::Private(private));
        assert_eq!(world.last(0), Some(&refused));
    }
    assert_eq!(world.cms[1].counters().cm_requests, 3);
}

/// Messages made of true ones, with ids of live connections among those that are changed: counted, refused
/// or believed, never more than that, and a connection of another peer is not touched.
#[test]
fn forged_messages_do_not_touch_connections_of_others() {
    let mut world = World::new(1, 0, 0);
    listen(&mut world.cms[1], SERVICE, 16);
    let id = connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    let mut seen = [0, 0];
    let mut corpus = Vec::new();
    while world.last(1) != Some(&What::Established) {
        world.collect();
        corpus.extend(world.wire.values().map(|(_, bytes)| *bytes));
        world.step();
        world.collect();
        act(&mut world, &mut seen, 2);
    }
    let passive = world.told[1][0].id;
    let mut rng = Rng(5);
    let now = world.now;
    for round in 0..50_000 {
        let mut bytes = corpus[rng.below(corpus.len() as u64) as usize];
        let attribute = Attribute::ALL[rng.below(9) as usize];
        bytes[16..18].copy_from_slice(&(attribute as u16).to_be_bytes());
        if rng.percent(50) {
            let (own, peers) = if rng.percent(50) { (passive.0, id.0) } else { (id.0, passive.0) };
            bytes[24..28].copy_from_slice(&peers.to_be_bytes());
            bytes[28..32].copy_from_slice(&own.to_be_bytes());
        }
        for _ in 0..rng.below(6) {
            bytes[rng.below(256) as usize] = rng.below(256) as u8;
        }
        let side = round % 2;
        world.cms[side].receive(now, gid(66), &bytes);
        world.cms[side].check_invariants();
        // The forger's own requests are rejected, as a program would.
        while let Some(event) = world.cms[side].next_event() {
            assert!(event.id != id && event.id != passive, "{event:?}");
            world.cms[side].destroy(now, event.id).unwrap();
        }
        while world.cms[side].next_mad().is_some() {}
    }
    let counters = *world.cms[1].counters();
    assert!(counters.cm_unknown > 1000 && counters.cm_refused_service > 10, "{counters:?}");
    assert!(counters.cm_drop_malformed > 10, "{counters:?}");
    world.told.iter_mut().for_each(Vec::clear);
    world.cms[0].disconnect(now, id).unwrap();
    world.settle();
    assert!([0, 1].iter().all(|side| world.told[*side].iter().any(|e| e.what == What::Disconnected)));
}

/// A manager 2 whose listener for a port has gone at the beginning.
fn left(seed: u64, repeats: u64) -> World {
    let mut world = World::new(seed, 0, repeats);
    let listener = listen(&mut world.cms[1], SERVICE, 4);
    world.cms[1].unlisten(Instant::ZERO, listener).unwrap();
    world
}

#[test]
fn a_request_before_its_listener_waits_for_it() {
    let datagrams =
        Resolve { service: DATAGRAMS, dst: gid(2), src: gid(1), src_port: 5, private: &[8; 180], cookie: 77 };
    for seed in 0..100 {
        let (mut world, by_datagrams) = (left(seed, 30), seed % 2 == 1);
        if seed % 4 < 2 {
            // The first one to come, on a port that was only bound.
            world = World::new(seed, 0, 30);
            world.cms[1].expect_listener(Instant::ZERO, SERVICE.port);
        }
        if by_datagrams {
            // In another space than the listener that has gone.
            world.cms[0].resolve(Instant::ZERO, &datagrams).unwrap();
        } else {
            connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
        }
        while world.cms[1].counters().cm_kept == 0 {
            assert!(world.step() && world.told[0].is_empty());
        }
        // Of repeats of it, one is kept.
        while !world.wire.is_empty() {
            world.step();
        }
        let service = if by_datagrams { DATAGRAMS } else { SERVICE };
        listen(&mut world.cms[1], service, 4);
        world.collect();
        let asked = |what: &What| matches!(what, What::Request(..) | What::DatagramRequest(..));
        assert_eq!(world.told[1].iter().filter(|event| asked(&event.what)).count(), 1, "{seed}");
        assert!(world.told[0].is_empty(), "it was not refused");
        assert_eq!(world.cms[1].counters().cm_kept, 1);
        assert_eq!(world.cms[1].counters().cm_refused_service, 0);
    }
}

#[test]
fn who_was_kept_in_vain_is_refused_and_then_nobody_is_kept() {
    let mut world = left(0, 0);
    connect(&mut world.cms[0], Instant::ZERO, 0x10_0001, &[42]);
    world.settle();
    let refused = What::Rejected(Reason::INVALID_SERVICE, Default::default());
    assert_eq!(world.last(0), Some(&refused));
    let patience = between::PATIENCE;
    assert!(world.now >= Instant::ZERO + patience, "{:?}", world.now);
    // The same port a second time: at once, as on a port on which nobody ever listened.
    let again = world.now;
    connect(&mut world.cms[0], again, 0x10_0002, &[42]);
    world.settle();
    assert_eq!((world.told[0].len(), world.last(0)), (2, Some(&refused)));
    assert!(world.now < again + patience);
    assert_eq!((world.cms[1].counters().cm_kept, world.cms[1].counters().cm_refused_service), (1, 2));

    // Long after its listener.
    let mut world = left(0, 0);
    world.now = Instant::ZERO + between::LATELY;
    let now = world.now;
    connect(&mut world.cms[0], now, 0x10_0001, &[42]);
    world.settle();
    assert_eq!((world.last(0), world.cms[1].counters().cm_kept), (Some(&refused), 0));
}

#[test]
fn a_flood_before_a_listener_is_bounded() {
    let mut world = left(0, 0);
    let flood = limits::MAX_CM_KEPT as u32 * 3;
    for qpn in 0..flood {
        connect(&mut world.cms[0], Instant::ZERO, 0x10_0001 + qpn, &[42]);
    }
    let seen = |world: &World| {
        let counted = world.cms[1].counters();
        counted.cm_kept + counted.cm_refused_service
    };
    while seen(&world) < u64::from(flood) {
        world.step();
    }
    let counted = *world.cms[1].counters();
    assert_eq!(counted.cm_kept, limits::MAX_CM_KEPT as u64);
    assert_eq!(counted.cm_refused_service, u64::from(flood) - limits::MAX_CM_KEPT as u64);
    // The end of the process refuses those that are left.
    let now = world.now;
    world.cms[1].close(now);
    world.cms[1].check_invariants();
    assert_eq!(world.cms[1].counters().cm_refused_service, u64::from(flood));
}

/// A process that ends has its peer hear of it though nine DREQs are lost; and it ends though nobody answers.
#[test]
fn who_ends_repeats_its_leave_for_a_moment() {
    for lost in [0, 9, 10] {
        let World { mut now, cms: [mut one, mut two], .. } = connected();
        let begun = now;
        one.close(now);
        let mut sent = 0;
        while one.is_parting() {
            while let Some(Outgoing { bytes, .. }) = one.next_mad() {
                sent += 1;
                if sent > lost {
                    two.receive(now, gid(1), &bytes);
                }
            }
            while let Some(Outgoing { bytes, .. }) = two.next_mad() {
                one.receive(now, gid(2), &bytes);
            }
            if one.is_parting() {
                now = one.next_deadline().unwrap();
                one.on_timer(now);
            }
        }
        assert_eq!(sent, (lost + 1).min(10), "{lost} lost");
        assert_eq!(now.since(begun), Duration::from_ms(20 * lost), "{lost} lost");
        let told = std::iter::from_fn(|| two.next_event()).any(|event| event.what == What::Disconnected);
        assert_eq!(told, lost < 10, "{lost} lost");
    }
}
