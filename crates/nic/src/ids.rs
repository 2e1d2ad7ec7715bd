//! Typed names of the NIC's objects: an index into a slab and the generation of its slot, so that a
//! name kept beyond its object's life is refused instead of naming a stranger.

use core::fmt;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name {
            pub(crate) index: u32,
            pub(crate) generation: u32,
        }

        impl $name {
            /// The slot's index alone, for tables kept beside the NIC's own.
            #[inline]
            pub const fn index(self) -> usize {
                self.index as usize
            }
        }

        impl crate::slab::Id for $name {
            #[inline]
            fn new(index: u32, generation: u32) -> Self {
                $name { index, generation }
            }
            #[inline]
            fn index(self) -> u32 {
                self.index
            }
            #[inline]
            fn generation(self) -> u32 {
                self.generation
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({}.{})"), self.index, self.generation)
            }
        }
    )*};
}

id! {
    /// A protection domain.
    PdId;
    /// A memory region.
    MrId;
    /// A memory window.
    MwId;
    /// A completion queue.
    CqId;
    /// A queue pair.
    QpId;
    /// A shared receive queue.
    SrqId;
    /// An XRC domain.
    XrcdId;
}

impl QpId {
    /// The queue pair's place in the NIC's table, which no other has meanwhile: for a driver's tables of
    /// [`limits::MAX_QP`](crate::limits::MAX_QP) entries. An endpoint has none: its [`index`](QpId::index) is
    /// beyond all of them, and below twice as many.
    #[inline]
    pub const fn slot(self) -> Option<u16> {
        if self.index < crate::limits::MAX_QP { Some(self.index as u16) } else { None }
    }
}

/// A route to a destination, named by the driver: on a host, a UDP socket or the shared-memory ring
/// of one peer process; in a simulator, the port's only link. The NIC only compares and stores it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PathId(pub u16);

impl PathId {
    /// The path every frame takes unless the driver said otherwise.
    pub const DEFAULT: PathId = PathId(0);

    /// Back into the NIC that the frame leaves; see [`NicConfig::loopback`](crate::NicConfig::loopback).
    /// Never blocked, and no driver's to name.
    pub const LOOPBACK: PathId = PathId(u16::MAX);
}
