//! What a 1RMA region's owner gives a peer's process: where the region is, and keys for what the process
//! may do to it.

use adverb_nic::one_rma::{DerivedKey, RegionId, Rights};
use adverb_wire::Gid;
use adverb_wire::one_rma::{KEY_LEN, Op};
use std::fmt;
use std::net::IpAddr;
use zeroize::Zeroizing;

/// 1RMA's operations, and the right that each needs.
pub const OPS: [(Op, Rights); 3] =
    [(Op::Read, Rights::READ), (Op::Write, Rights::WRITE), (Op::Rekey, Rights::REKEY)];
/// Bytes before the keys.
const HEAD_LEN: usize = 29;

/// Address, region and K_d of each operation allowed. Secret: whoever runs processes with the address
/// and process number that it was made for can use it.
#[derive(Clone)]
pub struct Grant {
    target: Gid,
    region: RegionId,
    len: u64,
    keys: [Option<DerivedKey>; 3],
}

impl Grant {
    /// Without keys.
    pub fn new(target: Gid, region: RegionId, len: u64) -> Grant {
        Grant { target, region, len, keys: [None, None, None] }
    }

    /// With a key for this operation too.
    #[must_use]
    pub fn with_key(mut self, op: Op, key: DerivedKey) -> Grant {
        self.keys[place(op)] = Some(key);
        self
    }

    /// The target NIC's address.
    pub fn target(&self) -> IpAddr {
        self.target.ip()
    }

    /// The region.
    pub fn region(&self) -> RegionId {
        self.region
    }

    /// Bytes of the region.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region has no bytes, which no NIC's has.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it allows.
    pub fn rights(&self) -> Rights {
        OPS.iter()
            .filter(|(op, _)| self.key(*op).is_some())
            .fold(Rights::empty(), |all, (_, right)| all | *right)
    }

    /// K_d for an operation.
    pub fn key(&self, op: Op) -> Option<&DerivedKey> {
        self.keys[place(op)].as_ref()
    }

    /// As bytes, for the channel to the peer: 16 of the address, 4 of the region, 8 of its length, 1 of
    /// rights, big-endian, then the keys of the rights that are set, read first, then write, then rekey.
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(HEAD_LEN + 3 * KEY_LEN));
        out.extend_from_slice(&self.target.0);
        out.extend_from_slice(&self.region.wire().to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.push(self.rights().bits());
        self.keys.iter().flatten().for_each(|key| out.extend_from_slice(key.expose()));
        out
    }

    /// From such bytes. `None` for others.
    pub fn from_bytes(bytes: &[u8]) -> Option<Grant> {
        let (target, rest) = bytes.split_first_chunk::<16>()?;
        let (region, rest) = rest.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let (rights, mut rest) = rest.split_first()?;
        let rights = Rights::from_bits(*rights)?;
        let region = RegionId::from_wire(u32::from_be_bytes(*region));
        let mut grant = Grant::new(Gid(*target), region, u64::from_be_bytes(*len));
        for (op, right) in OPS {
            if rights.contains(right) {
                let (key, after) = rest.split_first_chunk::<KEY_LEN>()?;
                grant.keys[place(op)] = Some(DerivedKey::new(*key));
                rest = after;
            }
        }
        rest.is_empty().then_some(grant)
    }
}

fn place(op: Op) -> usize {
    op as usize - 1
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Grant { target, region, len, .. } = self;
        let rights = self.rights();
        write!(f, "Grant(region {:#010x} of {target}, {len} bytes, {rights:?}, keys hidden)", region.wire())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_carry_a_grant_and_nothing_else_does() {
        let whole = Grant::new(Gid::from(IpAddr::from([10, 1, 2, 3])), RegionId::from_wire(0x0102_0304), 77)
            .with_key(Op::Read, DerivedKey::new([0xab; 16]))
            .with_key(Op::Rekey, DerivedKey::new([0xcd; 16]));
        let bytes = whole.to_bytes();
        assert_eq!(bytes.len(), HEAD_LEN + 32);
        let read = Grant::from_bytes(&bytes).unwrap();
        assert_eq!((read.target(), read.region(), read.len()), (whole.target(), whole.region(), 77));
        assert_eq!(read.rights(), Rights::READ | Rights::REKEY);
        assert!(read.key(Op::Rekey).unwrap().equals(whole.key(Op::Rekey).unwrap()));
        assert!(read.key(Op::Write).is_none());
        for len in 0..bytes.len() {
            assert!(Grant::from_bytes(&bytes[..len]).is_none());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Grant::from_bytes(&longer).is_none());
        longer[28] = 0x80;
        assert!(Grant::from_bytes(&longer).is_none());
        assert!(!format!("{whole:?}").contains("171"), "keys are not shown");
    }
}
