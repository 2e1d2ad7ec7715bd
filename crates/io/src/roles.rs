//! A running process is told from outside to change what its StaR connections are, at its socket `star`
//! ([`crate::asked`]):
//!
//! ```text
//! the asker: one packet, `<rc|server|client> <number of a queue pair, or *>`
//! the answer: a packet at once, then, when all has come to its end, a packet with a file of text:
//! a line for each queue pair, `<number> <1 if it is what was asked for> <words>`
//! ```
//! [`Nic::star_switch`] does the work.

use crate::asked::{Kind, PATIENCE_S, connect, garbled, give, text_of};
use crate::core::Core;
use crate::host::Shared;
use adverb_nic::{Event, Nic, QpId, StarOutcome, StarSide};
use adverb_os::sys::wait_readable;
use adverb_os::unix::Channel;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How long changes may take in all, before what has become of them so far is told.
const LONGEST: Duration = Duration::from_secs(60);
/// How often it is looked whether connections still are.
const LOOK: Duration = Duration::from_secs(1);
/// Queue pairs of one question: a NIC begins a hundred changes a second.
const QUEUES_MAX: usize = 4096;
/// Outcomes that wait for the thread. What finds no room is seen at the next look.
const OUTCOMES_MAX: usize = 4 * QUEUES_MAX;
/// Bytes of a question.
const QUESTION: usize = 64;

/// What connections are to be at the side of the process that is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum To {
    /// Plain RC.
    Rc,
    /// Stateless: the peer keeps both sides' state.
    Server,
    /// Stateful.
    Client,
}

impl To {
    const ALL: [(To, &'static str, StarSide); 3] = [
        (To::Rc, "rc", StarSide::Plain),
        (To::Server, "server", StarSide::Stateless),
        (To::Client, "client", StarSide::Stateful),
    ];

    fn row(self) -> (&'static str, StarSide) {
        match self {
            To::Rc => (Self::ALL[0].1, Self::ALL[0].2),
            To::Server => (Self::ALL[1].1, Self::ALL[1].2),
            To::Client => (Self::ALL[2].1, Self::ALL[2].2),
        }
    }

    /// As it is written.
    pub fn parse(word: &str) -> Option<To> {
        Self::ALL.iter().find(|(_, name, _)| *name == word).map(|(to, ..)| *to)
    }
}

/// What became of a queue pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Became {
    /// Its number.
    pub number: u32,
    /// It is what was asked for.
    pub done: bool,
    /// What it is, in words.
    pub words: String,
}

/// How a NIC that speaks StaR is told, and who waits for what becomes of its connections.
pub const KIND: Kind = Kind { name: "star", socket: |shared| &shared.roles, answer };

/// Hears what connections become, while the NIC is locked.
pub type OnOutcome = SyncSender<(QpId, StarOutcome)>;

/// Tells who waits for it what a connection has become.
#[cold]
pub fn hear(core: &Core, event: Event) {
    if let (Event::Star(id, outcome), Some(on_outcome)) = (event, &core.on_outcome) {
        // Without room the next look finds it.
        let _ = on_outcome.try_send((id, outcome));
    }
}

fn answer(shared: &Shared, channel: &Channel) -> io::Result<()> {
    if !wait_readable(channel.fd(), Duration::from_secs(PATIENCE_S.into())) {
        return Ok(());
    }
    let mut bytes = [0; QUESTION];
    let Some((len, _)) = channel.receive(&mut bytes)? else { return Ok(()) };
    let Some((to, only)) = question(&bytes[..len]) else { return Ok(()) };
    channel.send(b"heard", &[])?;
    let mut text = String::new();
    for Became { number, done, words } in change(shared, to, only) {
        let _ = writeln!(text, "{number} {} {words}", u8::from(done));
    }
    give(channel, b"became", &text)
}

/// What is asked for, and of which queue pair, if of one.
fn question(bytes: &[u8]) -> Option<(To, Option<u32>)> {
    let (to, number) = std::str::from_utf8(bytes).ok()?.split_once(' ')?;
    let only = if number == "*" { None } else { Some(number.parse().ok()?) };
    Some((To::parse(to)?, only))
}

/// Changes connections of the NIC, and waits until that has come to its end.
fn change(shared: &Shared, to: To, only: Option<u32>) -> Vec<Became> {
    let (tell, outcomes) = sync_channel(OUTCOMES_MAX);
    let mut became = Vec::new();
    let waits = {
        let mut core = shared.core.visit();
        let core = &mut *core;
        let now = core.clock.now();
        core.on_outcome = Some(tell);
        let waits = begin(&mut core.nic, now, to, only, &mut became);
        core.transmit(now);
        waits
    };
    // The progress thread has deadlines that it has not known.
    shared.member.bell().ring();
    if !waits.is_empty() {
        wait(shared, to, waits, &outcomes, &mut became);
    }
    shared.core.visit().on_outcome = None;
    became.sort_by_key(|one| one.number);
    became
}

fn begin(
    nic: &mut Nic,
    now: adverb_wire::Instant,
    to: To,
    only: Option<u32>,
    became: &mut Vec<Became>,
) -> BTreeMap<QpId, u32> {
    let side = to.row().1;
    let mut waits = BTreeMap::new();
    let numbers: Vec<_> = nic
        .star_connections()
        .into_iter()
        .filter_map(|id| nic.qp_number(id).ok().map(|number| (id, number.get())))
        .filter(|(_, number)| only.is_none_or(|only| only == *number))
        .take(QUEUES_MAX)
        .collect();
    for (id, number) in numbers {
        let is_so = nic.star_side(id) == Ok(side);
        let refused = if is_so { None } else { nic.star_switch(now, id, side).err() };
        match refused {
            Some(error) => {
                let words = format!("stays {}: {error}", words_of(nic, id));
                became.push(Became { number, done: false, words });
            }
            None if is_so => {
                let words = format!("is {} already", words_of(nic, id));
                became.push(Became { number, done: true, words });
            }
            None => {
                waits.insert(id, number);
            }
        }
    }
    waits
}

/// Waits until all have become something, or it has taken too long.
#[expect(clippy::disallowed_methods, reason = "the edge: how long an asker waits")]
fn wait(
    shared: &Shared,
    to: To,
    mut waits: BTreeMap<QpId, u32>,
    outcomes: &Receiver<(QpId, StarOutcome)>,
    became: &mut Vec<Became>,
) {
    let side = to.row().1;
    let end = Instant::now() + LONGEST;
    while !waits.is_empty() {
        let left = end.saturating_duration_since(Instant::now());
        match outcomes.recv_timeout(left.min(LOOK)) {
            Ok((id, outcome)) => {
                // From one role to the other it goes through plain RC.
                let done = matches!(outcome, StarOutcome::Switched(now, _) if now == side);
                if (done || outcome == StarOutcome::NotSwitched)
                    && let Some(number) = waits.remove(&id)
                {
                    became.push(Became { number, done, words: format!("is {}", outcome.words()) });
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let core = shared.core.visit();
                let closed = core.port.is_none();
                look(&core.nic, side, closed || left.is_zero(), &mut waits, became);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Connections may have ended meanwhile; and at the end the rest is told as it is.
fn look(nic: &Nic, side: StarSide, last: bool, waits: &mut BTreeMap<QpId, u32>, became: &mut Vec<Became>) {
    let lasting: std::collections::BTreeSet<_> = nic.star_connections().into_iter().collect();
    waits.retain(|id, number| {
        let number = *number;
        if !lasting.contains(id) {
            let words = "has ended: its connection was reset or destroyed meanwhile".to_owned();
            became.push(Became { number, done: false, words });
            return false;
        }
        if last {
            let is_so = nic.star_side(*id) == Ok(side);
            let words = match words_of(nic, *id) {
                words if is_so => format!("is {words} from now on"),
                words => format!("is {words} still: the two sides have not come to rest"),
            };
            became.push(Became { number, done: is_so, words });
        }
        !last
    });
}

fn words_of(nic: &Nic, id: QpId) -> &'static str {
    match nic.star_side(id) {
        Ok(StarSide::Plain) => "plain RC",
        Ok(StarSide::Stateless) => "StaR, stateless",
        Ok(StarSide::Stateful) => "StaR, stateful",
        Ok(StarSide::Undecided) | Err(_) => "undecided",
    }
}

/// Tells a process to change its connections, or one of them, and waits for what becomes of them.
pub fn switch(pid: u32, to: To, only: Option<u32>) -> io::Result<Vec<Became>> {
    let mut found = false;
    let mut out = Vec::new();
    for channel in connect(pid, KIND.name)? {
        out.extend(ask(&channel, to, only)?);
        found = true;
    }
    if found {
        return Ok(out);
    }
    let text = if std::path::Path::new(&format!("/proc/{pid}")).exists() {
        "it has opened no NIC of adverb's with --transport star, star-server or star-client in this network \
         namespace"
    } else {
        "there is no such process"
    };
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}

fn ask(channel: &Channel, to: To, only: Option<u32>) -> io::Result<Vec<Became>> {
    let number = only.map_or_else(|| "*".to_owned(), |number| number.to_string());
    channel.send(format!("{} {number}", to.row().0).as_bytes(), &[])?;
    let silent = || {
        let text = "the process does not answer: is it stopped, or does it deal with another's command?";
        io::Error::new(io::ErrorKind::TimedOut, text)
    };
    let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "the process has closed its NIC meanwhile");
    let first = Duration::from_secs(PATIENCE_S.into());
    for patience in [first, LONGEST + first] {
        if !wait_readable(channel.fd(), patience) {
            return Err(silent());
        }
        let (_, files) = channel.receive(&mut [0; QUESTION])?.ok_or_else(ended)?;
        if let Some(text) = text_of(files)? {
            return parse(&text).ok_or_else(garbled);
        }
    }
    Err(garbled())
}

fn parse(text: &str) -> Option<Vec<Became>> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let number = words.next()?.parse().ok()?;
        let done = match words.next()? {
            "0" => false,
            "1" => true,
            _ => return None,
        };
        Some(Became { number, done, words: words.next()?.to_owned() })
    };
    // A file has one byte at least.
    text.trim_end_matches('\0').lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_understood_or_refused() {
        assert_eq!(question(b"rc *"), Some((To::Rc, None)));
        assert_eq!(question(b"server 69199"), Some((To::Server, Some(69199))));
        assert_eq!(question(b"client 0"), Some((To::Client, Some(0))));
        for wrong in [&b""[..], b"rc", b"rc ", b"rc -1", b"rc 4294967296", b"peer *", b"rc * *", b"\xff *"] {
            assert_eq!(question(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn answers_are_understood_or_refused() {
        let one = Became { number: 7, done: true, words: "is plain RC already".to_owned() };
        assert_eq!(parse("7 1 is plain RC already\n"), Some(vec![one]));
        assert_eq!(parse("\0"), Some(Vec::new()));
        for wrong in ["7", "7 1", "7 2 words", "x 1 words"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
