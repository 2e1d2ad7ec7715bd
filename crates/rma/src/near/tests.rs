//! Visitors who mean no good, and NICs that knock at the same time. What honest ones do is seen in
//! `tests/near.rs`.

use super::link::VERSION;
use super::*;
use adverb_nic::one_rma::OneRmaConfig;
use adverb_os::folders::private_folder;
use adverb_os::shm::{Mirror, PAGE, anonymous_file, sealed_memory};
use adverb_os::unix::Channel;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn address(host: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, host])
}

/// Where the doors of one test are: whoever opens one knocks at all others, and no other test shall.
struct Doors(PathBuf);

impl Doors {
    fn new(test: &str) -> Doors {
        let folder = std::env::temp_dir().join(format!("adverb-near-{}-{test}", std::process::id()));
        private_folder(&folder).unwrap();
        Doors(folder)
    }

    fn host(&self, host: u8) -> Host {
        let config = OneRmaConfig { address: Gid::from(address(host)), ..OneRmaConfig::default() };
        let nic = OneRma::new(config, 1..1 << 40, 1).unwrap();
        let near = Near::open(&self.0, address(host), 128 << 10).unwrap();
        Host { nic, near, counters: DriverCounters::default(), now: Instant::ZERO }
    }
}

impl Drop for Doors {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A NIC without a network.
struct Host {
    nic: OneRma,
    near: Near,
    counters: DriverCounters,
    /// Goes on when the test says so.
    now: Instant,
}

impl Host {
    fn tend(&mut self) {
        self.near.tend(self.now, &mut self.counters);
    }

    fn receive(&mut self) {
        let now = self.now;
        self.near.receive(&mut self.nic, &mut self.counters, || now);
    }

    fn send(&mut self, to: Gid) -> bool {
        let sent = self.near.send(self.now, to, &[0; 500], &mut self.counters);
        self.near.flush(&mut self.counters);
        sent
    }

    fn links(&self) -> usize {
        self.near.links.iter().flatten().count()
    }
}

fn words(version: u32, from: IpAddr) -> Vec<u8> {
    [&b"1RMA"[..], &version.to_le_bytes(), &Gid::from(from).0].concat()
}

fn ring() -> OwnedFd {
    sealed_memory(Mirror::file_len(256 << 10) as usize).unwrap()
}

/// A visitor who introduces itself as it should: its connection, the ring that it reads, and the one that the
/// host reads.
fn visit(host: &mut Host, from: IpAddr) -> (Channel, File, File) {
    let channel = host.near.door.knock(host.near.own).unwrap();
    let own = ring();
    channel.send(&words(VERSION, from), &[own.as_fd()]).unwrap();
    // The door, and then what the visitor says.
    host.tend();
    host.tend();
    let mut buffer = [0; 32];
    let (len, fds) = channel.receive(&mut buffer).unwrap().expect("an answer");
    let [theirs] = <[OwnedFd; 1]>::try_from(fds).unwrap();
    assert_eq!(buffer[..len], words(VERSION, address_of(host)));
    (channel, File::from(own), File::from(theirs))
}

fn address_of(host: &Host) -> IpAddr {
    host.near.own.ip()
}

#[test]
fn wrong_introductions_are_turned_away() {
    let doors = Doors::new("introductions");
    let mut host = doors.host(1);
    let own = address_of(&host);
    let loose = anonymous_file(Mirror::file_len(256 << 10)).unwrap();
    let odd = sealed_memory(PAGE + (256 << 10) + 64).unwrap();
    let short = sealed_memory(PAGE + 4096).unwrap();
    let good = ring();
    let other = address(2);
    let right = words(VERSION, other);
    let wrong: [(&[u8], Vec<&OwnedFd>); 9] = [
        (&[1], vec![]),
        (&right, vec![]),
        (&right, vec![&good, &good]),
        (&right, vec![&loose]),
        (&right, vec![&odd]),
        (&right, vec![&short]),
        (&words(VERSION + 1, other), vec![&good]),
        (&words(VERSION, own), vec![&good]),
        (&right[..23], vec![&good]),
    ];
    for (i, (words, fds)) in wrong.into_iter().enumerate() {
        let channel = host.near.door.knock(host.near.own).unwrap();
        let fds: Vec<_> = fds.into_iter().map(|fd| fd.as_fd()).collect();
        channel.send(words, &fds).unwrap();
        host.tend();
        host.tend();
        assert_eq!((host.counters.near_failed, host.counters.near_links, host.links()), (i as u64 + 1, 0, 0));
        assert!(channel.is_closed());
    }
    visit(&mut host, other);
    assert_eq!((host.counters.near_links, host.links()), (1, 1));
}

#[test]
fn silent_visitors_take_few_places_and_not_for_long() {
    let doors = Doors::new("silent");
    let mut host = doors.host(3);
    let mut visitors = Vec::new();
    for _ in 0..LINKS_MAX + 30 {
        // The queue at the door is short.
        visitors.push(host.near.door.knock(host.near.own).unwrap());
        host.tend();
    }
    assert_eq!((host.links(), host.counters.near_failed), (LINKS_MAX, 30));
    // From when they are first seen to say nothing.
    host.tend();
    host.now += Duration::from_ms(199);
    host.tend();
    assert_eq!(host.links(), LINKS_MAX);
    host.now += Duration::from_ms(1);
    host.tend();
    assert_eq!(host.links(), 0, "they are let go");
    visit(&mut host, address(4));
    assert_eq!(host.links(), 1);
}

#[test]
fn nonsense_in_a_ring_ends_the_link_and_nothing_else() {
    let doors = Doors::new("nonsense");
    let mut host = doors.host(5);
    let mut random = fastrand::Rng::with_seed(7);
    let peer = Gid::from(address(6));
    for round in 0..300 {
        let (channel, reads, writes) = visit(&mut host, address(6));
        assert!(host.send(peer), "round {round}: the way is open");
        let mut bytes = vec![0; random.usize(1..2000)];
        random.fill(&mut bytes);
        match round % 3 {
            // What the host reads: the word of the first entry, now and then one that makes sense.
            0 => {
                bytes[0] &= 0x3f;
                writes.write_all_at(&bytes, PAGE as u64).unwrap();
            }
            1 => {
                let word = 100u64 | 8 << 16 | 1 << 24;
                writes.write_all_at(&bytes, PAGE as u64).unwrap();
                writes.write_all_at(&word.to_le_bytes(), PAGE as u64).unwrap();
            }
            // Where this side says it is in the ring that the host writes.
            _ => reads.write_all_at(&random.u64(1..).to_le_bytes(), 256).unwrap(),
        }
        for _ in 0..4 {
            host.receive();
        }
        for _ in 0..1000 {
            host.send(peer);
        }
        host.tend();
        drop(channel);
        while host.links() > 0 {
            host.receive();
            host.tend();
        }
    }
    assert!(host.counters.near_broken > 100, "{:?}", host.counters);
    assert!(host.nic.counters().rx_messages > 0, "what looked like messages was judged by the NIC");
}

#[test]
fn a_full_ring_drops_and_a_peer_that_stands_still_is_left() {
    let doors = Doors::new("full");
    let mut host = doors.host(7);
    let peer = Gid::from(address(8));
    let (channel, _reads, _writes) = visit(&mut host, address(8));
    for _ in 0..1000 {
        assert!(host.send(peer));
    }
    assert!(host.counters.near_drop_full > 0 && host.counters.near_tx_messages > 400);
    for (later, links) in [(0, 1), (199, 1), (1, 0)] {
        host.now += Duration::from_ms(later);
        host.tend();
        assert_eq!(host.links(), links, "it is left after a while");
    }
    assert!(channel.is_closed() && !host.send(peer));
}

/// Both knock before either hears the other, in every order of what follows: one link is left, and nothing
/// that was sent on it is lost.
#[test]
fn two_who_knock_at_the_same_time_keep_one_link() {
    let doors = Doors::new("at-once");
    for order in 0..64u32 {
        let (mut a, mut b) = (doors.host(20), doors.host(21));
        let (to_a, to_b) = (a.near.own, b.near.own);
        for _ in 0..FAITHFUL {
            assert!(!a.send(to_b) && !b.send(to_a));
        }
        let mut sent = [0; 2];
        for step in 0..12 {
            match order >> (step % 6) & 1 {
                0 => a.tend(),
                _ => b.tend(),
            }
            sent[0] += u64::from(a.send(to_b));
            sent[1] += u64::from(b.send(to_a));
        }
        for _ in 0..4 {
            a.tend();
            b.tend();
            sent[0] += u64::from(a.send(to_b));
            sent[1] += u64::from(b.send(to_a));
        }
        for _ in 0..20 {
            a.receive();
            b.receive();
        }
        assert_eq!((a.links(), b.links()), (1, 1), "order {order:b}");
        assert_eq!((a.near.open, b.near.open), (1, 1), "order {order:b}");
        assert_eq!([b.counters.near_rx_messages, a.counters.near_rx_messages], sent, "order {order:b}");
        assert!(sent[0] > 0 && sent[1] > 0);
    }
}

#[test]
fn doors_of_the_dead_are_removed_and_a_closed_one_is_gone() {
    let doors = Doors::new("dead");
    let dead = [address(30), address(32)].map(|address| {
        let door = Door::open(&doors.0, address).unwrap();
        let path = door.path.clone();
        // As if its process had died: its socket is closed, and nobody removes its name.
        std::fs::rename(&path, path.with_extension("kept")).unwrap();
        drop(door);
        std::fs::rename(path.with_extension("kept"), &path).unwrap();
        path
    });
    let host = doors.host(30);
    let other = doors.host(31);
    assert!(dead[0].exists() && !dead[1].exists());
    assert!(other.near.door.knock(host.near.own).is_ok());
    let own = host.near.own;
    drop(host);
    assert_eq!(other.near.door.knock(own).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_folder_that_others_may_enter_is_refused_with_the_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let Doors(folder) = &Doors::new("open");
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = Door::open(folder, address(33)).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("open to others") && error.contains("path udp") && !error.contains("ADVERB"),
        "{error}"
    );
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(Door::open(folder, address(33)).is_ok());
}
