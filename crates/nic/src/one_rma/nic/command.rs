//! What software writes into a command slot, and what it finds in its completion ring.
//!
//! A command is 64 bytes, written whole (appendix B). Numbers are little-endian, as the processor writes
//! them.
//!
//! | byte | field |
//! |---|---|
//! | 0 | operation: 1 read, 2 write, 3 rekey |
//! | 1 | class of service, 0 or 1 |
//! | 2..4 | bytes, 1 to 4096; 16 for a rekey |
//! | 4..8 | region of the target |
//! | 8..12 | own region that takes or gives the bytes; a rekey's new key lies there |
//! | 12..16 | own region that takes the completion |
//! | 16..32 | address of the target, IPv6 or IPv4-mapped |
//! | 32..40 | offset in the target's region; 0 for a rekey |
//! | 40..48 | offset in the own region |
//! | 48..64 | K_d |
//!
//! The completion region is a ring of 32-byte records. The last word of a record is written last, and counts
//! the records written to the ring since its region was registered, from 1: software that has taken `n`
//! records looks at record `n % entries` until it says `n + 1`.
//!
//! | byte | field |
//! |---|---|
//! | 0..4 | command slot |
//! | 4 | outcome, [`Outcome`] |
//! | 5..8 | 0 |
//! | 8..16 | issue delay: picoseconds from the post until the operation entered service |
//! | 16..24 | total delay: picoseconds from the post until this |
//! | 24..32 | number of the record |

use super::keys::DerivedKey;
use super::regions::RegionId;
use super::slots::SlotId;
use crate::error::Error;
use adverb_wire::one_rma::{KEY_LEN, MAX_OP, Op};
use adverb_wire::{Duration, Gid};
use core::fmt;

/// Bytes of a command.
pub const COMMAND_LEN: usize = 64;
/// Bytes of a completion record.
pub const COMPLETION_LEN: usize = 32;

/// A command, spelled out.
#[derive(Clone, Debug)]
pub struct Command {
    /// Operation.
    pub op: Op,
    /// Class of service, 0 or 1.
    pub class: u8,
    /// Bytes.
    pub len: u16,
    /// Region of the target.
    pub remote_region: RegionId,
    /// Own region that takes or gives the bytes.
    pub local_region: RegionId,
    /// Own region that takes the completion.
    pub completion_region: RegionId,
    /// Address of the target; the NIC's own for itself.
    pub target: Gid,
    /// Offset in the target's region.
    pub remote_offset: u64,
    /// Offset in the own region.
    pub local_offset: u64,
    /// K_d that the region's owner gave.
    pub key: DerivedKey,
}

impl Command {
    /// The 64 bytes. They hold the key.
    pub fn encode(&self) -> [u8; COMMAND_LEN] {
        let mut out = [0; COMMAND_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &[self.op as u8, self.class]);
        put(2, &self.len.to_le_bytes());
        put(4, &self.remote_region.wire().to_le_bytes());
        put(8, &self.local_region.wire().to_le_bytes());
        put(12, &self.completion_region.wire().to_le_bytes());
        put(16, &self.target.0);
        put(32, &self.remote_offset.to_le_bytes());
        put(40, &self.local_offset.to_le_bytes());
        put(48, self.key.expose());
        out
    }

    /// Reads and checks 64 bytes.
    pub fn parse(b: &[u8; COMMAND_LEN]) -> Result<Command, Error> {
        let op = match b[0] {
            1 => Op::Read,
            2 => Op::Write,
            3 => Op::Rekey,
            _ => return Err(Error::Invalid("operation of a command")),
        };
        if b[1] > 1 {
            return Err(Error::Invalid("class of service of a command"));
        }
        let len = u16::from_le_bytes(*part(b, 2));
        let allowed = if op == Op::Rekey { KEY_LEN..=KEY_LEN } else { 1..=MAX_OP };
        if !allowed.contains(&(len as usize)) {
            return Err(Error::Invalid("length of a command: 1 to 4096 bytes, 16 for a rekey"));
        }
        let remote_offset = u64::from_le_bytes(*part(b, 32));
        if op == Op::Rekey && remote_offset != 0 {
            return Err(Error::Invalid("offset of a rekey: not 0"));
        }
        let region = |at| RegionId::from_wire(u32::from_le_bytes(*part(b, at)));
        Ok(Command {
            op,
            class: b[1],
            len,
            remote_region: region(4),
            local_region: region(8),
            completion_region: region(12),
            target: Gid(*part(b, 16)),
            remote_offset,
            local_offset: u64::from_le_bytes(*part(b, 40)),
            key: DerivedKey::new(*part(b, 48)),
        })
    }
}

/// The `N` bytes from `at` on.
fn part<const N: usize>(b: &[u8], at: usize) -> &[u8; N] {
    match b[at..].first_chunk() {
        Some(part) => part,
        None => unreachable!("fields lie inside"),
    }
}

/// How an operation ended (table 3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Outcome {
    /// Done, and the bytes are where they belong.
    Ok = 0,
    /// The target has no such region, K_d is not the region's for this process and operation, or the region
    /// does not allow it.
    RemoteAuthenticationFailure = 1,
    /// The target has too much to do: remote congestion.
    Nack = 2,
    /// No answer in time.
    Timeout = 3,
    /// Waited too long for the own solicitation window: local congestion. Nothing was sent.
    DispatchTimeout = 4,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Outcome; 5] = [
        Outcome::Ok,
        Outcome::RemoteAuthenticationFailure,
        Outcome::Nack,
        Outcome::Timeout,
        Outcome::DispatchTimeout,
    ];
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Ok => "OK",
            Outcome::RemoteAuthenticationFailure => "REMOTE_AUTHENTICATION_FAILURE",
            Outcome::Nack => "NACK",
            Outcome::Timeout => "TIMEOUT",
            Outcome::DispatchTimeout => "DISPATCH_TIMEOUT",
        })
    }
}

/// A completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The slot, which is free again.
    pub slot: SlotId,
    /// How the operation ended.
    pub outcome: Outcome,
    /// From the post until the operation entered service, or until its end if it never did.
    pub issue_delay: Duration,
    /// From the post until the end.
    pub total_delay: Duration,
    /// Number of the record in its ring, from 1.
    pub number: u64,
}

impl Completion {
    /// The record's bytes, as words.
    #[inline]
    pub fn encode(&self) -> [[u8; 8]; COMPLETION_LEN / 8] {
        let first = self.slot.index() as u64 | (self.outcome as u64) << 32;
        [first, self.issue_delay.as_ps(), self.total_delay.as_ps(), self.number].map(u64::to_le_bytes)
    }

    /// Reads a record. `None` for one that no NIC wrote.
    pub fn decode(b: &[u8; COMPLETION_LEN]) -> Option<Completion> {
        Some(Completion {
            slot: SlotId::new(u32::from_le_bytes(*part(b, 0))),
            outcome: Outcome::ALL.get(b[4] as usize).copied()?,
            issue_delay: Duration::from_ps(u64::from_le_bytes(*part(b, 8))),
            total_delay: Duration::from_ps(u64::from_le_bytes(*part(b, 16))),
            number: u64::from_le_bytes(*part(b, 24)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMAND: [u8; COMMAND_LEN] = {
        let mut b = [0; COMMAND_LEN];
        let mut i = 0;
        while i < COMMAND_LEN {
            b[i] = i as u8;
            i += 1;
        }
        (b[0], b[1], b[2], b[3]) = (2, 1, 0x23, 1);
        b
    };

    #[test]
    fn fields_lie_where_the_tables_say() {
        let command = Command::parse(&COMMAND).unwrap();
        assert_eq!((command.op, command.class, command.len), (Op::Write, 1, 0x123));
        assert_eq!(command.remote_region.wire(), 0x0706_0504);
        assert_eq!(command.local_region.wire(), 0x0b0a_0908);
        assert_eq!(command.completion_region.wire(), 0x0f0e_0d0c);
        assert_eq!(command.target.0[0], 16);
        assert_eq!(command.remote_offset, 0x2726_2524_2322_2120);
        assert_eq!(command.local_offset, 0x2f2e_2d2c_2b2a_2928);
        assert_eq!(command.key.expose()[15], 63);
        assert_eq!(command.encode(), COMMAND);
        assert!(format!("{command:?}").contains("DerivedKey(hidden)"));

        let completion = Completion {
            slot: SlotId::new(7),
            outcome: Outcome::Nack,
            issue_delay: Duration::from_ps(8),
            total_delay: Duration::from_ps(9),
            number: 10,
        };
        let bytes: [u8; COMPLETION_LEN] = completion.encode().as_flattened().try_into().unwrap();
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16], bytes[24]), (7, 2, 8, 9, 10));
        assert_eq!(Completion::decode(&bytes), Some(completion));
        assert_eq!(Completion::decode(&[5; COMPLETION_LEN]), None);
    }

    #[test]
    fn malformed_commands_are_refused() {
        let refused = |changes: &[(usize, u8)]| {
            let mut b = COMMAND;
            changes.iter().for_each(|(at, value)| b[*at] = *value);
            matches!(Command::parse(&b), Err(Error::Invalid(_)))
        };
        assert!(!refused(&[]));
        assert!(refused(&[(0, 0)]));
        assert!(refused(&[(0, 4)]));
        assert!(refused(&[(1, 2)]));
        assert!(refused(&[(2, 0), (3, 0)]));
        assert!(refused(&[(2, 1), (3, 16)]));
        assert!(refused(&[(0, 3)]));
        assert!(refused(&[(0, 3), (2, 16), (3, 0)]));
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_what_was_written(
            bytes: [u8; 32], rest: [u8; 32], op in 0u8..5, class in 0u8..3
        ) {
            let mut b = [0; COMMAND_LEN];
            b[..32].copy_from_slice(&bytes);
            b[32..].copy_from_slice(&rest);
            (b[0], b[1], b[3]) = (op, class, b[3] & 0x1f);
            if let Ok(command) = Command::parse(&b) {
                prop_assert_eq!(command.encode(), b);
            }
        }
    }
}
