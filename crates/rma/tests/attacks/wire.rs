//! What an attacker on the wire has: ears (a packet socket on the loopback, so it must be root), and sockets
//! that speak under others' addresses.
#![allow(clippy::print_stderr, reason = "a test")]
#![allow(unsafe_code)]

use adverb_wire::one_rma::UDP_PORT;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// One message as it travelled.
pub struct Seen {
    pub from: IpAddr,
    pub to: IpAddr,
    pub bytes: Vec<u8>,
}

/// Hears everything between two addresses.
pub struct Tap {
    socket: OwnedFd,
    hosts: [IpAddr; 2],
}

impl Tap {
    /// `None`, and a word about it, without the right to.
    pub fn open(hosts: [IpAddr; 2]) -> Option<Tap> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let protocol = (libc::ETH_P_IP as u16).to_be() as i32;
        // SAFETY: plain values; the descriptor returned is ours.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        if fd < 0 {
            eprintln!("skipped: to hear the loopback takes root");
            return None;
        }
        // SAFETY: as above.
        let tap = Tap { socket: unsafe { OwnedFd::from_raw_fd(fd) }, hosts };
        tap.hear_only_these();
        Some(tap)
    }

    /// Has the kernel leave out everybody else's packets, which would push these out of the socket's buffer.
    fn hear_only_these(&self) {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
        let [one, other] = self.hosts.map(|host| match host {
            IpAddr::V4(host) => u32::from(host),
            IpAddr::V6(_) => panic!("hosts of tests have IPv4 addresses"),
        });
        let step = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |at| step(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
        let equal = |k, jt, jf| step(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf);
        let give = |bytes| step(BPF_RET | BPF_K, bytes, 0, 0);
        // Source, then destination: the one or the other.
        let mut steps = [
            load(12),
            equal(one, 1, 0),
            equal(other, 0, 4),
            load(16),
            equal(one, 1, 0),
            equal(other, 0, 1),
            give(u32::MAX),
            give(0),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        let size = size_of_val(&program) as libc::socklen_t;
        let value = (&raw const program).cast();
        // SAFETY: a program whose steps outlive the call.
        let set = unsafe {
            let fd = self.socket.as_raw_fd();
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, value, size)
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    /// What was heard since the last time.
    pub fn take(&self) -> Vec<Seen> {
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

/// Waits for it, longer than any machine stands still.
pub fn eventually(what: &str, done: impl Fn() -> bool) {
    assert!(comes_about(done), "{what}");
}

/// As [`eventually`]; false if it does not.
pub fn comes_about(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
