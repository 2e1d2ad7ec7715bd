//! What came out of calls on connections that last: how many, how long they took, and what they cost the
//! server's NIC.

use super::{Metric, Span, mean, of_times, sorted};
use adverb_nic::{Counters, StarSide};
use adverb_sim::Sim;
use adverb_sim::hardware::Unit;
use adverb_sim::workload::comings::Changed;
use adverb_sim::workload::persistent::{Call, Persistent};

const US: f64 = 1e6;

/// A metric of calls; not a number for others.
pub fn value(sim: &Sim, work: &Persistent, metric: Metric, span: Span) -> f64 {
    let server = work.asked.server;
    let host = &sim.hosts()[server as usize];
    let unit = |of: fn(&Unit) -> u64| host.unit.as_deref().map_or(0, of) as f64;
    // Of the whole run.
    let each = |count: f64| count / work.ended.len() as f64;
    match metric {
        // In ps, so that millions a second are calls times 10^6.
        Metric::Calls => within(work, span).count() as f64 * US / span.length() as f64,
        Metric::CallAvg => mean(within(work, span).map(took)) / US,
        Metric::CallP99 => of_times(&sorted(within(work, span).map(took)), 0.99) / US,
        Metric::Misses => each(unit(Unit::misses)),
        Metric::PostedReads => each(unit(Unit::posted_reads)),
        Metric::Rules => rules(sim),
        Metric::LinkShare => link_share(sim, host.up, work.asked.until_ps),
        Metric::Packets => {
            let links = [host.up, host.up ^ 1].map(|link| u64::from(sim.links()[link as usize].packets));
            each(links.iter().sum::<u64>() as f64)
        }
        Metric::Again => 1000.0 * each(sim.retransmissions() as f64),
        Metric::StatelessBytes => host.nic.stateless_bytes() as f64,
        Metric::Allowed => each(of_all(sim, |nic| nic.star_egress_allowed)),
        Metric::ByAddress => each(of_all(sim, |nic| nic.star_carried)),
        Metric::ToStateless => changed(work, StarSide::Stateless),
        Metric::ToStateful => changed(work, StarSide::Stateful),
        Metric::ToPlain => changed(work, StarSide::Plain),
        Metric::PauseP50 => of_times(&pauses(work), 0.5),
        Metric::PauseP99 => of_times(&pauses(work), 0.99),
        Metric::PauseMax => of_times(&pauses(work), 1.0),
        _ => f64::NAN,
    }
}

/// A counter's sum over all hosts.
fn of_all(sim: &Sim, count: fn(&Counters) -> u64) -> f64 {
    (0..sim.hosts().len() as u32).map(|h| count(sim.nic_counters(h))).sum::<u64>() as f64
}

fn within(work: &Persistent, span: Span) -> impl Iterator<Item = &Call> {
    work.ended.iter().filter(move |call| span.has(call.end))
}

/// Changes at the server.
fn changed(work: &Persistent, to: StarSide) -> f64 {
    let is_its = |changed: &&Changed| changed.host == work.asked.server && changed.to == to;
    work.changed.iter().filter(is_its).count() as f64
}

/// Of all sides that have changed, in us.
fn pauses(work: &Persistent) -> Vec<f64> {
    sorted(work.changed.iter().map(|changed| changed.paused as f64 / US))
}

fn took(call: &Call) -> f64 {
    (call.end - call.start) as f64
}

/// Look-ups of rules over packets for stateless sides, of all hosts. Who looks up and sends is the same.
fn rules(sim: &Sim) -> f64 {
    let units = || sim.hosts().iter().filter_map(|host| host.unit.as_deref());
    let packets: u64 = units().map(Unit::to_stateless).sum();
    units().map(Unit::rules).sum::<u64>() as f64 / packets as f64
}

/// Little is under way when the last calls begin.
fn link_share(sim: &Sim, up: u32, until_ps: u64) -> f64 {
    let seconds = until_ps as f64 / 1e12;
    let share = |link: u32| {
        let rate = sim.config().topology.cables[link as usize / 2].rate;
        sim.links()[link as usize].bytes as f64 * 8.0 / (rate as f64 * seconds)
    };
    share(up).max(share(up ^ 1))
}
