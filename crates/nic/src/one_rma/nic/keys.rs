//! Keys, and the messages sealed and opened with them.
//!
//! A region's key K_r is spread out once, when the region is registered. For each request the NIC derives K_d
//! from it (section 4.2):
//!
//! ```text
//! x0  = AES(K_r, target's address)                       kept with the region
//! x1  = AES(K_r, x0 xor initiator's address)
//! K_d = AES(K_r, x1 xor (PID, operation, RegionId))
//! ```
//!
//! The paper's one block (initiator's address, PID, operation) has no room for an IPv6 address beside the
//! PID; three blocks chained this way are CBC-MAC of a message of fixed length, a pseudorandom function. The
//! target's address is in it because an application may give several replicas the same K_r: each key then has
//! exactly one NIC on each side, and a nonce made of that NIC's counter and the message's kind never comes
//! twice under one key. That is what the sender's address in appendix A's IV is for.

use adverb_wire::Gid;
use adverb_wire::one_rma::{Header, KEY_LEN, MAX_HEADER_LEN, NONCE_LEN, Op, TAG_LEN};
use aes::Aes128;
use aes::cipher::{BlockEncrypt, KeyInit};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::constant_time;
use core::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Whether messages are encrypted and authenticated. False only in builds with the feature
/// `benchmark-only-cleartext`, whose NICs nobody else can talk to; whatever serves others refuses to start
/// then.
pub const ENCRYPTED: bool = !cfg!(feature = "benchmark-only-cleartext");

macro_rules! secret {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name([u8; KEY_LEN]);

        impl $name {
            /// From its bytes, which the caller should erase.
            pub const fn new(bytes: [u8; KEY_LEN]) -> Self {
                $name(bytes)
            }

            /// Its bytes, to be handed to who may have them.
            pub const fn expose(&self) -> &[u8; KEY_LEN] {
                &self.0
            }

            /// Compares in constant time.
            pub fn equals(&self, other: &Self) -> bool {
                constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
            }
        }

        impl Zeroize for $name {
            fn zeroize(&mut self) {
                self.0.zeroize();
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                self.zeroize();
            }
        }

        impl ZeroizeOnDrop for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(hidden)"))
            }
        }
    };
}

secret! {
    /// K_r: the key of a region, from which the keys of all its users are derived.
    RegionKey
}

secret! {
    /// K_d: the key of one process on one initiator for one kind of operation on one region.
    DerivedKey
}

/// A region's key, spread out for deriving.
#[derive(Clone)]
pub(super) struct Deriver {
    /// Erases itself.
    cipher: Aes128,
    /// x0 above.
    start: [u8; KEY_LEN],
}

impl Deriver {
    pub fn new(key: &RegionKey, target: Gid) -> Deriver {
        let cipher = Aes128::new(key.expose().into());
        let mut block = target.0.into();
        cipher.encrypt_block(&mut block);
        Deriver { cipher, start: block.into() }
    }

    /// K_d.
    pub fn derive(&self, initiator: Gid, pid: u32, op: Op, region: u32) -> DerivedKey {
        let mut block = self.start;
        xor(&mut block, &initiator.0);
        self.cipher.encrypt_block((&mut block).into());
        let mut last = [0; KEY_LEN];
        last[..4].copy_from_slice(&pid.to_be_bytes());
        last[4] = op as u8;
        last[8..12].copy_from_slice(&region.to_be_bytes());
        xor(&mut block, &last);
        self.cipher.encrypt_block((&mut block).into());
        let key = DerivedKey(block);
        block.zeroize();
        key
    }
}

impl Drop for Deriver {
    fn drop(&mut self) {
        self.start.zeroize();
    }
}

fn xor(block: &mut [u8; KEY_LEN], other: &[u8; KEY_LEN]) {
    block.iter_mut().zip(other).for_each(|(a, b)| *a ^= b);
}

/// K_d of a region with key `key` at `target`: what the owner's software hands to a client, and what the
/// target's NIC derives again for each request.
pub fn derive(key: &RegionKey, target: Gid, region: u32, initiator: Gid, pid: u32, op: Op) -> DerivedKey {
    Deriver::new(key, target).derive(initiator, pid, op, region)
}

/// AES-128-GCM with one key. The library keeps the schedule in memory that it erases when it frees it.
pub(super) struct MessageKey {
    /// `None` exactly in cleartext builds, where setting up a key would count as work too.
    cipher: Option<LessSafeKey>,
}

impl MessageKey {
    pub fn new(key: &[u8; KEY_LEN]) -> MessageKey {
        if !ENCRYPTED {
            return MessageKey { cipher: None };
        }
        let Ok(key) = UnboundKey::new(&AES_128_GCM, key) else {
            unreachable!("the key has AES-128's length");
        };
        MessageKey { cipher: Some(LessSafeKey::new(key)) }
    }

    /// Writes the header, encrypts the payload that lies behind it, and appends the tag. `message` is as long
    /// as the header says.
    pub fn seal(&self, header: &Header, previous: &Iv, message: &mut [u8]) {
        let mut aad = [0; AAD_LEN];
        let header_len = header.emit(&mut aad);
        let (head, rest) = message.split_at_mut(header_len);
        head.copy_from_slice(&aad[..header_len]);
        let (payload, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let Some(cipher) = &self.cipher else {
            return tag.fill(0);
        };
        let nonce = Nonce::assume_unique_for_key(header.nonce());
        let aad = additional(&mut aad, header_len, previous);
        // Only a message of 64 GB could fail.
        let sealed = cipher.seal_in_place_separate_tag(nonce, Aad::from(aad), payload);
        match sealed {
            Ok(made) => tag.copy_from_slice(made.as_ref()),
            Err(_) => unreachable!("a payload of at most 4096 bytes"),
        }
    }

    /// Verifies a message and decrypts its payload in place. When it is false, nothing in the message means
    /// anything.
    pub fn open(&self, header: &Header, previous: &Iv, message: &mut [u8]) -> bool {
        let Some(cipher) = &self.cipher else {
            return !ENCRYPTED;
        };
        let nonce = Nonce::assume_unique_for_key(header.nonce());
        let (head, sealed) = message.split_at_mut(header.len());
        let mut aad = [0; AAD_LEN];
        aad[..head.len()].copy_from_slice(head);
        let aad = additional(&mut aad, head.len(), previous);
        cipher.open_in_place(nonce, Aad::from(aad), sealed).is_ok()
    }
}

/// A nonce that a later message of the same operation is chained to.
pub(super) type Iv = [u8; NONCE_LEN];

/// What stands before the first message of an operation.
pub(super) const NO_IV: Iv = [0; NONCE_LEN];

/// Header and previous nonce side by side, at most.
const AAD_LEN: usize = MAX_HEADER_LEN + NONCE_LEN;

/// Puts the previous nonce behind the header, which is there.
#[inline]
fn additional<'a>(aad: &'a mut [u8; AAD_LEN], header_len: usize, previous: &Iv) -> &'a [u8] {
    let len = header_len + NONCE_LEN;
    aad[header_len..len].copy_from_slice(previous);
    &aad[..len]
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::one_rma::{Body, Piece};
    use std::net::Ipv4Addr;

    fn gid(last: u8) -> Gid {
        Gid::from(Ipv4Addr::new(10, 0, 0, last))
    }

    #[test]
    fn keys_never_show() {
        let key = RegionKey::new([0xab; 16]);
        assert_eq!(format!("{key:?}"), "RegionKey(hidden)");
        assert_eq!(format!("{:?}", derive(&key, gid(2), 0, gid(1), 1, Op::Read)), "DerivedKey(hidden)");
    }

    #[test]
    fn keys_are_erased() {
        let mut key = RegionKey::new([0xab; 16]);
        key.zeroize();
        assert_eq!(key.expose(), &[0; 16]);
        fn erases_itself<T: ZeroizeOnDrop>() {}
        erases_itself::<RegionKey>();
        erases_itself::<DerivedKey>();
        erases_itself::<Aes128>();
    }

    /// FIPS 197, appendix B: one block under a known key, here as the first of the three.
    #[test]
    fn derivation_is_aes() {
        let hex = |text: &str| -> [u8; 16] {
            core::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        };
        let key = RegionKey::new(hex("2b7e151628aed2a6abf7158809cf4f3c"));
        let deriver = Deriver::new(&key, Gid(hex("3243f6a8885a308d313198a2e0370734")));
        assert_eq!(deriver.start, hex("3925841d02dc09fbdc118597196a0b32"));
        // An initiator equal to x0 leaves zeros, and so on: three encryptions of what we choose.
        let x1 = Deriver::new(&key, Gid([0; 16])).start;
        let derived = deriver.derive(Gid(deriver.start), 0x0102_0304, Op::Write, 0x0506_0708);
        let mut last = [1, 2, 3, 4, 2, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0];
        xor(&mut last, &x1);
        assert_eq!(derived.expose(), &Deriver::new(&key, Gid(last)).start);
    }

    #[test]
    fn every_part_of_a_derivation_matters() {
        let key = RegionKey::new([7; 16]);
        let base = derive(&key, gid(2), 3, gid(1), 4, Op::Read);
        assert!(base.equals(&derive(&key, gid(2), 3, gid(1), 4, Op::Read)));
        for other in [
            derive(&RegionKey::new([8; 16]), gid(2), 3, gid(1), 4, Op::Read),
            derive(&key, gid(3), 3, gid(1), 4, Op::Read),
            derive(&key, gid(2), 2, gid(1), 4, Op::Read),
            derive(&key, gid(2), 3, gid(2), 4, Op::Read),
            derive(&key, gid(1), 3, gid(2), 4, Op::Read),
            derive(&key, gid(2), 3, gid(1), 5, Op::Read),
            derive(&key, gid(2), 3, gid(1), 4, Op::Write),
        ] {
            assert!(!base.equals(&other));
        }
    }

    #[test]
    #[cfg_attr(feature = "benchmark-only-cleartext", ignore = "nothing is sealed")]
    fn a_message_opens_only_as_it_was_sealed() {
        let key = MessageKey::new(&[1; 16]);
        let piece = Piece { offset: 64, len: 100 };
        let header = Header { counter: 9, body: Body::ReadResponse { slot: 3, piece } };
        let mut message = vec![0x5a; header.message_len()];
        key.seal(&header, &[4; NONCE_LEN], &mut message);
        assert_ne!(message[20..120], [0x5a; 100]);

        let mut same = message.clone();
        assert!(key.open(&header, &[4; NONCE_LEN], &mut same));
        assert_eq!(same[20..120], [0x5a; 100]);
        assert!(!key.open(&header, &[5; NONCE_LEN], &mut message.clone()));
        assert!(!MessageKey::new(&[2; 16]).open(&header, &[4; NONCE_LEN], &mut message.clone()));
        for bit in 0..message.len() * 8 {
            let mut changed = message.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.open(&header, &[4; NONCE_LEN], &mut changed), "bit {bit}");
        }
    }
}
