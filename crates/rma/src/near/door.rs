//! Where peers of this host find a NIC: a Unix socket named after its address, in a folder for one user and
//! one network namespace.
//!
//! Who has the UDP port of an address owns its door. Doors that dead processes left are removed when one is
//! opened.

use crate::error::OpenError;
use adverb_os::folders::{FolderError, namespace, private_folder};
use adverb_os::unix::{Channel, Listener};
use adverb_wire::Gid;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// Doors that are looked at when one is opened.
const SWEPT_MAX: usize = 1024;

/// This NIC's door: open until it is dropped.
pub(super) struct Door {
    listener: Listener,
    folder: PathBuf,
    pub(super) path: PathBuf,
}

fn path_of(folder: &Path, address: IpAddr) -> PathBuf {
    folder.join(address.to_string())
}

/// Removes the doors that dead processes left, and whatever stands at `own`. Nobody is behind a door that
/// refuses.
fn sweep(folder: &Path, own: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)?.take(SWEPT_MAX) {
        let path = entry?.path();
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if Channel::connect_at_once(&path).err().is_some_and(refused) {
            remove(&path)?;
        }
    }
    remove(own)
}

/// A door that closes meanwhile removes itself.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What is wrong with a folder.
fn plain(error: FolderError) -> io::Error {
    match error {
        FolderError::Unusable { source, .. } => source,
        foreign @ FolderError::Foreign { .. } => {
            io::Error::new(io::ErrorKind::PermissionDenied, foreign.to_string())
        }
    }
}

impl Door {
    /// Opens the door of an address in this user's directory.
    pub fn open(directory: &Path, address: IpAddr) -> Result<Door, OpenError> {
        let folder = directory.join(format!("1rma-{}", namespace()));
        let failed = |source| OpenError::Door(folder.clone(), source);
        for folder in [directory, &folder] {
            private_folder(folder).map_err(|error| failed(plain(error)))?;
        }
        // While it is held, nobody else finds a door that is not open yet, or removes one.
        let lock = File::open(&folder).and_then(|file| file.lock().map(|()| file)).map_err(failed)?;
        let path = path_of(&folder, address);
        sweep(&folder, &path).map_err(failed)?;
        let listener = Listener::bind(&path).map_err(failed)?;
        drop(lock);
        Ok(Door { listener, folder, path })
    }

    pub fn fd(&self) -> RawFd {
        self.listener.fd()
    }

    /// Who is at the door, if anybody is: only of the own user.
    pub fn accept(&self) -> io::Result<Channel> {
        loop {
            let channel = self.listener.accept()?;
            if channel.is_of_own_user() {
                return Ok(channel);
            }
        }
    }

    /// Goes to a peer's door. Does not wait.
    pub fn knock(&self, peer: Gid) -> io::Result<Channel> {
        let channel = Channel::connect_at_once(&path_of(&self.folder, peer.ip()))?;
        if channel.is_of_own_user() { Ok(channel) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The port is still this NIC's, so it is its own door. One that stays is replaced by the next NIC of
        // the address.
        let _ = std::fs::remove_file(&self.path);
    }
}
