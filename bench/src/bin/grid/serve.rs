//! The server: connects queue pairs, says what it has counted, and otherwise sleeps.

use super::end::{End, said};
use super::live_bytes;
use adverb_bench::Options;
use adverb_io::Transport;
use adverb_wire::{Gid, QpNumber};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};

/// The name of the NIC's thread.
const THREAD: &str = "adverb";

/// Runs it, until its one client goes.
pub fn run(options: &Options) -> Result<(), String> {
    let end = End::open(options, Transport::StarServer)?;
    let listener = TcpListener::bind((end.gid.ip(), 0)).map_err(said)?;
    println!("{}", listener.local_addr().map_err(said)?.port());
    let (stream, _) = listener.accept().map_err(said)?;
    serve(&end, stream)
}

fn serve(end: &End, mut stream: TcpStream) -> Result<(), String> {
    stream.set_nodelay(true).map_err(said)?;
    let lines = BufReader::new(stream.try_clone().map_err(said)?).lines();
    for line in lines {
        let line = line.map_err(said)?;
        let mut words = line.split(' ');
        let answer = match words.next() {
            Some("connect") => connect(end, words)?,
            Some("count") => counted(end)?,
            _ => return Err(format!("no such question: {line}")),
        };
        stream.write_all(answer.as_bytes()).map_err(said)?;
    }
    Ok(())
}

/// `connect GID NUMBER ..`: as many queue pairs, for these; where the region is, and their numbers.
fn connect<'a>(end: &End, mut words: impl Iterator<Item = &'a str>) -> Result<String, String> {
    let gid = words.next().and_then(|gid| gid.parse::<IpAddr>().ok()).map(Gid::from);
    let gid = gid.ok_or("an address is needed")?;
    let mut answer = format!("{} {}", end.region.as_ptr() as u64, end.mr.rkey.0);
    for word in words {
        let number = QpNumber::new(word.parse().map_err(said)?);
        let (id, own) = end.queue_pair(1)?;
        end.connect(id, gid, number)?;
        // Writing to a String cannot fail.
        let _ = write!(answer, " {}", own.get());
    }
    Ok(answer + "\n")
}

/// What was counted until now.
fn counted(end: &End) -> Result<String, String> {
    let text = end.host.counters_text();
    let count = |name: &str| -> Result<u64, String> {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(of).ok_or_else(|| format!("no counter {name}"))
    };
    let nic_bytes = end.host.inspect(|nic| nic.stateless_bytes());
    Ok(format!(
        "{} {} {} {} {} {} {} {}\n",
        thread_ns()?,
        count("thread_vain_ns")?,
        count("udp_rx_frames")?,
        count("udp_rx_messages")?,
        count("udp_tx_frames")?,
        count("rounds_by_thread")?,
        live_bytes(),
        nic_bytes
    ))
}

/// Processor time of the NIC's thread.
fn thread_ns() -> Result<u64, String> {
    for task in std::fs::read_dir("/proc/self/task").map_err(said)? {
        let path = task.map_err(said)?.path();
        let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
        if name.trim_end() == THREAD {
            let stat = std::fs::read_to_string(path.join("schedstat")).map_err(said)?;
            let first = stat.split(' ').next().and_then(|ns| ns.parse().ok());
            return first.ok_or_else(|| format!("schedstat says {stat}"));
        }
    }
    Err(format!("no thread {THREAD}"))
}
