//! `adverb switch reload`, `port` and `table`: what a switch that runs is changed to, without an end; and
//! `adverb switch trace`: what it has done.

use crate::error::Error;
use crate::output::print;
use crate::switch::{Trace, Which, ask, word};
use adverb_os::say;
use adverb_switchd::Question;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// `adverb switch reload`.
#[derive(Args, Debug)]
pub struct Reload {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// The file [default: the one that the switch has]
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
}

/// `adverb switch table`.
#[derive(Args, Debug)]
pub struct Table {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// The program, by name or by its number from 1 on
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// The table [default: print their names]
    #[arg(value_name = "TABLE")]
    pub table: Option<String>,
    /// One entry of it
    #[arg(value_name = "KEY", value_parser = word, requires = "table")]
    pub key: Option<u64>,
    /// What the entry is from now on
    #[arg(long, value_name = "VALUE", value_parser = word, requires = "key", conflicts_with = "clear")]
    pub set: Option<u64>,
    /// The entry goes
    #[arg(long, requires = "key")]
    pub clear: bool,
}

/// Prints tables, or changes an entry.
pub fn table(arguments: &Table) -> Result<(), Error> {
    let Table { which, program, table, key, set, clear } = arguments;
    let program = program.clone();
    match (table.clone(), *key) {
        (Some(table), Some(key)) if set.is_some() || *clear => {
            ask(which, &Question::SetEntry { program, table, key, value: *set }).map(drop)
        }
        (table, key) => print(&table_text(&ask(which, &Question::Entries { program, table, key })?)),
    }
}

fn table_text(said: &Value) -> String {
    let list = |key: &str| said[key].as_array().cloned().unwrap_or_default();
    let names = list("tables").into_iter().filter_map(|name| Some(format!("{}\n", name.as_str()?)));
    let number = |pair: &Value, at: usize| pair[at].as_u64().unwrap_or_default();
    let entries = list("entries");
    let lines = entries.iter().map(|pair| format!("{:#x} {:#x}\n", number(pair, 0), number(pair, 1)));
    names.chain(lines).collect()
}

/// `adverb switch port`.
#[derive(Subcommand, Debug)]
pub enum PortAction {
    /// Give the switch a cable, or an address that processes will claim its faults and capture
    Add(Box<PortAdd>),
    /// Take a cable away, or the faults and capture of an address
    Remove(PortRemove),
}

/// `adverb switch port add`.
#[derive(Args, Debug)]
pub struct PortAdd {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// The port's address
    #[arg(value_name = "ADDRESS")]
    pub address: IpAddr,
    /// More addresses at the cable
    #[arg(long, value_name = "ADDRESS")]
    pub also: Vec<IpAddr>,
    /// A cable to this interface
    #[arg(long, value_name = "NAME", conflicts_with = "qemu")]
    pub interface: Option<String>,
    /// A cable to the virtual machine whose QEMU listens on this socket
    #[arg(long, value_name = "SOCKET")]
    pub qemu: Option<PathBuf>,
    /// A capture of what passes the port
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// The chance that a frame is lost, each way
    #[arg(long, value_name = "P")]
    pub loss: Option<f64>,
    /// The chance that a frame comes twice
    #[arg(long, value_name = "P")]
    pub duplicate: Option<f64>,
    /// The chance that a frame is overtaken
    #[arg(long, value_name = "P")]
    pub reorder: Option<f64>,
    /// The chance that a frame is damaged
    #[arg(long, value_name = "P")]
    pub corrupt: Option<f64>,
    /// How long each frame is delayed
    #[arg(long, value_name = "US")]
    pub delay_us: Option<u64>,
    /// What decides whom the faults befall
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// `adverb switch port remove`.
#[derive(Args, Debug)]
pub struct PortRemove {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// An address of the port
    #[arg(value_name = "ADDRESS")]
    pub address: IpAddr,
}

/// Prints what became of the last packets. An answer has room for some of them only: those before them are
/// asked for again and again.
pub fn trace(arguments: &Trace) -> Result<(), Error> {
    let Trace { which, qp, last } = arguments;
    let (mut parts, mut shown) = (Vec::new(), 0);
    let mut ask_before = |before| {
        let left = last.map(|last| last.saturating_sub(shown));
        let part = ask(which, &Question::Trace { qp: *qp, last: left, before })?;
        let lines = part["events"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let lines: Vec<String> = lines.map(|line| format!("{line}\n")).collect();
        shown += lines.len();
        parts.push(lines);
        Ok::<_, Error>(part)
    };
    let newest = ask_before(None)?;
    let older = |part: &Value| part["first"].as_u64().filter(|_| part["older"].as_u64() > Some(0));
    let mut before = older(&newest);
    while before.is_some() {
        before = older(&ask_before(before)?);
    }
    parts.reverse();
    print(&parts.concat().concat())?;
    if let Some(words) = too_few(&newest, shown as u64, *qp, last.map(|last| last as u64)) {
        say!("adverb: {words}");
    }
    Ok(())
}

/// Why there are fewer lines than were asked for, or than the switch had when it was asked first.
fn too_few(newest: &Value, shown: u64, qp: Option<u32>, last: Option<u64>) -> Option<String> {
    let number = |key: &str| newest[key].as_u64();
    let there = newest["events"].as_array().map_or(0, Vec::len) as u64 + number("older").unwrap_or(0);
    if shown < there {
        let gone = there - shown;
        return Some(format!("{gone} events more were overwritten by later ones before they could be read"));
    }
    let last = last.filter(|last| shown < *last)?;
    let of = qp.map_or(String::new(), |qp| format!(" of queue pair {qp:#x}"));
    let why = match (number("kept"), number("noted")) {
        (_, Some(0)) => "the switch has noted none".to_owned(),
        (Some(kept), Some(noted)) if kept < noted => format!(
            "the switch keeps {kept} of {noted} that there were, as many as `trace` in its file says (65536 \
             at most)"
        ),
        (Some(_), Some(noted)) => format!("the switch has noted {noted} in all, and keeps them"),
        _ => "the switch is of an older version, and gives no more than 256 KiB".to_owned(),
    };
    Some(format!("{shown} of the last {last} events{of}: {why}"))
}

/// The switch's process has another folder than this one.
fn whole(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|e| Error::Options(format!("{}: {e}", path.display())))
}

/// Has the switch take a file, and prints what has changed.
pub fn reload(arguments: &Reload) -> Result<(), Error> {
    let file = arguments.file.as_deref().map(whole).transpose()?;
    print(&as_text(&ask(&arguments.which, &Question::Reload { file })?))
}

/// Has a port come or go, and prints what has changed.
pub fn port(action: &PortAction) -> Result<(), Error> {
    let (which, question) = match action {
        PortAction::Add(arguments) => {
            (&arguments.which, Question::PortAdd { port: Value::Object(port_table(arguments)?) })
        }
        PortAction::Remove(arguments) => {
            (&arguments.which, Question::PortRemove { address: arguments.address })
        }
    };
    print(&as_text(&ask(which, &question)?))
}

/// The `[[port]]` that is asked for.
fn port_table(arguments: &PortAdd) -> Result<Map<String, Value>, Error> {
    let mut port = Map::new();
    port.insert("address".to_owned(), json!(arguments.address));
    let path = |path: &Option<PathBuf>| path.as_deref().map(whole).transpose();
    for (key, value) in [
        ("also", (!arguments.also.is_empty()).then(|| json!(arguments.also))),
        ("interface", arguments.interface.as_ref().map(|name| json!(name))),
        ("qemu", path(&arguments.qemu)?.map(|path| json!(path))),
        ("pcap", path(&arguments.pcap)?.map(|path| json!(path))),
    ] {
        port.extend(value.map(|value| (key.to_owned(), value)));
    }
    let mut faults = Map::new();
    for (key, value) in [
        ("loss", arguments.loss.map(Value::from)),
        ("duplicate", arguments.duplicate.map(Value::from)),
        ("reorder", arguments.reorder.map(Value::from)),
        ("corrupt", arguments.corrupt.map(Value::from)),
        ("delay-us", arguments.delay_us.map(Value::from)),
        ("seed", arguments.seed.map(Value::from)),
    ] {
        faults.extend(value.map(|value| (key.to_owned(), value)));
    }
    if !faults.is_empty() {
        port.insert("faults".to_owned(), Value::Object(faults));
    }
    Ok(port)
}

/// What has changed, in words.
fn as_text(said: &Value) -> String {
    let list = |key: &str| said[key].as_array().cloned().unwrap_or_default();
    let names = |key: &str| -> Vec<String> {
        list(key).iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
    };
    let word = |program: &Value, key: &str| program[key].as_str().unwrap_or_default().to_owned();
    let mut programs: Vec<String> =
        list("programs").iter().map(|of| format!("{} {}", word(of, "kind"), word(of, "is"))).collect();
    programs.extend(names("programs_gone").iter().map(|name| format!("{name} gone")));
    let mut ports: Vec<String> = names("ports_new").iter().map(|at| format!("{at} new")).collect();
    ports.extend(names("ports_later").iter().map(|at| format!("{at} when a process claims it")));
    ports.extend(names("ports_gone").iter().map(|at| format!("{at} gone")));
    ports.extend(names("lines_new").iter().map(|at| format!("{at} has other faults or another capture")));
    let said = |list: Vec<String>, none: &str| match list.is_empty() {
        true => none.to_owned(),
        false => list.join(", "),
    };
    format!("programs: {}\nports: {}\n", said(programs, "none"), said(ports, "as before"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_lines() {
        assert_eq!(table_text(&json!({ "tables": ["seen"] })), "seen\n");
        assert_eq!(table_text(&json!({ "entries": [[1, 2], [416, 10]] })), "0x1 0x2\n0x1a0 0xa\n");
    }

    #[test]
    fn who_gets_fewer_events_than_asked_for_is_told_why() {
        let answer = |kept: u64, noted: u64, older: u64| {
            let mut answer = json!({ "events": ["a", "b"], "first": 7, "older": older });
            (answer["kept"], answer["noted"]) = (kept.into(), noted.into());
            answer
        };
        let said = |answer: &Value, shown, qp, last| too_few(answer, shown, qp, last).unwrap_or_default();
        assert_eq!(said(&answer(9, 30, 0), 2, None, Some(2)), "");
        assert_eq!(said(&answer(9, 30, 0), 2, None, None), "");
        assert_eq!(
            said(&answer(9, 30, 0), 2, Some(0x11), Some(3)),
            "2 of the last 3 events of queue pair 0x11: the switch keeps 9 of 30 that there were, as many as \
             `trace` in its file says (65536 at most)"
        );
        let all = "2 of the last 3 events: the switch has noted 9 in all, and keeps them";
        assert_eq!(said(&answer(9, 9, 0), 2, None, Some(3)), all);
        let none = json!({ "events": [], "first": null, "older": 0, "kept": 0, "noted": 0 });
        assert_eq!(said(&none, 0, None, Some(3)), "0 of the last 3 events: the switch has noted none");
        let gone = "2 events more were overwritten by later ones before they could be read";
        for last in [None, Some(20)] {
            assert_eq!(said(&answer(9, 30, 5), 5, None, last), gone);
        }
        let old = json!({ "events": ["a"] });
        assert!(
            said(&old, 1, None, Some(3)).contains("older version") && said(&old, 1, None, None).is_empty()
        );
    }

    #[test]
    fn what_has_changed_is_said() {
        let said = json!({
            "programs": [{ "kind": "ecn", "is": "kept" }, { "kind": "cas_to_write", "is": "new" }],
            "programs_gone": ["trim"], "ports_new": ["10.9.0.7"], "ports_gone": ["10.9.0.8"],
            "lines_new": ["10.9.0.2"],
        });
        let lines = "programs: ecn kept, cas_to_write new, trim gone\n\
                     ports: 10.9.0.7 new, 10.9.0.8 gone, 10.9.0.2 has other faults or another capture\n";
        assert_eq!(as_text(&said), lines);
        assert_eq!(as_text(&json!({})), "programs: none\nports: as before\n");
    }
}
