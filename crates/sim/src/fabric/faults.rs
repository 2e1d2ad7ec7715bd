//! Faults of links, as data: chances for every packet, scripts for single packets, failures at set times.
//!
//! A script is text, one rule a line:
//!
//! ```text
//! drop read-response qp=7 nth=3       the third READ response to queue pair 7
//! corrupt psn=0x103                   once: a rule applies to one packet unless told otherwise
//! delay write link=12 by=20us every   every WRITE packet on link 12
//! duplicate ack src=3 dst=5 nth=2
//! ```
//!
//! What a packet suffers is decided when it is put on the link, and shows when it arrives.

use crate::error::Error;
use crate::fabric::packet::Hot;
use adverb_wire::{Opcode, Operation, Packet};

/// Chances of each fault, for every packet on a link.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Chances {
    /// The packet is lost.
    pub loss: f64,
    /// Mean length of a row of packets that are lost together; up to 1, each is lost by itself. Between rows
    /// one packet passes at least, so `loss` is at most `burst / (burst + 1)`.
    pub burst: f64,
    /// A bit is wrong: chance for each bit. The packet fails its check where it arrives.
    pub bit_error: f64,
    /// The packet comes twice.
    pub duplicate: f64,
    /// The packet is late by up to `reorder_ps`, and may be overtaken.
    pub reorder: f64,
    /// See `reorder`.
    pub reorder_ps: u64,
    /// Every packet is late by up to this, in order or not.
    pub jitter_ps: u64,
}

impl Chances {
    /// No faults.
    pub fn is_none(&self) -> bool {
        *self == Chances { reorder_ps: self.reorder_ps, burst: self.burst, ..Chances::default() }
    }
}

/// The chances of one link, with a generator of its own.
#[derive(Clone, Debug)]
pub struct LinkFaults {
    /// The chances.
    pub chances: Chances,
    rng: fastrand::Rng,
    /// The last packet was lost, and the row goes on.
    losing: bool,
}

impl LinkFaults {
    /// Of a link whose generator is `rng`.
    pub fn new(chances: Chances, rng: fastrand::Rng) -> Self {
        LinkFaults { chances, rng, losing: false }
    }

    /// Whether the next packet is lost. Rows begin and end by chance (Gilbert's model), so often that the
    /// share of packets lost is `loss`.
    fn loses(&mut self) -> bool {
        let Chances { loss, burst, .. } = self.chances;
        let chance = match self.losing {
            _ if burst <= 1.0 => loss,
            true => 1.0 - 1.0 / burst,
            false => loss / (burst * (1.0 - loss)),
        };
        self.losing = chance > 0.0 && self.rng.f64() < chance;
        self.losing
    }
}

/// What happens to a packet that a rule picks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It fails its check.
    Corrupt,
    /// It comes twice.
    Duplicate,
    /// It is late by so many ps.
    Delay(u64),
}

/// Kinds of packets that a rule may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PacketKind {
    /// Any.
    Any,
    /// SENDs.
    Send,
    /// WRITEs.
    Write,
    /// READ requests.
    ReadRequest,
    /// READ responses.
    ReadResponse,
    /// Compare-and-swap and fetch-and-add.
    Atomic,
    /// Atomics' answers.
    AtomicResponse,
    /// Acknowledgements, negative ones included.
    Ack,
}

impl PacketKind {
    fn matches(self, opcode: Opcode) -> bool {
        let operation = opcode.operation();
        match self {
            PacketKind::Any => true,
            PacketKind::Send => operation.is_send(),
            PacketKind::Write => operation.is_write(),
            PacketKind::ReadRequest => operation == Operation::ReadRequest,
            PacketKind::ReadResponse => operation.is_read_response(),
            PacketKind::Atomic => operation.is_atomic(),
            PacketKind::AtomicResponse => operation == Operation::AtomicAcknowledge,
            PacketKind::Ack => operation == Operation::Acknowledge,
        }
    }
}

/// A rule: the packets that meet all its conditions, counted; the `nth` of them (or every one from it
/// on) suffers the action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What happens.
    pub action: Action,
    /// Kind of packet.
    pub kind: PacketKind,
    /// Only on this link.
    pub link: Option<u32>,
    /// Only from this host.
    pub src: Option<u32>,
    /// Only to this host.
    pub dst: Option<u32>,
    /// Only to this queue pair number.
    pub qp: Option<u32>,
    /// Only with this PSN.
    pub psn: Option<u32>,
    /// Which of the packets that match, from 1.
    pub nth: u32,
    /// Every one from `nth` on.
    pub every: bool,
    /// Packets that have matched so far.
    pub seen: u32,
}

impl Rule {
    /// Reads one line; `#` begins a comment.
    pub fn parse(line: &str) -> Result<Rule, Error> {
        let fail = |why: String| Error::new("faults.script", format!("`{line}`: {why}"));
        let line = line.split('#').next().unwrap_or("").trim();
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        let action = match first {
            "drop" => Action::Drop,
            "corrupt" => Action::Corrupt,
            "duplicate" => Action::Duplicate,
            "delay" => Action::Delay(0),
            _ => return Err(fail(format!("`{first}` is not one of drop, corrupt, duplicate, delay"))),
        };
        let mut rule = Rule {
            action,
            kind: PacketKind::Any,
            link: None,
            src: None,
            dst: None,
            qp: None,
            psn: None,
            nth: 1,
            every: false,
            seen: 0,
        };
        for word in words {
            match word.split_once('=') {
                None => rule.take_word(word).map_err(fail)?,
                Some((key, value)) => rule.take_pair(key, value).map_err(fail)?,
            }
        }
        if rule.action == Action::Delay(0) {
            return Err(fail("a delay needs `by=`, such as by=20us".into()));
        }
        Ok(rule)
    }

    fn take_word(&mut self, word: &str) -> Result<(), String> {
        self.kind = match word {
            "once" => return Ok(()),
            "every" => {
                self.every = true;
                return Ok(());
            }
            "packet" => PacketKind::Any,
            "send" => PacketKind::Send,
            "write" => PacketKind::Write,
            "read-request" => PacketKind::ReadRequest,
            "read-response" => PacketKind::ReadResponse,
            "atomic" => PacketKind::Atomic,
            "atomic-response" => PacketKind::AtomicResponse,
            "ack" => PacketKind::Ack,
            _ => {
                return Err(format!(
                    "`{word}` is not one of packet, send, write, read-request, read-response, atomic, \
                     atomic-response, ack, once, every"
                ));
            }
        };
        Ok(())
    }

    fn take_pair(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key == "by" {
            let Action::Delay(by) = &mut self.action else {
                return Err("`by=` goes with `delay`".into());
            };
            *by = crate::units::parse_time(value)?.as_ps();
            return Ok(());
        }
        let number = match value.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => value.parse(),
        };
        let number = number.map_err(|_| format!("`{value}` is not a number for `{key}`"))?;
        match key {
            "link" => self.link = Some(number),
            "src" => self.src = Some(number),
            "dst" => self.dst = Some(number),
            "qp" => self.qp = Some(number),
            "psn" => self.psn = Some(number & 0xff_ffff),
            "nth" if number > 0 => self.nth = number,
            "nth" => return Err("`nth=` counts from 1".into()),
            _ => return Err(format!("`{key}` is not one of link, src, dst, qp, psn, nth, by")),
        }
        Ok(())
    }

    /// Counts a packet; whether the rule applies to it.
    pub fn applies(&mut self, link: u32, hot: &Hot, packet: &Packet) -> bool {
        let is = |wanted: Option<u32>, value: u32| wanted.is_none_or(|w| w == value);
        let meets = self.kind.matches(packet.bth.opcode)
            && is(self.link, link)
            && is(self.src, crate::host::host_of(&packet.flow.src))
            && is(self.dst, hot.dst)
            && is(self.qp, packet.bth.dest_qp.get())
            && is(self.psn, packet.bth.psn.get());
        if !meets {
            return false;
        }
        self.seen += 1;
        if self.every { self.seen >= self.nth } else { self.seen == self.nth }
    }
}

/// A link that fails, or comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outage {
    /// When, in ps.
    pub at: u64,
    /// Both links of this cable.
    pub cable: u32,
    /// True at its end.
    pub repair: bool,
}

/// What becomes of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fate {
    /// Lost on the way.
    pub lost: bool,
    /// Damaged on the way.
    pub corrupt: bool,
    /// A second copy follows.
    pub twice: bool,
    /// Late by so many ps.
    pub late: u64,
}

/// All faults of a run.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// By link.
    pub links: Vec<LinkFaults>,
    /// Rules for single packets, on any link.
    pub script: Vec<Rule>,
    /// Failures and repairs by time.
    pub outages: Vec<Outage>,
    /// Outages that have happened.
    pub outages_done: usize,
}

impl FaultPlan {
    /// What becomes of a packet that is put on `link`.
    pub fn fate(&mut self, link: u32, hot: &Hot, packet: &Packet) -> Fate {
        let mut fate = Fate::default();
        if let Some(faults) = self.links.get_mut(link as usize) {
            fate.lost = faults.loses();
            let (c, rng) = (faults.chances, &mut faults.rng);
            let mut happens = |chance: f64| chance > 0.0 && rng.f64() < chance;
            fate.twice = happens(c.duplicate);
            // The chance that all bits are right; 1 without bit errors.
            let intact = crate::portable::power(1.0 - c.bit_error, u32::from(hot.size) * 8);
            fate.corrupt = happens(1.0 - intact);
            if happens(c.reorder) {
                fate.late += rng.u64(0..=c.reorder_ps);
            }
            if c.jitter_ps > 0 {
                fate.late += rng.u64(0..=c.jitter_ps);
            }
        }
        for rule in &mut self.script {
            if rule.applies(link, hot, packet) {
                match rule.action {
                    Action::Drop => fate.lost = true,
                    Action::Corrupt => fate.corrupt = true,
                    Action::Duplicate => fate.twice = true,
                    Action::Delay(by) => fate.late += by,
                }
            }
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_come_in_rows_of_a_mean_length_and_are_as_many() {
        for (loss, burst) in [(0.01, 0.0), (0.01, 8.0), (0.2, 3.0), (0.5, 1.0)] {
            let rng = fastrand::Rng::with_seed(1);
            let mut link = LinkFaults::new(Chances { loss, burst, ..Chances::default() }, rng);
            let lost: Vec<bool> = (0..400_000).map(|_| link.loses()).collect();
            let count = lost.iter().filter(|&&lost| lost).count() as f64;
            let rows = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count().max(1) as f64;
            let share = count / lost.len() as f64;
            assert!((share / loss - 1.0).abs() < 0.06, "{loss} in rows of {burst}: {share}");
            // Losses that come by themselves meet by chance.
            let mean = if burst > 1.0 { burst } else { 1.0 / (1.0 - loss) };
            assert!((count / rows / mean - 1.0).abs() < 0.06, "rows of {burst}: {}", count / rows);
        }
    }

    #[test]
    fn rules_are_read() {
        let rule = Rule::parse("drop read-response qp=7 nth=3").unwrap();
        assert_eq!((rule.action, rule.kind), (Action::Drop, PacketKind::ReadResponse));
        assert_eq!((rule.qp, rule.nth, rule.every), (Some(7), 3, false));
        let rule = Rule::parse("corrupt psn=0x103 once").unwrap();
        assert_eq!((rule.action, rule.psn), (Action::Corrupt, Some(0x103)));
        let rule = Rule::parse("delay write link=12 by=20us every").unwrap();
        assert_eq!((rule.action, rule.every), (Action::Delay(20_000_000), true));
        for (line, part) in [
            ("lose it", "not one of drop"),
            ("drop reads", "`reads` is not one of"),
            ("drop qp=x", "not a number"),
            ("delay write", "needs `by=`"),
            ("drop nth=0", "counts from 1"),
            ("drop by=1us", "goes with `delay`"),
            ("drop qpn=3", "`qpn` is not one of"),
        ] {
            let error = Rule::parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
