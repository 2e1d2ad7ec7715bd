//! What a user may choose, in the one environment variable `ADVERB`: options separated by commas, such as
//! `address=127.0.0.1,loss=0.01,seed=7,pcap=/tmp/run.pcap,trace`.
//!
//! Paths escape bytes as `%2C` (a comma) or `%25` (a percent sign).

use adverb_nic::WaitOnError;
use adverb_os::choice::{Choice, PathPolicy};
use adverb_os::faults::{Direction, Faults};
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable.
pub const VARIABLE: &str = "ADVERB";

/// How reliable connections recover from loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// As RoCEv2 adapters do: everything from the lost packet on is sent again.
    #[default]
    Rc,
    /// IRN with peers that offer it too: only what was lost is sent again. With all others as
    /// [`Transport::Rc`].
    Irn,
    /// StaR, and this side's NIC keeps nothing of a connection whose peer will keep all of it.
    StarServer,
    /// StaR, and this side's NIC keeps both sides' state of a connection whose peer will keep nothing.
    StarClient,
    /// StaR, with the role that the two sides' numbers of connections ask for, if one has too many.
    Star,
}

impl Choice for Transport {
    const ALL: &'static [Self] =
        &[Transport::Rc, Transport::Irn, Transport::StarServer, Transport::StarClient, Transport::Star];

    fn name(self) -> &'static str {
        match self {
            Transport::Rc => "rc",
            Transport::Irn => "irn",
            Transport::StarServer => "star-server",
            Transport::StarClient => "star-client",
            Transport::Star => "star",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Transport::Rc => {
                "Go-back-N, as RoCEv2 adapters do: everything from the lost packet on is sent again"
            }
            Transport::Irn => {
                "IRN with peers that offer it too: only lost packets are sent again; go-back-N with all \
                 others"
            }
            Transport::StarServer => {
                "StaR: this side's NIC keeps nothing of connections whose peer is a star-client; go-back-N \
                 with all others"
            }
            Transport::StarClient => {
                "StaR: this side's NIC keeps both sides' state of connections to a star-server; go-back-N \
                 with all others"
            }
            Transport::Star => {
                "StaR with the role that suits both, once one side has more connections than star_threshold"
            }
        }
    }
}

/// How the stateful side of StaR names what the stateless side has posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StarTrust {
    /// By its place in a queue, which the stateless side's NIC looks up.
    #[default]
    Posted,
    /// By address and local key, as in the paper, where both sides want it.
    Carried,
}

impl Choice for StarTrust {
    const ALL: &'static [Self] = &[StarTrust::Posted, StarTrust::Carried];

    fn name(self) -> &'static str {
        match self {
            StarTrust::Posted => "posted",
            StarTrust::Carried => "carried",
        }
    }

    fn help(self) -> &'static str {
        match self {
            StarTrust::Posted => "By its place in a queue, so that only what is posted can be touched",
            StarTrust::Carried => {
                "By address and local key, as in the paper, where both sides want it: for laboratories"
            }
        }
    }
}

/// What senders of reliable connections do about congestion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// A window that halves on loss.
    #[default]
    Halving,
    /// A window that stays.
    Fixed,
    /// DCQCN: packets are ECN-capable, receivers tell of marks, senders slow down.
    Dcqcn,
    /// TIMELY: senders follow the round-trip time.
    Timely,
    /// TCP's window: slow start, and half of it after a loss.
    Tcp,
}

impl Choice for Congestion {
    const ALL: &'static [Self] =
        &[Congestion::Halving, Congestion::Fixed, Congestion::Dcqcn, Congestion::Timely, Congestion::Tcp];

    fn name(self) -> &'static str {
        match self {
            Congestion::Halving => "halving",
            Congestion::Fixed => "fixed",
            Congestion::Dcqcn => "dcqcn",
            Congestion::Timely => "timely",
            Congestion::Tcp => "tcp",
        }
    }

    fn help(self) -> &'static str {
        match self {
            Congestion::Halving => "A window that halves on loss",
            Congestion::Fixed => "A window that stays as it is",
            Congestion::Dcqcn => {
                "DCQCN: packets are ECN-capable, receivers answer marks by notifications, senders slow down"
            }
            Congestion::Timely => "TIMELY: the rate follows the round-trip time",
            Congestion::Tcp => "TCP's window: slow start, additive increase, half of it after a loss",
        }
    }
}

/// Everything a user may choose. The default is a NIC without faults at the host's own address.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Settings {
    /// Address of the NIC; by default the one that the default route leaves from.
    pub address: Option<IpAddr>,
    /// Harm done to frames.
    pub faults: Faults,
    /// Capture file.
    pub pcap: Option<PathBuf>,
    /// File that receives the counters at the end; JSON if its name ends in `.json`.
    pub counters: Option<PathBuf>,
    /// Folder of boards: what `adverb run` counts over all processes of a program.
    pub boards: Option<PathBuf>,
    /// Folder of notes: what `adverb run` makes a trace for Perfetto's viewer of.
    pub perfetto: Option<PathBuf>,
    /// Write an explanation of every error completion to standard error.
    pub trace: bool,
    /// The switch that frames go through instead of UDP: a name, its socket's path, or HOST:PORT.
    pub via: Option<PathBuf>,
    /// The file with the token of such a switch on another host.
    pub via_token: Option<PathBuf>,
    /// How frames travel within the address.
    pub path: PathPolicy,
    /// Bound on the packets that a queue pair may have unacknowledged; by default what the receive
    /// buffers of this host hold.
    pub max_unacked: Option<u32>,
    /// How reliable connections recover from loss.
    pub transport: Transport,
    /// [`Transport::Star`]: with more connections than these in its NIC, a side would rather keep none.
    pub star_threshold: Option<u32>,
    /// [`Transport::Star`]: how long a connection stays what it has become, at least; 5 s by default.
    pub star_hold: Option<Duration>,
    /// What leaves for stateless peers needs a rule, of which there is room for so many; and what a stateless
    /// side grants goes to its peers' registries.
    pub star_registry: Option<u32>,
    /// StaR: completions come with their data where both sides want it.
    pub star_merge: bool,
    /// StaR: one packet asks for the data of up to 16 where both sides want it.
    pub star_burst: bool,
    /// StaR: each WRITE is answered by itself, also of several in a row.
    pub star_single_answers: bool,
    /// StaR: how what is posted is named.
    pub star_trust: StarTrust,
    /// Entries of the GID table, all of the one address; 2 by default.
    pub gids: Option<u8>,
    /// What senders of reliable connections do about congestion.
    pub congestion: Congestion,
    /// WQEs that a fetch of a cross-channel queue brings; 8 by default.
    pub prefetch: Option<u8>,
    /// WQEs that programs write must name their place and their queue pair, as stock firmware demands.
    pub wqe_checks: bool,
    /// What an error completion does to WAITs that it should have ended.
    pub wait_on_error: WaitOnError,
    /// Directory in which processes find each other; by default `/dev/shm/adverb-UID`.
    pub directory: Option<PathBuf>,
}

/// An option that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    /// The option's name as written.
    pub option: String,
    /// Its value as written; `None` where there was none.
    pub value: Option<String>,
    /// What is allowed instead.
    pub remedy: &'static str,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{VARIABLE}: {}={value}: {}", self.option, self.remedy),
            None => write!(f, "{VARIABLE}: {}: {}", self.option, self.remedy),
        }
    }
}

impl std::error::Error for SettingsError {}

const OPTIONS: &str = "no such option; there are address, loss, duplicate, reorder, corrupt, mark, delay, \
                       direction, seed, pcap, counters, boards, perfetto, trace, via, via_token, path, \
                       max_unacked, gids, transport, star_threshold, star_hold, star_trust, star_merge, \
                       star_burst, star_single_answers, star_registry, congestion, prefetch, wqe-checks, \
                       wait-on-error and directory";
const ADDRESS: &str = "an IPv4 or IPv6 address is needed, such as address=127.0.0.1";
const PROBABILITY: &str = "a probability from 0 to 1 or a percentage is needed, such as 0.01 or 1%";
const DELAY: &str = "a time is needed, such as delay=50us (units ns, us, ms, s; at most 60s)";
const DIRECTION: &str = "direction is rx, tx or both";
const SEED: &str = "a whole number is needed, such as seed=7";
const GIDS: &str = "a number of entries from 1 to 16 is needed, such as gids=4";
/// The table has no room for more.
const GIDS_MAX: u8 = 16;
const PATH: &str = "a file name is needed; write a comma as %2C and a percent sign as %25";
const SWITCH: &str = "a switch is on or off";
const POLICY: &str = "path is auto or udp";
const TRANSPORT: &str = "transport is rc, irn, star-server, star-client or star";
const TRUST: &str = "star_trust is posted or carried";
const THRESHOLD: &str = "a number of connections is needed, such as star_threshold=128";
/// Rules of a registry at most.
const RULES_MAX: u32 = adverb_nic::limits::MAX_STAR_RULES;
const REGISTRY: &str = "star_registry is on, off, or room for so many rules, 1 to 65536";
const HOLD: &str = "a time is needed, such as star_hold=5s (units ns, us, ms, s; at most 60s)";
const CONGESTION: &str =
    "congestion is halving, fixed, dcqcn, timely or tcp; dctcp, swift and hpcc run in `adverb sim` only";
const PREFETCH: &str = "a number of WQEs from 1 to 64 is needed";
const ON_ERROR: &str = "wait-on-error is fail or release";
const UNACKED: &str = "a number of packets from 1 to 65536 is needed";

/// Longest delay that a fault may add.
const DELAY_MAX: Duration = Duration::from_secs(60);

impl Settings {
    /// Reads the environment variable; unset means all defaults.
    pub fn from_env() -> Result<Settings, SettingsError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Settings::default()),
            Some(text) => match text.to_str() {
                Some(text) => Settings::parse(text),
                None => Err(SettingsError {
                    option: text.to_string_lossy().into_owned(),
                    value: None,
                    remedy: "only UTF-8 is understood; escape other bytes of paths as %XX",
                }),
            },
        }
    }

    /// Reads options separated by commas. Later ones override earlier ones.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (option, value) = match part.split_once('=') {
                Some((option, value)) => (option.trim(), Some(value.trim())),
                None => (part, None),
            };
            settings.set(option, value).map_err(|remedy| SettingsError {
                option: option.to_owned(),
                value: value.map(str::to_owned),
                remedy,
            })?;
        }
        Ok(settings)
    }

    fn set(&mut self, option: &str, value: Option<&str>) -> Result<(), &'static str> {
        let text = value.unwrap_or("");
        match option {
            "address" => self.address = Some(text.parse().map_err(|_| ADDRESS)?),
            "loss" => self.faults.loss = probability(text)?,
            "duplicate" => self.faults.duplicate = probability(text)?,
            "reorder" => self.faults.reorder = probability(text)?,
            "corrupt" => self.faults.corrupt = probability(text)?,
            "mark" => self.faults.mark = probability(text)?,
            "delay" => self.faults.delay = duration(text)?,
            "direction" => self.faults.direction = Direction::named(text).ok_or(DIRECTION)?,
            "seed" => self.faults.seed = Some(text.parse().map_err(|_| SEED)?),
            "pcap" => self.pcap = Some(unescape(text)?),
            "counters" => self.counters = Some(unescape(text)?),
            "boards" => self.boards = Some(unescape(text)?),
            "perfetto" => self.perfetto = Some(unescape(text)?),
            "trace" => self.trace = switch(value)?,
            "via" => self.via = Some(unescape(text)?),
            "via_token" => self.via_token = Some(unescape(text)?),
            "path" => self.path = PathPolicy::named(text).ok_or(POLICY)?,
            "max_unacked" => {
                let packets = text.parse().map_err(|_| UNACKED)?;
                if !(1..=65_536).contains(&packets) {
                    return Err(UNACKED);
                }
                self.max_unacked = Some(packets);
            }
            "gids" => {
                let entries = text.parse().ok().filter(|entries| (1..=GIDS_MAX).contains(entries));
                self.gids = Some(entries.ok_or(GIDS)?);
            }
            "transport" => self.transport = Transport::named(text).ok_or(TRANSPORT)?,
            "star_threshold" => self.star_threshold = Some(text.parse().map_err(|_| THRESHOLD)?),
            "star_merge" => self.star_merge = switch(value)?,
            "star_burst" => self.star_burst = switch(value)?,
            "star_single_answers" => self.star_single_answers = switch(value)?,
            "star_trust" => self.star_trust = StarTrust::named(text).ok_or(TRUST)?,
            "star_hold" => self.star_hold = Some(duration(text).map_err(|_| HOLD)?),
            "star_registry" => {
                self.star_registry = match text {
                    "" | "on" => Some(RULES_MAX),
                    "off" => None,
                    room => {
                        let room = room.parse().ok().filter(|room| (1..=RULES_MAX).contains(room));
                        Some(room.ok_or(REGISTRY)?)
                    }
                }
            }
            "congestion" => self.congestion = Congestion::named(text).ok_or(CONGESTION)?,
            "prefetch" => {
                let wqes = text.parse().ok().filter(|wqes| (1..=64).contains(wqes));
                self.prefetch = Some(wqes.ok_or(PREFETCH)?);
            }
            "wqe-checks" => self.wqe_checks = switch(value)?,
            "wait-on-error" => {
                self.wait_on_error = match text {
                    "fail" => WaitOnError::Fail,
                    "release" => WaitOnError::Release,
                    _ => return Err(ON_ERROR),
                }
            }
            "directory" => self.directory = Some(unescape(text)?),
            _ => return Err(OPTIONS),
        }
        Ok(())
    }

    /// The value of the environment variable that stands for these settings: the inverse of
    /// [`parse`](Self::parse).
    pub fn to_env(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        if let Some(address) = self.address {
            parts.push(format!("address={address}"));
        }
        let faults = &self.faults;
        for (name, value) in faults.probabilities() {
            if value != 0.0 {
                parts.push(format!("{name}={value}"));
            }
        }
        if !faults.delay.is_zero() {
            parts.push(format!("delay={}ns", faults.delay.as_nanos()));
        }
        name_choice(&mut parts, "direction", faults.direction);
        if let Some(seed) = faults.seed {
            parts.push(format!("seed={seed}"));
        }
        for (name, path) in [
            ("pcap", &self.pcap),
            ("counters", &self.counters),
            ("boards", &self.boards),
            ("perfetto", &self.perfetto),
            ("directory", &self.directory),
            ("via", &self.via),
            ("via_token", &self.via_token),
        ] {
            if let Some(path) = path {
                parts.push(format!("{name}={}", escape(path)));
            }
        }
        if self.trace {
            parts.push("trace".to_owned());
        }
        name_choice(&mut parts, "path", self.path);
        if let Some(packets) = self.max_unacked {
            parts.push(format!("max_unacked={packets}"));
        }
        if let Some(entries) = self.gids {
            parts.push(format!("gids={entries}"));
        }
        if let Some(wqes) = self.prefetch {
            parts.push(format!("prefetch={wqes}"));
        }
        if self.wqe_checks {
            parts.push("wqe-checks=on".to_owned());
        }
        if self.wait_on_error == WaitOnError::Release {
            parts.push("wait-on-error=release".to_owned());
        }
        name_choice(&mut parts, "transport", self.transport);
        if let Some(threshold) = self.star_threshold {
            parts.push(format!("star_threshold={threshold}"));
        }
        if let Some(hold) = self.star_hold {
            parts.push(format!("star_hold={}ns", hold.as_nanos()));
        }
        if let Some(room) = self.star_registry {
            parts.push(format!("star_registry={room}"));
        }
        let single = ("star_single_answers", self.star_single_answers);
        for (name, on) in [("star_merge", self.star_merge), ("star_burst", self.star_burst), single] {
            if on {
                parts.push(format!("{name}=on"));
            }
        }
        name_choice(&mut parts, "star_trust", self.star_trust);
        name_choice(&mut parts, "congestion", self.congestion);
        parts.join(",")
    }
}

/// Names a choice unless it is the usual one.
fn name_choice<T: Choice + Default>(parts: &mut Vec<String>, option: &str, choice: T) {
    if choice != T::default() {
        parts.push(format!("{option}={}", choice.name()));
    }
}

fn probability(text: &str) -> Result<f64, &'static str> {
    let (number, scale) = match text.strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text, 1.0),
    };
    let value = number.parse::<f64>().map_err(|_| PROBABILITY)? / scale;
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(PROBABILITY) }
}

fn duration(text: &str) -> Result<Duration, &'static str> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ns_per_unit = match unit.trim() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(DELAY),
    };
    let ns = number.parse::<f64>().map_err(|_| DELAY)? * ns_per_unit;
    let time = Duration::try_from_secs_f64(ns / 1e9).map_err(|_| DELAY)?;
    if time <= DELAY_MAX { Ok(Duration::from_nanos(ns.round() as u64)) } else { Err(DELAY) }
}

fn switch(value: Option<&str>) -> Result<bool, &'static str> {
    match value {
        None | Some("on" | "1" | "true") => Ok(true),
        Some("off" | "0" | "false") => Ok(false),
        Some(_) => Err(SWITCH),
    }
}

fn escape(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b',' && byte != b'%' {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn unescape(text: &str) -> Result<PathBuf, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or(PATH)?;
        let digits = std::str::from_utf8(digits).map_err(|_| PATH)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| PATH)?);
        rest = tail;
    }
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(PATH);
    }
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_are_read() {
        let s = Settings::parse(
            " address=::1, loss=0.01,duplicate=50%,delay=1.5ms,direction=rx,seed=7,pcap=/tmp/a%2Cb.pcap,\
             trace,path=udp,max_unacked=64,transport=irn,prefetch=3,wqe-checks=on,wait-on-error=release,,",
        )
        .unwrap();
        assert_eq!(s.address, Some("::1".parse().unwrap()));
        let faults = s.faults;
        assert_eq!((faults.loss, faults.duplicate, faults.delay), (0.01, 0.5, Duration::from_micros(1500)));
        assert_eq!((faults.direction, faults.seed, s.trace), (Direction::Rx, Some(7), true));
        assert_eq!(s.pcap.as_deref(), Some(Path::new("/tmp/a,b.pcap")));
        assert_eq!((s.path, s.max_unacked), (PathPolicy::Udp, Some(64)));
        assert_eq!(s.transport, Transport::Irn);
        assert_eq!((s.prefetch, s.wqe_checks, s.wait_on_error), (Some(3), true, WaitOnError::Release));
        assert!(s.faults.any());
        assert_eq!(Settings::parse("").unwrap(), Settings::default());
        assert!(!Settings::parse("trace=off").unwrap().trace);
    }

    #[test]
    fn errors_name_option_value_and_remedy() {
        for (text, option, value, remedy) in [
            ("loss=2", "loss", Some("2"), PROBABILITY),
            ("loss=nan", "loss", Some("nan"), PROBABILITY),
            ("loss=-0.1", "loss", Some("-0.1"), PROBABILITY),
            ("corrupt", "corrupt", None, PROBABILITY),
            ("address=localhost", "address", Some("localhost"), ADDRESS),
            ("delay=5", "delay", Some("5"), DELAY),
            ("delay=61s", "delay", Some("61s"), DELAY),
            ("delay=.us", "delay", Some(".us"), DELAY),
            ("direction=up", "direction", Some("up"), DIRECTION),
            ("seed=-1", "seed", Some("-1"), SEED),
            ("gids=0", "gids", Some("0"), GIDS),
            ("gids=17", "gids", Some("17"), GIDS),
            ("pcap=", "pcap", Some(""), PATH),
            ("pcap=%2", "pcap", Some("%2"), PATH),
            ("pcap=a%00", "pcap", Some("a%00"), PATH),
            ("via=", "via", Some(""), PATH),
            ("trace=maybe", "trace", Some("maybe"), SWITCH),
            ("path=shm", "path", Some("shm"), POLICY),
            ("transport=tcp", "transport", Some("tcp"), TRANSPORT),
            ("star_threshold=many", "star_threshold", Some("many"), THRESHOLD),
            ("star_hold=5", "star_hold", Some("5"), HOLD),
            ("star_merge=yes", "star_merge", Some("yes"), SWITCH),
            ("star_burst=2", "star_burst", Some("2"), SWITCH),
            ("star_single_answers=yes", "star_single_answers", Some("yes"), SWITCH),
            ("star_trust=on", "star_trust", Some("on"), TRUST),
            ("star_hold=61s", "star_hold", Some("61s"), HOLD),
            ("star_registry=0", "star_registry", Some("0"), REGISTRY),
            ("star_registry=65537", "star_registry", Some("65537"), REGISTRY),
            ("star_registry=yes", "star_registry", Some("yes"), REGISTRY),
            ("congestion=vegas", "congestion", Some("vegas"), CONGESTION),
            ("congestion=hpcc", "congestion", Some("hpcc"), CONGESTION),
            ("max_unacked=0", "max_unacked", Some("0"), UNACKED),
            ("prefetch=0", "prefetch", Some("0"), PREFETCH),
            ("prefetch=65", "prefetch", Some("65"), PREFETCH),
            ("wqe-checks=some", "wqe-checks", Some("some"), SWITCH),
            ("wait-on-error=never", "wait-on-error", Some("never"), ON_ERROR),
            ("lose=0.1", "lose", Some("0.1"), OPTIONS),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert_eq!(
                (&*error.option, error.value.as_deref(), error.remedy),
                (option, value, remedy),
                "{text}"
            );
            assert!(error.to_string().contains(remedy));
        }
    }

    fn any_path() -> impl Strategy<Value = Option<PathBuf>> {
        let bytes = proptest::collection::vec(1u8.., 1..20);
        proptest::option::of(bytes.prop_map(|b| PathBuf::from(OsString::from_vec(b))))
    }

    proptest! {
        #[test]
        fn to_env_is_the_inverse_of_parse(
            address in proptest::option::of(any::<[u8; 16]>()),
            probabilities in proptest::array::uniform5(0.0f64..=1.0),
            delay in 0u64..60_000_000_000,
            direction in 0usize..3,
            seed: Option<u64>,
            pcap in any_path(),
            counters in any_path(),
            boards in any_path(),
            perfetto in any_path(),
            directory in any_path(),
            via in any_path(),
            via_token in any_path(),
            trace: bool,
            udp: bool,
            transport in 0usize..5,
            star_threshold: Option<u32>,
            star_merge: bool,
            star_burst: bool,
            star_single_answers: bool,
            carried: bool,
            star_hold in proptest::option::of(0u64..60_000_000_000),
            star_registry in proptest::option::of(1..=RULES_MAX),
            congestion in 0usize..5,
            max_unacked in proptest::option::of(1u32..=65_536),
            gids in proptest::option::of(1u8..=16),
            prefetch in proptest::option::of(1u8..=64),
            wqe_checks: bool,
            release: bool,
        ) {
            let [loss, duplicate, reorder, corrupt, mark] = probabilities;
            let settings = Settings {
                address: address.map(|a| IpAddr::from(a).to_canonical()),
                faults: Faults {
                    loss, duplicate, reorder, corrupt, mark,
                    delay: Duration::from_nanos(delay),
                    direction: Direction::ALL[direction],
                    seed,
                },
                congestion: Congestion::ALL[congestion],
                pcap, counters, boards, perfetto, trace, via, via_token,
                path: if udp { PathPolicy::Udp } else { PathPolicy::Auto },
                transport: Transport::ALL[transport],
                star_threshold, star_merge, star_burst, star_single_answers,
                star_trust: if carried { StarTrust::Carried } else { StarTrust::Posted },
                star_hold: star_hold.map(Duration::from_nanos),
                star_registry,
                max_unacked, gids, directory, prefetch, wqe_checks,
                wait_on_error: if release { WaitOnError::Release } else { WaitOnError::Fail },
            };
            prop_assert_eq!(Settings::parse(&settings.to_env()).unwrap(), settings);
        }

        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = Settings::parse(&text);
        }
    }
}
