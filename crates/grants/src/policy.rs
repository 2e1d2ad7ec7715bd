//! Who may do what: the owner's decision, as a TOML file.
//!
//! ```toml
//! [[client]]
//! name = "alice"              # the first DNS name in its certificate
//! regions = ["kv-*", "log"]   # names; one star at the end stands for any rest
//! rights = ["read"]           # of read, write, rekey
//! max_ttl_s = 600             # of its leases, in seconds; 3600 when it is left out
//! call = true                 # may call the application behind the owner; false when it is left out
//! ```
//!
//! Who is not named may do nothing. A client may stand there several times, with other regions.

use crate::error::Error;
use adverb_nic::one_rma::Rights;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// Entries of a policy at most.
pub const MAX_CLIENTS: usize = 4096;
/// Longest time of a lease.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_TTL_S: u64 = 3600;

/// Which clients may have keys of which regions, and who may call the application.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// What one client may do.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The first DNS name in its certificate.
    pub client: String,
    /// Regions; one star at the end stands for any rest.
    pub regions: Vec<String>,
    /// What it may do to them.
    pub rights: Rights,
    /// Longest time of its leases.
    pub max_ttl: Duration,
    /// May call the application behind the owner.
    pub call: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    client: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    regions: Vec<String>,
    #[serde(default)]
    rights: Vec<Right>,
    #[serde(default = "default_ttl")]
    max_ttl_s: u64,
    #[serde(default)]
    call: bool,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Right {
    Read,
    Write,
    Rekey,
}

fn default_ttl() -> u64 {
    DEFAULT_TTL_S
}

impl Policy {
    /// From rules. Nobody else may do anything.
    pub fn new(rules: Vec<Rule>) -> Policy {
        Policy { rules }
    }

    /// From a file.
    pub fn load(path: &Path) -> Result<Policy, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|e| Error::Policy(format!("{}: {e}", path.display())))?;
        Policy::parse(&text).map_err(|e| match e {
            Error::Policy(why) => Error::Policy(format!("{}: {why}", path.display())),
            other => other,
        })
    }

    /// From a file's text.
    pub fn parse(text: &str) -> Result<Policy, Error> {
        let file: File = toml::from_str(text).map_err(|e| Error::Policy(e.to_string()))?;
        if file.client.len() > MAX_CLIENTS {
            return Err(Error::Policy(format!("{} clients; at most {MAX_CLIENTS}", file.client.len())));
        }
        let rule = |entry: Entry| {
            let max_ttl = Duration::from_secs(entry.max_ttl_s);
            if max_ttl.is_zero() || max_ttl > MAX_TTL {
                let longest = MAX_TTL.as_secs();
                let Entry { name, max_ttl_s, .. } = entry;
                return Err(Error::Policy(format!(
                    "client `{name}`: max_ttl_s = {max_ttl_s} is out of range; give 1 to {longest}"
                )));
            }
            let rights = entry.rights.iter().fold(Rights::empty(), |all, right| {
                all | match right {
                    Right::Read => Rights::READ,
                    Right::Write => Rights::WRITE,
                    Right::Rekey => Rights::REKEY,
                }
            });
            Ok(Rule { client: entry.name, regions: entry.regions, rights, max_ttl, call: entry.call })
        };
        Ok(Policy { rules: file.client.into_iter().map(rule).collect::<Result<_, _>>()? })
    }

    /// What a client may do to a region, and for how long at a time. `None` when it is not to know of it.
    pub fn on_region(&self, client: &str, region: &str) -> Option<(Rights, Duration)> {
        let mut found =
            self.rules_of(client).filter(|rule| rule.regions.iter().any(|name| matches(name, region)));
        let first = found.next()?;
        let both =
            |(rights, ttl): (Rights, Duration), rule: &Rule| (rights | rule.rights, ttl.min(rule.max_ttl));
        Some(found.fold((first.rights, first.max_ttl), both))
    }

    /// Whether a client may call the application.
    pub fn may_call(&self, client: &str) -> bool {
        self.rules_of(client).any(|rule| rule.call)
    }

    fn rules_of(&self, client: &str) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.client == client)
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
        [[client]]
        name = 'alice'
        regions = ['kv-*']
        rights = ['read', 'write']
        max_ttl_s = 60
        [[client]]
        name = 'alice'
        regions = ['kv-index']
        rights = ['rekey']
        call = true
        [[client]]
        name = 'bob'
    ";

    #[test]
    fn a_policy_says_who_may_do_what_and_no_more() {
        let policy = Policy::parse(TEXT).unwrap();
        let all = Rights::READ | Rights::WRITE | Rights::REKEY;
        let minute = Duration::from_secs(60);
        assert_eq!(policy.on_region("alice", "kv-index"), Some((all, minute)));
        assert_eq!(policy.on_region("alice", "kv-data"), Some((Rights::READ | Rights::WRITE, minute)));
        assert_eq!(policy.on_region("alice", "log"), None);
        assert_eq!(policy.on_region("bob", "kv-index"), None);
        assert_eq!(policy.on_region("mallory", "kv-index"), None);
        assert!(policy.may_call("alice") && !policy.may_call("bob") && !policy.may_call("mallory"));
        assert_eq!(Policy::default().on_region("alice", "kv-index"), None);
    }

    #[test]
    fn mistakes_are_told_with_place_and_remedy() {
        let refused = |text: &str| Policy::parse(text).unwrap_err().to_string();
        let wrong = refused("[[client]]\nname = 'a'\nright = ['read']");
        assert!(wrong.contains("line 3") && wrong.contains("unknown field `right`"), "{wrong}");
        let wrong = refused("[[client]]\nname = 'a'\nrights = ['delete']");
        assert!(wrong.contains("expected one of `read`, `write`, `rekey`"), "{wrong}");
        let wrong = refused("[[client]]\nname = 'a'\nmax_ttl_s = 0");
        assert!(wrong.contains("client `a`: max_ttl_s = 0 is out of range; give 1 to 86400"), "{wrong}");
        assert!(refused("[[client]]").contains("missing field `name`"));
    }
}
