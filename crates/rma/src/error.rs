//! What can go wrong, and what helps.

use adverb_nic::one_rma::executor::Report;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Why a NIC could not be opened or attached to.
#[derive(Debug)]
pub enum OpenError {
    /// A setting is out of its range, or does not go with others.
    Setting(adverb_nic::Error),
    /// A setting of the driver's is out of its range.
    Driver(&'static str),
    /// A setting is not within its bounds.
    Bounds {
        /// The setting.
        setting: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be set to.
        bounds: RangeInclusive<u64>,
    },
    /// The address is not one of this host's.
    Address(IpAddr, io::Error),
    /// Another program has the NIC of this address.
    PortTaken(IpAddr),
    /// Neither a setting nor the environment says where the message counter is kept.
    NoState,
    /// Another NIC uses this message counter.
    StateHeld(PathBuf),
    /// The file of the message counter holds something else.
    StateGarbled(PathBuf),
    /// There is no message counter, and the clock, which would stand in for it, was not set, or set back.
    StateLost(PathBuf),
    /// The message counter cannot be kept.
    State(PathBuf, io::Error),
    /// The folder in which the NICs of this host find one another cannot be used.
    Door(PathBuf, io::Error),
    /// The daemon's socket cannot be reached.
    Daemon(PathBuf, io::Error),
    /// A daemon cannot listen at its socket.
    Socket(PathBuf, io::Error),
    /// The daemon refused.
    Refused(String),
    /// The system refused something.
    System(&'static str, io::Error),
}

impl OpenError {
    /// Whether a setting is within its bounds.
    pub(crate) fn check(
        setting: &'static str,
        value: u64,
        bounds: RangeInclusive<u64>,
    ) -> Result<(), OpenError> {
        if bounds.contains(&value) { Ok(()) } else { Err(OpenError::Bounds { setting, value, bounds }) }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Setting(error) => write!(f, "settings of the 1RMA NIC: {error}"),
            OpenError::Driver(what) => write!(f, "settings of the 1RMA driver: {what}"),
            OpenError::Bounds { setting, value, bounds } => {
                write!(f, "{setting} is {value}; give {} to {}", bounds.start(), bounds.end())
            }
            OpenError::Address(address, source) => {
                write!(f, "{address} cannot be bound ({source}); choose an address of this host")
            }
            OpenError::PortTaken(address) => write!(
                f,
                "UDP port {} of {address} is taken: a NIC has its address alone; let processes share one \
                 through `adverb nicd`, or choose another address of this host, such as 127.0.0.2",
                adverb_wire::one_rma::UDP_PORT
            ),
            OpenError::NoState => f.write_str(
                "nowhere to keep the message counter: neither XDG_STATE_HOME nor HOME is set; name a folder \
                 in the settings",
            ),
            OpenError::StateHeld(path) => {
                write!(f, "{} is in use by another NIC of this address", path.display())
            }
            OpenError::StateGarbled(path) => write!(
                f,
                "{} does not hold a message counter; if it was damaged, remove it and rotate the keys of all \
                 regions that this NIC has keys for",
                path.display()
            ),
            OpenError::StateLost(path) => write!(
                f,
                "{} holds no message counter, and the clock, which it would start from, shows a year before \
                 2025 or a time before the folder's last change: set the clock",
                path.display()
            ),
            OpenError::State(path, source) => {
                write!(f, "the message counter {} cannot be kept: {source}", path.display())
            }
            OpenError::Door(path, source) => write!(
                f,
                "{}, where the NICs of this host find one another, cannot be used: {source}; mend that, or \
                 choose the path udp",
                path.display()
            ),
            OpenError::Daemon(path, source) => {
                write!(f, "no NIC daemon at {}: {source}; start `adverb nicd`", path.display())
            }
            OpenError::Socket(path, source) => {
                write!(f, "{} cannot be listened at: {source}", path.display())
            }
            OpenError::Refused(why) => write!(f, "the NIC daemon refused: {why}"),
            OpenError::System(what, source) => write!(f, "{what} failed: {source}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Setting(error) => Some(error),
            OpenError::Address(_, source)
            | OpenError::State(_, source)
            | OpenError::Door(_, source)
            | OpenError::Daemon(_, source)
            | OpenError::Socket(_, source)
            | OpenError::System(_, source) => Some(source),
            _ => None,
        }
    }
}

/// Why a call on memory, regions or keys was refused. Nothing has changed.
#[derive(Debug)]
pub enum Error {
    /// The NIC refused.
    Nic(adverb_nic::Error),
    /// A range is not inside its memory or region, or has no bytes.
    Range {
        /// First byte.
        start: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the memory or region.
        of: u64,
    },
    /// The grant has no key for this operation.
    NoKey(adverb_wire::one_rma::Op),
    /// The NIC has been closed, or its daemon is gone or hangs.
    Closed,
    /// The memory belongs to another NIC.
    Foreign,
    /// The daemon refused.
    Refused(String),
    /// The system refused something.
    System(&'static str, io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Nic(error) => error.fmt(f),
            Error::Range { start, len, of } => {
                write!(
                    f,
                    "{len} bytes from {start} on, of {of}: give at least one byte, and none beyond the last"
                )
            }
            Error::NoKey(op) => write!(f, "the grant has no key for this operation: {op:?}"),
            Error::Closed => f.write_str("the NIC is closed, or its daemon is gone or does not answer"),
            Error::Foreign => f.write_str("the memory belongs to another NIC"),
            Error::Refused(why) => write!(f, "the NIC daemon refused: {why}"),
            Error::System(what, source) => write!(f, "{what} failed: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Nic(error) => Some(error),
            Error::System(_, source) => Some(source),
            _ => None,
        }
    }
}

impl From<adverb_nic::Error> for Error {
    fn from(error: adverb_nic::Error) -> Self {
        Error::Nic(error)
    }
}

/// Why a transfer did not end well.
#[derive(Debug)]
pub enum TransferError {
    /// It was not begun.
    Refused(Error),
    /// It ended otherwise; [`Report::end`] says how, and [`Report::bytes`] how many bytes were moved
    /// nevertheless.
    Ended(Report),
}

impl TransferError {
    /// How it ended, if it was begun.
    pub fn report(&self) -> Option<&Report> {
        match self {
            TransferError::Refused(_) => None,
            TransferError::Ended(report) => Some(report),
        }
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferError::Refused(error) => error.fmt(f),
            TransferError::Ended(report) => report.end.fmt(f),
        }
    }
}

impl std::error::Error for TransferError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TransferError::Refused(error) => Some(error),
            TransferError::Ended(_) => None,
        }
    }
}
