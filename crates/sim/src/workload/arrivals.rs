//! Poisson arrivals at a load, between random hosts.

use super::sizes::Sizes;
use crate::flows::{FlowSpec, Op};

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
            FlowSpec { start: at as u64, src, dst, bytes: sizes.draw(rng), tag: 0, op: Op::Write }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
