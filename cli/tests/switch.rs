//! `adverb switch` as its user sees it: run, shown, traced, set, ended by a signal; files checked.
#![cfg(unix)]

use adverb_os::batch::Tally;
use adverb_os::signals;
use adverb_os::sys::wait_readable;
use adverb_os::via::{Hello, Place, Via, socket_path};
use adverb_wire::pcap::{LinkType, Writer};
use adverb_wire::{Bth, Flow, Gid, Instant, Opcode, Operation, Packet, Psn, QpNumber, Service, WireExtra};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = std::fs::remove_dir_all(&self.1);
    }
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.arg("switch").args(words).env("ADVERB", format!("directory={}", folder.display()));
    command
}

fn ask(folder: &Path, words: &[&str]) -> (String, String, bool) {
    let Output { stdout, stderr, status } = command(folder, words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(stdout), text(stderr), status.success())
}

fn start(test: &str, text: &str) -> Running {
    let folder = std::env::temp_dir().join(format!("adverb-switch-{}-{test}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("switch.toml");
    std::fs::write(&file, text).unwrap();
    let words = ["run", file.to_str().unwrap()];
    let mut child = command(&folder, &words).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let running = Running(child, folder);
    assert!(ready.starts_with("switch lock: ecn;"), "{ready}");
    running
}

#[test]
fn a_switch_runs_is_asked_and_ends() {
    let mut running = start("run", "name = 'lock'\n[[program]]\nkind = 'ecn'\nevery = 1\n");
    let folder = running.1.clone();
    let address = Gid::from("10.9.0.1".parse::<IpAddr>().unwrap());
    let path = socket_path(&folder, Path::new("lock"));
    let mut via = Via::open(Place::Local(path.clone()), Hello { slot: 1, address, host: [1; 16] }).unwrap();
    let flow = Flow { src: address, dst: address, traffic_class: 2, hop_limit: 64, ..Flow::default() };
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly);
    let bth = Bth { opcode, dest_qp: QpNumber::new(0x01_0011), ..Bth::default() };
    let packet = Packet { flow, bth, payload_len: 8, ..Packet::default() };
    assert!(via.stage_packet(Instant::ZERO, &packet, |at| at.fill(1)) && via.flush(&mut Tally::default()));
    let mut class = None;
    while class.is_none() {
        assert!(wait_readable(via.fd(), Duration::from_secs(20)));
        via.receive(Instant::ZERO, |datagram| class = Some(datagram.flow.traffic_class));
    }
    assert_eq!(class, Some(3), "marked");

    let (shown, said, good) = ask(&folder, &["show", "--via", "lock"]);
    assert!(good && shown.contains("10.9.0.1") && shown.contains("ecn_marked 1"), "{shown}{said}");
    let (json, ..) = ask(&folder, &["show", "--via", "lock", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["ports"][0]["rx_frames"], 1);
    let (traced, ..) = ask(&folder, &["trace", "--via", "lock", "--qp", "0x010011", "--last", "5"]);
    assert!(traced.contains("marked; out 0") && traced.lines().count() == 1, "{traced}");
    assert!(ask(&folder, &["set", "ecn", "--via", "lock", "--every", "9"]).2);
    let (_, said, good) = ask(&folder, &["set", "trim", "--via", "lock", "--every", "9"]);
    assert!(!good && said.contains("no program trim"), "{said}");
    let (tables, ..) = ask(&folder, &["table", "ecn", "--via", "lock"]);
    let (seen, ..) = ask(&folder, &["table", "ecn", "seen", "--via", "lock"]);
    assert_eq!((tables.as_str(), seen.as_str()), ("seen\n", "0x0 0x1\n"));
    assert!(ask(&folder, &["table", "ecn", "seen", "7", "--set", "0x20", "--via", "lock"]).2);
    assert_eq!(ask(&folder, &["table", "ecn", "seen", "7", "--via", "lock"]).0, "0x7 0x20\n");
    let (_, said, good) = ask(&folder, &["table", "ecn", "words", "--via", "lock"]);
    assert!(!good && said.contains("ecn has no table words; it has seen"), "{said}");

    let next = folder.join("next.toml");
    let trim = "[[program]]\nkind = 'trim'\nabove = 900000\n";
    std::fs::write(&next, format!("name = 'lock'\n[[program]]\nkind = 'ecn'\nevery = 1\n{trim}")).unwrap();
    let (reloaded, said, good) = ask(&folder, &["reload", "--via", "lock", next.to_str().unwrap()]);
    assert!(good && reloaded == "programs: ecn kept, trim new\nports: as before\n", "{reloaded}{said}");
    let add = ["port", "add", "--via", "lock", "10.9.0.1", "--loss", "0.5", "--seed", "3"];
    let (added, said, good) = ask(&folder, &add);
    let changed = "programs: ecn kept, trim kept\nports: 10.9.0.1 has other faults or another capture\n";
    assert!(good && added == changed, "{added}{said}");
    let (_, said, good) = ask(&folder, &add);
    assert!(!good && said.contains("two entries for 10.9.0.1"), "{said}");
    assert!(ask(&folder, &["port", "remove", "--via", "lock", "10.9.0.1"]).2);
    let (later, ..) = ask(&folder, &["port", "add", "--via", "lock", "10.9.0.8", "--loss", "0.5"]);
    assert!(later.ends_with("ports: 10.9.0.8 when a process claims it\n"), "{later}");
    let (_, said, good) = ask(&folder, &["show"]);
    assert!(!good && said.contains("sw0.switch") && said.contains("adverb switch run"), "{said}");

    signals::terminate(running.0.id());
    assert!(running.0.wait().unwrap().success(), "ended by SIGTERM");
    assert!(!path.exists());
}

/// Sends itself so many frames, with these numbers, and takes all of them.
fn send_to_itself(via: &mut Via, address: Gid, psns: std::ops::Range<u32>) {
    /// What waits at a port at once at most, far below what it has room for.
    const WINDOW: u32 = 100;
    let flow = Flow { src: address, dst: address, traffic_class: 2, hop_limit: 64, ..Flow::default() };
    let opcode = Opcode::new(Service::Rc, Operation::SendOnly);
    for from in psns.clone().step_by(WINDOW as usize) {
        let row = from..psns.end.min(from + WINDOW);
        for psn in row.clone() {
            let bth = Bth { opcode, dest_qp: QpNumber::new(0x01_0011), psn: Psn::new(psn), ..Bth::default() };
            let packet = Packet { flow, bth, payload_len: 8, ..Packet::default() };
            assert!(via.stage_packet(Instant::ZERO, &packet, |at| at.fill(1)));
        }
        assert!(via.flush(&mut Tally::default()));
        let mut came = 0;
        while came < row.len() {
            assert!(wait_readable(via.fd(), Duration::from_secs(20)), "{came} of {row:?}");
            via.receive(Instant::ZERO, |_| came += 1);
        }
    }
}

/// More events than one answer has room for: all that are kept are printed, and who wants more is told how
/// many there were.
#[test]
fn a_trace_has_all_that_is_kept_and_says_what_is_not() {
    const KEPT: u32 = 6000;
    const NOTED: u32 = 7500;
    let text = format!("name = 'lock'\ntrace = {KEPT}\n[[program]]\nkind = 'ecn'\nevery = 1\n");
    let running = start("trace", &text);
    let folder = &running.1;
    let address = Gid::from("10.9.0.1".parse::<IpAddr>().unwrap());
    let path = socket_path(folder, Path::new("lock"));
    let mut via = Via::open(Place::Local(path), Hello { slot: 1, address, host: [1; 16] }).unwrap();
    let trace = |words: &[&str]| {
        let (lines, said, good) = ask(folder, &[&["trace", "--via", "lock"][..], words].concat());
        assert!(good, "{said}");
        let psn = |line: &str| {
            let word = line.split_once("psn 0x")?.1.split(' ').next()?;
            u32::from_str_radix(word, 16).ok()
        };
        (lines.lines().map(|line| psn(line).unwrap()).collect::<Vec<_>>(), said)
    };
    let none = trace(&["--last", "60000"]);
    assert_eq!(none, (vec![], "adverb: 0 of the last 60000 events: the switch has noted none\n".to_owned()));
    send_to_itself(&mut via, address, 0..5000);
    let (psns, said) = trace(&["--last", "60000"]);
    assert!(psns.into_iter().eq(0..5000), "each event once, in order");
    let words = "adverb: 5000 of the last 60000 events: the switch has noted 5000 in all, and keeps them\n";
    assert_eq!(said, words);
    send_to_itself(&mut via, address, 5000..NOTED);
    for words in [&[][..], &["--last", "6000"], &["--qp", "0x010011"]] {
        let (psns, said) = trace(words);
        assert!(psns.into_iter().eq(NOTED - KEPT..NOTED) && said.is_empty(), "{words:?}: {said}");
    }
    let (psns, said) = trace(&["--qp", "0x010011", "--last", "60000"]);
    assert!(psns.into_iter().eq(NOTED - KEPT..NOTED), "all that are kept");
    assert!(said.contains("6000 of the last 60000 events of queue pair 0x10011"), "{said}");
    assert!(said.contains("keeps 6000 of 7500 that there were, as many as `trace`"), "{said}");
    let (psns, said) = trace(&["--last", "5999"]);
    assert!(psns.into_iter().eq(NOTED - KEPT + 1..NOTED) && said.is_empty(), "{said}");
    let (psns, said) = trace(&["--last", "0"]);
    assert!(psns.is_empty() && said.is_empty(), "{said}");
}

#[test]
fn a_file_is_checked_against_hardware() {
    let folder = std::env::temp_dir().join(format!("adverb-switch-{}-check", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("lock.toml");
    std::fs::write(&file, "[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\n").unwrap();
    let name = file.to_str().unwrap();
    let (text, _, good) = ask(&folder, &["check", name]);
    assert!(good && text.contains("software: fits"), "{text}");
    let (text, _, good) = ask(&folder, &["check", name, "--target", "tofino1"]);
    assert!(!good && text.contains("tofino1: does not fit: generates packets"), "{text}");
    assert!(text.contains("tofino1: registers in 3 stages: "), "{text}");
    std::fs::write(&file, "[[program]]\nkind = 'sort'\n").unwrap();
    let (_, said, good) = ask(&folder, &["check", name]);
    assert!(!good && said.contains("lock.toml") && said.contains("sort"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

fn adverb(words: &[&str]) -> (String, bool) {
    let Output { stdout, stderr, status } =
        Command::new(env!("CARGO_BIN_EXE_adverb")).args(words).output().unwrap();
    (String::from_utf8([stdout, stderr].concat()).unwrap(), status.success())
}

/// A count that a swarm prints before these words.
fn count(said: &str, words: &str) -> u64 {
    let before = said.split(words).next().unwrap_or_default();
    before.rsplit([' ', '(']).find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{words}: {said}"))
}

#[test]
fn a_swarm_of_words_behind_a_switch_finds_nothing_and_says_what_happened() {
    let (said, well) = adverb(&["swarm", "--switch", "--seeds", "400"]);
    assert!(well && said.starts_with("400 seeds, 0 failed"), "{said}");
    for words in [
        " atomics converted",
        " granted",
        " refused",
        " added",
        " WRITEs of words followed",
        " atomics passed",
        " requests held",
        " made again",
        " of them de-coalesced",
        " of them while answers were awaited",
    ] {
        assert!(count(&said, words) > 0, "{words}: {said}");
    }
    // Few seeds need not have everything, and one seed is shown whole.
    assert!(adverb(&["swarm", "--switch", "--seeds", "2", "--first", "77"]).1);
    // Whose request was tried as the server's before it could be carried had claimed a turn for ever.
    assert!(adverb(&["swarm", "--switch", "--seeds", "1", "--first", "750"]).1);
    let (said, well) = adverb(&["replay", "3", "--switch"]);
    assert!(well && said.contains("nothing wrong") && said.contains("granted; out 0 as WRITE"), "{said}");
}

#[test]
fn each_mistake_of_the_program_is_found() {
    for (bug, first) in [
        ("icrc-unchecked", "0"),
        ("restart-forgets", "2000"),
        ("converted-twice", "0"),
        ("learned-beside-atomics", "0"),
        ("learned-beside-writes", "0"),
    ] {
        let seeds = ["--first", first, "--seeds", "600", "--failures", "1"];
        let (said, well) = adverb(&[&["swarm", "--switch", "--bug", bug][..], &seeds].concat());
        assert!(!well && said.contains("explains their answers"), "{bug}: {said}");
        assert!(said.contains(&format!("--switch --bug {bug} --around-failure")), "{said}");
    }
    // Its clients send again what was not answered, and are answered at last: the swarm misses the count.
    let (said, well) = adverb(&["swarm", "--switch", "--seeds", "200", "--bug", "answers-coalesced"]);
    assert!(!well && said.contains("no switch of these seeds had: de_coalesced in place"), "{said}");
}

#[test]
fn a_scenario_has_a_switch_with_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/sim/examples/switch.toml");
    let (said, well) = adverb(&["sim", folder.to_str().unwrap()]);
    assert!(well && said.contains("an order of the operations explains every answer"), "{said}");
    for part in ["cas_granted", "cas_refused", "fetch_added", "de_coalesced", "switch restarts   1"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// The start of the last frame that a case expects.
const LAST: &str =
    "expect 1 45020038000040004011 269f 0a090001 0a090002 c00012b700240000 1200ffff000000220000000d";

#[test]
fn cases_of_packets_are_run() {
    let folder = std::env::temp_dir().join(format!("adverb-switch-{}-cases", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/switchd/examples/cases");
    let (file, cases) = (examples.join("switch.toml"), examples.to_str().unwrap());
    let file = file.to_str().unwrap();
    let (said, _, well) = ask(&folder, &["test", file, cases]);
    assert!(well && said.ends_with("2 passed, 0 failed\n"), "{said}");
    // What a line wants and does not get is said, and so is what nobody wanted.
    let text = std::fs::read_to_string(examples.join("cas.stf")).unwrap();
    for (name, from, to, wanted) in [
        ("value", "00000008 0300000000000000", "00000008 0400000000000000", "line 17: by port 0 left 45"),
        ("counter", "counter cas_granted 1", "counter cas_granted 2", "line 18: cas_granted is 1"),
        ("port", "packet 0", "packet 2", "line 6: the file has 2 ports"),
        ("digit", "expect 0 45", "expect 0 4g", "line 5: `g` is no hexadecimal digit"),
        ("odd", "expect 0 45", "expect 0 4", "line 5: a byte has two digits"),
        ("star", "packet 1 45", "packet 1 4*", "line 4: `*` is for expect"),
        ("header", "packet 1 45020048", "packet 1 75020048", "line 4: icrc: the frame has no IP header"),
        ("word", "wait 2000000", "sleep 2000000", "line 2: `sleep`: packet, expect, wait, counter"),
        ("rest", "counter answered 2", "packet 0 00", ""),
        ("unwanted", LAST, &LAST.replace("expect", "# expect"), "at the end: by port 1 left 45"),
    ] {
        let path = folder.join(name).with_extension("stf");
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let (said, _, well) = ask(&folder, &["test", file, path.to_str().unwrap()]);
        assert_eq!(well, wanted.is_empty(), "{name}: {said}");
        assert!(said.contains(wanted), "{name}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn pairs_of_captures_are_cases() {
    let folder = std::env::temp_dir().join(format!("adverb-switch-{}-pairs", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("switch.toml");
    let port = |last: u8| format!("[[port]]\naddress = '10.9.0.{last}'\n");
    let text = format!("{}{}[[program]]\nkind = 'trim'\nevery = 2\n", port(1), port(2));
    std::fs::write(&file, text).unwrap();
    let gid = |last| Gid::from(IpAddr::from([10, 9, 0, last]));
    let flow = Flow { src: gid(2), dst: gid(1), traffic_class: 2, hop_limit: 64, ..Flow::default() };
    let bth = Bth { opcode: Opcode::new(Service::Rc, Operation::SendOnly), ..Bth::default() };
    let packet = Packet { flow, bth, payload_len: 8, ..Packet::default() };
    let mut bytes = vec![0; packet.frame_len()];
    assert_eq!(packet.emit_frame(&WireExtra::default(), &[7; 8], &mut bytes), bytes.len());
    let write = |name: &str, frames: usize| {
        let mut writer = Writer::new(Vec::new(), LinkType::Raw).unwrap();
        (0..frames).for_each(|n| writer.record(0, n as u32, &[&bytes]).unwrap());
        std::fs::write(folder.join(name), writer.into_inner()).unwrap();
    };
    write("one.in.pcap", 1);
    write("one.out.pcap", 1);
    let words = ["test", file.to_str().unwrap(), folder.to_str().unwrap()];
    let (said, _, well) = ask(&folder, &words);
    assert!(well && said.contains("one.in.pcap: 1 packets in, 1 out\n1 passed, 0 failed"), "{said}");
    // The second of a port is trimmed.
    write("two.in.pcap", 2);
    write("two.out.pcap", 2);
    let (said, _, well) = ask(&folder, &words);
    assert!(
        !well && said.contains("FAIL") && said.contains("two.in.pcap: frame 2: by port 0 left 45"),
        "{said}"
    );
    std::fs::remove_file(folder.join("two.out.pcap")).unwrap();
    let (_, said, well) = ask(&folder, &words);
    assert!(!well && said.contains("two.out.pcap"), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}
