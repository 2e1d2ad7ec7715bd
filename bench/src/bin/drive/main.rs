//! Two NICs back to back, each frame written to bytes and read again as the UDP path does it, with every
//! layer in a function of its own: under callgrind the instructions per operation of each layer are exact.
//!
//!     drive --op write|send|read|atomic --size 8 --batch 1 --count 20000 --transport rc|irn
//!
//! What a program of WQEs costs is seen with `--op nop|wait|enable|own-write|own-read|own-atomic`: one NIC,
//! whose cross-channel queue pair is connected to itself, without a frame, posting included. With
//! `--op chain-nop|chain-wait|chain-enable|chain-write|chain-read|chain-atomic` they are posted once, and
//! what is counted is their execution in a ring that goes round; `--op chain-if` and `--op chain-loop` count
//! whole conditions and laps of a recycled loop ([`chains`]). `--op switch-forward` and its like are frames
//! through a switch ([`switch`]), `--op clients-write` and its like frames of many clients ([`star`]).
//!
//! `bench/profile` runs it twice and subtracts, so that what is paid once does not count.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool of those who build adverb")]

mod chains;
mod star;
mod switch;

use adverb_bench::{Options, now};
use adverb_nic::{
    Access, CqId, Error, IrnConfig, LossRecovery, MrInfo, MrInit, Mtu, Nic, NicConfig, Payload, QpAttrMask,
    QpCaps, QpFlags, QpId, QpInit, QpState, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, Status,
    TxFrame,
};
use adverb_wire::{Flow, Gid, ICRC_LEN, Icrc, Instant, Packet, Parsed, QpNumber, verify_udp};
use std::cell::UnsafeCell;
use std::net::Ipv4Addr;
use std::process::ExitCode;

const REGION: usize = 1 << 20;
const QUEUE: u32 = 128;
/// Before each operation's time; it never passes a timeout.
const NOW: Instant = Instant::from_ns(1);

fn said(error: Error) -> String {
    format!("{error:?}")
}

/// Registered memory. The NIC writes it through its address, so it is made of cells.
struct Region(Box<[UnsafeCell<u64>]>);

impl Region {
    fn new() -> Self {
        Region((0..REGION / 8).map(|_| UnsafeCell::new(0)).collect())
    }

    fn addr(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    fn word(&self, offset: usize) -> u64 {
        // SAFETY: the NIC, the only other user, is not running now.
        unsafe { *self.0[offset / 8].get() }
    }

    fn set_word(&self, offset: usize, value: u64) {
        // SAFETY: as above.
        unsafe { *self.0[offset / 8].get() = value };
    }
}

/// One end: a NIC with a queue pair, a completion queue and a region.
struct End {
    nic: Nic,
    qp: QpId,
    cq: CqId,
    mr: MrInfo,
    region: Region,
    gid: Gid,
    /// What its queue pair was made of.
    init: QpInit,
}

impl End {
    fn new(host: u8, irn: bool, flags: QpFlags) -> Result<End, Error> {
        let gid = Gid::from(Ipv4Addr::new(127, 0, 0, host));
        let config = NicConfig {
            gids: vec![gid],
            qpn_base: u32::from(host) << 16,
            irn: irn.then(IrnConfig::default),
            ..NicConfig::default()
        };
        let mut nic = Nic::new(config, 1);
        let pd = nic.memory().alloc_pd()?;
        let cq = nic.create_cq(4 * QUEUE)?;
        let region = Region::new();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let init = MrInit { pd, addr: region.addr(), len: REGION as u64, iova: region.addr(), access };
        // SAFETY: the region's heap block lives as long as the NIC that is dropped with it, and nothing but
        // the NIC touches it meanwhile.
        let mr = unsafe { nic.memory().reg_mr(&init) }?;
        let caps = QpCaps {
            max_send_wr: QUEUE,
            max_recv_wr: QUEUE,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let init = QpInit::rc(pd, cq, caps);
        let qp = nic.create_qp_with(&init, flags)?;
        Ok(End { nic, qp, cq, mr, region, gid, init })
    }

    /// Address and number.
    fn name(&self) -> Result<(Gid, QpNumber), Error> {
        Ok((self.gid, self.nic.qp_number(self.qp)?))
    }

    /// A request to its own queue pair: of 8 bytes in its own region, a WAIT that is met, an ENABLE
    /// of receives that changes nothing.
    fn to_itself(&self, op: &str) -> Option<SendOp> {
        let (addr, rkey) = (self.region.addr() + 4096, self.mr.rkey);
        Some(match op {
            "nop" => SendOp::Nop,
            "wait" => SendOp::Wait { cq: self.cq.index() as u32, index: 0 },
            "enable" => SendOp::RecvEnable { qp: self.name().ok()?.1, index: 0 },
            "write" => SendOp::Write(addr, rkey),
            "read" => SendOp::Read(addr, rkey),
            "atomic" => SendOp::CompareSwap { addr, rkey, compare: 1, swap: 0 },
            _ => return None,
        })
    }

    /// Lets the NIC work until it has nothing more to do; what it has worked on must complete well.
    fn finish(&mut self, op: &str, out: &mut TxFrame) -> Result<(), String> {
        while layer_next_frame(self, out) || self.nic.has_work() {}
        match self.nic.poll_cq(self.cq).map_err(said)? {
            Some(done) if done.status == Status::Success => Ok(()),
            other => Err(format!("{op} ended with {other:?}")),
        }
    }

    fn connect(&mut self, (gid, number): (Gid, QpNumber)) -> Result<(), Error> {
        use QpAttrMask as M;
        let (mut a, _) = self.nic.query_qp(self.qp)?;
        a.state = QpState::Init;
        a.port = 1;
        a.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        self.nic.modify_qp(NOW, self.qp, &a, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS)?;
        a.state = QpState::Rtr;
        a.path_mtu = Mtu::M4096;
        a.dest_qpn = number;
        a.av.dgid = gid;
        a.max_dest_rd_atomic = 16;
        a.max_rd_atomic = 16;
        let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
        self.nic.modify_qp(NOW, self.qp, &a, M::STATE | rtr)?;
        a.state = QpState::Rts;
        a.timeout = 14;
        a.retry_cnt = 7;
        a.rnr_retry = 7;
        let rts = M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC | M::SQ_PSN;
        self.nic.modify_qp(NOW, self.qp, &a, M::STATE | rts)
    }
}

/// What a run does.
#[derive(Clone, Copy)]
enum Op {
    Write,
    Send,
    Read,
    Atomic,
}

/// The layers. Each is kept out of line, so that callgrind can tell them apart.
#[inline(never)]
fn layer_post_send(end: &mut End, op: SendOp, sges: &[Sge], signaled: bool) -> Result<(), Error> {
    let flags = SendFlags { signaled, ..SendFlags::default() };
    let wr = SendWr { wr_id: 0, op, flags, data: SendData::Sges(sges), ud: None, xrc_srqn: 0 };
    end.nic.post_send(NOW, end.qp, &wr)
}

#[inline(never)]
fn layer_post_recv(end: &mut End, sges: &[Sge]) -> Result<(), Error> {
    end.nic.post_recv(NOW, end.qp, &RecvWr { wr_id: 0, sges })
}

#[inline(never)]
fn layer_next_frame(end: &mut End, out: &mut TxFrame) -> bool {
    end.nic.next_frame(NOW, out)
}

/// Writes headers, payload and padding, without the ICRC; returns the length.
#[inline(never)]
fn layer_emit(out: &TxFrame, bytes: &mut [u8]) -> usize {
    let len = out.packet.wire_len();
    let header_len = out.packet.emit_bth(bytes);
    let data = &mut bytes[header_len..len - ICRC_LEN];
    let mut at = 0;
    for span in out.payload.spans() {
        adverb_nic::memory::dma::read_bytes(*span, &mut data[at..at + span.len()]);
        at += span.len();
    }
    data[at..].fill(0);
    len
}

#[inline(never)]
fn layer_icrc(flow: &Flow, bytes: &mut [u8]) {
    let len = bytes.len();
    let (covered, icrc) = bytes.split_at_mut(len - ICRC_LEN);
    icrc.copy_from_slice(&Icrc::over_flow(flow, 0, len, covered).finish().to_le_bytes());
}

#[inline(never)]
fn layer_verify(flow: &Flow, bytes: &[u8]) -> bool {
    verify_udp(flow, bytes).is_some()
}

#[inline(never)]
fn layer_parse_and_request(end: &mut End, flow: Flow, bytes: &[u8], parsed: &mut Parsed) -> bool {
    deliver(end, flow, bytes, parsed)
}

#[inline(never)]
fn layer_parse_and_response(end: &mut End, flow: Flow, bytes: &[u8], parsed: &mut Parsed) -> bool {
    deliver(end, flow, bytes, parsed)
}

#[inline(always)]
fn deliver(end: &mut End, flow: Flow, bytes: &[u8], parsed: &mut Parsed) -> bool {
    if Packet::parse_bth_into(parsed, flow, bytes).is_err() {
        return false;
    }
    end.nic.on_frame(NOW, &parsed.packet, &Payload::from_slice(&bytes[parsed.payload.clone()]));
    true
}

#[inline(never)]
fn layer_poll_cq(end: &mut End) -> Result<usize, Error> {
    let mut count = 0;
    while end.nic.poll_cq(end.cq)?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Where a frame stands between the two ends: its bytes, and what they were read as.
struct Wire {
    bytes: Vec<u8>,
    parsed: Parsed,
}

impl Wire {
    fn new() -> Wire {
        Wire { bytes: vec![0; 4096 + 256], parsed: Parsed::default() }
    }
}

/// Moves frames from one end to the other until there are none; how many.
fn carry(
    from: &mut End,
    to: &mut End,
    requests: bool,
    out: &mut TxFrame,
    wire: &mut Wire,
) -> Result<usize, String> {
    let mut count = 0;
    let Wire { bytes, parsed } = wire;
    while layer_next_frame(from, out) {
        let len = layer_emit(out, bytes);
        let flow = out.packet.flow;
        layer_icrc(&flow, &mut bytes[..len]);
        if !layer_verify(&flow, &bytes[..len]) {
            return Err("the ICRC is wrong".into());
        }
        let taken = match requests {
            true => layer_parse_and_request(to, flow, &bytes[..len], parsed),
            false => layer_parse_and_response(to, flow, &bytes[..len], parsed),
        };
        if !taken {
            return Err("a frame does not parse".into());
        }
        count += 1;
    }
    Ok(count)
}

/// What the two NICs say to each other before the first operation.
fn shake_hands(
    a: &mut End,
    b: &mut End,
    irn: bool,
    out: &mut TxFrame,
    wire: &mut Wire,
) -> Result<(), String> {
    while carry(a, b, true, out, wire)? + carry(b, a, false, out, wire)? > 0 {}
    for end in [a, b] {
        let agreed = end.nic.recovery_of(end.qp).map_err(|e| format!("{e:?}"))? == LossRecovery::Irn;
        if agreed != irn {
            return Err("the two did not agree on IRN".into());
        }
    }
    Ok(())
}

fn drive(options: &Options) -> Result<String, String> {
    let op = match options.get("op", "write".to_owned())?.as_str() {
        "write" => Op::Write,
        "send" => Op::Send,
        "read" => Op::Read,
        "atomic" => Op::Atomic,
        chain if chain.starts_with("chain-") => return chains::drive(options, chain),
        op if op.starts_with("switch-") => return switch::drive(options, op),
        op if op.starts_with("clients-") => return star::drive(options, op),
        own => return drive_own(options, own),
    };
    let size = options.get("size", 8usize)?.min(REGION);
    let batch = options.get("batch", 1usize)?.clamp(1, QUEUE as usize);
    let count = options.get("count", 20_000usize)?;
    let irn = match options.get("transport", "rc".to_owned())?.as_str() {
        "rc" => false,
        "irn" => true,
        other => return Err(format!("--transport {other}: rc or irn")),
    };
    let plain = QpFlags::empty();
    let (mut a, mut b) = (End::new(1, irn, plain).map_err(said)?, End::new(2, irn, plain).map_err(said)?);
    a.connect(b.name().map_err(said)?).map_err(said)?;
    b.connect(a.name().map_err(said)?).map_err(said)?;
    let local = [Sge { addr: a.region.addr(), len: size as u32, lkey: a.mr.lkey }];
    let landing = [Sge { addr: b.region.addr(), len: size as u32, lkey: b.mr.lkey }];
    let (addr, rkey) = (b.region.addr(), b.mr.rkey);
    let request = match op {
        Op::Write => SendOp::Write(addr, rkey),
        Op::Send => SendOp::Send,
        Op::Read => SendOp::Read(addr, rkey),
        Op::Atomic => SendOp::FetchAdd { addr, rkey, add: 1 },
    };
    let (mut out, mut wire) = (TxFrame::default(), Wire::new());
    let (mut frames, mut completions) = (0, 0);
    shake_hands(&mut a, &mut b, irn, &mut out, &mut wire)?;
    let begun = now();
    for _ in 0..count / batch {
        for number in 1..=batch {
            if matches!(op, Op::Send) {
                layer_post_recv(&mut b, &landing).map_err(said)?;
            }
            layer_post_send(&mut a, request, &local, number == batch).map_err(said)?;
        }
        loop {
            let sent = carry(&mut a, &mut b, true, &mut out, &mut wire)?;
            let answered = carry(&mut b, &mut a, false, &mut out, &mut wire)?;
            frames += sent + answered;
            if sent + answered == 0 {
                break;
            }
        }
        completions += layer_poll_cq(&mut a).map_err(said)?;
        if matches!(op, Op::Send) {
            layer_poll_cq(&mut b).map_err(said)?;
        }
    }
    let took = begun.elapsed();
    let rounds = count / batch;
    if completions != rounds {
        return Err(format!("{completions} completions, not {rounds}"));
    }
    let operations = (rounds * batch).max(1) as f64;
    Ok(format!(
        r#"{{"ns_per_op": {:.1}, "frames_per_op": {:.2}}}"#,
        took.as_nanos() as f64 / operations,
        frames as f64 / operations
    ))
}

/// What a NIC does with WQEs of a queue pair that is connected to itself.
fn drive_own(options: &Options, op: &str) -> Result<String, String> {
    let batch = options.get("batch", 32usize)?.clamp(1, QUEUE as usize);
    let rounds = options.get("count", 20_000usize)? / batch;
    // The ENABLEs' target is a queue of its own, which has nothing to do.
    let mut a = End::new(1, false, QpFlags::CROSS_CHANNEL | QpFlags::MANAGED_RECV).map_err(said)?;
    let own = a.name().map_err(said)?;
    a.connect(own).map_err(said)?;
    let local = [Sge { addr: a.region.addr(), len: 8, lkey: a.mr.lkey }];
    let request = a.to_itself(op.trim_start_matches("own-")).ok_or_else(|| {
        let known = "write, send, read, atomic, nop, wait, enable, own-write, own-read, own-atomic";
        format!("--op {op}: {known}; or chain-nop, -wait, -enable, -write, -read, -atomic, -if, -loop")
    })?;
    let mut out = TxFrame::default();
    let mut turn = |a: &mut End, request: SendOp, count: usize| -> Result<(), String> {
        for number in 1..=count {
            layer_post_send(a, request, &local, number == count).map_err(said)?;
        }
        a.finish(op, &mut out)
    };
    // The completion that WAITs are for.
    turn(&mut a, SendOp::Nop, 1)?;
    let begun = now();
    for _ in 0..rounds {
        turn(&mut a, request, batch)?;
    }
    let took = begun.elapsed().as_nanos() as f64;
    Ok(format!(r#"{{"ns_per_op": {:.1}, "frames_per_op": 0.00}}"#, took / (rounds * batch).max(1) as f64))
}

fn main() -> ExitCode {
    match drive(&Options::new(std::env::args().skip(1).collect())) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("drive: {why}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_completes_through_real_frames() {
        for op in ["write", "send", "read", "atomic"] {
            for transport in ["rc", "irn"] {
                let words =
                    ["--op", op, "--size", "8", "--batch", "4", "--count", "400", "--transport", transport];
                let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
                assert!(report.contains("frames_per_op"), "{op}: {report}");
            }
        }
        for op in ["nop", "wait", "enable", "own-write", "own-read", "own-atomic"] {
            let words = ["--op", op, "--batch", "16", "--count", "400"];
            let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
            assert!(report.contains("ns_per_op"), "{op}: {report}");
        }
        for op in ["nop", "wait", "enable", "write", "read", "atomic"] {
            let words = ["--op", &format!("chain-{op}"), "--count", "10000"];
            let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
            assert!(report.contains("ns_per_op"), "{op}: {report}");
        }
        for op in ["if", "loop"] {
            let words = ["--op", &format!("chain-{op}"), "--count", "20000"];
            let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
            assert!(report.contains("ns_per_op"), "{op}: {report}");
        }
        for op in ["forward", "write", "cas", "add"] {
            let words = ["--op", &format!("switch-{op}"), "--count", "3000"];
            let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
            assert!(report.contains("ns_per_frame"), "{op}: {report}");
        }
        for op in ["write", "read"] {
            for transport in ["rc", "star"] {
                let op = format!("clients-{op}");
                let words = ["--op", &op, "--clients", "20", "--count", "3000", "--transport", transport];
                let report = drive(&Options::new(words.iter().map(|w| (*w).to_owned()).collect())).unwrap();
                assert!(report.contains(r#""frames_per_op": 2.00"#), "{op} {transport}: {report}");
            }
        }
        assert!(drive(&Options::new(vec!["--op".into(), "jump".into()])).is_err());
    }
}
