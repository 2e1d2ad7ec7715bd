//! The table, as programs of its host see it: a key has two places for its record, in turns.

use super::{Service, content, key};
use adverb_rdma::record::Record;
use adverb_rdma::{Access, Error, File, Pd, Region, Remote};
use adverb_redn::service::layout::{Extent, Layout, tag};

/// First byte of the values in their file.
pub const VALUES: u64 = 1 << 22;
/// Buckets, so many that hardly any key finds both of its own taken; the index ends before the values.
const BUCKETS: u64 = 1 << 18;

/// The table as a program of its host sees it.
pub struct Table {
    pub service: Service,
    pub index: Region,
    pub values: Region,
    layout: Layout,
    _file: File,
}

impl Table {
    pub async fn map(pd: &Pd, file: File, service: Service, layout: Option<Layout>) -> Result<Table, Error> {
        let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let index = pd.region_of_file(&file, 0, BUCKETS * 16, read).await?;
        let values = pd.region_of_file(&file, VALUES, service.values_len(), read).await?;
        let own = Layout {
            buckets: BUCKETS,
            seed: 42,
            index: index.addr(),
            values: values.addr(),
            values_len: service.values_len(),
        };
        Ok(Table { service, index, values, layout: layout.unwrap_or(own), _file: file })
    }

    fn place(&self, n: u64, version: u64) -> Extent {
        let len = self.service.record_len();
        Extent { at: (2 * n + version % 2) * len, len: len as u32 }
    }

    /// Writes a record, and stores its word.
    async fn write(&self, n: u64, version: u64, value: &[u8], bucket: u64) -> Result<(), Error> {
        let extent = self.place(n, version);
        let mut bytes = vec![0; extent.len as usize];
        let key = key(n);
        Record { version, hash: self.layout.hash(&key), key: &key, value }.emit(&mut bytes);
        self.values.write(extent.at, &bytes).await?;
        self.index.store(Layout::bucket_at(bucket) + 8, self.layout.word(extent)).await
    }

    /// The bucket that has a key.
    async fn find(&self, n: u64) -> Result<Option<u64>, Error> {
        let sought = self.layout.sought(self.layout.hash(&key(n)));
        for bucket in sought.buckets {
            if self.index.load(Layout::bucket_at(bucket)).await? == tag(sought.fingerprint) {
                return Ok(Some(bucket));
            }
        }
        Ok(None)
    }

    pub async fn insert(&self, n: u64) -> Result<(), Error> {
        let sought = self.layout.sought(self.layout.hash(&key(n)));
        for bucket in sought.buckets {
            if self.index.load(Layout::bucket_at(bucket)).await? == 0 {
                self.write(n, 1, &content(n, 1, self.service.value), bucket).await?;
                return self.index.store(Layout::bucket_at(bucket), tag(sought.fingerprint)).await;
            }
        }
        Err(Error::System(format!("no room for key {n}")))
    }

    /// Sets a key's value anew.
    pub async fn set(&self, n: u64, value: &[u8]) -> Result<(), Error> {
        let bucket = self.find(n).await?.ok_or(Error::Garbled("a key"))?;
        let word = self.index.load(Layout::bucket_at(bucket) + 8).await?;
        let extent = self.layout.extent(word).ok_or(Error::Garbled("a bucket"))?;
        let version = self.values.load(extent.at).await? + 1;
        self.write(n, version, value, bucket).await
    }

    /// Where a key's value is.
    pub async fn get(&self, n: u64) -> Result<Option<u64>, Error> {
        let Some(bucket) = self.find(n).await? else { return Ok(None) };
        let word = self.index.load(Layout::bucket_at(bucket) + 8).await?;
        let extent = self.layout.extent(word).ok_or(Error::Garbled("a bucket"))?;
        // Behind a record's head and its key.
        Ok(Some(extent.at + 32 + 8))
    }

    pub fn told(&self) -> Vec<u8> {
        let Layout { buckets, seed, index, values, values_len } = self.layout;
        let mut told = [buckets, seed, index, values, values_len].map(u64::to_be_bytes).concat();
        told.extend_from_slice(&self.index.remote().to_bytes());
        told.extend_from_slice(&self.values.remote().to_bytes());
        told
    }
}

/// A layout, and where index and values are, as [`Table::told`] has them.
pub fn heard(told: &[u8]) -> Result<(Layout, Remote, Remote), Error> {
    let garbled = || Error::Garbled("a table");
    let (words, regions) = told.split_at_checked(40).ok_or_else(garbled)?;
    let words: Vec<u64> = words.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
    let [buckets, seed, index, values, values_len] = words[..] else { return Err(garbled()) };
    let (first, second) = regions.split_at_checked(Remote::LEN).ok_or_else(garbled)?;
    let region = |bytes| Remote::from_bytes(bytes).ok_or_else(garbled);
    Ok((Layout { buckets, seed, index, values, values_len }, region(first)?, region(second)?))
}
