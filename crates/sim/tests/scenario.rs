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
ecn = true
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
        ("kmin = \"100KB\"", "kmin = \"500KB\"", &["switch.ecn.kmin", "above kmax"]),
        ("pmax = 0.2", "pmax = 20", &["switch.ecn.pmax", "0 to 1"]),
        ("mtu = 4096", "mtu = 1500", &["transport.mtu", "256, 512, 1024, 2048, 4096"]),
        ("timeout = 0", "timeout = 40", &["transport.timeout", "31"]),
        ("load = 0.5", "load = 0.5\nop = \"atomic\"", &["workload.op", "atomic", "write, send, read"]),
        ("load = 0.5", "load = 1.5", &["workload.load", "0 to 1"]),
        ("flows = 200", "flws = 200", &["line 26: workload.flws", "`flows`"]),
        ("kind = \"poisson\"", "kind = \"gaussian\"", &["workload.kind", "gaussian", "poisson"]),
        ("[workload]", "[traffic]", &["line 23: traffic", "`workload`"]),
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

/// Flows of a closed loop follow its own ones only, and all have the names of their workloads.
#[test]
fn flows_go_by_the_names_of_their_workloads() {
    let text = GOOD.replace("[workload]", "[[workload]]\nname = \"background\"")
        + "sizes = \"fixed 20KB\"\n[[workload]]\nkind = \"closed-loop\"\npairs = [[0, 5], [1, 6]]\n\
           bytes = \"100B\"\nresponse = \"2MB\"\nrounds = 3\n";
    let plan = Scenario::parse(&text).unwrap().plan(&mut |_| unreachable!()).unwrap();
    let mut sim = plan.start().unwrap();
    plan.run(&mut sim, &mut |_| {});
    assert_eq!(sim.flows().len(), 200 + 2 * 3 * 2);
    let classes = sim.slowdowns();
    let seen: Vec<_> = classes.iter().map(|c| (c.workload.as_str(), c.from, c.to, c.flows)).collect();
    let expected = [
        ("background", 10_000, Some(100_000), 200),
        ("closed-loop", 0, Some(1_000), 6),
        ("closed-loop", 1_000_000, Some(10_000_000), 6),
    ];
    assert_eq!(seen, expected);
    for class in &classes {
        let [p50, p95, p99] = class.percentiles.map(Option::unwrap);
        assert!((1.0..=class.mean.unwrap().max(p50)).contains(&p50) && p50 <= p95 && p95 <= p99, "{class:?}");
    }
    let flows = sim.flows_csv();
    let named = |name: &str| flows.lines().filter(|line| line.ends_with(name)).count();
    assert_eq!((named(",0,0,background"), named(",closed-loop")), (200, 12));
    assert_eq!(sim.slowdowns_csv().lines().count(), 4);
    let bad = text.replace("background", "a,b");
    assert!(refused(&bad).contains("workload[0].name: `a,b`: letters, digits"), "{}", refused(&bad));
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
    assert!(
        refuse("recovery = \"irn\"\n[transport.irn]\nbdp-packets = 99999").contains("above the bitmaps'")
    );
    assert!(refuse("recovery = \"irn\"\n[transport.irn]\nrto-low = \"1s\"").contains("at most rto-high"));
    assert!(
        refuse("recovery = \"irn\"\n[transport.irn]\nheaders = \"no\"").contains("not one of wire, free")
    );
}

/// What is asked for and could not come to pass is refused, with the remedy.
#[test]
fn keys_that_would_do_nothing_are_refused() {
    let dcqcn = GOOD.replace("ecn = true", "ecn = true\ncongestion = \"dcqcn\"");
    let marks = "[switch.ecn]\nkmin = \"100KB\"\nkmax = \"400KB\"\npmax = 0.2\n";
    for (text, why) in [
        (dcqcn.replace("ecn = true\n", ""), "transport.ecn: is not set, so that no packet could be marked"),
        (dcqcn.replace(marks, ""), "no switch makes any; add [switch.ecn]"),
        (GOOD.replace("ecn = true\n", ""), "switch.ecn: marks nothing"),
        (GOOD.replace(marks, ""), "transport.ecn: has no switch that marks"),
        (
            GOOD.replace("ecn = true", "ecn = true\ncongestion = \"timely\"\nack-every = 100"),
            "transport.ack-every",
        ),
        (GOOD.replace("flows = 200", "flows = 0"), "workload: has no flow: nobody would send anything"),
        (
            GOOD.replace("flows = 200", "flows = 200\nstart = \"2ms\"")
                .replace("seed", "end = \"1ms\"\nseed"),
            "end: ",
        ),
    ] {
        let error = refused(&text);
        assert!(error.contains(why), "{error}");
    }
    Scenario::parse(&dcqcn).unwrap().plan(&mut |_| unreachable!()).unwrap();
}

/// BDP-FC by the topology, and PFC's threshold by the buffer: IRN's default scenario has 110 packets.
#[test]
fn what_a_scenario_leaves_out_follows_from_its_topology() {
    let plan = |rate: &str, delay: &str, rest: &str| {
        let text = format!(
            "[topology]\nkind = \"fat-tree\"\nk = 6\nrate = \"{rate}\"\ndelay = \"{delay}\"\n\
             [switch]\ndiscipline = \"input-queued\"\nbuffer = \"240KB\"\n[switch.pfc]\n{rest}\
             [transport]\nmtu = 1024\nrecovery = \"irn\"\n\
             [workload]\nkind = \"poisson\"\nload = 0.7\nflows = 9\n"
        );
        let plan = Scenario::parse(&text).and_then(|s| s.plan(&mut |_| unreachable!()));
        plan.map(|p| {
            let irn = p.config.transport.irn.unwrap();
            assert_eq!(irn.wide, irn.bdp_packets.unwrap() > 512, "as wide as it has to be");
            (irn.bdp_packets, p.config.switch.pfc[0].unwrap())
        })
    };
    let (packets, pfc) = plan("40G", "2us", "headroom = \"20KB\"\n").unwrap();
    assert_eq!((packets, pfc.xoff), (Some(110), 220_000));
    assert_eq!(plan("10G", "2us", "").unwrap().0, Some(27));
    assert_eq!(plan("100G", "2us", "").unwrap().0, Some(276));
    let small = "xoff = \"1KB\"\nheadroom = \"1KB\"\n";
    assert_eq!(plan("400G", "10us", small).unwrap().0, Some(5524));
    let far = plan("400G", "100us", small).unwrap_err().to_string();
    assert!(
        far.contains("bdp-packets: is missing, and the topology's bandwidth-delay product of 55248"),
        "{far}"
    );
    let over = plan("40G", "2us", "xoff = \"230KB\"\n").unwrap_err().to_string();
    assert!(over.contains("switch.pfc.xoff: 230000 bytes and a headroom of 23318 are above"), "{over}");
    let none = plan("400G", "4us", "").unwrap_err().to_string();
    assert!(none.contains("switch.pfc.headroom: leaves nothing"), "{none}");
}

#[test]
fn congestion_control_is_chosen_and_checked() {
    use adverb_nic::{CongestionControl, DcqcnConfig, DctcpConfig, TimelyConfig};
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
        ("congestion = \"dctcp\"\n[transport.tcp]\nslow-start = false", "goes with congestion = \"tcp\""),
        ("[transport.hpcc]", "goes with congestion = \"hpcc\""),
        ("congestion = \"dctcp\"\nack-every = 4", "transport.ack-every: 4: \"dctcp\" goes by"),
        ("congestion = \"dctcp\"\n[transport.dctcp]\ng = 0.0", "transport.dctcp.g: 0 is not above 0"),
        ("congestion = \"swift\"", "transport.swift.target: is missing"),
        ("congestion = \"swift\"\n[transport.swift]\ntarget = \"9us\"\nai = -1.0", "-1 is not above 0"),
        ("congestion = \"hpcc\"\n[transport.hpcc]\neta = 0.9", "transport.hpcc.base-rtt: is missing"),
        ("congestion = \"hpcc\"\n[transport.hpcc]\nbase-rtt = \"9us\"\neta = 1.5", "1.5 is not above 0 and"),
    ] {
        let error = with(more).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let dctcp = DctcpConfig { g: 0.25, ..DctcpConfig::default() };
    let given = with("congestion = \"dctcp\"\n[transport.dctcp]\ng = 0.25");
    assert_eq!(given, Ok(CongestionControl::Dctcp(dctcp)));
    // What a scheme needs of the rest.
    for (scheme, from, to, why) in [
        ("dcqcn", "[switch.ecn]\nkmin = \"100KB\"\nkmax = \"400KB\"\npmax = 0.2\n", "", "add [switch.ecn]"),
        ("dctcp", "[switch.ecn]\nkmin = \"100KB\"\nkmax = \"400KB\"\npmax = 0.2\n", "", "add [switch.ecn]"),
        ("dctcp", "load = 0.5", "load = 0.5\nop = \"read\"", "nobody acknowledges answers"),
        ("dctcp", "load = 0.5", "load = 0.5\nvictim = 1", "workload.victim"),
    ] {
        let text = GOOD.replace("mtu = 4096", &format!("mtu = 4096\ncongestion = \"{scheme}\""));
        let error = refused(&text.replace(from, to));
        assert!(error.contains(why), "{scheme}: {error}");
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

/// Nothing is lost on a long path, and only what may be in flight tells the series apart: without BDP-FC no
/// bitmap bounds it, and a product above a narrow bitmap's is taken from the topology.
#[test]
fn a_long_path_is_filled_without_bdp_fc_and_by_the_topology_s_product() {
    let run = |mbytes: u32, transport: &str| {
        let text = format!(
            "[topology]\nkind = \"two-hosts\"\nrate = \"100G\"\ndelay = \"100us\"\n\
             [transport]\nmtu = 1024\n{transport}\n\
             [workload]\nkind = \"list\"\nlist = [{{ src = 0, dst = 1, bytes = \"{mbytes}MB\" }}]"
        );
        let scenario = Scenario::parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let plan = scenario.plan(&mut |_| unreachable!())?;
        let mut sim = plan.start().unwrap_or_else(|e| panic!("{e}"));
        sim.run(u64::MAX, u64::MAX);
        let flow = sim.flows()[0];
        assert!(!flow.failed && flow.received <= flow.completed, "{flow:?}");
        Ok::<_, adverb_sim::Error>(flow.received as f64)
    };
    let irn = |packets: &str| {
        let text = format!("recovery = \"irn\"\n[transport.irn]\nheaders = \"free\"\n{packets}");
        run(20, &text).unwrap_or_else(|e| panic!("{e}"))
    };
    let roce = run(20, "timeout = 0").unwrap_or_else(|e| panic!("{e}"));
    let narrow = irn("bdp-packets = 512") / roce;
    for packets in ["bdp-packets = 0", "bdp-packets = 2400", ""] {
        let ratio = irn(packets) / roce;
        assert!((0.99..1.02).contains(&ratio), "{packets}: {ratio}");
    }
    assert!(narrow > 3.5, "the old bound showed: {narrow}");
    let long = run(40, "recovery = \"irn\"\n[transport.irn]\nbdp-packets = 0").unwrap_err().to_string();
    assert!(long.contains("32768 packets would bound flows of 39063 instead"), "{long}");
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
        ("flows = 200", "flws = 200", ":26: workload.flws: "),
        ("load = 0.5", "", ":23: workload.load: is missing"),
        ("kind = \"poisson\"\nload = 0.5", "kind = \"poisson\"\nload =", ":25: "),
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
