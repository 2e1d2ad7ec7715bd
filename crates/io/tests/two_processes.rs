//! Two processes, each with its NIC: the same transfers over shared memory and over UDP, with and without
//! faults, towards a target whose application sleeps, and with a peer that is killed.

mod common;

use adverb_io::Settings;
use adverb_nic::{QpType, SendData, SendFlags, SendOp, SendWr, Status, UdAddress};
use adverb_wire::{
    Bth, Flow, Gid, ICRC_LEN, Icrc, Key, Opcode, Operation, Packet, Psn, QpNumber, Reth, Service,
};
use common::{Endpoint, Helper, Remote, folder, listen, local, role, say};
use std::sync::atomic::Ordering;

/// The helper process: see the roles below. Does nothing when run as a test of its own.
#[test]
fn helper() {
    let Some(role) = role() else { return };
    match role[0].as_str() {
        "sleep" => sleeping_target(&role[1]),
        "echo" => echo(&role[1]),
        "write-for-ever" => write_for_ever(&role[1]),
        "ud" => ud_echo(&role[1], QpType::Ud),
        "ud-many" => ud_take(&role[1]),
        "gsi" => ud_echo(&role[1], QpType::Gsi),
        "uc" => uc_receive(&role[1]),
        other => panic!("no role {other}"),
    }
}

/// Connects, then only sleeps on its standard input, answering `sum SEED LEN` by checking its memory.
fn sleeping_target(settings: &str) {
    let endpoint = Endpoint::open(settings);
    say(&endpoint.remote().line());
    endpoint.connect(&Remote::parse(&listen().unwrap()));
    say("connected");
    while let Some(line) = listen() {
        let words: Vec<usize> = line.split(' ').map(|w| w.parse().unwrap()).collect();
        match words[..] {
            [offset, len, seed] => endpoint.check(offset, len, seed as u64),
            _ => panic!("{line}"),
        }
        say("right");
    }
    say(&endpoint.host.counters_text().replace('\n', ";"));
}

/// Receives messages and sends each back.
fn echo(settings: &str) {
    let endpoint = Endpoint::open(settings);
    for i in 0..64 {
        endpoint.recv(i, i as usize * 8192, 8192);
    }
    say(&endpoint.remote().line());
    endpoint.connect(&Remote::parse(&listen().unwrap()));
    say("connected");
    let count: usize = listen().unwrap().parse().unwrap();
    let (mut received, mut sent) = (0, 0);
    while received < count || sent < count {
        for c in endpoint.wait_ok(1) {
            if c.op == adverb_nic::CompletionOp::Recv {
                received += 1;
                endpoint.post(c.wr_id + 1000, SendOp::Send, c.wr_id as usize * 8192, c.byte_len as usize);
            } else {
                sent += 1;
                endpoint.recv(c.wr_id - 1000, (c.wr_id - 1000) as usize * 8192, 8192);
            }
        }
    }
    say("done");
    listen();
}

fn write_for_ever(settings: &str) {
    let endpoint = Endpoint::open(settings);
    say(&endpoint.remote().line());
    let peer = Remote::parse(&listen().unwrap());
    endpoint.connect(&peer);
    for _ in 0..16 {
        endpoint.post(1, SendOp::Write(peer.addr, Key(peer.rkey)), 0, 1 << 20);
    }
    say("writing");
    loop {
        endpoint.wait(1);
        endpoint.post(1, SendOp::Write(peer.addr, Key(peer.rkey)), 0, 1 << 20);
    }
}

fn ud_echo(settings: &str, qp_type: QpType) {
    let endpoint = Endpoint::with(Settings::parse(settings).unwrap(), qp_type);
    endpoint.start_ud();
    for i in 0..16 {
        endpoint.recv(i, i as usize * 8192, 8192);
    }
    say(&endpoint.remote().line());
    let completion = endpoint.wait_ok(1)[0];
    say(&format!("{} {}", completion.byte_len, completion.src_qp.get()));
    listen();
}

/// Takes as many datagrams as it has receives for, or as many as come before it is told to end.
fn ud_take(settings: &str) {
    let endpoint = Endpoint::with(Settings::parse(settings).unwrap(), QpType::Ud);
    endpoint.start_ud();
    for i in 0..DATAGRAMS {
        endpoint.recv(i, i as usize * 8192, 8192);
    }
    say(&endpoint.remote().line());
    if let Some(count) = listen() {
        let found = endpoint.wait_ok(count.parse().unwrap());
        say(&format!("{}", found.iter().filter(|c| c.byte_len == 40 + 4096).count()));
        listen();
    }
}

fn uc_receive(settings: &str) {
    let endpoint = Endpoint::with(Settings::parse(settings).unwrap(), QpType::Uc);
    say(&endpoint.remote().line());
    endpoint.connect_unacknowledged(&Remote::parse(&listen().unwrap()));
    endpoint.recv(7, 0, 8192);
    say("connected");
    let completion = endpoint.wait_ok(1)[0];
    endpoint.check(0, completion.byte_len as usize, 1);
    say(&format!("{} {}", completion.wr_id, completion.byte_len));
    listen();
}

fn start(role: &str, settings: &str) -> (Helper, Remote) {
    let mut helper = Helper::start(&[role, settings]);
    let remote = Remote::parse(&helper.hear());
    (helper, remote)
}

fn connect(endpoint: &Endpoint, helper: &mut Helper, peer: &Remote) {
    helper.tell(&endpoint.remote().line());
    endpoint.connect(peer);
    assert_eq!(helper.hear(), "connected");
}

/// Writes, reads and atomics of all sizes towards a target that sleeps.
fn one_sided(ours: &str, theirs: &str) -> Endpoint {
    let endpoint = Endpoint::open(ours);
    let (mut helper, peer) = start("sleep", theirs);
    connect(&endpoint, &mut helper, &peer);
    let key = Key(peer.rkey);
    for (seed, len) in [1, 8, 255, 256, 4096, 4097, 65_536, 1_000_003].into_iter().enumerate() {
        let half = 2 << 20;
        endpoint.fill(0, len, seed as u64);
        endpoint.run(SendOp::Write(peer.addr, key), 0, len);
        helper.tell(&format!("0 {len} {seed}"));
        assert_eq!(helper.hear(), "right");
        endpoint.run(SendOp::Read(peer.addr, key), half, len);
        endpoint.check(half, len, seed as u64);
    }
    let word = peer.addr + (3 << 20);
    for i in 0..50 {
        endpoint.run(SendOp::FetchAdd { addr: word, rkey: key, add: 3 }, 0, 8);
        assert_eq!(endpoint.memory[0].load(Ordering::Relaxed), i * 3);
    }
    endpoint.run(SendOp::CompareSwap { addr: word, rkey: key, compare: 150, swap: 7 }, 0, 8);
    assert_eq!(endpoint.memory[0].load(Ordering::Relaxed), 150);
    for i in 0..200 {
        endpoint.post(i, SendOp::Write(peer.addr + i * 4096, key), (i * 4096) as usize, 4096);
        if i >= 64 {
            endpoint.wait_ok(1);
        }
    }
    endpoint.wait_ok(64);
    helper.end();
    endpoint
}

/// Messages there and back.
fn two_sided(ours: &str, theirs: &str, count: u64) {
    let endpoint = Endpoint::open(ours);
    let (mut helper, peer) = start("echo", theirs);
    for i in 0..32 {
        endpoint.recv(i, i as usize * 8192, 8192);
    }
    connect(&endpoint, &mut helper, &peer);
    helper.tell(&count.to_string());
    let out = 1 << 20;
    for i in 0..count {
        let len = 1 + (i as usize * 577) % 8192;
        endpoint.fill(out, len, i);
        endpoint.post(i, SendOp::Send, out, len);
        let mut done = endpoint.wait_ok(2);
        done.sort_by_key(|c| c.op as u8);
        assert_eq!((done[0].wr_id, done[1].byte_len as usize), (i, len));
        endpoint.check(done[1].wr_id as usize * 8192, len, i);
        endpoint.recv(done[1].wr_id, done[1].wr_id as usize * 8192, 8192);
    }
    assert_eq!(helper.hear(), "done");
    helper.end();
}

fn at(address: &str, folder: &std::path::Path, more: &str) -> String {
    format!("address={address},directory={}{more}", folder.display())
}

#[test]
fn one_sided_over_shared_memory() {
    let folder = folder("shm1");
    let settings = at(&local(51, 1), &folder, "");
    let endpoint = one_sided(&settings, &settings);
    assert!(endpoint.counter("shm_tx_frames") > 500);
    assert_eq!(endpoint.counter("udp_tx_frames"), 0);
    assert_eq!(endpoint.counter("retransmitted_packets"), 0);
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_sided_over_udp() {
    let folder = folder("udp1");
    let endpoint = one_sided(&at(&local(52, 1), &folder, ""), &at(&local(52, 2), &folder, ""));
    assert!(endpoint.counter("udp_tx_frames") > 500);
    assert_eq!(endpoint.counter("shm_tx_frames"), 0);
    assert_eq!(endpoint.counter("drop_icrc"), 0);
    drop(endpoint);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_sided_over_udp_within_one_address() {
    // The kernel gives a flow to either socket: frames for the other process are handed on.
    for address in [&local(53, 1), "::1"] {
        let folder = folder("udp2");
        let settings = at(address, &folder, ",path=udp");
        let endpoint = one_sided(&settings, &settings);
        assert!(endpoint.counter("udp_tx_frames") > 500);
        drop(endpoint);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn two_sided_both_ways() {
    let folder = folder("send");
    let settings = at(&local(54, 1), &folder, "");
    two_sided(&settings, &settings, 500);
    two_sided(&at(&local(54, 1), &folder, ""), &at(&local(54, 2), &folder, ""), 500);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn faults_are_survived() {
    let folder = folder("faults");
    let faults = ",loss=0.02,duplicate=0.02,reorder=0.02,corrupt=0.02,delay=10us,seed=3";
    let settings = at(&local(55, 1), &folder, faults);
    let endpoint = one_sided(&settings, &settings);
    for name in
        ["fault_tx_lost", "fault_rx_duplicated", "fault_rx_reordered", "fault_tx_corrupted", "drop_icrc"]
    {
        assert!(endpoint.counter(name) > 0, "{name}");
    }
    drop(endpoint);
    one_sided(&at(&local(55, 2), &folder, faults), &at(&local(55, 3), &folder, faults));
    std::fs::remove_dir_all(folder).unwrap();
}

/// Names of what the folders of a directory hold.
fn left_in(directory: &std::path::Path) -> Vec<String> {
    let folders = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap());
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_killed_peer_ends_in_retry_exceeded_and_leaves_no_trace() {
    let folder = folder("kill");
    let settings = at(&local(56, 1), &folder, "");
    for round in 0..3 {
        let endpoint = Endpoint::open(&settings);
        let (mut helper, peer) = start("write-for-ever", &settings);
        endpoint.connect_with(&peer, 14, 2);
        helper.tell(&endpoint.remote().line());
        assert_eq!(helper.hear(), "writing");
        let key = Key(peer.rkey);
        endpoint.run(SendOp::Write(peer.addr, key), 0, 100_000);
        for i in 0..64 {
            endpoint.post(i, SendOp::Read(peer.addr, key), 0, 1 << 20);
        }
        helper.kill();
        let statuses: Vec<_> = endpoint.wait(64).into_iter().map(|c| c.status).collect();
        let first_error = statuses.iter().find(|&&s| s != Status::Success);
        assert_eq!(first_error, Some(&Status::TransportRetryExceeded), "round {round}");
        endpoint.host.close();
        // What the dead left is removed by the next one to open.
        let left = left_in(&folder);
        assert!(left.len() <= 3, "{left:?}");
    }
    drop(Endpoint::open(&settings));
    assert_eq!(left_in(&folder), [""; 0]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Any local user may send datagrams from a port of its own, with the address of this host as their source.
/// Such a sweep of sequence numbers, with all that else a packet needs, must not write to memory.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
fn a_local_program_injects_nothing() {
    let folder = folder("inject");
    for (address, source) in
        [(&local(60, 1), &local(60, 1)), (&local(60, 1), &local(60, 2)), (&"::1".into(), &"::1".into())]
    {
        let settings = at(address, &folder, ",trace");
        let endpoint = Endpoint::open(&settings);
        // The peer is another process: of this address, through shared memory, or of another.
        let (mut helper, peer) = start("sleep", &at(source, &folder, ""));
        connect(&endpoint, &mut helper, &peer);
        let own = endpoint.remote();
        let attacker = std::net::UdpSocket::bind((source.as_str(), 0)).unwrap();
        // The one expected is 77.
        for psn in 0..200 {
            let frame = forged_write(&own, peer.gid, attacker.local_addr().unwrap().port(), psn);
            attacker.send_to(&frame, (address.as_str(), 4791)).unwrap();
        }
        // The connection is as it was.
        endpoint.fill(4096, 64, 1);
        endpoint.run(SendOp::Write(peer.addr, Key(peer.rkey)), 4096, 64);
        helper.tell("0 64 1");
        assert_eq!(helper.hear(), "right");
        // Where the address is one, the kernel may have given them to the other process.
        let said = helper.last_words();
        let theirs = said.split(';').find_map(|line| line.strip_prefix("drop_injected ")).unwrap();
        let theirs: u64 = theirs.parse().unwrap();
        let start = std::time::Instant::now();
        while endpoint.counter("drop_injected") + theirs < 200 {
            endpoint.host.look();
            assert!(start.elapsed().as_secs() < 30, "{theirs}; {}", endpoint.host.counters_text());
        }
        assert!(endpoint.memory[..8].iter().all(|word| word.load(Ordering::Relaxed) == 0), "written to");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A WRITE of 64 bytes to the beginning of a peer's memory, as it is in a datagram.
fn forged_write(to: &Remote, src: Gid, src_port: u16, psn: u32) -> Vec<u8> {
    let flow = Flow { src, dst: to.gid, src_port, ..Flow::default() };
    let packet = Packet {
        flow,
        bth: Bth {
            opcode: Opcode::new(Service::Rc, Operation::WriteOnly),
            dest_qp: to.qpn,
            psn: Psn::new(psn),
            ..Bth::default()
        },
        reth: Reth { va: to.addr, rkey: Key(to.rkey), len: 64 },
        payload_len: 64,
        ..Packet::default()
    };
    let mut frame = vec![0xee; packet.wire_len()];
    let len = frame.len();
    packet.emit_bth(&mut frame);
    let (covered, icrc) = frame.split_at_mut(len - ICRC_LEN);
    icrc.copy_from_slice(&Icrc::over_flow(&flow, 0, len, covered).finish().to_le_bytes());
    frame
}

fn post_datagram(endpoint: &Endpoint, peer: &Remote, (wr_id, qkey, len): (u64, u32, usize)) {
    let path = endpoint.host.resolve(peer.gid, peer.qpn);
    let ud = UdAddress { dgid: peer.gid, qpn: peer.qpn, qkey, traffic_class: 0x68, hop_limit: 3, path };
    let sges = [endpoint.sge(0, len)];
    let wr = SendWr {
        wr_id,
        op: SendOp::Send,
        flags: SendFlags { signaled: true, ..SendFlags::default() },
        data: SendData::Sges(&sges),
        ud: Some(ud),
        xrc_srqn: 0,
    };
    endpoint.host.post(|nic, now| nic.post_send(now, endpoint.qp, &wr)).unwrap();
}

fn send_datagram(endpoint: &Endpoint, peer: &Remote, qkey: u32) {
    post_datagram(endpoint, peer, (5, qkey, 500));
    endpoint.wait_ok(1);
}

#[test]
fn datagrams_arrive() {
    let folder = folder("ud");
    for address in [&local(57, 1), &local(57, 2)] {
        let settings = Settings::parse(&at(&local(57, 1), &folder, "")).unwrap();
        let endpoint = Endpoint::with(settings, QpType::Ud);
        endpoint.start_ud();
        let (mut helper, peer) = start("ud", &at(address, &folder, ""));
        send_datagram(&endpoint, &peer, 0x1234);
        assert_eq!(helper.hear(), format!("540 {}", endpoint.remote().qpn.get()));
        helper.end();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A datagram's work request completes when the datagram is on its way. Its sender may end then, even if the
/// receiver is not scheduled for a while.
#[test]
fn a_datagram_outlives_its_sender() {
    let folder = folder("ud-last");
    let settings = at(&local(59, 1), &folder, "");
    let (mut helper, peer) = start("ud", &settings);
    helper.stop();
    let endpoint = Endpoint::with(Settings::parse(&settings).unwrap(), QpType::Ud);
    endpoint.start_ud();
    send_datagram(&endpoint, &peer, 0x1234);
    let from = endpoint.remote().qpn.get();
    endpoint.host.close();
    helper.signal(libc::SIGCONT);
    assert_eq!(helper.hear(), format!("540 {from}"));
    helper.end();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Datagrams of 4 KB, more than a ring holds, and as many as a queue of a test has room for.
const DATAGRAMS: u64 = 256;

fn counted(endpoint: &Endpoint, name: &str) -> u64 {
    let text = endpoint.host.counters_text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// Sends a process that is stopped more datagrams than its ring holds; waits until the others wait.
fn datagrams_that_wait(folder: &std::path::Path, host: u8) -> (Endpoint, Helper) {
    let settings = at(&local(74, host), folder, "");
    let (helper, peer) = start("ud-many", &settings);
    helper.stop();
    let endpoint = Endpoint::with(Settings::parse(&settings).unwrap(), QpType::Ud);
    endpoint.start_ud();
    (0..DATAGRAMS).for_each(|wr_id| post_datagram(&endpoint, &peer, (wr_id, 0x1234, 4096)));
    (endpoint, helper)
}

/// A full ring holds datagrams back, as it does requests of connections: none is lost though the receiver has
/// no processor for a while.
#[test]
fn datagrams_wait_for_a_full_ring() {
    let folder = folder("ud-full");
    // A host where even this comes too late for the sender's patience shows nothing.
    for _ in 0..10 {
        let (endpoint, mut helper) = datagrams_that_wait(&folder, 1);
        // All that can leave leaves within the posts.
        assert!(counted(&endpoint, "datagram_waits") > 0, "{}", endpoint.host.counters_text());
        assert!(counted(&endpoint, "shm_tx_frames") < DATAGRAMS);
        helper.signal(libc::SIGCONT);
        endpoint.wait_ok(DATAGRAMS as usize);
        if counted(&endpoint, "paths_given_up") == 0 {
            assert_eq!(counted(&endpoint, "drop_tx_blocked") + counted(&endpoint, "drop_ring_full"), 0);
            helper.tell(&DATAGRAMS.to_string());
            assert_eq!(helper.hear(), DATAGRAMS.to_string());
            helper.end();
            std::fs::remove_dir_all(folder).unwrap();
            return;
        }
        helper.signal(libc::SIGKILL);
    }
    panic!("ten times the receiver was given up before it could go on");
}

/// They do not wait for ever: who is stopped gets no more of them, and its sender goes on.
#[test]
fn datagrams_do_not_wait_for_who_is_stopped() {
    let folder = folder("ud-stopped");
    let (endpoint, mut helper) = datagrams_that_wait(&folder, 2);
    endpoint.wait_ok(DATAGRAMS as usize);
    assert_eq!(counted(&endpoint, "paths_given_up"), 1);
    let (sent, dropped) = (counted(&endpoint, "shm_tx_frames"), counted(&endpoint, "drop_tx_blocked"));
    assert!(dropped > 0 && sent + dropped == DATAGRAMS, "{sent} sent, {dropped} dropped");
    // What the ring had taken is there.
    helper.signal(libc::SIGCONT);
    helper.tell(&sent.to_string());
    assert_eq!(helper.hear(), sent.to_string());
    helper.end();
    std::fs::remove_dir_all(folder).unwrap();
}

/// The same of a message over an unreliable connection, of one packet or of many.
#[test]
fn a_message_without_acknowledgements_outlives_its_sender() {
    let folder = folder("uc-last");
    for (host, len) in [(1, 500), (2, 8192)] {
        let settings = at(&local(66, host), &folder, "");
        let (mut helper, peer) = start("uc", &settings);
        let endpoint = Endpoint::with(Settings::parse(&settings).unwrap(), QpType::Uc);
        helper.tell(&endpoint.remote().line());
        assert_eq!(helper.hear(), "connected");
        helper.stop();
        endpoint.connect_unacknowledged(&peer);
        endpoint.fill(0, len, 1);
        endpoint.run(SendOp::Send, 0, len);
        endpoint.host.close();
        helper.signal(libc::SIGCONT);
        assert_eq!(helper.hear(), format!("7 {len}"));
        helper.end();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Every process has a queue pair 1: a datagram for it reaches all of the address, over either path.
#[test]
fn datagrams_for_the_well_known_queue_pair_reach_everyone() {
    let folder = folder("gsi");
    for address in [&local(58, 1), &local(58, 2)] {
        let settings = Settings::parse(&at(&local(58, 1), &folder, "")).unwrap();
        let endpoint = Endpoint::with(settings, QpType::Gsi);
        endpoint.start_ud();
        let mut helpers: Vec<_> = (0..3).map(|_| start("gsi", &at(address, &folder, ""))).collect();
        assert!(helpers.iter().all(|(_, remote)| remote.qpn == QpNumber::GSI));
        send_datagram(&endpoint, &helpers[0].1, 0x8001_0000);
        // Shown if the test fails: a datagram that is lost leaves no other trace.
        println!("to {address}:\n{}", endpoint.host.counters_text());
        for (helper, _) in &mut helpers {
            assert_eq!(helper.hear(), "540 1");
        }
        helpers.into_iter().for_each(|(helper, _)| helper.end());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A peer's flow reaches the process that its packets are for, whoever else of the address is stopped, killed
/// or new: the kernel does not hash it to one of them for good.
#[test]
fn a_stopped_process_harms_no_other_of_its_address() {
    let folder = folder("steer");
    for (ours, theirs) in [([1, 2, 3, 4].map(|i| local(70, i)), local(71, 1))] {
        let mut pairs: Vec<_> = ours
            .iter()
            .map(|own| {
                let endpoint = Endpoint::open(&at(own, &folder, ""));
                let (mut helper, peer) = start("sleep", &at(&theirs, &folder, ""));
                connect(&endpoint, &mut helper, &peer);
                (endpoint, helper, peer)
            })
            .collect();
        let write = |(endpoint, _, peer): &(Endpoint, Helper, Remote)| {
            endpoint.run(SendOp::Write(peer.addr, Key(peer.rkey)), 0, 64);
        };
        for stopped in 0..pairs.len() {
            pairs[stopped].1.signal(libc::SIGSTOP);
            pairs.iter().enumerate().filter(|&(i, _)| i != stopped).for_each(|(_, pair)| write(pair));
            pairs[stopped].1.signal(libc::SIGCONT);
            write(&pairs[stopped]);
        }
        // The first one's place is the last one's now, which has to find that out while another is stopped.
        pairs.remove(0).1.kill();
        for stopped in 0..pairs.len() {
            pairs[stopped].1.signal(libc::SIGSTOP);
            pairs.iter().enumerate().filter(|&(i, _)| i != stopped).for_each(|(_, pair)| write(pair));
            pairs[stopped].1.signal(libc::SIGCONT);
        }
        // A new one, while another is stopped.
        pairs[0].1.signal(libc::SIGSTOP);
        let endpoint = Endpoint::open(&at(&local(70, 5), &folder, ""));
        let (mut helper, peer) = start("sleep", &at(&theirs, &folder, ""));
        connect(&endpoint, &mut helper, &peer);
        write(&(endpoint, helper, peer));
        pairs[0].1.signal(libc::SIGCONT);
        pairs.iter().for_each(write);
        for (_, helper, _) in pairs {
            let said = helper.last_words();
            assert!(said.split(';').any(|line| line == "steering_refused 0"), "{said}");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}
