//! Gets while no thread of the server can run but the NIC's: each other one is stopped by ptrace(2), which
//! stops threads one by one, where SIGSTOP stops a process. The crate's only unsafe code is these calls.
#![allow(unsafe_code)]

use crate::world::*;
use adverb_redn::service::client::Got;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Threads that this one has stopped. They go on when it is dropped.
#[derive(Default)]
struct Stopped(Vec<libc::pid_t>);

impl Stopped {
    /// Stops a thread, and waits until it is; false if it has ended.
    fn stop(&mut self, thread: libc::pid_t) -> std::io::Result<bool> {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: these requests take no memory of ours.
        let asked = |request| match unsafe { libc::ptrace(request, thread, null, null) } {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        };
        let gone = |error: &std::io::Error| error.raw_os_error() == Some(libc::ESRCH);
        match asked(libc::PTRACE_SEIZE) {
            Err(error) if gone(&error) => return Ok(false),
            other => other?,
        }
        self.0.push(thread);
        match asked(libc::PTRACE_INTERRUPT) {
            Err(error) if gone(&error) => return Ok(false),
            other => other?,
        }
        let mut status = 0;
        // SAFETY: the status is a valid place for the call's duration.
        match unsafe { libc::waitpid(thread, &mut status, libc::__WALL) } {
            pid if pid == thread => Ok(libc::WIFSTOPPED(status)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for thread in &self.0 {
            let null = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: takes no memory of ours. It fails for a thread that has ended, which does not matter.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, *thread, null, null) };
        }
    }
}

/// What the kernel says of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Thread {
    name: String,
    /// `S` asleep, `t` stopped by a tracer, `T` stopped.
    state: char,
    /// How often it was put on a processor.
    ran: u64,
}

/// A process's threads, by their numbers, without the one that moves its NIC's frames.
fn threads(pid: u32) -> BTreeMap<libc::pid_t, Thread> {
    let mut out = BTreeMap::new();
    for task in tasks(pid) {
        // It may have ended since it was listed.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/task/{task}/status")) else { continue };
        let of = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        let count = |key: &str| of(key).parse::<u64>().unwrap();
        let ran = count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:");
        let (name, state) = (of("Name:").to_owned(), of("State:").chars().next().unwrap());
        // The process's first thread has the command's name, which is the same.
        if name != NIC_THREAD || task as u32 == pid {
            out.insert(task, Thread { name, state, ran });
        }
    }
    out
}

/// Stops all threads of a process but its NIC's. They hold nothing that the NIC's thread wants: all are
/// asleep, and have been for a while.
fn stop_all(pid: u32, stopped: &mut Stopped) -> std::io::Result<BTreeMap<libc::pid_t, Thread>> {
    let mut last = BTreeMap::new();
    wait_for("threads go to sleep", || {
        let now = threads(pid);
        let rests = now == last && now.values().all(|thread| thread.state == 'S');
        last = now;
        rests
    });
    for thread in last.keys() {
        assert!(stopped.stop(*thread)?, "{thread} has ended");
    }
    let now = threads(pid);
    assert!(now.keys().eq(last.keys()), "{last:?} {now:?}");
    assert!(now.values().all(|thread| thread.state == 't'), "{now:?}");
    Ok(now)
}

#[test]
fn gets_go_on_with_every_other_thread_of_the_hull_blocked() {
    gets_with_the_nics_thread_alone(47, &[], "");
}

#[test]
fn gets_by_udp_go_on_with_every_other_thread_of_the_hull_blocked() {
    gets_with_the_nics_thread_alone(49, &["--path", "udp"], "path=udp");
}

fn gets_with_the_nics_thread_alone(host: u8, nic: &[&str], own: &str) {
    let server = Server::start(host, nic);
    let hull = server.hull.id();
    for key in 0..50 {
        server.set(&format!("key{key}"), format!("value {key}"));
    }
    let (programs, rdma) = open_with(host + 1, own);
    programs.block_on(async {
        let (mut client, _line) = connect(&rdma, &server.setup).await.unwrap();
        assert!(is_value(&client.get(b"key7").await.unwrap(), "value 7"));
        // First the hull's threads, then the worker as well.
        for worker_too in [false, true] {
            if worker_too {
                signal(server.worker, "STOP");
            }
            let mut stopped = Stopped::default();
            let before = match stop_all(hull, &mut stopped) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return skip(&error),
                other => other.unwrap(),
            };
            // The first thread, signals', the keeper, the door, and who listens to this client.
            assert!(before.len() >= 5, "{before:?}");
            let asked = client.counters.asked;
            for n in 0..3000 {
                let key = n % 50;
                let got = client.get(format!("key{key}").as_bytes()).await.unwrap();
                assert!(is_value(&got, &format!("value {key}")), "key{key}: {got:?}");
            }
            let c = client.counters;
            assert_eq!(c.asked - asked, 3000, "{c:?}");
            assert_eq!((c.timeouts, c.retries, c.fallbacks), (0, 0, 0), "{c:?}");
            assert_eq!(threads(hull), before, "a thread has run");
            // What another thread has to answer waits until they go on.
            let question = TcpStream::connect(&server.setup).unwrap();
            (&question).write_all(b"counters\n").unwrap();
            question.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let silent = (&question).read(&mut [0]).unwrap_err();
            assert!(matches!(silent.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silent}");
            drop(stopped);
            question.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut line = String::new();
            BufReader::new(&question).read_line(&mut line).unwrap();
            assert!(line.contains(' '), "{line}");
        }
        // That thread is the one: without it nobody answers.
        let own_task = tasks(hull).into_iter().find(|task| !threads(hull).contains_key(task)).unwrap();
        let mut stopped = Stopped::default();
        assert!(stopped.stop(own_task).unwrap());
        client.limit = adverb_rdma::Duration::from_ms(200);
        let got = client.get(b"key7").await;
        assert!(!got.as_ref().is_ok_and(|got| matches!(got, Got::Value(_))), "{got:?}");
        assert_eq!(client.counters.timeouts, 1);
        drop(stopped);
        signal(server.worker, "CONT");
    });
}

fn skip(error: &std::io::Error) {
    let why = format!("SKIPPED: gets beside blocked threads: ptrace(2) is refused: {error}");
    // Past the test harness, which hides what a passing test prints.
    let mut out = std::io::stdout();
    writeln!(out, "{why}\n0 passed, 0 failed, 1 skipped").unwrap();
}
