//! `adverb sim` as its user sees it: what it prints and writes, what it refuses and how.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("adverb-cli-sim-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).arg("sim").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn accepted(words: &[&str]) -> String {
    let output = sim(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "nothing but the answer without a terminal: {}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(words: &[&str]) -> String {
    let output = sim(words);
    assert_eq!(output.status.code(), Some(1), "{words:?}: {}", text(&output.stdout));
    assert!(output.stdout.is_empty(), "refused before time starts");
    text(&output.stderr)
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/sim/examples");
    folder.join(name).canonicalize().unwrap().display().to_string()
}

const SMALL: &str = "\
[topology]
kind = \"star\"
hosts = 4
rate = \"100G\"
[switch]
buffer = \"40KB\"
[transport]
mtu = 1024
[workload]
kind = \"poisson\"
load = 0.9
flows = 60
sizes = \"fixed 20KB\"
";

#[test]
fn an_example_runs_and_says_how_it_went() {
    let said = accepted(&[&example("incast.toml"), "--stats"]);
    for part in [
        "32 hosts, 8 switches, 48 cables",
        "420 ended, 0 failed, 0 unfinished",
        "average slowdown",
        "p99.9",
        "retransmissions",
        "ECN marks",
        "trace ",
        "link-hops/s",
        "peak RSS",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!accepted(&[&example("faults.toml")]).contains("peak RSS"), "only where it was asked for");
}

/// IRN beside plain RC: a row for each class of flows, and what a loss costs it.
#[test]
fn transports_that_are_mixed_are_counted_apart() {
    let said = accepted(&[&example("mixed.toml")]);
    let again = |class: &str| {
        let row = said.lines().find_map(|line| line.strip_prefix("recovery")?.trim().strip_prefix(class));
        let row = row.unwrap_or_else(|| panic!("{class}: {said}"));
        let numbers: Vec<f64> = row.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(numbers.len(), 2, "{row}");
        numbers[1] / numbers[0]
    };
    let (new, old, between) =
        (again("new by IRN:"), again("old by go-back-N:"), again("between by go-back-N:"));
    assert!(new > 0.0 && old > 3.0 * new && between > 3.0 * new, "{said}");
    assert!(!accepted(&[&example("faults.toml")]).contains("recovery"), "only where they are mixed");
}

#[test]
fn results_do_not_depend_on_the_jobs() {
    let folder = Folder::new("jobs");
    let scenario = folder.file("small.toml", SMALL);
    let run = |jobs: &str| {
        let out = folder.path(jobs);
        let said = accepted(&[&scenario, "--seeds", "6", "--jobs", jobs, "--seed", "40", "--out", &out]);
        let mut records = Vec::new();
        for seed in 40..46 {
            for name in ["flows.csv", "ports.csv", "queues.csv"] {
                records.push(fs::read_to_string(format!("{out}/seed-{seed}/{name}")).unwrap());
            }
        }
        (said, records)
    };
    let one = run("1");
    assert!(one.0.contains("mean over 6 seeds ± 95% confidence interval"), "{}", one.0);
    let traces: Vec<&str> = one.0.lines().filter(|l| l.starts_with("trace")).collect();
    assert_eq!(traces.len(), 6);
    assert_ne!(traces[0].split_whitespace().nth(1), traces[1].split_whitespace().nth(1));
    for jobs in ["2", "5"] {
        assert!(run(jobs) == one, "{jobs} jobs");
    }
    let alone = accepted(&[&scenario, "--seed", "42"]);
    let trace = alone.lines().find_map(|l| l.strip_prefix("trace")).unwrap().trim();
    assert!(one.0.contains(&format!("{trace} of seed 42")), "{trace}: {}", one.0);
}

#[test]
fn records_and_captures_are_written() {
    let folder = Folder::new("records");
    let (scenario, out, pcap) = (folder.file("small.toml", SMALL), folder.path("out"), folder.path("a.pcap"));
    let trace = folder.path("trace.perfetto");
    let said = accepted(&[&scenario, "--out", &out, "--pcap", &format!("1:{pcap}"), "--perfetto", &trace]);
    assert!(said.contains("perfetto          4 hosts, 120 queue pairs, 120 slices, "), "{said}");
    assert!(fs::read(trace).unwrap().len() > 100_000);
    // To look changes nothing.
    let hash = |said: &str| said.lines().find(|line| line.starts_with("trace")).unwrap().to_owned();
    assert_eq!(hash(&said), hash(&accepted(&[&scenario])));
    let lines = |name: &str| fs::read_to_string(format!("{out}/{name}")).unwrap().lines().count();
    assert_eq!((lines("flows.csv"), lines("ports.csv")), (61, 9));
    assert_eq!(lines("slowdowns.csv"), 2, "flows of one size");
    assert!(lines("queues.csv") > 1, "a queue of a star at 90% load is seen");
    let bytes = fs::read(pcap).unwrap();
    assert!(bytes.len() > 1000, "{} bytes", bytes.len());
}

#[test]
fn refusals_name_file_line_key_and_remedy() {
    let folder = Folder::new("refusals");
    let apart = "[topology]\nkind = \"cables\"\nhosts = 2\nswitches = 2\nrate = \"10G\"\n\
                 cables = [{ from = \"host 0\", to = \"switch 0\" }, \
                 { from = \"host 1\", to = \"switch 1\" }]\n\
                 [workload]\nkind = \"permutation\"\nbytes = \"1KB\"\n";
    let pfc = "buffer = \"40KB\"\n[switch.pfc]\nxoff = \"50KB\"\n";
    for (scenario, place, remedy) in [
        (apart.to_owned(), ":1: topology: host 0 cannot reach host 1", "add a cable"),
        (SMALL.replace("100G", "0"), ":4: topology.rate: ", "give at least 1M"),
        (SMALL.replace("buffer = \"40KB\"\n", pfc), ":8: switch.pfc.xoff: ", "lower"),
        (SMALL.replace("mtu", "mtus"), ":8: transport.mtus: unknown field", "`mtu`"),
        (SMALL.replace("1024", "1000"), ":8: transport.mtu: 1000 is not one of", "1024"),
        (SMALL.replace("load = 0.9", "load = 0"), ":11: workload.load: ", "0 to 1"),
        (SMALL.replace("hosts = 4", "hosts = many"), ":3: ", ""),
    ] {
        let path = folder.file("bad.toml", &scenario);
        let said = refused(&[&path]);
        let start = format!("adverb: {path}{place}");
        assert!(said.starts_with(&start) && said.contains(remedy), "{start} .. {remedy}: {said}");
    }
    assert!(refused(&[&folder.path("none.toml")]).contains("none.toml: file: "));
    let path = folder.file("small.toml", SMALL);
    let said = refused(&[&path, "--pcap", "8:x.pcap"]);
    assert!(said.contains("--pcap 8: no such link; there are 8"), "{said}");
    assert!(refused(&[&path, "--pcap", "1:x.pcap", "--seeds", "2"]).contains("leave out --seeds"));
    let said = refused(&[&path, "--out", "/proc/none/x"]);
    assert!(said.contains("--out") && said.contains("/proc/none/x"), "{said}");
    assert!(refused(&[&path, "--seed", "18446744073709551615", "--seeds", "2"]).contains("--seed"));
}

/// Five switches in a ring, and every host sends to the one that is two switches on: each port comes to wait
/// for the next, and the answer names them.
#[test]
fn a_deadlock_names_its_cycle() {
    let folder = Folder::new("deadlock");
    let (mut cables, mut flows) = (String::new(), String::new());
    for n in 0..5 {
        cables += &format!("{{ from = \"host {n}\", to = \"switch {n}\" }}, ");
        cables += &format!("{{ from = \"switch {n}\", to = \"switch {}\" }}, ", (n + 1) % 5);
        flows += &format!("{{ src = {n}, dst = {}, bytes = \"2MB\" }}, ", (n + 2) % 5);
    }
    let ring = format!(
        "end = \"5ms\"\n[topology]\nkind = \"cables\"\nhosts = 5\nswitches = 5\nrate = \"100G\"\ncables = \
         [{cables}]\n\
         [switch.pfc]\nxoff = \"4 packets\"\nxon = \"2 packets\"\n\
         [transport]\ntimeout = 0\n[workload]\nkind = \"list\"\nlist = [{flows}]\n"
    );
    let said = accepted(&[&folder.file("ring.toml", &ring)]);
    let cycle = said.lines().find(|l| l.starts_with("PFC deadlock")).unwrap_or_else(|| panic!("{said}"));
    for n in 0..5 {
        let link = format!("switch {n} -> switch {}", (n + 1) % 5);
        assert!(cycle.contains(&link), "{link}: {cycle}");
    }
    assert!(said.contains("0 ended, 0 failed, 5 unfinished"), "{said}");
}

fn adverb(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).args(words).output().unwrap()
}

#[test]
fn swarms_pass_and_broken_nics_are_found() {
    let output = adverb(&["swarm", "--seeds", "20", "--first", "7"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.starts_with("20 seeds, 0 failed; "), "{said}");
    let alone = adverb(&["swarm", "--seeds", "20", "--first", "7", "--jobs", "1"]);
    assert_eq!(text(&alone.stdout), said, "whatever the jobs");

    let hashed = text(&adverb(&["swarm", "--seeds", "20", "--first", "7", "--jobs", "2", "--hash"]).stdout);
    let other = text(&adverb(&["swarm", "--seeds", "20", "--first", "8", "--jobs", "1", "--hash"]).stdout);
    let (counts, hash) = hashed.split_once("hash ").unwrap_or_else(|| panic!("{hashed}"));
    assert_eq!((counts, hash.trim().len()), (said.as_str(), 16), "the usual line, and 16 digits behind it");
    let again = text(&adverb(&["swarm", "--seeds", "20", "--first", "7", "--jobs", "1", "--hash"]).stdout);
    assert_eq!(again, hashed, "whatever the jobs");
    assert!(!other.ends_with(hash), "other seeds have another hash");

    let output = adverb(&["swarm", "--1rma", "--seeds", "20", "--first", "7"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.starts_with("20 seeds, 0 failed; "), "{said}");
    let output = adverb(&["replay", "--1rma", "8", "--limit", "50"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("seed 8: nothing wrong"), "{said}");
    assert!(
        said.contains("Request(") && said.contains("transfer "),
        "messages and transfers are shown: {said}"
    );

    let broken = adverb(&[
        "swarm",
        "--seeds",
        "40",
        "--sabotage",
        "completion-twice",
        "--failures",
        "1",
        "--jobs",
        "1",
    ]);
    let said = text(&broken.stdout);
    assert_eq!(broken.status.code(), Some(1), "{said}");
    let seed = said
        .strip_prefix("seed ")
        .and_then(|s| s.split_once(" failed"))
        .unwrap_or_else(|| panic!("{said}"))
        .0;

    let words = ["replay", seed, "--sabotage", "completion-twice", "--around-failure", "--limit", "15"];
    let output = adverb(&words);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("WRONG: side ") && shown.contains(" us  host "), "{shown}");
    assert!(shown.lines().count() < 40, "{shown}");
    assert_eq!(text(&adverb(&words).stdout), shown, "a replay is the same each time");

    let whole = adverb(&["replay", seed]);
    let shown = text(&whole.stdout);
    assert!(whole.status.success() && shown.contains("nothing wrong"), "without sabotage it passes");
    assert!(shown.contains("posts request 0 on queue pair 0: ") && shown.contains(" PSN 0x"), "{shown}");
    assert_eq!(text(&adverb(&["replay", seed, "--limit", "3"]).stdout).lines().count(), 5);
    let refused = adverb(&["swarm", "--sabotage", "x"]);
    assert!(text(&refused.stderr).contains("completion-twice"), "{}", text(&refused.stderr));
}

/// StaR's swarm has a work of its own, finds what only its NICs can do wrong, and says how to see it again.
#[test]
fn the_swarm_of_star_is_one_of_its_own_and_replays() {
    let output = adverb(&["swarm", "--star", "--seeds", "30", "--first", "7"]);
    let said = text(&output.stdout);
    assert!(output.status.success() && said.starts_with("30 seeds, 0 failed; "), "{said}");
    let plain = text(&adverb(&["swarm", "--seeds", "30", "--first", "7"]).stdout);
    assert_ne!(plain, said, "it is not the swarm without StaR");

    let shown = (0..10).map(|seed| text(&adverb(&["replay", "--star", &seed.to_string()]).stdout));
    let shown: Vec<String> = shown.collect();
    assert!(shown.iter().all(|s| s.contains("nothing wrong")), "{shown:?}");
    assert!(shown.iter().any(|s| s.contains("RemoteData")), "packets of StaR are shown");

    let words = ["swarm", "--star", "--sabotage", "star-copies", "--seeds", "100", "--failures", "1"];
    let found = adverb(&words);
    let said = text(&found.stdout);
    assert_eq!(found.status.code(), Some(1), "{said}");
    let line = said.split('`').nth(1).unwrap_or_else(|| panic!("no line to replay: {said}"));
    assert!(line.contains(" --star --sabotage star-copies"), "{line}");
    let replayed = adverb(&line.split(' ').skip(1).collect::<Vec<_>>());
    assert_eq!(replayed.status.code(), Some(1), "{}", text(&replayed.stdout));
    for (words, part) in [
        (&["swarm", "--sabotage", "star-late"][..], "--sabotage star-late: needs --star"),
        (&["replay", "1", "--sabotage", "star-late"], "--sabotage star-late: needs --star"),
        (&["swarm", "--star", "--1rma"], "cannot be used with"),
        (&["swarm", "--star", "--app", "lock"], "cannot be used with"),
        (&["swarm", "--star", "--redn"], "cannot be used with"),
    ] {
        let refused = adverb(words);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(part), "{words:?}: {said}");
    }
}

/// Programs are tried under faults, their planted bugs found, and the line that is printed replays the seed.
#[test]
fn systems_of_programs_are_tried_and_replayed() {
    for app in ["lock", "locks", "queue", "catalog", "chain", "tree"] {
        let output = adverb(&["swarm", "--app", app, "--seeds", "100"]);
        let said = text(&output.stdout);
        assert!(output.status.success() && said.starts_with("100 seeds, 0 failed; "), "{app}: {said}");
        assert!(said.contains(" calls made, ") && said.contains(" programs killed"), "{said}");
    }
    for (app, bug) in [
        ("lock", "early-release"),
        ("locks", "early-release"),
        ("queue", "torn-header"),
        ("catalog", "early-head"),
        ("chain", "unlinked-ack"),
        ("tree", "early-release"),
    ] {
        let found = adverb(&["swarm", "--app", app, "--bug", bug, "--seeds", "10000", "--failures", "1"]);
        let said = text(&found.stdout);
        assert_eq!(found.status.code(), Some(1), "{said}");
        let line = said.split('`').nth(1).unwrap_or_else(|| panic!("no line to replay: {said}"));
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        assert_eq!(words[0], "replay");
        let replayed = adverb(&words);
        let shown = text(&replayed.stdout);
        assert_eq!(replayed.status.code(), Some(1), "{shown}");
        assert!(shown.contains("(host ") && shown.contains("no order of its"), "{shown}");
        assert_eq!(text(&adverb(&words).stdout), shown, "a replay is the same each time");
        let sound = adverb(&["replay", words[1], "--app", app, "--limit", "1"]);
        assert!(sound.status.success(), "without the bug it passes: {}", text(&sound.stdout));
    }
    for (words, part) in [
        (&["swarm", "--app", "lokc"][..], "not one of lock, locks, queue"),
        (&["swarm", "--app", "lock", "--bug", "torn-header"], "can be broken by: early-release"),
        (&["replay", "1", "--bug", "torn-header"], "--app"),
        (&["swarm", "--app", "lock", "--1rma"], "cannot be used with"),
    ] {
        let refused = adverb(words);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(part), "{words:?}: {said}");
    }
}

#[test]
fn programs_of_a_scenario_run_and_are_judged() {
    let path = example("programs.toml");
    let said = accepted(&[&path, "--quiet"]);
    let lines = |start: &str| said.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((lines("serve 0"), lines("work "), lines("oracle")), (1, 3, 1), "{said}");
    assert!(said.contains("work 0            ended"), "{said}");
    assert!(said.contains("work 1            ended, after 1 lives that were cut off"), "{said}");
    assert!(said.contains("acquire []") && said.contains("store ["), "{said}");
    assert!(said.contains("an order of the operations explains every answer"), "{said}");
    assert_eq!(said, accepted(&[&path, "--quiet"]), "a seed replays a run");
    // What was planted is found, in one seed or another, with the exit status.
    let folder = Folder::new("programs");
    let good = fs::read_to_string(&path).unwrap();
    let bad = good.replace("system = \"lock\"", "system = \"lock\"\nbug = \"early-release\"");
    let bad = folder.file("bad.toml", &bad.replace("loss = 0.01", "loss = 0.1"));
    let found = sim(&[&bad, "--seeds", "300", "--quiet"]);
    assert_eq!(found.status.code(), Some(1), "{}", text(&found.stdout));
    assert!(text(&found.stdout).contains("FAILS: "), "{}", text(&found.stdout));
    assert!(text(&found.stderr).contains("bad.toml: programs: seed "), "{}", text(&found.stderr));
    for (from, to, parts) in [
        ("system = \"lock\"", "system = \"latch\"", ["programs.system", "lock, locks, queue"]),
        ("rounds = 6", "round = 6", ["programs.run[1].round", "rounds, values, timeout"]),
        ("rounds = 6", "rounds = 0", ["programs.run[1].rounds", "from 1 to"]),
        ("role = \"work\"", "role = \"play\"", ["programs.faults[0].program", "play 0, play 1"]),
        ("role = \"serve\"", "role = \"work\"", ["programs.run", "stands first"]),
        ("hosts = [1, 2, 3]", "hosts = [1, 2, 4]", ["programs.run[1].hosts", "host 4 does not exist"]),
        ("program = \"work 1\"", "program = \"work 3\"", ["programs.faults[2].program", "work 2"]),
        ("what = \"stop\"", "what = \"pause\"", ["programs.faults[0].what", "stop, continue"]),
    ] {
        let why = refused(&[&folder.file("refused.toml", &good.replacen(from, to, 1))]);
        assert!(why.contains("refused.toml") && parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

/// Those that a switch's programs are made for: what they did is judged, what is planted is found, and a key
/// that there is not is refused with those that there are.
#[test]
fn trees_locks_and_chains_run_in_scenarios() {
    let said = accepted(&[&example("tree.toml"), "--quiet"]);
    for part in ["work 1            killed", "put [", "stores_passed", "explains every answer"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let folder = Folder::new("shared");
    let of = |system: &str, more: &str, keys: &str| {
        format!(
            "seed = 3\n[topology]\nkind = \"star\"\nhosts = 4\nrate = \"40G\"\n[[faults.link]]\nloss = 0.05\n\
             [programs]\nsystem = \"{system}\"\n{more}[[programs.run]]\nrole = \"serve\"\nhosts = [0]\n\
             [[programs.run]]\nrole = \"work\"\nhosts = [1, 2, 3]\n{keys}"
        )
    };
    for (system, bug, done) in [
        ("locks", "early-release", "try ["),
        ("chain", "unlinked-ack", "put ["),
        ("tree", "early-release", "put ["),
    ] {
        let good = folder.file("good.toml", &of(system, "", "rounds = 12\n"));
        let said = accepted(&[&good, "--quiet"]);
        assert!(said.contains(done) && said.contains("explains every answer"), "{system}: {said}");
        let bad = folder.file("bad.toml", &of(system, &format!("bug = \"{bug}\"\n"), "rounds = 12\n"));
        let found = sim(&[&bad, "--seeds", "300", "--quiet"]);
        assert_eq!(found.status.code(), Some(1), "{system}: {}", text(&found.stdout));
        assert!(text(&found.stdout).contains("FAILS: "), "{system}");
        let why = refused(&[&folder.file("key.toml", &of(system, "", "round = 3\n"))]);
        assert!(why.contains("programs.run[1].round") && why.contains("rounds, "), "{why}");
        let why = refused(&[&folder.file("bug.toml", &of(system, "bug = \"none\"\n", ""))]);
        assert!(why.contains("programs.bug") && why.contains(bug), "{why}");
    }
}

#[test]
fn producers_and_a_flow_share_a_fabric() {
    let folder = Folder::new("queue");
    let file = folder.file(
        "queue.toml",
        "seed = 3\n[topology]\nkind = \"star\"\nhosts = 3\nrate = \"40G\"\n[programs]\nsystem = \
         \"queue\"\n[[programs.run]]\nrole = \"consume\"\nhosts = [0]\nslots = \
         4\n[[programs.run]]\nrole = \"produce\"\nhosts = [1, 2]\nitems = 20\n[workload]\nkind = \
         \"list\"\nlist = [{ src = 1, dst = 0, bytes = \"1MB\" }]\n",
    );
    let said = accepted(&[&file, "--quiet"]);
    // Each of 40 elements is queued and taken, and the consumer waits for another one; the flow ends too.
    assert!(said.contains("operations        81: 80 ended, 0 without effect, 1 never heard of"), "{said}");
    assert!(said.contains("1 ended, 0 failed, 0 unfinished"), "{said}");
    assert!(said.contains("explains every answer"), "{said}");
}

#[test]
fn one_program_uses_both_nics_of_its_host_while_others_are_killed() {
    let folder = Folder::new("catalog");
    let good = "seed = 7\n[topology]\nkind = \"star\"\nhosts = 4\nrate = \"100G\"\n[transport]\nkind = \
                \"both\"\n[programs]\nsystem = \"catalog\"\n[[programs.run]]\nrole = \"serve\"\nhosts = \
                [0]\n[[programs.run]]\nrole = \"work\"\nhosts = [1, 2, 3]\nrounds = 20\n\
                [[programs.faults]]\nat = \"60us\"\nwhat = \"kill\"\nprogram = \"work 0\"\nagain = \"30us\"\n\
                [[programs.faults]]\nat = \"80us\"\nwhat = \"kill\"\nprogram = \"work 1\"\n";
    let said = accepted(&[&folder.file("catalog.toml", good)]);
    assert!(said.contains("work 0, life 2: update") && said.contains("work 2: look-up"), "{said}");
    // The home's own looks, which it is woken for.
    assert!(said.contains("serve 0: look-up"), "{said}");
    assert!(said.contains("explains every answer"), "{said}");
    // Without 1RMA NICs the programs are told so, and nothing was done that could be judged.
    let rc = adverb(&["sim", &folder.file("rc.toml", &good.replace("\"both\"", "\"rc\""))]);
    let said = text(&rc.stdout);
    assert!(!rc.status.success() && said.contains("in a fabric without 1RMA NICs"), "{said}");
}
