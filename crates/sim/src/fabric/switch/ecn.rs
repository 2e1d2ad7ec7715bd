//! Marking by queue length: RED on the instantaneous depth, as DCQCN's switches do (RFC 3168, RFC 2309).

use crate::fabric::packet::{FLAG_CE, FLAG_ECT};

/// No mark up to `kmin` bytes, every packet above `kmax`, between them a chance that grows to `pmax`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Red {
    /// Bytes.
    pub kmin: u32,
    /// Bytes.
    pub kmax: u32,
    /// Chance of a mark at `kmax`.
    pub pmax: f64,
}

impl Red {
    /// Chance of a mark at a depth.
    pub fn chance(&self, depth: u32) -> f64 {
        if depth <= self.kmin {
            0.0
        } else if depth >= self.kmax {
            1.0
        } else {
            self.pmax * f64::from(depth - self.kmin) / f64::from(self.kmax - self.kmin)
        }
    }

    /// Marks an ECN-capable packet or leaves it; true when it did.
    #[inline]
    pub fn mark(&self, rng: &mut fastrand::Rng, depth: u32, flags: &mut u8) -> bool {
        if depth <= self.kmin || *flags & FLAG_ECT == 0 {
            return false;
        }
        let marked = depth >= self.kmax || rng.f64() < self.chance(depth);
        if marked {
            *flags |= FLAG_CE;
        }
        marked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chance_is_a_ramp_and_others_are_left_alone() {
        let red = Red { kmin: 100, kmax: 300, pmax: 0.5 };
        assert_eq!([100, 200, 299, 300].map(|d| (red.chance(d) * 100.0) as u32), [0, 25, 49, 100]);
        let mut rng = fastrand::Rng::with_seed(1);
        let marked = (0..10_000).filter(|_| red.mark(&mut rng, 200, &mut FLAG_ECT.clone())).count();
        assert!((2300..2700).contains(&marked), "{marked}");
        assert!(!red.mark(&mut rng, 1000, &mut 0), "not ECN-capable");
    }
}
