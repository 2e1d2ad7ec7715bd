//! Why a completion failed: the packet, the rule and the timer behind each error.

use crate::ids::QpId;
use crate::work::Status;
use adverb_wire::{Duration, Instant, Opcode, Operation, Packet, Psn, QpNumber};
use core::fmt;

/// The cause of one error completion. Flushed work requests are not explained one by one: the first
/// error of the queue pair is their cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// When.
    pub at: Instant,
    /// Local queue pair.
    pub id: QpId,
    /// Its number.
    pub qp: QpNumber,
    /// The peer's number, if connected.
    pub peer: QpNumber,
    /// The work request's word.
    pub wr_id: u64,
    /// What the completion says.
    pub status: Status,
    /// The packet that brought the error, or that was never answered.
    pub packet: Option<PacketCause>,
    /// The timer that ran out.
    pub timer: Option<TimerCause>,
    /// The rule that was broken, in words, with its clause.
    pub rule: &'static str,
    /// The failure that this one comes of: of a completion that a WAIT was for.
    pub after: Option<Awaited>,
}

/// An error completion that somebody waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Whose it was.
    pub qp: QpNumber,
    /// What it said.
    pub status: Status,
}

/// A packet in an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCause {
    /// Received from the peer (else sent by this NIC).
    pub received: bool,
    /// Its opcode, where it is known.
    pub opcode: Option<Opcode>,
    /// Its PSN.
    pub psn: Psn,
    /// AETH syndrome byte, where it carried one.
    pub syndrome: Option<u8>,
}

/// A timer in an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerCause {
    /// `local ACK timeout` or `RNR timer`.
    pub name: &'static str,
    /// Its length.
    pub length: Duration,
    /// Times that it ran out in a row.
    pub expiries: u8,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "qp {} (peer {}) wr_id {:#x} completed with {:?}: {}",
            self.qp, self.peer, self.wr_id, self.status, self.rule
        )?;
        if let Some(awaited) = &self.after {
            write!(f, "; qp {} had completed with {:?}", awaited.qp, awaited.status)?;
        }
        if let Some(p) = &self.packet {
            let direction = if p.received { "received" } else { "sent" };
            write!(f, "; packet {direction}: ")?;
            match p.opcode {
                Some(op) => write!(f, "{op:?} ")?,
                None => write!(f, "request ")?,
            }
            write!(f, "PSN {}", p.psn)?;
            if let Some(s) = p.syndrome {
                write!(f, " syndrome {s:#04x}")?;
            }
        }
        if let Some(t) = &self.timer {
            write!(f, "; {} of {} us ran out {} times", t.name, t.length.as_ns() / 1000, t.expiries)?;
        }
        Ok(())
    }
}

/// Why a work request failed, for its explanation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause {
    pub status: Status,
    pub rule: &'static str,
    pub packet: Option<PacketCause>,
    pub timer: Option<TimerCause>,
    pub after: Option<Awaited>,
}

impl Cause {
    pub const fn local(status: Status, rule: &'static str) -> Self {
        Cause { status, rule, packet: None, timer: None, after: None }
    }
}

/// A received packet as the cause of an error.
pub(crate) fn received(packet: &Packet) -> PacketCause {
    let acknowledges = packet.bth.opcode.operation() == Operation::Acknowledge;
    PacketCause {
        received: true,
        opcode: Some(packet.bth.opcode),
        psn: packet.bth.psn,
        syndrome: acknowledges.then(|| packet.aeth.syndrome.wire()),
    }
}
