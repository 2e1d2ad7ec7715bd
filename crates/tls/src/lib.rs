//! Who is who out of band: certificates on both sides, TLS 1.3, and the name in a client's certificate.
//! Nothing here knows a NIC, nor what is said in a connection; and nobody who only needs a NIC builds this.
//!
//! ```text
//! identity       a side's certificate and key, and the CA that signs the other side's
//! stream         connections that are made, and that are accepted
//! certificates   a CA and certificates for trials
//! error          what TLS complains about, and what helps
//! ```
#![forbid(unsafe_code)]

mod certificates;
mod error;
mod identity;
mod stream;

pub use certificates::{Holder, write_trial_certificates};
pub use error::Error;
pub use identity::Identity;
pub use stream::{Acceptor, ClientStream, Connector, ServerStream, Timed, is_for};
