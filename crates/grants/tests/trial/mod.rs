//! What trials of owners and their clients have alike: a folder and addresses, certificates, a client that
//! may use a cache.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

#[path = "../../../rma/tests/common/place.rs"]
mod place;

use adverb_grants::Identity;
pub use place::{Folder, address};
use std::path::Path;

/// `app` may read and set.
pub const POLICY_OF_APP: &str = "
    [[client]]
    name = 'app'
    regions = ['kv-*']
    rights = ['read']
    call = true
";

/// A certificate as `write_trial_certificates` names its files.
pub fn identity(folder: &Path, name: &str) -> Identity {
    let file = |ending: &str| folder.join(format!("{name}.{ending}"));
    Identity::load(&folder.join("ca.pem"), &file("pem"), &file("key")).unwrap()
}
