//! Where peers of this host find a NIC: a Unix socket named after its address, in a folder for one user and one network namespace.
//!
//! Who has the UDP port of an address owns its door; a door that a dead process left is replaced.

use crate::error::OpenError;
use crate::unix::{Channel, Listener};
use adverb_wire::Gid;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

/// See the top of this file.
pub(super) struct Door {
    listener: Listener,
    folder: PathBuf,
    path: PathBuf,
}

fn path_of(folder: &Path, address: IpAddr) -> PathBuf {
    folder.join(address.to_string())
}

impl Door {
    pub fn open(address: IpAddr) -> Result<Door, OpenError> {
        let directory = adverb_io::default_directory();
        let folder = directory.join(format!("1rma-{}", adverb_io::namespace()));
        let failed = |source| OpenError::Door(folder.clone(), source);
        for folder in [&directory, &folder] {
            adverb_io::private_folder(folder).map_err(|error| failed(io::Error::other(error)))?;
        }
        let path = path_of(&folder, address);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = Listener::bind(&path).map_err(failed)?;
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
        // The port is still this NIC's, so it is its own door. One that stays is replaced by the next NIC of the address.
        let _ = std::fs::remove_file(&self.path);
    }
}
