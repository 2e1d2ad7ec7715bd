//! Why an access was refused.

use core::fmt;

/// Why a check, a bind or an invalidation was refused. Locally this ends a work request with a
/// protection, access or bind error; remotely it becomes a NAK for a remote access error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessFault {
    /// No region or window has this key.
    UnknownKey,
    /// The key is a window's, and the window is not bound.
    Unbound,
    /// Region or window, and queue pair, are of different protection domains.
    OtherDomain,
    /// The window is bound through another queue pair.
    OtherQp,
    /// The range is not wholly inside the region or window.
    OutOfBounds,
    /// The region or window does not grant this kind of access.
    MissingRight,
    /// An atomic's operand is not one naturally aligned 8-byte word.
    Misaligned,
    /// The key is not one that an invalidation may name.
    NotInvalidatable,
    /// The region does not allow windows.
    NotBindable,
    /// Window rights that a window cannot have, or that its region cannot carry.
    BadWindowRights,
    /// The window is bound already.
    AlreadyBound,
    /// The new key's upper 24 bits are not the window's.
    ForeignKey,
    /// A type 2 window was to be bound to no bytes.
    EmptyBind,
}

impl AccessFault {
    /// One line that says which rule refused the access.
    pub const fn rule(self) -> &'static str {
        match self {
            AccessFault::UnknownKey => "no region or window has this key (IBTA 10.6.3)",
            AccessFault::Unbound => "the key names a memory window that is not bound (IBTA 10.6.7)",
            AccessFault::OtherDomain => {
                "region or window and queue pair belong to different protection domains (IBTA 10.6.3, C10-72)"
            }
            AccessFault::OtherQp => {
                "a type 2 window serves only the queue pair through which it was bound (IBTA 10.6.7.2)"
            }
            AccessFault::OutOfBounds => {
                "the range is not wholly inside the region or window (IBTA 10.6.3, C10-75)"
            }
            AccessFault::MissingRight => "the region or window does not grant this access (IBTA 10.6.3)",
            AccessFault::Misaligned => {
                "an atomic needs one naturally aligned 8-byte word (IBTA 9.4.5, 9.7.4.1)"
            }
            AccessFault::NotInvalidatable => {
                "only a type 2 window can be invalidated (IBTA 10.6.5, o10-37.2.26)"
            }
            AccessFault::NotBindable => "the region was registered without MW_BIND (IBTA C10-73)",
            AccessFault::BadWindowRights => {
                "window rights need a region with LOCAL_WRITE to be written, and only type 2 can be \
                 zero-based (IBTA C10-74, o10-36.2.2)"
            }
            AccessFault::AlreadyBound => {
                "a type 2 window must be invalidated before it is bound again (IBTA o10-37.2.30)"
            }
            AccessFault::ForeignKey => {
                "a consumer chooses only the low 8 bits of a window's key (IBTA 10.6.3)"
            }
            AccessFault::EmptyBind => {
                "a type 2 window is unbound by invalidation, not by a bind of length 0 (IBTA o10-37.2.40)"
            }
        }
    }
}

impl fmt::Display for AccessFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.rule())
    }
}
