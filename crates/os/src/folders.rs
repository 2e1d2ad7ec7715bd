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
    let own = format!("adverb-{}", sys::effective_uid());
    // Not the runtime directory first: its variable may be set for one process and not for the other, and
    // the two would not meet.
    let foreign = match shared_in(Path::new("/dev/shm"), &own) {
        Ok(found) => return found,
        Err(foreign) => foreign,
    };
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if !runtime.is_empty() => Path::new(&runtime).join("adverb"),
        _ => foreign,
    }
}

/// This user's folder in a directory where anybody may make some: of this name, or, where another user sits
/// on that, of the name with a random end, which nobody can have guessed. Where several stand, because
/// processes made them at the same time, all take the oldest. `Err` is the first name, where nothing can be
/// made.
fn shared_in(directory: &Path, name: &str) -> Result<PathBuf, PathBuf> {
    let first = directory.join(name);
    match private_folder(&first) {
        Ok(()) => return Ok(first),
        Err(FolderError::Unusable { .. }) => return Err(first),
        Err(FolderError::Foreign { .. }) => {}
    }
    if let Some(found) = oldest(directory, name) {
        return Ok(found);
    }
    let made = directory.join(format!("{name}.{:016x}", sys::random_seed()));
    match private_folder(&made) {
        Ok(()) => Ok(oldest(directory, name).unwrap_or(made)),
        Err(_) => Err(first),
    }
}

/// The oldest of this user's folders whose names are this one with an end.
fn oldest(directory: &Path, name: &str) -> Option<PathBuf> {
    let begins = format!("{name}.");
    let entries = fs::read_dir(directory).ok()?.flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(|n| n.starts_with(&begins)));
    let own = named.map(|entry| entry.path()).filter(|path| is_private(path).unwrap_or(false));
    own.min_by_key(|path| (fs::symlink_metadata(path).and_then(|found| found.created()).ok(), path.clone()))
}

/// Makes a folder that only this user may enter, or checks that it is one.
pub fn private_folder(path: &Path) -> Result<(), FolderError> {
    let failed = |source| FolderError::Unusable { path: path.to_owned(), source };
    loop {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
        match is_private(path) {
            Ok(true) => return Ok(()),
            Ok(false) => return Err(FolderError::Foreign { path: path.to_owned() }),
            // Somebody has removed it since.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

fn is_private(path: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(path)?;
    Ok(found.is_dir() && found.uid() == sys::effective_uid() && found.mode() & 0o022 == 0)
}

/// Whether a file is this user's, and nobody else may read or write it.
pub fn is_of_this_user_alone(about: &fs::Metadata) -> bool {
    about.is_file() && about.uid() == sys::effective_uid() && about.mode() & 0o077 == 0
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
    fn a_folder_that_goes_while_it_is_looked_at_is_made_again() {
        let base = crate::test_folder("goes");
        let path = base.join("folder");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_dir(&path);
                }
            });
            let all: Result<Vec<()>, _> = (0..50_000).map(|_| private_folder(&path)).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            all.unwrap();
        });
        fs::remove_dir_all(base).unwrap();
    }

    /// A folder that is open to others stands for one of another user's.
    #[test]
    fn who_sits_on_the_name_keeps_nobody_apart() {
        let base = crate::test_folder("squat");
        let name = "adverb-7";
        assert_eq!(shared_in(&base, name), Ok(base.join(name)));
        fs::remove_dir(base.join(name)).unwrap();
        fs::create_dir(base.join(name)).unwrap();
        fs::set_permissions(base.join(name), fs::Permissions::from_mode(0o777)).unwrap();
        let foreign = base.join(format!("{name}.0000000000000000"));
        fs::create_dir(&foreign).unwrap();
        fs::set_permissions(&foreign, fs::Permissions::from_mode(0o777)).unwrap();
        let found = shared_in(&base, name).unwrap();
        assert!(found != foreign && found != base.join(name), "{found:?}");
        // Another one of this user's that is younger comes after it. File systems' clocks tick a few hundred
        // times a second; of two that one tick has made, all take the first by name.
        // And where a file system does not know when it made a folder.
        let made = |path: &Path| fs::metadata(path).unwrap().created().ok();
        let other = base.join(format!("{name}.00"));
        private_folder(&other).unwrap();
        while made(&found).is_some() && made(&other) == made(&found) {
            fs::remove_dir(&other).unwrap();
            private_folder(&other).unwrap();
        }
        let first = if made(&found).is_some() { found } else { other };
        assert_eq!(shared_in(&base, name), Ok(first));
        assert_eq!(shared_in(&base.join("missing"), name), Err(base.join("missing").join(name)));
    }

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
