//! What is wrong with a scenario: refused before time starts, with the place and the remedy.

use core::fmt;

/// A scenario that cannot run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The key at fault, or the part of the scenario.
    pub key: String,
    /// What is wrong and what to do about it.
    pub why: String,
    /// The file, once it is known.
    pub file: Option<String>,
    /// The line of the key in that file, from 1.
    pub line: Option<usize>,
}

impl Error {
    /// A fault at a key.
    pub fn new(key: impl Into<String>, why: impl Into<String>) -> Error {
        Error { key: key.into(), why: why.into(), file: None, line: None }
    }

    /// A fault of the topology.
    pub fn topology(why: String) -> Error {
        Error::new("topology", why)
    }

    /// The same fault, in a file.
    pub fn in_file(self, file: &str) -> Error {
        Error { file: Some(file.to_owned()), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            (None, Some(line)) => write!(f, "line {line}: ")?,
            (None, None) => {}
        }
        write!(f, "{}: {}", self.key, self.why)
    }
}

impl std::error::Error for Error {}
