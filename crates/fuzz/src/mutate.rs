//! A seeded maker of inputs: takes one of the corpus and changes it in a few places. It knows nothing of what
//! it changes; `cargo fuzz` looks at coverage, this one only repeats exactly.

/// Numbers at the edges of what a field holds.
const EDGES: [u8; 9] = [0x00, 0x01, 0x3f, 0x40, 0x7f, 0x80, 0xc0, 0xfe, 0xff];
/// No input grows beyond this.
const LONGEST: usize = 8192;

/// Makes inputs, the same ones from the same seed and corpus.
pub struct Mutator {
    rng: fastrand::Rng,
    corpus: Vec<Vec<u8>>,
}

impl Mutator {
    /// With a corpus that is not empty.
    pub fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Mutator {
        assert!(!corpus.is_empty(), "a corpus has at least one input");
        Mutator { rng: fastrand::Rng::with_seed(seed), corpus }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.corpus[self.rng.usize(..self.corpus.len())].clone();
        // Few changes mostly: what has many is refused at the first check.
        for _ in 0..1 + self.rng.u32(0..4) * self.rng.u32(0..2) {
            self.change(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let at = rng.usize(..input.len().max(1));
        match rng.u8(..9) {
            0 if !input.is_empty() => input[at] ^= 1 << rng.u8(..8),
            1 if !input.is_empty() => input[at] = rng.u8(..),
            2 if !input.is_empty() => input[at] = EDGES[rng.usize(..EDGES.len())],
            3 if !input.is_empty() => input[at] = input[at].wrapping_add(rng.u8(..3)).wrapping_sub(1),
            4 => {
                let more: Vec<u8> = (0..rng.usize(1..9)).map(|_| rng.u8(..)).collect();
                input.splice(at..at, more);
            }
            5 => drop(input.drain(at..input.len().min(at + rng.usize(1..9)))),
            6 => input.truncate(at),
            // A piece once more: a message repeated, as on a network.
            7 => {
                let piece = input[at..input.len().min(at + rng.usize(1..200))].to_vec();
                let to = rng.usize(..=input.len());
                input.splice(to..to, piece);
            }
            // One input's beginning, another one's end.
            _ => {
                let other = &self.corpus[rng.usize(..self.corpus.len())];
                let from = rng.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}
