//! `adverb redn` as its user sees it: every example compiles, is shown, runs by its file alone, is traced.

use std::path::PathBuf;
use std::process::{Command, Output};

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
        at("addr = table+64, was ?"),
        at("local = values+4096"),
        at("opcode = write_imm"),
        at("reply imm 1"),
    ];
    assert!(order.is_sorted(), "{trace}");
    let other = said("trace", "get.redn", &["--args", "key=0x2b"]);
    assert!(!other.contains("opcode = write_imm") && other.contains("no reply"), "{other}");
    let other = said("run", "get.redn", &["--args", "key=0x2b,bucket=table+82", "--hardware", "neutral"]);
    assert!(other.contains("hello"), "{other}");
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
}
