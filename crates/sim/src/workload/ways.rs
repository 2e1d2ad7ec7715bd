//! Transports mixed in one fabric: which connections speak IRN and which plain RC, the class that a
//! workload's flows go in, and a count of what each sent again.
//!
//! A connection speaks IRN where both of its ends offer it, as with real NICs: an end does not whose NIC has
//! none ([`Config::plain_hosts`](crate::sim::Config::plain_hosts)), or whose program does not want it
//! ([`Way::plain`]). Its ends find out by hellos, or connection set-up has told them
//! ([`IrnConfig::agreed`](adverb_nic::irn::IrnConfig::agreed)).

use crate::host::Hosts;
use crate::sim::Sim;
use crate::workload::Workload;
use crate::workload::flows::Flows;
use adverb_wire::Service;
use std::collections::BTreeMap;

/// How a workload's flows are moved, where it is another way than the transport's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Way {
    /// Its queue pairs do not offer IRN.
    pub plain: bool,
    /// Traffic class of its flows.
    pub class: Option<u8>,
}

/// What one workload's connections of one kind have sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovery {
    /// The workload's name.
    pub workload: String,
    /// They speak IRN, and not plain RC.
    pub irn: bool,
    /// Packets with data, those included that were sent again.
    pub packets: u64,
    /// Packets that were sent again.
    pub again: u64,
}

/// Counts for [`Recovery`], where transports are mixed.
#[derive(Default)]
pub(crate) struct Recoveries {
    /// They are counted: what the data path asks.
    pub on: bool,
    /// By workload and kind: packets with data, and those that were sent again.
    counts: BTreeMap<(u32, bool), (u64, u64)>,
    /// By host: retransmissions that are in the counts.
    counted: Vec<u64>,
}

impl Flows {
    /// How a flow with this tag is moved.
    pub(crate) fn way(&self, tag: u32) -> Way {
        if self.ways.is_empty() {
            return Way::default();
        }
        self.ways.get(self.workload_of(tag) as usize).copied().unwrap_or_default()
    }
}

impl Hosts {
    /// Whether connection set-up has told the ends that one of them does not know IRN. Where they find out by
    /// hellos, it has told nothing.
    pub(crate) fn settled_plain(&self, (near, far): (u32, u32)) -> bool {
        let [near, far] = [near, far].map(|h| &self.list[h as usize]);
        near.offers_irn() != far.offers_irn() && (near.settles_irn() || far.settles_irn())
    }
}

impl Sim {
    /// Counts from now on what connections of either kind send.
    pub fn count_recoveries(&mut self) {
        let again = self.hosts.list.iter().map(|host| host.nic.counters().retransmitted_packets).collect();
        self.watch.recoveries = Recoveries { on: true, counts: BTreeMap::new(), counted: again };
    }

    /// What they have sent, by workload and kind; nothing unless it is counted.
    pub fn recoveries(&self) -> Vec<Recovery> {
        let name = |number: u32| self.flows.names.get(number as usize).cloned().unwrap_or_default();
        let counts = self.watch.recoveries.counts.iter();
        counts
            .map(|((number, irn), (packets, again))| Recovery {
                workload: name(*number),
                irn: *irn,
                packets: *packets,
                again: *again,
            })
            .collect()
    }

    /// Counts the frame that host `h` has just given for host `dst`.
    #[cold]
    pub(crate) fn count_recovery(&mut self, h: u32, dst: u32) {
        let packet = &self.hosts.out.packet;
        let irn = packet.bth.opcode.service() == Service::Irn;
        if !irn && packet.bth.opcode.service() != Service::Rc {
            return;
        }
        let all = self.hosts.list[h as usize].nic.counters().retransmitted_packets;
        let number = match &self.flows.workload {
            Workload::Persistent(_) => 0,
            // A scenario with shared queue pairs does not tell workloads apart by their ways.
            _ if self.config.transport.share_qp => 0,
            _ => {
                let Some(receiver) = self.hosts.list.get(dst as usize) else { return };
                let place = receiver.flow_of(receiver.nic.index_of(packet.bth.dest_qp));
                let Some(flow) = self.flows.flow_at(place) else { return };
                self.flows.workload_of(flow.spec.tag)
            }
        };
        let has_data = packet.payload_len > 0;
        let recoveries = &mut self.watch.recoveries;
        let Some(counted) = recoveries.counted.get_mut(h as usize) else { return };
        let again = all.saturating_sub(core::mem::replace(counted, all));
        if has_data || again > 0 {
            let count = recoveries.counts.entry((number, irn)).or_default();
            *count = (count.0 + u64::from(has_data), count.1 + again);
        }
    }
}
