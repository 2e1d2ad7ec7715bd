//! `adverb star oracle` as its users see it: processes of two addresses, over UDP.
#![allow(clippy::disallowed_methods, reason = "tests of real time")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A server, killed at the end.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    at: String,
    number: u8,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn adverb(address: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.env("ADVERB", format!("address={address}")).stdin(Stdio::null());
    command
}

/// An address of this test's own.
fn address(number: u8, process: u8) -> String {
    format!("127.{}.{}.{number}", 64 + std::process::id() % 191, 80 + process)
}

impl Server {
    fn start(number: u8, options: &[&str]) -> Server {
        let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        Server::start_at(number, at, options)
    }

    fn start_at(number: u8, at: String, options: &[&str]) -> Server {
        let mut command = adverb(&address(number, 0));
        command.args(["star", "oracle", "serve", "--at", &at]).args(options).stdout(Stdio::piped());
        // What it gives back is not in use. A thread's cache of its allocator would count as if it were.
        command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("a line").unwrap();
        assert!(line.starts_with(&format!("oracle ready at {at}")), "{line}");
        Server { child, lines, at, number }
    }

    fn bench(&self, process: u8, options: &[&str]) -> Command {
        let mut command = adverb(&address(self.number, process));
        command.args(["star", "oracle", "bench", "--at", &self.at]).args(options);
        command
    }

    fn end(mut self) -> String {
        let ended = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(ended.success() && self.child.wait().unwrap().success());
        self.lines.next().expect("what it has done").unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The number before these words; 0 for one below it, such as a heap's that has shrunk.
fn number(said: &str, words: &str) -> u64 {
    let before = said.split(words).next().filter(|before| before.len() < said.len());
    let word = before.and_then(|before| before.split_whitespace().last());
    let number = word.and_then(|word| word.parse::<i64>().ok());
    number.unwrap_or_else(|| panic!("no number before {words:?}: {said}")).max(0) as u64
}

#[test]
fn timestamps_are_in_order_under_every_fault() {
    let faults = ["--loss", "0.02", "--duplicate", "0.05", "--reorder", "0.05", "--corrupt", "0.02"];
    let server = Server::start(1, &faults);
    let options = ["--clients", "50", "--outstanding", "20", "--time", "2s"];
    let bench = server.bench(1, &options).args(faults).output().unwrap();
    let line = said(&bench);
    assert!(line.contains("in order") && !line.contains("NOT"), "{line}");
    let lost = number(&line, " replies lost");
    let served = number(&server.end(), " timestamps' requests served");
    assert!(served > 100 && lost * 10 < served, "{served} served, {lost} lost: {line}");
}

/// A frame that a fault holds back comes alone, and wakes who sleeps for it as any other.
#[test]
fn what_was_held_back_wakes_who_waits_for_it() {
    let server = Server::start(5, &[]);
    for _ in 0..5 {
        let options = ["--clients", "1", "--outstanding", "1", "--time", "50ms", "--reorder", "0.9"];
        said(&server.bench(1, &options).output().unwrap());
    }
}

#[test]
fn idle_clients_of_two_processes_cost_the_server_nothing() {
    let each: u64 = std::env::var("ADVERB_CLIENTS").map_or(100_000, |n| n.parse().unwrap()) / 2;
    // Nothing is lost, however long a busy host keeps a process from its processor; and there is room for all
    // that is asked within that time.
    let server = Server::start(2, &["--lifetime", "10s", "--remembered", "1048576"]);
    let clients = each.to_string();
    // The second process's clients say hello, ask and idle beside those of the first one.
    let options = ["--clients", &clients, "--idle", "--time", "1s"];
    let first =
        server.bench(1, &["--clients", &clients, "--idle", "--time", "4s"]).stdout(Stdio::piped()).spawn();
    let second = said(&server.bench(2, &options).output().unwrap());
    let first = said(&first.unwrap().wait_with_output().unwrap());
    for line in [&first, &second] {
        assert_eq!(number(line, " more"), 0, "bytes of the server's heap: {line}");
        assert_eq!(number(line, " lost"), 0, "{line}");
        let bytes = [" bytes before", " with them", " after"].map(|words| number(line, words));
        assert!(bytes[0] == bytes[1] && bytes[1] == bytes[2], "{line}");
    }
    assert_eq!(number(&server.end(), " timestamps' requests served"), 4 * each + 2);
}

#[test]
fn an_oracle_that_starts_again_is_found_by_new_clients_and_gives_no_timestamp_twice() {
    let server = Server::start(3, &[]);
    let options = ["--clients", "3", "--time", "300ms"];
    said(&server.bench(1, &options).output().unwrap());
    let at = server.at.clone();
    drop(server);
    let gone = adverb(&address(3, 1)).args(["star", "oracle", "bench", "--at", &at]).output().unwrap();
    assert!(!gone.status.success() && text(&gone.stderr).contains("is `adverb star oracle serve` running"));
    let server = Server::start_at(3, at, &[]);
    said(&server.bench(1, &options).output().unwrap());
}

#[test]
fn what_is_no_oracle_is_said_to_be_none() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = door.local_addr().unwrap().to_string();
    let teller = std::thread::spawn(move || {
        for answer in ["HTTP/1.1 400 Bad Request\r\n", "127.0.0.1 99999999999 0 0 0\n", ""] {
            let (mut stream, _): (TcpStream, _) = door.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for _ in 0..3 {
        let refused = adverb(&address(4, 1)).args(["star", "oracle", "bench", "--at", &at]).output().unwrap();
        assert!(!refused.status.success());
        assert!(
            text(&refused.stderr).contains("what answers there is no oracle"),
            "{}",
            text(&refused.stderr)
        );
    }
    teller.join().unwrap();
}
