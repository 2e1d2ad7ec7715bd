//! NICs on threads of this process, over real sockets.
#![expect(clippy::disallowed_methods, reason = "tests of real time")]

mod common;

use adverb_rma::{
    End, Error, Faults, Grant, Op, OpenError, Outcome, PathPolicy, RegionKey, Retry, Rights, Rma, Settings,
    TransferError,
};
use common::*;
use std::time::{Duration, Instant};

fn end(error: TransferError) -> End {
    error.report().unwrap_or_else(|| panic!("refused: {error}")).end
}

fn outcome(error: TransferError) -> Outcome {
    match end(error) {
        End::Outcome(outcome) => outcome,
        other => panic!("{other}"),
    }
}

fn counter(rma: &Rma, name: &str) -> u64 {
    rma.counters().0.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}")).1
}

#[test]
fn bytes_come_and_go_whoever_makes_the_rounds() {
    let folder = Folder::new("both");
    let (owner, user) = pair(&folder, 1);
    let far = owner.allocate(300_000).unwrap();
    let region = far.register(100..300_000, Rights::READ | Rights::WRITE).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ | Rights::WRITE).unwrap();
    let near = user.allocate(250_000).unwrap();
    let bytes = pattern(200_000);
    for turn in 0..4 {
        far.write(150, &bytes);
        near.write(0, &[turn; 250_000]);
        let read = user.read(&grant, 50, &near, 9..200_009);
        let report = if turn % 2 == 0 { user.block_on(read) } else { block_on(read) }.unwrap();
        assert_eq!((report.bytes, report.commands, report.repeats), (200_000, 49, 0));
        assert!(report.total_delay >= report.issue_delay);
        assert_eq!(near.to_vec(9..200_009), bytes);
        assert_eq!((near.to_vec(0..9), near.to_vec(200_009..200_010)), (vec![turn; 9], vec![turn]));

        near.write(5, &bytes);
        let write = user.write(&grant, 1_000, &near, 5..100_005);
        if turn % 2 == 0 { user.block_on(write) } else { block_on(write) }.unwrap();
        assert_eq!(far.to_vec(1_100..101_100), &bytes[..100_000]);
    }
    assert_eq!(counter(&owner, "reads_served"), 4 * 49);
    assert_eq!(counter(&owner, "writes_landed"), 4 * 25);
    assert_eq!(counter(&user, "ops_ok"), 4 * (49 + 25));
}

#[test]
fn many_at_once_on_threads_that_know_nothing_of_each_other() {
    let folder = Folder::new("many");
    let (owner, user) = pair(&folder, 2);
    let far = owner.allocate(1 << 20).unwrap();
    far.write(0, &pattern(1 << 20));
    let region = far.register(0..1 << 20, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    let check = |thread: usize, own_rounds: bool| {
        let near = user.allocate(64 << 10).unwrap();
        let reads = (0..64).map(|i| {
            let at = (thread * 64 + i) * 1000;
            user.read(&grant, at as u64, &near, i * 1000..i * 1000 + 999)
        });
        let reports = if own_rounds { user.block_on(all(reads)) } else { block_on(all(reads)) };
        assert!(reports.iter().all(Result::is_ok), "{reports:?}");
        let expected = pattern(1 << 20);
        for i in 0..64 {
            let at = (thread * 64 + i) * 1000;
            assert_eq!(near.to_vec(i * 1000..i * 1000 + 999), &expected[at..at + 999]);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let check = &check;
            scope.spawn(move || (0..5).for_each(|turn| check(thread, (thread + turn) % 2 == 0)));
        }
    });
}

#[test]
fn keys_decide_who_may_do_what() {
    let folder = Folder::new("keys");
    let (owner, user) = pair(&folder, 3);
    let far = owner.allocate(4096).unwrap();
    let near = user.allocate(4096).unwrap();
    let region = far.register(0..4096, Rights::READ | Rights::REKEY).unwrap();
    assert!(matches!(region.grant(user.address(), user.pid(), Rights::WRITE), Err(Error::NoKey(Op::Write))));
    let grant = region.grant(user.address(), user.pid(), Rights::READ | Rights::REKEY).unwrap();
    let read = |grant: &Grant| user.block_on(user.read(grant, 0, &near, 0..64));
    assert!(read(&grant).is_ok());
    assert!(matches!(
        user.block_on(user.write(&grant, 0, &near, 0..64)),
        Err(TransferError::Refused(Error::NoKey(Op::Write)))
    ));

    // Another process's, another host's, another operation's key: none reads a byte.
    let refused = |grant: &Grant, by: &str| {
        let before = counter(&owner, by);
        near.write(0, &[0x55; 64]);
        assert_eq!(outcome(read(grant).unwrap_err()), Outcome::RemoteAuthenticationFailure);
        assert_eq!(near.to_vec(0..64), [0x55; 64]);
        assert_eq!(counter(&owner, by), before + 1, "{by}");
    };
    refused(&region.grant(user.address(), user.pid() + 1, Rights::READ).unwrap(), "requests_unauthentic");
    refused(&region.grant(address(3, 9), user.pid(), Rights::READ).unwrap(), "requests_unauthentic");
    let rekey = grant.key(Op::Rekey).unwrap().clone();
    refused(
        &Grant::new(owner.address().into(), region.id(), 4096).with_key(Op::Read, rekey),
        "requests_unauthentic",
    );
    let guessed = adverb_rma::RegionId::from_wire(region.id().wire() ^ 1);
    let key = grant.key(Op::Read).unwrap().clone();
    refused(
        &Grant::new(owner.address().into(), guessed, 4096).with_key(Op::Read, key),
        "requests_unknown_region",
    );

    // The peer gives the region another key; then its owner does; each time old grants are worthless.
    user.block_on(user.rekey(&grant, &RegionKey::new([9; 16]))).unwrap();
    refused(&grant, "requests_unauthentic");
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    assert!(read(&grant).is_ok());
    region.rotate_random().unwrap();
    refused(&grant, "requests_unauthentic");
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    assert!(read(&grant).is_ok());
    drop(region);
    refused(&grant, "requests_unknown_region");
}

#[test]
fn faults_are_seen_and_repaired_only_when_asked_for() {
    let folder = Folder::new("faults");
    let faults = Faults { loss: 0.05, duplicate: 0.05, reorder: 0.1, seed: Some(4), ..Faults::default() };
    let open = |host| Rma::open(Settings { faults, ..settings(&folder, 4, host) }).unwrap();
    let (owner, user) = (open(1), open(2));
    let far = owner.allocate(1 << 20).unwrap();
    let region = far.register(0..1 << 20, Rights::READ | Rights::WRITE).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ | Rights::WRITE).unwrap();
    let near = user.allocate(1 << 20).unwrap();
    let bytes = pattern(200_000);
    near.write(0, &bytes);
    let write = user.block_on(user.write(&grant, 0, &near, 0..200_000).retry(Retry::times(20))).unwrap();
    assert!(write.repeats > 0);
    assert_eq!(far.to_vec(0..200_000), bytes);
    let read = block_on(user.read(&grant, 0, &near, 500_000..700_000).retry(Retry::times(20))).unwrap();
    assert!(read.repeats > 0);
    assert_eq!(near.to_vec(500_000..700_000), bytes);
    let failed = user.block_on(user.read(&grant, 0, &near, 0..400_000)).unwrap_err();
    assert_eq!(failed.report().unwrap().repeats, 0);
    assert_eq!(outcome(failed), Outcome::Timeout);
}

#[test]
fn a_silent_peer_is_a_timeout_within_the_bound() {
    let folder = Folder::new("silent");
    let [owner, user] = [1, 2].map(|host| Rma::open(settings(&folder, 5, host)).unwrap());
    let far = owner.allocate(4096).unwrap();
    let region = far.register(0..4096, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    let near = user.allocate(64 << 10).unwrap();
    drop(owner);
    assert!(matches!(far.register(0..1, Rights::READ), Err(Error::Closed)));
    assert!(matches!(region.grant(user.address(), 1, Rights::READ), Err(Error::Closed)));
    let bound = Duration::from_nanos(Settings::new(user.address()).nic.bound().as_ns());
    for own_rounds in [true, false] {
        let start = Instant::now();
        let read = user.read(&grant, 0, &near, 0..4096);
        let failed = if own_rounds { user.block_on(read) } else { block_on(read) }.unwrap_err();
        assert_eq!(outcome(failed), Outcome::Timeout);
        // A processor that others have may take as long again.
        assert!(start.elapsed() < 3 * bound, "{:?}", start.elapsed());
    }
    // The address and its counters are free again, although its memory lives.
    let again = Rma::open(settings(&folder, 5, 1)).unwrap();
    assert!(again.allocate(1).is_ok());
    drop((far, region));
}

#[test]
fn a_peer_that_was_written_to_all_the_time_may_go_come_back_and_be_followed_by_another() {
    let folder = Folder::new("again");
    let open = |host| {
        let settings = Settings { path: PathPolicy::Udp, ..settings(&folder, 9, host) };
        Rma::open(patient(settings)).unwrap()
    };
    let user = open(1);
    let near = user.allocate(64).unwrap();
    let visit = |host: u8| {
        let owner = open(host);
        let far = owner.allocate(64).unwrap();
        far.write(0, &[host; 64]);
        let region = far.register(0..64, Rights::READ).unwrap();
        let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
        // Enough for a connected socket; a message that meets the port of one who has gone is lost with it.
        for _ in 0..200 {
            user.block_on(user.read(&grant, 0, &near, 0..64).retry(Retry::times(2))).unwrap();
        }
        assert_eq!(near.to_vec(0..64), [host; 64]);
        grant
    };
    let gone = visit(2);
    // The network refuses what is sent to the closed port, and says so with a later message.
    let error = user.block_on(user.read(&gone, 0, &near, 0..64)).unwrap_err();
    assert_eq!(outcome(error), Outcome::Timeout);
    visit(3);
    visit(2);
}

#[test]
fn deadlines_and_dropped_futures_end_transfers() {
    let folder = Folder::new("ends");
    let (owner, user) = pair(&folder, 6);
    let far = owner.allocate(4 << 20).unwrap();
    let region = far.register(0..4 << 20, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    let near = user.allocate(4 << 20).unwrap();
    let late = user.block_on(user.read(&grant, 0, &near, 0..4 << 20).within(Duration::ZERO)).unwrap_err();
    assert_eq!((late.report().unwrap().bytes, end(late)), (0, End::Deadline));

    // Polled once and dropped: it ends by itself, and its memory goes with it.
    let mut read = Box::pin(user.read(&grant, 0, &near, 0..4 << 20));
    user.block_on(std::future::poll_fn(|context| {
        assert!(read.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    }));
    let bytes = near.to_vec(0..8);
    drop((read, near));
    assert_eq!(bytes.len(), 8);
    let near = user.allocate(4096).unwrap();
    assert!(user.block_on(user.read(&grant, 0, &near, 0..4096)).is_ok());
    assert!(counter(&user, "ops_ok") < 1024, "a cancelled transfer is not carried out");

    // A NIC that closes ends what waits for it.
    let mut read = Box::pin(user.read(&grant, 0, &near, 0..4096));
    block_on(std::future::poll_fn(|context| {
        let _ = read.as_mut().poll(context);
        std::task::Poll::Ready(())
    }));
    drop(owner);
    drop(user);
    match block_on(read) {
        Ok(report) => assert_eq!(report.bytes, 4096, "it was quicker"),
        Err(error) => assert_eq!(end(error), End::Abandoned),
    }
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let folder = Folder::new("refused");
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings(&folder, 7, 1);
        change(&mut settings);
        Rma::open(settings).map(drop).unwrap_err()
    };
    let text = |error: OpenError| error.to_string();
    assert!(
        text(with(|s| s.window = Some(4095)))
            .contains("solicitation window, in bytes, is 4095; give 4096 to ")
    );
    assert!(text(with(|s| s.slots = 2000)).contains("slot quota of a process: none, or more than there are"));
    assert!(text(with(|s| s.slots = 0)).contains("slot quota"));
    assert!(text(with(|s| s.max_piece = Some(100))).contains("multiple of 64"));
    assert!(text(with(|s| s.faults.loss = 1.5)).contains("chance of a fault"));
    assert!(text(with(|s| s.executor.op_size = 0)).contains("size of a command"));
    assert!(matches!(with(|s| s.address = [192, 0, 2, 1].into()), OpenError::Address(..)));
    assert!(matches!(with(|s| s.address = [0, 0, 0, 0].into()), OpenError::Address(..)));
    assert!(matches!(with(|s| s.state = Some("/proc/nowhere".into())), OpenError::State(..)));
    std::fs::write(folder.0.join(format!("{}.counter", address(7, 1))), "lots").unwrap();
    assert!(matches!(with(|_| ()), OpenError::StateGarbled(_)));
    std::fs::remove_file(folder.0.join(format!("{}.counter", address(7, 1)))).unwrap();

    let (owner, user) = pair(&folder, 7);
    assert!(text(with(|_| ())).contains("adverb nicd"), "the port is taken");
    let (far, near) = (owner.allocate(100).unwrap(), user.allocate(100).unwrap());
    assert!(matches!(owner.allocate(0), Err(Error::Range { .. })));
    for range in [0..101, 5..5, 100..101] {
        assert!(matches!(far.register(range.clone(), Rights::READ), Err(Error::Range { .. })), "{range:?}");
    }
    let said = far.register(90..190, Rights::READ).unwrap_err().to_string();
    assert!(said.contains("100 bytes from 90 on, of 100"), "{said}");
    let region = far.register(0..100, Rights::READ).unwrap();
    let grant = region.grant(user.address(), user.pid(), Rights::READ).unwrap();
    let refused = |transfer| match user.block_on(transfer) {
        Err(TransferError::Refused(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(refused(user.read(&grant, 0, &near, 0..101)), Error::Range { .. }));
    assert!(matches!(refused(user.read(&grant, 0, &near, 7..7)), Error::Range { .. }));
    assert!(matches!(refused(user.read(&grant, 1, &near, 0..100)), Error::Range { .. }));
    assert!(matches!(refused(user.read(&grant, u64::MAX, &near, 0..100)), Error::Range { .. }));
    assert!(matches!(refused(user.read(&grant, 0, &far, 0..100)), Error::Foreign));
    assert!(matches!(refused(user.read(&grant, 0, &near, 0..100).class(2)), Error::Nic(_)));
    // A grant that claims more than the region has: the owner's NIC refuses, and nothing is read.
    let key = grant.key(Op::Read).unwrap().clone();
    let liar = Grant::new(owner.address().into(), region.id(), 1 << 40).with_key(Op::Read, key);
    let failed = user.block_on(user.read(&liar, 90, &near, 0..20)).unwrap_err();
    assert_eq!(outcome(failed), Outcome::RemoteAuthenticationFailure);
    assert_eq!(counter(&owner, "requests_out_of_bounds"), 1);
}
