//! Tickets: what the stateless side gives its peer, and takes for the truth when it comes back with the right
//! seal. One key for all of them, so that the cost of a check does not depend on how many there are.

use crate::random::{Generator, Purpose, Seed};
use adverb_wire::star::{Grant, Ticket};
use adverb_wire::{Gid, QpNumber};
use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};

const BLOCK: usize = 16;

/// The stateless side's secret: AES-CMAC (NIST SP 800-38B) under one key. Nobody outside has it, so a seal
/// that is right is this NIC's own.
pub(crate) struct Sealer {
    cipher: Aes128,
    /// Subkeys of a message's last block: when it is whole, and when it is not.
    subkeys: [u128; 2],
    epoch: u8,
}

/// The next subkey: a doubling in the field of 2^128 elements.
fn doubled(value: u128) -> u128 {
    value << 1 ^ if value >> 127 == 1 { 0x87 } else { 0 }
}

impl Sealer {
    /// With a key that is drawn from the NIC's seed.
    pub fn new(seed: Seed) -> Sealer {
        let mut drawn = Generator::new(seed, Purpose::Tickets);
        let sealer = Sealer::drawn(&mut drawn);
        Sealer { epoch: drawn.word() as u8, ..sealer }
    }

    fn drawn(drawn: &mut Generator) -> Sealer {
        let mut key = [0; BLOCK];
        key.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&drawn.word().to_le_bytes()));
        Sealer::of_key(&key)
    }

    /// With the next key of a generator, in the epoch after this one's.
    pub fn next(&self, drawn: &mut Generator) -> Sealer {
        Sealer { epoch: self.epoch.wrapping_add(1), ..Sealer::drawn(drawn) }
    }

    /// Whether a ticket says that it was sealed with this key.
    pub fn is_epoch_of(&self, ticket: Ticket) -> bool {
        Grant::of_word(ticket.word).epoch == self.epoch
    }

    fn of_key(key: &[u8; BLOCK]) -> Sealer {
        let mut sealer = Sealer { cipher: Aes128::new(key.into()), subkeys: [0; 2], epoch: 0 };
        let whole = doubled(sealer.encrypt(0));
        sealer.subkeys = [whole, doubled(whole)];
        sealer
    }

    fn encrypt(&self, block: u128) -> u128 {
        let mut bytes = block.to_be_bytes();
        self.cipher.encrypt_block((&mut bytes).into());
        u128::from_be_bytes(bytes)
    }

    fn mac(&self, message: &[u8]) -> u128 {
        let whole = message.len().is_multiple_of(BLOCK) && !message.is_empty();
        let last = message.len().div_ceil(BLOCK).max(1) - 1;
        let mut sum = 0;
        for at in 0..=last {
            let part = &message[at * BLOCK..message.len().min((at + 1) * BLOCK)];
            let mut block = [0; BLOCK];
            block[..part.len()].copy_from_slice(part);
            if let Some(end) = block.get_mut(part.len()) {
                *end = 0x80;
            }
            sum ^= u128::from_be_bytes(block);
            sum = self.encrypt(if at == last { sum ^ self.subkeys[usize::from(!whole)] } else { sum });
        }
        sum
    }

    fn seal_of(&self, word: u64, number: QpNumber, era: u32, peer: Gid) -> u64 {
        let mut message = [0; 2 * BLOCK];
        message[..8].copy_from_slice(&word.to_be_bytes());
        message[8..12].copy_from_slice(&number.get().to_be_bytes());
        message[12..28].copy_from_slice(&peer.0);
        message[28..].copy_from_slice(&era.to_be_bytes());
        (self.mac(&message) >> 64) as u64
    }

    /// A ticket to this NIC's queue pair of that number, for a peer at that address. The era is what the
    /// ticket does not show: how often the incarnation has come round.
    pub fn seal(&self, grant: Grant, number: QpNumber, era: u32, peer: Gid) -> Ticket {
        let word = Grant { epoch: self.epoch, ..grant }.word();
        Ticket { word, seal: self.seal_of(word, number, era, peer) }
    }

    /// What a ticket says, if it is this NIC's, for that queue pair in that era, and shown by whom it was
    /// given to.
    pub fn open(&self, ticket: Ticket, number: QpNumber, era: u32, peer: Gid) -> Option<Grant> {
        let grant = Grant::of_word(ticket.word);
        let right = grant.epoch == self.epoch && self.seal_of(ticket.word, number, era, peer) == ticket.seal;
        right.then_some(grant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn it_is_aes_cmac() {
        // The examples of RFC 4493, section 4.
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let message: Vec<u8> = [
            0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128,
            0xae2d_8a57_1e03_ac9c_9eb7_6fac_45af_8e51,
            0x30c8_1c46_a35c_e411_e5fb_c119_1a0a_52ef,
            0xf69f_2445_df4f_9b17_ad2b_417b_e66c_3710,
        ]
        .into_iter()
        .flat_map(u128::to_be_bytes)
        .collect();
        let sealer = Sealer::of_key(&key);
        let macs = [
            (0, 0xbb1d_6929_e959_3728_7fa3_7d12_9b75_6746_u128),
            (16, 0x070a_16b4_6b4d_4144_f79b_dd9d_d04a_287c),
            (40, 0xdfa6_6747_de9a_e630_30ca_3261_1497_c827),
            (64, 0x51f0_bebf_7e3b_9d92_fc49_7417_7936_3cfe),
        ];
        for (len, mac) in macs {
            assert_eq!(sealer.mac(&message[..len]), mac, "of {len} bytes");
        }
    }

    #[test]
    fn a_ticket_is_good_for_its_queue_pair_its_peer_and_its_maker_only() {
        let sealer = Sealer::new(Seed::from(1));
        let gid = |last| Gid::from(Ipv4Addr::new(10, 0, 0, last));
        let (number, peer) = (QpNumber::new(0x11), QpNumber::new(0x22));
        let grant = Grant { incarnation: 3, pd: 4, rights: Grant::WRITE, mtu: 5, peer, ..Grant::default() };
        let ticket = sealer.seal(grant, number, 6, gid(1));
        let opened = sealer.open(ticket, number, 6, gid(1)).unwrap();
        assert_eq!(Grant { epoch: 0, ..opened }, grant);
        assert_eq!(sealer.open(ticket, QpNumber::new(0x12), 6, gid(1)), None);
        assert_eq!(sealer.open(ticket, number, 6, gid(2)), None);
        assert_eq!(sealer.open(ticket, number, 7, gid(1)), None);
        assert_eq!(Sealer::new(Seed::from(2)).open(ticket, number, 6, gid(1)), None);
        for bit in 0..64 {
            let word = Ticket { word: ticket.word ^ 1 << bit, ..ticket };
            let seal = Ticket { seal: ticket.seal ^ 1 << bit, ..ticket };
            assert_eq!(sealer.open(word, number, 6, gid(1)), None, "bit {bit}");
            assert_eq!(sealer.open(seal, number, 6, gid(1)), None, "bit {bit}");
        }
    }
}
