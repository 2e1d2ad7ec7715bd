//! What the program is told: whose entries, what they look like, and how much is remembered.

use super::sketch::Hot;
use adverb_wire::{Duration, Gid, Key};

/// Keys that one program follows, at most.
pub const KEYS_MAX: usize = 1 << 16;
/// Entries that one program remembers, at most.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Connections that one program follows, at most.
pub const CONNECTIONS_MAX: usize = 1 << 12;
/// Bytes of an entry at most.
pub const ENTRY_MAX: u32 = 1 << 20;
/// The smallest path MTU: whatever the first packet of a WRITE carries, it has so many of its bytes.
const SMALLEST_MTU: u32 = 256;
const WORD_LEN: u32 = 8;

/// A mistake that the program makes on purpose, for an oracle to find. No file can ask for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SteerMistake {
    /// A compare and swap that is sent again is steered again, to whatever was passed on last.
    Anew,
    /// READs are steered to an entry whose link the server has not acknowledged.
    PendingReads,
    /// So are links, which wait for nothing.
    PendingLinks,
}

impl SteerMistake {
    /// All of them, with their names and what they are.
    pub const ALL: [(SteerMistake, &'static str, &'static str); 3] = [
        (SteerMistake::Anew, "steered-anew", "a compare and swap that is sent again is steered again"),
        (
            SteerMistake::PendingReads,
            "reads-to-pending",
            "READs are steered to entries whose link is not acknowledged",
        ),
        (
            SteerMistake::PendingLinks,
            "links-to-pending",
            "links are steered to entries whose link is not acknowledged",
        ),
    ];
}

/// When links wait for READs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinksWait {
    /// On chains whose READs are overtaken by links, while READs take long.
    Overtaken,
    /// Always: what tests and swarms try. A put of a key then takes a READ's time more.
    Always,
}

/// What the program is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SteerConfig {
    /// Whose memory the chains are in.
    pub server: Gid,
    /// Under this key only; by default under each that the server accepts.
    pub rkey: Option<Key>,
    /// Bytes of an entry: WRITEs and READs of exactly so many are of one.
    pub entry: u32,
    /// Where in an entry the address of the next one is.
    pub next_at: u32,
    /// Where in an entry its key is.
    pub key_at: u32,
    /// Keys that are followed at most.
    pub keys_max: usize,
    /// Which keys get a place: those that are written often. By default each, while there is one.
    pub hot: Option<Hot>,
    /// Entries that are remembered at most: by how many a READ may come late.
    pub entries_max: usize,
    /// Connections that are followed at most.
    pub connections_max: usize,
    /// READs of entries are steered, too. Without it only compare and swaps are.
    pub reads: bool,
    /// How long a compare and swap may wait for the one before it.
    pub hold: Duration,
    /// How long a READ may wait for the link that is under way, at most `hold`; zero: not at all.
    pub read_hold: Duration,
    /// How long a link may wait for READs that were sent to the last entry before it, at most `hold`; zero:
    /// not at all.
    pub link_hold: Duration,
    /// When it does.
    pub links_wait: LinksWait,
    /// What it does wrong on purpose; nothing, outside of swarms.
    pub mistake: Option<SteerMistake>,
}

impl SteerConfig {
    /// The usual for a server.
    pub fn new(server: Gid, entry: u32) -> SteerConfig {
        SteerConfig {
            server,
            rkey: None,
            entry,
            next_at: 0,
            key_at: 8,
            keys_max: 1 << 10,
            hot: None,
            entries_max: 3 << 10,
            connections_max: 1 << 10,
            reads: true,
            hold: Duration::from_ms(1),
            read_hold: Duration::from_ms(1),
            link_hold: Duration::from_ms(1),
            links_wait: LinksWait::Overtaken,
            mistake: None,
        }
    }

    /// Whether who was told this may go on as one that is told `next`: with other times only. An entry stands
    /// where its address puts it in a table of its length, hot keys were counted over their time, and what is
    /// known of chains follows from whose entries are looked at, and where in them.
    pub fn may_become(&self, next: &SteerConfig) -> bool {
        let SteerConfig { hold, read_hold, link_hold, .. } = *next;
        SteerConfig { hold, read_hold, link_hold, ..*self } == *next
    }

    /// What is wrong with it, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        let inside = |at: u32, end: u32| at.checked_add(WORD_LEN).is_some_and(|last| last <= end);
        if !self.entry.is_multiple_of(WORD_LEN) || !(2 * WORD_LEN..=ENTRY_MAX).contains(&self.entry) {
            return Err("entry: bytes of an entry, a multiple of 8 from 16 to 1048576");
        }
        if !self.next_at.is_multiple_of(WORD_LEN) || !inside(self.next_at, self.entry) {
            return Err("next-at: a multiple of 8 inside the entry");
        }
        if !inside(self.key_at, self.entry.min(SMALLEST_MTU)) {
            return Err("key-at: a key of 8 bytes inside the entry, and in its first 256 bytes");
        }
        if self.key_at.abs_diff(self.next_at) < WORD_LEN {
            return Err("key-at and next-at share bytes");
        }
        if self.hot.is_some_and(|hot| hot.above == 0 || hot.decay == Duration::ZERO) {
            return Err("hot: so many WRITEs of a key within decay-ms, both from 1 on");
        }
        match () {
            () if !(1..=KEYS_MAX).contains(&self.keys_max) => Err("keys: 1 to 65536"),
            () if !(1..=ENTRIES_MAX).contains(&self.entries_max) => Err("entries: 1 to 1048576"),
            () if !(1..=CONNECTIONS_MAX).contains(&self.connections_max) => Err("connections: 1 to 4096"),
            () if self.hold == Duration::ZERO => Err("hold-us: a compare and swap waits for some time"),
            () => Ok(()),
        }
    }
}
