//! What happened, as one number: every arrival of a packet at a link's end goes into a hash of
//! 64 bits. Two runs with equal hashes moved the same packets at the same times.

/// Running hash over (time, link, packet, PSN and opcode).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trace {
    state: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { state: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl Trace {
    /// Takes an arrival in. One wide multiplication folds 128 bits in, as wyhash does.
    #[inline]
    pub fn add(&mut self, at: u64, link: u32, packet: u64) {
        let a = self.state ^ at;
        let b = packet ^ (u64::from(link) << 40 | 0x78bd_642f);
        let wide = u128::from(a) * u128::from(b | 1);
        self.state = (wide as u64) ^ (wide >> 64) as u64 ^ b.rotate_left(29);
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.state
    }
}

/// A deterministic mix of 64 bits (the finalizer of SplitMix64): seeds of components, flow hashes.
#[inline]
pub fn mix(value: u64) -> u64 {
    let mut v = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    v = (v ^ v >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    v = (v ^ v >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ v >> 31
}

/// Seed of a component: the run's seed, what it is, and which one.
pub fn seed_of(seed: u64, kind: &str, index: u64) -> u64 {
    let name =
        kind.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    mix(mix(seed ^ name) ^ index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_counts() {
        let hash = |at, link, packet| {
            let mut t = Trace::default();
            t.add(1, 1, 1);
            t.add(at, link, packet);
            t.hash()
        };
        let base = hash(5, 6, 7);
        for other in [hash(4, 6, 7), hash(5, 7, 7), hash(5, 6, 6), hash(5, 6, 7 | 1 << 40)] {
            assert_ne!(base, other);
        }
        assert_ne!(seed_of(1, "link", 0), seed_of(1, "host", 0));
        assert_ne!(seed_of(1, "link", 0), seed_of(1, "link", 1));
    }
}
