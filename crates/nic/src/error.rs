//! A caller's mistakes, typed. The verbs library maps each to an errno.

use core::fmt;

/// Why a control or posting call was refused. Nothing has changed when one of these is returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// No such object: never created, or destroyed since.
    NoSuchObject,
    /// A table of the NIC has reached its bound (see [`crate::limits`]).
    TableFull,
    /// A queue has no room for another work request.
    QueueFull,
    /// The object is still used by others.
    Busy,
    /// A value out of its range, or values that do not go together.
    Invalid(&'static str),
    /// The call is not allowed in the queue pair's current state (IBTA table 91).
    WrongState,
    /// Rights that may not be combined or asked for.
    BadAccess,
    /// Not offered by this NIC.
    Unsupported(&'static str),
}

impl Error {
    /// The errno that a verbs call returns for this error.
    pub const fn errno(self) -> i32 {
        const ENOENT: i32 = 2;
        const ENOMEM: i32 = 12;
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const EOPNOTSUPP: i32 = 95;
        match self {
            Error::NoSuchObject => ENOENT,
            Error::TableFull | Error::QueueFull => ENOMEM,
            Error::Busy => EBUSY,
            Error::Invalid(_) | Error::WrongState | Error::BadAccess => EINVAL,
            Error::Unsupported(_) => EOPNOTSUPP,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSuchObject => f.write_str("no such object"),
            Error::TableFull => f.write_str("the NIC's table is full"),
            Error::QueueFull => f.write_str("the queue is full"),
            Error::Busy => f.write_str("the object is in use"),
            Error::Invalid(what) => write!(f, "invalid {what}"),
            Error::WrongState => f.write_str("not allowed in the queue pair's state"),
            Error::BadAccess => f.write_str("access rights that do not go together"),
            Error::Unsupported(what) => write!(f, "{what} is not supported"),
        }
    }
}

impl std::error::Error for Error {}
