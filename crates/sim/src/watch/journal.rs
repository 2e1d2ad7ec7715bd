//! What happens, told line by line for people: packets on links, and what NICs did about them. Nothing is
//! written, and nothing costs time, until somebody watches.

use crate::fabric::link::LINK_CAPTURE;
use crate::fabric::packet::{FLAG_MESSAGE, Hot, Kind};
use crate::sim::Sim;
use crate::watch::perfetto::Recorder;
use adverb_nic::{Counters, Nic};
use adverb_wire::{Instant, Operation, Packet, Syndrome};
use core::fmt::{Display, Write};

/// Lines that nobody has taken yet.
#[derive(Default)]
pub(crate) struct Journal {
    lines: Option<Vec<String>>,
    /// What is noted for a trace.
    pub recorder: Option<Box<Recorder>>,
    /// There is one or the other: what the data path asks.
    pub on: bool,
    /// Counters of the NIC that is about to be called.
    before: Counters,
}

impl Journal {
    /// Somebody watches, or a trace is made.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Looks at a NIC before it is called.
    #[cold]
    pub fn look(&mut self, nic: &Nic) {
        self.before = *nic.counters();
    }

    /// Writes a line: when, where, what.
    pub fn add(&mut self, now: u64, place: impl Display, what: impl Display) {
        if let Some(lines) = &mut self.lines {
            let at = format!("{:?}", Instant::from_ps(now));
            lines.push(format!("{at:>18}  {:<24} {what}", place.to_string()));
        }
    }
}

impl Sim {
    /// Tells what happens from now on; see [`Sim::take_log`].
    pub fn watch(&mut self) {
        self.watch.journal.lines = Some(Vec::new());
        self.watch_links();
    }

    /// What happens at links' ends is told from now on.
    pub(crate) fn watch_links(&mut self) {
        self.watch.journal.on = true;
        self.fabric.links.iter_mut().for_each(|link| link.flags |= LINK_CAPTURE);
    }

    /// What happened since the last call: time, host or link, packet or piece of work, what became of it.
    pub fn take_log(&mut self) -> Vec<String> {
        self.watch.journal.lines.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// Tells of a packet at the end of a link, or dropped there.
    #[cold]
    pub(crate) fn tell_arrival(&mut self, l: u32, id: u32, fate: &str) {
        if self.watch.journal.recorder.is_some() && !fate.is_empty() {
            self.note_lost(l, id);
        }
        if self.watch.journal.lines.is_some() {
            let (hot, packet) = (&self.fabric.packets.hot[id as usize], self.fabric.packets.descriptor(id));
            let text = match self.fabric.packets.payload(id).filter(|_| hot.flags & FLAG_MESSAGE != 0) {
                Some(message) => format!("{}{fate}", crate::host::one_rma::describe(message)),
                None => format!("{}{fate}", describe(hot, &packet)),
            };
            let name = self.link_name(l);
            self.watch.journal.add(self.now, name, text);
        }
    }

    /// Tells of a frame that a host's NIC has given.
    #[cold]
    pub(crate) fn tell_sent(&mut self, h: u32, id: u32) {
        if self.watch.journal.recorder.is_some() {
            self.note_sent(h, id);
        }
        let what = describe(&self.fabric.packets.hot[id as usize], &self.fabric.packets.descriptor(id));
        self.tell_nic(h, &format!("sends {what}"));
    }

    /// Tells what a host's NIC did since [`Journal::look`].
    #[cold]
    pub(crate) fn tell_nic(&mut self, h: u32, what: &str) {
        if self.watch.journal.lines.is_none() {
            return;
        }
        let nic = &mut self.hosts.list[h as usize].nic;
        let mut text = what.to_owned();
        let counters = *nic.counters();
        for ((name, new), (_, old)) in
            counters.iter().zip(self.watch.journal.before.iter()).filter(|((_, a), (_, b))| a > b)
        {
            // What every packet moves says nothing.
            if !["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].contains(&name) {
                // Writing to a `String` cannot fail.
                let _ = write!(text, "; {}", in_words(name, new - old));
            }
        }
        while let Some(explanation) = nic.next_explanation() {
            let _ = write!(text, "; {explanation}");
        }
        self.watch.journal.add(self.now, format_args!("host {h}"), text);
    }
}

/// A counter that moved by `n`, in words.
fn in_words(name: &str, n: u64) -> String {
    let words = match name.strip_prefix("drop_") {
        Some(reason) => format!("dropped: {}", reason.replace('_', " ")),
        None => name.replace('_', " "),
    };
    if n == 1 { words } else { format!("{words} ({n})") }
}

/// A packet, as replays show it.
fn describe(hot: &Hot, packet: &Packet) -> String {
    match hot.kind {
        Kind::Pause => return format!("pause of class {}", hot.class),
        Kind::Resume => return format!("end of the pause of class {}", hot.class),
        Kind::Data => {}
    }
    let bth = &packet.bth;
    let operation = bth.opcode.operation();
    let mut text = format!("{:?} PSN {} to qp {}", bth.opcode, bth.psn, bth.dest_qp);
    if packet.payload_len > 0 {
        let _ = write!(text, ", {} B", packet.payload_len);
    }
    if operation == Operation::Acknowledge {
        let said = match packet.aeth.syndrome {
            Syndrome::Ack { .. } => "ACK".to_owned(),
            Syndrome::RnrNak { .. } => "RNR NAK".to_owned(),
            Syndrome::Nak(code) => format!("NAK {code:?}"),
            Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
        };
        let _ = write!(text, ", {said} MSN {}", packet.aeth.msn);
    }
    if bth.ack_req {
        text.push_str(", asks for an ACK");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_words() {
        assert_eq!(in_words("drop_out_of_order", 1), "dropped: out of order");
        assert_eq!(in_words("acks_sent", 2), "acks sent (2)");
    }

    #[test]
    fn nothing_is_kept_while_nobody_watches() {
        let mut journal = Journal::default();
        journal.add(1, "host 0", "x");
        assert!(journal.lines.is_none());
        journal.lines = Some(Vec::new());
        journal.add(1_500_000, "host 0", "posts");
        assert!(journal.lines.unwrap()[0].contains("1.500000 us  host 0"));
    }
}
