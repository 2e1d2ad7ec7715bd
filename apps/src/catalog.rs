//! A record in remote memory: updated through queue pairs, looked up by 1RMA. One program uses both NICs.
//!
//! One process is the record's *home*. Its memory is a part of a file that both its NICs know: a word that
//! says which record is current, and slots. The home's program connects clients, and follows what they write.
//!
//! ```text
//! HEAD     version:48 slot:16     version 0: nothing yet. Every change is a compare-and-swap.
//! slots    64 records: version, value, a payload made of the value, CRC
//!
//! update   READ of HEAD (v, s) ─► WRITE of record v+1 to an own slot that is not s
//!          ─► HEAD (v, s) ─► (v+1, own)
//! look up  1RMA read of HEAD (v, s) ─► 1RMA read of slot s, which is version v and whole, or all anew
//! follow   until HEAD is another ─► loads of HEAD and of the slot, likewise
//! ```
//! **Updates need order and atomics**, which reliable connections have. **Lookups need neither**, and come
//! from anybody: a 1RMA read costs the home no connection state, and a failure is known at once.
//!
//! **Slots.** Each client has two, by its number modulo 32, and writes to the one that HEAD does not name. A
//! record in a slot may be a client's next one, in part: so it names its version and has a CRC, and what is
//! not the record that HEAD means is not taken for it. [`Bug::EarlyHead`] takes it for that.
//!
//! What the oracle is told, with the home's epoch as the object: `update` [value] → []; `look-up` [] →
//! [value], 0 before the first update. The home's own looks are lookups too.

use crate::meeting::{self, Fields, Met};
use adverb_rdma::{
    Access, Connect, Duration, Error, Gid, Grant, Instant, Line, Listener, Memory, On, Pd, Qp, Rdma, Region,
    Remote, Rights,
};

/// Slots, of which each client has two.
const SLOTS: u64 = 64;
/// Words of a record: version, value, payload, CRC.
const RECORD_WORDS: usize = 30;
/// Bytes of a record.
const RECORD: u64 = RECORD_WORDS as u64 * 8;
/// Where HEAD is, and the first slot.
const HEAD: u64 = 0;
const FIRST: u64 = 64;
/// Bytes of a home's memory.
const HOME_LEN: u64 = 16384;
/// In a client's own memory for queue pairs: where words land, and records leave.
const LANDING: u64 = 0;
const LEAVING: u64 = 64;
const OWN_LEN: u64 = 4096;
/// Attempts of an update that others are quicker than, and of a lookup that finds no whole record.
const TRIES: u32 = 64;
/// Clients at once.
const CLIENTS_MAX: usize = 32;
/// How long a lookup waits before it tries again what failed.
const PAUSE_US: u64 = 20;

/// Ways to break it on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// None.
    None,
    /// HEAD is changed before the record is written, and a record is believed to be the one that HEAD means.
    EarlyHead,
}

/// HEAD, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    version: u64,
    slot: u64,
}

impl Head {
    fn from_word(word: u64) -> Head {
        // A peer's word: whatever it says, the slot is one.
        Head { version: word >> 16, slot: (word & 0xffff) % SLOTS }
    }

    fn word(self) -> u64 {
        self.version << 16 | self.slot
    }

    fn at(self) -> u64 {
        FIRST + self.slot * RECORD
    }
}

fn emit(version: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(RECORD as usize);
    out.extend_from_slice(&version.to_le_bytes());
    (0..RECORD_WORDS - 2).for_each(|_| out.extend_from_slice(&value.to_le_bytes()));
    out.extend_from_slice(&u64::from(crc32fast::hash(&out)).to_le_bytes());
    out
}

/// The value, if this is the record that HEAD means, and whole.
fn parse(head: Head, bytes: &[u8], bug: Bug) -> Option<u64> {
    let word = |n: usize| Some(u64::from_le_bytes(bytes.get(8 * n..8 * n + 8)?.try_into().ok()?));
    let last = RECORD_WORDS - 1;
    let whole = word(last)? == u64::from(crc32fast::hash(bytes.get(..8 * last)?));
    let sound = word(0)? == head.version && whole;
    if sound || bug == Bug::EarlyHead { word(1) } else { None }
}

/// What a client is told when it comes.
struct Welcome {
    epoch: u64,
    number: u16,
    memory: Remote,
    grant: Grant,
}

impl Welcome {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = self.epoch.to_be_bytes().to_vec();
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.memory.to_bytes());
        out.extend_from_slice(&self.grant.to_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields(bytes);
        let (epoch, number) = (fields.u64()?, fields.u16()?);
        let memory = Remote::from_bytes(fields.take::<{ Remote::LEN }>()?)?;
        let grant = Grant::from_bytes(fields.0)?;
        let sound = memory.len >= HOME_LEN && grant.len() >= HOME_LEN;
        sound.then_some(Welcome { epoch, number, memory, grant })
    }
}

struct Home {
    rdma: Rdma,
    pd: Pd,
    region: Region,
    memory: Memory,
    epoch: u64,
    clients: Vec<Met>,
    last_number: u16,
}

/// The record's home: connects clients and follows the record, until the program is asked to end or the
/// record has this value. Says how many changes it has seen: of several in a row perhaps one.
pub async fn serve(rdma: &Rdma, name: &str, connect: &Connect, last: Option<u64>) -> Result<u64, Error> {
    let pd = rdma.create_pd().await?;
    let file = rdma.create_file(HOME_LEN).await?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = pd.region_of_file(&file, 0, HOME_LEN, access).await?;
    let memory = rdma.allocate_of_file(&file, 0, HOME_LEN).await?;
    let epoch = rdma.random().await?;
    let listener = rdma.listen(name).await?;
    let mut home =
        Home { rdma: rdma.clone(), pd, region, memory, epoch, clients: Vec::new(), last_number: 0 };
    let (mut seen, mut changes) = (0, 0);
    loop {
        let gone = home.clients.iter().map(|client| On::Gone(&client.line));
        // Written through queue pairs, waited for by the other NIC's name: it is one word.
        let first = [On::Stop, On::Asked(&listener), On::Word(&home.memory, HEAD, seen)];
        let on: Vec<On<'_>> = first.into_iter().chain(gone).collect();
        match rdma.until(&on, None).await? {
            Some(0) | None => return Ok(changes),
            Some(1) => {
                if let Err(error) = home.admit(&listener, connect).await {
                    // One client's mistake, or its end, is not the home's.
                    rdma.say(|| format!("a client was not connected: {error}"));
                }
            }
            Some(2) => {
                let op = rdma.operation(epoch, "look-up", &[]);
                seen = home.memory.load(HEAD).await?;
                changes += 1;
                match home.look(Head::from_word(seen)).await? {
                    Some(value) => {
                        op.end(&[value]);
                        if last == Some(value) {
                            return Ok(changes);
                        }
                    }
                    // There is a newer one.
                    None => op.void(),
                }
            }
            // Its queue pair goes with it: nothing that it has under way arrives any more.
            Some(index) => drop(home.clients.swap_remove(index - 3)),
        }
    }
}

impl Home {
    async fn admit(&mut self, listener: &Listener, connect: &Connect) -> Result<(), Error> {
        let Some(asked) = listener.try_accept().await? else { return Ok(()) };
        if self.clients.len() >= CLIENTS_MAX {
            // Not answered, so refused.
            return Ok(());
        }
        let (gid, pid) = asked.own()?.split_first_chunk::<16>().ok_or(Error::Garbled("a device"))?;
        let pid = u32::from_be_bytes(pid.try_into().map_err(|_| Error::Garbled("a device"))?);
        let grant = self.memory.grant(0..HOME_LEN, Rights::READ, Gid(*gid), pid).await?;
        self.last_number = self.last_number.wrapping_add(1);
        let (epoch, number, memory) = (self.epoch, self.last_number, self.region.remote());
        let welcome = Welcome { epoch, number, memory, grant }.to_bytes();
        self.clients.push(meeting::admit(&self.rdma, &self.pd, asked, &welcome, connect).await?);
        Ok(())
    }

    async fn look(&self, head: Head) -> Result<Option<u64>, Error> {
        Ok(parse(head, &self.memory.read(head.at(), RECORD as usize).await?, Bug::None))
    }
}

/// A client of the record.
pub struct Client {
    rdma: Rdma,
    qp: Qp,
    line: Line,
    own: Region,
    near: Memory,
    welcome: Welcome,
    bug: Bug,
}

impl Client {
    /// Connects to a home. Until the deadline it tries again while nobody listens there.
    pub async fn open(
        rdma: &Rdma,
        name: &str,
        connect: &Connect,
        deadline: Option<Instant>,
        bug: Bug,
    ) -> Result<Client, Error> {
        let device = rdma.device().await?;
        let pd = rdma.create_pd().await?;
        let own = pd.region(OWN_LEN, Access::LOCAL_WRITE).await?;
        let near = rdma.allocate(OWN_LEN).await?;
        let question = [&device.gid.0[..], &device.pid.to_be_bytes()].concat();
        let (Met { qp, line }, told) = meeting::join(rdma, &pd, name, &question, connect, deadline).await?;
        let welcome = Welcome::from_bytes(&told).ok_or(Error::Garbled("a record's home"))?;
        Ok(Client { rdma: rdma.clone(), qp, line, own, near, welcome, bug })
    }

    /// Ends with the home.
    pub fn line(&self) -> &Line {
        &self.line
    }

    /// Changes the record. False if others were quicker each time: then it has not been changed.
    pub async fn update(&self, value: u64) -> Result<bool, Error> {
        let op = self.rdma.operation(self.welcome.epoch, "update", &[value]);
        let home = &self.welcome.memory;
        self.qp.read((&self.own, LANDING), 8, (home, HEAD)).await?;
        let mut word = self.own.load(LANDING).await?;
        for _ in 0..TRIES {
            let head = Head::from_word(word);
            let mine = u64::from(self.welcome.number) % (SLOTS / 2) * 2;
            let next = Head { version: head.version + 1, slot: mine + u64::from(head.slot == mine) };
            self.own.write(LEAVING, &emit(next.version, value)).await?;
            let record = self.qp.write((&self.own, LEAVING), RECORD as u32, (home, next.at()));
            let swap = (word, next.word());
            let swapped = self.qp.compare_swap((home, HEAD), swap, (&self.own, LANDING));
            let was = if self.bug == Bug::EarlyHead {
                let was = swapped.await?;
                if was == word {
                    record.await?;
                }
                was
            } else {
                record.await?;
                swapped.await?
            };
            if was == word {
                op.end(&[]);
                return Ok(true);
            }
            word = was;
        }
        op.void();
        Ok(false)
    }

    /// Looks the record up. `None` if it changed each time before it was read, or the home did not answer.
    pub async fn look_up(&self) -> Result<Option<u64>, Error> {
        let op = self.rdma.operation(self.welcome.epoch, "look-up", &[]);
        for _ in 0..TRIES {
            match self.try_look_up().await? {
                Some(value) => {
                    op.end(&[value]);
                    return Ok(Some(value));
                }
                None => {
                    let pause = PAUSE_US + self.rdma.random().await? % PAUSE_US;
                    self.rdma.sleep(Duration::from_us(pause)).await?;
                }
            }
        }
        op.void();
        Ok(None)
    }

    async fn try_look_up(&self) -> Result<Option<u64>, Error> {
        let Client { near, welcome: Welcome { grant, .. }, .. } = self;
        if !near.get(0..8, grant, HEAD, None).await?.end.is_ok() {
            return Ok(None);
        }
        let head = Head::from_word(near.load(0).await?);
        if head.version == 0 {
            return Ok(Some(0));
        }
        if !near.get(64..64 + RECORD, grant, head.at(), None).await?.end.is_ok() {
            return Ok(None);
        }
        Ok(parse(head, &near.read(64, RECORD as usize).await?, self.bug))
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Updates and lookups, in random order.
    pub rounds: u32,
    /// Values, from 1.
    pub values: u64,
    /// How it connects.
    pub connect: Connect,
    /// How it is broken.
    pub bug: Bug,
}

/// Connects to a home, updates and looks up.
pub async fn work(rdma: &Rdma, name: &str, work: &Work) -> Result<(), Error> {
    let client = Client::open(rdma, name, &work.connect, None, work.bug).await?;
    for _ in 0..work.rounds {
        let random = rdma.random().await?;
        if random & 1 == 0 {
            client.update(random / 2 % work.values + 1).await?;
        } else {
            client.look_up().await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_record_that_the_head_means_is_believed() {
        let head = Head { version: 7, slot: 63 };
        assert_eq!(Head::from_word(head.word()), head);
        assert_eq!(Head::from_word(u64::MAX).slot, 63, "whatever a peer says");
        assert!(Head { version: 1, slot: SLOTS - 1 }.at() + RECORD <= HOME_LEN);
        let record = emit(7, 99);
        assert_eq!(record.len() as u64, RECORD);
        assert_eq!(parse(head, &record, Bug::None), Some(99));
        assert_eq!(parse(Head { version: 8, slot: 63 }, &record, Bug::None), None);
        for at in 0..record.len() {
            let mut torn = record.clone();
            torn[at] ^= 1;
            assert_eq!(parse(head, &torn, Bug::None), None, "byte {at}");
        }
        assert_eq!(parse(head, &record[..record.len() - 8], Bug::None), None);
    }
}
