//! Why a NIC could not be opened: each error names what was tried, and what helps.

use adverb_os::folders::FolderError;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Why [`Host::open`](crate::Host::open) or [`devices`](crate::devices) failed.
#[derive(Debug)]
pub enum OpenError {
    /// The address is not one of this host's.
    Address {
        /// The address asked for.
        address: IpAddr,
        /// What binding to it said.
        source: io::Error,
    },
    /// A port at a switch needs an address, and none is given.
    ViaAddress {
        /// The address given, if it is not a host's.
        address: Option<IpAddr>,
    },
    /// The switch is not there, or does not give the address.
    Via {
        /// Its name.
        switch: PathBuf,
        /// The address.
        address: IpAddr,
        /// What was said.
        source: io::Error,
    },
    /// Another program holds UDP port 4791 of the address.
    PortTaken {
        /// The address.
        address: IpAddr,
        /// The directory in which the holder is not.
        directory: PathBuf,
    },
    /// The directory of processes cannot be used.
    Directory {
        /// Its path.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
    /// The directory belongs to another user or is open to others.
    ForeignDirectory {
        /// Its path.
        path: PathBuf,
    },
    /// Running processes of this address use another version of adverb, whose shared memory is laid out
    /// differently.
    OtherVersion {
        /// The address.
        address: IpAddr,
        /// The directory.
        path: PathBuf,
    },
    /// There is no agent of StaR's registry at the address, or it does not take this process.
    Registry {
        /// The address.
        address: IpAddr,
        /// What was said.
        source: io::Error,
    },
    /// StaR's registry is asked for where there is none.
    RegistryUse {
        /// Where.
        what: &'static str,
    },
    /// A process holds the lock under which slots are given out, and does not go on.
    Held {
        /// The table that it has locked.
        path: PathBuf,
        /// Its number, 0 if it is in another PID namespace.
        holder: u32,
    },
    /// All slots are taken by live processes.
    Full {
        /// The directory.
        path: PathBuf,
    },
    /// This process has this NIC open already.
    AlreadyOpen {
        /// The address.
        address: IpAddr,
    },
    /// A socket, thread or file could not be made.
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The capture or counters file cannot be written.
    File {
        /// The setting that names it.
        option: &'static str,
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Address { address, source } => write!(
                f,
                "{address} cannot be bound ({source}); set address= in ADVERB to an address of this host"
            ),
            OpenError::ViaAddress { .. } | OpenError::Via { .. } => self.fmt_via(f),
            OpenError::PortTaken { address, directory } => write!(
                f,
                "UDP port 4791 of {address} is taken by a program that is not in {} (another user's, another \
                 container's, or the kernel's rdma_rxe); end it, or set address= in ADVERB to another \
                 address of this host, such as 127.0.0.2",
                directory.display()
            ),
            OpenError::Directory { path, source } => write!(
                f,
                "the directory of processes {} cannot be used: {source}; set directory= in ADVERB to a \
                 directory on a memory file system that all processes of this user can write",
                path.display()
            ),
            OpenError::ForeignDirectory { path } => write!(
                f,
                "the directory of processes {} belongs to another user or is open to others; remove it, or \
                 set directory= in ADVERB to another one",
                path.display()
            ),
            OpenError::OtherVersion { address, path } => write!(
                f,
                "running processes in {} use another version of adverb, which shares {address} in another \
                 way; end them, or set address= in ADVERB to another address of this host, such as 127.0.0.2",
                path.display()
            ),
            OpenError::Held { path, holder: 0 } => write!(
                f,
                "a process of another PID namespace holds {} and does not go on; continue it or end it",
                path.display()
            ),
            OpenError::Held { path, holder } => write!(
                f,
                "process {holder} holds {} and does not go on; continue it (kill -CONT {holder}) or end it",
                path.display()
            ),
            OpenError::Full { path } => write!(
                f,
                "all 254 process slots in {} are taken by running processes; end some, or give others \
                 another address= in ADVERB",
                path.display()
            ),
            OpenError::AlreadyOpen { address } => {
                write!(f, "this process has already opened the NIC of {address}; a process opens it once")
            }
            OpenError::Registry { address, source } => write!(
                f,
                "star_registry= in ADVERB needs the agent of {address}, which cannot be reached ({source}); \
                 start it with `adverb star registry --address {address} ..`"
            ),
            OpenError::RegistryUse { what } => write!(
                f,
                "star_registry= in ADVERB is not for {what}; it goes with a verbs program and transport= \
                 star, star-server or star-client"
            ),
            OpenError::System { what, source } => write!(f, "{what} failed: {source}"),
            OpenError::File { option, path, source } => write!(
                f,
                "{option}={} in ADVERB cannot be written: {source}; name a file in a writable directory",
                path.display()
            ),
        }
    }
}

impl OpenError {
    /// What is wrong with a port at a switch.
    fn fmt_via(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::ViaAddress { address: Some(address) } => {
                write!(f, "{address} is no host's address; set another address= in ADVERB")
            }
            OpenError::Via { switch, address, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "the switch {} does not give {address}: {source}", switch.display())
            }
            OpenError::Via { switch, address, source } => write!(
                f,
                "the switch {} cannot be reached for {address} ({source}); start it with `adverb switch run \
                 FILE.toml`, under the name that via= in ADVERB has",
                switch.display()
            ),
            _ => write!(f, "via= in ADVERB needs an address= too, which need not be one of this host's"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Address { source, .. }
            | OpenError::Via { source, .. }
            | OpenError::Registry { source, .. }
            | OpenError::Directory { source, .. }
            | OpenError::System { source, .. }
            | OpenError::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<FolderError> for OpenError {
    fn from(error: FolderError) -> OpenError {
        match error {
            FolderError::Unusable { path, source } => OpenError::Directory { path, source },
            FolderError::Foreign { path } => OpenError::ForeignDirectory { path },
        }
    }
}
