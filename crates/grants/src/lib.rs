//! Out of band: who gets keys of 1RMA regions (Singhvi et al., SIGCOMM 2020, section 4.2 and figure 5).
//!
//! Before a client's first operation on a region it asks the region's owner, over TLS 1.3 with certificates on both sides, and gets address, RegionId and K_d:
//! keys derived for its NIC's address, its process number and the operations that the owner's [`Policy`] allows it.
//!
//! ```text
//! client                                              owner
//! Session::hold("kv-index", READ, 10 min)  ── TLS ──►  Policy: may it? ─► lease, K_d
//! rma.read(&held.key()?.0, ..)             ── 1RMA ─►  (its NIC; no software)
//!                                          ◄── news ─  Owner::rotate: the next K_d, before it is in force
//! held.refused(number) ─► the next key, no question
//! ```
//!
//! **Who names which process.** A client may ask for keys for any address and process number: they are of no use to anybody else, and it could as well pass on
//! what it reads itself. The certificate is what is trusted; the NIC sets the process number.
//!
//! **Grants expire.** A lease that is not renewed ends; renewing an expired one is refused with that reason. Since a key knows no time, the region then gets
//! another key, of which all others are told ahead, within a second or so. The same follows when a lease is released.
//!
//! **Rotation** ([`Owner::rotate`]) is announced: each client that listens has K_d under the next key before the NIC has it. Commands that were under way then
//! are refused, one round trip's worth; the next ones have the new key. Who does not listen learns of it by the refusal, and asks.
//!
//! Every table is bounded: [`MAX_REGIONS`], [`MAX_LEASES`], [`MAX_LEASES_OF_CLIENT`], [`MAX_CONNECTIONS`], [`MAX_MESSAGE`].
#![forbid(unsafe_code)]

mod certificates;
mod clock;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod owner;
mod policy;
mod registry;
mod server;
mod session;
mod tls;
mod wire;

pub use certificates::{Holder, write_trial_certificates};
pub use error::{Error, Refusal, rights_text};
pub use owner::{Handler, Owner, TELL_TIME};
pub use policy::{MAX_CLIENTS, MAX_TTL, Policy, Rule};
pub use registry::{MAX_LEASES, MAX_LEASES_OF_CLIENT, MAX_REGIONS};
pub use server::{MAX_CONNECTIONS, Server};
pub use session::{AfterRefusal, Held, Leased, Session};
pub use tls::Identity;
pub use wire::{MAX_MESSAGE, MAX_NAME, RegionInfo, Rotation};
