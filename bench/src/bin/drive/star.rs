//! Frames of many clients into one server's NIC, and nothing else: what the number of clients costs it.
//!
//!     drive --op clients-write|clients-read --clients 10000 --count 20000 --transport rc|star
//!
//! Each client's connection is set up by real NICs, and its first request is recorded. Of these a row of
//! requests is made, of clients drawn at random, with the number, and under StaR the deadline, that the
//! client would have given each by then: four microseconds of virtual time apart. Then the server's NIC alone
//! is fed with the row, in turns of 128, each answered before the next comes. The row is as long, and is read
//! in the same order, for any number of clients; so under callgrind the instructions and misses below
//! `layer_server` are the server's, and what grows with the clients is theirs.

use super::{Region, layer_emit, said};
use adverb_bench::{Options, now};
use adverb_nic::{
    Access, CqId, MrInfo, MrInit, Mtu, Nic, NicConfig, Payload, PdId, QpAttrMask, QpCaps, QpId, QpInit,
    QpState, SendData, SendFlags, SendOp, SendWr, Sge, StarConfig, StarSide, TxFrame,
};
use adverb_wire::star::Wish;
use adverb_wire::{Duration, Gid, ICRC_LEN, Instant, Operation, Packet, Psn, QpNumber};
use std::net::Ipv4Addr;

/// Bytes of each request.
const SIZE: usize = 64;
/// Bytes of the server's region that are asked for: what is used again and again stays in a cache.
const USED: u64 = 1 << 16;
/// Frames of a turn.
const TURN: usize = 128;
/// How far ahead StaR's deadlines lie, in microseconds.
const AHEAD: u32 = 20_000;

struct Host {
    nic: Nic,
    pd: PdId,
    cq: CqId,
    mr: MrInfo,
    region: Region,
    gid: Gid,
}

impl Host {
    fn new(last: u8, wish: Option<Wish>) -> Result<Host, String> {
        let gid = Gid::from(Ipv4Addr::new(127, 0, 0, last));
        let star = wish.map(|wish| StarConfig { wish, ..StarConfig::default() });
        let config =
            NicConfig { gids: vec![gid], qpn_base: u32::from(last) << 16, star, ..NicConfig::default() };
        let mut nic = Nic::new(config, u64::from(last));
        let pd = nic.memory().alloc_pd().map_err(said)?;
        let cq = nic.create_cq(1 << 16).map_err(said)?;
        let region = Region::new();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let init = MrInit { pd, addr: region.addr(), len: super::REGION as u64, iova: region.addr(), access };
        // SAFETY: the region's heap block lives as long as the NIC that is dropped with it, and nothing but
        // the NIC touches it meanwhile.
        let mr = unsafe { nic.memory().reg_mr(&init) }.map_err(said)?;
        Ok(Host { nic, pd, cq, mr, region, gid })
    }

    fn queue_pair(&mut self) -> Result<(QpId, QpNumber), String> {
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let id = self.nic.create_qp(&QpInit::rc(self.pd, self.cq, caps)).map_err(said)?;
        Ok((id, self.nic.qp_number(id).map_err(said)?))
    }

    fn connect(&mut self, now: Instant, id: QpId, (gid, number): (Gid, QpNumber)) -> Result<(), String> {
        use QpAttrMask as M;
        let (mut a, _) = self.nic.query_qp(id).map_err(said)?;
        a.state = QpState::Init;
        a.port = 1;
        a.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut modify = |a: &_, mask| self.nic.modify_qp(now, id, a, mask).map_err(said);
        modify(&a, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS)?;
        a.state = QpState::Rtr;
        a.path_mtu = Mtu::M1024;
        a.dest_qpn = number;
        a.av.dgid = gid;
        a.max_dest_rd_atomic = 16;
        a.max_rd_atomic = 16;
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        modify(&a, M::STATE | rtr)?;
        a.state = QpState::Rts;
        (a.timeout, a.retry_cnt, a.rnr_retry) = (14, 7, 7);
        modify(&a, M::STATE | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN)
    }
}

/// Frames of one NIC, given to the other; how many.
fn carry(now: Instant, from: &mut Host, to: &mut Host, out: &mut TxFrame, bytes: &mut [u8]) -> usize {
    let mut count = 0;
    while from.nic.next_frame(now, out) {
        let payload = payload_of(out, bytes);
        to.nic.on_frame(now, &out.packet, &Payload::from_slice(payload));
        count += 1;
    }
    count
}

fn payload_of<'a>(out: &TxFrame, bytes: &'a mut [u8]) -> &'a [u8] {
    let len = layer_emit(out, bytes);
    let start = len - ICRC_LEN - out.packet.payload_len.next_multiple_of(4) as usize;
    &bytes[start..start + out.packet.payload_len as usize]
}

/// A client's request as it left first, and how many the server was given since.
struct Recorded {
    packet: Packet,
    given: u32,
}

/// Connects a client, and records its first request. The server has executed it.
fn record(
    server: &mut Host,
    client: &mut Host,
    at: Instant,
    is_write: bool,
    star: bool,
) -> Result<Recorded, String> {
    let (mut out, mut bytes) = (TxFrame::default(), vec![0; 4096 + 256]);
    let ((there, far), (here, near)) = (server.queue_pair()?, client.queue_pair()?);
    server.connect(at, there, (client.gid, near))?;
    client.connect(at, here, (server.gid, far))?;
    let mut settle = |server: &mut Host, client: &mut Host| {
        while carry(at, client, server, &mut out, &mut bytes)
            + carry(at, server, client, &mut out, &mut bytes)
            > 0
        {}
    };
    settle(server, client);
    if star
        && (server.nic.star_side(there), client.nic.star_side(here))
            != (Ok(StarSide::Stateless), Ok(StarSide::Stateful))
    {
        return Err("the two did not agree on StaR".into());
    }
    let target = (server.region.addr(), server.mr.rkey);
    let op = if is_write { SendOp::Write(target.0, target.1) } else { SendOp::Read(target.0, target.1) };
    let sges = [Sge { addr: client.region.addr(), len: SIZE as u32, lkey: client.mr.lkey }];
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    let wr = SendWr { wr_id: 0, op, flags, data: SendData::Sges(&sges), ud: None, xrc_srqn: 0 };
    client.nic.post_send(at, here, &wr).map_err(said)?;
    let (mut out, mut bytes) = (TxFrame::default(), vec![0; 4096 + 256]);
    if !client.nic.next_frame(at, &mut out) {
        return Err("no request left".into());
    }
    let packet = out.packet;
    let payload = payload_of(&out, &mut bytes);
    server.nic.on_frame(at, &packet, &Payload::from_slice(payload));
    settle_after(server, client, at);
    match client.nic.poll_cq(client.cq).map_err(said)? {
        Some(done) if done.status == adverb_nic::Status::Success => Ok(Recorded { packet, given: 1 }),
        other => Err(format!("the first request ended with {other:?}")),
    }
}

fn settle_after(server: &mut Host, client: &mut Host, at: Instant) {
    let (mut out, mut bytes) = (TxFrame::default(), vec![0; 4096 + 256]);
    while carry(at, server, client, &mut out, &mut bytes) + carry(at, client, server, &mut out, &mut bytes)
        > 0
    {}
}

/// The server's part of a turn: takes the frames in, and gives its answers. How many these are.
#[inline(never)]
fn layer_server(nic: &mut Nic, turn: &[(Instant, Packet)], payload: &[u8], out: &mut TxFrame) -> usize {
    let mut answers = 0;
    for (at, packet) in turn {
        nic.on_frame(*at, packet, &Payload::from_slice(&payload[..packet.payload_len as usize]));
        while nic.next_frame(*at, out) {
            answers += 1;
        }
    }
    answers
}

/// Requests of clients drawn at random, each with the next of its client's numbers.
fn frames(recorded: &mut [Recorded], mut at: Instant, count: usize, star: bool) -> Vec<(Instant, Packet)> {
    let mut drawn = 0x9e37_79b9_7f4a_7c15_u64;
    let mut frames = Vec::with_capacity(count);
    for _ in 0..count {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (drawn >> 33) as usize % recorded.len();
        let Recorded { packet, given } = &mut recorded[place];
        at += Duration::from_us(4);
        let mut packet = *packet;
        packet.bth.psn = packet.bth.psn.add(*given & Psn::MASK);
        *given += 1;
        if star {
            packet.reth.len = ((at.as_ps() / 1_000_000) as u32).wrapping_add(AHEAD);
        }
        packet.reth.va += ((drawn >> 20) % USED) & !63;
        frames.push((at, packet));
    }
    frames
}

pub fn drive(options: &Options, op: &str) -> Result<String, String> {
    let is_write = match op {
        "clients-write" => true,
        "clients-read" => false,
        _ => return Err(format!("--op {op}: clients-write or clients-read")),
    };
    let star = match options.get("transport", "star".to_owned())?.as_str() {
        "rc" => false,
        "star" => true,
        other => return Err(format!("--transport {other}: rc or star")),
    };
    let clients = options.get("clients", 1usize)?.clamp(1, 60_000);
    let count = options.get("count", 20_000usize)?;
    let wish = |wish| star.then_some(wish);
    let mut server = Host::new(1, wish(Wish::Server))?;
    let mut client = Host::new(2, wish(Wish::Client))?;
    let mut at = Instant::from_ns(1000);
    let mut recorded = Vec::with_capacity(clients);
    for _ in 0..clients {
        at += Duration::from_us(1);
        recorded.push(record(&mut server, &mut client, at, is_write, star)?);
    }
    // The last ones' timers are not this run's business.
    drop(client);
    let rounds = count / TURN;
    let frames = frames(&mut recorded, at, rounds * TURN, star);
    let (payload, mut out) = ([7; SIZE], TxFrame::default());
    let (mut answers, mut nanoseconds) = (0, 0);
    let before = server.nic.counters().star_executed;
    for turn in frames.chunks(TURN) {
        let begun = now();
        answers += layer_server(&mut server.nic, turn, &payload, &mut out);
        nanoseconds += begun.elapsed().as_nanos();
    }
    let frames = frames.len();
    let counters = server.nic.counters();
    let executed = if star { counters.star_executed - before } else { frames as u64 };
    let bytes = if star { server.nic.stateless_bytes() } else { 0 };
    if executed != frames as u64 || answers != frames || out.packet.bth.opcode.operation() == Operation::Hello
    {
        return Err(format!("{executed} requests executed and {answers} answered of {frames}"));
    }
    Ok(format!(
        r#"{{"ns_per_op": {:.1}, "frames_per_op": {:.2}, "stateless_bytes": {bytes}}}"#,
        nanoseconds as f64 / frames.max(1) as f64,
        (frames + answers) as f64 / frames.max(1) as f64,
    ))
}
