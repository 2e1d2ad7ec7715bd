//! What congestion control makes of one bottleneck: its queue, how full its link is, and how evenly senders
//! share it; from samples of links (`sample` in the scenario), while all flows are under way.

use super::Metric;
use adverb_sim::Sim;
use adverb_sim::link::HOST;
use adverb_sim::series::LinkSample;

/// The share of the time with all flows under way that is left out at its beginning: they find their rates.
const SETTLING: f64 = 0.3;

/// A metric of this kind; not a number where nothing was sampled, or flows are never all under way.
pub fn value(sim: &Sim, metric: Metric) -> f64 {
    let Some(view) = View::of(sim) else { return f64::NAN };
    let of_link = || view.samples.iter().filter(|s| s.link == view.link);
    match metric {
        // Where nothing waits and nothing is sent there is no sample.
        Metric::QueueMean => of_link().map(|s| f64::from(s.queue)).sum::<f64>() / view.times / 1e3,
        Metric::QueueMax => of_link().map(|s| f64::from(s.queue)).fold(0.0, f64::max) / 1e3,
        Metric::Utilisation => {
            let rate = sim.links()[view.link as usize].rate() as f64;
            of_link().map(|s| s.bytes as f64).sum::<f64>() * 8e12 / rate / view.length
        }
        Metric::Fairness => jain(&view.sent_by_sources(sim)),
        _ => f64::NAN,
    }
}

/// The samples that count.
struct View<'a> {
    samples: &'a [LinkSample],
    /// Times at which they were taken, and how long that is, in ps.
    times: f64,
    length: f64,
    /// The link from a switch that carries the most.
    link: u32,
}

impl View<'_> {
    fn of(sim: &Sim) -> Option<View<'_>> {
        let every = sim.sampled_every();
        let (all, flows) = (&sim.series().links, sim.flows());
        let begun = flows.iter().map(|f| f.spec.start).max()?;
        let end = flows.iter().map(|f| f.received).min()?.min(sim.now().as_ps());
        if every == 0 || sim.series().missed > 0 || end <= begun {
            return None;
        }
        let from = begun + ((end - begun) as f64 * SETTLING) as u64;
        // Samples are at whole multiples; each is of the interval before it.
        let (first, last) = (from / every + 1, end / every);
        if last <= first {
            return None;
        }
        let index = |at: u64| all.partition_point(|s| s.at < at);
        let samples = &all[index((first + 1) * every)..index(last * every + 1)];
        let mut carried = vec![0u64; sim.links().len()];
        samples.iter().for_each(|s| carried[s.link as usize] += s.bytes);
        let of_switches = (0..carried.len()).filter(|l| sim.links()[*l].from & HOST == 0);
        let link = of_switches.max_by_key(|l| carried[*l])? as u32;
        let times = (last - first) as f64;
        Some(View { samples, times, length: times * every as f64, link })
    }

    /// Bytes that each host has sent from which a flow comes; a host with several counts once.
    fn sent_by_sources(&self, sim: &Sim) -> Vec<f64> {
        let mut sources: Vec<u32> = sim.flows().iter().map(|f| f.spec.src).collect();
        sources.sort_unstable();
        sources.dedup();
        let up = |host: u32| sim.hosts()[host as usize].up;
        let sent = |link: u32| self.samples.iter().filter(|s| s.link == link).map(|s| s.bytes).sum::<u64>();
        sources.into_iter().map(|host| sent(up(host)) as f64).collect()
    }
}

/// 1 is fair; one of many that has everything makes one over how many they are.
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_sim::Scenario;

    #[test]
    fn jain_s_index() {
        assert_eq!((jain(&[2.0, 2.0, 2.0]), jain(&[1.0, 0.0, 0.0, 0.0])), (1.0, 0.25));
    }

    /// Two senders at line rate without control: the link is full, shared, and its queue grows to the end.
    #[test]
    fn a_bottleneck_without_control_is_full_and_shared() {
        let text = "sample = \"5us\"\n\
                    [topology]\nkind = \"star\"\nhosts = 3\nrate = \"10G\"\ndelay = \"1us\"\n\
                    [workload]\nkind = \"incast\"\nsenders = 2\nvictim = 2\nbytes = \"4MB\"\n";
        let plan = Scenario::parse(text).unwrap().plan(&mut |_| unreachable!()).unwrap();
        let mut sim = plan.start().unwrap();
        plan.run(&mut sim, &mut |_| {});
        let of = |metric| value(&sim, metric);
        assert!((of(Metric::Utilisation) - 1.0).abs() < 0.01, "{}", of(Metric::Utilisation));
        assert!(of(Metric::Fairness) > 0.999);
        // Half of what is sent at once waits in the end.
        assert!((of(Metric::QueueMax) / 2170.0 - 1.0).abs() < 0.05, "{}", of(Metric::QueueMax));
        assert!(of(Metric::QueueMean) < of(Metric::QueueMax));
        let unsampled = Scenario::parse(&text.replace("sample = \"5us\"\n", "")).unwrap();
        let plan = unsampled.plan(&mut |_| unreachable!()).unwrap();
        let mut sim = plan.start().unwrap();
        plan.run(&mut sim, &mut |_| {});
        assert!(value(&sim, Metric::QueueMean).is_nan());
    }
}
