//! The C types of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>` (rdma-core v44), stated again in Rust: the
//! same names, the same order, the same sizes.
//! `tests/abi.rs` compares every offset with the system's header.
//!
//! Flags and enums are plain integers here, because a caller may pass any value.
//!
//! Layouts only ever grow at a gated end (`verbs_context.sz`, the `len` arguments of the query calls,
//! `comp_mask`), so v44's sizes also serve programs built against newer headers.

#![allow(
    non_camel_case_types,
    non_snake_case,
    missing_docs,
    reason = "the names and their meaning are those of <infiniband/verbs.h>"
)]

/// Name, size and field offsets of one C struct.
pub struct Layout {
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [(&'static str, usize)],
}

/// Defines C structs, and the list of their layouts that `tests/abi.rs` compares with the header's.
macro_rules! c_structs {
    ($($(#[$meta:meta])* struct $name:ident { $($field:ident: $ty:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(pub $field: $ty,)*
            }
        )*

        /// The layouts of this file's structs.
        pub(super) const LAYOUTS: &[super::Layout] = &[
            $(super::Layout {
                name: stringify!($name),
                size: core::mem::size_of::<$name>(),
                fields: &[$((stringify!($field), core::mem::offset_of!($name, $field)),)*],
            },)*
        ];
    };
}

pub mod attr;
pub mod cm;
pub mod consts;
pub mod context;
pub mod kernel;
pub mod object;
pub mod queue;
pub mod work;

pub use attr::*;
pub use cm::*;
pub use consts::*;
pub use context::*;
pub use kernel::*;
pub use object::*;
pub use queue::*;
pub use work::*;

/// The layouts of all structs.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        attr::LAYOUTS,
        cm::LAYOUTS,
        context::LAYOUTS,
        kernel::LAYOUTS,
        object::LAYOUTS,
        queue::LAYOUTS,
        work::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}
