//! Memcached's text protocol, without sockets: what a line asks, and what a table's worker answers.
//!
//! ```text
//! get KEY*                                   VALUE KEY FLAGS BYTES\r\n data \r\n .. END
//! gets KEY*                                  VALUE KEY FLAGS BYTES CAS ..
//! set|add|replace KEY FLAGS ENDS BYTES [noreply]\r\n data \r\n        STORED, NOT_STORED
//! cas KEY FLAGS ENDS BYTES CAS [noreply]\r\n data \r\n                STORED, EXISTS, NOT_FOUND
//! delete KEY [noreply]                       DELETED, NOT_FOUND
//! flush_all [noreply]   stats   version   verbosity N   quit
//! ```
//! Commands of memcached's that are not here are refused by name; what is no command at all is an `ERROR`.
//! A key is at most 250 bytes without spaces and controls, as everywhere; the bytes are [`DATA_MAX`] at most.

use super::item::{DATA_MAX, Item};
use super::table::{Found, Table};
use std::fmt::Write as _;

/// Bytes of a key at most, as the protocol has it.
pub const KEY_MAX: usize = 250;
/// What `version` answers. Clients read the numbers, and take 0 for a failure: the first are those of the
/// memcached whose commands these are.
pub const VERSION: &str = concat!("1.4.0-adverb-", env!("CARGO_PKG_VERSION"));
/// Bytes of a line at most.
pub const LINE_MAX: usize = 64 << 10;
/// Keys of one `get` at most.
pub const KEYS_MAX: usize = 1024;
/// Seconds up to which a time is counted from now; a greater one is a date.
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;
/// What memcached has and the table has not.
const REFUSED: [&str; 17] = [
    "append",
    "prepend",
    "incr",
    "decr",
    "touch",
    "gat",
    "gats",
    "mg",
    "ms",
    "md",
    "mn",
    "ma",
    "me",
    "slabs",
    "lru",
    "watch",
    "cache_memlimit",
];

/// What a line asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// Values.
    Get {
        /// Of these keys.
        keys: Vec<&'a [u8]>,
        /// With their versions.
        versions: bool,
    },
    /// A value is to be stored; so many bytes and a line's end follow.
    Store(Store<'a>),
    /// A key is to go.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Nobody waits for an answer.
        noreply: bool,
    },
    /// All keys are to go.
    FlushAll {
        /// Nobody waits for an answer.
        noreply: bool,
    },
    /// What has been counted.
    Stats,
    /// Which program this is.
    Version,
    /// How much is logged: nothing is.
    Verbosity {
        /// Nobody waits for an answer.
        noreply: bool,
    },
    /// The connection ends.
    Quit,
}

/// A value that is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store<'a> {
    /// When.
    pub when: When,
    /// The key.
    pub key: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// When it ends, as the client says it.
    pub ends: i64,
    /// Bytes that follow, without the line's end.
    pub len: usize,
    /// Nobody waits for an answer.
    pub noreply: bool,
}

/// When a value is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Always.
    Set,
    /// If the key is not there.
    Add,
    /// If it is.
    Replace,
    /// If it still has this version.
    Version(u64),
}

/// Why a line is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// What is answered.
    pub answer: String,
    /// Bytes that follow all the same, with their line's end, and mean nothing.
    pub swallow: usize,
}

impl Wrong {
    fn client(text: &str) -> Wrong {
        Wrong { answer: format!("CLIENT_ERROR {text}\r\n"), swallow: 0 }
    }
}

/// What a line asks, which comes without its end.
pub fn parse(line: &[u8]) -> Result<Command<'_>, Wrong> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
    let Some((name, rest)) = words.split_first() else { return Err(unknown()) };
    let (rest, noreply) = match rest.split_last() {
        Some((last, before)) if *last == b"noreply" && !matches!(*name, b"get" | b"gets") => (before, true),
        _ => (rest, false),
    };
    match (*name, rest) {
        (b"get" | b"gets", []) => Err(unknown()),
        (b"get" | b"gets", keys) if keys.len() > KEYS_MAX => Err(Wrong::client("too many keys")),
        (b"get" | b"gets", keys) => {
            let keys = keys.iter().map(|key| checked(key)).collect::<Result<_, _>>()?;
            Ok(Command::Get { keys, versions: *name == b"gets" })
        }
        (b"set", rest) => store(When::Set, rest, noreply),
        (b"add", rest) => store(When::Add, rest, noreply),
        (b"replace", rest) => store(When::Replace, rest, noreply),
        (b"cas", [rest @ .., version]) => match number(version) {
            Some(version) => store(When::Version(version), rest, noreply),
            None => Err(Wrong { swallow: data_of(rest), ..Wrong::client("bad command line format") }),
        },
        (b"delete", [key] | [key, b"0"]) => Ok(Command::Delete { key: checked(key)?, noreply }),
        (b"flush_all", [] | [b"0"]) => Ok(Command::FlushAll { noreply }),
        (b"flush_all", _) => Err(Wrong::client("flush_all with a delay is not supported")),
        (b"stats", []) => Ok(Command::Stats),
        (b"stats", _) => Err(Wrong::client("stats has no parts here")),
        (b"version", []) => Ok(Command::Version),
        (b"verbosity", _) => Ok(Command::Verbosity { noreply }),
        (b"quit", []) => Ok(Command::Quit),
        (name, rest) => Err(refused(name, rest)),
    }
}

fn refused(name: &[u8], rest: &[&[u8]]) -> Wrong {
    match std::str::from_utf8(name) {
        Ok("set" | "add" | "replace" | "cas" | "delete") => Wrong::client("bad command line format"),
        Ok(name) if REFUSED.contains(&name) => {
            let swallow = if matches!(name, "append" | "prepend") { data_of(rest) } else { 0 };
            Wrong { answer: format!("SERVER_ERROR {name} is not supported\r\n"), swallow }
        }
        _ => unknown(),
    }
}

/// Bytes that follow a line of this form, if it is one.
fn data_of(words: &[&[u8]]) -> usize {
    words.get(3).and_then(|len| number(len)).map_or(0, |len: usize| len.saturating_add(2))
}

fn unknown() -> Wrong {
    Wrong { answer: "ERROR\r\n".to_owned(), swallow: 0 }
}

fn number<N: std::str::FromStr>(word: &[u8]) -> Option<N> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn checked(key: &[u8]) -> Result<&[u8], Wrong> {
    match key.len() <= KEY_MAX && key.iter().all(|byte| !byte.is_ascii_control()) {
        true => Ok(key),
        false => Err(Wrong::client("bad command line format")),
    }
}

fn store<'a>(when: When, words: &[&'a [u8]], noreply: bool) -> Result<Command<'a>, Wrong> {
    let swallow = data_of(words);
    let wrong = || Wrong { swallow, ..Wrong::client("bad command line format") };
    let [key, flags, ends, len] = words else { return Err(wrong()) };
    let key = checked(key).map_err(|_| wrong())?;
    let (flags, ends) = number(flags).zip(number(ends)).ok_or_else(wrong)?;
    let len: usize = number(len).ok_or_else(wrong)?;
    if len > DATA_MAX {
        return Err(Wrong { answer: "SERVER_ERROR object too large for cache\r\n".to_owned(), swallow });
    }
    Ok(Command::Store(Store { when, key, flags, ends, len, noreply }))
}

/// What stands after a value's bytes that should be a line's end, and is not.
pub const BAD_DATA: &str = "CLIENT_ERROR bad data chunk\r\n";

/// One value of an answer to `get` or, with its version, to `gets`.
pub fn push_value(out: &mut Vec<u8>, key: &[u8], item: &Item<'_>, version: Option<u64>) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    let version = version.map_or_else(String::new, |version| format!(" {version}"));
    out.extend_from_slice(format!(" {} {}{version}\r\n", item.flags, item.data.len()).as_bytes());
    out.extend_from_slice(item.data);
    out.extend_from_slice(b"\r\n");
}

/// What a worker counts beside its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Keys asked for.
    pub gets: u64,
    /// Of them, those that were there.
    pub hits: u64,
}

/// The worker's side: a table, and what is asked of it.
pub struct Worker<'m> {
    table: Table<'m>,
    found: Found,
    asked: Asked,
    pid: u32,
    since_s: u64,
}

impl<'m> Worker<'m> {
    /// Of an open table, at this time.
    pub fn new(table: Table<'m>, found: Found, pid: u32, now_s: u64) -> Worker<'m> {
        Worker { table, found, asked: Asked::default(), pid, since_s: now_s }
    }

    /// Answers a command, with the bytes that followed it.
    pub fn answer(&mut self, command: &Command<'_>, data: &[u8], now_s: u64) -> Vec<u8> {
        let plain = |text: &str, noreply: bool| if noreply { Vec::new() } else { text.as_bytes().to_vec() };
        match command {
            Command::Get { keys, versions } => self.get(keys, *versions, now_s),
            Command::Store(store) => plain(self.store(store, data, now_s), store.noreply),
            Command::Delete { key, noreply } => {
                let there = self.item(key, now_s).is_some();
                let deleted = self.table.delete(key) && there;
                plain(if deleted { "DELETED\r\n" } else { "NOT_FOUND\r\n" }, *noreply)
            }
            Command::FlushAll { noreply } => {
                self.table.clear_all();
                plain("OK\r\n", *noreply)
            }
            Command::Verbosity { noreply } => plain("OK\r\n", *noreply),
            Command::Version => format!("VERSION {VERSION}\r\n").into_bytes(),
            Command::Stats => self.stats(now_s).into_bytes(),
            Command::Quit => Vec::new(),
        }
    }

    /// The record of a key, for a client that judges its end itself, as of what a chain brings.
    pub fn record(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let record = self.table.record(key);
        self.asked.gets += 1;
        self.asked.hits += u64::from(record.is_some());
        record
    }

    /// Version and value of a key that has not ended.
    fn item(&self, key: &[u8], now_s: u64) -> Option<(u64, Vec<u8>)> {
        let value = self.table.get(key)?;
        let alive = Item::of_value(&value.bytes).is_some_and(|item| !item.has_ended(now_s));
        alive.then_some((value.version, value.bytes))
    }

    fn get(&mut self, keys: &[&[u8]], versions: bool, now_s: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for key in keys {
            self.asked.gets += 1;
            let Some((version, bytes)) = self.item(key, now_s) else { continue };
            let Some(item) = Item::of_value(&bytes) else { continue };
            self.asked.hits += 1;
            push_value(&mut out, key, &item, versions.then_some(version));
        }
        out.extend_from_slice(b"END\r\n");
        out
    }

    fn store(&mut self, store: &Store<'_>, data: &[u8], now_s: u64) -> &'static str {
        let there = self.item(store.key, now_s);
        match (store.when, there) {
            (When::Add, Some(_)) | (When::Replace, None) => return "NOT_STORED\r\n",
            (When::Version(_), None) => return "NOT_FOUND\r\n",
            (When::Version(wanted), Some((version, _))) if version != wanted => return "EXISTS\r\n",
            _ => {}
        }
        let ends_s = match store.ends {
            0 => 0,
            // It has ended already.
            ends if ends < 0 => 1,
            ends if ends <= RELATIVE_MAX_S => u32::try_from(now_s.saturating_add(ends as u64)).unwrap_or(0),
            ends => u32::try_from(ends).unwrap_or(0),
        };
        let item = Item { flags: store.flags, ends_s, data };
        match self.table.set(store.key, &item.to_value()) {
            Ok(_) => "STORED\r\n",
            Err(_) => "SERVER_ERROR object too large for cache\r\n",
        }
    }

    fn stats(&self, now_s: u64) -> String {
        let (counters, (bytes, limit)) = (self.table.counters(), self.table.memory());
        let Asked { gets, hits } = self.asked;
        let mut out = String::new();
        let mut line = |name: &str, value: u64| {
            // Writing to a String cannot fail.
            let _ = write!(out, "STAT {name} {value}\r\n");
        };
        line("pid", self.pid.into());
        line("uptime", now_s.saturating_sub(self.since_s));
        line("time", now_s);
        line("curr_items", self.table.len());
        line("total_items", counters.sets);
        line("bytes", bytes);
        line("limit_maxbytes", limit);
        line("cmd_get", gets);
        line("get_hits", hits);
        line("get_misses", gets - hits);
        line("cmd_set", counters.sets);
        line("evictions", counters.evicted_by_memory + counters.evicted_by_index);
        line("evicted_by_memory", counters.evicted_by_memory);
        line("evicted_by_index", counters.evicted_by_index);
        line("buckets", self.table.layout().buckets);
        line("buckets_moved", counters.buckets_moved);
        line("records_moved", counters.records_moved);
        line("found_keys", self.found.keys);
        line("found_in_two_buckets", self.found.in_two_buckets);
        line("found_without_record", self.found.without_record);
        let _ = write!(out, "STAT version {VERSION}\r\nEND\r\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn answered(worker: &mut Worker<'_>, line: &str, data: &str, now_s: u64) -> String {
        match parse(line.as_bytes()) {
            Ok(command) => String::from_utf8(worker.answer(&command, data.as_bytes(), now_s)).unwrap(),
            Err(wrong) => wrong.answer,
        }
    }

    #[test]
    fn a_worker_speaks_as_memcached_does() {
        let values_len = 1 << 20;
        let layout = Layout { buckets: 64, seed: 1, index: 0x1000, values: 1 << 20, values_len };
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (index, values) = (zeros(128), zeros(values_len / 8));
        let (table, found) = Table::open(layout, &index, &values, 100).unwrap();
        let mut worker = Worker::new(table, found, 4712, 1000);
        for (line, data, now_s, expected) in [
            ("get a", "", 1000, "END\r\n"),
            ("set a 7 0 3", "abc", 1000, "STORED\r\n"),
            ("get a", "", 1000, "VALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("gets a b", "", 1000, "VALUE a 7 3 100\r\nabc\r\nEND\r\n"),
            ("add a 0 0 1", "x", 1000, "NOT_STORED\r\n"),
            ("add b 0 10 1", "x", 1000, "STORED\r\n"),
            ("get b a", "", 1009, "VALUE b 0 1\r\nx\r\nVALUE a 7 3\r\nabc\r\nEND\r\n"),
            ("get b", "", 1010, "END\r\n"),
            ("replace b 0 0 1", "y", 1010, "NOT_STORED\r\n"),
            ("add b 0 0 1", "y", 1010, "STORED\r\n"),
            ("cas a 0 0 1 99", "z", 1010, "EXISTS\r\n"),
            ("cas a 0 0 1 100", "z", 1010, "STORED\r\n"),
            ("cas c 0 0 1 100", "z", 1010, "NOT_FOUND\r\n"),
            ("set d 0 -1 1 noreply", "z", 1010, ""),
            ("get d", "", 1010, "END\r\n"),
            ("delete d", "", 1010, "NOT_FOUND\r\n"),
            ("delete a", "", 1010, "DELETED\r\n"),
            ("delete a noreply", "", 1010, ""),
            ("set e 0 2000000000 0", "", 1010, "STORED\r\n"),
            ("get e", "", 1_999_999_999, "VALUE e 0 0\r\n\r\nEND\r\n"),
            ("get e", "", 2_000_000_000, "END\r\n"),
            ("flush_all", "", 1010, "OK\r\n"),
            ("get b", "", 1010, "END\r\n"),
            ("verbosity 1", "", 1010, "OK\r\n"),
        ] {
            assert_eq!(answered(&mut worker, line, data, now_s), expected, "{line}");
        }
        let stats = answered(&mut worker, "stats", "", 1012);
        for line in ["STAT pid 4712", "STAT uptime 12", "STAT cmd_get 11", "STAT get_misses 6", "END"] {
            assert!(stats.split("\r\n").any(|found| found == line), "{line}: {stats}");
        }
        assert!(answered(&mut worker, "version", "", 0).starts_with("VERSION "));
    }

    #[test]
    fn what_is_wrong_is_said_and_what_follows_it_is_known() {
        let long = "k".repeat(KEY_MAX + 1);
        for (line, answer, swallow) in [
            ("", "ERROR\r\n", 0),
            ("frobnicate", "ERROR\r\n", 0),
            ("get", "ERROR\r\n", 0),
            ("set a 0 0", "CLIENT_ERROR bad command line format\r\n", 0),
            ("set a x 0 5", "CLIENT_ERROR bad command line format\r\n", 7),
            ("cas a 0 0 5 x", "CLIENT_ERROR bad command line format\r\n", 7),
            ("set a 0 0 99999999", "SERVER_ERROR object too large for cache\r\n", 100_000_001),
            ("append a 0 0 3", "SERVER_ERROR append is not supported\r\n", 5),
            ("incr a 1", "SERVER_ERROR incr is not supported\r\n", 0),
            ("mg a v", "SERVER_ERROR mg is not supported\r\n", 0),
            ("flush_all 10", "CLIENT_ERROR flush_all with a delay is not supported\r\n", 0),
            ("delete", "CLIENT_ERROR bad command line format\r\n", 0),
            (&format!("get {long}"), "CLIENT_ERROR bad command line format\r\n", 0),
            (&format!("set {long} 0 0 3"), "CLIENT_ERROR bad command line format\r\n", 5),
        ] {
            let expected = Wrong { answer: answer.to_owned(), swallow };
            assert_eq!(parse(line.as_bytes()), Err(expected), "{line}");
        }
        assert_eq!(parse(b"quit"), Ok(Command::Quit));
        let key = "k".repeat(KEY_MAX);
        assert!(parse(format!("get {key}").as_bytes()).is_ok());
    }
}
