//! Links and flows over time: at set times, what each link has carried since the time before, what waits for
//! it and how long it was paused; and what congestion control allows each flow under way.

use crate::sim::Sim;
use core::fmt::Write;

/// Samples of links, and of flows, that a run keeps at most (160 MB each).
pub const SERIES_MAX: usize = 4 << 20;

/// A link in one interval, in which something happened there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkSample {
    /// End of the interval, ps.
    pub at: u64,
    /// The link.
    pub link: u32,
    /// Bytes that wait for it at the end.
    pub queue: u32,
    /// Bytes that were put on it, framing included.
    pub bytes: u64,
    /// Packets that were marked.
    pub marked: u64,
    /// Time for which a class of it was paused, ps.
    pub paused_ps: u64,
}

/// What a flow's sender is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowSample {
    /// When, ps.
    pub at: u64,
    /// The flow.
    pub flow: u32,
    /// Packets that may be unacknowledged.
    pub window: u32,
    /// Bits per second.
    pub rate: u64,
}

/// Both, as far as they are kept.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// By link: bytes, marks and pauses at the last sample.
    last: Vec<(u64, u64, u64)>,
    /// In the order of time.
    pub links: Vec<LinkSample>,
    /// In the order of time; none where flows share queue pairs, and none of 1RMA's.
    pub flows: Vec<FlowSample>,
    /// Samples beyond [`SERIES_MAX`], which are not kept.
    pub missed: u64,
}

impl Sim {
    pub(crate) fn sample_links(&mut self) {
        let count = self.fabric.links.len();
        self.watch.series.last.resize(count, (0, 0, 0));
        for l in 0..count {
            let (link, port) = (&self.fabric.links[l], &self.fabric.counters[l]);
            let now = (link.bytes, port.marked, self.paused_ps(l as u32));
            let queue = self.queues_of(l as u32).iter().map(|q| q.depth).sum();
            let series = &mut self.watch.series;
            let before = core::mem::replace(&mut series.last[l], now);
            if now == before && queue == 0 {
                continue;
            }
            if series.links.len() == SERIES_MAX {
                series.missed += 1;
                continue;
            }
            series.links.push(LinkSample {
                at: self.now,
                link: l as u32,
                queue,
                bytes: now.0 - before.0,
                marked: now.1 - before.1,
                paused_ps: now.2 - before.2,
            });
        }
    }

    pub(crate) fn sample_flows(&mut self) {
        for h in 0..self.hosts.list.len() {
            for (index, place) in self.hosts.list[h].with_flows() {
                let Some(flow) = self.flows.asked_by(place, h as u32, index) else { continue };
                let nic = &mut self.hosts.list[h].nic;
                let Some((window, rate)) = nic.qp_at(index).and_then(|qp| nic.allowed(qp)) else { continue };
                let series = &mut self.watch.series;
                if series.flows.len() == SERIES_MAX {
                    series.missed += 1;
                } else {
                    series.flows.push(FlowSample { at: self.now, flow, window, rate });
                }
            }
        }
    }

    /// Links and flows over time, as far as they were sampled.
    pub fn series(&self) -> &Series {
        &self.watch.series
    }

    /// How often they are sampled, in ps; 0 for never.
    pub fn sampled_every(&self) -> u64 {
        self.watch.samples.every_ps()
    }

    /// Every link over time as CSV, where something happened.
    pub fn links_csv(&self) -> String {
        let mut out = String::from("time_ns,link,utilisation,queue_bytes,marked,paused_ns\n");
        let every = self.sampled_every().max(1);
        for s in &self.watch.series.links {
            let full = self.fabric.links[s.link as usize].rate() as f64 * every as f64 / 8e12;
            // Writing to a `String` cannot fail.
            let _ = writeln!(
                out,
                "{:.3},{},{:.4},{},{},{:.3}",
                s.at as f64 / 1e3,
                s.link,
                s.bytes as f64 / full,
                s.queue,
                s.marked,
                s.paused_ps as f64 / 1e3
            );
        }
        out
    }

    /// What flows' senders were allowed over time, as CSV.
    pub fn windows_csv(&self) -> String {
        let mut out = String::from("time_ns,flow,window_packets,rate_gbps\n");
        for s in &self.watch.series.flows {
            let _ =
                writeln!(out, "{:.3},{},{},{:.4}", s.at as f64 / 1e3, s.flow, s.window, s.rate as f64 / 1e9);
        }
        out
    }
}
