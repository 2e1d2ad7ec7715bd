//! `adverb lock`, `locks`, `chain`, `tree` and `queue` as their users see them: processes, signals, kills.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One test's processes: an address of their own, and where they find one another.
struct House {
    address: String,
    at: String,
}

/// A process that is killed at the end, and what it prints.
struct Running(Child, Lines<BufReader<ChildStdout>>);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn line(&mut self) -> String {
        self.1.next().expect("a line").unwrap()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill -{name}");
    }

    fn ends(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl House {
    fn new(number: u8) -> House {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        House { address: format!("127.{}.77.{number}", 64 + std::process::id() % 191), at }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        command.args(words).env("ADVERB", format!("address={}", self.address));
        for name in ["ADVERB_LOCK", "ADVERB_LOCKS", "ADVERB_QUEUE", "ADVERB_CHAIN", "ADVERB_TREE"] {
            command.env(name, &self.at);
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    fn said(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    }

    fn start(&self, words: &[&str]) -> Running {
        let mut child = self.command(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running(child, lines)
    }

    fn home(&self, lease: &str) -> Running {
        let mut home = self.start(&["lock", "serve", "--lease", lease]);
        assert!(home.line().starts_with(&format!("lock ready at {}", self.at)));
        home
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_lock_is_held_while_a_command_runs_and_its_value_stays() {
    let house = House::new(1);
    let _home = house.home("2s");
    assert_eq!(house.said(&["lock", "get"]), "");
    assert_eq!(house.said(&["lock", "set", "hello"]), "stored with token 2");
    assert_eq!(house.said(&["lock", "get"]), "hello");
    assert_eq!(house.said(&["lock", "show"]), "token 3, free, fence 3, lease 2s");
    let held = house.said(&["lock", "hold", "--", "sh", "-c", "echo command $ADVERB_LOCK_TOKEN"]);
    assert_eq!(held, "holding with token 4\ncommand 4");
    assert_eq!(house.run(&["lock", "hold", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(house.run(&["lock", "hold", "--", "/no/such/program"]).status.code(), Some(127));
    let rate = house.said(&["lock", "bench", "--time", "300ms"]);
    assert!(rate.contains("rounds of acquire, store, release"), "{rate}");
}

#[test]
fn a_holder_keeps_others_out_for_longer_than_its_lease() {
    let house = House::new(2);
    let _home = house.home("500ms");
    let mut holder = house.start(&["lock", "hold"]);
    assert_eq!(holder.line(), "holding with token 1");
    let refused = house.run(&["lock", "set", "x", "--patience", "2s"]);
    assert!(!refused.status.success(), "the lease is renewed");
    assert!(text(&refused.stderr).contains("not free in time"), "{}", text(&refused.stderr));
    // Ctrl-C gives it back at once: nobody waits for the lease.
    holder.signal("INT");
    assert_eq!(holder.ends(), Some(0));
    assert!(house.said(&["lock", "show"]).starts_with("token 1, free"));
    assert_eq!(house.said(&["lock", "set", "x"]), "stored with token 2");
}

#[test]
fn a_killed_holders_lease_passes_on_with_a_higher_token() {
    let house = House::new(3);
    let _home = house.home("500ms");
    let mut holder = house.start(&["lock", "hold", "--", "sleep", "60"]);
    assert_eq!(holder.line(), "holding with token 1");
    holder.signal("KILL");
    let began = Instant::now();
    assert_eq!(house.said(&["lock", "set", "after"]), "stored with token 2");
    assert!(began.elapsed() < Duration::from_secs(30));
    assert_eq!(house.said(&["lock", "get"]), "after");
}

#[test]
fn a_holder_that_was_stopped_for_too_long_changes_nothing_and_is_told() {
    let house = House::new(4);
    let _home = house.home("500ms");
    let mut holder = house.start(&["lock", "hold"]);
    assert_eq!(holder.line(), "holding with token 1");
    holder.signal("STOP");
    assert_eq!(house.said(&["lock", "set", "newer"]), "stored with token 2");
    holder.signal("CONT");
    assert_eq!(holder.ends(), Some(1), "the lock was lost");
    assert_eq!(house.said(&["lock", "get"]), "newer");
}

impl House {
    fn locks(&self, lease: &str) -> Running {
        let mut home = self.start(&["locks", "serve", "--locks", "8", "--lease", lease]);
        assert_eq!(
            home.line(),
            format!("8 locks, 64 bytes of the NIC's own memory, ready at {}, lease {lease}", self.at)
        );
        home
    }
}

#[test]
fn each_of_many_locks_has_its_value() {
    let house = House::new(8);
    let _home = house.locks("2s");
    assert_eq!(house.said(&["locks", "get", "3"]), "");
    assert_eq!(house.said(&["locks", "set", "3", "three"]), "stored with tag 0x200000001");
    assert_eq!(house.said(&["locks", "set", "4", "four"]), "stored with tag 0x300000001");
    assert_eq!(
        (house.said(&["locks", "get", "3"]), house.said(&["locks", "get", "4"])),
        ("three".into(), "four".into())
    );
    let refused = house.run(&["locks", "get", "8"]);
    assert!(text(&refused.stderr).contains("there is no lock 8"), "{}", text(&refused.stderr));
    let refused = house.run(&["locks", "set", "3", &"x".repeat(65)]);
    assert!(text(&refused.stderr).contains("a value of 65 bytes; at most 64"), "{}", text(&refused.stderr));
    for release in ["write", "cas"] {
        let bench =
            ["locks", "bench", "--time", "300ms", "--clients", "4", "--size", "64", "--release", release];
        let rate = house.said(&bench);
        assert!(rate.starts_with("4 clients, 1 locks, 64 bytes: "), "{rate}");
        assert!(rate.contains(" 0 taken over"), "{rate}");
    }
}

#[test]
fn chains_keep_the_last_value_and_a_home_without_places_says_so() {
    let house = House::new(10);
    let mut home = house.start(&["chain", "serve", "--keys", "8", "--entries", "600"]);
    let ready = format!("8 keys ready at {}, room for 600 values, entries of 128 bytes", house.at);
    assert_eq!(home.line(), ready);
    assert_eq!(house.said(&["chain", "get", "3"]), "");
    for (key, value) in [("3", "three"), ("4", "four"), ("3", "again")] {
        assert_eq!(house.said(&["chain", "put", key, value]), "put");
    }
    assert_eq!(
        (house.said(&["chain", "get", "3"]), house.said(&["chain", "get", "4"])),
        ("again".into(), "four".into())
    );
    assert_eq!(house.said(&["chain", "audit"]), "8 keys, 3 values put");
    for (words, part) in [
        (&["chain", "get", "8"][..], "there is no key 8; the home has 8, from 0"),
        (&["chain", "put", "3", &"x".repeat(81)], "a value of 81 bytes; at most 80"),
        (&["chain", "bench", "--time", "60s", "--writes", "100"], "start one with more --entries"),
        (&["chain", "put", "3", "more"], "start a home with more --entries"),
    ] {
        let refused = house.run(words);
        assert!(!refused.status.success(), "{words:?}");
        assert!(text(&refused.stderr).contains(part), "{words:?}: {}", text(&refused.stderr));
    }
    let rate = house.said(&["chain", "bench", "--time", "300ms", "--clients", "4", "--writes", "0"]);
    assert!(rate.starts_with("4 clients, 1 keys, 64 bytes, 0% puts: "), "{rate}");
    assert_eq!(house.said(&["chain", "get", "4"]), "four");
}

/// The end of a chain that earlier clients have made long is soon found, or late, and then that is said. A
/// busy host can make it late too: what ended within the second looked for less than that.
#[test]
fn a_long_search_for_the_end_of_a_chain_is_said() {
    let house = House::new(15);
    let mut home = house.start(&["chain", "serve", "--keys", "1", "--entries", "300"]);
    assert!(home.line().starts_with("1 keys ready"));
    assert!(!house.run(&["chain", "bench", "--time", "60s", "--writes", "100"]).status.success());
    assert_eq!(house.said(&["chain", "audit"]), "1 keys, 300 values put");
    for (delay, is_said) in [("1us", false), ("4ms", true)] {
        let words =
            ["chain", "bench", "--time", "300ms", "--clients", "4", "--writes", "0", "--delay", delay];
        let begun = Instant::now();
        let done = house.run(&words);
        let took = begun.elapsed();
        let (rate, said) = (text(&done.stdout), text(&done.stderr));
        assert!(done.status.success() && rate.starts_with("4 clients, 1 keys, "), "{delay}: {rate}{said}");
        let times = said.matches("look for the ends of chains").count();
        assert!(times <= 1 && (times == 1 || !is_said), "{delay}: {said}");
        assert!(times == 0 || took >= Duration::from_secs(1), "{delay}: within {took:?}: {said}");
    }
}

#[test]
fn a_dead_holders_lock_passes_on_and_a_stopped_one_is_shut_out() {
    let house = House::new(9);
    let _home = house.locks("500ms");
    let mut holder = house.start(&["locks", "hold", "5"]);
    assert_eq!(holder.line(), "holding with tag 0x100000001");
    holder.signal("KILL");
    assert_eq!(house.said(&["locks", "set", "5", "after"]), "stored with tag 0x200000001");
    let mut holder = house.start(&["locks", "hold", "5"]);
    assert_eq!(holder.line(), "holding with tag 0x300000001");
    holder.signal("STOP");
    assert_eq!(house.said(&["locks", "set", "5", "newer"]), "stored with tag 0x400000001");
    holder.signal("CONT");
    assert_eq!(holder.ends(), Some(1), "it is told that it was shut out");
    assert_eq!(house.said(&["locks", "get", "5"]), "newer");
    // One that ends in time gives it back.
    let mut holder = house.start(&["locks", "hold", "5"]);
    assert!(holder.line().starts_with("holding with tag"));
    holder.signal("INT");
    assert_eq!(holder.ends(), Some(0));
    assert!(house.said(&["locks", "set", "5", "newest"]).starts_with("stored"));
}

impl House {
    fn tree(&self, words: &[&str]) -> Running {
        let mut home = self.start(&[&["tree", "serve", "--lease", "500ms"], words].concat());
        let line = home.line();
        assert!(line.contains(&format!("ready at {}", self.at)) && line.contains("lease 500ms"), "{line}");
        home
    }
}

#[test]
fn a_tree_has_what_was_put_into_it() {
    let house = House::new(10);
    let _home = house.tree(&["--keys", "1000", "--fanout", "8"]);
    assert_eq!(house.said(&["tree", "get", "7"]), "8");
    house.said(&["tree", "put", "7", "700"]);
    house.said(&["tree", "put", "18446744073709551614", "1"]);
    house.said(&["tree", "remove", "8"]);
    let gone = house.run(&["tree", "get", "8"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("no such key"), "{}", text(&gone.stderr));
    assert_eq!(house.said(&["tree", "scan", "6", "--limit", "3"]), "6 7\n7 700\n9 10");
    assert_eq!(house.said(&["tree", "scan", "999"]), "999 1000\n18446744073709551614 1");
    assert_eq!(house.said(&["tree", "scan", "5", "--to", "7"]), "5 6\n6 7");
    house.said(&["tree", "put", "8", "9"]);
    for workload in ["a", "b", "c", "d", "write-only"] {
        let bench = ["tree", "bench", "--time", "300ms", "--clients", "3", "--workload", workload];
        let said = house.said(&bench);
        assert!(said.starts_with(&format!("3 clients, workload {workload}, 1000 keys, ")), "{said}");
        assert_eq!(said.contains("gets: "), workload != "write-only", "{said}");
        assert_eq!(said.contains("changes: "), workload != "c", "{said}");
        assert!(said.contains(" 0 taken over") && !said.contains(" 0 operations"), "{said}");
    }
    let drifting =
        ["tree", "bench", "--time", "300ms", "--exponent", "1.5", "--drift-every", "10", "--drift-by", "3"];
    assert!(house.said(&drifting).contains(" exponent 1.5: "));
    // All keys that were there from the beginning, and those of workload d.
    let found = house.said(&["tree", "scan", "0", "--limit", "2000"]);
    let keys: Vec<u64> = found.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(keys.len() > 1000 && keys[..1000].iter().copied().eq(0..1000), "{} keys", keys.len());
    for (words, part) in [
        (&["tree", "bench", "--exponent", "1.6"][..], "an exponent of 1.6; give 0 to 1.5"),
        (&["tree", "bench", "--workload", "e"], "not one of a, b, c, d, write-only"),
        (&["tree", "put", "18446744073709551615", "1"], "want a number from 0 to 18446744073709551614"),
        (
            &["tree", "serve", "--keys", "1000", "--pages", "20", "--at", "127.0.0.1:0"],
            "these do not fit into 20 pages",
        ),
    ] {
        let refused = house.run(words);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(part), "{words:?}: {said}");
    }
}

/// Clients that are killed with locks in their hands, and one that was stopped for too long.
#[test]
fn a_dead_clients_page_can_be_changed_and_a_full_home_says_so() {
    let house = House::new(11);
    let _home = house.tree(&["--keys", "30", "--pages", "24", "--fanout", "4", "--locks", "1"]);
    for _ in 0..3 {
        let mut busy =
            house.start(&["tree", "bench", "--workload", "write-only", "--time", "60s", "--clients", "4"]);
        // There is one lock, and somebody has it nearly all the time.
        house.said(&["tree", "put", "3", "33"]);
        busy.signal("KILL");
        assert_eq!(busy.ends(), None);
        house.said(&["tree", "put", "3", "34"]);
        assert_eq!(house.said(&["tree", "get", "3"]), "34");
    }
    let mut stopped =
        house.start(&["tree", "bench", "--workload", "write-only", "--time", "60s", "--clients", "4"]);
    house.said(&["tree", "put", "900", "35"]);
    stopped.signal("STOP");
    house.said(&["tree", "put", "900", "36"]);
    stopped.signal("CONT");
    stopped.signal("INT");
    stopped.ends();
    // A key of the last page that the bench does not put itself when it goes on.
    assert_eq!(house.said(&["tree", "get", "900"]), "36");
    let full = house.run(&["tree", "bench", "--workload", "d", "--time", "20s"]);
    assert!(
        text(&full.stderr).contains("no page left for a split; start it with more"),
        "{}",
        text(&full.stderr)
    );
    let found = house.said(&["tree", "scan", "0", "--limit", "1000"]);
    assert!(found.lines().count() >= 30 && found.trim_end().ends_with("\n900 36"), "{found}");
}

#[test]
fn lines_of_several_producers_come_out_whole_and_in_their_order() {
    let house = House::new(5);
    let mut consumer = house.start(&["queue", "consume", "--slots", "8", "--count", "300"]);
    let producers: Vec<Child> = ["a", "b", "c"]
        .into_iter()
        .map(|name| {
            let mut child = house.command(&["queue", "produce"]).stdin(Stdio::piped()).spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            let lines: String = (0..100).map(|n| format!("{name} {n} {}\n", "x".repeat(n * 13))).collect();
            std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
            child
        })
        .collect();
    let mut next = [0; 3];
    for _ in 0..300 {
        let line = consumer.line();
        let words: Vec<&str> = line.split(' ').collect();
        let of = &mut next[usize::from(words[0].as_bytes()[0] - b'a')];
        assert_eq!(words[1], of.to_string(), "{line}");
        assert_eq!(words[2].len(), *of * 13);
        *of += 1;
    }
    assert_eq!(consumer.ends(), Some(0));
    for mut producer in producers {
        assert!(producer.wait().unwrap().success());
    }
}

/// Of the elements of three producers, so that each one's are known.
const SIZES: [usize; 3] = [4000, 3000, 2000];

#[test]
fn a_producer_that_dies_stops_nobody() {
    let house = House::new(6);
    let mut consumer = house.start(&["queue", "consume", "--patience", "500ms"]);
    for size in SIZES {
        let mut producer = house.start(&["queue", "bench", "--time", "60s", "--size", &size.to_string()]);
        // Elements of this producer have come: it is at work when it is killed.
        while consumer.line().len() != size {}
        producer.signal("KILL");
        producer.ends();
    }
    // At the same time, because what the dead have left must be read to make room.
    let mut producer = house.start(&["queue", "produce", "one", "two"]);
    let mut came_one = false;
    loop {
        let line = consumer.line();
        came_one |= line == "one";
        if line == "two" {
            break;
        }
    }
    assert!(came_one, "`one` comes before `two`");
    assert_eq!(producer.ends(), Some(0));
    consumer.signal("INT");
    assert_eq!(consumer.ends(), Some(0));
}

#[test]
fn nobody_there_is_said_so() {
    let house = House::new(7);
    for words in
        [&["lock", "get", "--patience", "300ms"][..], &["queue", "produce", "x", "--patience", "300ms"]]
    {
        let output = house.run(words);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("nobody answered in time; is `adverb"), "{said}");
        assert!(said.contains(&house.at), "{said}");
    }
}
