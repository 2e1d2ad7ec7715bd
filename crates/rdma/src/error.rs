//! What can go wrong in a program's call, as a value of its own for each kind of cause.

use adverb_nic::{Completion, Status};
use std::fmt;

/// Why a call did not do what it was asked to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The NIC refused it: a mistake of the caller's. Nothing has changed.
    Refused(adverb_nic::Error),
    /// A list was posted up to this request, which the NIC refused.
    NotPosted {
        /// Requests that were posted.
        posted: usize,
        /// Why the next one was not.
        refused: adverb_nic::Error,
    },
    /// Bytes outside the memory that they were said to be in, or a word that is not at a multiple of 8.
    Range {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the memory.
        of: u64,
    },
    /// The NIC has no such amount of memory of its own left.
    DeviceMemory {
        /// Bytes that were asked for.
        len: u64,
        /// Bytes that nobody has.
        free: u64,
    },
    /// A work request ended with an error, and its queue pair with it.
    Failed {
        /// How.
        status: Status,
        /// Which rule made it: see [`adverb_nic::explain`].
        vendor: u32,
    },
    /// Nobody has answered in the time given.
    NoAnswer,
    /// The other program has left.
    Left,
    /// What a peer said is not what this program understands.
    Garbled(&'static str),
    /// The object was released, or belongs to another program.
    NoSuchObject(&'static str),
    /// Not offered in this world.
    Unsupported(&'static str),
    /// The system refused something.
    System(String),
}

impl Error {
    /// The error of a completion that is not a success.
    pub fn of(completion: &Completion) -> Error {
        Error::Failed { status: completion.status, vendor: completion.vendor }
    }
}

impl From<adverb_nic::Error> for Error {
    fn from(error: adverb_nic::Error) -> Error {
        Error::Refused(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(error) => write!(f, "refused by the NIC: {error}"),
            Error::NotPosted { posted, refused } => {
                write!(f, "the NIC took {posted} requests and refused the next one: {refused}")
            }
            Error::Range { at, len, of } => write!(f, "{len} bytes at {at} of memory of {of} bytes"),
            Error::DeviceMemory { len, free } => {
                write!(f, "{len} bytes of the NIC's own memory, of which {free} are free")
            }
            Error::Failed { status, vendor } => {
                write!(f, "the work request failed: {status:?}, vendor syndrome {vendor:#x}")
            }
            Error::NoAnswer => f.write_str("nobody answered in time"),
            Error::Left => f.write_str("the other program has left"),
            Error::Garbled(what) => write!(f, "a peer sent {what} that cannot be understood"),
            Error::NoSuchObject(what) => write!(f, "there is no such {what}"),
            Error::Unsupported(what) => write!(f, "{what} is not offered here"),
            Error::System(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused(error) | Error::NotPosted { refused: error, .. } => Some(error),
            _ => None,
        }
    }
}
