//! Where processes of one user meet: folders that nobody else may enter.

use crate::sys;
use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a folder cannot be used.
#[derive(Debug)]
pub enum FolderError {
    /// The system refused to make it or to look at it.
    Unusable {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It belongs to another user or is open to others.
    Foreign {
        /// Its path.
        path: PathBuf,
    },
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FolderError::Unusable { path, source } => {
                write!(f, "{} cannot be used: {source}", path.display())
            }
            FolderError::Foreign { path } => {
                write!(f, "{} belongs to another user or is open to others", path.display())
            }
        }
    }
}

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FolderError::Unusable { source, .. } => Some(source),
            FolderError::Foreign { .. } => None,
        }
    }
}

/// The directory that processes of this user share unless settings name another.
pub fn shared_directory() -> PathBuf {
    let shm = PathBuf::from(format!("/dev/shm/adverb-{}", sys::effective_uid()));
    // Not the runtime directory first: its variable may be set for one process and not for the other, and
    // the two would not meet.
    let usable = private_folder(&shm).is_ok();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if !usable && !runtime.is_empty() => Path::new(&runtime).join("adverb"),
        _ => shm,
    }
}

/// Makes a folder that only this user may enter, or checks that it is one.
pub fn private_folder(path: &Path) -> Result<(), FolderError> {
    let failed = |source| FolderError::Unusable { path: path.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(failed(e)),
    }
    let found = fs::symlink_metadata(path).map_err(failed)?;
    if !found.is_dir() || found.uid() != sys::effective_uid() || found.mode() & 0o022 != 0 {
        return Err(FolderError::Foreign { path: path.to_owned() });
    }
    Ok(())
}

/// How a file is opened that only this user may read and write.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    // O_CLOEXEC is std's default.
    options.read(true).write(true).mode(0o600);
    options
}

/// The number of this thread's network namespace.
pub fn namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_private_folder_is_made_or_checked() {
        let base = crate::test_folder("folders");
        let folder = base.join("mine");
        private_folder(&folder).unwrap();
        private_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o720)).unwrap();
        assert!(matches!(private_folder(&folder), Err(FolderError::Foreign { .. })));
        let link = base.join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        assert!(matches!(private_folder(&link), Err(FolderError::Foreign { .. })), "a link may be moved");
        let nowhere = private_folder(&base.join("no/such")).unwrap_err();
        assert!(matches!(nowhere, FolderError::Unusable { .. }));
        assert!(nowhere.to_string().contains("no/such"));
        assert_ne!(namespace(), 0);
    }
}
