//! What a NIC counts of the payload that requests move, when it is asked to: at both ends the same, to the
//! byte, whatever the network does; and nothing of what failed or never left the NIC.

mod world;

use adverb_nic::*;
use adverb_wire::Duration;
use world::*;

const ROOM: usize = 1 << 16;

fn world(seed: u64, irn: bool) -> World {
    World::with_config(2, seed, |config| {
        config.tally = true;
        config.irn = irn.then(IrnConfig::default);
    })
}

fn told(w: &World, node: usize) -> (u64, u64, u64) {
    let of = |name| w.counter(node, name);
    (of("requests_done"), of("payload_requested"), of("payload_served"))
}

/// Random requests of all kinds, few of them signalled, from node 0; their payload.
fn requests(w: &mut World, (a, b): (QpId, QpId), seed: u64) -> (u64, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (near, far) = (w.memory(0, ROOM), w.memory(1, ROOM));
    let (mut count, mut bytes) = (0, 0);
    for wr_id in 0..40 {
        let len = [0, 1, 8, 100, 1024, 1025, 5000][rng.usize(..7)];
        let (addr, rkey) = far.at(0);
        let kind = rng.u8(..5);
        let len = if kind == 4 { 8 } else { len };
        let op = match kind {
            0 | 1 => SendOp::Write(addr, rkey),
            2 => SendOp::Read(addr, rkey),
            3 => {
                w.recv(1, b, wr_id, &[far.sge(0, ROOM)]);
                SendOp::Send
            }
            _ => SendOp::FetchAdd { addr, rkey, add: 1 },
        };
        let sges = [near.sge(0, len)];
        let mut request = wr(wr_id, op, &sges);
        let last = wr_id == 39;
        request.flags.signaled = last || rng.u8(..8) == 0;
        w.send(0, a, request);
        (count, bytes) = (count + 1, bytes + len as u64);
    }
    w.run(Duration::from_ms(4000));
    (count, bytes)
}

#[test]
fn both_ends_of_a_connection_count_the_same_bytes() {
    let mut lost = 0;
    for (seed, irn) in (0..40).zip([false, true].into_iter().cycle()) {
        let mut w = world(seed, irn);
        let pair = w.pair(QpType::Rc, CAPS, &Link { depth: 4, ..Link::default() });
        if seed % 4 > 1 {
            w.faults.loss = 0.05;
            w.faults.duplicate = 0.05;
            w.faults.reorder = 0.05;
        }
        let (count, bytes) = requests(&mut w, pair, seed);
        assert_eq!(told(&w, 0), (count, bytes, 0), "seed {seed}");
        assert_eq!(told(&w, 1), (0, 0, bytes), "seed {seed}");
        assert_eq!(w.counter(0, "qps_created") + w.counter(1, "qps_connected"), 2);
        lost += w.lost;
    }
    assert!(lost > 50, "{lost} lost");
}

#[test]
fn who_does_not_ask_pays_nothing_and_is_told_nothing() {
    let mut w = World::new(2, 1);
    let pair = w.pair(QpType::Rc, CAPS, &Link::default());
    requests(&mut w, pair, 1);
    assert!(w.counter(0, "tx_bytes") > 0);
    assert_eq!((told(&w, 0), told(&w, 1)), ((0, 0, 0), (0, 0, 0)));
}

#[test]
fn what_fails_does_not_count_and_what_was_acknowledged_before_it_does() {
    let mut w = world(1, false);
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (near, far) = (w.memory(0, ROOM), w.memory(1, ROOM));
    let (addr, rkey) = far.at(0);
    let wrong = adverb_wire::Key(rkey.0 ^ 0x100);
    for (wr_id, key) in [(1, rkey), (2, rkey), (3, wrong), (4, rkey)] {
        let sges = [near.sge(0, 3000)];
        w.send(0, a, wr(wr_id, SendOp::Write(addr, key), &sges));
    }
    w.run(Duration::from_ms(100));
    assert!(w.counter(0, "error_completions") >= 2);
    assert_eq!(told(&w, 0), (2, 6000, 0));
    assert_eq!(told(&w, 1), (0, 0, 6000));
}

#[test]
fn loops_within_a_nic_do_not_count() {
    let mut w = world(1, false);
    let (a, b) = (w.qp(0, QpType::Rc, CAPS), w.qp(0, QpType::Rc, CAPS));
    w.connect((0, a), (0, b), &Link::default());
    w.connect((0, b), (0, a), &Link::default());
    let memory = w.memory(0, ROOM);
    let (addr, rkey) = memory.at(4096);
    let sges = [memory.sge(0, 2000)];
    w.send(0, a, wr(1, SendOp::Write(addr, rkey), &sges));
    w.run(Duration::from_ms(10));
    assert!(w.counter(0, "loopback_packets") > 0);
    assert_eq!((told(&w, 0), w.counter(0, "qps_connected")), ((0, 0, 0), 0));
}

#[test]
fn unreliable_services_count_when_they_have_left_and_when_they_have_come() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut w = world(1, false);
        let (a, b) = w.pair(kind, CAPS, &Link::default());
        let (near, far) = (w.memory(0, ROOM), w.memory(1, ROOM));
        let to = UdAddress {
            dgid: w.nodes[1].gid,
            qpn: w.nodes[1].nic.qp_number(b).unwrap(),
            qkey: Link::default().qkey,
            traffic_class: 0,
            hop_limit: 64,
            path: PathId::DEFAULT,
        };
        // The third of them is lost.
        let mut nth = 0;
        w.drop_if = Some(Box::new(move |_, _| {
            nth += 1;
            nth == 3
        }));
        for wr_id in 0..5 {
            w.recv(1, b, wr_id, &[far.sge(0, ROOM)]);
            let sges = [near.sge(0, 1000)];
            let mut request = wr(wr_id, SendOp::Send, &sges);
            if kind == QpType::Ud {
                request.ud = Some(to);
            }
            w.send(0, a, request);
        }
        w.run(Duration::from_ms(10));
        assert_eq!(told(&w, 0), (5, 5000, 0), "{kind:?}");
        assert_eq!(told(&w, 1), (0, 0, 4000), "{kind:?}");
    }
}
