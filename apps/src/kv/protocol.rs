//! Calls to a replica's server, through [`adverb_grants`].

use super::layout::Layout;
use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Serialize, Deserialize, Debug)]
pub(super) enum Call<'a> {
    Layout,
    /// Without a version the server assigns one.
    Set {
        #[serde(borrow)]
        key: &'a [u8],
        #[serde(borrow)]
        value: &'a [u8],
        version: Option<u64>,
    },
}

/// What the server answers.
#[derive(Serialize, Deserialize, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Layout(Layout),
    Stored {
        version: u64,
    },
    /// It has this version, which is higher.
    Superseded {
        version: u64,
    },
}
