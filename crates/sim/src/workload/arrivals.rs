//! Poisson arrivals at a load, between random hosts.

use super::sizes::Sizes;
use crate::workload::flows::{FlowSpec, Verb, Via};

/// Flows that arrive at random: exponential gaps, random pairs of different hosts. The rate is such
/// that each host sends `load` times `rate` (bits per second) on average, headers not counted.
pub fn poisson(
    hosts: u32,
    sizes: &Sizes,
    load: f64,
    rate: u64,
    flows: u32,
    rng: &mut fastrand::Rng,
) -> Vec<FlowSpec> {
    let per_second = load * rate as f64 * f64::from(hosts) / (sizes.mean() * 8.0);
    let gap_ps = 1e12 / per_second;
    let mut at = 0.0;
    (0..flows)
        .map(|_| {
            at += -crate::portable::ln(1.0 - rng.f64()) * gap_ps;
            let src = rng.u32(0..hosts);
            let dst = (src + rng.u32(1..hosts)) % hosts;
            FlowSpec {
                start: at as u64,
                src,
                dst,
                bytes: sizes.draw(rng),
                tag: 0,
                op: Verb::Write,
                via: Via::Any,
            }
        })
        .collect()
}

/// Flows of one size between pairs of source and destination until `until` ps: each pair sends `load` times
/// `rate`, at random times or, where `even`, evenly spaced. In the order of their starts.
pub fn between(
    pairs: &[(u32, u32)],
    sizes: &Sizes,
    (load, rate): (f64, u64),
    until: u64,
    even: bool,
    rng: &mut fastrand::Rng,
) -> Vec<FlowSpec> {
    let gap_ps = sizes.mean() * 8.0 * 1e12 / (load * rate as f64);
    let mut flows = Vec::new();
    for &(src, dst) in pairs {
        let mut at = 0.0;
        loop {
            at += if even { gap_ps } else { -crate::portable::ln(1.0 - rng.f64()) * gap_ps };
            if at >= until as f64 {
                break;
            }
            flows.push(FlowSpec {
                start: at as u64,
                src,
                dst,
                bytes: sizes.draw(rng),
                tag: 0,
                op: Verb::Write,
                via: Via::Any,
            });
        }
    }
    flows.sort_by_key(|flow: &FlowSpec| flow.start);
    flows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_flows_are_spaced_by_their_time_at_the_load() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sizes = Sizes::Fixed(12_500);
        let flows = between(&[(0, 1), (2, 1)], &sizes, (0.5, 100_000_000_000), 10_000_000, true, &mut rng);
        let starts: Vec<u64> = flows.iter().filter(|f| f.src == 2).map(|f| f.start).collect();
        assert_eq!((starts, flows.len()), (vec![2_000_000, 4_000_000, 6_000_000, 8_000_000], 8));
    }

    #[test]
    fn the_load_is_what_was_asked_for() {
        let mut rng = fastrand::Rng::with_seed(9);
        let sizes = Sizes::heavy_tailed();
        let flows = poisson(54, &sizes, 0.7, 40_000_000_000, 100_000, &mut rng);
        let bits = flows.iter().map(|f| f64::from(f.bytes) * 8.0).sum::<f64>();
        let seconds = flows.last().unwrap().start as f64 / 1e12;
        let load = bits / seconds / (54.0 * 40e9);
        assert!((load - 0.7).abs() < 0.02, "{load}");
        assert!(flows.iter().all(|f| f.src != f.dst));
    }
}
