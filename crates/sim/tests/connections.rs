//! Connections that last, and what StaR's packets cost where hardware costs something.

mod common;

use adverb_sim::hardware::Unit;
use adverb_sim::{Scenario, Sim};
use common::{run, work};

const FABRIC: &str = "[topology]\nkind = \"star\"\nhosts = 3\nrate = \"10G\"\ndelay = \"300ns\"\n";
const STAR: &str = "[transport]\nkind = \"star\"\nstar = { stateless = [0], lifetime = \"5ms\" }\n";

fn workload(connections: u32, more: &str) -> String {
    format!(
        "[workload]\nkind = \"connections\"\nserver = 0\nclients = [1, 2]\nconnections = {connections}\n\
         bytes = \"32\"\nuntil = \"1ms\"\nstart = \"5us\"\n{more}\n"
    )
}

const RPC: &str = "requests = 3\nresponse = \"32\"";

fn unit(sim: &Sim, host: usize) -> &Unit {
    sim.hosts()[host].unit.as_deref().unwrap()
}

fn packets(sim: &Sim) -> f64 {
    let packets = |link: u32| f64::from(sim.links()[link as usize].packets);
    let up = sim.hosts()[0].up;
    (packets(up) + packets(up ^ 1)) / work(sim).ended.len() as f64
}

/// Each pattern goes on until its time is over, on every connection, with both transports, with hardware that
/// costs something and without.
#[test]
fn calls_follow_one_another_on_every_connection() {
    for hardware in ["", "[hardware]\nprofile = \"star-fpga\"\n"] {
        for transport in ["", STAR] {
            for (pattern, more) in [
                ("rpc", RPC),
                ("barrier", RPC),
                ("read", "by = \"server\""),
                ("read", ""),
                ("write", "by = \"server\""),
                ("write", ""),
            ] {
                let more = format!("pattern = \"{pattern}\"\n{more}");
                let sim = run(&format!("{FABRIC}{transport}{hardware}{}", workload(6, &more)));
                let name = format!("{transport} {hardware} {more}");
                assert_eq!((work(&sim).failed, work(&sim).stalled(800_000_000)), (0, 0), "{name}");
                assert_eq!(sim.retransmissions(), 0, "{name}");
                assert!(work(&sim).ended.iter().all(|call| call.start < 1_000_000_000), "{name}");
                let starless = sim.hosts()[0].nic.stateless_bytes() == 0;
                assert_eq!(starless, transport.is_empty());
            }
        }
    }
}

/// With a barrier no call of a round begins before all of the round before have come together.
#[test]
fn a_barrier_keeps_connections_in_step() {
    let sim = run(&format!("{FABRIC}{}", workload(6, &format!("pattern = \"barrier\"\n{RPC}"))));
    let mut rounds = [0u32; 6];
    for call in &work(&sim).ended {
        rounds[call.connection as usize] += 1;
        let (least, most) = (rounds.iter().min().unwrap(), rounds.iter().max().unwrap());
        assert!(most - least <= 1, "{rounds:?}");
    }
    assert!(rounds[0] > 20, "{rounds:?}");
}

/// Calls of two groups are never under way at once, and both have their turns.
#[test]
fn groups_take_turns() {
    let group = format!("{RPC}\ngroup = {{ size = 2, slot = \"20us\", switch = \"1us\" }}");
    for pattern in ["rpc", "barrier"] {
        let sim = run(&format!("{FABRIC}{}", workload(5, &format!("pattern = \"{pattern}\"\n{group}"))));
        let calls = &work(&sim).ended;
        let turns = |n: u32| calls.iter().filter(|call| call.connection == n).count();
        assert!((0..5).all(|n| turns(n) > 5), "{pattern}: {:?}", [0, 1, 2, 3, 4].map(turns));
        if pattern == "rpc" {
            for pair in calls.windows(2) {
                let apart = pair[0].connection / 2 == pair[1].connection / 2
                    || pair[1].start >= pair[0].end + 1_000_000;
                assert!(apart, "{pair:?}");
            }
        }
    }
}

/// An RPC of three SENDs and one back takes 8 packets of RC: each is acknowledged.
#[test]
fn an_rpc_takes_as_many_packets_as_it_should() {
    let sim = run(&format!("{FABRIC}{}", workload(1, RPC)));
    assert!((packets(&sim) - 8.0).abs() < 0.1, "{}", packets(&sim));
    let sim = run(&format!("{FABRIC}{STAR}{}", workload(1, RPC)));
    assert!(packets(&sim) > 12.0 && packets(&sim) < 24.5, "{}", packets(&sim));
}

fn costly(keys: &str, transport: &str, connections: u32) -> Sim {
    let hardware = format!("[hardware]\nmiss = \"1us\"\npacket = \"10ns\"\n{keys}\n");
    run(&format!("{FABRIC}{transport}{hardware}{}", workload(connections, RPC)))
}

/// A stateless NIC looks no connection up, however small its cache; a stateful one looks up both sides of
/// each, and plain RC one.
#[test]
fn connection_state_is_charged_where_it_is_kept() {
    let none = costly("cache-entries = 1", STAR, 8);
    assert_eq!(unit(&none, 0).misses(), 0);
    assert!(unit(&none, 1).misses() as usize > 8 * work(&none).ended.len() / 2);
    // Four connections at each of the two clients.
    for (transport, entries) in [(STAR, 8), ("", 4)] {
        let fits = costly(&format!("cache-entries = {entries}"), transport, 8);
        assert_eq!(unit(&fits, 1).misses(), entries, "{transport}");
        let short = costly(&format!("cache-entries = {}", entries - 1), transport, 8);
        assert!(unit(&short, 1).misses() > 10 * entries, "{transport}");
    }
}

/// Rules are looked up for packets to the stateless side, by its peers; posted work is read there.
#[test]
fn rules_and_posted_work_are_read_where_star_says() {
    let sim = costly("registry = \"10ns\"\nposted = \"500ns\"", STAR, 4);
    let calls = work(&sim).ended.len() as f64;
    assert_eq!(unit(&sim, 0).rules(), 0);
    let rules = (unit(&sim, 1).rules() + unit(&sim, 2).rules()) as f64 / calls;
    assert!(rules > 6.0 && rules < 11.0, "{rules}");
    // Three RDs and one GD.
    let reads = unit(&sim, 0).posted_reads() as f64 / calls;
    assert!((reads - 4.0).abs() < 0.1, "{reads}");
    let plain = costly("registry = \"10ns\"\nposted = \"500ns\"", "", 4);
    let units = || (0..3).map(|host| unit(&plain, host));
    assert_eq!(units().map(|unit| unit.rules() + unit.posted_reads()).sum::<u64>(), 0);
    let unread = costly("", STAR, 4);
    assert_eq!((0..3).map(|h| unit(&unread, h).rules() + unit(&unread, h).posted_reads()).sum::<u64>(), 0);
    assert!(work(&unread).ended.len() > work(&sim).ended.len());
}

#[test]
fn what_does_not_go_together_is_refused_with_its_key() {
    let refused = |text: &str| Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap_err().key;
    let fine = workload(4, RPC);
    for (text, key) in [
        (format!("{FABRIC}[transport]\nkind = \"star\"\n{fine}"), "transport.star.stateless"),
        (format!("{FABRIC}[transport]\nstar = {{ stateless = [0] }}\n{fine}"), "transport.star"),
        (format!("{FABRIC}{STAR}[workload]\nkind = \"permutation\"\nbytes = \"1\"\n"), "workload.kind"),
        (format!("{FABRIC}{}{fine}", STAR.replace("[0]", "[3]")), "transport.star.stateless"),
        (format!("{FABRIC}{}{fine}", STAR.replace("5ms", "1us")), "transport.star.lifetime"),
        (format!("{FABRIC}[transport]\nshare-qp = true\n{fine}"), "workload.kind"),
        (format!("{FABRIC}[transport]\nkind = \"1rma\"\n{fine}"), "workload.kind"),
        (format!("{FABRIC}{}", fine.replace("[1, 2]", "[0, 1]")), "workload.clients"),
        (format!("{FABRIC}{}", fine.replace("[1, 2]", "[1, 3]")), "workload.clients"),
        (format!("{FABRIC}{}", fine.replace("requests = 3", "requests = 65")), "workload.requests"),
        (format!("{FABRIC}{}", fine.replace("response = \"32\"", "")), "workload.response"),
        (format!("{FABRIC}{fine}by = \"server\"\n"), "workload.by"),
        (format!("{FABRIC}{fine}pattern = \"ring\"\n"), "workload.pattern"),
        (format!("{FABRIC}{fine}group = {{ size = 0, slot = \"1us\" }}\n"), "workload.group"),
    ] {
        assert_eq!(refused(&text), key, "{text}");
    }
}

/// So many calls are under way on all connections together, whatever their number, with costs and without,
/// and all connections have some; those that come later too.
#[test]
fn calls_are_drawn_over_all_connections() {
    for (hardware, transport) in [("", ""), ("", STAR), ("[hardware]\nprofile = \"star-fpga\"\n", STAR)] {
        for (pattern, by) in [("write", "client"), ("read", "client"), ("read", "server")] {
            for (connections, first, steps) in [
                (1, 1, ""),
                (9, 9, ""),
                (9, 4, "steps = [{ at = \"50us\", over = \"50us\", connections = 9 }]"),
            ] {
                let more = format!("pattern = \"{pattern}\"\nby = \"{by}\"\noutstanding = 8\n{steps}");
                let sim = run(&format!("{FABRIC}{transport}{hardware}{}", workload(first, &more)));
                let name = format!("{transport} {hardware} {more} {connections}");
                let work = work(&sim);
                assert_eq!((work.failed, work.stalled(800_000_000)), (0, 0), "{name}");
                let ended = &work.ended;
                assert!((0..connections).all(|n| ended.iter().any(|call| call.connection == n)), "{name}");
                // At the end of each call, those that had begun and had not ended.
                let at = ended[ended.len() / 2].end;
                let under_way = ended.iter().filter(|call| call.start <= at && call.end > at).count();
                assert_eq!(under_way, 8, "{name}");
            }
        }
    }
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let drawn = "outstanding = 8";
    for (more, key) in [
        (format!("pattern = \"rpc\"\n{RPC}\n{drawn}"), "workload.outstanding"),
        (
            format!("pattern = \"write\"\ngroup = {{ size = 2, slot = \"20us\" }}\n{drawn}"),
            "workload.outstanding",
        ),
        (
            format!("pattern = \"write\"\n{drawn}\nsteps = [{{ at = \"50us\", connections = 3 }}]"),
            "workload.outstanding",
        ),
        (
            "pattern = \"write\"\noutstanding = 64\nsteps = [{ at = \"50us\", connections = 900 }]"
                .to_owned(),
            "workload.connections",
        ),
        ("pattern = \"write\"\noutstanding = 0".to_owned(), "workload.outstanding"),
        ("pattern = \"write\"\noutstanding = 4097".to_owned(), "workload.outstanding"),
    ] {
        let text = format!("{FABRIC}{}", workload(4, &more));
        let error = Scenario::parse(&text).and_then(|s| s.plan(&mut |_| unreachable!())).err().unwrap();
        assert!(error.to_string().contains(key), "{error}");
    }
}
