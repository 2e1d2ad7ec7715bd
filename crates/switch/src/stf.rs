//! Cases of packets in and packets out, in the notation of P4's simple test framework (STF), a line each:
//!
//! ```text
//! # A comment.
//! packet PORT HEX.. [icrc]   a frame comes in; `icrc` appends the right ICRC
//! expect PORT HEX.. [icrc]   the next frame that left by the port; `*` is any digit, `icrc` a right ICRC
//! wait MICROSECONDS          time goes on, and what is due is done
//! counter NAME N             what the switch has counted
//! register_read PROGRAM NAME KEY VALUE    what a program's register or table has there; `-` is nothing
//! register_write PROGRAM NAME KEY VALUE   sets that; `-` takes it away
//! ```
//! A program is named by its kind, or its number in the row from 1 on. Numbers are decimal, or hexadecimal
//! with `0x`.
//!
//! A frame begins at its IP header. Ports are numbered from 0 in the order of the file's. At the end no frame
//! may be left that nobody expected.

use crate::entries;
use crate::program::PortId;
use crate::switch::Switch;
use adverb_wire::ip::IPV6_LEN;
use adverb_wire::{Duration, ICRC_LEN, Icrc, Instant, verify_ip};
use std::collections::VecDeque;
use std::fmt;

/// Bytes of a frame at most.
const FRAME_MAX: usize = 1 << 16;

/// What went wrong, and in which line, from 1 on; 0 is the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The line.
    pub line: usize,
    /// What was wanted, and what came.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "at the end: {}", self.what),
            line => write!(f, "line {line}: {}", self.what),
        }
    }
}

/// Frames that came, and frames that were expected and left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Passed {
    /// Those that came.
    pub packets: usize,
    /// Those that left.
    pub expected: usize,
}

/// A frame as a line has it: digits, of which some may be any.
struct Pattern {
    digits: Vec<Option<u8>>,
    icrc: bool,
}

impl Pattern {
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Pattern, String> {
        let mut pattern = Pattern { digits: Vec::new(), icrc: false };
        for word in words {
            if pattern.icrc {
                return Err("icrc is a line's last word".to_owned());
            }
            if word.eq_ignore_ascii_case("icrc") {
                pattern.icrc = true;
                continue;
            }
            for digit in word.chars() {
                let value = digit.to_digit(16).map(|value| Some(value as u8));
                let any = (digit == '*').then_some(None);
                pattern
                    .digits
                    .push(value.or(any).ok_or_else(|| format!("`{digit}` is no hexadecimal digit"))?);
            }
        }
        match pattern.digits.len() {
            0 => Err("a frame's bytes are missing".to_owned()),
            odd if odd % 2 == 1 => Err("a byte has two digits".to_owned()),
            long if long > 2 * FRAME_MAX => Err(format!("a frame has at most {FRAME_MAX} bytes")),
            _ => Ok(pattern),
        }
    }

    /// The bytes, if each is known.
    fn bytes(&self) -> Result<Vec<u8>, String> {
        let (pairs, _) = self.digits.as_chunks::<2>();
        let byte = |[high, low]: &[Option<u8>; 2]| Some((*high)? << 4 | (*low)?);
        let mut bytes: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>().ok_or("`*` is for expect")?;
        if self.icrc {
            let header = ip_header_len(&bytes).ok_or("icrc: the frame has no IP header")?;
            let icrc = Icrc::over_headers(&bytes, header).finish();
            bytes.extend_from_slice(&icrc.to_le_bytes());
        }
        Ok(bytes)
    }

    fn fits(&self, frame: &[u8]) -> bool {
        let rest = match self.icrc {
            true if !ip_header_len(frame).is_some_and(|header| verify_ip(frame, header)) => return false,
            true => &frame[..frame.len() - ICRC_LEN],
            false => frame,
        };
        let digits = rest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        self.digits.len() == 2 * rest.len()
            && self
                .digits
                .iter()
                .zip(digits)
                .all(|(wanted, digit)| wanted.is_none_or(|wanted| wanted == digit))
    }
}

/// Of a frame with all of its IP header and more than an ICRC behind it.
fn ip_header_len(frame: &[u8]) -> Option<usize> {
    let first = frame.first()?;
    let len = match first >> 4 {
        4 => usize::from(first & 15) * 4,
        6 => IPV6_LEN,
        _ => return None,
    };
    (len >= 20 && frame.len() > len + ICRC_LEN).then_some(len)
}

/// Runs a case on a switch whose time is `now`. `ports` are those that lines name.
pub fn run(switch: &mut Switch, ports: &[PortId], mut now: Instant, text: &str) -> Result<Passed, Failure> {
    let mut left: Vec<VecDeque<Vec<u8>>> = ports.iter().map(|_| VecDeque::new()).collect();
    let mut passed = Passed::default();
    for (at, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(command) = words.next() else { continue };
        let step = || -> Result<(), String> {
            match command {
                "packet" => {
                    let port = port(ports, words.next())?;
                    switch.on_frame(now, ports[port], Pattern::parse(words)?.bytes()?);
                    passed.packets += 1;
                }
                "expect" => {
                    let port = port(ports, words.next())?;
                    let pattern = Pattern::parse(words)?;
                    let frame = left[port].pop_front();
                    let frame = frame.ok_or_else(|| format!("no frame has left by port {port}"))?;
                    if !pattern.fits(&frame) {
                        return Err(format!("by port {port} left {}", hex(&frame)));
                    }
                    passed.expected += 1;
                }
                "wait" => now = wait(switch, now, Duration::from_us(number(words.next())?)),
                "register_read" => read(switch, &mut words)?,
                "register_write" => {
                    let (at, table, key, value) = register(switch, &mut words)?;
                    switch.programs_mut()[at].set_entry(now, &table, key, value)?;
                }
                "counter" => {
                    let name = words.next().ok_or("a counter's name is missing")?;
                    let found = switch.counters().iter().find(|(known, _)| *known == name);
                    let (_, count) = found.ok_or_else(|| format!("there is no counter {name}"))?;
                    if count != number(words.next())? {
                        return Err(format!("{name} is {count}"));
                    }
                }
                other => {
                    let known = "packet, expect, wait, counter, register_read or register_write";
                    return Err(format!("`{other}`: {known} is wanted"));
                }
            }
            Ok(())
        };
        step().map_err(|what| Failure { line: at + 1, what })?;
        while let Some((port, bytes)) = switch.next_frame() {
            if let Some(at) = ports.iter().position(|known| *known == port) {
                left[at].push_back(bytes);
            }
        }
    }
    match left.iter().enumerate().find_map(|(port, frames)| Some((port, frames.front()?))) {
        Some((port, frame)) => Err(Failure {
            line: 0,
            what: format!("by port {port} left {}, which was not expected", hex(frame)),
        }),
        None => Ok(passed),
    }
}

type Words<'a, 'b> = &'a mut dyn Iterator<Item = &'b str>;

/// The program's place, its table, a key there and a value, as the rest of a line has them.
fn register(switch: &Switch, words: Words<'_, '_>) -> Result<(usize, String, u64, Option<u64>), String> {
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing"));
    let at = entries::named(switch.programs(), next("a program")?)?;
    let (table, key) = (next("a register")?.to_owned(), number(Some(next("a key")?))?);
    let value = match next("a value")? {
        "-" => None,
        value => Some(number(Some(value))?),
    };
    Ok((at, table, key, value))
}

/// Whether a register is as a line has it.
fn read(switch: &Switch, words: Words<'_, '_>) -> Result<(), String> {
    let (at, table, key, wanted) = register(switch, words)?;
    match switch.programs()[at].entry(&table, key)? {
        found if found == wanted => Ok(()),
        Some(found) => Err(format!("{table} has {found:#x} under {key:#x}")),
        None => Err(format!("{table} has nothing under {key:#x}")),
    }
}

/// Lets time go on, in steps of what is due.
pub(crate) fn wait(switch: &mut Switch, now: Instant, span: Duration) -> Instant {
    let end = now + span;
    while let Some(due) = switch.next_deadline().filter(|due| *due <= end) {
        switch.on_timer(due);
        if switch.next_deadline().is_some_and(|next| next <= due) {
            break;
        }
    }
    switch.on_timer(end);
    end
}

fn port(ports: &[PortId], word: Option<&str>) -> Result<usize, String> {
    let port = number(word)? as usize;
    match port < ports.len() {
        true => Ok(port),
        false => Err(format!("the file has {} ports, from 0 on", ports.len())),
    }
}

fn number(word: Option<&str>) -> Result<u64, String> {
    let word = word.ok_or("a number is missing")?;
    let parsed = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    parsed.map_err(|_| format!("`{word}` is no number"))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
