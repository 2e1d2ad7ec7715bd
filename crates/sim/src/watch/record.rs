//! What a run says of itself: counts, samples of queues, and a record of every flow.

use crate::fabric::link::{FRAME_MIN, FRAMING, HOST};
use crate::fabric::programmed::Restarts;
use crate::sim::Sim;
use crate::source::Source;
use crate::watch::statistics::percentile;
use crate::workload::flows::{Flow, Verb};
use crate::workload::ways::Recovery;
use adverb_switch::Counters;
use core::fmt::Write;

/// Counts of a run.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Packets that crossed a link, once for each link.
    pub link_hops: u64,
    /// Packets that NICs gave.
    pub injected: u64,
    /// Packets that NICs took.
    pub delivered: u64,
    /// Packets dropped for want of buffer.
    pub drops: u64,
    /// Packets lost on links.
    pub lost: u64,
    /// Packets damaged on links.
    pub corrupted: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// Packets marked by ECN.
    pub marked: u64,
    /// Stamps that switches have put on packets, one for each link.
    pub stamped: u64,
    /// Pause frames sent, ends of pauses not counted.
    pub pauses: u64,
    /// Most packets under way at once.
    pub packets_peak: u32,
    /// Virtual time, in ps.
    pub now_ps: u64,
}

/// Samples that a run keeps at most (256 MB).
pub const SAMPLES_MAX: usize = 16 << 20;

/// Depth of every switch queue at set times.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    every_ps: u64,
    /// (time, link, bytes that wait), only where something waits.
    pub depths: Vec<(u64, u32, u32)>,
    /// Samples beyond [`SAMPLES_MAX`], which are not kept.
    pub missed: u64,
}

impl Samples {
    /// How often they are taken, in ps; 0 for never.
    pub(crate) fn every_ps(&self) -> u64 {
        self.every_ps
    }
}

/// Averages and tails over flows.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Summary {
    /// Flows that ended well.
    pub flows: u32,
    /// Flows that ended in an error, or not at all.
    pub failed: u32,
    /// Mean of completion time over ideal time.
    pub slowdown_avg: f64,
    /// Mean completion time, in ps.
    pub fct_avg_ps: f64,
    /// 99th percentile of completion time, in ps.
    pub fct_p99_ps: u64,
    /// 99.9th percentile of completion time, in ps.
    pub fct_p999_ps: u64,
    /// Longest completion time, in ps.
    pub fct_max_ps: u64,
}

/// How a run went, in a few figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Averages and tails over all flows.
    pub summary: Summary,
    /// Counts.
    pub stats: Stats,
    /// Flows that ended in an error.
    pub failed: u32,
    /// Flows that had not ended when nothing more happened, or time was up.
    pub unfinished: u32,
    /// The most flows under way at once.
    pub at_once: u32,
    /// Packets that were sent again.
    pub retransmissions: u64,
    /// The same by workload and transport, where transports are mixed.
    pub recoveries: Vec<Recovery>,
    /// Time during which a class of a link was paused, over all links, in ps.
    pub paused_ps: u64,
    /// The ports that PFC keeps from sending for ever, each by its link's name.
    pub deadlock: Option<Vec<String>>,
    /// Operations of 1RMA by outcome, as [`Outcome::ALL`](adverb_nic::one_rma::Outcome::ALL) orders them;
    /// none in a fabric of queue pairs.
    pub operations: Option<[u64; 5]>,
    /// What the programs of a switch counted, and how often that was started anew.
    pub switch: Option<(Counters, Restarts)>,
    /// Hash of all that happened.
    pub trace: u64,
}

impl Sim {
    /// How the run went so far.
    pub fn report(&self) -> Report {
        let failed = self.flows().iter().filter(|f| f.failed).count() as u32;
        let names = |cycle: Vec<u32>| cycle.iter().map(|l| self.link_name(*l)).collect();
        Report {
            summary: self.summary(|_| true),
            stats: self.stats(),
            failed,
            unfinished: self.flows().len() as u32 - self.flows_ended(),
            at_once: self.flows_at_once(),
            retransmissions: self.retransmissions(),
            recoveries: self.recoveries(),
            paused_ps: (0..self.fabric.links.len() as u32).map(|l| self.paused_ps(l)).sum(),
            deadlock: self.deadlock().map(names),
            operations: self.rma_record().map(|record| record.outcomes),
            switch: self.switch_counters(),
            trace: self.trace_hash(),
        }
    }

    /// Time during which a class of a link was paused, in ps, pauses that have not ended included.
    pub fn paused_ps(&self, link: u32) -> u64 {
        let (l, classes) = (link as usize, self.fabric.classes);
        let open = (0..classes).filter(|class| self.fabric.links[l].paused >> class & 1 != 0);
        let since = open.map(|class| self.now - self.fabric.paused_since[l * classes + class]);
        self.fabric.counters[l].paused_ps + since.sum::<u64>()
    }

    /// Samples queue depths this often, in ps, from now on.
    pub fn sample_every(&mut self, every_ps: u64) {
        self.watch.samples.every_ps = every_ps;
        self.events.cancel_timer(self.sources.pack(Source::Sample));
        if every_ps > 0 {
            self.set_timer(Source::Sample, self.now + every_ps);
        }
    }

    pub(crate) fn on_sample(&mut self) {
        self.sample_links();
        if !self.config.transport.share_qp && self.config.one_rma.is_none() {
            self.sample_flows();
        }
        for link in 0..self.fabric.links.len() {
            if self.fabric.links[link].waiting > 0 {
                let bytes = self.queues_of(link as u32).iter().map(|q| q.depth).sum();
                if self.watch.samples.depths.len() < SAMPLES_MAX {
                    self.watch.samples.depths.push((self.now, link as u32, bytes));
                } else {
                    self.watch.samples.missed += 1;
                }
            }
        }
        // Samples end with what they sample, or a run would never end.
        if !self.flows_done() {
            self.set_timer(Source::Sample, self.now + self.watch.samples.every_ps);
        }
    }

    pub(crate) fn queues_of(&self, link: u32) -> &[crate::fabric::switch::Queue] {
        let link = &self.fabric.links[link as usize];
        if link.from & HOST != 0 {
            return &[];
        }
        self.fabric.switches[link.from as usize].queues_of(link.port_from)
    }

    /// The samples taken so far.
    pub fn samples(&self) -> &Samples {
        &self.watch.samples
    }

    /// Completion time of a flow in an idle network, in ps: all its packets on the slowest link, and the
    /// largest of them on every other one. Exact where links have one rate.
    pub fn ideal_ps(&self, flow: &Flow) -> u64 {
        if self.goes_by_one_rma(&flow.spec) {
            return self.rma_ideal_ps(flow);
        }
        let spec = flow.spec;
        let mtu = self.config.transport.mtu.bytes();
        let packets = u64::from(spec.bytes.div_ceil(mtu).max(1));
        // IPv4, UDP, BTH and ICRC; bytes to a multiple of four on the last. A WRITE's first packet has a
        // RETH, a READ's first response and its last an AETH.
        let headers = 20 + 8 + 12 + 4 + FRAMING;
        let (first, all) = match spec.op {
            Verb::Write => (16, 16),
            Verb::Send => (0, 0),
            Verb::Read => (4, if packets > 1 { 8 } else { 4 }),
        };
        let padded = u64::from(spec.bytes.next_multiple_of(4));
        let wire = padded + packets * u64::from(headers) + all;
        let largest = (spec.bytes.next_multiple_of(4).min(mtu) + headers + first).max(FRAME_MIN);
        let (mut delays, mut sum, mut slowest) = (0, 0, 0);
        for l in self.fabric.routes.path(&self.config.topology, spec.src, spec.dst, 0) {
            let link = &self.fabric.links[l as usize];
            delays += link.delay;
            sum += link.serialization(largest);
            slowest = slowest.max(link.serialization(1_000_000));
        }
        let rest = u128::from(wire.saturating_sub(u64::from(largest))) * u128::from(slowest) / 1_000_000;
        let mut asking = 0;
        if spec.op == Verb::Read {
            for l in self.fabric.routes.path(&self.config.topology, spec.dst, spec.src, 0) {
                let link = &self.fabric.links[l as usize];
                asking += link.delay + link.serialization(headers + 16);
            }
        }
        asking + delays + sum + rest as u64
    }

    /// Averages and tails over the flows that `pick` chooses.
    pub fn summary(&self, pick: impl Fn(&Flow) -> bool) -> Summary {
        let mut times = Vec::new();
        let mut s = Summary::default();
        for flow in self.flows().iter().filter(|f| pick(f)) {
            if flow.failed || flow.received == u64::MAX {
                s.failed += 1;
                continue;
            }
            let fct = flow.received - flow.spec.start;
            s.slowdown_avg += fct as f64 / self.ideal_ps(flow) as f64;
            s.fct_avg_ps += fct as f64;
            times.push(fct);
        }
        s.flows = times.len() as u32;
        if times.is_empty() {
            return s;
        }
        s.slowdown_avg /= times.len() as f64;
        s.fct_avg_ps /= times.len() as f64;
        times.sort_unstable();
        let at = |p: f64| percentile(&times, p).unwrap_or(0);
        s.fct_p99_ps = at(0.99);
        s.fct_p999_ps = at(0.999);
        s.fct_max_ps = at(1.0);
        s
    }

    /// Packets that were sent again, over all NICs.
    pub fn retransmissions(&self) -> u64 {
        self.hosts.list.iter().map(|h| h.nic.counters().retransmitted_packets).sum()
    }

    /// Retransmission timeouts, over all NICs.
    pub fn timeouts(&self) -> u64 {
        self.hosts.list.iter().map(|h| h.nic.counters().timeouts).sum()
    }

    /// A record of every flow as CSV, times in ns. A flow that has not ended has empty fields.
    pub fn flows_csv(&self) -> String {
        let mut out = String::from(
            "flow,src,dst,bytes,start_ns,received_ns,completed_ns,fct_ns,ideal_ns,slowdown,failed,workload,\
             workload_name\n",
        );
        let ns = |ps: u64| if ps == u64::MAX { String::new() } else { format!("{:.3}", ps as f64 / 1e3) };
        for (n, flow) in self.flows().iter().enumerate() {
            let spec = flow.spec;
            let ideal = self.ideal_ps(flow);
            let fct = if flow.received == u64::MAX { u64::MAX } else { flow.received - spec.start };
            let slowdown =
                if fct == u64::MAX { String::new() } else { format!("{:.4}", fct as f64 / ideal as f64) };
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                out,
                "{n},{},{},{},{},{},{},{},{},{slowdown},{},{},{}",
                spec.src,
                spec.dst,
                spec.bytes,
                ns(spec.start),
                ns(flow.received),
                ns(flow.completed),
                ns(fct),
                ns(ideal),
                u8::from(flow.failed),
                { spec.tag },
                self.workload_name(spec.tag),
            );
        }
        out
    }

    /// Counters of every port as CSV.
    pub fn ports_csv(&self) -> String {
        let mut out = String::from(
            "link,from_to,packets,bytes,drops,lost,corrupted,marked,pauses,paused_ns,queue_max_bytes\n",
        );
        for (l, (link, port)) in self.fabric.links.iter().zip(self.ports()).enumerate() {
            let _ = writeln!(
                out,
                "{l},{},{},{},{},{},{},{},{},{:.3},{}",
                self.link_name(l as u32),
                link.packets,
                link.bytes,
                port.drops,
                port.lost,
                port.corrupted,
                port.marked,
                port.pauses,
                self.paused_ps(l as u32) as f64 / 1e3,
                self.queues_of(l as u32).iter().map(|q| q.depth_max).sum::<u32>()
            );
        }
        out
    }
}

impl Sim {
    /// The samples of queue depths as CSV.
    pub fn queues_csv(&self) -> String {
        let mut out = String::from("time_ns,link,bytes\n");
        for (at, link, bytes) in &self.watch.samples.depths {
            let _ = writeln!(out, "{:.3},{link},{bytes}", *at as f64 / 1e3);
        }
        out
    }
}

/// Most memory that the process ever had resident, in bytes; 0 where the system does not say.
pub fn peak_rss() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kb: u64 = line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or(0);
    kb * 1024
}
