//! Executors above NICs: transfers under loss, delay and NACKs; pacing; deadlines; cancellation.

mod one_rma_world;

use adverb_nic::Error;
use adverb_nic::one_rma::congestion::CongestionConfig;
use adverb_nic::one_rma::executor::{Direction, End, Report, Retry, TransferInit};
use adverb_nic::one_rma::{
    COMMAND_LEN, Command, CommandExecutor, CommandPortal, Completion, ExecutorConfig, OneRmaConfig, Outcome,
    ProcessInit,
};
use adverb_wire::one_rma::Op;
use adverb_wire::{Duration, Instant};
use one_rma_world::*;
use proptest::prelude::*;

const US: fn(u64) -> Duration = Duration::from_us;

/// With one command at a time at first, so that it is known which is the first to fail.
fn executor_config() -> ExecutorConfig {
    let congestion = CongestionConfig { window_start: 1.0, ..CongestionConfig::default() };
    ExecutorConfig { transfers: 64, flows: 16, congestion, ..ExecutorConfig::default() }
}

/// A host's executor in the world, with all of the host's slots.
struct Lab {
    rma: Rma,
    executor: CommandExecutor,
}

impl Lab {
    fn new(seed: u64, config: ExecutorConfig, adjust: &dyn Fn(&mut OneRmaConfig)) -> Lab {
        let rma = Rma::with(2, seed, adjust);
        let host = &rma.hosts[0];
        let mut executor = CommandExecutor::new(config, host.ring).unwrap();
        host.slots.iter().for_each(|slot| executor.add_slot(*slot).unwrap());
        assert_eq!(executor.add_slot(host.slots[0]), Err(Error::Busy));
        Lab { rma, executor }
    }

    fn init(&self, op: Op, at: u64, len: u64) -> TransferInit {
        let command = self.rma.command(0, 1, op, 16);
        TransferInit {
            op,
            class: 0,
            len,
            target: command.target,
            remote_region: command.remote_region,
            remote_offset: at,
            local_region: command.local_region,
            local_offset: at,
            key: command.key,
            deadline: None,
            retry: Retry::NEVER,
            tag: at,
        }
    }

    fn issue(&mut self) {
        while let Some(posting) = self.executor.next_command(self.rma.now) {
            self.executor.check_invariants();
            let posted = self.rma.hosts[0].nic.post(self.rma.now, posting.slot, &posting.command);
            if let Err(error) = posted {
                assert!(self.executor.on_refused(self.rma.now, posting.slot, error));
            }
        }
    }

    /// The next thing that happens; false when nothing is left to happen.
    fn step(&mut self) -> bool {
        self.issue();
        let deadline = self.executor.next_deadline();
        let moved = self.rma.advance(deadline.unwrap_or(Instant::NEVER));
        if let Some(deadline) = deadline
            && !moved
        {
            self.rma.now = self.rma.now.max(deadline);
        }
        while let Some(completion) = self.rma.hosts[0].completion() {
            assert!(self.executor.on_completion(self.rma.now, &completion));
            self.executor.check_invariants();
        }
        self.executor.on_timer(self.rma.now);
        self.executor.check_invariants();
        moved || deadline.is_some()
    }

    fn next_report(&mut self) -> Report {
        let mut goes_on = true;
        loop {
            if let Some(report) = self.executor.next_report() {
                return report;
            }
            assert!(goes_on, "no report");
            goes_on = self.step();
        }
    }

    fn run(&mut self, init: TransferInit) -> Report {
        self.executor.submit(self.rma.now, init).unwrap();
        self.next_report()
    }
}

#[test]
fn large_transfers_arrive_whole_in_both_directions() {
    let mut lab = Lab::new(1, executor_config(), &|_| {});
    let bytes = pattern(2, 50_001);
    lab.rma.hosts[1].memory.write(TARGET + 7, &bytes);
    let report = lab.run(lab.init(Op::Read, 7, bytes.len() as u64));
    assert!(report.end.is_ok(), "{report:?}");
    assert_eq!((report.bytes, report.commands, report.repeats, report.tag), (50_001, 13, 0, 7));
    assert!(report.total_delay >= LATENCY + LATENCY && report.elapsed > report.total_delay);
    assert_eq!(lab.rma.hosts[0].memory.read(LOCAL + 7, bytes.len()), bytes);

    let back = pattern(3, 50_001);
    lab.rma.hosts[0].memory.write(LOCAL + 9, &back);
    let report = lab.run(lab.init(Op::Write, 9, back.len() as u64));
    assert!(report.end.is_ok());
    assert_eq!(lab.rma.hosts[1].memory.read(TARGET + 9, back.len()), back);
    assert_eq!(lab.executor.transfers(), 0);
}

#[test]
fn what_no_nic_could_do_is_refused_before_anything_happens() {
    let mut lab = Lab::new(1, executor_config(), &|_| {});
    let good = || lab.init(Op::Read, 0, 64);
    let bad = [
        TransferInit { len: 0, ..good() },
        TransferInit { class: 2, ..good() },
        TransferInit { op: Op::Rekey, len: 17, ..good() },
        TransferInit { op: Op::Rekey, len: 16, remote_offset: 1, ..good() },
        TransferInit { remote_offset: u64::MAX, ..good() },
        TransferInit { local_offset: u64::MAX - 3, ..good() },
    ];
    for init in bad {
        assert!(matches!(lab.executor.submit(lab.rma.now, init), Err(Error::Invalid(_))));
    }
    // What only the NIC can know ends in the report.
    let report = lab.run(lab.init(Op::Read, PART as u64 - 10, 4096 + 20));
    assert!(matches!(report.end, End::Refused(Error::Invalid(_))), "{report:?}");
    assert_eq!(report.bytes, 0);

    for tag in 0..64 {
        lab.executor.submit(lab.rma.now, TransferInit { tag, ..lab.init(Op::Read, 0, 64) }).unwrap();
    }
    let one_more = lab.init(Op::Read, 0, 64);
    assert_eq!(lab.executor.submit(lab.rma.now, one_more.clone()), Err(Error::TableFull));
    let mut ended: Vec<u64> = (0..64).map(|_| lab.next_report().tag).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..64).collect::<Vec<_>>());
    assert!(lab.run(one_more).end.is_ok());

    let refused = |change: fn(&mut ExecutorConfig)| {
        let mut config = executor_config();
        change(&mut config);
        CommandExecutor::new(config, lab.rma.hosts[0].ring).is_err()
    };
    assert!(refused(|c| c.op_size = 0) && refused(|c| c.op_size = 4097));
    assert!(refused(|c| c.transfers = 0) && refused(|c| c.flows = 0));
    assert!(refused(|c| c.congestion.window_min = 0.0));
}

#[test]
fn a_wrong_key_ends_a_transfer_at_once_whatever_its_retries() {
    let mut lab = Lab::new(1, executor_config(), &|_| {});
    let init = TransferInit {
        key: lab.rma.key(0, 1, Op::Write),
        retry: Retry::times(9),
        ..lab.init(Op::Read, 0, 40_000)
    };
    let report = lab.run(init);
    assert_eq!(report.end, End::Outcome(Outcome::RemoteAuthenticationFailure));
    assert_eq!((report.bytes, report.repeats), (0, 0));
    assert_eq!(
        lab.executor.remote_window(gid(1), Direction::Inbound),
        Some(1.0),
        "says nothing about the network"
    );
}

#[test]
fn retries_are_made_only_when_asked_for() {
    let lossy = |retry| {
        let mut lab = Lab::new(5, executor_config(), &|_| {});
        lab.rma.meddler = Some(Box::new(|number, _, bytes| match number {
            // The first request of each transfer is lost.
            0 => Vec::new(),
            _ => vec![(LATENCY, bytes.to_vec())],
        }));
        lab.run(TransferInit { retry, ..lab.init(Op::Read, 0, 30_000) })
    };
    let failed = lossy(Retry::NEVER);
    assert_eq!((failed.end, failed.repeats), (End::Outcome(Outcome::Timeout), 0));
    assert!(failed.bytes < 30_000);
    let repaired = lossy(Retry::times(1));
    assert_eq!((repaired.end, repaired.repeats, repaired.bytes), (End::Outcome(Outcome::Ok), 1, 30_000));
}

#[test]
fn a_deadline_and_a_cancellation_wait_for_what_is_in_the_nic_and_for_no_more() {
    let silent = || {
        let mut lab = Lab::new(1, executor_config(), &|_| {});
        lab.rma.meddler = Some(Box::new(|_, _, _| Vec::new()));
        lab
    };
    let mut lab = silent();
    let start = lab.rma.now;
    let deadline = Some(start + US(3));
    let report = lab.run(TransferInit { deadline, retry: Retry::times(9), ..lab.init(Op::Read, 0, 60_000) });
    assert_eq!((report.end, report.bytes), (End::Deadline, 0));
    assert_eq!(report.elapsed, US(20), "the one command's timeout");

    let mut lab = silent();
    // One whose turn never came ends at its deadline; one that is cancelled, at once.
    let busy = lab.executor.submit(lab.rma.now, lab.init(Op::Read, 0, 60_000)).unwrap();
    lab.issue();
    let deadline = Some(lab.rma.now + US(1));
    lab.executor.submit(lab.rma.now, TransferInit { deadline, ..lab.init(Op::Read, 1, 60_000) }).unwrap();
    let idle = lab.executor.submit(lab.rma.now, lab.init(Op::Read, 2, 60_000)).unwrap();
    lab.executor.cancel(lab.rma.now, idle).unwrap();
    let report = lab.next_report();
    assert_eq!((report.id, report.end, report.elapsed), (idle, End::Cancelled, Duration::ZERO));
    assert_eq!(lab.executor.cancel(lab.rma.now, idle), Err(Error::NoSuchObject));
    let report = lab.next_report();
    assert_eq!((report.tag, report.end, report.elapsed), (1, End::Deadline, US(1)));
    lab.executor.cancel(lab.rma.now, busy).unwrap();
    lab.executor.cancel(lab.rma.now, busy).unwrap();
    let report = lab.next_report();
    assert_eq!((report.id, report.end, report.commands), (busy, End::Cancelled, 1));
    assert_eq!(lab.executor.outstanding(), 0);
}

#[test]
fn a_nic_that_is_gone_ends_everything() {
    let mut lab = Lab::new(1, executor_config(), &|_| {});
    for at in 0..5 {
        lab.executor.submit(lab.rma.now, lab.init(Op::Write, at, 9_000)).unwrap();
    }
    lab.issue();
    assert!(lab.executor.outstanding() > 0);
    lab.executor.abandon(lab.rma.now);
    lab.executor.check_invariants();
    for _ in 0..5 {
        assert_eq!(lab.executor.next_report().unwrap().end, End::Abandoned);
    }
    assert_eq!((lab.executor.outstanding(), lab.executor.transfers()), (0, 0));
    assert_eq!(lab.executor.next_deadline(), None);
}

/// A NIC of which only the delays matter: every command ends well, after `issue` and then `remote`.
struct Ideal {
    executor: CommandExecutor,
    template: TransferInit,
    now: Instant,
    issue: Duration,
    remote: Duration,
    under_way: Vec<(Instant, Completion)>,
    /// When each command was issued, and where it was to read.
    issued: Vec<(Instant, u64)>,
}

impl Ideal {
    fn new(config: ExecutorConfig, slots: usize) -> Ideal {
        let lab = Lab::new(1, config, &|_| {});
        let mut executor = CommandExecutor::new(config, lab.rma.hosts[0].ring).unwrap();
        lab.rma.hosts[0].slots[..slots].iter().for_each(|slot| executor.add_slot(*slot).unwrap());
        Ideal {
            executor,
            template: lab.init(Op::Read, 0, 4096),
            now: Instant::from_ns(1_000),
            issue: Duration::ZERO,
            remote: US(5),
            under_way: Vec::new(),
            issued: Vec::new(),
        }
    }

    fn submit(&mut self, change: impl FnOnce(&mut TransferInit)) {
        let mut init = self.template.clone();
        change(&mut init);
        self.executor.submit(self.now, init).unwrap();
    }

    fn run(&mut self, until: Instant) {
        loop {
            while let Some(posting) = self.executor.next_command(self.now) {
                let bytes: &[u8; COMMAND_LEN] = &posting.command;
                self.issued.push((self.now, Command::parse(bytes).unwrap().remote_offset));
                let total_delay = self.issue + self.remote;
                let completion = Completion {
                    slot: posting.slot,
                    outcome: Outcome::Ok,
                    issue_delay: self.issue,
                    total_delay,
                    number: 0,
                };
                self.under_way.push((self.now + total_delay, completion));
            }
            let next = self.under_way.iter().map(|(at, _)| *at).chain(self.executor.next_deadline()).min();
            match next.filter(|next| *next <= until) {
                None => break,
                Some(next) => self.now = self.now.max(next),
            }
            let due = self.under_way.extract_if(.., |(at, _)| *at <= self.now).collect::<Vec<_>>();
            for (_, completion) in due {
                assert!(self.executor.on_completion(self.now, &completion));
            }
            self.executor.check_invariants();
        }
        self.now = until;
    }
}

fn fixed_window(operations: f64) -> ExecutorConfig {
    let congestion = CongestionConfig {
        window_min: operations,
        window_start: operations,
        window_max: operations,
        ..CongestionConfig::default()
    };
    ExecutorConfig { congestion, ..executor_config() }
}

#[test]
fn commands_are_spaced_by_window_and_round_trip() {
    for (window, spacing) in [(4.0, 1_250), (2.5, 2_000), (1.0, 5_000), (0.5, 10_000), (0.01, 500_000)] {
        let mut ideal = Ideal::new(fixed_window(window), 64);
        // A little faster than the round trip, so that the pace alone decides.
        ideal.remote = Duration::from_ns(4_900);
        ideal.submit(|init| init.len = 10 * 4096);
        ideal.run(Instant::from_ns(10_000_000));
        let gaps: Vec<u64> = ideal.issued.windows(2).map(|w| (w[1].0 - w[0].0).as_ns()).collect();
        // 2.5 operations may be outstanding as two, each for 4.9 us: pairs.
        let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
        assert_eq!(gaps.len(), 9);
        if window == 2.5 {
            assert!((2_000..2_700).contains(&mean), "{gaps:?}");
        } else {
            assert!(gaps.iter().all(|gap| gap.abs_diff(spacing) <= 1), "{window}: {gaps:?}");
        }
    }
}

#[test]
fn slack_lets_a_late_caller_catch_up_and_no_more() {
    for (slack, expected) in [(Duration::ZERO, 1), (US(2), 2), (US(100), 4)] {
        let mut ideal = Ideal::new(ExecutorConfig { pacing_slack: slack, ..fixed_window(4.0) }, 64);
        ideal.submit(|init| init.len = 40 * 4096);
        // A first command starts the clock; then nobody calls for four of its times.
        ideal.executor.next_command(ideal.now).unwrap();
        ideal.now += US(5);
        let mut found = 0;
        while ideal.executor.next_command(ideal.now).is_some() {
            found += 1;
        }
        // With 100 us of slack the window is the limit: one is out already.
        assert_eq!(found, expected.min(3), "{slack:?}");
    }
}

#[test]
fn small_transfers_do_not_wait_for_large_ones() {
    let mut ideal = Ideal::new(fixed_window(8.0), 64);
    ideal.submit(|init| (init.len, init.tag) = (4 << 20, 1));
    ideal.run(Instant::from_ns(100_000));
    let at = ideal.now;
    ideal.submit(|init| (init.len, init.remote_offset, init.tag) = (64, 1 << 40, 2));
    ideal.run(at + US(20));
    let small = ideal.issued.iter().find(|(_, offset)| *offset == 1 << 40).unwrap();
    assert!(small.0 - at < Duration::from_ns(1_300), "within the time of two commands");
    assert_eq!(ideal.executor.next_report().unwrap().tag, 2);
}

#[test]
fn slots_bound_what_is_outstanding() {
    let mut ideal = Ideal::new(fixed_window(32.0), 3);
    ideal.submit(|init| init.len = 1 << 20);
    for step in 1..50 {
        ideal.run(Instant::from_ns(1_000 + step * 777));
        assert!(ideal.executor.outstanding() <= 3);
    }
    assert_eq!(ideal.executor.outstanding(), 3);
}

#[test]
fn local_congestion_bounds_all_flows_and_remote_only_its_own() {
    let config = ExecutorConfig {
        congestion: CongestionConfig { window_start: 16.0, ..CongestionConfig::default() },
        ..executor_config()
    };
    let mut ideal = Ideal::new(config, 64);
    ideal.issue = US(8);
    ideal.submit(|init| init.len = 1 << 20);
    ideal.run(Instant::from_ns(60_000));
    let inbound = ideal.executor.remote_window(gid(1), Direction::Inbound).unwrap();
    assert!(ideal.executor.local_window() < 8.0 && inbound > 16.0);
    assert_eq!(ideal.executor.remote_window(gid(1), Direction::Outbound), None);

    let split_local = false;
    let congestion = CongestionConfig { split_local, ..config.congestion };
    let mut ideal = Ideal::new(ExecutorConfig { congestion, ..config }, 64);
    ideal.issue = US(8);
    ideal.submit(|init| init.len = 1 << 20);
    ideal.run(Instant::from_ns(60_000));
    assert_eq!(ideal.executor.local_window(), 16.0, "nothing moves it");
    assert!(ideal.executor.remote_window(gid(1), Direction::Inbound).unwrap() < 16.0);
}

#[test]
fn the_table_of_flows_forgets_who_was_idle_for_longest() {
    let mut ideal = Ideal::new(ExecutorConfig { flows: 2, ..fixed_window(1.0) }, 64);
    for to in 1..=3 {
        ideal.submit(|init| init.target = gid(to));
        let now = ideal.now;
        ideal.run(now + US(6));
    }
    assert_eq!(ideal.executor.remote_window(gid(1), Direction::Inbound), None);
    assert!(ideal.executor.remote_window(gid(2), Direction::Inbound).is_some());
    ideal.submit(|init| init.target = gid(2));
    ideal.submit(|init| init.target = gid(3));
    let another = TransferInit { target: gid(4), ..ideal.template.clone() };
    assert_eq!(ideal.executor.submit(ideal.now, another), Err(Error::TableFull));
}

#[test]
fn a_portal_carries_commands_and_gives_everything_back() {
    let mut rma = Rma::with(2, 1, &|c| {
        c.slots = SLOTS + 8;
        c.slots_by_priority = [SLOTS + 8, SLOTS, SLOTS, SLOTS];
    });
    // The world's process has them all; another one gets eight.
    rma.hosts[0].nic.detach(PID).unwrap();
    let pd = rma.hosts[0].pd;
    let nic = &mut rma.hosts[0].nic;
    assert!(matches!(CommandPortal::open(nic, 7, pd, 1), Err(Error::NoSuchObject)));
    nic.attach(ProcessInit { pid: 7, quota: 8, priority: 0 }).unwrap();
    assert!(matches!(CommandPortal::open(nic, 7, pd, 9), Err(Error::TableFull)));
    for _ in 0..20 {
        let portal = CommandPortal::open(nic, 7, pd, 8).unwrap();
        portal.close(nic).unwrap();
    }
    let mut portal = CommandPortal::open(nic, 7, pd, 8).unwrap();
    let local = {
        let lkey = rma.hosts[0].memory.mr.lkey;
        let addr = rma.hosts[0].memory.addr() + LOCAL as u64;
        let (rights, key) = (Default::default(), region_key(0));
        let init =
            adverb_nic::one_rma::RegionInit { owner: 7, pd, lkey, addr, len: PART as u64, rights, key };
        rma.hosts[0].nic.register(&init).unwrap()
    };
    rma.hosts[1].memory.write(TARGET, b"seen");
    for round in 0..30 {
        let key = rma.hosts[1].nic.derive(rma.hosts[1].target, gid(0), 7, Op::Read).unwrap();
        let command = Command {
            local_region: local,
            completion_region: portal.completion_region(),
            local_offset: round,
            key,
            ..rma.command(0, 1, Op::Read, 4)
        };
        assert!(portal.next_completion().is_none());
        let slot = portal.slots()[round as usize % 8];
        let now = rma.now;
        rma.hosts[0].nic.post(now, slot, &command.encode()).unwrap();
        rma.drain();
        let completion = portal.next_completion().unwrap();
        assert_eq!((completion.slot, completion.outcome), (slot, Outcome::Ok));
    }
    assert_eq!(rma.hosts[0].memory.read(LOCAL + 29, 4), b"seen");
}

fn faults() -> impl Strategy<Value = Faults> {
    let chance = || prop_oneof![Just(0.0), 0.0..0.3];
    (chance(), chance(), chance(), chance(), chance()).prop_map(
        |(loss, duplicate, reorder, corrupt, late)| Faults {
            loss,
            duplicate,
            reorder,
            corrupt,
            late,
            ..Faults::default()
        },
    )
}

#[derive(Clone, Debug)]
struct Plan {
    write: bool,
    page: u64,
    len: u64,
    retries: u8,
    deadline_us: Option<u64>,
    cancel_after: Option<u8>,
    pause: u8,
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = prop_oneof![1u64..100, 1u64..9_000, 1u64..16_384];
    let deadline = prop_oneof![3 => Just(None), 1 => (0u64..200).prop_map(Some)];
    let cancel = prop_oneof![4 => Just(None), 1 => (0u8..30).prop_map(Some)];
    (any::<bool>(), 0u64..4, len, 0u8..4, deadline, cancel, 0u8..10).prop_map(
        |(write, page, len, retries, deadline_us, cancel_after, pause)| Plan {
            write,
            page,
            len,
            retries,
            deadline_us,
            cancel_after,
            pause,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the network does: each transfer is reported once, within the time that its commands may take;
    /// what is reported as done is there; what is not was not repeated more often than allowed; and nothing
    /// changes afterwards.
    #[test]
    fn every_transfer_is_reported_once_and_truthfully(
        faults in faults(),
        seed: u64,
        window in prop_oneof![Just(4096u32), Just(16 << 10), Just(64 << 10)],
        inbound in prop_oneof![Just(1u32), Just(64)],
        slots in 1usize..20,
        plans in proptest::collection::vec(plan(), 1..12),
    ) {
        let mut lab = Lab::new(seed, executor_config(), &|c| {
            c.window = window;
            c.inbound_ops = inbound;
        });
        let host = &lab.rma.hosts[0];
        lab.executor = CommandExecutor::new(executor_config(), host.ring).unwrap();
        host.slots[..slots].iter().for_each(|slot| lab.executor.add_slot(*slot).unwrap());
        lab.rma.faults = faults;
        let bound = host.nic.config().bound();
        let source = pattern(seed, PART);
        lab.rma.hosts[1].memory.write(TARGET, &source);
        let mut pending = Vec::new();
        let mut reports = Vec::new();
        for (index, plan) in plans.iter().enumerate() {
            // Reads stay in the lower half of both parts, writes in the upper: each page belongs to the
            // transfers of one plan slot.
            let at = plan.page * 8192 + if plan.write { PART as u64 / 2 } else { 0 };
            let len = plan.len.min(8192);
            let op = if plan.write { Op::Write } else { Op::Read };
            let init = TransferInit {
                deadline: plan.deadline_us.map(|us| lab.rma.now + US(us)),
                retry: Retry::times(plan.retries),
                tag: index as u64,
                ..lab.init(op, at, len)
            };
            let id = lab.executor.submit(lab.rma.now, init).unwrap();
            pending.push((id, plan.cancel_after));
            for _ in 0..plan.pause {
                lab.step();
                reports.extend(core::iter::from_fn(|| lab.executor.next_report()));
            }
        }
        let mut steps = 0;
        while reports.len() < plans.len() {
            steps += 1;
            for (id, cancel) in &pending {
                if *cancel == Some(steps) {
                    let known = !reports.iter().any(|report: &Report| report.id == *id);
                    let waits = lab.executor.cancel(lab.rma.now, *id).is_ok();
                    prop_assert!(known || !waits);
                }
            }
            let goes_on = lab.step();
            reports.extend(core::iter::from_fn(|| lab.executor.next_report()));
            prop_assert!(goes_on || reports.len() == plans.len(), "stuck");
            steps = steps.min(200);
        }
        let before: Vec<_> = [0, 1].map(|i| lab.rma.hosts[i].memory.read(0, 2 * PART)).into();
        lab.rma.drain();
        let after: Vec<_> = [0, 1].map(|i| lab.rma.hosts[i].memory.read(0, 2 * PART)).into();
        prop_assert!(before == after, "nothing happens after the last report");

        let mut tags: Vec<_> = reports.iter().map(|report| report.tag).collect();
        tags.sort_unstable();
        prop_assert_eq!(tags, (0..plans.len() as u64).collect::<Vec<_>>());
        for report in &reports {
            let plan = &plans[report.tag as usize];
            let len = plan.len.min(8192);
            let pieces = len.div_ceil(4096);
            prop_assert!(report.repeats <= plan.retries as u64 * pieces);
            prop_assert!(report.commands <= pieces + report.repeats);
            prop_assert!(report.total_delay <= bound);
            prop_assert!(report.end.is_ok() == (report.bytes == len), "{:?}", report);
            if let Some(us) = plan.deadline_us {
                prop_assert!(report.elapsed <= US(us) + bound);
            }
            prop_assert!(plan.deadline_us.is_some() || report.end != End::Deadline);
            prop_assert!(plan.cancel_after.is_some() || report.end != End::Cancelled);
            prop_assert!(!matches!(report.end, End::Refused(_) | End::Abandoned));
            if report.end.is_ok() && !plan.write {
                let at = (plan.page * 8192) as usize;
                prop_assert_eq!(
                    lab.rma.hosts[0].memory.read(LOCAL + at, len as usize),
                    &source[at..at + len as usize]
                );
            }
        }
        prop_assert_eq!(lab.executor.outstanding(), 0);
        prop_assert_eq!(lab.executor.transfers(), 0);
        prop_assert_eq!(lab.executor.next_deadline(), None);
    }
}
