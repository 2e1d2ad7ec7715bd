//! A recording, fed to a switch that has no sockets and no clock: the same that simulations run. It must give
//! the same frames, in the same order, and must have counted and remember the same wherever the recording
//! notes that.

use crate::config::{Config, OwnKind};
use crate::control;
use crate::recorded::state_of;
use crate::shifted::{Name, tell};
use crate::tape::{End, Entry, ReadError, Reader};
use adverb_switch::{PortId, Switch};
use adverb_wire::Instant;
use std::fmt;
use std::io::Read;

/// What a life of the switch was, and that it was the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Life {
    /// Entries that were recorded of it.
    pub entries: u64,
    /// Frames that came in.
    pub frames_in: u64,
    /// Frames that left.
    pub frames_out: u64,
    /// Times that timers were due.
    pub timers: u64,
    /// Changes of programs.
    pub controls: u64,
    /// Times that it was given another file.
    pub reloads: u64,
    /// Queue pairs that it had read about at its start.
    pub shifted: usize,
    /// How often counts and registers were compared.
    pub states: u64,
    /// How its recording ends; not at all, if its process was killed.
    pub end: Option<End>,
    /// What was counted in the end, where it is not 0.
    pub counts: Vec<(String, u64)>,
}

/// Why a recording is not what a switch would have done.
#[derive(Debug)]
pub enum Failure {
    /// It cannot be read.
    Unreadable(ReadError),
    /// Entries are in an order in which they are not written.
    Order(&'static str),
    /// The switch's file, as it stands in it, is wrong.
    Config(String),
    /// The first difference.
    Differs {
        /// In which life, from 1 on.
        life: usize,
        /// At which entry of it, from 1 on.
        entry: u64,
        /// When, by the switch's clock.
        now: Instant,
        /// What was recorded, and what came.
        what: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unreadable(source) => write!(f, "{source}"),
            Failure::Order(what) => write!(f, "no switch has written this: {what}"),
            Failure::Config(what) => write!(f, "the switch's file in the recording: {what}"),
            Failure::Differs { life, entry, now, what } => {
                let us = now.as_ps() / 1_000_000;
                let (s, us) = (us / 1_000_000, us % 1_000_000);
                write!(f, "life {life}, entry {entry}, at {s}.{us:06} s: {what}")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// A switch that lives again.
struct Again {
    config: Config,
    switch: Switch,
    now: Instant,
    life: Life,
}

impl Again {
    fn begin(now: Instant, text: &str, shifted: &[Name], kinds: &[OwnKind]) -> Result<Again, Failure> {
        let config = Config::parse_with(text, kinds).map_err(Failure::Config)?;
        let mut switch = config.switch(now).map_err(Failure::Config)?;
        tell(&mut switch, shifted);
        Ok(Again { config, switch, now, life: Life { shifted: shifted.len(), ..Life::default() } })
    }

    /// Does what an entry says, and compares. An error is a difference.
    fn step(&mut self, entry: Entry) -> Result<(), String> {
        self.life.entries += 1;
        if let Entry::Frame(now, ..)
        | Entry::Timer(now)
        | Entry::Control(now, _)
        | Entry::Reload(now, _)
        | Entry::RemovePort(now, _) = entry
        {
            self.now = now;
        }
        // What a call answers follows from what the switch is: it was the same.
        match entry {
            Entry::Begin { .. } | Entry::End(_) => {}
            Entry::AddPort => drop(self.switch.add_port()),
            Entry::Claim(port, address) => drop(self.switch.claim(port, address)),
            Entry::RemovePort(now, port) => drop(self.switch.remove_port(now, port)),
            Entry::Depth(port, bytes) => self.switch.set_depth(port, bytes),
            Entry::Frame(now, port, bytes) => {
                self.life.frames_in += 1;
                self.switch.on_frame(now, port, bytes);
            }
            Entry::Timer(now) => {
                self.life.timers += 1;
                self.switch.on_timer(now);
            }
            Entry::Control(now, text) => {
                self.life.controls += 1;
                let question = serde_json::from_str(&text).map_err(|e| format!("a question: {e}"))?;
                drop(control::change(&mut self.switch, now, &question));
            }
            Entry::Reload(now, text) => {
                self.life.reloads += 1;
                let config = self.config.another(&text).map_err(|e| format!("the file: {e}"))?;
                let row = config.row_behind(&self.config).map_err(|e| format!("the file: {e}"))?;
                // Where it was refused, all was as before.
                if self.switch.reload(now, &row, config.trace).is_ok() {
                    self.config = config;
                }
            }
            Entry::Out(port, bytes) => {
                self.life.frames_out += 1;
                self.compare_frame((port, bytes))?;
            }
            Entry::Drained => {
                if let Some((port, bytes)) = self.switch.next_frame() {
                    return Err(format!(
                        "nothing more left then; now {} by port {}",
                        hex(&bytes, None),
                        port.0
                    ));
                }
            }
            Entry::State(recorded) => {
                self.life.states += 1;
                compare_states(&recorded, &state_of(&self.switch))?;
            }
        }
        Ok(())
    }

    fn compare_frame(&mut self, recorded: (PortId, Vec<u8>)) -> Result<(), String> {
        let Some(came) = self.switch.next_frame() else {
            return Err(format!("by port {} left {}; now nothing", recorded.0.0, hex(&recorded.1, None)));
        };
        if came == recorded {
            return Ok(());
        }
        let at = came.1.iter().zip(&recorded.1).position(|(a, b)| a != b);
        Err(format!(
            "by port {} left {}; now by port {} {}",
            recorded.0.0,
            hex(&recorded.1, at),
            came.0.0,
            hex(&came.1, at)
        ))
    }

    fn end(mut self, end: Option<End>) -> Life {
        self.life.end = end;
        let counters = self.switch.counters().iter().filter(|(_, count)| *count > 0);
        self.life.counts = counters.map(|(name, count)| (name.to_owned(), count)).collect();
        self.life
    }
}

fn compare_states(recorded: &[(String, u64)], came: &[(String, u64)]) -> Result<(), String> {
    let names = |state: &[(String, u64)]| state.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if names(recorded) != names(came) {
        return Err("other counters and registers were recorded: another version, or other ports".to_owned());
    }
    for ((name, then), (_, now)) in recorded.iter().zip(came) {
        if then != now {
            return Err(format!("{name} was {then}; now it is {now}"));
        }
    }
    Ok(())
}

/// Bytes as text: around a place, if they are many.
fn hex(bytes: &[u8], around: Option<usize>) -> String {
    /// So many are shown.
    const SHOWN: usize = 64;
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let from = around.map_or(0, |at| at.saturating_sub(SHOWN / 2)).min(bytes.len().saturating_sub(SHOWN));
    let shown = &bytes[from..bytes.len().min(from + SHOWN)];
    match shown.len() == bytes.len() {
        true => digits(shown),
        false => format!("{} ({} bytes from byte {from} on, of {})", digits(shown), shown.len(), bytes.len()),
    }
}

/// Feeds a recording to switches, one for each life.
///
/// # Errors
/// The first difference.
pub fn replay(input: impl Read) -> Result<Vec<Life>, Failure> {
    replay_with(input, &[])
}

/// The same of a switch that had these kinds of programs, too.
///
/// # Errors
/// The first difference.
pub fn replay_with(input: impl Read, kinds: &[OwnKind]) -> Result<Vec<Life>, Failure> {
    let mut reader = Reader::new(input).map_err(Failure::Unreadable)?;
    let (mut lives, mut live) = (Vec::new(), None::<Again>);
    while let Some(entry) = reader.next().map_err(Failure::Unreadable)? {
        match (entry, &mut live) {
            (Entry::Begin { now, config, shifted }, _) => {
                // One that was killed has said nothing at its end.
                lives.extend(live.take().map(|again| again.end(None)));
                live = Some(Again::begin(now, &config, &shifted, kinds)?);
            }
            (Entry::End(end), Some(_)) => lives.extend(live.take().map(|again| again.end(Some(end)))),
            (_, None) => return Err(Failure::Order("something happens to no switch")),
            (entry, Some(again)) => again.step(entry).map_err(|what| Failure::Differs {
                life: lives.len() + 1,
                entry: again.life.entries,
                now: again.now,
                what,
            })?,
        }
    }
    lives.extend(live.take().map(|again| again.end(None)));
    match lives.is_empty() {
        true => Err(Failure::Order("it has no switch")),
        false => Ok(lives),
    }
}
