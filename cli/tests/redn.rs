//! `adverb redn` as its user sees it: every example compiles, is shown, runs by its file alone, is traced.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates/redn/examples/programs").join(name)
}

fn redn(action: &str, name: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["redn", action]).arg(example(name)).args(more).output().unwrap()
}

fn said(action: &str, name: &str, more: &[&str]) -> String {
    let output = redn(action, name, more);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{action} {name}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_runs_by_its_file_alone() {
    let replies = [
        ("get.redn", "reply imm 1, 12 bytes"),
        ("sequential.redn", "reply imm 2, 12 bytes"),
        ("parallel.redn", "reply imm 2, 12 bytes"),
        ("hopscotch.redn", "two away"),
        ("cuckoo.redn", "in the other"),
        ("lookup.redn", "medium"),
        ("btree.redn", "seventy-three"),
        ("store.redn", "reply imm 4, 16 bytes"),
        ("walk.redn", "thirty-3"),
        ("break.redn", "22......"),
        ("mov.redn", "= 106"),
        ("count.redn", "= 5050"),
        ("busy_beaver.redn", "= 107"),
        ("endless.redn", "= 1000"),
        ("stale.redn", "no reply"),
    ];
    let folder = example("");
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, replies.len(), "each example has a reply here");
    for (name, expected) in replies {
        let out = said("run", name, &[]);
        assert!(out.contains(expected), "{name}: {out}");
        assert!(said("compile", name, &[]).contains("1 receive"), "{name}");
        assert!(said("show", name, &[]).contains("wait   reply.recv[0]"), "{name}");
    }
    let out = said("run", "get.redn", &["--real"]);
    assert!(out.contains("reply imm 1, 12 bytes") && out.contains("the value 42"), "{out}");
}

#[test]
fn a_lookup_is_shown_and_traced_field_by_field() {
    let shown = said("show", "get.redn", &[]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("R0 ") && lines[0].contains("? by W2, W3"), "{shown}");
    assert!(lines[3].contains("read   table[?] -> R0.ctrl+0:3  R0.ctrl+4:3  R0.local+0:8"), "{shown}");
    let trace = said("trace", "get.redn", &[]);
    let at = |what: &str| trace.find(what).unwrap_or_else(|| panic!("{what} in {trace}"));
    // What the message changes, then what the READ brings, then what the compare-and-swap turns on.
    let order = [
        at("sends its message"),
        at("recv              message: W2.addr = table+64, W3.compare ="),
        at("W2       line 5   fetched (as changed by recv)"),
        at("W2       line 5   read: R0.operand = 00000000002a, R0.len = 12, R0.local = values+4096"),
        at("W3       line 6   cas: R0.operand = 000000010000, R0.opcode = write_imm"),
        at("W3       line 6   done"),
        at("W5       line 6   enables reply <1"),
        at("R0       line 6   fetched: write_imm (as changed by W2, W3)"),
        at("R0       line 6   executed: write_imm"),
        at("reply imm 1"),
    ];
    assert!(order.is_sorted(), "{trace}");
    let other = said("trace", "get.redn", &["--args", "key=0x2b"]);
    let unchanged = "cas: R0.ctrl is nop|00000000002a, not nop|00000000002b: unchanged";
    assert!(!other.contains("opcode = write_imm") && other.contains(unchanged), "{other}");
    assert!(other.ends_with("no reply: `if` at line 6 was false\n"), "{other}");
    let other = said("run", "get.redn", &["--args", "key=0x2b,bucket=table+82", "--hardware", "neutral"]);
    assert!(other.contains("hello"), "{other}");
}

/// A wrong order is named: which WQE was fetched when, and who changed it too late.
#[test]
fn a_stale_fetch_is_named() {
    let trace = said("trace", "stale.redn", &[]);
    let stale = |line: u32, by: &str| {
        let begin = format!("line {line}: R0 was fetched at 1.31 us, before {by} changed it at ");
        let end = format!(
            "the change has no effect (its ENABLE came too early: it belongs behind a WAIT for {by})"
        );
        trace.lines().any(|text| text.starts_with(&begin) && text.ends_with(&end))
    };
    assert!(stale(6, "W3") && stale(7, "W4"), "{trace}");
    // The same, when the compiler is told to make the mistake; and in no right program.
    let trace = said("trace", "get.redn", &["--bug", "one-stage"]);
    assert!(trace.contains("the change has no effect"), "{trace}");
    let folder = example("");
    for file in std::fs::read_dir(&folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let trace = said("trace", &name, &[]);
        assert_eq!(trace.contains("the change has no effect"), name == "stale.redn", "{name}: {trace}");
        assert!(!trace.contains("stuck"), "{name}: {trace}");
    }
    let trace = said("trace", "endless.redn", &[]);
    assert!(trace.contains("the trace ends here"), "{trace}");
}

/// What nothing lets go on is named, with what it waits for.
#[test]
fn what_is_stuck_is_named() {
    let output = redn("trace", "get.redn", &["--bug", "waits-for-itself", "--limit", "1ms"]);
    let trace = String::from_utf8(output.stdout).unwrap();
    let stuck =
        "stuck: W4 waits for worker.done[1], and that has had 1: what is missing would come from behind it";
    assert!(!output.status.success() && trace.contains(stuck), "{trace}");
    let trace = said("trace", "get.redn", &["--bug", "no-enable"]);
    assert!(trace.contains("stuck: queue reply was never enabled: R0 stands at block 0"), "{trace}");
}

/// A chain of a running process is shown with what it waits for; a process that is not there is refused in
/// words.
#[test]
#[expect(clippy::disallowed_methods, reason = "a limit for a process of its own")]
fn queues_of_a_running_process_are_shown() {
    let show = |pid: u32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        command.args(["redn", "show", "--pid", &pid.to_string()]).output().unwrap()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["redn", "run", "--real", "--bug", "waits-for-itself", "--limit", "60s"]);
    let mut process = command.arg(example("get.redn")).stdout(Stdio::piped()).spawn().unwrap();
    // It has to be up, and to come to its WAIT.
    let end = Instant::now() + Duration::from_secs(50);
    let shown = loop {
        let output = show(process.id());
        let text = String::from_utf8(output.stdout).unwrap();
        if text.contains("which has had 1") || Instant::now() > end {
            break text;
        }
        std::thread::yield_now();
    };
    process.kill().unwrap();
    process.wait().unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    let waiter =
        lines.iter().position(|line| line.contains("managed, RTS") && line.contains("[1], which has had 1"));
    let waiter = waiter.unwrap_or_else(|| panic!("{shown}"));
    assert!(
        lines[waiter..].iter().any(|line| line.starts_with(" >    ") && line.contains("wait   cq ")),
        "{shown}"
    );
    assert!(lines.iter().any(|line| line.contains("cas ")), "{shown}");
    let refused = String::from_utf8(show(process.id()).stderr).unwrap();
    assert!(refused.contains("it has no cross-channel queues"), "{refused}");
}

#[test]
fn what_cannot_be_run_is_refused_in_words() {
    let refused = |action: &str, name: &str, more: &[&str]| {
        let output = redn(action, name, more);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused("run", "none.redn", &[]).contains("none.redn"));
    assert!(refused("run", "get.redn", &["--args", "other=1"]).contains("the program has no argument other"));
    assert!(refused("run", "get.redn", &["--args", "key"]).contains("`key` is not NAME=NUMBER"));
    assert!(refused("run", "get.redn", &["--hardware", "none"]).contains("there is no such profile"));
    assert!(refused("trace", "get.redn", &["--real"]).contains("a trace is taken in the simulator"));
    // A bucket outside the table: the READ is refused by its key, and the program stops.
    let outside = refused("run", "get.redn", &["--args", "bucket=values+0"]);
    assert!(outside.contains("a WR of the program failed"), "{outside}");
    let endless = redn("run", "busy_beaver.redn", &["--limit", "1ms", "--args", "limit=0"]);
    assert!(!endless.status.success(), "it needs longer than 1 ms");
}

/// Walks of a tree beside its writer: all right, and those that go astray are resolved by a call.
#[test]
fn a_tree_is_walked_beside_its_writer() {
    let tree = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        let output = command.args(["redn", "tree"]).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let out = tree(&["--gets", "60"]);
    assert!(
        out.contains("60 gets:") && out.contains(" 0 by a call (0.00%") && out.contains(" 0 wrong"),
        "{out}"
    );
    let out = tree(&["--gets", "60", "--spare", "0", "--pace", "10"]);
    assert!(!out.contains(" 0 by a call") && out.contains(" 0 wrong"), "{out}");
    // Between real NICs the writer and the chains have processors of their own.
    let out = tree(&["--gets", "40", "--real"]);
    assert!(out.contains("40 gets:") && out.contains(" 0 wrong"), "{out}");
}
