//! A NIC's life in its process: opening, refusing to open, forking, ending, and what it leaves on disk.

mod common;

use adverb_io::{Host, OpenError, Settings};
use adverb_nic::SendOp;
use adverb_wire::pcap::Reader;
use adverb_wire::{Key, Packet, verify_ip};
use common::{Endpoint, Helper, Remote, folder, listen, local, role, say};
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn helper() {
    let Some(role) = role() else { return };
    match role[0].as_str() {
        "deaf" => speak_to_nobody(&role[1]),
        "hold" => {
            let endpoint = Endpoint::open(&role[1]);
            say(&endpoint.host.device().slot.to_string());
            listen();
        }
        "target" => {
            let endpoint = Endpoint::open(&role[1]);
            say(&endpoint.remote().line());
            endpoint.connect(&Remote::parse(&listen().unwrap()));
            say("connected");
            listen();
            // The process ends without closing the NIC itself.
            std::mem::forget(endpoint);
        }
        "refused" => say(&open(&role[1]).err().unwrap().to_string()),
        "claim" => {
            let table = File::options().read(true).write(true).open(&role[1]).unwrap();
            lock_byte(&table, 0);
            say("locked");
            listen();
        }
        "fill" => {
            let table = File::options().read(true).write(true).open(&role[1]).unwrap();
            // The first is its parent's.
            for slot in 2..=254 {
                lock_byte(&table, (1 << 20) + slot);
            }
            say("full");
            listen();
        }
        other => panic!("no role {other}"),
    }
}

fn lock_byte(file: &File, at: i64) {
    // SAFETY: all zeroes is a valid `flock`, and the record outlives the call.
    let locked = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_start = at;
        lock.l_len = 1;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock)
    };
    assert_eq!(locked, 0);
}

fn at(address: &str, folder: &Path, more: &str) -> String {
    format!("address={address},directory={}{more}", folder.display())
}

fn open(settings: &str) -> Result<Arc<Host>, OpenError> {
    Host::open(&Settings::parse(settings).unwrap(), Box::new(|_| {}))
}

/// The only folder in the directory: that of the one address in use.
fn inside(directory: &Path) -> PathBuf {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    assert_eq!(folders.len(), 1, "{folders:?}");
    folders[0].clone()
}

/// Names of what the directory holds.
fn left_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn slots_go_round_and_a_process_opens_once() {
    let folder = folder("slots");
    let settings = at(&local(61, 1), &folder, "");
    let first = open(&settings).unwrap();
    assert!(matches!(open(&settings), Err(OpenError::AlreadyOpen { .. })));
    let mut helper = Helper::start(&["hold", &settings]);
    assert_eq!(helper.hear(), "2");
    helper.kill();
    let mut helper = Helper::start(&["hold", &settings]);
    assert_eq!(helper.hear(), "3", "a killed process's slot is not given out at once");
    helper.end();
    first.close();
    drop(first);
    let again = open(&settings).unwrap();
    assert_eq!(again.device().slot, 4);
    drop(again);
    assert_eq!(left_in(&folder), ["numbers"], "no table, and a page for all addresses");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_full_table_says_so() {
    let folder = folder("full");
    let settings = at(&local(62, 1), &folder, "");
    let own = open(&settings).unwrap();
    let mut helper = Helper::start(&["fill", inside(&folder).join("table").to_str().unwrap()]);
    assert_eq!(helper.hear(), "full");
    let mut refused = Helper::start(&["refused", &settings]);
    assert!(refused.hear().contains("all 254 process slots"));
    refused.end();
    helper.end();
    drop(own);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn processes_of_another_version_are_left_alone() {
    let folder = folder("version");
    let settings = at(&local(67, 1), &folder, "");
    let mut helper = Helper::start(&["hold", &settings]);
    helper.hear();
    let path = inside(&folder).join("table");
    let table = File::options().write(true).open(&path).unwrap();
    table.write_all_at(&[0xff], 7).unwrap();
    // All but what its owner does: to its own entry, and to the count of changes when it has found out which
    // index its socket has.
    let table_without_theirs = || {
        let mut table = std::fs::read(&path).unwrap();
        table[24..28].fill(0);
        table[4096 + 256..4096 + 512].fill(0);
        table
    };
    let before = table_without_theirs();
    let error = open(&settings).err().unwrap();
    assert!(matches!(error, OpenError::OtherVersion { .. }), "{error:?}");
    assert!(error.to_string().contains("another version") && error.to_string().contains(&local(67, 1)));
    assert!(table_without_theirs() == before, "their table is as it was");
    helper.end();
    // Nobody uses the table any more. Its file is gone with its last process, whatever it says.
    assert!(!path.exists());
    drop(open(&settings).unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_taken_port_and_a_foreign_directory_are_refused() {
    let folder = folder("taken");
    let holder = UdpSocket::bind((local(63, 1).as_str(), 4791)).unwrap();
    let error = open(&at(&local(63, 1), &folder, "")).err().unwrap();
    assert!(matches!(error, OpenError::PortTaken { .. }), "{error:?}");
    assert!(error.to_string().contains("4791") && error.to_string().contains(&local(63, 1)));
    drop(holder);
    drop(open(&at(&local(63, 1), &folder, "")).unwrap());
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = open(&at(&local(63, 1), &folder, "")).err().unwrap();
    assert!(matches!(error, OpenError::ForeignDirectory { .. }), "{error:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that is being started holds copies of this process's sockets until its exec: the port must not
/// seem taken by a stranger meanwhile.
#[test]
fn a_nic_opens_again_while_programs_are_started() {
    let folder = folder("exec");
    let settings = at(&local(68, 1), &folder, "");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(Command::new("/bin/true").status().unwrap().success());
            }
        });
        let opened: Vec<_> = (0..300).map(|_| open(&settings).map(drop)).collect();
        done.store(true, Ordering::Relaxed);
        let refused: Vec<_> = opened.iter().filter_map(|o| o.as_ref().err()).map(|e| e.to_string()).collect();
        assert!(refused.is_empty(), "{} times: {}", refused.len(), refused[0]);
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_forked_child_leaves_its_parents_nic_alone() {
    let folder = folder("fork");
    let settings = at(&local(64, 1), &folder, "");
    let endpoint = Endpoint::open(&settings);
    let mut helper = Helper::start(&["target", &settings]);
    let peer = Remote::parse(&helper.hear());
    helper.tell(&endpoint.remote().line());
    endpoint.connect(&peer);
    assert_eq!(helper.hear(), "connected");
    let key = Key(peer.rkey);
    endpoint.run(SendOp::Write(peer.addr, key), 0, 4096);
    // SAFETY: the child calls only what a forked child of a threaded process may reach here, and ends
    // by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The inherited NIC answers and moves nothing; one of the child's own works.
        let named = endpoint.host.control(|nic, _| nic.qp_number(endpoint.qp)).is_ok();
        let silent = endpoint.host.poll(endpoint.cq, 1, |_| {}) == Ok(0);
        let own = open(&settings).is_ok_and(|host| {
            let slot = host.device().slot;
            host.close();
            slot == 3
        });
        endpoint.host.close();
        // SAFETY: ends the process.
        unsafe { libc::_exit(if named && silent && own { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child into a valid place.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 7));
    for _ in 0..100 {
        endpoint.run(SendOp::Write(peer.addr, key), 0, 4096);
    }
    helper.end();
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn captures_and_counters_are_on_disk_at_the_end() {
    let folder = folder("files");
    let files = std::env::temp_dir().join(format!("adverb-io-files-{}", std::process::id()));
    std::fs::create_dir_all(&files).unwrap();
    for (ours, theirs) in [(&local(65, 1), &local(65, 1)), (&local(65, 1), &local(65, 2))] {
        let [pcap_a, pcap_b, counters_a, counters_b] =
            ["a.pcap", "b.pcap", "a.json", "b.txt"].map(|name| files.join(name));
        let set = |address, pcap: &Path, counters: &Path| {
            at(address, &folder, &format!(",pcap={},counters={}", pcap.display(), counters.display()))
        };
        let endpoint = Endpoint::open(&set(ours, &pcap_a, &counters_a));
        let mut helper = Helper::start(&["target", &set(theirs, &pcap_b, &counters_b)]);
        let peer = Remote::parse(&helper.hear());
        helper.tell(&endpoint.remote().line());
        endpoint.connect(&peer);
        assert_eq!(helper.hear(), "connected");
        endpoint.run(SendOp::Write(peer.addr, Key(peer.rkey)), 0, 100_000);
        endpoint.run(SendOp::Read(peer.addr, Key(peer.rkey)), 0, 100_000);
        helper.end();
        drop(endpoint);
        let captured = [&pcap_a, &pcap_b].map(|path| {
            let bytes = std::fs::read(path).unwrap();
            let mut count = 0;
            for record in Reader::new(&bytes).unwrap() {
                let frame = &record.bytes[14..];
                let parsed = Packet::parse_ip(frame).unwrap();
                assert!(verify_ip(&frame[..parsed.frame_len], parsed.ip_header_len));
                count += 1;
            }
            count
        });
        assert!(captured[0] >= 52 && captured[0] == captured[1], "{captured:?}");
        let json = std::fs::read_to_string(&counters_a).unwrap();
        assert!(json.starts_with("{\n  \"rx_packets\": ") && json.ends_with("}\n"));
        let text = std::fs::read_to_string(&counters_b).unwrap();
        assert!(text.lines().all(|line| line.split(' ').count() == 2) && text.contains("\nacks_sent "));
    }
    std::fs::remove_dir_all(files).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Has the library say something on a standard error that takes nothing.
fn speak_to_nobody(settings: &str) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    // SAFETY: both descriptors are open, and nobody else uses standard error meanwhile.
    assert_eq!(unsafe { libc::dup2(full.as_raw_fd(), 2) }, 2);
    let endpoint = Endpoint::open(settings);
    let own = endpoint.remote();
    endpoint.connect(&own);
    // A key that is nobody's ends in an error completion, which --trace explains.
    endpoint.post(1, SendOp::Write(own.addr, Key(!own.rkey)), 0, 8);
    let completions = endpoint.wait(1);
    say(&format!("{:?}", completions[0].status));
    listen();
}

#[test]
fn an_explanation_that_nobody_can_read_harms_nobody() {
    let folder = folder("deaf");
    let settings = format!("address={},directory={},trace", local(131, 1), folder.display());
    let mut helper = Helper::start(&["deaf", &settings]);
    // The same queue pair is at both ends: the refusal or its own error state comes first.
    assert_ne!(helper.hear(), "Success");
    helper.end();
    std::fs::remove_dir_all(folder).unwrap();
}

/// A killed process leaves its table to the next one of the address, which removes it in the end.
#[test]
fn a_killed_process_leaves_its_table_to_the_next() {
    let folder = folder("left");
    let settings = at(&local(132, 1), &folder, "");
    let mut helper = Helper::start(&["hold", &settings]);
    assert_eq!(helper.hear(), "1");
    helper.kill();
    assert!(inside(&folder).join("table").exists());
    let next = open(&settings).unwrap();
    assert_eq!(next.device().slot, 2);
    drop(next);
    assert_eq!(left_in(&folder), ["numbers"]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Who stopped while it took a slot holds up nobody for ever, and is named.
#[test]
fn a_stopped_holder_of_the_table_is_named() {
    let folder = folder("held");
    let settings = at(&local(133, 1), &folder, "");
    let own = open(&settings).unwrap();
    let mut holder = Helper::start(&["claim", inside(&folder).join("table").to_str().unwrap()]);
    assert_eq!(holder.hear(), "locked");
    holder.stop();
    let mut refused = Helper::start(&["refused", &settings]);
    let said = refused.hear();
    assert!(said.contains(&format!("kill -CONT {}", holder.child.id())), "{said}");
    refused.end();
    // Nor does it hold up who leaves.
    drop(own);
    holder.signal(libc::SIGCONT);
    holder.end();
    drop(open(&settings).unwrap());
    assert_eq!(left_in(&folder), ["numbers"]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Many processes come and go at once: the table is removed under some, and none is lost between two tables.
#[test]
fn those_who_come_while_the_last_one_leaves_find_each_other() {
    let folder = folder("churn");
    let settings = at(&local(134, 1), &folder, "");
    for _ in 0..5 {
        let mut helpers: Vec<Helper> = (0..4).map(|_| Helper::start(&["hold", &settings])).collect();
        let mut slots: Vec<String> = helpers.iter_mut().map(Helper::hear).collect();
        slots.sort();
        slots.dedup();
        assert_eq!(slots.len(), 4, "each has its own slot: {slots:?}");
        let (leaving, staying) = (helpers.split_off(1), helpers);
        leaving.into_iter().for_each(Helper::end);
        let late = Helper::start(&["hold", &settings]);
        staying.into_iter().for_each(Helper::end);
        let mut late = late;
        late.hear();
        late.end();
    }
    assert_eq!(left_in(&folder), ["numbers"]);
    std::fs::remove_dir_all(folder).unwrap();
}
