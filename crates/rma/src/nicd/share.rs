//! What the processes of one user may have together at the daemon: without a bound, a user with many
//! processes leaves nothing to the others, though each process keeps to its quota.

use super::Refused;
use adverb_nic::one_rma::OneRmaConfig;
use adverb_os::sys::physical_memory;

/// Permissions of a socket that let somebody else than its owner attach.
const OTHERS: u32 = 0o022;
/// Where others may attach too, one user's processes have this part of everything.
const PART: u32 = 2;

/// What all processes of one user may have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NicdShare {
    /// Connections.
    pub connections: u32,
    /// Command slots.
    pub slots: u32,
    /// Memories and regions together.
    pub regions: u32,
    /// Bytes of memory.
    pub bytes: u64,
}

impl NicdShare {
    /// All that the NIC has, and as much memory as the host has, where only the socket's owner may attach;
    /// half of it where others may, so that no user can shut all others out.
    pub fn of(nic: &OneRmaConfig, mode: u32) -> NicdShare {
        let part = if mode & OTHERS == 0 { 1 } else { PART };
        let of = |all: u32| (all / part).max(1);
        NicdShare {
            connections: of(nic.processes),
            slots: of(nic.slots),
            regions: of(nic.regions),
            bytes: physical_memory() / u64::from(part),
        }
    }
}

/// What one process has, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Used {
    pub slots: u32,
    pub regions: u32,
    pub bytes: u64,
}

impl Used {
    pub fn and(self, more: Used) -> Used {
        Used {
            slots: self.slots + more.slots,
            regions: self.regions + more.regions,
            bytes: self.bytes + more.bytes,
        }
    }
}

/// What one user's processes may have, and what those have that do not ask at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub share: NicdShare,
    pub others: Used,
}

impl Room {
    /// Command slots of as many as are wanted: fewer where the user has most of its share, but one at least.
    pub fn slots(&self, wanted: u32) -> Result<u32, Refused> {
        let all = self.share.slots;
        let left = all.saturating_sub(self.others.slots);
        if left == 0 {
            return Err(format!("this user's processes have all {all} command slots that they may have"));
        }
        Ok(wanted.min(left))
    }

    /// Whether a process that has `own` may have one more memory or region.
    pub fn region(&self, own: Used) -> Result<(), Refused> {
        let all = self.share.regions;
        if own.regions + self.others.regions >= all {
            return Err(format!(
                "this user's processes have all {all} regions and memories that they may have"
            ));
        }
        Ok(())
    }

    /// Whether a process that has `own` may have so many bytes more.
    pub fn bytes(&self, own: Used, more: u64) -> Result<(), Refused> {
        let all = self.share.bytes;
        let left = all.saturating_sub(own.bytes + self.others.bytes);
        if more > left {
            return Err(format!(
                "{more} bytes of memory: this user's processes may have {all}, of which {left} are left"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_used_up_by_all_processes_together() {
        let share = NicdShare { connections: 4, slots: 10, regions: 3, bytes: 1000 };
        let room = |slots, regions, bytes| Room { share, others: Used { slots, regions, bytes } };
        assert_eq!(room(0, 0, 0).slots(4), Ok(4));
        assert_eq!(room(8, 0, 0).slots(4), Ok(2), "what is left");
        assert!(room(10, 0, 0).slots(1).unwrap_err().contains("all 10 command slots"));
        let own = Used { slots: 1, regions: 1, bytes: 400 };
        assert!(room(0, 1, 0).region(own).is_ok());
        assert!(room(0, 2, 0).region(own).unwrap_err().contains("all 3 regions"));
        assert!(room(0, 0, 500).bytes(own, 100).is_ok());
        assert!(room(0, 0, 500).bytes(own, 101).unwrap_err().contains("of which 100 are left"));
        assert!(room(0, 0, 0).bytes(own, 127 << 40).is_err());
        assert!(room(0, 0, 0).bytes(own, u64::MAX).is_err());
    }

    #[test]
    fn who_is_alone_has_all_and_who_is_not_has_half() {
        let nic = OneRmaConfig { slots: 1024, regions: 1, processes: 64, ..OneRmaConfig::default() };
        let (alone, shared) = (NicdShare::of(&nic, 0o600), NicdShare::of(&nic, 0o660));
        assert_eq!((alone.connections, alone.slots, alone.regions), (64, 1024, 1));
        assert_eq!((shared.connections, shared.slots, shared.regions), (32, 512, 1));
        assert_eq!(shared.bytes, alone.bytes / 2);
        assert!(shared.bytes > 0 && NicdShare::of(&nic, 0o602) == shared);
    }
}
