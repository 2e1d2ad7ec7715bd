//! A daemon's socket in the file system. Only what a dead daemon left there may be taken away: a file of
//! that name, another program's socket, or one whose listener is busy, is somebody's.

use crate::unix::{Channel, Listener};
use std::fs::{self, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Seconds that a listener with many who wait has, to take one more.
const PATIENCE_S: u32 = 1;

/// A socket that is listened at, and removed at the end if it is still there.
pub struct SocketFile {
    /// To accept connections from.
    pub listener: Listener,
    path: PathBuf,
    /// Device and number of the file.
    file: (u64, u64),
}

fn name_of(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// Removes a socket that nobody listens at any more.
fn clear(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let what = "something that is no socket is there, and stays; choose another path, or remove it";
        return Err(io::Error::new(ErrorKind::AlreadyExists, what));
    }
    match Channel::connect(path, PATIENCE_S) {
        Ok(_) => Err(io::Error::new(ErrorKind::AddrInUse, "another daemon listens there")),
        // What the kernel says of a socket whose listener has ended, and of nothing else.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => {
            let what = format!("a socket is there that may be in use, and stays ({error})");
            Err(io::Error::new(ErrorKind::AddrInUse, what))
        }
    }
}

impl SocketFile {
    /// Listens at a path, for whom these permissions let write to it.
    pub fn bind(path: &Path, mode: u32) -> io::Result<SocketFile> {
        clear(path)?;
        let listener = Listener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let file = name_of(&fs::symlink_metadata(path)?);
        Ok(SocketFile { listener, path: path.to_owned(), file })
    }
}

impl SocketFile {
    /// Takes it out of the file system.
    pub fn remove(&self) {
        // Somebody may have put something else there. A socket that nobody listens at is an error later than
        // one that is not there.
        if fs::symlink_metadata(&self.path).is_ok_and(|about| name_of(&about) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let folder = std::env::temp_dir().join(format!("adverb-os-socket-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let refused = |path: &Path| SocketFile::bind(path, 0o600).map(drop).unwrap_err().to_string();

        let text = folder.join("text");
        fs::write(&text, "a letter").unwrap();
        assert!(refused(&text).contains("no socket"));
        assert_eq!(fs::read_to_string(&text).unwrap(), "a letter");
        let link = folder.join("link");
        std::os::unix::fs::symlink(&text, &link).unwrap();
        assert!(refused(&link).contains("no socket") && link.exists());

        let live = folder.join("live");
        let first = SocketFile::bind(&live, 0o600).unwrap();
        assert!(refused(&live).contains("another daemon"));
        // Another program's, which speaks in streams: the kernel does not say that nobody listens.
        let stream = folder.join("stream");
        let other = UnixListener::bind(&stream).unwrap();
        assert!(refused(&stream).contains("may be in use") && stream.exists());
        drop(other);
        drop(first);
        assert!(!live.exists(), "removed at the end");

        let dead = folder.join("dead");
        drop(Listener::bind(&dead).unwrap());
        assert!(dead.exists());
        let heir = SocketFile::bind(&dead, 0o600).unwrap();
        assert_eq!(fs::metadata(&dead).unwrap().mode() & 0o777, 0o600);
        fs::remove_file(&dead).unwrap();
        fs::write(&dead, "a letter").unwrap();
        drop(heir);
        assert!(dead.exists(), "not what took its place");
        fs::remove_dir_all(folder).unwrap();
    }
}
