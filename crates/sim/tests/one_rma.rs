//! 1RMA in the simulator: exact times in an idle network, determinism, what PCIe costs, shared queue pairs,
//! rotation, scenarios.

use adverb_nic::one_rma::Outcome;
use adverb_sim::{Scenario, Sim};

const FABRIC: &str = "[topology]\nkind = \"star\"\nhosts = 3\nrate = \"100G\"\ndelay = \
    \"1us\"\n[transport]\nkind = \"1rma\"\n";

fn run(text: &str) -> Sim {
    let plan = Scenario::parse(text).unwrap().plan(&mut |_| unreachable!("no files")).unwrap();
    let mut sim = plan.start().unwrap();
    plan.run(&mut sim, &mut |_| {});
    sim.check_invariants();
    sim
}

fn one(op: &str, bytes: &str, rest: &str) -> Sim {
    run(&format!(
        "{FABRIC}{rest}\n[workload]\nkind = \"list\"\nop = \"{op}\"\nlist = [{{ src = 0, dst = 1, bytes = \
         \"{bytes}\" }}]\n"
    ))
}

#[test]
fn an_operation_alone_takes_its_ideal_time() {
    for op in ["read", "write"] {
        for bytes in ["1", "64", "4096"] {
            for rest in
                ["", "[hardware]\npcie-rate = \"126G\"\npcie-read = \"400ns\"\npcie-write = \"200ns\"\n"]
            {
                let sim = one(op, bytes, rest);
                let flow = sim.flows()[0];
                assert!(!flow.failed);
                assert_eq!(flow.completed - flow.spec.start, sim.ideal_ps(&flow), "{op} {bytes} {rest}");
            }
        }
    }
    // A read of 64 B: two hops of 1 us and 118 B there, of 166 B back.
    let sim = one("read", "64", "");
    assert_eq!(sim.flows()[0].completed, 4_000_000 + 2 * 118 * 80 + 2 * 166 * 80);
}

#[test]
fn runs_repeat_and_messages_come_home() {
    let text = format!(
        "seed = 5\n{FABRIC}[transport.one-rma]\nretries = 9\n[[faults.link]]\nloss = 0.01\nreorder = \
         0.1\nreorder-by = \"3us\"\nduplicate = 0.01\nbit-error = 1e-7\n\
         [[workload]]\nkind = \"steady\"\nop = \"read\"\npairs = [[0, 1], [1, 2], [0, 2]]\nload = 0.2\n\
         bytes = \"20KB\"\nuntil = \"200us\"\n\
         [[workload]]\nkind = \"poisson\"\nop = \"write\"\npairs = [[2, 0], [0, 1]]\nload = 0.1\n\
         bytes = \"3000\"\nuntil = \"200us\"\n"
    );
    let (a, b) = (run(&text), run(&text));
    assert_eq!((a.trace_hash(), a.stats()), (b.trace_hash(), b.stats()));
    let s = a.stats();
    assert!(s.lost > 0 && s.duplicated > 0 && s.corrupted > 0);
    // Every message given was taken or lost, one more for each that came twice.
    assert_eq!(s.injected + s.duplicated, s.delivered + s.lost + s.drops);
    let (sent, taken) = a.rma_hosts().iter().fold((0, 0), |(tx, rx), host| {
        let counters = host.nic.counters();
        (tx + counters.tx_messages, rx + counters.rx_messages)
    });
    assert_eq!((sent, taken), (s.injected, s.delivered));
    assert!(a.flows().iter().all(|flow| !flow.failed && flow.received != u64::MAX));
    let record = a.rma_record().unwrap();
    assert!(record.count(Outcome::Timeout) > 0);
    let bound = a.rma_hosts()[0].nic.config().bound();
    assert!(record.longest_ps <= bound.as_ps(), "every operation ends within the bound");
}

#[test]
fn memory_that_is_slower_than_the_link_bounds_what_is_served() {
    let text = |rate: &str| {
        format!(
            "{FABRIC}[transport.one-rma]\nretries = 100\n[hardware]\npcie-rate = \
             \"{rate}\"\n[workload]\nkind = \"list\"\nop = \"read\"\n\
             list = [{{ src = 0, dst = 1, bytes = \"4MB\" }}, {{ src = 0, dst = 2, bytes = \"4MB\" }}]\n"
        )
    };
    let (fast, slow) = (run(&text("200G")), run(&text("20G")));
    let end = |sim: &Sim| sim.flows().iter().map(|f| f.completed).max().unwrap() as f64;
    // 8 MB at 20 Gb/s are 3.2 ms, whatever the link could do.
    assert!((3.2e9..4.5e9).contains(&end(&slow)), "{}", end(&slow));
    assert!(end(&fast) < 2e9, "{}", end(&fast));
}

/// Software that takes 1 us for an operation: the hundredth leaves 99 us after the first.
#[test]
fn operations_leave_as_fast_as_software_makes_them() {
    let text = |cost: &str| {
        format!(
            "{FABRIC}[transport.one-rma]\nop-size = \"64\"\n{cost}\n[transport.one-rma.control]\n\
             fixed = 0\n[workload]\nkind = \"list\"\nop = \"write\"\n\
             list = [{{ src = 0, dst = 1, bytes = \"6400\" }}]\n"
        )
    };
    let (free, slow) = (run(&text("")), run(&text("command-cost = \"1us\"")));
    let end = |sim: &Sim| sim.flows()[0].completed;
    assert!(end(&free) < 99_000_000, "{}", end(&free));
    assert!((99_000_000 + 4_000_000..115_000_000).contains(&end(&slow)), "{}", end(&slow));
}

#[test]
fn a_rekey_costs_clients_one_round_trip() {
    let text = format!(
        "{FABRIC}[transport.one-rma]\n[[transport.one-rma.events]]\nat = \"50us\"\nhost = 0\nwhat = \
         \"rekey\"\n\
         [workload]\nkind = \"repeat\"\nop = \"read\"\npairs = [[0, 1]]\nbytes = \"64\"\noutstanding = 8\n\
         until = \"100us\"\n"
    );
    let sim = run(&text);
    let record = sim.rma_record().unwrap();
    let refused = record.count(Outcome::RemoteAuthenticationFailure);
    assert!((1..=8).contains(&refused), "what was under way, and no more: {refused}");
    assert!(sim.flows().iter().all(|flow| !flow.failed), "the next key was known");
    assert_eq!(sim.rma_hosts()[0].nic.counters().rekeys, 1);
}

#[test]
fn a_client_of_a_server_that_is_gone_goes_on_with_the_other() {
    let text = "[topology]\nkind = \"star\"\nhosts = 4\nrate = \"100G\"\n[transport]\nkind = \"1rma\"\n\
         [[transport.one-rma.events]]\nat = \"50us\"\nhost = 1\nwhat = \"withdraw\"\n\
         [workload]\nkind = \"lookups\"\nclients = [2, 3]\nservers = [0, 1]\nindex = \"64\"\n\
         bytes = \"1024\"\nload = 0.2\nuntil = \"100us\"\n";
    let sim = run(text);
    let adverb_sim::workload::Workload::Lookups(lookups) = sim.workload() else { panic!("lookups") };
    assert_eq!(lookups.ended.len(), lookups.arrivals.len());
    assert!(lookups.ended.iter().all(|lookup| lookup.end != u64::MAX), "no lookup fails");
    assert!(lookups.ended.iter().any(|lookup| lookup.failures > 0));
    let late = |server| lookups.ended.iter().filter(|l| l.start > 60_000_000 && l.server == server).count();
    assert!(late(1) == 0 && late(0) > 100);
}

#[test]
fn flows_that_share_a_queue_pair_wait_for_one_another() {
    let text = |share| {
        format!(
            "[topology]\nkind = \"two-hosts\"\nrate = \"100G\"\n[transport]\nmtu = 4096\nshare-qp = \
             {share}\n[workload]\nkind = \"list\"\nop = \"read\"\n\
             list = [{{ src = 0, dst = 1, bytes = \"4MB\" }}, \
             {{ src = 0, dst = 1, bytes = \"64\", start = \"10us\" }}]\n"
        )
    };
    let small = |sim: &Sim| sim.flows()[1].completed - sim.flows()[1].spec.start;
    let (own, shared) = (run(&text(false)), run(&text(true)));
    assert!(small(&own) < 10_000_000, "{}", small(&own));
    assert!(small(&shared) > 300_000_000, "behind 4 MB: {}", small(&shared));
    assert!(shared.flows().iter().all(|flow| !flow.failed));
}

#[test]
fn what_does_not_go_together_is_refused_with_its_key() {
    let refused =
        |text: &str| Scenario::parse(text).and_then(|s| s.plan(&mut |_| unreachable!())).unwrap_err();
    let flows = "[workload]\nkind = \"list\"\nlist = [{ src = 0, dst = 1, bytes = \"1\" }]\n";
    for (extra, key) in [
        ("mtu = 1024\n", "transport.mtu"),
        ("[transport.one-rma]\nwindow = \"4095\"\n", "transport.one-rma.window"),
        ("[transport.one-rma]\nslots = 0\n", "transport.one-rma.slots"),
        ("[transport.one-rma]\nop-size = \"5000\"\n", "transport.one-rma.op-size"),
        ("[transport.one-rma.control]\nfixed = 3\nbeta = 0.5\n", "transport.one-rma.control.fixed"),
        (
            "[[transport.one-rma.events]]\nat = \"1us\"\nhost = 7\nwhat = \"rekey\"\n",
            "transport.one-rma.events[0].host",
        ),
        (
            "[[transport.one-rma.events]]\nat = \"1us\"\nhost = 0\nwhat = \"lose\"\n",
            "transport.one-rma.events[0].what",
        ),
        ("[hardware]\nfetch = \"1us\"\n", "hardware.fetch"),
    ] {
        assert_eq!(refused(&format!("{FABRIC}{extra}{flows}")).key, key, "{extra}");
    }
    let send = flows.replace("kind", "op = \"send\"\nkind");
    assert_eq!(refused(&format!("{FABRIC}{send}")).key, "workload.op");
    let rc = FABRIC.replace("1rma", "rc");
    assert_eq!(refused(&format!("{rc}[transport.one-rma]\n{flows}")).key, "transport.one-rma");
    assert_eq!(refused(&format!("{rc}[hardware]\nrx-buffer = 1000\n{flows}")).key, "hardware.rx-buffer");
    assert_eq!(refused(&format!("{}{flows}", FABRIC.replace("1rma", "2rma"))).key, "transport.kind");
}

/// Hosts with both NICs: flows of either kind end, neither starves the other, and each kind alone is as
/// before.
#[test]
fn hosts_may_have_queue_pairs_and_one_rma_at_once() {
    let fabric = FABRIC.replace("1rma", "both");
    let flows = |via: &str| {
        format!(
            "[[workload]]\nkind = \"list\"\nop = \"read\"\nvia = \"{via}\"\n\
             list = [{{ src = 0, dst = 1, bytes = \"400KB\" }}, \
             {{ src = 1, dst = 0, bytes = \"400KB\" }}]\n"
        )
    };
    let run = |text: String| {
        let plan = Scenario::parse(&text).unwrap().plan(&mut |_| unreachable!()).unwrap();
        let mut sim = plan.start().unwrap();
        while sim.run(u64::MAX, 1000) {
            sim.check_invariants();
        }
        let ends: Vec<u64> = sim.flows().iter().map(|f| f.received).collect();
        assert!(sim.flows().iter().all(|f| !f.failed), "{ends:?}");
        let operations: u64 = sim.report().operations.unwrap_or_default().iter().sum();
        let by_queues: u64 =
            sim.hosts().iter().map(|h| h.nic.counters().iter().map(|(_, n)| n).sum::<u64>()).sum();
        (ends, operations, by_queues > 0)
    };
    for hardware in ["", "[hardware]\npcie-rate = \"126G\"\npcie-read = \"400ns\"\ncompletion = \"280ns\"\n"]
    {
        let only = |via: &str| run(format!("{fabric}{hardware}{}", flows(via)));
        let (rma, rc) = (only("1rma"), only("rc"));
        assert!(rma.1 > 0 && !rma.2, "1RMA's transfers touch no queue pair");
        assert!(rc.1 == 0 && rc.2, "RC's flows are no operations");
        let both = run(format!("{fabric}{hardware}{}{}", flows("1rma"), flows("rc")));
        assert_eq!((both.1, both.2), (rma.1, true));
        let slowest = |ends: &[u64]| ends.iter().copied().max().unwrap();
        let (alone, together) = (slowest(&rma.0).max(slowest(&rc.0)), slowest(&both.0));
        assert!(
            together > alone && together < 5 * alone / 2,
            "they share the link: {alone} alone, {together} together"
        );
    }
    let error = |text: String| Scenario::parse(&text).unwrap().plan(&mut |_| unreachable!()).unwrap_err().key;
    assert_eq!(error(format!("{FABRIC}{}", flows("rc"))), "workload.via");
    assert_eq!(error(format!("{fabric}{}", flows("udp"))), "workload.via");
}

/// Hosts with both NICs have one PCIe: what the one moves, the other waits for, each way. On a link that is
/// much faster, a flow of each takes as long as both after one another; 1RMA's own requests for memory keep
/// its turn short, so that the other one has its share from the beginning.
#[test]
fn both_nics_of_a_host_share_its_pcie() {
    let flow = |via: &str, op: &str| {
        format!(
            "[[workload]]\nkind = \"list\"\nvia = \"{via}\"\nop = \"{op}\"\nlist = [{{ src = 0, dst = 1, \
             bytes = \"500KB\" }}]\n"
        )
    };
    let times = |flows: &[String]| {
        let text = format!(
            "[topology]\nkind = \"two-hosts\"\nrate = \"400G\"\ndelay = \"1us\"\n[transport]\nkind = \
             \"both\"\n[transport.one-rma]\nretries = 255\n[hardware]\npcie-rate = \"40G\"\n{}",
            flows.concat()
        );
        let sim = run(&text);
        assert!(sim.flows().iter().all(|flow| !flow.failed));
        sim.flows().iter().map(|flow| flow.completed as f64 / 1e6).collect::<Vec<_>>()
    };
    let (queues, one_rma) = (flow("rc", "write"), flow("1rma", "read"));
    let alone = [times(std::slice::from_ref(&queues))[0], times(std::slice::from_ref(&one_rma))[0]];
    // 500 KB at 40 Gb/s, and a round trip.
    assert!(alone.iter().all(|us| (100.0..125.0).contains(us)), "{alone:?}");
    let both = times(&[queues, one_rma]);
    let (first, last) = (both[0].min(both[1]), both[0].max(both[1]));
    assert!(last > 200.0 && last < 1.1 * (alone[0] + alone[1]), "{both:?} instead of {alone:?}");
    assert!(first > 130.0, "{both:?}: neither goes on as if it were alone");
}

/// A host with hardware of its own pays for that, and others for what `[hardware]` says: a read pays for
/// the memory that it is read from, and for the landing in its initiator's.
#[test]
fn a_hosts_own_hardware_is_what_its_1rma_nic_pays() {
    let read = |from: u32, hardware: &str| {
        let list = format!(
            "list = [{{ src = {from}, dst = {}, bytes = \"4KB\" }}]
",
            1 - from
        );
        let text = [
            "[topology]
kind = \"two-hosts\"
rate = \"100G\"
delay = \"1us\"
",
            "[transport]
kind = \"both\"
",
            hardware,
            "[[workload]]
kind = \"list\"
via = \"1rma\"
op = \"read\"
",
            &list,
        ]
        .concat();
        let sim = run(&text);
        assert!(sim.flows().iter().all(|flow| !flow.failed));
        let flow = &sim.flows()[0];
        assert_eq!(flow.completed, sim.ideal_ps(flow), "an idle network takes what it must");
        flow.completed
    };
    let us = 1_000_000;
    let own = "[[hardware.of]]\nhosts = [1]\npcie-read = \"10us\"\npcie-write = \"3us\"\n";
    let free = read(0, "");
    assert_eq!(read(1, ""), free);
    assert_eq!((read(1, own), read(0, own)), (free + 10 * us, free + 3 * us));
    let all = "[hardware]\npcie-read = \"1us\"\n";
    let but_one = "[[hardware.of]]\nhosts = [1]\npcie-read = \"4us\"\n";
    let both = format!("{all}{but_one}");
    assert_eq!((read(1, &both), read(0, &both)), (free + 4 * us, free + us));
}
