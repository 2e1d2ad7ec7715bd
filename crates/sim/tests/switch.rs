//! A switch of the fabric that runs programs: packets and flows pass it as any switch, but for what its
//! programs do; what cannot be is refused with its key and the remedy.

use adverb_sim::programmed::SwitchPrograms;
use adverb_sim::{Error, Scenario, Sim};
use adverb_switch::{Counter, Drop};

const BASE: &str = r#"
seed = 5
[topology]
kind = "star"
hosts = 4
rate = "100G"
delay = "1us"
[switch]
program = "programs.toml"
[transport]
mtu = 1024
timeout = 8
ecn = true
[workload]
kind = "incast"
senders = 3
bytes = "192KB"
"#;

fn plan(scenario: &str, programs: &str) -> Result<adverb_sim::Plan, Error> {
    Scenario::parse(scenario)?.plan(&mut |file| {
        assert_eq!(file, "programs.toml");
        Ok(programs.to_owned())
    })
}

fn run(scenario: &str, programs: &str) -> Sim {
    let plan = plan(scenario, programs).unwrap_or_else(|e| panic!("{e}"));
    let mut sim = plan.start().unwrap();
    plan.run(&mut sim, &mut |_| {});
    sim.check_invariants();
    sim
}

fn count(sim: &Sim, counter: Counter) -> u64 {
    sim.switch_counters().map_or(0, |(counters, _)| counters.get(counter))
}

#[test]
fn a_switch_that_forwards_changes_nothing() {
    // Nobody marks.
    let base = BASE.replace("ecn = true\n", "");
    let through = run(&base, "[[program]]\nkind = \"forward\"\n");
    let plain = run(
        &base.replace("program = \"programs.toml\"\n", "").replace("seed = 5", "seed = 5\npayload = true"),
        "",
    );
    assert!(plain.switch_counters().is_none());
    assert_eq!(through.trace_hash(), plain.trace_hash(), "the same packets at the same times");
    let frames = count(&through, Counter::RxFrames);
    assert!(frames > 3 * 64 && frames == count(&through, Counter::TxFrames), "{frames} frames");
    assert_eq!(through.report().summary.flows, 3);
}

#[test]
fn ecn_marks_what_hosts_then_see() {
    let sim = run(BASE, "[[program]]\nkind = \"ecn\"\nevery = 10\n");
    let marked = count(&sim, Counter::Marked);
    assert!(marked > 10, "{marked} marked");
    assert_eq!(sim.report().summary.flows, 3);
    let deep = run(BASE, "[[program]]\nkind = \"ecn\"\nabove = 3000\n");
    let never = run(BASE, "[[program]]\nkind = \"ecn\"\nabove = 30000000\n");
    assert!(count(&deep, Counter::Marked) > 0, "three senders at one port");
    assert_eq!(count(&never, Counter::Marked), 0);
}

#[test]
fn trimmed_packets_are_dropped_by_their_host_and_sent_again() {
    let sim = run(BASE, "[[program]]\nkind = \"trim\"\nevery = 50\n");
    let trimmed = count(&sim, Counter::Trimmed);
    assert!(trimmed > 2, "{trimmed} trimmed");
    assert_eq!(sim.stats().corrupted, trimmed, "their ICRC is wrong");
    let report = sim.report();
    assert!(report.retransmissions >= trimmed && report.summary.flows == 3, "{report:?}");
}

#[test]
fn a_switch_that_is_started_anew_drops_what_comes_meanwhile() {
    let faults = "[[faults.switch]]\nat = \"5us\"\nfor = \"20us\"\n";
    let sim = run(&format!("{BASE}{faults}"), "[[program]]\nkind = \"forward\"\n");
    let (_, restarts) = sim.switch_counters().unwrap();
    assert_eq!((restarts.all, sim.report().summary.flows), (1, 3));
    assert!(sim.stats().drops > 0 && sim.report().retransmissions > 0);
}

/// Damage on a link to a switch with programs reaches them: who would use what a packet says looks at its
/// ICRC, who does not passes it on, and the host drops it.
#[test]
fn damage_is_found_by_the_program_or_by_the_host() {
    let damaged = "[[faults.link]]\nbit-error = 1e-5\n";
    let cas = "[[program]]\nkind = \"cas_to_write\"\nserver = \"10.0.0.1\"\n";
    // They come when the program lets pass what changes memory.
    let to_server = "kind = \"list\"\nstart = \"11ms\"\nlist = [{ src = 1, dst = 0, bytes = \"192KB\" }]";
    let incast = "kind = \"incast\"\nsenders = 3\nbytes = \"192KB\"";
    let sim = run(&format!("{}{damaged}", BASE.replace(incast, to_server)), cas);
    let (counters, _) = sim.switch_counters().unwrap();
    assert!(counters.dropped(Drop::Icrc) > 0, "a request to the server");
    let sim = run(&format!("{BASE}{damaged}"), "[[program]]\nkind = \"forward\"\n");
    assert!(sim.stats().corrupted > 0);
    assert_eq!(sim.report().summary.flows, 3, "and sent again");
}

#[test]
fn what_cannot_be_is_refused() {
    let forward = "[[program]]\nkind = \"forward\"\n";
    let cas = |server: &str| format!("[[program]]\nkind = \"cas_to_write\"\nserver = \"{server}\"\n");
    let spine = BASE
        .replace("kind = \"star\"\nhosts = 4", "kind = \"leaf-spine\"\nleaves = 2\nspines = 1\nhosts = 2");
    let at = |text: &str, n: u32| text.replace("[switch]\n", &format!("[switch]\nprogram-at = {n}\n"));
    let unnamed = BASE.replace("program = \"programs.toml\"\n", "");
    let many = BASE.replace("hosts = 4", "hosts = 300");
    let restart = "[[faults.switch]]\nat = \"1us\"\n";
    for (scenario, programs, said) in [
        (spine.clone(), forward.to_owned(), "switch.program-at: is missing"),
        (at(&spine, 9), forward.to_owned(), "switch.program-at: switch 9 does not exist; there are 3"),
        (at(&spine, 2), cas("10.0.0.1"), "switch.program-at: 10.0.0.1 is host 0, which is not at the switch"),
        (BASE.to_owned(), cas("10.9.0.1"), "no host has 10.9.0.1; they have 10.0.0.1 to 10.0.0.4"),
        (
            BASE.to_owned(),
            format!("[faults]\nloss = 0.1\n{forward}"),
            "ports and their faults are the scenario's",
        ),
        (BASE.to_owned(), "[[program]]\nkind = \"trim\"\n".to_owned(), "[[program]] 1: give above"),
        (BASE.to_owned(), cas("10.0.0.1").repeat(2), "two programs are for the atomics"),
        (many, forward.to_owned(), "switch.program: goes with at most 256 hosts"),
        (at(&unnamed, 0), String::new(), "switch.program-at: goes with switch.program"),
        (format!("{unnamed}{restart}"), String::new(), "faults.switch: goes with switch.program"),
    ] {
        let found = plan(&scenario, &programs).and_then(|plan| plan.start().map(drop));
        let found = found.err().map_or_else(|| panic!("accepted: {said}"), |e| e.to_string());
        assert!(found.contains(said), "{found}, not {said}");
    }
    // The server's own switch is meant where nothing is said.
    let plan = plan(&spine, &cas("10.0.0.3")).unwrap();
    assert_eq!(plan.config.programs.first().map(|of| of.at), Some(1));
}

#[test]
fn two_switches_do_not_decide_for_one_server() {
    let refused = |text: &str, second: u32| {
        let mut plan = plan(BASE, text).unwrap_or_else(|e| panic!("{e}"));
        let other = SwitchPrograms { at: second, ..plan.config.programs[0].clone() };
        plan.config.programs.push(other);
        plan.start().map(|_| ()).map_err(|e| e.to_string())
    };
    let cas = "[[program]]\nkind = \"cas_to_write\"\nserver = \"10.0.0.1\"\n";
    assert!(refused(cas, 1).is_err_and(|why| why.contains("another switch decides for")));
    assert!(refused(cas, 0).is_err_and(|why| why.contains("switch 0 has programs already")));
    // Who decides nothing may be twice on a path; that there is no second switch here is another matter.
    let forward = "[[program]]\nkind = \"forward\"\n";
    assert!(refused(forward, 1).is_err_and(|why| !why.contains("decides")));
}
