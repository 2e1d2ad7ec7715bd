//! Which packets of a row of requests ask for an acknowledgement, and that a row without one for each is
//! delivered, completed and repeated as any other.

mod world;
use adverb_nic::memory::Payload;
use adverb_nic::*;
use adverb_wire::{Duration, Packet, Syndrome};
use world::*;

/// A row of small WRITEs to places of their own, those of `signaled` with a completion; which of the packets
/// that node 0 sent asked for an acknowledgement.
fn row(
    w: &mut World,
    (a, from): (QpId, &Memory),
    to: &Memory,
    count: usize,
    signaled: &[usize],
) -> Vec<usize> {
    w.keep_log = true;
    for n in 0..count {
        let (va, rkey) = to.at(16 * n);
        let mut request = wr(n as u64, SendOp::Write(va, rkey), &[]);
        let sges = [from.sge(16 * n, 16)];
        request.data = SendData::Sges(&sges);
        request.flags.signaled = signaled.contains(&n);
        w.send(0, a, request);
    }
    w.transmit();
    let sent = w.log.drain(..).filter(|(node, _)| *node == 0);
    sent.enumerate().filter(|(_, (_, packet))| packet.bth.ack_req).map(|(n, _)| n).collect()
}

/// Two NICs with a window of so many packets, and memory that the first one writes from and to.
fn world(seed: u64, window: u32) -> (World, QpId, Memory, Memory) {
    let mut w = World::with_config(2, seed, |config| config.max_unacked_packets = window);
    let caps = QpCaps { max_send_wr: 256, ..CAPS };
    let (a, _) = w.pair(QpType::Rc, caps, &Link::default());
    let (from, to) = (w.memory(0, 4096), w.memory(1, 4096));
    from.write(0, &pattern(7, 4096));
    (w, a, from, to)
}

#[test]
fn a_row_asks_with_its_last_and_with_each_that_is_waited_for() {
    let (mut w, a, from, to) = world(1, 128);
    assert_eq!(row(&mut w, (a, &from), &to, 8, &[2, 5]), [2, 5, 7]);
    assert_eq!([w.completion(0).wr_id, w.completion(0).wr_id], [2, 5]);
    w.run(Duration::from_us(100));
    assert_eq!(to.read(0, 128), from.read(0, 128));
    // One alone is the last of its queue.
    assert_eq!(row(&mut w, (a, &from), &to, 1, &[]), [0]);
}

#[test]
fn the_last_quarter_of_the_window_asks() {
    let (mut w, a, from, to) = world(2, 16);
    assert_eq!(row(&mut w, (a, &from), &to, 40, &[39]), [12, 13, 14, 15], "the rest has no room");
    assert_eq!(w.completion(0).wr_id, 39);
    assert_eq!(to.read(0, 640), from.read(0, 640));
    assert_eq!(w.counter(0, "timeouts"), 0, "the window moved by acknowledgements");
}

#[test]
fn what_follows_may_have_to_wait_so_it_is_not_counted_on() {
    // A READ behind a WRITE waits for the READs before it: the WRITE asks for itself.
    let (mut w, a, from, to) = world(3, 128);
    w.keep_log = true;
    let (va, rkey) = to.at(0);
    let sges = [from.sge(0, 16)];
    for op in [SendOp::Write(va, rkey), SendOp::Read(va, rkey), SendOp::WriteImm(va, rkey, 1), SendOp::Send] {
        let mut request = wr(1, op, &sges);
        request.flags.signaled = false;
        w.send(0, a, request);
    }
    w.transmit();
    let asked: Vec<bool> = w.log.iter().map(|(_, packet)| packet.bth.ack_req).collect();
    assert_eq!(asked, [true, true, true, true]);
}

#[test]
fn rows_survive_loss_duplication_and_reordering() {
    for seed in 0..200 {
        let (mut w, a, from, to) = world(seed, [8, 16, 128][seed as usize % 3]);
        w.faults = Faults { loss: 0.1, duplicate: 0.05, reorder: 0.05, ..Faults::default() };
        let count = w.rng.usize(1..200);
        let signaled: Vec<usize> = (0..count).filter(|n| n % 17 == 16 || n + 1 == count).collect();
        row(&mut w, (a, &from), &to, count, &signaled);
        for n in signaled {
            let done = w.completion(0);
            assert_eq!((done.wr_id, done.status), (n as u64, Status::Success), "seed {seed}");
        }
        assert_eq!(to.read(0, 16 * count), from.read(0, 16 * count), "seed {seed}");
    }
}

#[test]
fn a_row_that_nobody_waits_for_is_delivered_though_its_last_packet_is_lost() {
    let (mut w, a, from, to) = world(4, 128);
    let mut dropped = 0;
    w.drop_if = Some(Box::new(move |node, packet| {
        let drop = node == 0 && packet.bth.ack_req && dropped == 0;
        dropped += u32::from(drop);
        drop
    }));
    assert_eq!(row(&mut w, (a, &from), &to, 5, &[]), [4]);
    assert_eq!(w.lost, 1);
    w.run(Duration::from_ms(1000));
    assert_eq!(to.read(0, 80), from.read(0, 80));
}

#[test]
fn who_sends_at_a_rate_asks_with_each() {
    let mut w = World::with_config(2, 5, |config| {
        config.congestion = CongestionControl::Dcqcn(DcqcnConfig::default());
    });
    let (a, _) = w.pair(QpType::Rc, CAPS, &Link::default());
    let (from, to) = (w.memory(0, 4096), w.memory(1, 4096));
    assert_eq!(row(&mut w, (a, &from), &to, 4, &[]), [0, 1, 2, 3]);
}

/// All that one node has to say, which the other takes in before it says anything itself, but for the places
/// `lost` in it. What it was: PSNs, and whether the peer is told of a gap.
fn burst(w: &mut World, from: usize, lost: &[usize]) -> Vec<(u32, bool)> {
    let (mut said, mut out) = (Vec::new(), TxFrame::default());
    while w.nodes[from].nic.next_frame(w.now, &mut out) {
        let mut payload = vec![0; out.payload.len()];
        let mut at = 0;
        for span in out.payload.spans() {
            memory::dma::read_bytes(*span, &mut payload[at..at + span.len()]);
            at += span.len();
        }
        said.push((out.packet, payload));
    }
    for (n, (packet, payload)) in said.iter().enumerate() {
        if !lost.contains(&n) {
            w.nodes[1 - from].nic.on_frame(w.now, packet, &Payload::from_slice(payload));
        }
    }
    let refuses = |packet: &Packet| matches!(packet.aeth.syndrome, Syndrome::Nak(_));
    said.iter().map(|(packet, _)| (packet.bth.psn.get() - 100, refuses(packet))).collect()
}

/// A window of eight that the responder takes in as a whole. WRITEs of `len` bytes follow one another.
fn lock_step(len: usize) -> (World, impl Fn(&mut World)) {
    let (mut w, a, from, to) = world(6, 8);
    let write = move |w: &mut World| {
        let (va, rkey) = to.at(0);
        for n in 0..4096 / len {
            w.send(0, a, wr(n as u64, SendOp::Write(va, rkey), &[from.sge(0, len)]));
        }
    };
    write(&mut w);
    (w, write)
}

#[test]
fn acknowledgements_of_a_batch_are_one_or_two_where_packets_were_lost() {
    // Four packets a message, or one.
    for len in [4096, 1024] {
        let (mut w, write) = lock_step(len);
        write(&mut w);
        let acks = |psns: &[u32]| psns.iter().map(|psn| (*psn, false)).collect::<Vec<_>>();
        burst(&mut w, 0, &[]);
        assert_eq!(burst(&mut w, 1, &[]), acks(&[7]), "nothing was lost: one for all");
        write(&mut w);
        write(&mut w);
        burst(&mut w, 0, &[0]);
        assert_eq!(burst(&mut w, 1, &[]), [(8, true)], "a NAK is told once");
        burst(&mut w, 0, &[]);
        let before = if len == 4096 { 13 } else { 14 };
        assert_eq!(burst(&mut w, 1, &[1]), acks(&[before, 15]), "after it the one before as well");
        // The last one is lost: the window goes on by the other, with no timeout (time stands still).
        (0..8).for_each(|_| write(&mut w));
        let mut sent = 15;
        loop {
            let said = burst(&mut w, 0, &[]);
            let Some((last, _)) = said.last() else { break };
            assert_eq!(said[0].0, sent + 1, "nothing is sent again");
            sent = *last;
            let acks = burst(&mut w, 1, &[1]).len();
            assert!(acks == 2 || sent == 47, "{acks} to {said:?}");
        }
        assert_eq!(sent, 47);
        while w.poll(0).is_some() {}
    }
}

#[test]
fn once_nothing_is_lost_any_more_acknowledgements_of_a_batch_are_one_again() {
    let (mut w, write) = lock_step(1024);
    burst(&mut w, 0, &[0]);
    let mut twice = 0;
    loop {
        burst(&mut w, 1, &[]);
        while w.poll(0).is_some() {}
        (0..4).for_each(|_| write(&mut w));
        burst(&mut w, 0, &[]);
        match burst(&mut w, 1, &[]).len() {
            2 => twice += 1,
            others => break assert_eq!(others, 1),
        }
        assert!(twice < 200);
    }
    assert!(twice > 20, "{twice}");
}
