//! The set-up exchange: lines of text over TCP, so that a program in any language can speak it with `printf`
//! and `sscanf`. A connection is a client: it lasts as long as the client's queue pair, and its end tells
//! each side that the other is gone.
//!
//! ```text
//! client  connect version=1 gid=127.0.0.1 qpn=0x11 psn=0x22 buffer=0x7f0000000000 rkey=0x5 slots=16 ..
//! hull    connected client=1 gid=127.0.0.2 qpn=0x31 psn=0x42 index=0x7e0000000000 buckets=262144 seed=0x1 ..
//!         refused WHY
//! client  counters
//! hull    NAME VALUE            as many lines as there are
//!         end
//! client  quit
//! ```
//! Words are NAME=VALUE in any order; numbers are decimal, or hexadecimal behind `0x`; a name that is not
//! known is passed over. `docs/redn.md` describes each.

use super::chain::Shape;
use super::layout::{Layout, RECORD_MAX};
use adverb_rdma::{Endpoint, Gid, Key, Mtu, Psn, QpNumber, Remote};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Of the exchange.
const VERSION: u64 = 1;
/// Bytes of a line at most.
pub const LINE_MAX: usize = 1024;
/// READs that a client answers at once, if it does not say.
const READS: u8 = 16;

/// Why a line is not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// It is none of the exchange's lines.
    Unknown,
    /// It lacks a word of this name.
    Missing(&'static str),
    /// A word of this name has a value that cannot be.
    Value(&'static str, String),
    /// The other side speaks another version.
    Version(u64),
    /// The other side refuses, for this reason.
    Refused(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Unknown => f.write_str("a line that is none: connect, counters, quit"),
            Wrong::Missing(name) => write!(f, "{name}= is missing"),
            Wrong::Value(name, value) => write!(f, "{name}={value} cannot be"),
            Wrong::Version(version) => write!(f, "version {version}: {VERSION} is spoken here"),
            Wrong::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Wrong {}

/// What a client tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its queue pair.
    pub endpoint: Endpoint,
    /// Where replies go.
    pub buffer: Remote,
    /// How many slots it has, and how long they are.
    pub shape: Shape,
    /// It asks for keys to read index and values itself.
    pub one_sided: bool,
}

/// What a client is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its number, for who reads counters.
    pub client: u32,
    /// The queue pair to send to.
    pub endpoint: Endpoint,
    /// The table.
    pub layout: Layout,
    /// Where calls go that a worker answers, in memcached's text protocol: address and port.
    pub calls: String,
    /// Keys of index and values, for a client that asked for them.
    pub rkeys: Option<(Key, Key)>,
}

/// A client's line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// It wants to be served.
    Connect(Box<Offer>),
    /// It wants to know what was counted.
    Counters,
    /// It leaves.
    Quit,
}

/// The words of a line.
struct Words<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        Words(line.split_ascii_whitespace().filter_map(|word| word.split_once('=')).collect())
    }

    fn find(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(found, _)| *found == name).map(|(_, value)| *value)
    }

    fn text(&self, name: &'static str) -> Result<&'a str, Wrong> {
        self.find(name).ok_or(Wrong::Missing(name))
    }

    fn number(&self, name: &'static str, max: u64) -> Result<u64, Wrong> {
        let text = self.text(name)?;
        let number = match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        number.filter(|number| *number <= max).ok_or_else(|| Wrong::Value(name, text.to_owned()))
    }

    fn number_or(&self, name: &'static str, max: u64, otherwise: u64) -> Result<u64, Wrong> {
        if self.find(name).is_none() { Ok(otherwise) } else { self.number(name, max) }
    }

    fn key(&self, name: &'static str) -> Result<Key, Wrong> {
        Ok(Key(self.number(name, u32::MAX.into())? as u32))
    }

    fn endpoint(&self) -> Result<Endpoint, Wrong> {
        let gid = self.text("gid")?;
        let address: IpAddr = gid.parse().map_err(|_| Wrong::Value("gid", gid.to_owned()))?;
        let gid = match address {
            IpAddr::V4(address) => Gid(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Gid(address.octets()),
        };
        let mtu = self.number_or("mtu", 4096, 1024)?;
        let sizes = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];
        let found = sizes.into_iter().find(|size| u64::from(size.bytes()) == mtu);
        let mtu = found.ok_or_else(|| Wrong::Value("mtu", mtu.to_string()))?;
        Ok(Endpoint {
            gid,
            qpn: QpNumber::new(self.number("qpn", 0xff_ffff)? as u32),
            psn: Psn::new(self.number("psn", 0xff_ffff)? as u32),
            mtu,
            reads: self.number_or("reads", 255, READS.into())? as u8,
        })
    }

    fn version(&self) -> Result<(), Wrong> {
        match self.number("version", u64::MAX)? {
            VERSION => Ok(()),
            other => Err(Wrong::Version(other)),
        }
    }
}

fn say_endpoint(f: &mut fmt::Formatter<'_>, endpoint: &Endpoint) -> fmt::Result {
    let Endpoint { gid, qpn, psn, mtu, reads } = endpoint;
    let address = Ipv6Addr::from(gid.0);
    match address.to_ipv4_mapped() {
        Some(address) => write!(f, " gid={address}")?,
        None => write!(f, " gid={address}")?,
    }
    write!(f, " qpn={:#x} psn={:#x} mtu={} reads={reads}", qpn.get(), psn.get(), mtu.bytes())
}

impl Line {
    /// A client's line, without its end.
    pub fn parse(line: &str) -> Result<Line, Wrong> {
        let (name, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match name {
            "connect" => Ok(Line::Connect(Box::new(Offer::parse(rest)?))),
            "counters" => Ok(Line::Counters),
            "quit" => Ok(Line::Quit),
            _ => Err(Wrong::Unknown),
        }
    }
}

impl Offer {
    fn parse(rest: &str) -> Result<Offer, Wrong> {
        let words = Words::of(rest);
        words.version()?;
        let slots = words.number_or("slots", u32::MAX.into(), Shape::default().slots.into())? as u32;
        let reply_len = words.number_or("reply", RECORD_MAX as u64, RECORD_MAX as u64)? as u32;
        let shape = Shape { slots, reply_len };
        if !shape.is_sound() {
            return Err(Wrong::Value("slots", format!("{slots} with reply={reply_len}")));
        }
        let (addr, len) = (words.number("buffer", u64::MAX)?, shape.buffer_len());
        if addr.checked_add(len).is_none() {
            return Err(Wrong::Value("buffer", format!("{addr:#x}")));
        }
        let buffer = Remote { addr, len, rkey: words.key("rkey")? };
        let one_sided = words.number_or("one-sided", 1, 0)? == 1;
        Ok(Offer { endpoint: words.endpoint()?, buffer, shape, one_sided })
    }
}

impl fmt::Display for Offer {
    /// As the line that tells it, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connect version={VERSION}")?;
        say_endpoint(f, &self.endpoint)?;
        let Shape { slots, reply_len } = self.shape;
        write!(f, " buffer={:#x} rkey={:#x}", self.buffer.addr, self.buffer.rkey.0)?;
        write!(f, " slots={slots} reply={reply_len} one-sided={}", u8::from(self.one_sided))
    }
}

impl Told {
    /// What a hull's line says, without its end.
    pub fn parse(line: &str) -> Result<Told, Wrong> {
        let (name, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        match name {
            "connected" => {}
            "refused" => return Err(Wrong::Refused(rest.to_owned())),
            _ => return Err(Wrong::Unknown),
        }
        let words = Words::of(rest);
        words.version()?;
        let layout = Layout {
            buckets: words.number("buckets", u64::MAX)?,
            seed: words.number("seed", u64::MAX)?,
            index: words.number("index", u64::MAX)?,
            values: words.number("values", u64::MAX)?,
            values_len: words.number("values-len", u64::MAX)?,
        };
        if !layout.is_sound() {
            return Err(Wrong::Value("buckets", layout.buckets.to_string()));
        }
        let rkeys = match words.find("index-rkey") {
            Some(_) => Some((words.key("index-rkey")?, words.key("values-rkey")?)),
            None => None,
        };
        let client = words.number("client", u32::MAX.into())? as u32;
        let calls = words.text("calls")?.to_owned();
        Ok(Told { client, endpoint: words.endpoint()?, layout, calls, rkeys })
    }
}

impl fmt::Display for Told {
    /// As the line that tells it, without its end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connected version={VERSION} client={}", self.client)?;
        say_endpoint(f, &self.endpoint)?;
        let Layout { buckets, seed, index, values, values_len } = self.layout;
        write!(f, " index={index:#x} buckets={buckets} seed={seed:#x}")?;
        write!(f, " values={values:#x} values-len={values_len} calls={}", self.calls)?;
        match self.rkeys {
            Some((index, values)) => {
                write!(f, " index-rkey={:#x} values-rkey={:#x}", index.0, values.0)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(gid: &str) -> Endpoint {
        let Ok(address) = gid.parse::<Ipv6Addr>() else { panic!("{gid}") };
        Endpoint {
            gid: Gid(address.octets()),
            qpn: QpNumber::new(0x01_0203),
            psn: Psn::new(0xff_fffe),
            mtu: Mtu::M4096,
            reads: 3,
        }
    }

    #[test]
    fn what_is_told_is_understood() {
        for (gid, one_sided) in [("::ffff:127.0.0.2", false), ("fd00::7", true)] {
            let shape = Shape { slots: 8, reply_len: 128 };
            let buffer = Remote { addr: 0x7f00_0000_1000, len: 1024, rkey: Key(0x8000_0001) };
            let offer = Offer { endpoint: endpoint(gid), buffer, shape, one_sided };
            let line = offer.to_string();
            assert!(line.len() < LINE_MAX / 2);
            assert_eq!(Line::parse(&line), Ok(Line::Connect(Box::new(offer))), "{line}");
            let layout = Layout { buckets: 64, seed: u64::MAX, index: 16, values: 64, values_len: 4096 };
            let rkeys = one_sided.then_some((Key(1), Key(2)));
            let calls = "127.0.0.2:7471".to_owned();
            let told = Told { client: 5, endpoint: endpoint(gid), layout, calls, rkeys };
            assert_eq!(Told::parse(&told.to_string()), Ok(told.clone()), "{told}");
        }
        assert_eq!(Line::parse("counters\r"), Ok(Line::Counters));
        assert_eq!(Line::parse(" quit"), Ok(Line::Quit));
        assert_eq!(Told::parse("refused no room"), Err(Wrong::Refused("no room".to_owned())));
    }

    #[test]
    fn a_line_by_hand_has_what_it_needs_and_nothing_that_cannot_be() {
        let good = "connect version=1 gid=10.0.0.7 qpn=17 psn=5 buffer=0x1000 rkey=9";
        let Ok(Line::Connect(offer)) = Line::parse(good) else { panic!("{good}") };
        assert_eq!((offer.shape, offer.endpoint.mtu, offer.one_sided), (Shape::default(), Mtu::M1024, false));
        for name in ["version", "gid", "qpn", "psn", "buffer", "rkey"] {
            let less: Vec<&str> = good.split(' ').filter(|word| !word.starts_with(name)).collect();
            assert_eq!(Line::parse(&less.join(" ")), Err(Wrong::Missing(name)));
        }
        for (word, name) in [
            ("qpn=0x1000000", "qpn"),
            ("psn=-1", "psn"),
            ("gid=here", "gid"),
            ("mtu=1500", "mtu"),
            ("buffer=0xffffffffffffffff", "buffer"),
            ("slots=3", "slots"),
            ("reply=1", "slots"),
            ("reply=1000000", "reply"),
            ("one-sided=2", "one-sided"),
        ] {
            let (key, _) = word.split_once('=').unwrap();
            let words = good.split(' ').filter(|other| !other.starts_with(&format!("{key}=")));
            let line = words.chain([word]).collect::<Vec<_>>().join(" ");
            assert!(matches!(Line::parse(&line), Err(Wrong::Value(found, _)) if found == name), "{line}");
        }
        assert_eq!(Line::parse(&good.replace("version=1", "version=2")), Err(Wrong::Version(2)));
        for line in ["", "GET / HTTP/1.1", "connected", "counter"] {
            assert_eq!(Line::parse(line), Err(Wrong::Unknown), "{line}");
        }
    }
}
