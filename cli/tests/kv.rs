//! `adverb kv`, `adverb region` and `adverb certs` as their users see them: processes, real sockets, kills.
#![allow(clippy::print_stdout, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

#[path = "../../crates/grants/tests/trial/mod.rs"]
mod trial;

use adverb_grants::TELL_TIME;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use trial::{Folder, POLICY_OF_APP};

const POLICY_OF_CONTROL: &str = "
    [[client]]
    name = 'control'
    regions = ['kv-*']
    rights = ['rekey']
";

/// A folder with certificates, and addresses of its own.
struct House {
    folder: Folder,
    number: u8,
    /// One test at a time: they are about times.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

/// A process that is killed at the end, and what it prints.
struct Running(Child, Lines<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl House {
    fn new(number: u8) -> House {
        let folder = Folder::new(&format!("cli-kv-{number}"));
        let policy = POLICY_OF_APP.to_owned() + POLICY_OF_CONTROL;
        std::fs::write(folder.0.join("policy.toml"), policy).unwrap();
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let house = House { folder, number, _turn };
        let owner = format!("kv={},{}", house.address(1), house.address(2));
        let made = house.run("", &["certs", "--out", "certs", &owner, "app", "control", "other"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        house
    }

    fn address(&self, host: u8) -> String {
        trial::address(self.number, host).to_string()
    }

    /// The command, as a user with this certificate.
    fn command(&self, who: &str, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        let replicas = format!("{},{}:7450", self.address(1), self.address(2));
        command.args(words).current_dir(&self.folder.0).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.folder.0.join("state")).env("ADVERB_REPLICAS", replicas);
        if !who.is_empty() {
            command.env("ADVERB_AS", format!("certs/{who}"));
        }
        command
    }

    fn run(&self, who: &str, words: &[&str]) -> Output {
        self.command(who, words).output().unwrap()
    }

    fn start(&self, who: &str, words: &[&str]) -> Running {
        let mut child = self.command(who, words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running(child, lines)
    }

    fn replica(&self, host: u8, more: &[&str]) -> Running {
        let address = self.address(host);
        let words = [&["kv", "serve", "--address", &address, "--policy", "policy.toml"], more].concat();
        let mut replica = self.start("kv", &words);
        let ready = replica.1.next().unwrap().unwrap();
        assert_eq!(ready, format!("kv replica of {address} ready at {address}:7450"));
        replica
    }

    /// A get by a NIC (`--address IP` or `--attach SOCKET`) that a busy host, which keeps a replica from its
    /// processor, does not make fail: its own NIC has the time, a daemon's is asked again.
    fn get(&self, key: &str, nic: [&str; 2], more: &[&str]) -> Output {
        let is_own = nic[0] == "--address";
        let patience = if is_own { &["--timeout", "4s"][..] } else { &[] };
        let words = [&["kv", "get", key], &nic[..], more, patience].concat();
        let begun = Instant::now();
        loop {
            let got = self.run("app", &words);
            let is_late = !is_own && text(&got.stderr).contains("TIMEOUT");
            if !is_late || begun.elapsed() > Duration::from_secs(60) {
                return got;
            }
        }
    }

    /// What the command says on standard error, as it fails.
    fn refused(&self, who: &str, words: &[&str]) -> String {
        let output = self.run(who, words);
        assert!(!output.status.success(), "{words:?}: {}", text(&output.stdout));
        text(&output.stderr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number that stands before a word in a line that begins so.
fn counted(said: &str, line: &str, word: &str) -> f64 {
    let line =
        said.lines().find(|text| text.starts_with(line)).unwrap_or_else(|| panic!("no `{line}` in {said}"));
    let words: Vec<&str> = line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
    let at =
        words.windows(2).position(|two| two[1] == word).unwrap_or_else(|| panic!("no `{word}` in {line}"));
    words[at].parse().unwrap()
}

#[test]
fn what_one_process_sets_another_gets_and_strangers_are_told_why_not() {
    let house = House::new(1);
    let (_one, _two) = (house.replica(1, &[]), house.replica(2, &[]));
    let (me, owner) = (house.address(3), format!("{}:7450", house.address(1)));
    let set = house.run("app", &["kv", "set", "greeting", "hello", "--address", &me]);
    assert!(text(&set.stdout).starts_with("on 2 of 2 replicas, version "), "{}", text(&set.stderr));
    assert!(set.status.success());
    let got = house.get("greeting", ["--address", &me], &[]);
    assert_eq!(
        (text(&got.stdout), got.status.code()),
        ("hello".to_owned(), Some(0)),
        "{}",
        text(&got.stderr)
    );
    let missed = house.get("nothing", ["--address", &me], &["--counters", "c.txt"]);
    let counted = std::fs::read_to_string(house.folder.0.join("c.txt")).unwrap();
    assert!(counted.contains("ops_ok ") && counted.contains("\ndrop_unauthentic 0\n"), "{counted}");
    assert_eq!(missed.status.code(), Some(1));
    assert_eq!(text(&missed.stderr), "adverb: get nothing: no replica has it\n");

    let list = house.run("app", &["region", "list", "--owner", &owner]);
    let list = text(&list.stdout);
    assert!(list.contains("kv-index") && list.contains("kv-data") && list.contains(" read "), "{list}");
    let empty = house.run("other", &["region", "list", "--owner", &owner]);
    assert_eq!(text(&empty.stdout), "no regions for `other`\n");
    let to = format!("{me}:4711");
    let grant = |who: &str, more: &[&str]| {
        let words = [&["region", "grant", "--owner", &owner, "--to", &to, "--out", "g"], more].concat();
        house.refused(who, &words)
    };
    let said = grant("app", &["kv-data", "--rights", "read,write"]);
    assert!(said.contains("client `app` may not write `kv-data`"), "{said}");
    assert!(grant("app", &["nope"]).contains("no region `nope` that this client may use"));
    assert!(grant("other", &["kv-data"]).contains("no region `kv-data` that this client may use"));
    assert!(grant("app", &["kv-data", "--for", "2h"]).contains("a lease of 7200 s"));
    assert!(grant("app", &["kv-data", "--rights", "all"]).contains("`all` is no right; give some of read"));
    assert!(!house.folder.0.join("g").exists(), "no empty file is left");
    let words = ["region", "grant", "kv-data", "--owner", &owner, "--to", &to, "--out", "g"];
    let granted = house.run("app", &words);
    assert!(text(&granted.stdout).starts_with(&format!("kv-data: read by process 4711 of {me}, lease")));
    assert_eq!(std::fs::read(house.folder.0.join("g")).unwrap().len(), 29 + 16);
    assert!(house.refused("app", &words).contains("--out g: File exists"), "keys are not overwritten");

    let denied = house.refused("app", &["region", "rotate", "kv-data", "--owner", &owner]);
    assert!(denied.contains("client `app` may not rekey `kv-data`"), "{denied}");
    let rotated = house.run("control", &["region", "rotate", "kv-data", "--owner", &owner]);
    assert!(
        text(&rotated.stdout).starts_with("kv-data: key 1, told ahead to 0 of "),
        "{}",
        text(&rotated.stderr)
    );

    strangers_are_told_why_not(&house, &me, &owner);
}

/// Wrong certificates, addresses and files: each is refused with what helps.
fn strangers_are_told_why_not(house: &House, me: &str, owner: &str) {
    let wrong = house.refused("nobody", &["region", "list", "--owner", owner]);
    assert!(wrong.contains("--as certs/nobody: certs/nobody.pem: no certificate there"), "{wrong}");
    let wrong = house.refused("app", &["region", "list", "--owner", owner, "--owner-name", "bank"]);
    assert!(wrong.contains("certificate is for another name"), "{wrong}");
    // Another authority's certificate for the same name.
    let made = house.run("", &["certs", "--out", "forged", "app"]);
    assert!(made.status.success());
    let words = ["region", "list", "--owner", owner, "--as", "forged/app", "--ca", "certs/ca.pem"];
    let forged = house.refused("app", &words);
    assert!(forged.contains("refused this side's certificate"), "{forged}");
    let gone = house.refused("app", &["region", "list", "--owner", &format!("{}:9", house.address(1))]);
    assert!(gone.contains("cannot be reached") && gone.contains("is the owner running?"), "{gone}");
    let taken = house.refused("app", &["kv", "get", "x", "--address", &house.address(1)]);
    assert!(taken.contains(&format!("--address {}: UDP port 61113", house.address(1))), "{taken}");
    assert!(house.refused("app", &["kv", "get", "x"]).contains("give the NIC: --address or --attach"));
    let small =
        house.refused("kv", &["kv", "serve", "--address", me, "--policy", "policy.toml", "--memory", "1KB"]);
    assert!(small.contains("--memory") && small.contains("give at least"), "{small}");
    std::fs::write(house.folder.0.join("bad.toml"), "[[client]]\nname = 'a'\nrights = ['all']").unwrap();
    let bad = house.refused("kv", &["kv", "serve", "--address", me, "--policy", "bad.toml"]);
    assert!(
        bad.contains("bad.toml") && bad.contains("line 3") && bad.contains("expected one of `read`"),
        "{bad}"
    );
}

/// Of a timeline's row.
const HITS: [usize; 2] = [5, 6];
const TIMEOUTS: usize = 8;

/// Load on two replicas of which the second is harmed when the tenth line of the timeline has come: the
/// lines, and what is said behind them.
fn load_and_harm(house: &House, sets: &str, harm: &mut dyn FnMut()) -> (Vec<Vec<f64>>, String) {
    let me = house.address(3);
    // Not the 25 ms of the default, for which a busy machine may keep a replica that lives from its
    // processor.
    let load = "--timeout 400ms --time 3s --timeline 50ms --keys 200 --depth 8 --sets";
    let words = "kv bench --address".split(' ').chain([&*me]).chain(load.split(' ')).chain([sets]);
    let words: Vec<&str> = words.collect();
    let mut bench = house.start("app", &words);
    let (mut rows, mut said) = (Vec::new(), String::new());
    for line in bench.1.by_ref() {
        let line = line.unwrap();
        println!("{line}");
        let row: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        match row.len() {
            10 => rows.push(row),
            _ => said += &(line + "\n"),
        }
        if rows.len() == 10 && said.lines().count() == 1 {
            harm();
            said += "harmed\n";
        }
    }
    assert!(bench.0.wait().unwrap().success());
    let hits = |rows: &[Vec<f64>], which: usize| rows.iter().map(|row| row[which]).sum::<f64>();
    assert!(hits(&rows[..10], HITS[1]) > 0.0, "R2 served");
    assert!(hits(&rows[rows.len() - 20..], HITS[0]) > 0.0, "R1 serves on");
    assert_eq!((counted(&said, "not found", "missed"), counted(&said, "not found", "wrong")), (0.0, 0.0));
    assert_eq!(counted(&said, "not found", "without"), 0.0, "each lookup found the other replica");
    (rows, said)
}

/// The paper's figure 9. `cargo test -p adverb-cli --test kv killed -- --nocapture` shows the timeline.
#[test]
fn a_replica_killed_under_load_is_left_and_the_other_serves_on() {
    let house = House::new(2);
    let (_one, mut two) = (house.replica(1, &[]), house.replica(2, &[]));
    // SIGKILL.
    let (rows, said) = load_and_harm(&house, "100", &mut || two.0.kill().unwrap());
    assert!(rows[rows.len() - 20..].iter().all(|row| row[HITS[1]] == 0.0), "R2 serves no more");
    let second = format!("{}:7450", house.address(2));
    let state = said.lines().find_map(|line| line.strip_prefix(&second)).map(str::trim_start);
    assert!(state.is_some_and(|state| state.starts_with("down")), "{said}");
    // The kernel closes a dead process's connection, so that not even the NIC's timeout passes, as long as
    // there are processors.
    let gap = counted(&said, "latency us", "ms");
    assert!(gap < 5.0 * 400.0, "{gap} ms without a get");
}

/// A process that lives and does nothing keeps its connections; so does a host without power. Operations time
/// out.
#[test]
fn a_replica_stopped_under_load_is_left_at_the_first_timeout_and_taken_back() {
    let house = House::new(5);
    let (_one, two) = (house.replica(1, &[]), house.replica(2, &[]));
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &two.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    };
    let (rows, said) = load_and_harm(&house, "0", &mut || signal("-STOP"));
    let timeouts: f64 = rows.iter().map(|row| row[TIMEOUTS]).sum();
    assert!(
        (1.0..=16.0).contains(&timeouts),
        "{timeouts}: those that were under way, and attempts to see whether it is back"
    );
    let gap = counted(&said, "latency us", "ms");
    assert!(gap < 5.0 * 400.0, "{gap} ms without a get; the timeout, and what busy processors add");
    signal("-CONT");
    let got = house.run("app", &["kv", "set", "k", "v", "--address", &house.address(4)]);
    assert!(text(&got.stdout).starts_with("on 2 of 2 replicas"), "{}", text(&got.stderr));
}

#[test]
fn keys_rotated_under_load_refuse_only_what_was_under_way() {
    const LOAD: Duration = Duration::from_secs(3);
    let house = House::new(3);
    let (_one, _two) = (house.replica(1, &[]), house.replica(2, &[]));
    let (me, owner) = (house.address(3), format!("{}:7450", house.address(1)));
    // A NIC that is patient with peers that wait for a processor.
    let words = [
        "kv",
        "bench",
        "--address",
        &me,
        "--timeout",
        "3s",
        "--time",
        "3s",
        "--timeline",
        "100ms",
        "--depth",
        "4",
    ];
    let begun = Instant::now();
    let mut bench = house.start("app", &words);
    assert!(bench.1.next().unwrap().unwrap().contains("refused"), "the heading: all keys are set");
    let mut rotations = 0.0;
    for _ in 0..5 {
        assert!(bench.1.next().unwrap().unwrap().contains('.'), "a line of the timeline");
        let rotated = house.run("control", &["region", "rotate", "kv-index", "kv-data", "--owner", &owner]);
        assert!(rotated.status.success(), "{}", text(&rotated.stderr));
        rotations += 2.0;
        // On a busy host the load may have ended by now, and nobody is there to be told.
        if begun.elapsed() >= LOAD {
            break;
        }
        let rotated = text(&rotated.stdout);
        for line in rotated.lines() {
            // A client without a processor is waited for for so long.
            let has_waited = counted(&rotated, line, "ms") >= TELL_TIME.as_millis() as f64;
            assert!(line.contains("told ahead to 1 of 1 leases") || has_waited, "{rotated}");
        }
        assert_eq!(rotated.lines().count(), 2, "{rotated}");
    }
    let said: String = bench.1.by_ref().map(|line| line.unwrap() + "\n").collect();
    assert!(bench.0.wait().unwrap().success());
    let (one, two) = (owner.clone(), format!("{}:7450", house.address(2)));
    assert!(counted(&said, &one, "refused") <= rotations * 4.0, "at most what was under way: {said}");
    assert_eq!(counted(&said, &two, "refused"), 0.0, "only on those regions: {said}");
    for replica in [&one, &two] {
        assert_eq!(
            (counted(&said, replica, "timeouts"), counted(&said, replica, "NACKs")),
            (0.0, 0.0),
            "{said}"
        );
        assert!(counted(&said, replica, "hits") > 0.0);
    }
    assert_eq!(counted(&said, "not found", "without") + counted(&said, "not found", "wrong"), 0.0, "{said}");
}

#[test]
fn a_cache_whose_processes_share_the_nic_of_a_daemon() {
    let house = House::new(4);
    let (address, socket) = (house.address(1), house.folder.0.join("nic.socket"));
    let socket = socket.to_str().unwrap();
    let mut nicd = house.start("", &["nicd", "--address", &address, "--socket", socket]);
    assert!(nicd.1.next().unwrap().unwrap().contains("ready"));
    let mut serve = house.start("kv", &["kv", "serve", "--attach", socket, "--policy", "policy.toml"]);
    assert_eq!(serve.1.next().unwrap().unwrap(), format!("kv replica of {address} ready at {address}:7450"));
    let one = format!("{address}:7450");
    let set = house.run("app", &["kv", "set", "k", "v", "--attach", socket, "--replica", &one]);
    assert!(set.status.success(), "{}", text(&set.stderr));
    let other = house.address(3);
    for nic in [["--attach", socket], ["--address", &other]] {
        let got = house.get("k", nic, &["--replica", &one]);
        assert_eq!(text(&got.stdout), "v", "{}", text(&got.stderr));
    }
}

/// What a process has said on standard error, in a file.
fn said_in(file: &std::path::Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

/// Waits until something is so; a panic after a while.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_replica_whose_daemon_is_gone_says_so_and_ends() {
    let house = House::new(8);
    let (address, errors) = (house.address(1), house.folder.0.join("errors"));
    let mut daemon = house.start("", &["nicd", "--address", &address, "--socket", "nicd.socket"]);
    assert!(daemon.1.next().unwrap().unwrap().contains("ready at nicd.socket"));
    let mut replica = house
        .command("kv", &["kv", "serve", "--attach", "nicd.socket", "--policy", "policy.toml"])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&errors).unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(replica.stdout.take().unwrap()).lines();
    let mut replica = Running(replica, lines);
    assert!(replica.1.next().unwrap().unwrap().contains("ready at"));
    let set =
        house.run("app", &["kv", "set", "k", "v", "--replica", &address, "--address", &house.address(3)]);
    assert!(set.status.success(), "{}", text(&set.stderr));
    assert!(replica.0.try_wait().unwrap().is_none(), "it serves");
    daemon.0.kill().unwrap();
    let mut status = None;
    until("the replica lives on", || {
        status = replica.0.try_wait().unwrap();
        status.is_some()
    });
    let said = said_in(&errors);
    assert!(status.is_some_and(|status| status.code() == Some(1)), "{status:?} {said}");
    assert!(said.contains("--attach nicd.socket: the NIC daemon is gone"), "{said}");
}

#[test]
fn counters_that_cannot_be_written_do_not_end_a_replica() {
    let house = House::new(9);
    let (errors, counters) = (house.folder.0.join("errors"), house.folder.0.join("c.txt"));
    let address = house.address(1);
    let words = ["kv", "serve", "--address", &address, "--policy", "policy.toml", "--counters", "c.txt"];
    let mut command = house.command("kv", &words);
    command.stdout(Stdio::piped()).stderr(std::fs::File::create(&errors).unwrap());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut replica = Running(child, lines);
    assert!(replica.1.next().unwrap().unwrap().contains("ready at"));
    until("counters are written", || counters.exists());
    // The disk is full from now on, as far as this file is concerned.
    let fresh = house.folder.0.join("c.txt.new");
    until("a moment without c.txt.new", || std::os::unix::fs::symlink("/dev/full", &fresh).is_ok());
    until("it is said", || !said_in(&errors).is_empty());
    // Again and again in vain, which is said once.
    std::thread::sleep(Duration::from_millis(2500));
    let said = said_in(&errors);
    assert!(said.contains("--counters c.txt") && said.contains("No space left on device"), "{said}");
    assert!(said.contains("going on without") && said.lines().count() == 1, "{said}");
    let set =
        house.run("app", &["kv", "set", "k", "v", "--replica", &address, "--address", &house.address(3)]);
    assert!(set.status.success(), "it serves: {}", text(&set.stderr));
    // There is room again.
    std::fs::remove_file(&fresh).unwrap();
    std::fs::remove_file(&counters).unwrap();
    until("counters are written again", || counters.exists());
    assert!(replica.0.try_wait().unwrap().is_none());
}
