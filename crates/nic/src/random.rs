//! What a NIC draws at random: keys and queue pair numbers that nobody can foretell from those that he has
//! seen.
//!
//! AES-128 in counter mode under a secret seed (NIST SP 800-90A 10.2 draws so between two seeds). Randomness
//! is passed in: the same seed draws the same again.

use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};

/// What a NIC's draws are made of: 16 bytes of the system's generator, or a number, for runs that are to be
/// repeated.
#[derive(Clone, Copy)]
pub struct Seed([u8; 16]);

impl From<[u8; 16]> for Seed {
    fn from(bytes: [u8; 16]) -> Seed {
        Seed(bytes)
    }
}

impl From<u64> for Seed {
    fn from(number: u64) -> Seed {
        Seed(u128::from(number).to_le_bytes())
    }
}

/// What is drawn: each has a stream of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Keys,
    Numbers,
    /// The key that seals StaR's tickets.
    Tickets,
    /// Where StaR's stateless half remembers a packet.
    History,
    /// Where a connection manager's ids and transactions begin.
    Connections,
}

/// An endless stream of words.
pub(crate) struct Generator {
    cipher: Aes128,
    /// Encrypted for the next block: the purpose above, a count below.
    counter: u128,
    block: [u8; 16],
    /// Bytes of the block that were drawn.
    drawn: usize,
}

impl Generator {
    pub fn new(seed: Seed, purpose: Purpose) -> Generator {
        let cipher = Aes128::new(&seed.0.into());
        Generator { cipher, counter: (purpose as u128) << 64, block: [0; 16], drawn: 16 }
    }

    /// Four bytes.
    pub fn word(&mut self) -> u32 {
        if self.drawn == self.block.len() {
            self.block = self.counter.to_le_bytes();
            self.cipher.encrypt_block((&mut self.block).into());
            (self.counter, self.drawn) = (self.counter + 1, 0);
        }
        let at = self.drawn;
        self.drawn += 4;
        u32::from_le_bytes([self.block[at], self.block[at + 1], self.block[at + 2], self.block[at + 3]])
    }
}

impl core::fmt::Debug for Generator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The rest is secret.
        f.debug_struct("Generator").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aes_in_counter_mode() {
        // The key of FIPS 197, appendix B, and what OpenSSL makes of the zero block with it.
        let key = 0x3c4f_cf09_8815_f7ab_a6d2_ae28_1615_7e2b_u128.to_le_bytes();
        let mut drawn = Generator::new(key.into(), Purpose::Keys);
        let first = [drawn.word(), drawn.word(), drawn.word(), drawn.word()].map(u32::swap_bytes);
        assert_eq!(first, [0x7df7_6b0c, 0x1ab8_99b3, 0x3e42_f047, 0xb91b_546f]);
    }

    #[test]
    fn streams_differ_and_repeat_under_their_seed() {
        let stream = |seed: u64, purpose| {
            let mut drawn = Generator::new(seed.into(), purpose);
            (0..1000).map(|_| drawn.word()).collect::<Vec<_>>()
        };
        assert_eq!(stream(1, Purpose::Keys), stream(1, Purpose::Keys));
        assert_ne!(stream(1, Purpose::Keys), stream(2, Purpose::Keys));
        let (keys, numbers) = (stream(1, Purpose::Keys), stream(1, Purpose::Numbers));
        assert!(!keys.iter().any(|word| numbers.contains(word)), "no word in common, but by chance");
    }
}
