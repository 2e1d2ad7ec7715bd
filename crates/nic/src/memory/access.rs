//! Rights of regions and windows (IBTA 10.6.3, 11.2.8).

use crate::error::Error;
use bitflags::bitflags;

bitflags! {
    /// Rights of a region or a window, and remote rights of a queue pair. Bits are those of
    /// `enum ibv_access_flags`. Local reading is always allowed.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// Local writing: receives, and answers of READs and atomics.
        const LOCAL_WRITE = 1 << 0;
        /// Remote WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Remote READ.
        const REMOTE_READ = 1 << 2;
        /// Remote atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from the first byte of the region or window, not from its virtual address.
        const ZERO_BASED = 1 << 5;
        /// Page on demand. A hint: software always does.
        const ON_DEMAND = 1 << 6;
        /// Backed by huge pages. A hint.
        const HUGETLB = 1 << 7;
        /// Remote FLUSH to global visibility; not offered.
        const FLUSH_GLOBAL = 1 << 8;
        /// Remote FLUSH to persistence; not offered.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Accesses of one queue pair may be reordered. A hint; software never does.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// `IBV_ACCESS_OPTIONAL_RANGE`: bits that a device which does not know them ignores.
    pub const OPTIONAL_RANGE: u32 = 0x3ff << 20;

    /// Rights that a window can grant.
    pub(super) const OF_WINDOW: Access = Access::REMOTE_WRITE
        .union(Access::REMOTE_READ)
        .union(Access::REMOTE_ATOMIC)
        .union(Access::ZERO_BASED);

    /// From a verbs caller's bits. Unknown optional bits are dropped; any other unknown bit is
    /// `Error::BadAccess`.
    pub fn from_verbs(bits: u32) -> Result<Access, Error> {
        let known = bits & (Access::all().bits() | !Access::OPTIONAL_RANGE);
        Access::from_bits(known).ok_or(Error::BadAccess)
    }

    /// Whether a region may have these rights: none unknown (outside the optional range), none that
    /// this NIC does not offer, and whoever is to be written remotely is writable locally
    /// (IBTA 11.2.8.2).
    pub fn check_mr(self) -> Result<(), Error> {
        let known = Access::from_verbs(self.bits())?;
        if known.intersects(Access::FLUSH_GLOBAL.union(Access::FLUSH_PERSISTENT)) {
            return Err(Error::Unsupported("remote flush"));
        }
        let remote_writes = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);
        if known.intersects(remote_writes) && !known.contains(Access::LOCAL_WRITE) {
            return Err(Error::BadAccess);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_of_a_region() {
        let bad = Err(Error::BadAccess);
        for (bits, expected) in [
            (0, Ok(())),
            (1, Ok(())),
            (2, bad),
            (8, bad),
            (2 | 8, bad),
            (4, Ok(())),
            (16, Ok(())),
            (1 | 2 | 4 | 8 | 16 | 32 | 64 | 128, Ok(())),
            (1 | 256, Err(Error::Unsupported("remote flush"))),
            (512, Err(Error::Unsupported("remote flush"))),
            (1 << 10, bad),
            (1 << 19, bad),
            (1 << 20, Ok(())),
            (1 << 21, Ok(())),
            (1 << 29, Ok(())),
            (1 << 30, bad),
            (1 << 31, bad),
        ] {
            assert_eq!(Access::from_bits_retain(bits).check_mr(), expected, "{bits:#x}");
        }
    }

    #[test]
    fn optional_bits_are_dropped() {
        assert_eq!(Access::from_verbs(1 | 1 << 25), Ok(Access::LOCAL_WRITE));
        assert_eq!(Access::from_verbs(1 << 20), Ok(Access::RELAXED_ORDERING));
        assert_eq!(Access::from_verbs(1 << 11), Err(Error::BadAccess));
    }
}
