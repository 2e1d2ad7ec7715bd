//! Transports mixed in one fabric: IRN beside plain RC, by hosts and by workloads; what each connection
//! becomes, and what it costs it to lose packets.

use adverb_sim::ways::Recovery;
use adverb_sim::{Report, Scenario, Sim};

/// Six hosts at one switch; `more` stands behind the transport's table.
fn scenario(transport: &str, more: &str) -> String {
    format!(
        "seed = 5\nend = \"2s\"\n[topology]\nkind = \"star\"\nhosts = 6\nrate = \"40G\"\ndelay = \"2us\"\n\
         [switch]\nbuffer = \"8MB\"\nclasses = 2\n\
         [transport]\nmtu = 1024\nretry-forever = true\n{transport}\n{more}"
    )
}

const LOSS: &str = "[[faults.link]]\nloss = 0.002\n";

/// A workload of flows of 1 MB between two hosts, several in a row.
fn flows(name: &str, (src, dst): (u32, u32), keys: &str) -> String {
    let list: Vec<String> = (0..6)
        .map(|n| format!("{{ src = {src}, dst = {dst}, bytes = \"1MB\", start = \"{}ms\" }}", 4 * n))
        .collect();
    format!("[[workload]]\nname = \"{name}\"\nkind = \"list\"\n{keys}\nlist = [{}]\n", list.join(", "))
}

fn run(text: &str) -> (Sim, Report) {
    let plan = Scenario::parse(text).and_then(|s| s.plan(&mut |_| unreachable!()));
    let plan = plan.unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut sim = plan.start().unwrap_or_else(|e| panic!("{e}"));
    plan.run(&mut sim, &mut |_| {});
    sim.check_invariants();
    let report = sim.report();
    assert_eq!((report.failed, report.unfinished), (0, 0), "{text}");
    (sim, report)
}

fn refused(text: &str) -> String {
    let plan = Scenario::parse(text).and_then(|s| s.plan(&mut |_| unreachable!()));
    plan.err().map_or_else(|| panic!("accepted: {text}"), |e| e.to_string())
}

/// The one class of a workload: whether it is IRN's, its packets, those sent again.
fn class<'a>(report: &'a Report, name: &str) -> &'a Recovery {
    let of: Vec<_> = report.recoveries.iter().filter(|r| r.workload == name).collect();
    assert_eq!(of.len(), 1, "{name}: {:?}", report.recoveries);
    of[0]
}

/// What is lost costs IRN's connections about as many packets, and plain RC's a round trip's worth each time.
fn check_costs(report: &Report, irn: &[&str], plain: &[&str]) {
    let packets = 6 * 977;
    for name in irn {
        let c = class(report, name);
        assert!(c.irn && c.again > 0, "{c:?}");
        assert_eq!(c.packets, packets + c.again, "{c:?}");
        // Two links lose one of 500 each, ACKs too: about 24 losses, and nothing that arrived is repeated
        // but by a timeout.
        assert!(c.again < 100, "{c:?}");
    }
    for name in plain {
        let c = class(report, name);
        assert!(!c.irn, "{c:?}");
        assert_eq!(c.packets, packets + c.again, "{c:?}");
        assert!(c.again > 500, "a go-back for each loss: {c:?}");
    }
    let all: u64 = report.recoveries.iter().map(|r| r.again).sum();
    assert_eq!(all, report.retransmissions, "each is somebody's");
}

#[test]
fn hosts_with_irn_agree_and_fall_back_to_those_without() {
    let of = "recovery = \"irn\"\n[[transport.of]]\nhosts = [2, 3, 5]\nrecovery = \"go-back-n\"\n";
    let traffic = flows("new", (0, 1), "") + &flows("old", (2, 3), "") + &flows("between", (4, 5), "");
    let (_, report) = run(&scenario(of, &format!("{LOSS}{traffic}")));
    check_costs(&report, &["new"], &["old", "between"]);
    // The same, said the other way round.
    let of = "[[transport.of]]\nhosts = [0, 1, 4]\nrecovery = \"irn\"\n";
    let (_, other) = run(&scenario(of, &format!("{LOSS}{traffic}")));
    assert_eq!((report.trace, &report.recoveries), (other.trace, &other.recoveries));
    // A READ's data flow back, whichever end has it.
    let reads = flows("new", (0, 1), "op = \"read\"") + &flows("between", (5, 4), "op = \"read\"");
    let (_, report) = run(&scenario(of, &format!("{LOSS}{reads}")));
    assert!(class(&report, "new").irn && !class(&report, "between").irn, "{:?}", report.recoveries);
}

#[test]
fn workloads_of_the_same_hosts_recover_each_in_its_own_way() {
    let traffic = flows("new", (0, 1), "recovery = \"irn\"") + &flows("old", (0, 1), "");
    let (_, report) = run(&scenario("", &format!("{LOSS}{traffic}")));
    check_costs(&report, &["new"], &["old"]);
    // Queue pairs are used again: none keeps what the flow before it had agreed on.
    let traffic = flows("new", (0, 1), "") + &flows("old", (1, 0), "recovery = \"go-back-n\"");
    let (_, report) = run(&scenario("recovery = \"irn\"", &format!("{LOSS}{traffic}")));
    check_costs(&report, &["new"], &["old"]);
}

/// RoCE in a class with PFC, IRN in one without, at one congested port: only the one pauses, only the other
/// loses packets.
#[test]
fn each_has_a_class_of_its_own_with_pfc_and_without() {
    let (kinds, mut text) = ([("new", "irn", 0), ("old", "go-back-n", 1)], String::new());
    for (name, recovery, class) in kinds {
        text += &format!(
            "[[workload]]\nname = \"{name}\"\nkind = \"incast\"\nsenders = 5\nvictim = 0\nbytes = \"5MB\"\n\
             recovery = \"{recovery}\"\nclass = {class}\n"
        );
    }
    let pfc = "[switch.pfc]\nxoff = \"20KB\"\nclasses = [1]\n[transport]\n";
    // More in flight than the path holds, so that IRN's queue meets its share of the buffer.
    let text = scenario("timeout = 12\n[transport.irn]\nbdp-packets = 200\n", &text)
        .replace("\"8MB\"", "\"1200KB\"\nalpha = 0.5")
        .replace("[transport]\n", pfc);
    let (sim, report) = run(&text);
    let (new, old) = (class(&report, "new"), class(&report, "old"));
    assert!(new.irn && new.again > 0 && !old.irn && old.again == 0, "{:?}", report.recoveries);
    assert!(report.stats.pauses > 0 && report.stats.drops > 0, "{:?}", report.stats);
    let paused: Vec<bool> = (0..12).map(|link| sim.paused_ps(link) > 0).collect();
    assert!(paused.contains(&true), "{paused:?}");
}

/// By hellos, as on real hosts: connections that last agree on IRN if both ends know it, and until then, or
/// else, are plain RC.
#[test]
fn connections_find_out_by_hellos() {
    let of = "share-qp = true\nrecovery = \"irn\"\n[transport.irn]\nagreement = \"hello\"\n\
              [[transport.of]]\nhosts = [2, 3, 5]\nrecovery = \"go-back-n\"\n";
    let traffic = flows("new", (0, 1), "") + &flows("old", (2, 3), "") + &flows("between", (4, 5), "");
    let (sim, report) = run(&scenario(of, &traffic));
    let counter = |h: u32, name: &str| {
        sim.nic_counters(h).iter().find(|(n, _)| *n == name).map_or_else(|| panic!("{name}"), |(_, v)| v)
    };
    let counts = |name| (0..6).map(|h| counter(h, name)).collect::<Vec<_>>();
    assert_eq!(counts("irn_agreed"), [1, 1, 0, 0, 0, 0]);
    assert_eq!(counts("irn_unanswered"), [0, 0, 0, 0, 1, 0]);
    let hellos = counts("irn_hellos_sent");
    assert!(hellos[0] > 0 && hellos[4] > 1 && hellos[2] + hellos[3] + hellos[5] == 0, "{hellos:?}");
    // The first message of the two that agree was posted before they had; the later five are IRN's.
    let irn: u64 = report.recoveries.iter().filter(|r| r.irn).map(|r| r.packets).sum();
    let plain: u64 = report.recoveries.iter().filter(|r| !r.irn).map(|r| r.packets).sum();
    assert_eq!((irn, plain), (5 * 977, 13 * 977), "{:?}", report.recoveries);
}

#[test]
fn what_would_do_nothing_or_cannot_be_is_refused() {
    let list = flows("x", (0, 1), "");
    let of = |hosts: &str, name: &str| format!("[[transport.of]]\nhosts = {hosts}\nrecovery = \"{name}\"\n");
    let irn = "recovery = \"irn\"\n";
    let calls = "[[workload]]\nkind = \"connections\"\nserver = 0\nclients = [1]\nconnections = 1\n\
                 bytes = \"1KB\"\nresponse = \"1KB\"\nuntil = \"1ms\"\n";
    for (transport, workload, why) in [
        (of("[9]", "irn"), list.clone(), "transport.of[0].hosts: host 9 does not exist; there are 6"),
        (of("[1, 1]", "irn"), list.clone(), "transport.of[0].hosts: host 1 is named twice"),
        (of("[1]", "tcp"), list.clone(), "transport.of[0].recovery: `tcp` is not one of go-back-n, irn"),
        (of("[1]", "go-back-n"), list.clone(), "transport.of: leaves all hosts alike"),
        (of("[0, 1, 2, 3, 4, 5]", "irn"), list.clone(), "transport.of: leaves all hosts alike"),
        (
            format!("kind = \"star\"\n[transport.star]\nstateless = [0]\n{}", of("[1]", "irn")),
            calls.to_owned(),
            "transport.of: is of plain RC",
        ),
        (format!("kind = \"1rma\"\n{}", of("[1]", "irn")), list.clone(), "is for queue pairs"),
        (format!("{irn}[transport.irn]\nagreement = \"hello\"\n"), list.clone(), "add transport.share-qp"),
        (format!("{irn}[transport.irn]\nagreement = \"no\"\n"), list.clone(), "not one of set-up, hello"),
        (String::new(), flows("x", (0, 1), "recovery = \"tcp\""), "workload.recovery: `tcp` is not one"),
        (
            format!("{irn}{}", of("[1]", "go-back-n")),
            flows("x", (0, 1), "recovery = \"irn\""),
            "workload.recovery: goes without [[transport.of]]",
        ),
        (
            format!("share-qp = true\n{irn}"),
            flows("x", (0, 1), "recovery = \"go-back-n\""),
            "name hosts by [[transport.of]]",
        ),
        (String::new(), flows("x", (0, 1), "class = 2"), "workload.class: 2 does not exist; there are 2"),
        ("[transport.irn]\n".to_owned(), list.clone(), "transport.irn: goes with recovery = \"irn\""),
    ] {
        let error = refused(&scenario(&transport, &workload));
        assert!(error.contains(why), "{error}\nwanted: {why}");
    }
}
