//! Who sends to whom, all at once: permutation, incast, all-to-all.

use crate::workload::flows::{FlowSpec, Verb, Via};

/// A random permutation without fixed points: every host sends one flow and receives one.
pub fn permutation(hosts: u32, bytes: u32, start: u64, rng: &mut fastrand::Rng) -> Vec<FlowSpec> {
    let mut to: Vec<u32> = (0..hosts).collect();
    // Sattolo's shuffle: one cycle through all, so nobody sends to itself.
    for i in (1..to.len()).rev() {
        to.swap(i, rng.usize(0..i));
    }
    (0..hosts)
        .map(|src| FlowSpec {
            start,
            src,
            dst: to[src as usize],
            bytes,
            tag: 0,
            op: Verb::Write,
            via: Via::Any,
        })
        .collect()
}

/// `senders` random hosts send to one, a random one if no victim is given; `bytes` in all, striped evenly.
pub fn incast(
    hosts: u32,
    (senders, victim): (u32, Option<u32>),
    bytes: u64,
    start: u64,
    rng: &mut fastrand::Rng,
) -> Vec<FlowSpec> {
    let dst = victim.unwrap_or_else(|| rng.u32(0..hosts));
    let mut others: Vec<u32> = (0..hosts).filter(|h| *h != dst).collect();
    rng.shuffle(&mut others);
    others.truncate(senders as usize);
    let each = (bytes / u64::from(senders.max(1))).clamp(1, 1 << 30) as u32;
    others
        .into_iter()
        .map(|src| FlowSpec { start, src, dst, bytes: each, tag: 0, op: Verb::Write, via: Via::Any })
        .collect()
}

/// Every host sends to every other.
pub fn all_to_all(hosts: u32, bytes: u32, start: u64) -> Vec<FlowSpec> {
    let pairs = (1..hosts).flat_map(|step| (0..hosts).map(move |src| (src, (src + step) % hosts)));
    pairs
        .map(|(src, dst)| FlowSpec { start, src, dst, bytes, tag: 0, op: Verb::Write, via: Via::Any })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_sends_and_receives_once() {
        let mut rng = fastrand::Rng::with_seed(1);
        for hosts in [2, 3, 54, 128] {
            let flows = permutation(hosts, 1, 0, &mut rng);
            let mut to: Vec<u32> = flows.iter().map(|f| f.dst).collect();
            to.sort_unstable();
            assert_eq!(to, (0..hosts).collect::<Vec<_>>());
            assert!(flows.iter().all(|f| f.src != f.dst));
        }
        let flows = incast(54, (10, None), 150_000_000, 5, &mut rng);
        assert_eq!(flows.len(), 10);
        assert!(flows.iter().all(|f| f.bytes == 15_000_000 && f.dst == flows[0].dst && f.src != f.dst));
        let flows = incast(54, (53, Some(7)), 53, 5, &mut rng);
        assert!(flows.len() == 53 && flows.iter().all(|f| f.dst == 7 && f.src != 7));
        assert_eq!(all_to_all(4, 1, 0).len(), 12);
    }
}
