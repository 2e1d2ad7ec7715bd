//! What befalls the oracle's connections while they work: a side is told to be something else of StaR's, or
//! its program is killed. The work does not know of it: its outcome must be the same, and where a program is
//! gone, nothing may land in what was its memory.

use super::{Oracle, RECV_SLOTS, side};
use crate::sim::Sim;
use adverb_nic::StarSide;
use adverb_wire::{Instant, QpNumber};
use side::RECV_BYTES;

/// What befalls a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// It is to become this, and its peer what fits.
    Becomes(StarSide),
    /// Its program is killed: the queue pair goes without a word, and the NIC stays.
    Killed,
    /// It takes back from its peer's registry what it has granted of its memory.
    Withdraws,
    /// The agent of its host's registry ends; and one is there again.
    AgentEnds,
    /// See `AgentEnds`.
    AgentBegins,
}

/// Something that befalls a side at a set time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When, in ps.
    pub at: u64,
    /// Which side: those of connection `n` are `2 n` and `2 n + 1`.
    pub side: u32,
    /// What.
    pub what: What,
}

/// Memory of a side whose program was killed, as it was then.
pub(super) struct Frozen {
    host: u32,
    at: usize,
    bytes: Vec<u8>,
}

impl Sim {
    /// Lets these things befall the oracle's sides.
    pub fn set_changes(&mut self, mut changes: Vec<Change>) {
        changes.sort_by_key(|change| change.at);
        if let Some(oracle) = &mut self.watch.oracle {
            oracle.changes = changes.into();
        }
        self.schedule_oracle();
    }

    /// Lets happen what is due.
    pub(super) fn befall_sides(&mut self, oracle: &mut Oracle) -> Vec<u32> {
        let mut touched = Vec::new();
        while let Some(change) = oracle.changes.front().copied().filter(|change| change.at <= self.now) {
            oracle.changes.pop_front();
            if self.befall_agents(oracle, change) {
                continue;
            }
            let Some(side) = oracle.sides.get(change.side as usize).filter(|side| !side.dead) else {
                continue;
            };
            let (h, qp) = (side.host, side.qp);
            if change.what == What::Killed {
                self.end_rules(oracle, change.side);
            }
            let nic = &mut self.hosts.list[h as usize].nic;
            let heard = match change.what {
                // A NIC that offers no StaR says so, and so does a queue pair that has failed meanwhile.
                What::Becomes(to) => nic.star_switch(Instant::from_ps(self.now), qp, to),
                What::Killed => nic.destroy_qp(qp),
                What::Withdraws => {
                    self.withdraw(oracle, change.side);
                    Ok(())
                }
                What::AgentEnds | What::AgentBegins => Ok(()),
            };
            if self.watch.journal.is_on() {
                let place = format_args!("host {h}");
                let what = format_args!("queue pair {}: {:?}, {heard:?}", qp.index(), change.what);
                self.watch.journal.add(self.now, place, what);
            }
            if change.what == What::Killed {
                match heard {
                    Ok(()) => oracle.bury(change.side),
                    Err(error) => oracle.fail(format!("side {}: cannot be killed: {error}", change.side)),
                }
            }
            touched.push(h);
        }
        touched
    }

    /// Lets an agent end or begin, if that is due; they outlive sides.
    fn befall_agents(&mut self, oracle: &mut Oracle, change: Change) -> bool {
        let Some(host) = oracle.sides.get(change.side as usize).map(|side| side.host) else { return false };
        match change.what {
            What::AgentEnds => self.end_agent(oracle, host),
            What::AgentBegins => self.begin_agent(oracle, host),
            _ => return false,
        }
        if self.watch.journal.is_on() {
            let what = format_args!("its registry: {:?}", change.what);
            self.watch.journal.add(self.now, format_args!("host {host}"), what);
        }
        true
    }

    /// Whether something is yet to befall a side.
    pub fn has_changes(&self) -> bool {
        self.watch.oracle.as_deref().is_some_and(|oracle| !oracle.changes.is_empty())
    }

    /// A connection that is not at rest, in words: of two sides that live, both must be done with changes,
    /// and what they are must fit.
    pub fn unsettled(&self) -> Option<String> {
        let oracle = self.watch.oracle.as_deref()?;
        let stands = |side: &side::Side| {
            let nic = &self.hosts.list[side.host as usize].nic;
            (nic.star_side(side.qp).ok(), nic.star_is_changing(side.qp))
        };
        oracle.sides.chunks(2).enumerate().find_map(|(n, ends)| {
            let [a, b] = ends else { return None };
            if a.dead || b.dead {
                return None;
            }
            let ((one, first), (other, second)) = (stands(a), stands(b));
            let fits = match one {
                Some(StarSide::Plain) => other == one,
                Some(StarSide::Stateless) => other == Some(StarSide::Stateful),
                Some(StarSide::Stateful) => other == Some(StarSide::Stateless),
                _ => false,
            };
            let rests = fits && !first && !second;
            (!rests).then(|| {
                format!("connection {n}: its sides are {one:?} and {other:?}, changing: {first} and {second}")
            })
        })
    }
}

impl Oracle {
    /// A side's program is gone: from now on its memory is nobody's.
    fn bury(&mut self, number: u32) {
        let (own, peer) = (&self.sides[number as usize], &self.sides[number as usize ^ 1]);
        let host = own.host;
        let places = [
            (own.inbox, RECV_SLOTS as usize * RECV_BYTES),
            (own.landing, side::LANDING_BYTES),
            (peer.slice, side::SLICE_BYTES),
        ];
        for (at, len) in places {
            let mut bytes = vec![0; len];
            self.rooms[host as usize].buffer.read(at, &mut bytes);
            self.frozen.push(Frozen { host, at, bytes });
        }
        let side = &mut self.sides[number as usize];
        (side.dead, side.killed) = (true, true);
        self.dead += 1;
        self.give_up(number);
    }

    /// Changes a byte of a queue pair's receives, if its program was killed.
    pub(crate) fn damage_dead(&self, h: u32, number: QpNumber) {
        let killed = |side: &&side::Side| {
            side.killed && side.host == h && side.qp.index() == (number.get() & 0xffff) as usize
        };
        if let Some(side) = self.sides.iter().find(killed) {
            self.damage(h, side.inbox);
        }
    }

    /// Nothing has landed in what was the memory of a program that was killed.
    pub(super) fn check_frozen(&mut self) {
        for Frozen { host, at, bytes } in std::mem::take(&mut self.frozen) {
            let mut now = vec![0; bytes.len()];
            self.rooms[host as usize].buffer.read(at, &mut now);
            if let Some(place) = now.iter().zip(&bytes).position(|(now, then)| now != then) {
                self.fail(format!(
                    "host {host}: byte {} of its memory was written after its program was killed",
                    at + place
                ));
            }
        }
    }
}
