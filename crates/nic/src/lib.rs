pub mod attr;
pub mod error;
pub mod event;
pub mod ids;
pub mod limits;
pub mod memory;
mod slab;
pub mod work;
