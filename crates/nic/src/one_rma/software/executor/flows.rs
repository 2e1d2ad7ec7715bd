//! Congestion state of each pair of remote NIC and direction, and whose turn it is (section 6). It lies in
//! the memory of the software; the NIC knows nothing of it. When the table is full, the pair that was idle
//! for longest is forgotten and starts anew.

use super::transfer::Direction;
use crate::error::Error;
use crate::one_rma::congestion::{Allowance, CongestionConfig, CongestionWindow};
use adverb_wire::{Duration, Gid, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Orders addresses.
type Name = ([u8; 16], Direction);

pub(super) struct Flow {
    name: Name,
    pub window: CongestionWindow,
    /// Commands in the NIC.
    pub outstanding: u32,
    /// Transfers that have a command to issue; they take turns, so that small ones do not wait for large
    /// ones.
    pub row: VecDeque<u32>,
    /// When the last command was issued, or should have been, and its bytes: the next one's time follows from
    /// the window as it is then.
    paced_from: Option<(Instant, u16)>,
    /// It is in the executor's row.
    pub in_ready: bool,
    last_used: Instant,
}

impl Flow {
    /// When the next command may be issued at the earliest.
    pub fn next_issue(&self, allowance: &Allowance) -> Instant {
        self.paced_from.map_or(Instant::ZERO, |(from, len)| from + allowance.spacing(len))
    }

    /// Notes a command of `len` bytes. One that leaves late, for want of a call or a slot, lets the next ones
    /// follow sooner, by `slack` at most.
    pub fn on_issued(&mut self, now: Instant, allowance: &Allowance, len: u16, slack: Duration) {
        let late_by = now.since(self.next_issue(allowance)).as_ps().min(slack.as_ps());
        let late_by = if self.paced_from.is_some() { late_by } else { 0 };
        let from = Instant::from_ps(now.as_ps() - late_by);
        self.paced_from = Some((from, len));
        self.outstanding += 1;
        self.last_used = now;
    }

    fn is_idle(&self) -> bool {
        self.outstanding == 0 && self.row.is_empty()
    }
}

pub(super) struct Flows {
    flows: Vec<Flow>,
    by_name: BTreeMap<Name, u32>,
    most: usize,
}

impl Flows {
    pub fn new(most: u32) -> Flows {
        Flows { flows: Vec::new(), by_name: BTreeMap::new(), most: most as usize }
    }

    pub fn get(&self, index: u32) -> &Flow {
        &self.flows[index as usize]
    }

    pub fn get_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.flows[index as usize]
    }

    pub fn len(&self) -> usize {
        self.flows.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }

    pub fn find(&self, target: Gid, direction: Direction) -> Option<u32> {
        self.by_name.get(&(target.0, direction)).copied()
    }

    /// The flow of this name, which may have to be made. `TableFull` when all others are in use.
    pub fn open(
        &mut self,
        config: &CongestionConfig,
        now: Instant,
        target: Gid,
        direction: Direction,
    ) -> Result<u32, Error> {
        if let Some(found) = self.find(target, direction) {
            return Ok(found);
        }
        let name = (target.0, direction);
        let flow = Flow {
            name,
            window: CongestionWindow::new(config),
            outstanding: 0,
            row: VecDeque::new(),
            paced_from: None,
            in_ready: false,
            last_used: now,
        };
        let index = if self.flows.len() < self.most {
            self.flows.push(flow);
            self.flows.len() - 1
        } else {
            let idle = self.flows.iter().enumerate().filter(|(_, flow)| flow.is_idle());
            let (index, _) = idle.min_by_key(|(_, flow)| flow.last_used).ok_or(Error::TableFull)?;
            self.by_name.remove(&self.flows[index].name);
            // Its place in the executor's row, should it have one, goes over to the new flow.
            let in_ready = self.flows[index].in_ready;
            self.flows[index] = Flow { in_ready, ..flow };
            index
        };
        self.by_name.insert(name, index as u32);
        Ok(index as u32)
    }
}
