//! Looks into a running process from outside: what its cross-channel send queues hold, and what each of them
//! waits for. Read-only. A process that has such queues is asked at its socket `look` ([`crate::asked`]): who
//! connects gets one packet with a file of text. The NIC is locked for as long as its queues are copied.

use crate::asked::{Kind, PATIENCE_S, connect, garbled, give, text_of};
use crate::host::Shared;
use adverb_nic::{LiveQueue, LiveWait, Nic};
use adverb_os::sys::wait_readable;
use adverb_os::unix::Channel;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

/// Bytes of a block of a send queue.
const BLOCK: usize = 64;
/// Queues of one answer.
const QUEUES_MAX: usize = 4096;

/// A send queue as it was looked at. Indices count blocks, as in [`LiveQueue`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Looked {
    /// Number of the queue pair.
    pub number: u32,
    /// Its state.
    pub state: String,
    /// Only ENABLEs let it be fetched.
    pub managed: bool,
    /// What was posted.
    pub posted: u32,
    /// How far it may be fetched.
    pub enabled: u32,
    /// Copies of the WQEs before this one are at hand.
    pub cached: u32,
    /// The next WQE to be executed.
    pub next: u32,
    /// WQEs that have been executed and are not done.
    pub in_flight: u32,
    /// Blocks of the ring.
    pub blocks: u32,
    /// Messages to the queue pair that found no receive.
    pub not_ready: u32,
    /// What it waits for.
    pub waits: Option<LookedWait>,
    /// Its memory, up to the last block that holds something.
    pub code: Vec<u8>,
}

/// What a send queue waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookedWait {
    /// The completion with this index, of a completion queue with this number that has had so many.
    Completion {
        /// The completion queue.
        cq: u32,
        /// Index of the completion.
        index: u32,
        /// Completions so far.
        produced: u64,
    },
    /// More to be enabled.
    Enable,
    /// Its rate.
    Rate,
    /// READs and atomics before it.
    Answers,
}

/// How a NIC is looked at, once it has cross-channel queues.
pub const KIND: Kind = Kind { name: "look", socket: |shared| &shared.looks, answer };

/// Tells everybody who asks.
fn answer(shared: &Shared, channel: &Channel) -> io::Result<()> {
    let text = text(&mut shared.core.visit().nic);
    give(channel, b"queues", &text)
}

/// The cross-channel queues of a NIC, two lines for each.
fn text(nic: &mut Nic) -> String {
    let mut out = String::new();
    for id in nic.cross_queues().into_iter().take(QUEUES_MAX) {
        let (Ok(live), Ok(number), Ok((attr, _))) = (nic.live_queue(id), nic.qp_number(id), nic.query_qp(id))
        else {
            continue;
        };
        let LiveQueue { managed, posted, enabled, cached, next, in_flight, blocks, not_ready, waits, .. } =
            live;
        let waits = match waits {
            None => "-".to_owned(),
            Some(LiveWait::Completion { cq, index, produced }) => {
                format!("{}:{index}:{produced}", cq.index())
            }
            Some(LiveWait::Enable) => "enable".to_owned(),
            Some(LiveWait::Rate) => "rate".to_owned(),
            Some(LiveWait::Answers) => "answers".to_owned(),
        };
        let _ = writeln!(
            out,
            "{} {:?} {managed} {posted} {enabled} {cached} {next} {in_flight} {blocks} {not_ready} {waits}",
            number.get(),
            attr.state
        );
        let Ok(memory) = nic.send_queue_memory(id) else { continue };
        let code: Vec<[u8; BLOCK]> =
            (0..memory.len() / BLOCK).map(|at| memory.read_block(at * BLOCK)).collect();
        let used =
            code.iter().rposition(|block| block.iter().any(|byte| *byte != 0)).map_or(0, |last| last + 1);
        for byte in code[..used].iter().flatten() {
            let _ = write!(out, "{byte:02x}");
        }
        out.push('\n');
    }
    out
}

/// Looks into a process's NICs.
pub fn look(pid: u32) -> io::Result<Vec<Looked>> {
    let mut out = Vec::new();
    let mut found = false;
    for channel in connect(pid, KIND.name)? {
        if !wait_readable(channel.fd(), Duration::from_secs(PATIENCE_S.into())) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the process does not answer: is it stopped?",
            ));
        }
        let Some((_, files)) = channel.receive(&mut [0; 64])? else { continue };
        let Some(text) = text_of(files)? else { continue };
        found = true;
        out.extend(parse(&text).ok_or_else(garbled)?);
    }
    if found {
        return Ok(out);
    }
    let text = "it has no cross-channel queues, or no NIC of adverb's in this network namespace";
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

fn parse(text: &str) -> Option<Vec<Looked>> {
    let mut out = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_matches('\0').is_empty() {
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [number, state, managed, posted, enabled, cached, next, in_flight, blocks, not_ready, waits] =
            words[..]
        else {
            return None;
        };
        let hex = lines.next()?;
        let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        out.push(Looked {
            number: number.parse().ok()?,
            state: state.to_owned(),
            managed: managed.parse().ok()?,
            posted: posted.parse().ok()?,
            enabled: enabled.parse().ok()?,
            cached: cached.parse().ok()?,
            next: next.parse().ok()?,
            in_flight: in_flight.parse().ok()?,
            blocks: blocks.parse().ok()?,
            not_ready: not_ready.parse().ok()?,
            waits: match waits {
                "-" => None,
                "enable" => Some(LookedWait::Enable),
                "rate" => Some(LookedWait::Rate),
                "answers" => Some(LookedWait::Answers),
                completion => {
                    let (cq, rest) = completion.split_once(':')?;
                    let (index, produced) = rest.split_once(':')?;
                    let (cq, index) = (cq.parse().ok()?, index.parse().ok()?);
                    Some(LookedWait::Completion { cq, index, produced: produced.parse().ok()? })
                }
            },
            code: (0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        let words = "65541 Rts true 10 8 8 7 1 64 9 3:5:2\n0a0b\n65542 Err false 0 0 0 0 0 4 0 -\n\n";
        let queues = parse(words).expect("two queues");
        let waits = LookedWait::Completion { cq: 3, index: 5, produced: 2 };
        assert_eq!(
            (queues[0].number, queues[0].waits, &queues[0].code[..]),
            (65541, Some(waits), &[10, 11][..])
        );
        assert_eq!((queues[1].state.as_str(), queues[1].managed, queues[1].waits), ("Err", false, None));
        for garbled in
            ["1 2 3", "65541 Rts true 10 8 8 7 1 64 0 -", "65541 Rts true 10 8 8 7 1 64 0 -\n0", "1\n2"]
        {
            assert_eq!(parse(garbled), None, "{garbled}");
        }
        assert_eq!(parse("\0"), Some(Vec::new()));
    }
}
