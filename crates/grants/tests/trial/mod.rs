//! What trials of owners and their clients have alike: a folder, certificates in it, a client that may use a cache.
#![allow(dead_code, reason = "each test program uses its part")]

#[path = "../../../rma/tests/common/folder.rs"]
mod folder;

use adverb_grants::Identity;
pub use folder::Folder;
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
