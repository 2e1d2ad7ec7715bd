//! Two real processes: this one uses memory that a child owns. The child is this program again, told by its
//! environment which part to play.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rma::{End, Grant, Outcome, Retry, Rights, Rma, Settings, TransferError};
use common::child::Part;
use common::*;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const PART: &str = "ADVERB_TEST_OWNER";

/// The child's part: owns a region, answers each line of its input with a grant for the peer it names, and
/// says what its first bytes are.
#[test]
fn owner() {
    let Some(part) = std::env::var_os(PART) else { return };
    let part = part.into_string().unwrap();
    let (address, state) = part.split_once(' ').unwrap();
    let settings = Settings { state: Some(state.into()), ..Settings::new(address.parse().unwrap()) };
    let rma = Rma::open(settings).unwrap();
    let memory = rma.allocate(LEN).unwrap();
    memory.write(0, &pattern(LEN));
    let region = memory.register(0..LEN, Rights::READ | Rights::WRITE).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (address, pid) = line.split_once(' ').unwrap();
        let (peer, pid) = (address.parse().unwrap(), pid.parse().unwrap());
        let grant = region.grant(peer, pid, Rights::READ | Rights::WRITE).unwrap();
        println!("\ngrant {} {}", hex(&grant.to_bytes()), hex(&memory.to_vec(0..16)));
    }
}

struct Owner(Part);

impl Owner {
    fn start(address: IpAddr, state: &Path) -> Owner {
        Owner(Part::play("owner", PART, &format!("{address} {}", state.display())))
    }

    /// A grant for `user`, and the first bytes of the memory.
    fn ask(&mut self, user: &Rma) -> (Grant, Vec<u8>) {
        self.0.tell(&format!("{} {}", user.address(), user.pid()));
        let answer = self.0.hear("grant ");
        let (grant, bytes) = answer.trim().split_once(' ').unwrap();
        (Grant::from_bytes(&unhex(grant)).unwrap(), unhex(bytes))
    }
}

fn counter_of(folder: &Folder, address: IpAddr) -> u64 {
    let text = std::fs::read_to_string(folder.0.join(format!("{address}.counter"))).unwrap();
    text.trim().parse().unwrap()
}

#[test]
fn a_process_reads_and_writes_the_memory_of_another_without_its_help() {
    let folder = Folder::new("two");
    let user = Rma::open(patient(settings(&folder, 20, 1))).unwrap();
    let mut owner = Owner::start(address(20, 2), &folder.0);
    let (grant, _) = owner.ask(&user);
    let near = user.allocate(LEN).unwrap();
    user.block_on(user.read(&grant, 0, &near, 0..LEN).retry(Retry::times(3))).unwrap();
    assert_eq!(near.to_vec(0..LEN), pattern(LEN));
    near.write(0, b"from another one");
    block_on(user.write(&grant, 0, &near, 0..16).retry(Retry::times(3))).unwrap();
    assert_eq!(owner.ask(&user).1, b"from another one");
}

#[test]
fn a_killed_owner_is_a_timeout_and_its_successor_repeats_no_number() {
    let folder = Folder::new("killed");
    let user = Rma::open(settings(&folder, 21, 1)).unwrap();
    let near = user.allocate(LEN).unwrap();
    let bound = Duration::from_nanos(Settings::new(user.address()).nic.bound().as_ns());
    let mut last = 0;
    let mut old: Option<Grant> = None;
    for _ in 0..3 {
        let mut owner = Owner::start(address(21, 2), &folder.0);
        let (grant, _) = owner.ask(&user);
        let counter = counter_of(&folder, address(21, 2));
        assert!(counter > last, "its counters are above those before");
        last = counter;
        if let Some(old) = old.replace(grant.clone()) {
            // Another life, another key.
            let Err(TransferError::Ended(report)) =
                user.block_on(user.read(&old, 0, &near, 0..64).retry(Retry::times(9)))
            else {
                panic!("the old grant is worth nothing");
            };
            assert_eq!(report.end, End::Outcome(Outcome::RemoteAuthenticationFailure));
        }
        // Killed while a row of transfers is under way.
        let reads = user.block_on(async {
            let reads = (0..4).map(|_| user.read(&grant, 0, &near, 0..LEN));
            let kill = std::future::poll_fn(|_| {
                owner.0.child.kill().unwrap();
                std::task::Poll::Ready(())
            });
            let mut reads = Box::pin(all(reads));
            std::future::poll_fn(|context| {
                assert!(reads.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            kill.await;
            let start = Instant::now();
            let reads = reads.await;
            // The windows of a silent peer shrink, so that its transfers fail one after the other: by far
            // sooner than each of a thousand operations would.
            assert!(start.elapsed() < 4 * bound + Duration::from_secs(10), "{:?}", start.elapsed());
            reads
        });
        for read in reads {
            let Err(TransferError::Ended(report)) = read else { panic!("4 MB within a kill") };
            assert_eq!(report.end, End::Outcome(Outcome::Timeout));
        }
        owner.0.child.wait().unwrap();
    }
}
