//! NICs of one host find each other, and leave the network to others.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rma::{
    End, Grant, Memory, Outcome, PathPolicy, Region, Retry, Rights, Rma, Settings, TransferError,
};
use common::*;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const PART: usize = 65_536;

fn counter(rma: &Rma, name: &str) -> u64 {
    rma.counters().1.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
}

/// A NIC with memory that others may use.
struct Host {
    rma: Rma,
    memory: Memory,
    region: Region,
}

fn host(settings: Settings) -> Host {
    let rma = Rma::open(patient(settings)).unwrap();
    let memory = rma.allocate(LEN).unwrap();
    memory.write(0, &pattern(LEN));
    let region = memory.register(0..LEN, Rights::READ | Rights::WRITE).unwrap();
    Host { rma, memory, region }
}

impl Host {
    fn grant(&self, to: &Rma) -> Grant {
        self.region.grant(to.address(), to.pid(), Rights::READ | Rights::WRITE).unwrap()
    }

    /// Reads until both are near.
    fn approach(&self, user: &Rma) {
        let (grant, own) = (self.grant(user), user.allocate(64).unwrap());
        let (start, before) = (Instant::now(), counter(user, "driver_near_tx_messages"));
        while counter(user, "driver_near_tx_messages") == before {
            user.block_on(user.read(&grant, 0, &own, 0..64)).unwrap();
            assert!(start.elapsed() < Duration::from_secs(20), "they find each other: {:?}", user.counters());
        }
    }
}

#[test]
fn bytes_come_and_go_through_shared_memory() {
    let folder = Folder::new("near");
    let (owner, user) = (host(settings(&folder, 1, 1)), host(settings(&folder, 1, 2)));
    owner.approach(&user.rma);
    let (far, near) = (owner.grant(&user.rma), user.rma.allocate(LEN).unwrap());
    let datagrams = counter(&user.rma, "driver_tx_datagrams");
    let bytes = pattern(LEN + 1)[1..].to_vec();
    near.write(0, &bytes);
    user.rma.block_on(user.rma.write(&far, 0, &near, 0..LEN)).unwrap();
    assert_eq!(owner.memory.to_vec(0..LEN), bytes);
    near.write(0, &vec![0; LEN]);
    // The NIC's thread does the work here.
    block_on(user.rma.read(&far, 0, &near, 0..LEN)).unwrap();
    assert_eq!(near.to_vec(0..LEN), bytes);
    assert_eq!(counter(&user.rma, "driver_tx_datagrams"), datagrams, "the network has seen nothing of it");
    assert_eq!(counter(&user.rma, "driver_near_links"), 1);
    assert_eq!(counter(&owner.rma, "driver_near_drop_full"), 0);

    // A wrong key is as wrong as from afar.
    let other = owner.region.grant(user.rma.address(), user.rma.pid() + 1, Rights::READ).unwrap();
    let read = user.rma.read(&other, 0, &near, 0..64);
    let Err(TransferError::Ended(report)) = user.rma.block_on(read) else { panic!("another process's key") };
    assert_eq!(report.end, End::Outcome(Outcome::RemoteAuthenticationFailure));
}

#[test]
fn all_use_all_at_once_and_nothing_is_lost() {
    let folder = Folder::new("crowd");
    let hosts: Vec<Host> = (1..=6).map(|i| host(settings(&folder, 2, i))).collect();
    std::thread::scope(|scope| {
        for user in &hosts {
            let hosts = &hosts;
            scope.spawn(move || {
                let near = user.rma.allocate(hosts.len() * PART).unwrap();
                let others = hosts.iter().filter(|host| host.rma.address() != user.rma.address());
                let grants: Vec<Grant> = others.map(|host| host.grant(&user.rma)).collect();
                for _ in 0..20 {
                    let reads = grants.iter().enumerate().map(|(i, grant)| {
                        let at = i * PART;
                        user.rma.read(grant, 1000, &near, at..at + PART)
                    });
                    for read in user.rma.block_on(all(reads)) {
                        assert_eq!(read.unwrap().bytes, PART as u64);
                    }
                }
                for i in 0..grants.len() {
                    let at = i * PART;
                    assert_eq!(near.to_vec(at..at + PART), pattern(LEN)[1000..1000 + PART]);
                }
            });
        }
    });
    for host in &hosts {
        assert!(counter(&host.rma, "driver_near_links") >= 5, "{:?}", host.rma.counters().1);
        assert_eq!(counter(&host.rma, "driver_near_failed"), 0);
    }
}

#[test]
fn who_has_chosen_the_network_stays_on_it() {
    let folder = Folder::new("udp");
    let user = host(settings(&folder, 3, 1));
    let owner = host(Settings { path: PathPolicy::Udp, ..settings(&folder, 3, 2) });
    let (grant, near) = (owner.grant(&user.rma), user.rma.allocate(64).unwrap());
    for _ in 0..200 {
        user.rma.block_on(user.rma.read(&grant, 0, &near, 0..64)).unwrap();
    }
    assert_eq!(near.to_vec(0..64), pattern(64));
    for host in [&user, &owner] {
        let near = ["links", "rx_messages", "tx_messages", "failed"];
        assert_eq!(near.map(|name| counter(&host.rma, &format!("driver_near_{name}"))), [0; 4]);
    }
}

#[test]
fn a_peer_that_goes_and_comes_back_is_found_again() {
    let folder = Folder::new("back");
    let user = Rma::open(patient(settings(&folder, 4, 1))).unwrap();
    for round in 1..=3 {
        let owner = host(settings(&folder, 4, 2));
        // What was under way to the one before is lost.
        let (grant, near) = (owner.grant(&user), user.allocate(64).unwrap());
        user.block_on(user.read(&grant, 0, &near, 0..64).retry(Retry::times(3))).unwrap();
        owner.approach(&user);
        assert_eq!(counter(&user, "driver_near_links"), round);
    }
}

#[test]
fn both_sleep_and_wake_each_other() {
    let folder = Folder::new("sleep");
    let (owner, user) = (host(settings(&folder, 5, 1)), Rma::open(patient(settings(&folder, 5, 2))).unwrap());
    owner.approach(&user);
    let (grant, near) = (owner.grant(&user), user.allocate(4096).unwrap());
    let bells = counter(&user, "driver_near_bells");
    for _ in 0..20 {
        // Longer than either looks for something to do.
        std::thread::sleep(Duration::from_millis(3));
        user.block_on(user.read(&grant, 0, &near, 0..4096)).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        block_on(user.read(&grant, 0, &near, 0..4096)).unwrap();
    }
    assert!(counter(&user, "driver_near_bells") >= bells + 30, "{:?}", user.counters().1);
}
