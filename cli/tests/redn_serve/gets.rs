//! Gets while workers are stopped, killed and started again, while clients come and go, and when the hull
//! ends.

use crate::world::*;
use adverb_redn::service::client::{By, Got};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn no_get_is_lost_while_the_worker_is_stopped_killed_and_started_again() {
    println!("{}", lose_no_get(1, &[]));
}

#[test]
fn no_get_is_lost_by_udp_that_loses_packets_either() {
    // The chain's own operations, from the NIC to itself, go that way too.
    println!("{}", lose_no_get(16, &["--path", "udp", "--loss", "0.003", "--seed", "7"]));
}

/// Stops, kills and starts workers while gets go on; how many there were.
fn lose_no_get(host: u8, nic: &[&str]) -> String {
    let server = Server::start(host, &[&["--respawn", "1s"], nic].concat());
    for key in 0..100 {
        server.set(&format!("key{key}"), format!("value {key}"));
    }
    let (done, gets, gap_ns) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (programs, rdma) = open(host + 1);
            programs.block_on(async {
                let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
                let mut last = now();
                while !done.load(Ordering::Relaxed) {
                    let key = gets.load(Ordering::Relaxed) % 100;
                    let got = client.get(format!("key{key}").as_bytes()).await.unwrap();
                    assert!(is_value(&got, &format!("value {key}")), "key{key}: {got:?}");
                    gets.fetch_add(1, Ordering::Relaxed);
                    let next = now();
                    gap_ns.fetch_max((next - last).as_nanos() as u64, Ordering::Relaxed);
                    last = next;
                }
                client.counters
            })
        });
        let some_more = |what: &str| {
            let begin = gets.load(Ordering::Relaxed);
            wait_for(what, || gets.load(Ordering::Relaxed) >= begin + 300 || reader.is_finished());
            assert!(!reader.is_finished(), "{what}");
        };
        some_more("gets while the worker lives");
        signal(server.worker, "STOP");
        some_more("gets while the worker is stopped");
        signal(server.worker, "CONT");
        server.set("other", "set after it went on");
        some_more("gets after it went on");
        signal(server.worker, "KILL");
        wait_for("the hull hears of the worker's end", || server.worker() == 0);
        some_more("gets while the worker is dead");
        // A client that comes now is served like any other.
        let (programs, rdma) = open(host + 2);
        programs.block_on(async {
            let (mut late, _line) = connect(&rdma, &server.setup).await.unwrap();
            let got = late.get(b"other").await.unwrap();
            assert!(is_value(&got, "set after it went on"), "{got:?}");
            assert_eq!(late.get(b"nobody's").await.unwrap(), Got::Missing);
        });
        wait_for("another worker", || ![0, server.worker].contains(&server.worker()));
        server.set("key5", "value 5");
        assert_eq!(server.call("get other\r\n").as_deref(), Some("VALUE other 0 20"));
        let stats = server.call("stats\r\n").unwrap();
        assert_eq!(stats, format!("STAT pid {}", server.worker()));
        some_more("gets after it came again");
        done.store(true, Ordering::Relaxed);
        let counters = reader.join().unwrap();
        assert_eq!((counters.timeouts, counters.fallbacks), (0, 0), "{counters:?}");
    });
    let gap = Duration::from_nanos(gap_ns.load(Ordering::Relaxed));
    assert!(gap < Duration::from_secs(2), "{gap:?}");
    format!("{} gets, the longest took {gap:?}", gets.load(Ordering::Relaxed))
}

/// Killed again and again in the middle of sets, and each time another finds the table: what was answered is
/// there, what was not may be, and nothing is torn.
#[test]
fn workers_that_are_killed_while_they_set_leave_whole_values() {
    let server = Server::start(13, &["--respawn", "20ms"]);
    let keys: Vec<String> = (0..40).map(|key| format!("key{key}")).collect();
    let value = |round: u32| format!("{round} ").repeat(40 + round as usize % 500);
    let mut rounds: Vec<u32> = vec![0; keys.len()];
    for key in &keys {
        server.set(key, value(0));
    }
    let (programs, rdma) = open(14);
    programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        let (mut round, mut worker) = (0u32, server.worker);
        for kills in 0..12 {
            let open = TcpStream::connect(&server.calls).unwrap();
            let mut reader = BufReader::new(&open);
            // Where the next set goes; false when it was not answered.
            let mut set = |round: &mut u32, rounds: &mut [u32]| {
                *round += 1;
                let at = *round as usize % keys.len();
                let (key, value) = (&keys[at], value(*round));
                let text = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                let mut line = String::new();
                let sent = (&open).write_all(text.as_bytes());
                if sent.is_err() || reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return (at, false);
                }
                assert_eq!(line, "STORED\r\n");
                rounds[at] = *round;
                (at, true)
            };
            // This worker has the connection, and no other may take it over from one that was killed before.
            assert!(set(&mut round, &mut rounds).1);
            let sets = std::thread::scope(|scope| {
                let killer = scope.spawn(|| {
                    std::thread::park_timeout(Duration::from_micros(500 + 1700 * kills));
                    signal(worker, "KILL");
                });
                // Each answered set counts; the first that is not answered may have been done.
                let doubtful = loop {
                    if let (at, false) = set(&mut round, &mut rounds) {
                        break at;
                    }
                };
                killer.join().unwrap();
                doubtful
            });
            for (at, key) in keys.iter().enumerate() {
                let got = client.get(key.as_bytes()).await.unwrap();
                if at == sets && is_value(&got, &value(round)) {
                    rounds[at] = round;
                }
                assert!(is_value(&got, &value(rounds[at])), "{key} after {kills} kills: {got:?}");
            }
            wait_for("another worker", || ![0, worker].contains(&server.worker()));
            worker = server.worker();
        }
        println!("{round} sets, 12 kills");
    });
    let stats = server.call("get key0\r\n").unwrap();
    assert!(stats.starts_with("VALUE key0 "), "{stats}");
}

#[test]
fn a_worker_attaches_by_hand_and_only_one_does() {
    let server = Server::start(15, &[]);
    server.set("key", "value");
    let attach = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        command.args(["redn", "worker", "--attach"]).arg(server.folder.join("socket"));
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let second = attach().wait_with_output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && said.contains("there is a worker already"), "{said}");
    signal(server.worker, "KILL");
    wait_for("the hull hears of the worker's end", || server.worker() == 0);
    let mut heir = attach();
    wait_for("the heir is attached", || server.worker() == heir.id());
    assert_eq!(server.call("get key\r\n").as_deref(), Some("VALUE key 0 5"));
    server.set("key", "other");
    drop(server);
    wait_for("it ends with the hull", || heir.try_wait().unwrap().is_some());
}

#[test]
fn clients_are_told_within_a_second_that_the_hull_has_gone() {
    let mut server = Server::start(4, &[]);
    server.set("key", "value");
    let (programs, rdma) = open(5);
    let line = programs.block_on(async {
        let (mut client, line) = connect(&rdma, &server.setup).await.unwrap();
        assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
        line
    });
    // A worker that is stopped ends with it too.
    signal(server.worker, "STOP");
    let begin = now();
    server.hull.kill().unwrap();
    line.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = (&line).read(&mut [0]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock));
    assert!(now() - begin < Duration::from_secs(1));
    let ended = || match fs::read_to_string(format!("/proc/{}/stat", server.worker)) {
        Err(_) => true,
        Ok(stat) => stat.contains(") Z"),
    };
    wait_for("the worker ends with the hull", ended);
}

#[test]
fn a_hundred_clients_come_and_go_twice() {
    let server = Server::start(6, &["--clients", "100"]);
    server.set("key", "value");
    let (programs, rdma) = open(7);
    for round in 1..=2 {
        programs.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..100 {
                clients.push(connect(&rdma, &server.setup).await.unwrap());
            }
            for (client, _) in &mut clients {
                for _ in 0..20 {
                    assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
                }
            }
            assert_eq!(connect(&rdma, &server.setup).await.err().unwrap(), "100 clients are served already");
            assert_eq!(server.counters()["clients"], 100);
        });
        wait_for("what clients had goes with them", || server.counters()["clients"] == 0);
        let counters = server.counters();
        assert_eq!(counters["clients_gone"], 100 * round);
        assert_eq!((counters["clients_connected"], counters["clients_refused"]), (100 * round, round));
    }
}

/// Times that threads other than the NIC's gave the processor away by themselves; by thread.
fn switches(pid: u32) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let path = task.unwrap().path();
        let read = |file| fs::read_to_string(path.join(file));
        // It may have ended since it was listed.
        let (Ok(name), Ok(status)) = (read("comm"), read("status")) else { continue };
        // The process's first thread has the command's name, which is the same.
        if name.trim() == NIC_THREAD && !path.ends_with(pid.to_string()) {
            continue;
        }
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        out.insert(format!("{} {}", path.display(), name.trim()), count.unwrap().trim().parse().unwrap());
    }
    out
}

#[test]
fn gets_are_answered_by_no_thread_but_the_nics() {
    let server = Server::start(8, &[]);
    server.set("key", "value");
    let (programs, rdma) = open(9);
    programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
        let count = || switches(server.hull.id()).into_iter().chain(switches(server.worker));
        let before: BTreeMap<_, _> = count().collect();
        assert!(before.len() >= 4, "{before:?}");
        for _ in 0..3000 {
            assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
        }
        let more = |task: &str, after| after - before.get(task).copied().unwrap_or(0);
        // What connecting has begun may still have been going to sleep. Who answers wakes for it.
        for (task, after) in count() {
            assert!(more(&task, after) < 50, "{task}: {}", more(&task, after));
        }
        wait_for("all are counted", || server.counters()["client_1_answered"] == 3001);
        // It would have been seen: each question for counters takes other threads.
        for _ in 0..100 {
            server.counters();
        }
        assert!(count().map(|(task, after)| more(&task, after)).sum::<u64>() >= 100);
    });
}

/// A get takes eight WQEs of the queue that looks, each of which counts 512 bits.
#[test]
fn a_clients_rate_is_bounded() {
    let server = Server::start(11, &["--rate", "1"]);
    server.set("key", "value");
    let (programs, rdma) = open(12);
    programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        let begin = now();
        for _ in 0..400 {
            assert!(is_value(&client.get(b"key").await.unwrap(), "value"));
        }
        let took = now() - begin;
        let least = Duration::from_millis(400 * 8 * 512 / 1000);
        assert!(took > least * 8 / 10, "400 gets in {took:?}, not {least:?}");
        // A chain counts a message behind its reply.
        wait_for("all are counted", || server.counters()["client_1_answered"] == 400);
    });
}

#[test]
fn what_a_client_says_wrongly_is_refused() {
    let server = Server::start(10, &["--slots", "16"]);
    let said = |text: &str| {
        let stream = TcpStream::connect(&server.setup).unwrap();
        (&stream).write_all(text.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        (&stream).read_to_string(&mut answer).unwrap();
        answer
    };
    let good = "connect version=1 gid=127.0.0.1 qpn=17 psn=5 buffer=0x1000 rkey=9 reply=64";
    assert_eq!(said("GET / HTTP/1.1\r\n"), "refused a line that is none: connect, counters, quit\n");
    assert_eq!(said(&good.replace("qpn=17", "").replace("  ", " ")), "refused qpn= is missing\n");
    assert_eq!(said(&format!("{good} slots=32\n")), "refused slots: 16 at most\n");
    assert_eq!(
        said(&format!("{good} slots=8 one-sided=1\n")),
        "refused keys of index and values are not given here\n"
    );
    let twice = said(&format!("{good} slots=8\n{good} slots=8\n"));
    assert!(
        twice.starts_with("connected version=1 ") && twice.ends_with("refused connected already\n"),
        "{twice}"
    );
    assert!(said(&"x".repeat(5000)).starts_with("refused "));
    assert_eq!(server.counters()["clients_connected"], 1);
}

#[test]
fn two_sided_gets_are_the_workers_and_end_with_it() {
    let server = Server::start(43, &["--two-sided", "--respawn", "20ms"]);
    server.set("key", "value");
    server.set("long", "x".repeat(5000));
    let (programs, rdma) = open(44);
    programs.block_on(async {
        let (mut chain, _line) = connect(&rdma, &server.setup).await.unwrap();
        let (mut asked, line) = connect_to(By::Program, &rdma, &server.calls, shape()).await.unwrap();
        assert_eq!(asked.get(b"nobody's").await.unwrap(), Got::Missing);
        // Longer than a slot of this client's buffer.
        assert_eq!(asked.get(b"long").await.unwrap(), Got::Unsure);
        // More than once round the ring; and so many under way as there are slots.
        for _ in 0..50 {
            assert!(is_value(&asked.get(b"key").await.unwrap(), "value"));
        }
        let keys = [&b"key"[..], b"nobody's"].repeat(40);
        for (got, key) in asked.get_all(&keys, shape().slots).await.unwrap().iter().zip(&keys) {
            assert!(if *key == b"key" { is_value(got, "value") } else { *got == Got::Missing }, "{got:?}");
        }
        let counted = |name: &str| {
            let stream = TcpStream::connect(&server.calls).unwrap();
            (&stream).write_all(b"stats\r\n").unwrap();
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let found = lines.take_while(|line| line != "END").find(|line| line.contains(name));
            found.and_then(|line| line.split(' ').next_back().unwrap().parse::<u64>().ok()).unwrap()
        };
        // The worker has answered each of them, and none of the chain's; a miss of many is asked for again.
        let before = counted("cmd_get");
        assert_eq!(before, 1 + 1 + 50 + 80 + 40);
        assert!(is_value(&chain.get(b"key").await.unwrap(), "value"));
        assert_eq!(counted("cmd_get"), before);
        // While it is stopped nobody answers but the chain.
        asked.limit = adverb_rdma::Duration::from_ms(200);
        signal(server.worker, "STOP");
        assert!(asked.get(b"key").await.is_err());
        assert!(is_value(&chain.get(b"key").await.unwrap(), "value"));
        signal(server.worker, "KILL");
        // Its client is told at once, and the next worker serves it.
        line.set_read_timeout(Some(PATIENCE)).unwrap();
        let end = (&line).read(&mut [0]);
        assert!(
            matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
        );
        wait_for("another worker", || ![0, server.worker].contains(&server.worker()));
        let (mut again, _line) = connect_to(By::Program, &rdma, &server.calls, shape()).await.unwrap();
        assert!(is_value(&again.get(b"key").await.unwrap(), "value"));
    });
}

#[test]
fn a_worker_without_a_nic_refuses_two_sided_gets() {
    let server = Server::start(45, &[]);
    let told = server.call("connect version=1 gid=127.0.0.1 qpn=17 psn=5 buffer=0x1000 rkey=9\r\n").unwrap();
    assert_eq!(told, "refused the worker has no NIC: serve --two-sided gives it one");
    let words = ["bench", "--time", "100ms", "--keys", "10", "--two-sided"];
    adverb(46, &server, &words, true);
}

/// The command, with the status that is expected, and what it prints.
fn adverb(host: u8, server: &Server, words: &[&str], fails: bool) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.arg("redn").args(words).args(["--address", &address(host), "--server", &server.setup]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.success(), !fails, "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn get_and_bench_ask_the_chain_and_the_worker() {
    let server = Server::start(40, &["--one-sided", "--two-sided"]);
    server.set("greeting", "hello");
    assert_eq!(adverb(41, &server, &["get", "greeting"], false), "hello\n");
    assert_eq!(adverb(41, &server, &["get", "nobody", "greeting"], true), "hello\n");
    let words = ["bench", "--time", "600ms", "--timeline", "200ms", "--keys", "100"];
    let told = adverb(41, &server, &[&words[..], &["--one-sided", "--two-sided"]].concat(), false);
    for way in ["offload", "two reads", "two-sided"] {
        let sum = told.lines().find(|line| line.starts_with(&format!("{way}: ")));
        assert!(sum.is_some_and(|sum| sum.contains("; 0 failed, 0 timeouts")), "{told}");
        let lines = told.lines().filter(|line| line.contains(&format!("  {way} ")));
        assert!(lines.count() >= 2, "{told}");
    }
    // Without a worker the NIC answers on; calls fail, and the bench says so.
    signal(server.worker, "KILL");
    wait_for("the hull hears of the worker's end", || server.worker() == 0);
    let words = ["bench", "--time", "300ms", "--keys", "100", "--no-fill"];
    let told = adverb(41, &server, &words, false);
    assert!(told.contains("0 failed, 0 timeouts") && told.contains(" 0 fallbacks"), "{told}");
    adverb(41, &server, &["bench", "--time", "200ms"], true);
    assert_eq!(adverb(41, &server, &["get", "greeting"], false), "hello\n");
}
