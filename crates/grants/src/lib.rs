//! Out of band: who gets keys of 1RMA regions (Singhvi et al., SIGCOMM 2020, section 4.2 and figure 5).
//!
//! Before a client's first operation on a region it asks the region's owner, over TLS 1.3 with certificates
//! on both sides, and gets address, RegionId and K_d: keys derived for its NIC's address, its process number
//! and the operations that the owner's [`Policy`] allows it.
//!
//! ```text
//! client                                              owner
//! Session::hold("kv-index", READ, 10 min)  ── TLS ──►  Policy: may it? ─► lease, K_d
//! rma.read(&held.key()?.0, ..)             ── 1RMA ─►  (its NIC; no software)
//!                                          ◄── news ─  Owner::rotate: the next K_d, before it is in force
//! held.refused(number) ─► the next key, no question
//! ```
//!
//! **Who names which process.** A client may ask for keys for any address and process number: they are of no
//! use to anybody else, and it could as well pass on what it reads itself. The certificate is what is
//! trusted; the NIC sets the process number.
//!
//! **Grants expire.** A lease that is not renewed ends; renewing an expired one is refused with that reason.
//! Since a key knows no time, the region then gets another key, of which all others are told ahead, within a
//! second or so. The same follows when a lease is released.
//!
//! **Rotation** ([`Owner::rotate`]) is announced: each client that listens has K_d under the next key before
//! the NIC has it. Commands that were under way then are refused, one round trip's worth; the next ones have
//! the new key. Who does not listen learns of it by the refusal, and asks.
//!
//! ```text
//! policy error wire              who may what, why not, and what is said: neither a NIC's driver nor TLS
//! registry owner                 the owner's books; its regions are of `adverb_rma`
//! server places session clock    both sides' connections, by `adverb_tls`, and their threads
//! ```
//! The second and third line are the feature `service`, which is on unless it is turned off.
//!
//! Every table is bounded: [`MAX_REGIONS`], [`MAX_LEASES`], [`MAX_LEASES_OF_CLIENT`], [`MAX_CONNECTIONS`],
//! [`MAX_CONNECTIONS_OF_CLIENT`], [`MAX_CONNECTIONS_OF_ADDRESS`], [`MAX_HANDSHAKES`],
//! [`MAX_HANDSHAKES_OF_ADDRESS`], [`MAX_MESSAGE`].
#![forbid(unsafe_code)]

#[cfg(feature = "service")]
mod clock;
mod error;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "service")]
mod owner;
#[cfg(feature = "service")]
mod places;
mod policy;
#[cfg(feature = "service")]
mod registry;
#[cfg(feature = "service")]
mod server;
#[cfg(feature = "service")]
mod session;
mod wire;

#[cfg(feature = "service")]
pub use adverb_tls::{Holder, Identity, write_trial_certificates};
pub use error::{Error, Refusal, rights_text};
#[cfg(feature = "service")]
pub use owner::{Handler, Owner, TELL_TIME};
#[cfg(feature = "service")]
pub use places::{
    MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ADDRESS, MAX_CONNECTIONS_OF_CLIENT, MAX_HANDSHAKES,
    MAX_HANDSHAKES_OF_ADDRESS,
};
pub use policy::{MAX_CLIENTS, MAX_TTL, Policy, Rule};
#[cfg(feature = "service")]
pub use registry::{MAX_LEASES, MAX_LEASES_OF_CLIENT, MAX_REGIONS};
#[cfg(feature = "service")]
pub use server::Server;
#[cfg(feature = "service")]
pub use session::{AfterRefusal, Held, Leased, Session};
pub use wire::{ALPN, MAX_HELD, MAX_MESSAGE, MAX_NAME, RegionInfo, Rotation};
