//! Keys that are each well and together do nothing: refused with the remedy, lest somebody believe that a run
//! had what they ask for. And what a scenario leaves to its topology: the packets of BDP-FC.

use super::format::Scenario;
use crate::error::Error;
use crate::fabric::topology::{Routes, Topology};
use crate::sim::Config;
use crate::workload::Workload;
use crate::workload::flows::FlowSpec;
use adverb_nic::CongestionControl;
use adverb_nic::irn::WIDE as IRN_WIDE;

/// What a frame of a full packet has besides its payload: Ethernet's header and check sequence, IPv4, UDP,
/// BTH and ICRC. Preamble and gap are no bytes in flight.
const HEADERS: u64 = 18 + 20 + 8 + 12 + 4;

impl Scenario {
    /// Marks that nobody sets or nobody heeds, round trips that nobody measures.
    pub(super) fn congestion_hears(&self, config: &Config) -> Result<(), Error> {
        let t = &self.transport;
        let marks = self.switch.ecn.is_some() || !config.programs.is_empty();
        let heeds =
            matches!(config.transport.congestion, CongestionControl::Dcqcn(_) | CongestionControl::Dctcp(_));
        if heeds && !t.ecn {
            let why = "is not set, so that no packet could be marked and nobody would ever slow down; add it";
            return Err(Error::new("transport.ecn", why));
        }
        if self.switch.ecn.is_some() && !t.ecn {
            let why = "marks nothing, since hosts do not say that they heed marks; add transport.ecn = true, \
                       or remove it";
            return Err(Error::new("switch.ecn", why));
        }
        if t.ecn && !marks {
            let why = "has no switch that marks; add [switch.ecn], or remove it";
            return Err(Error::new("transport.ecn", why));
        }
        let CongestionControl::Timely(timely) = config.transport.congestion else { return Ok(()) };
        let each = u64::from(config.transport.ack_every.max(1)) * u64::from(config.transport.mtu.bytes());
        if each > u64::from(timely.segment).max(u64::from(config.transport.mtu.bytes())) {
            let why = format!(
                "asks for an acknowledgement every {each} bytes, and TIMELY measures segments of {}; lower \
                 it, or raise transport.timely.segment",
                timely.segment
            );
            return Err(Error::new("transport.ack-every", why));
        }
        Ok(())
    }

    /// A run in which nobody would send anything, though a workload asks for traffic.
    pub(super) fn somebody_sends(
        &self,
        flows: &[FlowSpec],
        workload: &Workload,
        end_ps: u64,
    ) -> Result<(), Error> {
        // An empty list is what somebody says who has something else send.
        let listed = self.workloads.iter().any(|table| table.kind == "list");
        if listed || self.programs.is_some() || !matches!(workload, Workload::Open | Workload::Repeat(_)) {
            return Ok(());
        }
        let Some(first) = flows.iter().map(|flow| flow.start).min() else {
            let why =
                "has no flow: nobody would send anything; give more flows, a longer time or a higher load";
            return Err(Error::new("workload", why));
        };
        if first >= end_ps {
            let why =
                "is before the first flow begins: nobody would send anything; raise it, or start sooner";
            return Err(Error::new("end", why));
        }
        Ok(())
    }

    /// BDP-FC's packets where the scenario gives none: the bandwidth-delay product of the longest path (IRN
    /// 3.2).
    pub(super) fn bdp_of_topology(&self, config: &mut Config, routes: &Routes) -> Result<(), Error> {
        let given = self.transport.irn.as_ref().is_some_and(|irn| irn.bdp_packets.is_some());
        let mtu = config.transport.mtu.bytes();
        let Some(irn) = config.transport.irn.as_mut().filter(|_| !given) else { return Ok(()) };
        let packets = bdp(&config.topology, routes) / (u64::from(mtu) + HEADERS);
        if packets > u64::from(IRN_WIDE) {
            let why = format!(
                "is missing, and the topology's bandwidth-delay product of {packets} packets is above the \
                 bitmaps' {IRN_WIDE}; give up to {IRN_WIDE}, or a larger transport.mtu"
            );
            return Err(Error::new("transport.irn.bdp-packets", why));
        }
        let packets = (packets as u32).max(1);
        irn.bdp_packets = Some(packets);
        irn.agree_on(packets);
        Ok(())
    }

    /// Without BDP-FC nothing is to bound what is in flight, the bitmaps neither: flows that are longer than
    /// they are get refused.
    pub(super) fn bitmaps_span_flows(&self, config: &Config, longest: u32) -> Result<(), Error> {
        let unbounded = config.transport.irn.is_some_and(|irn| irn.bdp_packets.is_none());
        let packets = longest.div_ceil(config.transport.mtu.bytes());
        if unbounded && packets > IRN_WIDE {
            let why = format!(
                "is 0, and the bitmaps' {IRN_WIDE} packets would bound flows of {packets} instead; give a \
                 number, a larger transport.mtu, or shorter flows"
            );
            return Err(Error::new("transport.irn.bdp-packets", why));
        }
        Ok(())
    }
}

/// Bytes of the largest bandwidth-delay product of any two hosts: the slowest cable's rate on the way between
/// them, and twice the cables' delay. Of the hosts of a switch, two whose cables are longest stand for all.
fn bdp(t: &Topology, routes: &Routes) -> u64 {
    let delay = |host: u32| t.cables[routes.up[host as usize] as usize / 2].delay.as_ps();
    let mut by_switch: Vec<(u32, core::cmp::Reverse<u64>, u32)> =
        (0..t.hosts).map(|h| (t.switch_of(h).unwrap_or(u32::MAX), core::cmp::Reverse(delay(h)), h)).collect();
    by_switch.sort_unstable();
    let mut ends = Vec::new();
    for of_one in by_switch.chunk_by(|a, b| a.0 == b.0) {
        ends.extend(of_one.iter().take(2).map(|(.., host)| *host));
    }
    let mut most = 0;
    for (n, a) in ends.iter().enumerate() {
        for b in &ends[n + 1..] {
            let path = routes.path(t, *a, *b, 0);
            let cables = || path.iter().map(|link| &t.cables[*link as usize / 2]);
            let rate = cables().map(|cable| cable.rate).min().unwrap_or(0);
            let ps: u64 = cables().map(|cable| cable.delay.as_ps()).sum();
            let bits = u128::from(rate) * u128::from(ps) * 2 / 1_000_000_000_000;
            most = most.max((bits / 8) as u64);
        }
    }
    most
}
