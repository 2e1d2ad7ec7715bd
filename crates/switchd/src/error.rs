//! Why a switch's process cannot begin, or cannot go on.

use adverb_os::folders::FolderError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a switch cannot run, or not any longer.
#[derive(Debug)]
pub enum OpenError {
    /// The folder of its socket cannot be used.
    Folder(FolderError),
    /// Nobody can listen there.
    Socket {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file's programs do not go together.
    Config(String),
    /// The file of queue pairs whose numbers are shifted, or what it says of programs that still run.
    Shifted(String),
    /// There cannot be a recording there.
    Recording {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refused something else.
    System(io::Error),
    /// It cannot keep what the next switch in its place has to know.
    Broken(io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Folder(source) => write!(f, "{source}"),
            OpenError::Socket { path, source } => {
                write!(f, "{}: {source}; end the switch of this name, or give yours another", path.display())
            }
            OpenError::Config(what) | OpenError::Shifted(what) => write!(f, "{what}"),
            OpenError::Recording { path, source } => write!(f, "{}: {source}", path.display()),
            OpenError::System(source) => write!(f, "the switch cannot start: {source}"),
            OpenError::Broken(source) => write!(f, "{source}"),
        }
    }
}

impl std::error::Error for OpenError {}
