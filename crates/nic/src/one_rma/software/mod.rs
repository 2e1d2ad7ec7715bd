//! Software of a host above its 1RMA NIC (sections 4.4 and 6): as free of IO as the NIC, of which it uses the
//! public face only.

pub mod congestion;
pub mod executor;
mod portal;

pub use executor::{CommandExecutor, ExecutorConfig};
pub use portal::CommandPortal;
