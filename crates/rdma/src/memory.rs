//! Protection domains and registered memory.
//!
//! Peers and the NIC read and write a region's bytes at any moment. So they are copied in and out and
//! never borrowed: a copy may be torn, but an aligned word is whole. The driver owns them, and keeps
//! them for as long as a work request can reach them.

use crate::error::Error;
use crate::queue::Qp;
use crate::seam::{Answer, Backing, Call, FileId, MemoryId, MemoryInfo, Object};
use crate::{Rdma, done, wrong};
use adverb_nic::{Access, PdId, Sge};
use adverb_wire::Key;
use std::rc::Rc;

/// A protection domain: which regions which queue pairs may use.
#[derive(Clone)]
pub struct Pd {
    pub(crate) inner: Rc<PdInner>,
}

pub(crate) struct PdInner {
    pub rdma: Rdma,
    pub id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.rdma.world.release(Object::Pd(self.id));
    }
}

impl Pd {
    pub(crate) fn new(rdma: &Rdma, id: PdId) -> Pd {
        Pd { inner: Rc::new(PdInner { rdma: rdma.clone(), id }) }
    }

    /// The NIC's name for it.
    pub fn id(&self) -> PdId {
        self.inner.id
    }

    /// New memory of zeros.
    pub async fn region(&self, len: u64, access: Access) -> Result<Region, Error> {
        self.region_of(Backing::Zeros { len }, access, Keeps::Nothing).await
    }

    /// New memory of zeros on the NIC itself. Its addresses count from 0, so that it is told apart by its key
    /// alone. Where hardware costs time, atomics on it take no round trip over PCIe.
    pub async fn device_region(&self, len: u64, access: Access) -> Result<Region, Error> {
        self.region_of(Backing::Device { len }, access, Keeps::Nothing).await
    }

    /// A part of a file of memory.
    pub async fn region_of_file(
        &self,
        file: &File,
        at: u64,
        len: u64,
        access: Access,
    ) -> Result<Region, Error> {
        let backing = Backing::File { file: file.inner.id, at, len };
        self.region_of(backing, access, Keeps::File { _file: file.clone() }).await
    }

    /// The bytes of a region, under the same addresses: for the queue pairs of this domain, with keys of its
    /// own.
    pub async fn region_again(&self, region: &Region, access: Access) -> Result<Region, Error> {
        let keeps = Keeps::Region { _region: region.clone() };
        self.region_of(Backing::Same(region.id()), access, keeps).await
    }

    pub(crate) async fn region_of(
        &self,
        backing: Backing,
        access: Access,
        keeps: Keeps,
    ) -> Result<Region, Error> {
        let call = Call::CreateRegion { pd: self.id(), backing, access };
        match self.inner.rdma.world.call(call).await? {
            Answer::Memory(info) => {
                let inner = RegionInner {
                    rdma: self.inner.rdma.clone(),
                    info,
                    _pd: Some(self.clone()),
                    _keeps: keeps,
                };
                Ok(Region { inner: Rc::new(inner) })
            }
            other => wrong(&other),
        }
    }
}

/// What a region's bytes are part of, which stays as long as the region.
pub(crate) enum Keeps {
    Nothing,
    File { _file: File },
    Region { _region: Region },
    Qp { _qp: Qp },
}

/// A file of memory: see [`Rdma::create_file`].
#[derive(Clone)]
pub struct File {
    inner: Rc<FileInner>,
}

struct FileInner {
    rdma: Rdma,
    id: FileId,
    /// Made by this program, and given back by it.
    own: bool,
}

impl Drop for FileInner {
    fn drop(&mut self) {
        if self.own {
            self.rdma.world.release(Object::File(self.id));
        }
    }
}

impl File {
    pub(crate) fn new(rdma: &Rdma, id: FileId, own: bool) -> File {
        File { inner: Rc::new(FileInner { rdma: rdma.clone(), id, own }) }
    }

    pub(crate) fn id(&self) -> FileId {
        self.inner.id
    }

    /// Its number, for another program to find it by. On a host it is the descriptor, which a child
    /// process inherits.
    pub fn number(&self) -> i32 {
        self.inner.id.0
    }
}

/// Registered memory. Clones are the same memory.
#[derive(Clone)]
pub struct Region {
    inner: Rc<RegionInner>,
}

struct RegionInner {
    rdma: Rdma,
    info: MemoryInfo,
    /// Kept for as long as its region.
    _pd: Option<Pd>,
    _keeps: Keeps,
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        self.rdma.world.release(Object::Memory(self.info.id));
    }
}

impl Region {
    /// Memory without a domain: 1RMA's.
    pub(crate) fn without_domain(rdma: &Rdma, info: MemoryInfo) -> Region {
        Region { inner: Rc::new(RegionInner { rdma: rdma.clone(), info, _pd: None, _keeps: Keeps::Nothing }) }
    }

    /// The driver's name for it.
    pub fn id(&self) -> MemoryId {
        self.inner.info.id
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.inner.info.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address by which work requests name its first byte.
    pub fn addr(&self) -> u64 {
        self.inner.info.addr
    }

    /// The key for own work requests.
    pub fn lkey(&self) -> Key {
        self.inner.info.lkey
    }

    /// How a peer names it.
    pub fn remote(&self) -> Remote {
        Remote { addr: self.addr(), len: self.len(), rkey: self.inner.info.rkey }
    }

    /// A piece of it for a work request.
    pub fn piece(&self, at: u64, len: u32) -> Result<Sge, Error> {
        let of = self.len();
        if at > of || u64::from(len) > of - at {
            return Err(Error::Range { at, len: len.into(), of });
        }
        Ok(Sge { addr: self.addr() + at, len, lkey: self.lkey() })
    }

    /// The word at a multiple of 8, whole, in the host's byte order.
    pub async fn load(&self, at: u64) -> Result<u64, Error> {
        match self.inner.rdma.world.call(Call::LoadWord { memory: self.id(), at }).await? {
            Answer::Word(word) => Ok(word),
            other => wrong(&other),
        }
    }

    /// Writes the word at a multiple of 8, whole. Who sees it also sees what was written before.
    pub async fn store(&self, at: u64, value: u64) -> Result<(), Error> {
        done(self.inner.rdma.world.call(Call::StoreWord { memory: self.id(), at, value }).await?)
    }

    /// Copies bytes out. What a peer writes meanwhile may be seen in part.
    pub async fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        match self.inner.rdma.world.call(Call::Load { memory: self.id(), at, len }).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            other => wrong(&other),
        }
    }

    /// Copies bytes in. A peer that reads meanwhile may see a part of them.
    pub async fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let bytes = bytes.to_vec();
        done(self.inner.rdma.world.call(Call::Store { memory: self.id(), at, bytes }).await?)
    }
}

/// A peer's region: where it is, and the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Key.
    pub rkey: Key,
}

impl Remote {
    /// Bytes of [`Remote::to_bytes`].
    pub const LEN: usize = 20;

    /// As it is told to a peer: address, length and key, big-endian.
    pub fn to_bytes(&self) -> [u8; Remote::LEN] {
        let mut out = [0; Remote::LEN];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        out
    }

    /// From exactly such bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Remote> {
        let (addr, rest) = bytes.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let rkey: &[u8; 4] = rest.try_into().ok()?;
        let remote = Remote {
            addr: u64::from_be_bytes(*addr),
            len: u64::from_be_bytes(*len),
            rkey: Key(u32::from_be_bytes(*rkey)),
        };
        remote.addr.checked_add(remote.len).map(|_| remote)
    }

    /// The address of a part.
    pub fn at(&self, at: u64, len: u64) -> Result<u64, Error> {
        if at > self.len || len > self.len - at {
            return Err(Error::Range { at, len, of: self.len });
        }
        Ok(self.addr + at)
    }
}
