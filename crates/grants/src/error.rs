//! What can go wrong between a region's owner and its clients, and what helps.

use adverb_nic::one_rma::Rights;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why the owner said no. Travels to the client.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No region of this name that the client may know of.
    UnknownRegion(String),
    /// The owner's policy does not let this client do this.
    Denied {
        /// As its certificate says.
        client: String,
        /// What it wanted.
        what: String,
    },
    /// The lease ended this many milliseconds ago, and its key with it.
    Expired {
        /// The lease.
        lease: u64,
        /// Since then.
        ago_ms: u64,
    },
    /// No such lease of this client.
    UnknownLease(u64),
    /// A table of the owner is full.
    Full {
        /// Of what.
        what: String,
        /// How many there may be.
        limit: u64,
    },
    /// Something in the request is out of its range.
    Invalid(String),
    /// Another rotation of the region is going on.
    Rotating(String),
    /// The NIC refused.
    Nic(String),
    /// The application behind the owner refused.
    Application(String),
    /// There is no application behind this owner.
    NoApplication,
}

/// Names of rights, as policies and options have them.
pub fn rights_text(rights: Rights) -> String {
    let names = [(Rights::READ, "read"), (Rights::WRITE, "write"), (Rights::REKEY, "rekey")];
    let some: Vec<&str> =
        names.iter().filter(|(one, _)| rights.contains(*one)).map(|(_, name)| *name).collect();
    if some.is_empty() { "none".to_owned() } else { some.join(",") }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownRegion(name) => {
                write!(
                    f,
                    "no region `{name}` that this client may use; `adverb region list` shows those \
                     that there are"
                )
            }
            Refusal::Denied { client, what } => {
                write!(f, "client `{client}` may not {what}; the owner's policy file decides")
            }
            Refusal::Expired { lease, ago_ms } => {
                let seconds = *ago_ms as f64 / 1e3;
                write!(f, "the grant (lease {lease}) expired {seconds:.1} s ago; ask for a new one")
            }
            Refusal::UnknownLease(lease) => write!(f, "no lease {lease} of this client; ask for a new grant"),
            Refusal::Full { what, limit } => {
                write!(f, "the owner has {limit} {what} already, as many as it may; try again later")
            }
            Refusal::Invalid(what) => write!(f, "{what}"),
            Refusal::Rotating(name) => write!(f, "the key of `{name}` is being rotated already; try again"),
            Refusal::Nic(what) => write!(f, "the owner's NIC refused: {what}"),
            Refusal::Application(what) => write!(f, "{what}"),
            Refusal::NoApplication => f.write_str("the owner takes no calls: it only has regions"),
        }
    }
}

/// Why something out of band did not work.
#[derive(Debug)]
pub enum Error {
    /// The owner said no.
    Refused(Refusal),
    /// A file with certificates or a key.
    File {
        /// What it was to hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The policy.
    Policy(String),
    /// The two sides do not accept one another.
    Tls(String),
    /// No connection.
    Connect(String, io::Error),
    /// The owner's port cannot be listened on.
    Listen(String, io::Error),
    /// The connection broke, or the other side was silent for too long.
    Lost(io::Error),
    /// The other side does not keep to the protocol.
    Protocol(&'static str),
    /// A message of this many bytes is longer than [`MAX_MESSAGE`](crate::MAX_MESSAGE).
    TooLong(usize),
    /// A thread could not be started, and the like.
    System(&'static str, io::Error),
}

impl Error {
    /// The owner's words, if it said no.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refusal) => write!(f, "the owner refused: {refusal}"),
            Error::File { what, path, why } => write!(f, "{}: no {what} there: {why}", path.display()),
            Error::Policy(text) => write!(f, "policy: {text}"),
            Error::Tls(text) => write!(f, "TLS: {text}"),
            Error::Connect(to, source) => {
                write!(f, "{to} cannot be reached: {source}; is the owner running?")
            }
            Error::Listen(at, source) => {
                write!(f, "{at} cannot be listened on: {source}; choose another port or address of this host")
            }
            Error::Lost(source) => write!(f, "the connection to the other side is lost: {source}"),
            Error::Protocol(what) => write!(f, "the other side sent {what}"),
            Error::TooLong(len) => {
                write!(f, "a message of {len} bytes; at most {} can be sent", crate::MAX_MESSAGE)
            }
            Error::System(what, source) => write!(f, "{what} failed: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Refused(_) | Error::File { .. } | Error::Policy(_) | Error::Tls(_) => None,
            Error::Protocol(_) | Error::TooLong(_) => None,
            Error::Connect(_, source)
            | Error::Listen(_, source)
            | Error::Lost(source)
            | Error::System(_, source) => Some(source),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

#[cfg(feature = "service")]
impl From<adverb_tls::Error> for Error {
    fn from(error: adverb_tls::Error) -> Error {
        match error {
            adverb_tls::Error::File { what, path, why } => Error::File { what, path, why },
            adverb_tls::Error::Tls(text) => Error::Tls(text),
            adverb_tls::Error::Nameless => Error::Protocol("a certificate without a name"),
            adverb_tls::Error::Lost(source) => Error::Lost(source),
        }
    }
}

/// A connection that broke in the middle of a message: TLS's complaint, where it is one.
pub(crate) fn lost(source: io::Error) -> Error {
    #[cfg(feature = "service")]
    return adverb_tls::Error::lost(source).into();
    #[cfg(not(feature = "service"))]
    Error::Lost(source)
}
