//! Connections that come and go, with roles that the NICs choose by their numbers.

mod common;

use adverb_nic::StarSide;
use adverb_sim::{Scenario, Sim};
use common::{run, work};

const FABRIC: &str =
    "end = \"8ms\"\n[topology]\nkind = \"star\"\nhosts = 7\nrate = \"10G\"\ndelay = \"300ns\"\n";
const AUTO: &str = "[transport]\nkind = \"star\"\nstar = { auto = true, threshold = 16, compare = \"20us\", \
                    hold = \"500us\", changes = 100000, lifetime = \"5ms\" }\n";
const COSTS: &str = "[hardware]\nprofile = \"star-fpga\"\n";

/// Four connections become 40, and 4 again.
const WAVE: &str = "[workload]\nkind = \"connections\"\nserver = 0\nclients = [1, 2, 3, 4]\nconnections = 4\n\
    bytes = \"32\"\nrequests = 3\nresponse = \"32\"\nuntil = \"6ms\"\nmeasured = \"5ms\"\n\
    steps = [{ at = \"500us\", over = \"500us\", connections = 40 }, { at = \"3ms\", connections = 4 }]\n";

/// A client of the server's becomes the server of more connections than it has.
const SWAP: &str = "[workload]\nkind = \"connections\"\nserver = 0\nclients = [1, 2]\nconnections = 24\n\
    bytes = \"32\"\nrequests = 3\nresponse = \"32\"\nuntil = \"6ms\"\n\
    others = { server = 1, clients = [3, 4, 5, 6] }\n\
    steps = [{ at = \"2ms\", over = \"300us\", others = 40 }]\n";

fn changes(sim: &Sim, host: u32, to: StarSide) -> usize {
    work(sim).changed.iter().filter(|changed| changed.host == host && changed.to == to).count()
}

#[test]
fn connections_come_and_go_with_either_transport() {
    let fixed = "[transport]\nkind = \"star\"\nstar = { stateless = [0] }\n";
    for hardware in ["", COSTS] {
        for transport in ["", fixed, AUTO] {
            let sim = run(&format!("{FABRIC}{transport}{hardware}{WAVE}"));
            let name = format!("{transport}{hardware}");
            assert_eq!((work(&sim).failed, work(&sim).planned()), (0, 40), "{name}");
            assert_eq!(work(&sim).stalled(5_000_000_000), 0, "{name}");
            let calls = |n: u32| work(&sim).ended.iter().filter(move |call| call.connection == n);
            // The oldest have left, the newest are there to the end; all had calls.
            assert!(calls(0).all(|call| call.end < 4_000_000_000), "{name}");
            assert!(calls(39).any(|call| call.end > 5_900_000_000), "{name}");
            assert!((0..40).all(|n| calls(n).count() > 5), "{name}");
            assert!(transport == AUTO || work(&sim).changed.is_empty(), "{name}");
        }
    }
}

#[test]
fn roles_follow_the_numbers() {
    for hardware in ["", COSTS] {
        let sim = run(&format!("{FABRIC}{AUTO}{hardware}{WAVE}"));
        assert_eq!(work(&sim).not_changed, 0);
        // All that came before the server had too many were plain RC, and those that are left are it again.
        assert!(changes(&sim, 0, StarSide::Stateless) >= 16);
        assert_eq!(changes(&sim, 0, StarSide::Plain), 4);
        assert_eq!(changes(&sim, 0, StarSide::Stateful), 0);
        assert!(work(&sim).changed.iter().all(|changed| changed.paused < 2_000_000_000));
        assert!(work(&sim).changed.iter().any(|changed| changed.paused > 0));
    }
}

#[test]
fn two_sides_swap_roles_when_their_numbers_do() {
    let sim = run(&format!("{FABRIC}{AUTO}{COSTS}{SWAP}"));
    assert_eq!((work(&sim).failed, work(&sim).stalled(5_000_000_000), work(&sim).not_changed), (0, 0, 0));
    // The server has twelve connections with each client; with one of them it keeps the state in the end.
    assert_eq!(changes(&sim, 0, StarSide::Stateful), 12);
    assert_eq!(changes(&sim, 1, StarSide::Stateless), 12 + 40 - stateless_from_the_start(&sim, 1));
}

/// Connections of a host's that were stateless by their first hellos.
fn stateless_from_the_start(sim: &Sim, host: u32) -> usize {
    let agreed = sim.nic_counters(host).star_agreed as usize;
    assert!(agreed <= 40, "{agreed}");
    agreed
}

#[test]
fn rules_come_and_go_with_their_connections() {
    let keys = "stateless = [0], registry = 1000";
    let star = |keys: &str| format!("[transport]\nkind = \"star\"\nstar = {{ {keys} }}\n");
    let sim = run(&format!("{FABRIC}{}{COSTS}{WAVE}", star(keys)));
    assert_eq!((work(&sim).failed, work(&sim).stalled(5_000_000_000)), (0, 0));
    let nic = |host: u32| &sim.hosts()[host as usize].nic;
    // Two rules for each connection that is left: what is posted, and the one region.
    assert_eq!((1..5).map(|host| nic(host).rules()).sum::<usize>(), 8);
    let counts = |of: fn(&adverb_nic::Counters) -> u64| (0..7).map(|h| of(sim.nic_counters(h))).sum::<u64>();
    // Three RDs and a GD of each call.
    let (allowed, calls) = (counts(|c| c.star_egress_allowed), work(&sim).ended.len() as u64);
    assert!(allowed >= 4 * calls, "{allowed} {calls}");
    assert_eq!(counts(|c| c.star_egress_refused), 0);
    // A table without room for a connection's rules keeps that connection away, and says so.
    let full = run(&format!("{FABRIC}{}{COSTS}{WAVE}", star("stateless = [0], registry = 10")));
    assert!(work(&full).failed > 0 && work(&full).stalled(5_000_000_000) > 0);
}

#[test]
fn what_does_not_fit_is_refused_with_its_key() {
    let refused = |text: &str| Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap_err().key;
    for (text, key) in [
        (WAVE.replace("\"3ms\", connections", "\"700us\", connections"), "workload.steps[1].at"),
        (WAVE.replace("\"3ms\", connections", "\"7ms\", connections"), "workload.steps[1].at"),
        (WAVE.replace("\"3ms\", connections", "\"3ms\", others"), "workload.steps[1].others"),
        (WAVE.replace("\"3ms\", connections = 4", "\"3ms\""), "workload.steps[1].connections"),
        (WAVE.replace("connections = 40", "connections = 60001"), "workload.steps"),
        (WAVE.replace("\"5ms\"", "\"6ms\""), "workload.measured"),
        (format!("{WAVE}pattern = \"barrier\"\n"), "workload.steps"),
        (SWAP.replace("[3, 4", "[1, 4"), "workload.others"),
    ] {
        assert_eq!(refused(&format!("{FABRIC}{text}")), key, "{text}");
    }
    for (star, key) in [
        (AUTO.replace("auto = true, ", ""), "transport.star.threshold"),
        (AUTO.replace("auto", "stateless = [0], auto"), "transport.star.stateless"),
    ] {
        assert_eq!(refused(&format!("{FABRIC}{star}{WAVE}")), key, "{star}");
    }
    let endless = FABRIC.replace("end = \"8ms\"\n", "");
    assert_eq!(refused(&format!("{endless}{AUTO}{WAVE}")), "end");
}
