//! The NIC as a process of its own, and applications that use it: all real processes. A child is this program
//! again, told by its environment which part to play.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

#[path = "../common/mod.rs"]
mod common;
mod parts;
mod raw;

use adverb_rdma::{On, Rdma};
use adverb_rma::nicd::{Nicd, NicdQuota, NicdSettings, NicdShare};
use adverb_rma::{
    End, Error, Grant, Memory, Op, OpenError, Outcome, Programs, Retry, Rights, Rma, Settings, TransferError,
};
use common::child::Part;
use common::*;
use parts::{application, daemon, family, greedy, vandal};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const PART: &str = "ADVERB_TEST_PART";

/// A child's part: a daemon, or an application with a line of output for each line of input.
#[test]
fn part() {
    let Some(part) = std::env::var_os(PART) else { return };
    let part = part.into_string().unwrap();
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["daemon", address, folder, slots] => daemon(address, folder, slots.parse().unwrap(), 0o600),
        ["shared", address, folder, slots] => daemon(address, folder, slots.parse().unwrap(), 0o666),
        ["greedy", socket] => greedy(Path::new(socket)),
        ["family", socket] => family(Path::new(socket)),
        ["application", socket] => application(Path::new(socket)),
        ["vandal", socket, how] => vandal(Path::new(socket), how),
        _ => panic!("{part}"),
    }
}

fn socket(folder: &Folder, test: u8, host: u8) -> PathBuf {
    folder.0.join(format!("{}.socket", address(test, host)))
}

fn outcome(result: Result<adverb_rma::Report, TransferError>) -> End {
    match result {
        Ok(report) => report.end,
        Err(error) => error.report().unwrap_or_else(|| panic!("{error}")).end,
    }
}

fn read_all(rma: &Rma, grant: &Grant, near: &Memory) -> Result<adverb_rma::Report, TransferError> {
    rma.block_on(rma.read(grant, 0, near, 0..LEN).retry(Retry::times(3)))
}

/// Whether a region is refused, at once or after the turn that the daemon may need to hear of a death.
fn is_gone(user: &Rma, grant: &Grant, near: &Memory) -> bool {
    let start = Instant::now();
    loop {
        let end = outcome(user.block_on(user.read(grant, 0, near, 0..64)));
        let refused = end == End::Outcome(Outcome::RemoteAuthenticationFailure);
        if refused || start.elapsed() > Duration::from_secs(2) {
            return refused;
        }
    }
}

#[test]
fn applications_share_a_nic_and_reach_others() {
    let folder = Folder::new("share");
    let _daemons = [1, 2].map(|host| Part::daemon(&folder, 30, host, 64));
    let user = Rma::open(Settings::attached(socket(&folder, 30, 1))).unwrap();
    assert_eq!((user.address(), user.pid()), (address(30, 1), std::process::id()));
    let near = user.allocate(LEN).unwrap();
    // One at the other daemon, and one at the same.
    for host in [2, 1] {
        let mut owner = Part::application(&socket(&folder, 30, host));
        let name = owner.ask("name");
        assert_eq!(name, format!("{} {}", address(30, host), owner.child.id()));
        let grant = owner.grant_for(&user);
        near.write(0, &[0; LEN]);
        read_all(&user, &grant, &near).unwrap();
        assert_eq!(near.to_vec(0..LEN), pattern(LEN));
        near.write(0, b"from another one");
        block_on(user.write(&grant, 0, &near, 0..16).retry(Retry::times(3))).unwrap();
        assert_eq!(unhex(&owner.ask("bytes")), b"from another one");
        // The grant is this process's: in another process's hands, on the same NIC, it opens nothing.
        let mut thief = Part::application(&socket(&folder, 30, 1));
        let stolen = format!("read {}", hex(&grant.to_bytes()));
        assert_eq!(thief.ask(&stolen), "REMOTE_AUTHENTICATION_FAILURE");
    }
    let (nic, _) = user.counters();
    assert!(nic.ops_ok > 250 && nic.reads_served > 250, "the daemon's counters: {nic:?}");

    // Own mistakes are told, and nothing else is disturbed.
    let far = user.allocate(4096).unwrap();
    assert!(matches!(far.register(0..4097, Rights::READ), Err(Error::Range { .. })));
    let mut regions = Vec::new();
    let refused = loop {
        match far.register(0..4096, Rights::READ) {
            Ok(region) => regions.push(region),
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("quota of 32 regions"), "{refused}");
    assert_eq!(regions.len(), 30, "two memories are there too");
    drop(regions);
    assert!(far.register(0..4096, Rights::READ).is_ok());
    let again = Rma::open(Settings::attached(socket(&folder, 30, 1))).map(drop).unwrap_err();
    assert!(again.to_string().contains("attached already"), "{again}");
    drop(user);
    assert!(
        Rma::open(Settings::attached(socket(&folder, 30, 1))).is_ok(),
        "once it has left it may come again"
    );
}

#[test]
fn a_killed_application_leaves_nothing_behind() {
    let folder = Folder::new("leaves");
    // Slots for two at a time: a third finds room only if a dead one's are free.
    let _daemon = Part::daemon(&folder, 31, 1, 512);
    let path = socket(&folder, 31, 1);
    let user = Rma::open(Settings { slots: 512, ..Settings::attached(&path) }).unwrap();
    let near = user.allocate(LEN).unwrap();
    for _ in 0..3 {
        let mut owner = Part::application(&path);
        let grant = owner.grant_for(&user);
        read_all(&user, &grant, &near).unwrap();
        // Killed in the middle of its own transfers and of this process's.
        let mine = near.register(0..LEN, Rights::READ).unwrap();
        let theirs = mine.grant(user.address(), owner.child.id(), Rights::READ).unwrap();
        owner.ask(&format!("load {}", hex(&theirs.to_bytes())));
        let start = Instant::now();
        let end = user.block_on(async {
            let mut read = Box::pin(user.read(&grant, 0, &near, 0..LEN));
            std::future::poll_fn(|context| {
                assert!(read.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            owner.kill();
            outcome(read.await)
        });
        // Its region is gone at once: an answer, not a silence; unless the read was quicker than the kill.
        let gone = End::Outcome(Outcome::RemoteAuthenticationFailure);
        assert!(end == gone || end.is_ok(), "{end}");
        assert!(start.elapsed() < Duration::from_secs(2));
        assert!(is_gone(&user, &grant, &near));
    }
}

#[test]
fn a_dead_application_is_gone_even_if_its_child_lives() {
    let folder = Folder::new("child");
    let _daemon = Part::daemon(&folder, 35, 1, 16);
    let path = socket(&folder, 35, 1);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let mut owner = Part::application(&path);
    let grant = owner.grant_for(&user);
    let child: i32 = owner.ask("fork").parse().unwrap();
    user.block_on(user.read(&grant, 0, &near, 0..64)).unwrap();
    owner.kill();
    let gone = is_gone(&user, &grant, &near);
    // SAFETY: the process that the owner forked for this test.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert!(gone);
}

#[test]
fn vandals_hurt_only_themselves() {
    let folder = Folder::new("vandals");
    let _daemon = Part::daemon(&folder, 32, 1, 16);
    let path = socket(&folder, 32, 1);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let mut owner = Part::application(&path);
    let grant = owner.grant_for(&user);
    let vandals = [
        ("commands", Some(false)),
        ("overrun", Some(true)),
        ("slot", Some(true)),
        ("packet", Some(true)),
        ("silent", Some(false)),
        ("neighbours", Some(false)),
        ("race", Some(false)),
        ("jam", Some(false)),
        ("crowd", Some(false)),
        // Its answers are taken from its own connection: nothing is asked about that.
        ("flood", None),
    ];
    for (how, let_go) in vandals {
        near.write(0, &[0; LEN]);
        let mut vandal = Part::vandal(&path, how);
        assert_eq!(near.to_vec(0..LEN), [0; LEN], "{how}");
        read_all(&user, &grant, &near).unwrap_or_else(|error| panic!("{how}: {error}"));
        assert!(near.to_vec(0..LEN) == pattern(LEN), "{how}");
        // Others come in and are served.
        let mut late = Part::application(&path);
        assert_eq!(late.ask("name"), format!("{} {}", user.address(), late.child.id()), "{how}");
        // The daemon has answered others meanwhile, so who is still there stays.
        if let Some(let_go) = let_go {
            assert_eq!(vandal.ask(if let_go { "10" } else { "0" }), let_go.to_string(), "{how}");
        }
        vandal.kill();
        read_all(&user, &grant, &near).unwrap();
    }
}

#[test]
fn memory_that_no_host_has_is_not_mapped() {
    let folder = Folder::new("sparse");
    let _daemon = Part::daemon(&folder, 39, 3, 16);
    let path = socket(&folder, 39, 3);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let mut vandal = Part::vandal(&path, "sparse");
    vandal.kill();
    // As soon as the daemon has heard of its end.
    let start = Instant::now();
    while let Err(error) = user.allocate(LEN) {
        assert!(start.elapsed() < Duration::from_secs(10), "{error}");
    }
}

/// A user of no name and no rights.
const STRANGER: u32 = 65_534;

#[test]
fn one_user_leaves_room_for_the_others() {
    // SAFETY: takes and returns plain values.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can be two users");
        return;
    }
    let folder = Folder::new("users");
    let _daemon = Part::shared_daemon(&folder, 37, 1, 256);
    let path = socket(&folder, 37, 1);
    // More processes than the daemon has places for, with two connections each, on which they say nothing.
    let mut children = Part::of_user(STRANGER, format!("family {}", path.display()));
    children.hear("= ");
    let user = Rma::open(Settings { slots: 64, ..Settings::attached(&path) }).unwrap();
    let near = user.allocate(4096).unwrap();
    // They lose their places soon.
    let start = Instant::now();
    let silent = |(name, count): &(&str, u64)| *name == "nicd_silent" && *count == 32;
    while !adverb_rma::nicd::counters(&path).unwrap().iter().any(silent) {
        assert!(start.elapsed() < Duration::from_secs(20), "the silent stay");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Then more processes than there are slots for, each with its full quota.
    let granted: Vec<u32> = (0..5)
        .map(|_| Part::of_user(STRANGER, format!("greedy {}", path.display())))
        .collect::<Vec<_>>()
        .iter_mut()
        .map(|greedy| greedy.hear("= ").parse().unwrap())
        .collect();
    assert_eq!(granted.iter().sum::<u32>(), 512, "half of the slots: {granted:?}");
    let mut owner = Part::application(&path);
    let grant = owner.grant_for(&user);
    user.block_on(user.read(&grant, 0, &near, 0..4096).retry(Retry::times(3))).unwrap();
    assert!(near.to_vec(0..4096) == pattern(LEN)[..4096]);
}

#[test]
fn a_connection_that_was_closed_takes_no_place() {
    let folder = Folder::new("again");
    let _daemon = Part::daemon(&folder, 40, 1, 16);
    let path = socket(&folder, 40, 1);
    // Attached, it has one more connection, which it makes and closes faster than the daemon looks, and while
    // children that become programs hold copies of its descriptors for a moment.
    let _user = Rma::open(Settings::attached(&path)).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        let counted = (0..500).map(|_| adverb_rma::nicd::counters(&path)).find(|counted| match counted {
            Ok(counted) => !counted.contains(&("nicd_turned_away", 0)),
            Err(_) => true,
        });
        ended.store(true, Ordering::Relaxed);
        assert!(counted.is_none(), "{counted:?}");
    });
}

#[test]
fn who_says_nothing_is_let_go() {
    let folder = Folder::new("nothing");
    let _daemon = Part::daemon(&folder, 38, 1, 16);
    let path = socket(&folder, 38, 1);
    let start = Instant::now();
    let silent = raw::connect(&path);
    // Who asks something else has not been let in either.
    let other = raw::connect(&path);
    assert!(raw::say(&other, &[8], None) && !raw::hear(&other).0.is_empty());
    for mute in [&silent, &other] {
        assert!(raw::hear_within(mute, 20).is_empty(), "closed");
    }
    let took = start.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(10), "{took:?}");
    let counted = adverb_rma::nicd::counters(&path).unwrap();
    assert!(counted.contains(&("nicd_silent", 2)), "{counted:?}");
}

#[test]
fn a_dead_daemon_ends_everything_and_its_successor_serves() {
    let folder = Folder::new("daemon");
    let path = socket(&folder, 33, 1);
    assert!(matches!(Rma::open(Settings::attached(&path)).map(drop), Err(OpenError::Daemon(..))));
    let mut daemon = Part::daemon(&folder, 33, 1, 16);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let region = near.register(0..LEN, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    // To itself, through the NIC and its socket.
    let far = user.allocate(64).unwrap();
    near.write(0, b"self");
    user.block_on(user.read(&grant, 0, &far, 0..64)).unwrap();
    assert_eq!(far.to_vec(0..4), b"self");
    // To somebody who does not answer, so that it is under way when the daemon dies.
    let key = grant.key(Op::Read).unwrap().clone();
    let silent = Grant::new(address(33, 19).into(), grant.region(), 64).with_key(Op::Read, key);
    let mut read = Box::pin(user.read(&silent, 0, &far, 0..64));
    block_on(std::future::poll_fn(|context| {
        assert!(read.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    }));
    daemon.kill();
    assert_eq!(outcome(block_on(read)), End::Abandoned);
    assert!(matches!(user.allocate(1), Err(Error::Closed)));
    assert!(matches!(region.rotate_random(), Err(Error::Closed)));
    // A socket that nobody listens at is replaced.
    let _daemon = Part::daemon(&folder, 33, 1, 16);
    let user = Rma::open(Settings::attached(&path)).unwrap();
    assert!(user.allocate(1).is_ok());
}

#[test]
fn a_program_cannot_wait_for_a_word_that_the_daemons_nic_writes() {
    let folder = Folder::new("word");
    let _daemon = Part::daemon(&folder, 36, 1, 64);
    let rma = Arc::new(Rma::open(Settings::attached(socket(&folder, 36, 1))).unwrap());
    let rdma = Rdma::new(Programs::new(rma.clone()));
    rma.block_on(async {
        let memory = rdma.allocate(64).await?;
        let limit = rdma.now().await? + adverb_rdma::Duration::from_ms(20_000);
        let refused = rdma.until(&[On::Word(&memory, 0, 0)], Some(limit)).await.unwrap_err();
        assert!(refused.to_string().contains("a word of memory that a daemon's NIC writes"), "{refused}");
        // Whatever it holds, and even if something else is waited for too.
        memory.store(0, 1).await?;
        assert!(matches!(
            rdma.until(&[On::Stop, On::Word(&memory, 0, 0)], None).await,
            Err(adverb_rdma::Error::Unsupported(_))
        ));
        let soon = rdma.now().await? + adverb_rdma::Duration::from_ms(20);
        assert_eq!(rdma.until(&[On::Stop], Some(soon)).await?, None, "other waits are none of the daemon's");
        Ok::<_, adverb_rdma::Error>(())
    })
    .unwrap();
}

#[test]
fn a_daemon_that_hangs_counts_as_gone() {
    let folder = Folder::new("hangs");
    let daemon = Part::daemon(&folder, 39, 1, 16);
    let path = socket(&folder, 39, 1);
    let patience = Duration::from_millis(900);
    let user = Rma::open(Settings { daemon_patience: patience, ..Settings::attached(&path) }).unwrap();
    let mut other = Part::application(&path);
    let (near, grant) = (user.allocate(LEN).unwrap(), other.grant_for(&user));
    read_all(&user, &grant, &near).unwrap();
    assert!(!user.ended_within(Some(Duration::ZERO)));
    daemon.stop();
    // Both ways to wait: the NIC's thread makes the rounds, and the caller.
    let start = Instant::now();
    let mut read = Box::pin(user.read(&grant, 0, &near, 0..LEN));
    let end = user.block_on(async {
        let first = std::future::poll_fn(|context| read.as_mut().poll(context)).await;
        outcome(first)
    });
    assert_eq!(end, End::Abandoned);
    assert!(
        start.elapsed() >= patience && start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    assert!(user.ended_within(Some(Duration::from_secs(10))));
    let error = user.allocate(1).unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    // It goes on: who has left is gone, who has waited is served.
    daemon.signal(libc::SIGCONT);
    assert_eq!(other.ask("name"), format!("{} {}", address(39, 1), other.child.id()));
    drop(near);
    drop(user);
    // As soon as it has heard of the other's end.
    let start = Instant::now();
    let again = loop {
        match Rma::open(Settings::attached(&path)) {
            Ok(rma) => break rma,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
        }
    };
    let near = again.allocate(LEN).unwrap();
    read_all(&again, &other.grant_for(&again), &near).unwrap();
}

#[test]
fn who_waits_for_something_else_sleeps_although_the_daemon_is_gone() {
    let folder = Folder::new("gone");
    let mut daemon = Part::daemon(&folder, 35, 1, 16);
    let user = Rma::open(Settings::attached(socket(&folder, 35, 1))).unwrap();
    let near = user.allocate(64).unwrap();
    daemon.kill();
    while user.allocate(64).is_ok() {
        std::thread::yield_now();
    }
    drop(near);
    /// Time that this thread has had a processor for.
    fn ran() -> Duration {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    }
    let (before, start) = (ran(), Instant::now());
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut other = None;
    user.block_on(std::future::poll_fn(|context| {
        let (told, waker) = (done.clone(), context.waker().clone());
        other.get_or_insert_with(|| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(400));
                told.store(true, std::sync::atomic::Ordering::Release);
                waker.wake();
            })
        });
        match done.load(std::sync::atomic::Ordering::Acquire) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    }));
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert!(ran() - before < Duration::from_millis(100), "it ran for {:?}", ran() - before);
}

/// `cargo test -p adverb-rma --release --features benchmark-only-cleartext --test nicd without_encryption`
#[test]
#[cfg(all(feature = "benchmark-only-cleartext", not(debug_assertions)))]
fn a_release_build_without_encryption_serves_nobody() {
    let folder = Folder::new("cleartext");
    let (nic, socket) = (settings(&folder, 36, 1), folder.0.join("socket"));
    let quota = NicdQuota { slots: 16, priority: 0, regions: 16 };
    let share = NicdShare::of(&nic.nic, 0o600);
    let settings = NicdSettings { nic, socket, mode: 0o600, quota, quota_by_user: Vec::new(), share };
    let refused = Nicd::open(settings).map(drop).unwrap_err().to_string();
    assert!(refused.contains("benchmark-only-cleartext"), "{refused}");
}

#[test]
fn quotas_that_cannot_be_are_refused() {
    let folder = Folder::new("quotas");
    let open = |quota: NicdQuota| {
        let nic = settings(&folder, 34, 1);
        let socket = folder.0.join("socket");
        let share = NicdShare::of(&nic.nic, 0o600);
        Nicd::open(NicdSettings { nic, socket, mode: 0o600, quota, quota_by_user: Vec::new(), share })
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let good = NicdQuota { slots: 16, priority: 0, regions: 16 };
    assert!(
        open(NicdQuota { slots: 5000, ..good })
            .contains("slots of a process's quota is 5000; give 1 to 1024")
    );
    assert!(open(NicdQuota { slots: 0, ..good }).contains("quota is 0; give 1 to 1024"));
    assert!(open(NicdQuota { priority: 4, ..good }).contains("priority of a process is 4; give 0 to 3"));
    assert!(
        open(NicdQuota { regions: 5000, ..good })
            .contains("regions of a process's quota is 5000; give 1 to 1024")
    );
}
