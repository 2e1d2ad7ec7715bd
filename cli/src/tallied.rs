//! What NICs have counted, judged and shown: whether RDMA happened, and what each process did.

use adverb_io::board::Told;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

/// How long processes have to tell the latest; what one that is stopped has told before is shown then.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often they are looked at meanwhile: memory wakes nobody.
const LOOK: Duration = Duration::from_millis(1);

/// Reads boards after their processes have been asked for the latest values.
#[expect(clippy::disallowed_methods, reason = "the edge: memory wakes nobody")]
pub fn fresh(read: impl Fn() -> io::Result<Vec<Told>>) -> io::Result<Vec<Told>> {
    let told = read()?;
    told.iter().for_each(Told::ask);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = read()?;
        if told.iter().all(Told::is_fresh) || Instant::now() >= deadline {
            return Ok(told);
        }
        std::thread::sleep(LOOK);
    }
}

fn sum(told: &[Told], name: &str) -> u64 {
    told.iter().map(|told| told.get(name)).sum()
}

/// Payload that moved: a request counts once, whether one of its ends is among these processes or both are.
pub fn moved(told: &[Told]) -> u64 {
    sum(told, "payload_requested").max(sum(told, "payload_served"))
}

fn count(n: u64, what: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { what } else { more })
}

/// Whether so many bytes of payload moved by RDMA; if not, why.
pub fn verdict(told: &[Told], bytes: u64) -> Result<(), String> {
    let moved = moved(told);
    if moved >= bytes {
        return Ok(());
    }
    if moved > 0 {
        return Err(format!("too little RDMA happened: {moved} bytes of payload moved, of {bytes} expected"));
    }
    let [made, connected, failed] =
        ["qps_created", "qps_connected", "error_completions"].map(|name| sum(told, name));
    let processes = count(told.len() as u64, "process", "processes");
    let why = if told.is_empty() {
        "no process opened the device (statically linked, another libibverbs, or another transport)"
            .to_owned()
    } else if made == 0 {
        format!("{processes} opened the device, and none made a queue pair")
    } else if connected == 0 {
        let pairs = count(made, "queue pair was made", "queue pairs were made");
        format!("{pairs}, and none was connected to another process")
    } else if failed > 0 {
        let pairs = count(connected, "queue pair was connected", "queue pairs were connected");
        format!("{pairs}, and no request moved payload: {failed} failed or were flushed (--trace says why)")
    } else {
        let pairs = count(connected, "queue pair was connected", "queue pairs were connected");
        format!("{pairs}, and no request moved payload: did the program fall back to another transport?")
    };
    Err(format!("no RDMA happened: {why}"))
}

/// Columns of the summary: head, and counter.
const COLUMNS: [(&str, &str); 9] = [
    ("queue pairs", "qps_created"),
    ("requests", "requests_done"),
    ("bytes requested", "payload_requested"),
    ("bytes served", "payload_served"),
    ("packets sent", "tx_packets"),
    ("received", "rx_packets"),
    ("resent", "retransmitted_packets"),
    ("timeouts", "timeouts"),
    ("errors", "error_completions"),
];

/// What each process did, and all together.
pub fn summary_text(told: &[Told]) -> String {
    let head = ["process", "command"].into_iter().map(str::to_owned);
    let mut rows = vec![head.chain(COLUMNS.iter().map(|(head, _)| (*head).to_owned())).collect::<Vec<_>>()];
    for one in told {
        let values = COLUMNS.iter().map(|(_, name)| one.get(name).to_string());
        rows.push([one.pid.to_string(), one.name.clone()].into_iter().chain(values).collect());
    }
    let values = COLUMNS.iter().map(|(_, name)| sum(told, name).to_string());
    rows.push(["total".to_owned(), String::new()].into_iter().chain(values).collect());
    table(&rows)
}

/// Rows in columns: the first two to the left, numbers to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = match at {
                0 | 1 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The same with all counters, as JSON.
pub fn summary_json(told: &[Told]) -> String {
    let mut total: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, value) in told.iter().flat_map(|told| &told.counters) {
        *total.entry(name).or_default() += value;
    }
    let processes: Vec<_> = told
        .iter()
        .map(|told| {
            let counters: BTreeMap<&str, u64> =
                told.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
            serde_json::json!({
                "pid": told.pid, "command": told.name, "address": told.address, "counters": counters,
            })
        })
        .collect();
    let all = serde_json::json!({ "processes": processes, "total": total, "payload_moved": moved(told) });
    format!("{all:#}\n")
}
