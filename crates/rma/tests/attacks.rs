//! An attacker on the network of two real NICs: it has seen every message of a session (a packet socket on the loopback, so it must be root), and
//! sends what it likes to either side under the other's address. Nothing that it sends reads or changes a byte, and each message is counted by name.
#![allow(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rma::{
    CongestionConfig, ExecutorConfig, Grant, Memory, Region, RegionKey, Retry, Rights, Rma, Settings,
};
use adverb_wire::one_rma::UDP_PORT;
use common::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const KEY: [u8; 16] = [0x5a; 16];

/// One message as it travelled.
#[derive(Clone)]
struct Seen {
    from: IpAddr,
    to: IpAddr,
    bytes: Vec<u8>,
}

/// Hears everything between two addresses. `None` without the right to.
struct Tap {
    socket: OwnedFd,
    hosts: [IpAddr; 2],
}

impl Tap {
    fn open(hosts: [IpAddr; 2]) -> Option<Tap> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let protocol = (libc::ETH_P_IP as u16).to_be() as i32;
        // SAFETY: plain values; the descriptor returned is ours.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        // SAFETY: as above.
        (fd >= 0).then(|| Tap { socket: unsafe { OwnedFd::from_raw_fd(fd) }, hosts })
    }

    fn take(&self) -> Vec<Seen> {
        let mut all = Vec::new();
        let mut packet = vec![0u8; 1 << 16];
        loop {
            // SAFETY: all zeroes is a valid address; buffer, address and length outlive the call.
            let (len, link) = unsafe {
                let mut link: libc::sockaddr_ll = std::mem::zeroed();
                let mut size = std::mem::size_of_val(&link) as libc::socklen_t;
                let place = (&raw mut link).cast();
                let fd = self.socket.as_raw_fd();
                let len = libc::recvfrom(fd, packet.as_mut_ptr().cast(), packet.len(), 0, place, &mut size);
                (len, link)
            };
            if len < 0 {
                return all;
            }
            // The loopback shows each packet twice, going and coming.
            let ip = &packet[..len as usize];
            if link.sll_pkttype == libc::PACKET_OUTGOING || ip.len() < 28 || ip[9] != 17 {
                continue;
            }
            let header = (ip[0] & 0xf) as usize * 4;
            let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
            let (from, to) = (address(12), address(16));
            let port = u16::from_be_bytes([ip[header + 2], ip[header + 3]]);
            if port == UDP_PORT && self.hosts.contains(&from) && self.hosts.contains(&to) {
                all.push(Seen { from, to, bytes: ip[header + 8..].to_vec() });
            }
        }
    }
}

/// Two NICs, and what lies in their memory.
struct Pair {
    owner: Rma,
    user: Rma,
    far: Memory,
    near: Memory,
    region: Region,
    grant: Grant,
}

impl Pair {
    /// The region's key is always the same, as that of an owner that keeps it; so is its name.
    fn open(folder: &Folder, test: u8) -> Pair {
        // One command at a time, so that each message is a packet of its own.
        let one = CongestionConfig { window_start: 1.0, window_max: 1.0, ..CongestionConfig::default() };
        let open = |host| {
            let settings = patient(settings(folder, test, host));
            let executor = ExecutorConfig { congestion: one, ..settings.executor };
            Rma::open(Settings { executor, ..settings }).unwrap()
        };
        let (owner, user) = (open(1), open(2));
        let (far, near) = (owner.allocate(LEN).unwrap(), user.allocate(LEN).unwrap());
        far.write(0, &pattern(LEN));
        near.write(0, &[0xee; LEN]);
        let region = far.register_with_key(0..LEN, Rights::all(), RegionKey::new(KEY)).unwrap();
        let grant = region.grant(user.address(), user.pid(), Rights::all()).unwrap();
        Pair { owner, user, far, near, region, grant }
    }

    /// A read, a write, and a rekey that leaves the key as it is.
    fn session(&self) {
        self.user.block_on(self.user.read(&self.grant, 0, &self.near, 0..200)).unwrap();
        self.user.block_on(self.user.write(&self.grant, 1000, &self.near, 0..100)).unwrap();
        self.user.block_on(self.user.rekey(&self.grant, &RegionKey::new(KEY))).unwrap();
    }

    fn memory(&self) -> (Vec<u8>, Vec<u8>) {
        (self.far.to_vec(0..LEN), self.near.to_vec(0..LEN))
    }

    fn nic(&self, of: IpAddr) -> &Rma {
        if of == self.owner.address() { &self.owner } else { &self.user }
    }

    /// Sends messages under their senders' addresses, from another port, no faster than they are taken in.
    fn inject(&self, messages: &[Seen]) {
        let mut sockets: BTreeMap<IpAddr, UdpSocket> = BTreeMap::new();
        for row in messages.chunks(64) {
            let before = [&self.owner, &self.user].map(|rma| rma.counters().0.rx_messages);
            for Seen { from, to, bytes } in row {
                let socket = sockets.entry(*from).or_insert_with(|| UdpSocket::bind((*from, 0)).unwrap());
                socket.send_to(bytes, (*to, UDP_PORT)).unwrap();
            }
            // What they answer counts too, so that some of these may still be on their way; no more than their buffers hold.
            eventually("the NICs take in what comes", || {
                let now = [&self.owner, &self.user].map(|rma| rma.counters().0.rx_messages);
                now[0] + now[1] - before[0] - before[1] >= row.len() as u64
            });
        }
    }
}

/// Waits for it, longer than any machine stands still.
fn eventually(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

/// Counts of a NIC that say what became of a message that came, but for those that end an operation well.
fn fates(rma: &Rma) -> BTreeMap<&'static str, u64> {
    let fate = |name: &str| {
        name.starts_with("parse_")
            || name.starts_with("drop_")
            || name.starts_with("requests_")
            || name == "requests"
    };
    rma.counters().0.iter().filter(|(name, _)| fate(name)).collect()
}

fn total(fates: &BTreeMap<&'static str, u64>) -> u64 {
    // Some requests are counted once as authentic and once more for what they were refused for.
    fates.values().sum::<u64>() - fates["requests_without_right"] - fates["requests_out_of_bounds"]
}

fn captured(test: u8, name: &str) -> Option<(Folder, Pair, Vec<Seen>)> {
    let folder = Folder::new(name);
    let pair = Pair::open(&folder, test);
    let Some(tap) = Tap::open([pair.owner.address(), pair.user.address()]) else {
        eprintln!("skipped: to hear the loopback takes root");
        return None;
    };
    pair.session();
    let seen = tap.take();
    // 2 messages of the read, 4 of the write, 4 of the rekey.
    assert_eq!(seen.len(), 10, "every message was seen");
    assert_eq!(pair.far.to_vec(1000..1100), pattern(200)[..100]);
    Some((folder, pair, seen))
}

#[test]
fn a_flipped_bit_anywhere_in_any_message_does_nothing() {
    let Some((_folder, pair, seen)) = captured(50, "flips") else { return };
    let memory = pair.memory();
    for message in &seen {
        let to = pair.nic(message.to);
        let before = fates(to);
        let flips: Vec<Seen> = (0..message.bytes.len() * 8)
            .map(|bit| {
                let mut flipped = message.clone();
                flipped.bytes[bit / 8] ^= 1 << (bit % 8);
                flipped
            })
            .collect();
        pair.inject(&flips);
        eventually("each is counted", || total(&fates(to)) - total(&before) >= flips.len() as u64);
        let after = fates(to);
        assert_eq!(after["requests"], before["requests"], "none is taken for a request");
    }
    assert_eq!(pair.memory(), memory);
    pair.session();
}

#[test]
fn replays_in_any_order_at_once_and_after_a_restart_do_nothing() {
    let Some((folder, pair, seen)) = captured(51, "replays") else { return };
    let memory = pair.memory();
    let mut order = seen.clone();
    let mut attack = |pair: &Pair| {
        for turn in 0..20usize {
            // Each turn another order: rotated, and every other time backwards.
            order.rotate_left(turn % 7 + 1);
            if turn % 2 == 1 {
                order.reverse();
            }
            let counted = || [&pair.owner, &pair.user].map(|rma| total(&fates(rma))).iter().sum::<u64>();
            let before = counted();
            pair.inject(&order);
            eventually("each is counted", || counted() - before >= order.len() as u64);
        }
    };
    attack(&pair);
    assert_eq!(pair.memory(), memory);
    pair.session();

    // Both ends begin anew, with the same addresses, region and key. The process is the same too.
    let (owner, user) = (pair.owner.address(), pair.user.address());
    drop(pair);
    let pair = Pair::open(&folder, 51);
    assert_eq!((pair.owner.address(), pair.user.address()), (owner, user));
    pair.far.write(1000, &[0x77; 100]);
    let memory = pair.memory();
    attack(&pair);
    assert_eq!(pair.memory(), memory, "the write of the earlier life is not done again");
    assert_eq!(pair.owner.counters().0.writes_landed + pair.owner.counters().0.rekeys, 0);
    pair.session();
    drop(pair.region);
}

#[test]
fn a_man_in_the_middle_disturbs_no_operation_that_is_under_way() {
    let Some((_folder, pair, seen)) = captured(52, "middle") else { return };
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Replays, flips, cuts and noise, while the session goes on.
            let mut turn = 0usize;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                turn += 1;
                let mut row = seen.clone();
                for (i, message) in row.iter_mut().enumerate() {
                    let at = (turn * 31 + i * 7) % message.bytes.len();
                    match (turn + i) % 4 {
                        0 => {}
                        1 => message.bytes[at] ^= 1 << (turn % 8),
                        2 => message.bytes.truncate(at),
                        _ => message
                            .bytes
                            .iter_mut()
                            .for_each(|byte| *byte = byte.wrapping_mul(31) ^ turn as u8),
                    }
                }
                pair.inject(&row);
            }
        });
        for round in 0..200usize {
            let mark = round as u8;
            pair.far.write(0, &[mark; 400]);
            let read = pair.user.read(&pair.grant, 0, &pair.near, 0..400).retry(Retry::times(3));
            pair.user.block_on(read).unwrap();
            assert_eq!(pair.near.to_vec(0..400), [mark; 400]);
            pair.near.write(400, &[mark ^ 0xff; 400]);
            let write = pair.user.write(&pair.grant, 2000, &pair.near, 400..800).retry(Retry::times(3));
            pair.user.block_on(write).unwrap();
            assert_eq!(pair.far.to_vec(2000..2400), [mark ^ 0xff; 400]);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(pair.far.to_vec(2400..LEN), pattern(LEN)[2400..]);
    assert_eq!(pair.near.to_vec(800..LEN), [0xee; LEN - 800]);
}
