//! Gets that a recycled chain answers: in the simulator under faults, and on real NICs.

mod common;

use adverb_rdma::record::{Record, record_len};
use adverb_rdma::{Access, Connect, Error, Pd, Rdma, Region, Remote};
use adverb_redn::Loaded;
use adverb_redn::chain::Address;
use adverb_redn::service::chain::{Lookup, Shape};
use adverb_redn::service::client::{Client, Got, Half};
use adverb_redn::service::layout::{Extent, Layout, tag};
use common::{Said, text, two_for_real, two_in_simulator};

/// A table that a test writes: keys where there is room, and no displacement.
struct Table {
    pd: Pd,
    index: Region,
    values: Region,
    layout: Layout,
    next: u64,
    version: u64,
}

impl Table {
    async fn new(rdma: &Rdma, buckets: u64, values_len: u64) -> Said<Table> {
        let pd = rdma.create_pd().await.map_err(text)?;
        let read = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let index = pd.region(buckets * 16, read).await.map_err(text)?;
        let values = pd.region(values_len, Access::LOCAL_WRITE).await.map_err(text)?;
        let layout = Layout { buckets, seed: 42, index: index.addr(), values: values.addr(), values_len };
        assert!(layout.is_sound(), "{layout:x?}");
        Ok(Table { pd, index, values, layout, next: 0, version: 0 })
    }

    /// Writes a record, round and round, and returns where.
    async fn record(&mut self, key: &[u8], value: &[u8]) -> Said<Extent> {
        let len = record_len(key.len(), value.len());
        if self.next + len as u64 > self.layout.values_len {
            self.next = 0;
        }
        self.version += 1;
        let mut bytes = vec![0; len];
        Record { version: self.version, hash: self.layout.hash(key), key, value }.emit(&mut bytes);
        self.values.write(self.next, &bytes).await.map_err(text)?;
        let at = self.next;
        self.next += len as u64;
        Ok(Extent { at, len: len as u32 })
    }

    /// Inserts a key, or replaces its value. False if both its buckets are others'.
    async fn set(&mut self, key: &[u8], value: &[u8]) -> Said<bool> {
        let extent = self.record(key, value).await?;
        let sought = self.layout.sought(self.layout.hash(key));
        for own in [true, false] {
            for bucket in sought.buckets {
                let at = Layout::bucket_at(bucket);
                let found = self.index.load(at).await.map_err(text)?;
                if found == (if own { tag(sought.fingerprint) } else { 0 }) {
                    self.index.store(at + 8, self.layout.word(extent)).await.map_err(text)?;
                    self.index.store(at, tag(sought.fingerprint)).await.map_err(text)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Admits the next client.
async fn admit(
    rdma: &Rdma,
    table: &Table,
    listener: &adverb_rdma::Listener,
    shape: Shape,
) -> Said<(Loaded, adverb_rdma::Line)> {
    let asked = listener.accept().await.map_err(text)?;
    let buffer = Remote::from_bytes(asked.own().map_err(text)?).ok_or("a buffer")?;
    let lookup = Lookup::new(shape);
    let mut loaded = Loaded::create(rdma, &table.pd, lookup.chain).await.map_err(text)?;
    let of =
        |region: &Region| Address { addr: region.addr(), lkey: region.lkey(), rkey: region.remote().rkey };
    loaded.give(lookup.index, Address { lkey: adverb_rdma::Key(0), ..of(&table.index) });
    loaded.give(lookup.values, Address { rkey: adverb_rdma::Key(0), ..of(&table.values) });
    loaded.give(lookup.buffer, Address { addr: buffer.addr, rkey: buffer.rkey, ..Address::default() });
    loaded.connect(&Connect::default()).await.map_err(text)?;
    let mut told = Vec::new();
    let Layout { buckets, seed, index, values, values_len } = table.layout;
    for word in [buckets, seed, index, values, values_len] {
        told.extend_from_slice(&word.to_be_bytes());
    }
    let how = Connect { access: Access::empty(), ..Connect::default() };
    let qp = loaded.qp(lookup.client).clone();
    let line = asked.accept(&qp, &told, &how).await.map_err(text)?;
    loaded.start().await.map_err(text)?;
    Ok((loaded, line))
}

/// A client of what is served under this name.
async fn client(rdma: &Rdma, name: &str, shape: Shape) -> Result<(Client, adverb_rdma::Line), Error> {
    let half = Half::new(rdma, shape).await?;
    let deadline = rdma.now().await? + adverb_rdma::Duration::from_ms(5000);
    let own = half.buffer.remote().to_bytes();
    let (line, told) = half.qp.connect(name, &own, &Connect::default(), Some(deadline)).await?;
    let words: Vec<u64> = told.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)).collect();
    let [buckets, seed, index, values, values_len] = words[..] else { return Err(Error::Garbled("layout")) };
    Ok((half.connected(Layout { buckets, seed, index, values, values_len }).await?, line))
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn value(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize * 131 + at * 7) as u8).collect()
}

const SMALL: Shape = Shape { slots: 16, reply_len: 1024 };

/// Serves keys 0..count, then until it is stopped.
async fn serve(rdma: Rdma, name: String, count: u64, len: usize, shape: Shape) -> Said<()> {
    let listener = rdma.listen(&name).await.map_err(text)?;
    let mut table = Table::new(&rdma, 1 << 14, 1 << 20).await?;
    for n in 0..count {
        if !table.set(&key(n), &value(n, len)).await? {
            return Err(format!("no room for key {n}"));
        }
    }
    let _served = admit(&rdma, &table, &listener, shape).await?;
    rdma.until(&[adverb_rdma::On::Stop], None).await.map_err(text)?;
    Ok(())
}

/// Gets of keys that are there and of keys that are not.
async fn ask(rdma: Rdma, name: String, count: u64, len: usize, shape: Shape, gets: u64) -> Said<()> {
    let (mut client, _line) = client(&rdma, &name, shape).await.map_err(text)?;
    for n in 0..gets {
        let n = n * 7919 % (count + count / 4);
        let got = client.get(&key(n)).await.map_err(|error| format!("get {n}: {error}"))?;
        let expected = if n < count { Got::Value(value(n, len)) } else { Got::Missing };
        if got != expected {
            return Err(format!("key {n}: {got:?}"));
        }
    }
    let counters = client.counters;
    (counters.torn == 0 && counters.strangers == 0).then_some(()).ok_or(format!("{counters:?}"))
}

#[test]
fn a_chain_answers_hits_and_misses_for_ever() {
    two_in_simulator(
        "neutral",
        |rdma, name| serve(rdma, name, 200, 64, SMALL),
        |rdma, name| ask(rdma, name, 200, 64, SMALL, 1000),
    );
    two_for_real(
        10,
        |rdma, name| serve(rdma, name, 200, 64, SMALL),
        |rdma, name| ask(rdma, name, 200, 64, SMALL, 1000),
    );
}
