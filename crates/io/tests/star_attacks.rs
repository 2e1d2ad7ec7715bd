//! Attacks on StaR by real sockets: docs/star-attacks.md. A server and its clients are processes in network
//! namespaces of their own. Between them, in a third one, somebody sees every frame, and sends what he likes
//! from whatever address he likes. Needs root, to make the namespaces.
#![allow(clippy::print_stdout, reason = "a test")]

mod common;

use adverb_nic::SendOp;
use adverb_wire::packet::WireExtra;
use adverb_wire::star::{Answer, Cqe, Op, Place, Stamp, StarEth, Ticket};
use adverb_wire::{Bth, Flow, Gid, Key, Opcode, Operation, Packet, Psn, QpNumber, Reth, Service};
use common::{Endpoint, Helper, Remote, folder, listen, role, say};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 2);
const FORGER: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 9);
/// What the attacked connection uses of the server's memory: WRITEs and READs, atomics, receives.
const WRITTEN: usize = 0;
const COUNTED: usize = 8192;
const RECEIVED: usize = 12288;
const USED: usize = 16384;
/// Where it writes while it is attacked.
const APART: usize = 65536;
/// What the server's program fills it with once everything is done.
const OTHER: usize = 77;
/// How far ahead a forged deadline lies, in microseconds: in the middle of what is believed.
const AHEAD: u32 = 20_000;
/// Packets of a flood.
const FLOOD: u32 = 20_000;
/// Where all connections begin.
const FIRST_PSN: u32 = 77;
/// Looks at a counter until an attack is made again, and attempts: datagrams may be lost, deadlines may pass.
const LOOKS: usize = 2000;
const ATTEMPTS: usize = 50;

/// The helper process, in one of its roles. Does nothing when run as a test of its own.
#[test]
fn helper() {
    let Some(role) = role() else { return };
    match role[0].as_str() {
        "end" => end(&role[1]),
        "forger" => forge(&role[1]),
        other => panic!("no role {other}"),
    }
}

/// Either end of a connection: connects, then does what it is told.
fn end(settings: &str) {
    let endpoint = Endpoint::open(settings);
    say(&endpoint.remote().line());
    let peer = Remote::parse(&listen().unwrap());
    endpoint.connect(&peer);
    say("connected");
    let there = |offset: usize| (peer.addr + offset as u64, Key(peer.rkey));
    while let Some(line) = listen() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "recv" => endpoint.recv(50, number(1), number(2)),
            "wait" => drop(endpoint.wait_ok(number(1))),
            "fill" => endpoint.fill(number(1), number(2), number(3) as u64),
            "check" => endpoint.check(number(1), number(2), number(3) as u64),
            "send" => endpoint.run(SendOp::Send, number(1), number(2)),
            "write" => {
                let (addr, key) = there(number(2));
                (0..number(3)).for_each(|_| endpoint.run(SendOp::Write(addr, key), number(1), 2000));
            }
            "read" => {
                let (addr, key) = there(number(2));
                endpoint.run(SendOp::Read(addr, key), number(1), 2000);
            }
            "add" => {
                let (addr, rkey) = there(number(2));
                endpoint.run(SendOp::FetchAdd { addr, rkey, add: 1 }, number(1), 8);
            }
            "anew" => endpoint.connect_anew(&peer),
            // The queue pair has failed, and the receive with it.
            "flushed" => {
                let status = endpoint.wait(1)[0].status;
                assert_eq!(status, adverb_nic::Status::WorkRequestFlushed);
            }
            "nothing" => {
                let mut found = 0;
                endpoint.host.poll(endpoint.cq, 16, |_| found += 1).unwrap();
                assert_eq!(found, 0, "something has completed");
            }
            "count" => {
                say(&endpoint.counter(words[1]).to_string());
                continue;
            }
            other => panic!("{other}"),
        }
        say("done");
    }
}

/// A frame that has come by.
#[derive(Clone)]
struct Seen {
    packet: Packet,
    payload: Vec<u8>,
    at: Instant,
}

#[expect(clippy::disallowed_methods, reason = "deadlines in another NIC's clock go on by real time")]
fn now() -> Instant {
    Instant::now()
}

fn socket(domain: i32, kind: i32, protocol: i32) -> UdpSocket {
    // SAFETY: plain values; the descriptor is new and nobody else's.
    let fd = unsafe {
        let fd = libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    };
    UdpSocket::from(fd)
}

/// All that passes through an interface, either way.
fn capture(interface: &str) -> UdpSocket {
    use std::os::fd::AsRawFd;
    let every = (libc::ETH_P_ALL as u16).to_be();
    let tap = socket(libc::AF_PACKET, libc::SOCK_DGRAM, every.into());
    let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).unwrap();
    // SAFETY: an address of that family, all zero but for what is set; it is read during the call only.
    unsafe {
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = every;
        to.sll_ifindex = index.trim().parse().unwrap();
        let len = size_of::<libc::sockaddr_ll>() as u32;
        let done = libc::bind(tap.as_raw_fd(), (&raw const to).cast(), len);
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
    tap
}

/// Who sees all and may say all, but does not know the server's key.
struct Forger {
    out: UdpSocket,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// The connection that is attacked, and a place in the server's memory.
    server: Remote,
    client: QpNumber,
    /// Forged so far: each frame gets a number of its own.
    forged: u32,
}

/// Listens, and attacks as it is told; says how many frames an attack took.
fn forge(interface: &str) {
    let tap = capture(interface);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(len) = tap.recv(&mut bytes) {
            let Ok(parsed) = Packet::parse_ip(&bytes[..len]) else { continue };
            if parsed.packet.flow.hop_limit == FORGED_TTL && parsed.packet.flow.src != Gid::from(SERVER) {
                continue;
            }
            let payload = bytes[parsed.payload].to_vec();
            let one = Seen { packet: parsed.packet, payload, at: now() };
            all.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    });
    say("listening");
    let out = socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW);
    let (server, client) = (Remote::parse(&listen().unwrap()), Remote::parse(&listen().unwrap()));
    let mut forger = Forger { out, seen, server, client: client.qpn, forged: 0 };
    while let Some(line) = listen() {
        let number = match line.split_once(' ') {
            // Another process has the server's place.
            Some(("instead", remote)) => {
                let to = Remote::parse(remote);
                forger.replay(|p| p.bth.dest_qp = to.qpn)
            }
            Some(("sweep", remote)) => forger.sweep(&Remote::parse(remote)),
            _ => forger.attack(&line),
        };
        say(&number.to_string());
    }
}

fn operation(p: &Packet) -> Operation {
    p.bth.opcode.operation()
}

fn is_record(p: &Packet) -> bool {
    StarEth::from(p.irn).has(StarEth::MIGRATION)
}

fn star(operation: Operation) -> Opcode {
    Opcode::new(Service::Star, operation)
}

impl Forger {
    fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the client has said to the server, about this connection.
    fn heard(&self) -> Vec<Seen> {
        let of_client = |p: &Packet| p.flow.src == Gid::from(CLIENT) && p.bth.dest_qp == self.server.qpn;
        self.all().into_iter().filter(|s| of_client(&s.packet)).collect()
    }

    /// The newest of the client's packets of this kind.
    fn newest(&self, kind: Operation, posted: bool) -> Seen {
        let fits = |p: &Packet| operation(p) == kind && StarEth::from(p.irn).has(StarEth::POSTED) == posted;
        let heard = self.heard();
        heard.into_iter().rev().find(|s| fits(&s.packet)).unwrap_or_else(|| panic!("no {kind:?} was seen"))
    }

    /// The server's clock as it must be now, by its newest answer.
    fn clock(&self) -> u32 {
        let answer = |p: &Packet| {
            p.flow.src == Gid::from(SERVER)
                && p.bth.dest_qp == self.client
                && matches!(operation(p), Operation::RemoteDataAnswer | Operation::GetDataAnswer)
                && Answer::of_aeth(p.aeth).is_some()
        };
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = all.iter().rev().find(|s| answer(&s.packet)).expect("an answer was seen");
        Stamp::from(newest.packet.irn).clock.wrapping_add(newest.at.elapsed().as_micros() as u32)
    }

    fn send(&mut self, packet: &Packet, payload: &[u8]) -> u32 {
        self.forged += 1;
        let mut packet = *packet;
        packet.flow.hop_limit = FORGED_TTL;
        let mut bytes = vec![0; packet.frame_len()];
        let extra = WireExtra::with_ipv4_id(1 + self.forged as u16 % 60_000);
        assert_eq!(packet.emit_frame(&extra, payload, &mut bytes), bytes.len());
        let to = SocketAddr::new(packet.flow.dst.ip(), 0);
        assert_eq!(self.out.send_to(&bytes, to).unwrap(), bytes.len());
        1
    }

    /// All that the client has said, once more, with a change.
    fn replay(&mut self, change: impl Fn(&mut Packet)) -> u32 {
        let mut sent = 0;
        for mut seen in self.heard() {
            if seen.packet.bth.opcode.is_of(Service::Star) && operation(&seen.packet) != Operation::Hello {
                change(&mut seen.packet);
                sent += self.send(&seen.packet, &seen.payload);
            }
        }
        sent
    }

    /// The ticket of the connection's first life.
    fn first_ticket(&self) -> Ticket {
        let heard = self.heard();
        heard
            .iter()
            .find(|s| operation(&s.packet) == Operation::RemoteData)
            .expect("data was seen")
            .packet
            .ticket
    }

    fn replay_if(&mut self, is_one: impl Fn(&Packet) -> bool) -> u32 {
        let all: Vec<_> = self.heard().into_iter().filter(|s| is_one(&s.packet)).collect();
        all.iter().map(|s| self.send(&s.packet, &s.payload)).sum()
    }

    /// The other side's hello or record, as it is or with a change: to the server, or to the client.
    fn agreement(&mut self, kind: Operation, to_server: bool, change: impl Fn(&mut Packet)) -> u32 {
        let (from, to) = if to_server { (CLIENT, self.server.qpn) } else { (SERVER, self.client) };
        let is_of = |p: &Packet| p.flow.src == Gid::from(from) && p.bth.dest_qp == to && operation(p) == kind;
        let is_one = |s: &Seen| is_of(&s.packet) && (kind == Operation::Hello || is_record(&s.packet));
        let mut found = self.all().into_iter().find(is_one).expect("how the two agreed was seen");
        change(&mut found.packet);
        self.send(&found.packet, &found.payload)
    }

    /// Requests of plain RC over all numbers of a server's process whose client has not come yet: as the
    /// client, whose PSN nobody has told, and with the right PSN from elsewhere.
    fn sweep(&mut self, server: &Remote) -> u32 {
        let mut rng = fastrand(self.forged);
        let opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
        let reth = Reth { va: server.addr, rkey: Key(server.rkey), len: 64 };
        let first = server.qpn.get() & !0xffff;
        let others =
            (first..=first | 0xffff).step_by(16).map(|number| (QpNumber::new(number), CLIENT, false));
        let own = (0..64).flat_map(|_| [(server.qpn, CLIENT, false), (server.qpn, FORGER, true)]);
        let mut sent = 0;
        for (dest_qp, from, knows) in others.chain(own) {
            // Another one than the right one: guesses that are right are not the question.
            let psn = if knows { FIRST_PSN } else { (rng() as u32 & 0xff_ffff).max(FIRST_PSN + 1) };
            let bth = Bth { opcode, dest_qp, psn: Psn::new(psn), ack_req: true, ..Bth::default() };
            let flow =
                Flow { src: Gid::from(from), dst: Gid::from(SERVER), src_port: 50_000, ..Flow::default() };
            let packet = Packet { flow, bth, reth, payload_len: 64, ..Packet::default() };
            sent += self.send(&packet, &[0xee; 64]);
        }
        sent
    }

    /// A packet with a deadline that is believed, and with a number that the history does not know.
    fn fresh(&self, like: &Packet) -> Packet {
        self.fresh_at(self.clock(), like)
    }

    fn fresh_at(&self, clock: u32, like: &Packet) -> Packet {
        let psn = like.bth.psn.add(100_000 + self.forged);
        let deadline = clock.wrapping_add(AHEAD);
        Packet { bth: Bth { psn, ..like.bth }, reth: Reth { len: deadline, ..like.reth }, ..*like }
    }

    fn attack(&mut self, name: &str) -> u32 {
        let strange = Gid::from(FORGER);
        match name {
            "an invented ticket" => {
                let write = self.newest(Operation::RemoteData, false);
                let mut rng = fastrand(self.forged);
                let mut sent = 0;
                for n in 0..100 {
                    let mut packet = self.fresh(&write.packet);
                    packet.ticket = Ticket { word: packet.ticket.word, seal: rng() };
                    if n % 2 == 1 {
                        packet.ticket.word = rng();
                    }
                    sent += self.send(&packet, &write.payload);
                }
                sent
            }
            "a flipped bit" => {
                let write = self.newest(Operation::RemoteData, false);
                let mut sent = 0;
                // But for two bits that are reserved and have no meaning; the seal covers them as well.
                for bit in 0..128 {
                    let mut packet = self.fresh(&write.packet);
                    let whole = u128::from(packet.ticket.word) << 64 | u128::from(packet.ticket.seal);
                    let whole = whole ^ 1 << bit;
                    packet.ticket = Ticket { word: (whole >> 64) as u64, seal: whole as u64 };
                    sent += self.send(&packet, &write.payload);
                }
                sent
            }
            "another address" => self.replay(|p| p.flow.src = strange),
            "a replay" => self.replay(|_| {}),
            "a replay of the earlier life" => {
                let first = self.first_ticket();
                self.replay_if(|p| p.ticket == first && operation(p) != Operation::CqePacket)
            }
            "a foreign key" => self.with_write(|p, _| p.reth.rkey = Key(p.reth.rkey.0 ^ 0x5500)),
            "out of bounds" => self.with_write(|p, end| p.reth.va = end),
            "a deadline far ahead" => self.with_write(|p, _| p.reth.len = p.reth.len.wrapping_add(60_000)),
            "what is done" => self.with_posted(0),
            "what was never posted" => self.with_posted(1),
            "packets of plain RC" => {
                let mut sent = 0;
                for psn in 0..8 {
                    let like = self.newest(Operation::RemoteData, false).packet;
                    let opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
                    let bth = Bth { opcode, psn: like.bth.psn.add(psn), ack_req: true, ..like.bth };
                    let reth = Reth { va: self.server.addr, rkey: Key(self.server.rkey), len: 64 };
                    let packet = Packet { flow: like.flow, bth, reth, payload_len: 64, ..Packet::default() };
                    sent += self.send(&packet, &[0xee; 64]);
                }
                sent
            }
            "a hello" => {
                let hello =
                    self.heard().into_iter().find(|s| operation(&s.packet) == Operation::Hello).unwrap();
                let bth = Bth { psn: hello.packet.bth.psn.add(5), ..hello.packet.bth };
                self.send(&Packet { bth, ..hello.packet }, &hello.payload)
            }
            "a late hello" => self.agreement(Operation::Hello, true, |_| {}),
            "a late hello for the client" => self.agreement(Operation::Hello, false, |_| {}),
            "a forged hello for the client" => {
                self.agreement(Operation::Hello, false, |p| p.bth.psn = p.bth.psn.add(5))
            }
            "a forged record for the client" => {
                self.agreement(Operation::WqePacket, false, |p| p.bth.psn = p.bth.psn.add(5))
            }
            "a late record for the client" => self.agreement(Operation::WqePacket, false, |_| {}),
            "a record" => {
                let like = self.newest(Operation::RemoteData, false).packet;
                let bth = Bth { opcode: star(Operation::WqePacket), ..like.bth };
                let irn = StarEth::new(Op::Control, StarEth::MIGRATION, 0, 0).into();
                let packet = Packet { flow: like.flow, bth, irn, payload_len: 48, ..Packet::default() };
                self.send(&packet, &[0; 48])
            }
            "work from a stranger" => self.with_work(|p| p.flow.src = strange),
            "work out of turn" => self.with_work(|p| p.bth.psn = p.bth.psn.add(1000)),
            "a flood" => self.flood(),
            "a completion for nothing" => self.complete_nothing(),
            // Frames for the address from which nobody should be made to hear one.
            "heard by the stranger" => {
                self.all().iter().filter(|s| s.packet.flow.dst == strange).count() as u32
            }
            other => panic!("no attack {other}"),
        }
    }

    /// READs and WRITEs with a right ticket, as many as can be sent.
    fn flood(&mut self) -> u32 {
        let like = self.newest(Operation::RemoteData, false);
        let get = Packet {
            bth: Bth { opcode: star(Operation::GetData), ..like.packet.bth },
            irn: StarEth::new(Op::Read, 0, 8, 0).into(),
            payload_len: 0,
            ..like.packet
        };
        let mut sent = 0;
        // Its answers come late: the clock is heard before.
        let (clock, start) = (self.clock(), now());
        for n in 0..FLOOD {
            let reads = n % 2 == 0;
            let clock = clock.wrapping_add(start.elapsed().as_micros() as u32);
            let packet = self.fresh_at(clock, if reads { &get } else { &like.packet });
            let payload = if reads { &[][..] } else { &like.payload[..] };
            let packet =
                Packet { reth: Reth { va: self.server.addr + APART as u64, ..packet.reth }, ..packet };
            sent += self.send(&packet, payload);
        }
        sent
    }

    /// The completion that comes next, for a receive that was never posted.
    fn complete_nothing(&mut self) -> u32 {
        // Of the life that the connection is in; what was captured comes to hand a little later.
        let first = self.first_ticket();
        let is_one = |s: &Seen| {
            operation(&s.packet) == Operation::CqePacket && !s.payload.is_empty() && s.packet.ticket != first
        };
        let last = loop {
            if let Some(last) = self.heard().into_iter().rev().find(is_one) {
                break last;
            }
        };
        let mut packet = last.packet;
        let count = last.payload.len() / Cqe::LEN;
        packet.bth.psn = packet.bth.psn.add(count as u32);
        packet.irn = StarEth::new(Op::Control, 0, 1, 0).into();
        packet.payload_len = Cqe::LEN as u32;
        let entry =
            Cqe { flags: Cqe::RECV_QUEUE, status: 0, op: Op::Recv, index: 1000, len: 8, immediate: 0 };
        self.send(&packet, &entry.bytes())
    }

    /// The client's WRITE once more, but for a change; what lies behind the region's end comes along.
    fn with_write(&mut self, change: impl Fn(&mut Packet, u64)) -> u32 {
        let write = self.newest(Operation::RemoteData, false);
        let mut packet = self.fresh(&write.packet);
        change(&mut packet, self.server.addr + common::MEMORY as u64 - 4);
        self.send(&packet, &write.payload)
    }

    /// Data for a receive that is so much newer than the one that the client has filled.
    fn with_posted(&mut self, newer: u32) -> u32 {
        let send = self.newest(Operation::RemoteData, true);
        let mut packet = self.fresh(&send.packet);
        let place = Place::of_va(packet.reth.va);
        packet.reth.va = Place { index: place.index + newer, ..place }.va();
        self.send(&packet, &send.payload)
    }

    /// What the server has told the client, but for a change.
    fn with_work(&mut self, change: impl Fn(&mut Packet)) -> u32 {
        let told = |p: &Packet| {
            p.flow.src == Gid::from(SERVER)
                && p.bth.dest_qp == self.client
                && operation(p) == Operation::WqePacket
                && StarEth::from(p.irn).has(StarEth::RECV_QUEUE)
        };
        let all = self.all();
        let mut work = all.into_iter().rev().find(|s| told(&s.packet)).expect("a receive was told");
        change(&mut work.packet);
        self.send(&work.packet, &work.payload)
    }
}

/// What forged frames have, so that the forger does not remember them as the client's.
const FORGED_TTL: u8 = 33;

/// Numbers without meaning.
fn fastrand(seed: u32) -> impl FnMut() -> u64 {
    let mut state = u64::from(seed) + 1;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Namespaces of this run: of the server, of the clients, and the network between them.
struct Net {
    names: [String; 3],
}

fn ip(words: &str) -> Result<(), String> {
    let done = Command::new("ip").args(words.split(' ')).output().map_err(|e| format!("ip: {e}"))?;
    let why = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(format!("ip {words}: {why}")) }
}

impl Net {
    /// `Err` with the reason where this may not be done.
    fn new() -> Result<Net, String> {
        let stem = format!("advs{}", std::process::id());
        let net = Net { names: ["s", "c", "n"].map(|end| format!("{stem}{end}")) };
        let [server, client, between] = &net.names;
        for name in &net.names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        ip(&format!("-n {between} link add br0 type bridge"))?;
        for (name, port, address) in [(server, "s0", SERVER), (client, "c0", CLIENT)] {
            ip(&format!("link add {port} netns {between} type veth peer name veth0 netns {name}"))?;
            // Otherwise a veth carries several frames as one, which no wire does.
            ip(&format!("-n {name} link set veth0 gso_max_segs 1"))?;
            ip(&format!("-n {between} link set {port} gso_max_segs 1"))?;
            ip(&format!("-n {between} link set {port} master br0"))?;
            ip(&format!("-n {between} link set {port} up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev veth0"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
        }
        ip(&format!("-n {between} addr add {FORGER}/24 dev br0"))?;
        ip(&format!("-n {between} link set br0 up"))?;
        Ok(net)
    }

    fn start(&self, name: usize, role: &[&str]) -> Helper {
        Helper::start_via(&format!("ip netns exec {}", self.names[name]), role)
    }

    /// An end of a connection, and what its peer must know.
    fn end(&self, at: Ipv4Addr, folder: &Path) -> (Helper, Remote) {
        let (name, transport) = if at == SERVER { (0, "star-server") } else { (1, "star-client") };
        let directory = folder.display();
        let settings = format!("address={},directory={directory},transport={transport}", IpAddr::from(at));
        let mut helper = self.start(name, &["end", &settings]);
        let remote = Remote::parse(&helper.hear());
        (helper, remote)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Tells an end something, and waits until it is done.
fn tell(end: &mut Helper, line: &str) {
    end.tell(line);
    assert_eq!(end.hear(), "done", "{line}");
}

fn count(end: &mut Helper, name: &str) -> u64 {
    end.tell(&format!("count {name}"));
    end.hear().parse().unwrap()
}

/// A server and its client, with a connection.
struct Pair {
    server: Helper,
    client: Helper,
    remotes: [Remote; 2],
}

impl Pair {
    fn new(net: &Net, folder: &Path) -> Pair {
        Pair::swept(net, folder, |_, _| {})
    }

    /// The same; what happens between the server's connecting and the client's.
    fn swept(net: &Net, folder: &Path, between: impl FnOnce(&mut Helper, &Remote)) -> Pair {
        let (mut server, at) = net.end(SERVER, folder);
        let (mut client, from) = net.end(CLIENT, folder);
        server.tell(&from.line());
        assert_eq!(server.hear(), "connected");
        between(&mut server, &at);
        client.tell(&at.line());
        assert_eq!(client.hear(), "connected");
        let mut pair = Pair { server, client, remotes: [at, from] };
        tell(&mut pair.client, "fill 0 16384 3");
        tell(&mut pair.client, &format!("write 0 {APART} 1"));
        for end in [&mut pair.server, &mut pair.client] {
            assert_eq!(count(end, "star_agreed"), 1);
        }
        pair
    }

    /// Everything that a client can ask for, once.
    fn work(&mut self) {
        tell(&mut self.server, &format!("recv {RECEIVED} 2000"));
        for line in ["send 0 2000", "write 0 0 1", "read 4096 0", &format!("add 4096 {COUNTED}")] {
            tell(&mut self.client, line);
        }
        tell(&mut self.server, "wait 1");
    }

    /// Makes an attack until the counter of the end that it is for has gone up by so much.
    fn provoke(&mut self, forger: &mut Helper, attack: &str, at_server: bool, counter: &str, least: u64) {
        let before = count(if at_server { &mut self.server } else { &mut self.client }, counter);
        for _ in 0..ATTEMPTS {
            // Its clock is heard again.
            tell(&mut self.client, &format!("write 0 {APART} 1"));
            forger.tell(attack);
            let sent: u64 = forger.hear().parse().unwrap();
            assert!(sent >= least, "{attack}: {sent} frames");
            let end = if at_server { &mut self.server } else { &mut self.client };
            if (0..LOOKS).any(|_| count(end, counter) >= before + least) {
                println!("{attack}: {sent} frames, {counter} {}", count(end, counter) - before);
                tell(&mut self.server, &format!("check {WRITTEN} {USED} {OTHER}"));
                tell(&mut self.server, "nothing");
                tell(&mut self.client, "nothing");
                return;
            }
        }
        panic!("{attack}: {counter} did not go up");
    }
}

fn resident(helper: &Helper) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", helper.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The queue pairs begin another life, with other tickets: those of the first one open nothing.
fn in_another_life(pair: &mut Pair, forger: &mut Helper) {
    tell(&mut pair.server, "anew");
    tell(&mut pair.client, "anew");
    tell(&mut pair.client, &format!("write 0 {APART} 1"));
    assert_eq!(count(&mut pair.server, "star_agreed"), 2);
    tell(&mut pair.server, &format!("fill {WRITTEN} {USED} {OTHER}"));
    pair.provoke(forger, "a replay of the earlier life", true, "star_drop_not_live", 10);
    pair.work();
    tell(&mut pair.server, &format!("check {WRITTEN} 2000 3"));
}

/// Requests of plain RC, over all numbers of a server's process that waits for its client: it stays
/// undecided.
fn before_the_roles_are_settled(net: &Net, folder: &Path, forger: &mut Helper) {
    let mut late = Pair::swept(net, folder, |server, at| {
        let before = count(server, "drop_qp_state");
        forger.tell(&format!("sweep {}", at.line()));
        let sent: u32 = forger.hear().parse().unwrap();
        assert!((0..LOOKS * ATTEMPTS).any(|_| count(server, "drop_qp_state") > before + 64));
        println!("a sweep: {sent} frames, drop_qp_state {}", count(server, "drop_qp_state") - before);
        assert_eq!(count(server, "star_fell_back"), 0);
        tell(server, &format!("fill {WRITTEN} {USED} {OTHER}"));
    });
    tell(&mut late.server, &format!("check {WRITTEN} {USED} {OTHER}"));
    late.work();
    for helper in [late.server, late.client] {
        helper.end();
    }
}

#[test]
fn forgers_in_another_namespace_change_nothing() {
    let net = match Net::new() {
        Ok(net) => net,
        Err(why) => {
            // Not captured, so that the suite counts it.
            let line = format!("SKIPPED: forgers in another namespace: none can be made here: {why}\n");
            return std::io::stdout().write_all(line.as_bytes()).unwrap();
        }
    };
    let folder = folder("star-attacks");
    let mut forger = net.start(2, &["forger", "s0"]);
    assert_eq!(forger.hear(), "listening");
    let mut bystander = Pair::new(&net, &folder);
    let mut pair = Pair::new(&net, &folder);
    forger.tell(&pair.remotes[0].line());
    forger.tell(&pair.remotes[1].line());
    pair.work();
    // The server's program uses its memory for something else.
    tell(&mut pair.server, &format!("fill {WRITTEN} {USED} {OTHER}"));
    tell(&mut bystander.server, &format!("fill {WRITTEN} {USED} {OTHER}"));

    for (attack, at_server, counter, least) in [
        ("an invented ticket", true, "star_drop_ticket", 100),
        ("a flipped bit", true, "star_drop_ticket", 128),
        ("another address", true, "star_drop_ticket", 4),
        ("a replay", true, "star_drop_expired", 3),
        ("a replay", true, "star_cqe_duplicate", 1),
        ("a foreign key", true, "star_nak_region", 1),
        ("out of bounds", true, "star_nak_region", 1),
        ("a deadline far ahead", true, "star_drop_expired", 1),
        ("what is done", true, "star_nak_not_posted", 1),
        ("what was never posted", true, "star_nak_not_posted", 1),
        ("packets of plain RC", true, "drop_qp_state", 4),
        ("a hello", true, "drop_hello", 1),
        ("a late hello", true, "star_hellos_sent", 1),
        ("a late hello for the client", false, "drop_hello", 1),
        ("a forged hello for the client", false, "drop_hello", 1),
        ("a record", true, "drop_hello", 1),
        ("a forged record for the client", false, "drop_hello", 1),
        // It is acknowledged once more, and the server has heard that.
        ("a late record for the client", true, "rx_packets", 1),
        ("work from a stranger", false, "drop_source", 1),
        ("work out of turn", false, "star_wqe_gap", 1),
    ] {
        bystander.client.tell(&format!("write 0 {APART} 20"));
        pair.provoke(&mut forger, attack, at_server, counter, least);
        assert_eq!(bystander.client.hear(), "done");
    }
    // A flood takes no memory, and others go on meanwhile.
    let before = resident(&pair.server);
    bystander.client.tell(&format!("write 0 {APART} 200"));
    forger.tell("a flood");
    assert_eq!(forger.hear(), FLOOD.to_string());
    assert_eq!(bystander.client.hear(), "done");
    let after = resident(&pair.server);
    println!("a flood: {FLOOD} frames, the server has {before} KB before and {after} KB after");
    for name in ["star_answers_full", "star_history_full"] {
        println!("a flood: {name} {}", count(&mut pair.server, name));
    }
    assert!(after < before + 1024, "{before} KB, {after} KB");
    // The connection works as before, and nobody was made to hear what he had not asked for.
    tell(&mut pair.server, &format!("check {WRITTEN} {USED} {OTHER}"));
    pair.work();
    tell(&mut pair.server, &format!("check {WRITTEN} 2000 3"));
    forger.tell("heard by the stranger");
    assert_eq!(forger.hear(), "0");
    in_another_life(&mut pair, &mut forger);
    // A completion that is for nothing ends this connection, and no other.
    tell(&mut pair.server, &format!("recv {RECEIVED} 2000"));
    tell(&mut pair.server, &format!("fill {WRITTEN} {USED} {OTHER}"));
    forger.tell("a completion for nothing");
    assert_eq!(forger.hear(), "1");
    assert!((0..LOOKS * ATTEMPTS).any(|_| count(&mut pair.server, "star_cqe_unknown") == 1));
    tell(&mut pair.server, "flushed");
    tell(&mut bystander.client, &format!("write 0 {APART} 20"));

    // The server's process is killed, and another one takes its place: what was captured is for neither.
    pair.server.kill();
    pair.client.kill();
    let mut again = Pair::new(&net, &folder);
    tell(&mut again.server, &format!("fill {WRITTEN} {USED} {OTHER}"));
    let before = count(&mut again.server, "star_drop_ticket");
    let sent: u64 = {
        forger.tell(&format!("instead {}", again.remotes[0].line()));
        forger.hear().parse().unwrap()
    };
    assert!(sent > 10);
    assert!((0..LOOKS * ATTEMPTS).any(|_| count(&mut again.server, "star_drop_ticket") >= before + sent / 2));
    tell(&mut again.server, &format!("check {WRITTEN} {USED} {OTHER}"));
    tell(&mut bystander.server, &format!("check {WRITTEN} {USED} {OTHER}"));
    before_the_roles_are_settled(&net, &folder, &mut forger);
    for helper in [again.server, again.client, bystander.server, bystander.client, forger] {
        helper.end();
    }
    std::fs::remove_dir_all(folder).unwrap();
}
