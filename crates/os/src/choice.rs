//! Settings that are one of a few names. Each says its names once, for the environment variable, the command
//! line and messages alike.

use std::fmt;
use std::str::FromStr;

/// A setting that is one of a few names.
pub trait Choice: Copy + PartialEq + Send + Sync + 'static {
    /// Each, in the order in which help lists them.
    const ALL: &'static [Self];

    /// As it is written.
    fn name(self) -> &'static str;

    /// What it means, for help.
    fn help(self) -> &'static str;

    /// The one of this name.
    fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|choice| choice.name() == text)
    }
}

/// How frames travel between processes of one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathPolicy {
    /// Shared memory where both ends are near, UDP beyond.
    #[default]
    Auto,
    /// UDP always.
    Udp,
}

impl Choice for PathPolicy {
    const ALL: &'static [Self] = &[PathPolicy::Auto, PathPolicy::Udp];

    fn name(self) -> &'static str {
        match self {
            PathPolicy::Auto => "auto",
            PathPolicy::Udp => "udp",
        }
    }

    fn help(self) -> &'static str {
        match self {
            PathPolicy::Auto => "Shared memory between processes of this host and user, UDP to all others",
            PathPolicy::Udp => "UDP always",
        }
    }
}

impl FromStr for PathPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<PathPolicy, &'static str> {
        PathPolicy::named(text).ok_or("want auto or udp")
    }
}

impl fmt::Display for PathPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for &policy in PathPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!(PathPolicy::named("shm"), None);
    }
}
