//! `adverb top`: the NICs of this user that live, and what they are doing.

use crate::error::Error;
use crate::output::print;
use crate::tallied::{fresh, table};
use adverb_io::Settings;
use adverb_io::board::{self, Told};
use adverb_os::folders::shared_directory;
use adverb_os::terminal::{Happened, Terminal};
use clap::Args;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// What `adverb top --help` ends with.
pub const EXAMPLES: &str = "\
Every process of this user that has a NIC is shown, whoever started it, on all addresses and in all network
namespaces that share this /dev/shm. Rates are of the last interval; bytes are payload. One that is stopped
tells nothing new and is marked with a star. Keys: q ends.

Examples:
  adverb top
  adverb top --interval 0.2s
  adverb top --once | sort -k5 -n";

/// `adverb top`.
#[derive(Args, Debug)]
pub struct Top {
    /// Print once, over one interval, and end: for scripts
    #[arg(long)]
    pub once: bool,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = crate::args::duration(text)?;
    if time >= Duration::from_millis(10) { Ok(time) } else { Err("10ms at least".to_owned()) }
}

/// Counters of each NIC at a time.
struct Sight {
    at: Instant,
    told: Vec<Told>,
}

impl Sight {
    #[expect(clippy::disallowed_methods, reason = "the edge: rates that people look at")]
    fn take(directory: &Path) -> Result<Sight, Error> {
        let failed = |e| Error::Options(format!("{}: {e}", directory.display()));
        let mut told = fresh(|| board::read_all(directory)).map_err(failed)?;
        told.retain(|told| !told.ended);
        Ok(Sight { at: Instant::now(), told })
    }
}

/// Shows them until it is told to end.
#[expect(clippy::disallowed_methods, reason = "the edge: rates that people look at")]
pub fn top(arguments: &Top) -> Result<(), Error> {
    let settings = Settings::from_env().map_err(|e| Error::Device(e.to_string()))?;
    let directory = settings.directory.unwrap_or_else(shared_directory);
    let mut before = Sight::take(&directory)?;
    if arguments.once {
        std::thread::sleep(arguments.interval);
        return print(&table(&rows(&before, &Sight::take(&directory)?)));
    }
    let terminal = Terminal::take()
        .map_err(|e| Error::Options(format!("{e}; `adverb top --once` prints one table anywhere")))?;
    let mut shown = table(&rows(&before, &before));
    loop {
        draw(&terminal, &shown).map_err(Error::Output)?;
        let left = arguments.interval.saturating_sub(before.at.elapsed());
        match terminal.wait(left).map_err(Error::Output)? {
            Happened::Key(b'q' | b'Q') | Happened::Stop | Happened::Gone => return Ok(()),
            Happened::Key(_) | Happened::Resized | Happened::Nothing => {}
        }
        if before.at.elapsed() >= arguments.interval {
            let now = Sight::take(&directory)?;
            shown = table(&rows(&before, &now));
            before = now;
        }
    }
}

fn draw(terminal: &Terminal, text: &str) -> std::io::Result<()> {
    let (columns, height) = terminal.size();
    let fit = |line: &str| line.chars().take(columns).collect::<String>();
    let lines: Vec<String> = text.lines().map(fit).collect();
    let (shown, hidden) = match lines.len() > height {
        true => (height - 1, lines.len() + 1 - height),
        false => (lines.len(), 0),
    };
    let mut lines = lines[..shown].to_vec();
    if hidden > 0 {
        lines.push(fit(&format!("{hidden} more: the terminal has {height} rows")));
    }
    terminal.show(&lines)
}

const HEAD: [&str; 10] = [
    "process",
    "command",
    "address",
    "qps",
    "sent B/s",
    "received B/s",
    "packets/s",
    "requests/s",
    "resent/s",
    "errors",
];

/// A row for each NIC: what it has, and what it did between two sights.
fn rows(before: &Sight, now: &Sight) -> Vec<Vec<String>> {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let earlier: BTreeMap<_, _> = before.told.iter().map(|told| (told.key(), told)).collect();
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    for told in &now.told {
        let past = earlier.get(&told.key());
        let rate = |names: &[&str]| {
            let since = |name: &&str| told.get(name).saturating_sub(past.map_or(0, |past| past.get(name)));
            let n: u64 = names.iter().map(since).sum();
            // Of one that was not there before, nobody knows how long it has been.
            if past.is_none() || seconds == 0.0 {
                "-".to_owned()
            } else {
                format!("{:.0}", n as f64 / seconds)
            }
        };
        let mark = if told.is_fresh() { "" } else { "*" };
        rows.push(vec![
            format!("{}{mark}", told.pid),
            told.name.clone(),
            told.address.clone(),
            told.live_qps().to_string(),
            rate(&["tx_bytes"]),
            rate(&["rx_bytes"]),
            rate(&["tx_packets", "rx_packets"]),
            rate(&["completions"]),
            rate(&["retransmitted_packets"]),
            told.get("error_completions").to_string(),
        ]);
    }
    rows
}
