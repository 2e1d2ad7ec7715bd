//! Streams of operations as the Yahoo! Cloud Serving Benchmark has them (Cooper et al., SoCC 2010): workloads
//! A to D and one that only writes, over keys of Zipf's distribution, from a seed. The same seed gives the
//! same stream on every machine: all arithmetic is [`portable`](adverb_rdma::portable).
//!
//! ```text
//! A  half gets, half updates       C  gets                     write-only  updates
//! B  95% gets, 5% updates          D  95% gets of what was inserted last, 5% inserts
//! ```
//! Ranks are drawn by an exact table of cumulated chances, not by YCSB's approximation, which exists for
//! exponents below 1 only. Which key has which rank is a fixed order that scatters neighbours. *Drift* moves
//! it: after so many operations of a stream the ranks move on by so many keys, and others are hot.

use adverb_rdma::portable::pow;
use std::rc::Rc;

/// Keys at most: each takes eight bytes of a table.
pub const KEYS_MAX: u64 = 1 << 20;
/// The largest exponent.
pub const EXPONENT_MAX: f64 = 1.5;
/// Neighbours in rank are so many keys apart, if that has no divisor in common with their number.
const STRIDE: u64 = 0x9e37_79b1;

/// A workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Half gets, half updates.
    A,
    /// 95% gets, 5% updates.
    B,
    /// Gets.
    C,
    /// 95% gets, most of keys that were inserted last, and 5% inserts.
    D,
    /// Updates.
    WriteOnly,
}

impl Workload {
    /// All, with their names.
    pub const ALL: [(Workload, &'static str); 5] = [
        (Workload::A, "a"),
        (Workload::B, "b"),
        (Workload::C, "c"),
        (Workload::D, "d"),
        (Workload::WriteOnly, "write-only"),
    ];

    /// The workload with a name.
    pub fn by_name(name: &str) -> Option<Workload> {
        Workload::ALL.into_iter().find(|(_, known)| *known == name).map(|(workload, _)| workload)
    }

    /// Of a hundred operations, those that read.
    fn reads(self) -> u64 {
        match self {
            Workload::A => 50,
            Workload::B | Workload::D => 95,
            Workload::C => 100,
            Workload::WriteOnly => 0,
        }
    }
}

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// The value of a key.
    Get(u64),
    /// Another value for a key that is there.
    Update(u64),
    /// A key that was not there.
    Insert(u64),
}

/// Why there is no such stream.
#[derive(Clone, PartialEq, Debug)]
pub enum Wrong {
    /// Not from 1 to [`KEYS_MAX`].
    Keys(u64),
    /// Not from 0 to [`EXPONENT_MAX`].
    Exponent(f64),
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wrong::Keys(keys) => write!(f, "{keys} keys; give 1 to {KEYS_MAX}"),
            Wrong::Exponent(exponent) => write!(f, "an exponent of {exponent}; give 0 to {EXPONENT_MAX}"),
        }
    }
}

impl std::error::Error for Wrong {}

/// Ranks from 0 on by Zipf's distribution: rank r has the chance 1 / (r + 1)^s, divided by the sum of all.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// By rank: the chance of it or a lower one, of 2^64; the last one is not asked.
    below: Rc<[u64]>,
}

impl Zipf {
    /// Of so many ranks, with an exponent; 0 gives all the same chance.
    pub fn new(ranks: u64, exponent: f64) -> Result<Zipf, Wrong> {
        if !(1..=KEYS_MAX).contains(&ranks) {
            return Err(Wrong::Keys(ranks));
        }
        if !(0.0..=EXPONENT_MAX).contains(&exponent) {
            return Err(Wrong::Exponent(exponent));
        }
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=ranks)
            .map(|place| {
                sum += pow(place as f64, -exponent);
                sum
            })
            .collect();
        // 2^64, whose product with a part of 1 fits but for the last.
        let whole = 18_446_744_073_709_551_616.0;
        Ok(Zipf { below: sums.iter().map(|part| (part / sum * whole) as u64).collect() })
    }

    /// How many there are.
    pub fn ranks(&self) -> u64 {
        self.below.len() as u64
    }

    /// A rank by a random number.
    pub fn rank(&self, dice: u64) -> u64 {
        let last = self.below.len() - 1;
        self.below[..last].partition_point(|below| *below <= dice) as u64
    }
}

/// Which keys are hot when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drift {
    /// After so many operations of a stream.
    pub every: u64,
    /// Ranks move on by so many keys.
    pub by: u64,
}

/// What streams of several clients have in common.
#[derive(Clone, Debug)]
pub struct Streams {
    /// The workload.
    pub workload: Workload,
    /// Ranks of the keys that are there from the beginning, 0 up to their number.
    pub zipf: Zipf,
    /// Clients, each with a stream; they insert different keys.
    pub clients: u64,
    /// Whether, and how, the hot set moves.
    pub drift: Option<Drift>,
    /// Of all of it.
    pub seed: u64,
}

/// A client's operations.
#[derive(Clone, Debug)]
pub struct Stream {
    of: Streams,
    client: u64,
    rng: fastrand::Rng,
    done: u64,
    inserted: u64,
    stride: u64,
}

impl Stream {
    /// The stream of the client with a number.
    pub fn new(of: &Streams, client: u64) -> Stream {
        let rng = fastrand::Rng::with_seed(of.seed ^ (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let stride = stride(of.zipf.ranks());
        Stream { of: of.clone(), client, rng, done: 0, inserted: 0, stride }
    }

    /// The next operation.
    pub fn next_op(&mut self) -> Op {
        let reads = self.rng.u64(0..100) < self.of.workload.reads();
        let dice = self.rng.u64(..);
        let op = match self.of.workload {
            Workload::D if reads => Op::Get(self.latest(self.of.zipf.rank(dice))),
            Workload::D => {
                self.inserted += 1;
                Op::Insert(self.own(self.inserted - 1))
            }
            _ if reads => Op::Get(self.key(self.of.zipf.rank(dice))),
            _ => Op::Update(self.key(self.of.zipf.rank(dice))),
        };
        self.done += 1;
        op
    }

    /// The key that has a rank now.
    fn key(&self, rank: u64) -> u64 {
        let keys = self.of.zipf.ranks();
        let moved = self.of.drift.map_or(0, |drift| {
            let times = self.done / drift.every.max(1);
            ((u128::from(times) * u128::from(drift.by)) % u128::from(keys)) as u64
        });
        (u128::from(rank + moved) * u128::from(self.stride) % u128::from(keys)) as u64
    }

    /// The n-th key that this client inserts, from 0.
    fn own(&self, n: u64) -> u64 {
        self.of.zipf.ranks() + n * self.of.clients.max(1) + self.client
    }

    /// The key with a rank among those that this client knows, the latest first.
    fn latest(&self, rank: u64) -> u64 {
        match self.inserted.checked_sub(rank + 1) {
            Some(n) => self.own(n),
            None => self.of.zipf.ranks() - 1 - (rank - self.inserted),
        }
    }
}

/// A step through so many keys that comes by each of them once.
fn stride(keys: u64) -> u64 {
    let divisor = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = (STRIDE % keys).max(1);
    (first..).find(|step| divisor(*step, keys) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn streams(workload: Workload, keys: u64, exponent: f64) -> Streams {
        let zipf = Zipf::new(keys, exponent).unwrap();
        Streams { workload, zipf, clients: 2, drift: None, seed: 7 }
    }

    /// The chance of each rank by its table, against the closed form by the platform's power.
    #[test]
    fn chances_are_those_of_the_closed_form() {
        for exponent in [0.0, 0.5, 0.9, 0.99, 1.0, 1.2, 1.5] {
            for ranks in [1, 2, 10, 1000, 100_000] {
                let zipf = Zipf::new(ranks, exponent).unwrap();
                let sum: f64 = (1..=ranks).map(|place| (place as f64).powf(-exponent)).sum();
                let mut before = 0.0;
                for rank in [0, 1, 2, 9, 99, 999, ranks - 1].into_iter().filter(|rank| *rank < ranks) {
                    let chance = (rank as f64 + 1.0).powf(-exponent) / sum;
                    before =
                        if rank == 0 { 0.0 } else { zipf.below[rank as usize - 1] as f64 / 2f64.powi(64) };
                    let upto = if rank + 1 == ranks {
                        1.0
                    } else {
                        zipf.below[rank as usize] as f64 / 2f64.powi(64)
                    };
                    assert!((upto - before - chance).abs() < 1e-12, "{exponent} {ranks} {rank}");
                }
                assert!(before < 1.0);
            }
        }
    }

    /// What is drawn, against the same: within five standard deviations.
    #[test]
    fn frequencies_are_those_of_the_closed_form() {
        const DRAWS: u64 = 200_000;
        for exponent in [0.0, 0.7, 0.99, 1.0, 1.5] {
            let zipf = Zipf::new(50, exponent).unwrap();
            let mut rng = fastrand::Rng::with_seed(11);
            let mut counts = [0u64; 50];
            (0..DRAWS).for_each(|_| counts[zipf.rank(rng.u64(..)) as usize] += 1);
            let sum: f64 = (1..=50).map(|place| f64::from(place).powf(-exponent)).sum();
            for (rank, count) in counts.into_iter().enumerate() {
                let chance = (rank as f64 + 1.0).powf(-exponent) / sum;
                let (mean, most) = (DRAWS as f64 * chance, 5.0 * (DRAWS as f64 * chance).sqrt());
                assert!((count as f64 - mean).abs() < most, "{exponent}: rank {rank} {count}, not {mean}");
            }
        }
        let all = Zipf::new(50, 1.5).unwrap();
        assert_eq!((all.rank(0), all.rank(u64::MAX)), (0, 49));
    }

    #[test]
    fn workloads_have_their_shares() {
        for (workload, name) in Workload::ALL {
            assert_eq!(Workload::by_name(name), Some(workload));
            let mut stream = Stream::new(&streams(workload, 1000, 0.99), 1);
            let (mut gets, mut updates, mut inserted) = (0, 0, BTreeSet::new());
            for _ in 0..10_000 {
                match stream.next_op() {
                    Op::Get(key) => {
                        assert!(key < 1000 || inserted.contains(&key), "{name}: {key} is not there");
                        gets += 1;
                    }
                    Op::Update(key) => {
                        assert!(key < 1000);
                        updates += 1;
                    }
                    Op::Insert(key) => {
                        assert!(key >= 1000 && key % 2 == 1 && inserted.insert(key), "{name}: {key}");
                    }
                }
            }
            let reads = workload.reads() * 100;
            assert!(gets >= reads.saturating_sub(250) && gets <= reads + 250, "{name}: {gets} gets");
            assert_eq!(updates + gets + inserted.len() as u64, 10_000);
            assert_eq!(inserted.is_empty(), workload != Workload::D);
        }
        assert_eq!(Workload::by_name("e"), None);
    }

    #[test]
    fn a_seed_gives_one_stream_and_clients_have_others() {
        let of = streams(Workload::A, 100, 0.9);
        let take = |client| {
            let mut stream = Stream::new(&of, client);
            (0..100).map(|_| stream.next_op()).collect::<Vec<Op>>()
        };
        assert_eq!(take(0), take(0));
        assert_ne!(take(0), take(1));
        // These must be the same everywhere.
        assert_eq!(take(0)[..3], [Op::Get(0), Op::Get(44), Op::Get(42)]);
    }

    /// The hottest key is another one after each step of the drift, and comes again when it has gone round.
    #[test]
    fn the_hot_set_drifts() {
        let of = Streams { drift: Some(Drift { every: 10_000, by: 3 }), ..streams(Workload::C, 9, 1.5) };
        let mut stream = Stream::new(&of, 0);
        let mut hottest = || {
            let mut counts = [0; 9];
            for _ in 0..10_000 {
                let Op::Get(key) = stream.next_op() else { panic!("only gets") };
                counts[key as usize] += 1;
            }
            (0..9).max_by_key(|key| counts[*key]).unwrap()
        };
        let hot: Vec<usize> = (0..4).map(|_| hottest()).collect();
        assert_eq!(hot[0], hot[3]);
        assert!(hot[0] != hot[1] && hot[1] != hot[2] && hot[0] != hot[2], "{hot:?}");
    }

    #[test]
    fn every_key_has_a_rank_and_what_is_too_much_is_refused() {
        for keys in [1, 2, 3, 64, 97, 1000, 4096] {
            let stream = Stream::new(&streams(Workload::C, keys, 0.0), 0);
            let all: BTreeSet<u64> = (0..keys).map(|rank| stream.key(rank)).collect();
            assert_eq!(all.len() as u64, keys);
        }
        assert_eq!(Zipf::new(0, 1.0).err(), Some(Wrong::Keys(0)));
        assert_eq!(Zipf::new(KEYS_MAX + 1, 1.0).err(), Some(Wrong::Keys(KEYS_MAX + 1)));
        for wrong in [-0.1, 1.51] {
            assert_eq!(Zipf::new(9, wrong).err(), Some(Wrong::Exponent(wrong)));
        }
        assert!(Zipf::new(9, f64::NAN).is_err());
    }
}
