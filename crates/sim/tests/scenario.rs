//! Scenario files: the examples run, and what is wrong is refused with its place and the remedy.

use adverb_sim::Scenario;
use std::path::Path;

const GOOD: &str = r#"
seed = 3
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts = 4
rate = "100G"
delay = "1us"
[switch]
buffer = "2MB"
[switch.pfc]
xoff = "15 packets"
xon = "12 packets"
[switch.ecn]
kmin = "100KB"
kmax = "400KB"
pmax = 0.2
[transport]
mtu = 4096
timeout = 0
[workload]
kind = "poisson"
load = 0.5
flows = 200
"#;

fn refused(text: &str) -> String {
    let plan = Scenario::parse(text).and_then(|s| s.plan(&mut |_| Ok(String::new())));
    plan.err().map_or_else(|| panic!("accepted: {text}"), |e| e.to_string())
}

#[test]
fn a_good_scenario_runs_to_its_end() {
    let plan = Scenario::parse(GOOD).unwrap().plan(&mut |_| unreachable!()).unwrap();
    let mut sim = plan.start().unwrap();
    let mut calls = 0;
    plan.run(&mut sim, &mut |_| calls += 1);
    assert!(sim.flows_done());
    assert_eq!(sim.summary(|_| true).flows, 200);
    assert_eq!(sim.stats().drops, 0);
}

#[test]
fn a_workload_chooses_its_operation() {
    for irn in ["", "recovery = \"irn\"\n"] {
        let mut traces = Vec::new();
        for op in ["write", "send", "read"] {
            let text = GOOD.replace("load = 0.5", &format!("load = 0.5\nop = \"{op}\""));
            let text = text.replace("timeout = 0\n", &format!("timeout = 8\n{irn}"));
            let plan = Scenario::parse(&text).unwrap().plan(&mut |_| unreachable!()).unwrap();
            let mut sim = plan.start().unwrap();
            plan.run(&mut sim, &mut |_| {});
            let report = sim.report();
            assert_eq!((report.summary.flows, report.failed, report.unfinished), (200, 0, 0), "{op} {irn}");
            assert!(report.summary.slowdown_avg > 0.99, "{op} {irn}: {}", report.summary.slowdown_avg);
            traces.push(report.trace);
        }
        traces.dedup();
        assert_eq!(traces.len(), 3);
    }
}

#[test]
fn faults_are_named_with_key_and_remedy() {
    for (from, to, parts) in [
        ("rate = \"100G\"", "rate = \"0G\"", &["topology.rate", "too slow", "100G"][..]),
        ("rate = \"100G\"", "rate = \"fast\"", &["topology.rate", "number"]),
        ("rate = \"100G\"\n", "", &["topology.rate", "missing"]),
        ("delay = \"1us\"", "delay = \"1\"", &["topology.delay", "unit of time"]),
        ("kind = \"leaf-spine\"", "kind = \"torus\"", &["topology.kind", "torus", "fat-tree"]),
        ("leaves = 2", "leaves = 0", &["topology.leaves", "zero"]),
        ("spines = 2", "spine = 2", &["line 6: topology.spine", "expected one of"]),
        ("buffer = \"2MB\"", "buffer = \"10KB\"", &["switch.pfc.xoff", "above the buffer", "lower"]),
        ("xon = \"12 packets\"", "xon = \"16 packets\"", &["switch.pfc.xon", "above xoff"]),
        ("kmin = \"100KB\"", "kmin = \"500KB\"", &["switch.ecn.kmin", "below kmax"]),
        ("pmax = 0.2", "pmax = 20", &["switch.ecn.pmax", "0 to 1"]),
        ("mtu = 4096", "mtu = 1500", &["transport.mtu", "256, 512, 1024, 2048, 4096"]),
        ("timeout = 0", "timeout = 40", &["transport.timeout", "31"]),
        ("load = 0.5", "load = 0.5\nop = \"atomic\"", &["workload.op", "atomic", "write, send, read"]),
        ("load = 0.5", "load = 1.5", &["workload.load", "0 to 1"]),
        ("flows = 200", "flws = 200", &["line 25: workload.flws", "`flows`"]),
        ("kind = \"poisson\"", "kind = \"gaussian\"", &["workload.kind", "gaussian", "poisson"]),
        ("[workload]", "[traffic]", &["line 22: traffic", "`workload`"]),
    ] {
        let error = refused(&GOOD.replace(from, to));
        for part in parts {
            assert!(error.contains(part), "`{to}`: {error}");
        }
    }
}

#[test]
fn impossible_fabrics_and_traffic_are_refused() {
    let cables = |list: &str| {
        format!(
            "[topology]\nkind = \"cables\"\nhosts = 3\nswitches = 2\nrate = \"10G\"\ncables = [{list}]\n\
             [workload]\nkind = \"list\"\nlist = [{{ src = 0, dst = 1, bytes = \"1KB\" }}]\n"
        )
    };
    let cable = |a: &str, b: &str| format!("{{ from = \"{a}\", to = \"{b}\" }},");
    let two = cable("host 0", "switch 0") + &cable("host 1", "switch 0");
    assert!(refused(&cables(&two)).contains("host 2 has 0 cables"));
    let apart = two.clone() + &cable("host 2", "switch 1");
    assert!(refused(&cables(&apart)).contains("host 0 cannot reach host 2: add a cable"));
    let odd = apart.clone() + &cable("switch 0", "router 1");
    assert!(refused(&cables(&odd)).contains("topology.cables[3].to: `router 1` is not like"));
    let whole = apart + &cable("switch 0", "switch 1");
    let plan = Scenario::parse(&cables(&whole)).unwrap().plan(&mut |_| unreachable!()).unwrap();
    let mut sim = plan.start().unwrap();
    plan.run(&mut sim, &mut |_| {});
    assert!(sim.flows_done());
    let text = cables(&whole);
    assert!(refused(&text.replace("dst = 1", "dst = 0")).contains("send to itself"));
    assert!(refused(&text.replace("dst = 1", "dst = 9")).contains("host 9 does not exist; there are 3"));
    assert!(refused(&text.replace("1KB", "0")).contains("no bytes"));
    let script = text.clone() + "[faults]\nscript = \"drop everything\"\n";
    assert!(refused(&script).contains("`everything` is not one of"));
    let outage = text.clone() + "[[faults.outage]]\ncable = 77\nat = \"1us\"\n";
    assert!(refused(&outage).contains("faults.outage[0].cable: cable 77 does not exist"));
    let loss = text + "[[faults.link]]\nloss = 2\n";
    assert!(refused(&loss).contains("faults.link[0].loss: 2 is not a chance"));
}

#[test]
fn irn_is_chosen_and_checked() {
    let irn = |more: &str| GOOD.replace("[workload]", &format!("{more}\n[workload]"));
    let refuse = |more: &str| {
        let scenario = Scenario::parse(&irn(more)).unwrap_or_else(|e| panic!("{e}"));
        scenario.plan(&mut |_| unreachable!()).unwrap_err().to_string()
    };
    assert!(refuse("recovery = \"tcp\"").contains("not one of go-back-n, irn"));
    assert!(refuse("[transport.irn]\nscheme = \"no-sack\"").contains("goes with recovery"));
    assert!(refuse("recovery = \"irn\"\n[transport.irn]\nbdp-packets = 9999").contains("above the bitmaps'"));
    assert!(refuse("recovery = \"irn\"\n[transport.irn]\nrto-low = \"1s\"").contains("at most rto-high"));
    assert!(
        refuse("recovery = \"irn\"\n[transport.irn]\nheaders = \"no\"").contains("not one of wire, free")
    );
}

#[test]
fn congestion_control_is_chosen_and_checked() {
    use adverb_nic::{CongestionControl, DcqcnConfig, TimelyConfig};
    let with = |more: &str| {
        let text = GOOD.replace("[workload]", &format!("{more}\n[workload]"));
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        scenario.plan(&mut |_| unreachable!()).map(|plan| plan.config.transport.congestion)
    };
    assert_eq!(with(""), Ok(CongestionControl::Fixed));
    assert_eq!(with("congestion = \"halving\""), Ok(CongestionControl::Halving));
    let dcqcn = DcqcnConfig { g: 0.5, rate_additive: 5e9, ..DcqcnConfig::default() };
    let keys = "g = 0.5\nrate-additive = \"5G\"";
    let given = with(&format!("congestion = \"dcqcn\"\n[transport.dcqcn]\n{keys}"));
    assert_eq!(given, Ok(CongestionControl::Dcqcn(dcqcn)));
    let timely = TimelyConfig { segment: 1024, ..TimelyConfig::default() };
    let given = with("congestion = \"timely\"\n[transport.timely]\nsegment = \"1KiB\"");
    assert_eq!(given, Ok(CongestionControl::Timely(timely)));
    for (more, why) in [
        ("congestion = \"vegas\"", "not one of fixed, halving, dcqcn, timely, tcp"),
        ("[transport.tcp]", "goes with congestion = \"tcp\""),
        ("congestion = \"dcqcn\"\n[transport.dcqcn]\ng = 2.0", "transport.dcqcn.g: 2 is not above 0"),
        ("congestion = \"dcqcn\"\n[transport.dcqcn]\nrate-min = \"0G\"", "rate-min: is zero"),
        ("congestion = \"timely\"\n[transport.timely]\nt-low = \"1ms\"", "above t-high"),
        ("congestion = \"tcp\"\n[transport.tcp]\ninitial = 0", "at least 1 packet"),
    ] {
        let error = with(more).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

/// The scheme, the limit and the headers' size each leave their mark on a run with loss.
#[test]
fn irn_recovers_selectively_and_its_headers_take_time() {
    let run = |transport: &str| {
        let text = format!(
            "[topology]\nkind = \"two-hosts\"\nrate = \"40G\"\ndelay = \"2us\"\n\
             [transport]\nmtu = 1024\nretry-forever = true\n{transport}\n\
             [[faults.link]]\nlinks = [0]\nloss = 0.01\n\
             [workload]\nkind = \"list\"\nlist = [{{ src = 0, dst = 1, bytes = \"4MB\" }}]"
        );
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let mut sim = scenario.plan(&mut |_| unreachable!()).unwrap().start().unwrap();
        sim.run(u64::MAX, u64::MAX);
        let flow = sim.flows()[0];
        assert!(!flow.failed && flow.received <= flow.completed, "{flow:?}");
        (flow.received, sim.retransmissions())
    };
    let wire = run("recovery = \"irn\"");
    let free = run("recovery = \"irn\"\n[transport.irn]\nheaders = \"free\"");
    let all = run("recovery = \"irn\"\n[transport.irn]\nscheme = \"go-back-n\"");
    let plain = run("timeout = 6");
    assert!(free.0 < wire.0, "16 bytes on each packet: {free:?} {wire:?}");
    // About 40 of 3,907 packets are lost, and some of those that are sent again.
    assert!((20..80).contains(&wire.1), "{wire:?}");
    assert!(all.1 > 5 * wire.1 && plain.1 > 5 * wire.1, "{all:?} {plain:?} {wire:?}");
}

#[test]
fn the_examples_are_sound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "toml") {
            let plan = Scenario::load(&path).unwrap_or_else(|e| panic!("{e}"));
            seen += 1;
            if plan.cast.is_some() {
                let why = plan.start().err().map(|e| e.to_string()).unwrap_or_default();
                assert!(why.contains("known to `adverb sim` only"), "{why}");
                continue;
            }
            let mut sim = plan.start().unwrap();
            sim.run(200_000_000, 1_000_000);
            assert!(sim.stats().delivered > 0, "{}", path.display());
        }
    }
    assert!(seen >= 7);
}

#[test]
fn file_and_line_are_named() {
    let error = Scenario::load(Path::new("/nonexistent/x.toml")).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/x.toml"), "{error}");
    let path = std::env::temp_dir().join(format!("adverb-sim-scenario-{}.toml", std::process::id()));
    for (from, to, place) in [
        ("rate = \"100G\"", "rate = \"0G\"", ":8: topology.rate: "),
        ("buffer = \"2MB\"", "buffer = \"10KB\"", ":13: switch.pfc.xoff: "),
        ("flows = 200", "flws = 200", ":25: workload.flws: "),
        ("load = 0.5", "", ":22: workload.load: is missing"),
        ("kind = \"poisson\"\nload = 0.5", "kind = \"poisson\"\nload =", ":24: "),
    ] {
        std::fs::write(&path, GOOD.replace(from, to)).unwrap();
        let error = Scenario::load(&path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}{place}", path.display())), "{error}");
    }
    std::fs::write(&path, GOOD).unwrap();
    let file = adverb_sim::ScenarioFile::read(&path).unwrap();
    let seeds = [None, Some(3), Some(4)].map(|seed| file.plan(seed).unwrap());
    std::fs::remove_file(&path).unwrap();
    assert_eq!((seeds[0].config.seed, &seeds[0].flows), (3, &seeds[1].flows), "the file's own seed");
    assert_ne!(seeds[0].flows, seeds[2].flows);
}
