//! The file that describes a switch, in TOML: its name, the programs in their order, its ports' faults and
//! captures.

use adverb_os::choice::Choice;
use adverb_os::faults::{Direction, Faults};
use adverb_switch::keys::ProgramKeys;
use adverb_switch::switch::{PORTS_MAX, PROGRAMS_MAX};
use adverb_switch::{Next, OwnConfig, PortId, ProgramConfig, Switch};
use adverb_wire::{Gid, Instant};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Events that are kept at most.
const TRACE_MAX: usize = 1 << 16;
/// The longest delay that a port may add.
const DELAY_US_MAX: u64 = 60_000_000;

/// What is wrong with a file.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub path: PathBuf,
    /// What, and what would be right.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for ConfigError {}

/// A kind of program that is not built in: its name in files, and what reads its `[[program]]` table, which
/// comes without `kind`. An error says what is wrong with the table.
#[derive(Clone, Copy, Debug)]
pub struct OwnKind {
    /// What `kind` says.
    pub name: &'static str,
    /// Reads and checks a table.
    pub read: fn(toml::Table) -> Result<OwnConfig, String>,
}

/// A program that is not built in, as a file has it.
#[derive(Clone, Debug)]
struct OwnProgram {
    table: toml::Table,
    config: OwnConfig,
}

/// A switch as its file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Its name; the socket is called after it.
    #[serde(default = "usual_name")]
    pub name: String,
    /// Events that are kept for `trace`.
    #[serde(default = "usual_trace")]
    pub trace: usize,
    /// Where processes of other hosts may come in.
    listen: Option<SocketAddr>,
    /// The file of the token that they have to know.
    token: Option<PathBuf>,
    /// Faults of ports that have none of their own.
    #[serde(default)]
    faults: FaultKeys,
    #[serde(default, rename = "port")]
    ports: Vec<PortKeys>,
    #[serde(default, rename = "program")]
    programs: Vec<ProgramKeys>,
    /// By place among `programs`, where a program that forwards stands for it.
    #[serde(skip)]
    own: BTreeMap<usize, OwnProgram>,
    /// Kinds of programs that are not built in.
    #[serde(skip)]
    kinds: Vec<OwnKind>,
    /// As it was read.
    #[serde(skip)]
    text: String,
    /// Where it was read.
    #[serde(skip)]
    path: Option<PathBuf>,
}

fn usual_name() -> String {
    "sw0".to_owned()
}

fn usual_trace() -> usize {
    1000
}

/// Probabilities of faults, and times in microseconds.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct FaultKeys {
    loss: f64,
    duplicate: f64,
    reorder: f64,
    corrupt: f64,
    mark: f64,
    delay_us: u64,
    direction: Option<String>,
    seed: Option<u64>,
}

impl FaultKeys {
    fn faults(&self) -> Result<Faults, String> {
        let direction = match &self.direction {
            None => Direction::Both,
            Some(name) => Direction::named(name).ok_or("direction is rx, tx or both")?,
        };
        let faults = Faults {
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            corrupt: self.corrupt,
            mark: self.mark,
            delay: std::time::Duration::from_micros(self.delay_us),
            direction,
            seed: self.seed,
        };
        match faults.are_probabilities() {
            false => Err("loss, duplicate, reorder, corrupt and mark are 0 to 1".to_owned()),
            true if self.delay_us > DELAY_US_MAX => Err("delay-us is at most 60 seconds".to_owned()),
            true => Ok(faults),
        }
    }
}

#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortKeys {
    address: IpAddr,
    /// More of them, of a port with a cable.
    #[serde(default)]
    also: Vec<IpAddr>,
    /// The socket of a virtual machine.
    qemu: Option<PathBuf>,
    /// An interface's name.
    interface: Option<String>,
    faults: Option<FaultKeys>,
    pcap: Option<PathBuf>,
}

impl PortKeys {
    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.address).chain(self.also.iter().copied())
    }
}

/// Where a cable goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CableKind<'a> {
    /// To the machine whose QEMU listens here.
    Qemu(&'a Path),
    /// To the interface of this name.
    Interface(&'a str),
}

impl Config {
    /// Reads and checks a file. Paths in it are relative to it.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        Config::read_with(path, &[])
    }

    /// The same for a switch that has these kinds of programs, too.
    pub fn read_with(path: &Path, kinds: &[OwnKind]) -> Result<Config, ConfigError> {
        let wrong = |what: String| ConfigError { path: path.to_owned(), what };
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let mut config = Config::parse_with(&text, kinds).map_err(wrong)?;
        let path = std::path::absolute(path).map_err(|e| wrong(e.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let ports = config.ports.iter_mut().flat_map(|port| [&mut port.pcap, &mut port.qemu]);
        let paths = ports.chain([&mut config.token]).flatten();
        paths.for_each(|at| *at = folder.join(&*at));
        config.path = Some(path);
        Ok(config)
    }

    /// Reads a file that is to take the place of this one: the same again, if none is named.
    ///
    /// # Errors
    /// What is wrong with it, or what of it takes a new start.
    pub fn read_next(&self, path: Option<&Path>) -> Result<Config, String> {
        let none = "the switch was started without a file; name one";
        let path = path.or(self.path.as_deref()).ok_or(none)?;
        let next = Config::read_with(path, &self.kinds).map_err(|e| e.to_string())?;
        let stays = [
            ("name", next.name == self.name),
            ("listen", next.listen == self.listen),
            ("token", next.token == self.token),
        ];
        match stays.iter().find(|(_, is_same)| !is_same) {
            Some((key, _)) => Err(format!("{}: {key} cannot change in a switch that runs", path.display())),
            None => Ok(next),
        }
    }

    /// The switch of another text, which may have the same kinds of programs.
    pub(crate) fn another(&self, text: &str) -> Result<Config, String> {
        Config::parse_with(text, &self.kinds)
    }

    /// The row of its programs behind that of another file: those that both have stay, where they are told
    /// the same or can go on as what they are told.
    pub(crate) fn row_behind(&self, before: &Config) -> Result<Vec<Next>, String> {
        let is_forward = |keys: &ProgramKeys| matches!(keys, ProgramKeys::Forward {});
        let runs = |config: &Config| -> Vec<usize> {
            let programs = config.programs.iter().enumerate();
            let runs = programs.filter(|(at, keys)| config.own.contains_key(at) || !is_forward(keys));
            runs.map(|(at, _)| at).collect()
        };
        let is_same = |old: usize, new: usize| match (before.own.get(&old), self.own.get(&new)) {
            (Some(old), Some(new)) => old.config.name() == new.config.name() && old.table == new.table,
            (None, None) => before.programs[old] == self.programs[new],
            _ => false,
        };
        let (old, was, configs) = (runs(before), before.program_configs()?, self.program_configs()?);
        let mut row: Vec<Next> = configs.into_iter().map(Next::New).collect();
        // Who is told the same goes first: nobody else takes its place.
        for (at, new) in runs(self).into_iter().enumerate() {
            let kept = free(&row, old.len()).find(|place| is_same(old[*place], new));
            row[at] = kept.map_or(row[at].clone(), Next::Kept);
        }
        for at in 0..row.len() {
            let Next::New(config) = &row[at] else { continue };
            let goes_on = free(&row, old.len()).find(|place| was[*place].may_become(config));
            row[at] = goes_on.map_or(row[at].clone(), |place| Next::Changed(place, config.clone()));
        }
        Ok(row)
    }

    /// The same with one `[[port]]` more, as JSON has it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn with_port(&self, port: &serde_json::Value) -> Result<Config, String> {
        let port = PortKeys::deserialize(port).map_err(|e| format!("port: {e}"))?;
        let mut next = self.clone();
        next.ports.push(port);
        next.check().map(|()| next)
    }

    /// The same without the `[[port]]` of an address.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn without_port(&self, address: IpAddr) -> Result<Config, String> {
        let mut next = self.clone();
        next.ports.retain(|port| !port.addresses().any(|found| found == address));
        match next.ports.len() < self.ports.len() {
            true => Ok(next),
            false => Err(format!(
                "the switch has no [[port]] for {address}; one that processes claim goes with them"
            )),
        }
    }

    /// Has each of these addresses at the interface beside it, in this order, with the faults and the capture
    /// that its `[[port]]` has, if there is one.
    pub fn wire(&mut self, hosts: &[(IpAddr, String)]) -> Result<(), String> {
        for (address, interface) in hosts {
            match self.ports.iter_mut().find(|port| port.addresses().any(|found| found == *address)) {
                Some(port) if port.qemu.is_some() || port.interface.is_some() => {
                    return Err(format!("[[port]] {address} has a cable already"));
                }
                Some(port) => port.interface = Some(interface.clone()),
                None => self.ports.push(PortKeys {
                    address: *address,
                    also: Vec::new(),
                    qemu: None,
                    interface: Some(interface.clone()),
                    faults: None,
                    pcap: None,
                }),
            }
        }
        let place = |port: &PortKeys| hosts.iter().position(|(address, _)| *address == port.address);
        self.ports.sort_by_key(|port| place(port).unwrap_or(hosts.len()));
        self.check()
    }

    /// Reads and checks a text.
    pub fn parse(text: &str) -> Result<Config, String> {
        Config::parse_with(text, &[])
    }

    /// The same for a switch that has these kinds of programs, too.
    pub fn parse_with(text: &str, kinds: &[OwnKind]) -> Result<Config, String> {
        let said = |e: toml::de::Error| e.to_string().trim_end().to_owned();
        let (own, rest) = match kinds.is_empty() {
            true => (BTreeMap::new(), None),
            false => take_own(text.parse().map_err(said)?, kinds)?,
        };
        let mut config: Config = match rest {
            Some(rest) => rest.try_into().map_err(said)?,
            // What is wrong is said with its line.
            None => toml::from_str(text).map_err(said)?,
        };
        config.own = own;
        config.kinds = kinds.to_vec();
        config.text = text.to_owned();
        config.check()?;
        Ok(config)
    }

    /// Whether all of it goes together.
    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !(1..=32).contains(&self.name.len()) || !self.name.chars().all(plain) {
            return Err("name: 1 to 32 letters, digits, - and _".to_owned());
        }
        if self.listen.is_some() != self.token.is_some() {
            return Err(
                "listen and token go together: who knows the token may come from other hosts".to_owned()
            );
        }
        if self.trace > TRACE_MAX {
            return Err(format!("trace: at most {TRACE_MAX} events"));
        }
        if self.programs.len() > PROGRAMS_MAX || self.ports.len() > PORTS_MAX {
            return Err(format!("at most {PROGRAMS_MAX} programs and {PORTS_MAX} ports"));
        }
        self.faults.faults().map_err(|why| format!("[faults]: {why}"))?;
        for (at, port) in self.ports.iter().enumerate() {
            let mut before: Vec<IpAddr> = self.ports[..at].iter().flat_map(PortKeys::addresses).collect();
            for address in port.addresses() {
                if before.contains(&address) {
                    return Err(format!("[[port]] {}: two entries for {address}", port.address));
                }
                before.push(address);
            }
            match (&port.qemu, &port.interface) {
                (Some(_), Some(_)) => Err("qemu or interface: a port has one cable"),
                (None, None) if !port.also.is_empty() => {
                    Err("also is for a port with qemu or interface; processes claim one address each")
                }
                _ => Ok(()),
            }
            .map_err(|what| format!("[[port]] {}: {what}", port.address))?;
            let faults = port.faults.as_ref().map_or(Ok(Faults::default()), FaultKeys::faults);
            faults.map_err(|why| format!("[[port]] {}: {why}", port.address))?;
        }
        self.with_ports(Instant::ZERO).map(drop)
    }

    /// The switch, which begins now.
    pub fn switch(&self, start: Instant) -> Result<Switch, String> {
        Switch::begin(&self.program_configs()?, self.trace, start).map_err(|e| e.to_string())
    }

    /// What its programs are told, in their order.
    fn program_configs(&self) -> Result<Vec<ProgramConfig>, String> {
        let mut configs = Vec::new();
        for (at, keys) in self.programs.iter().enumerate() {
            configs.extend(match self.own.get(&at) {
                Some(own) => Some(ProgramConfig::Own(own.config.clone())),
                None => keys.config().map_err(|why| format!("[[program]] {}: {why}", at + 1))?,
            });
        }
        let is_draft = |program: &ProgramConfig| {
            matches!(program, ProgramConfig::Paper(_) | ProgramConfig::PaperSteer(_))
        };
        if configs.iter().any(is_draft) {
            return Err("mode \"paper\" loses data and is for simulations; leave it out".to_owned());
        }
        Ok(configs)
    }

    /// The switch without its process, with the file's ports in their order.
    pub fn with_ports(&self, start: Instant) -> Result<(Switch, Vec<PortId>), String> {
        let mut switch = self.switch(start)?;
        let mut ports = Vec::new();
        for keys in &self.ports {
            let port = switch.add_port().map_err(|e| e.to_string())?;
            let mut claims = keys.addresses().map(|address| switch.claim(port, Gid::from(address)));
            claims
                .find_map(Result::err)
                .map_or(Ok(()), |e| Err(format!("[[port]] {}: {e}", keys.address)))?;
            ports.push(port);
        }
        Ok((switch, ports))
    }

    /// Addresses that processes claim, and whose `[[port]]` another file does not have so.
    pub(crate) fn claims_behind<'a>(&'a self, before: &'a Config) -> impl Iterator<Item = IpAddr> + 'a {
        let without_cable = self.ports.iter().filter(|port| port.qemu.is_none() && port.interface.is_none());
        without_cable.filter(|port| !before.ports.contains(port)).map(|port| port.address)
    }

    /// Where processes of other hosts may come in, and the file of their token.
    pub fn gate(&self) -> Option<(SocketAddr, &Path)> {
        Some((self.listen?, self.token.as_deref()?))
    }

    /// What stands between an address's port and the switch.
    pub fn line_of(&self, address: Gid) -> (Faults, Option<&Path>) {
        let keys = self.ports.iter().find(|port| Gid::from(port.address) == address);
        let faults = keys.and_then(|keys| keys.faults.as_ref()).unwrap_or(&self.faults);
        // They were checked when the text was read.
        (faults.faults().unwrap_or_default(), keys.and_then(|keys| keys.pcap.as_deref()))
    }

    /// Ports with a cable: where it goes, and the addresses there.
    pub fn cables(&self) -> impl Iterator<Item = (CableKind<'_>, Vec<Gid>)> {
        self.ports.iter().filter_map(|port| {
            let kind = match (&port.qemu, &port.interface) {
                (Some(path), _) => CableKind::Qemu(path),
                (None, name) => CableKind::Interface(name.as_deref()?),
            };
            Some((kind, port.addresses().map(Gid::from).collect::<Vec<_>>()))
        })
    }

    /// The file's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of the programs in their order.
    pub fn program_names(&self) -> String {
        match self.programs.is_empty() {
            true => "forward".to_owned(),
            false => self.names().collect::<Vec<_>>().join(", "),
        }
    }

    fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        let programs = self.programs.iter().enumerate();
        programs.map(|(at, keys)| self.own.get(&at).map_or(keys.name(), |own| own.config.name()))
    }
}

/// Takes the programs that are not built in out of a file's table, and leaves ones that forward in their
/// places. No table, if there are none.
fn take_own(
    mut file: toml::Table,
    kinds: &[OwnKind],
) -> Result<(BTreeMap<usize, OwnProgram>, Option<toml::Table>), String> {
    let mut own = BTreeMap::new();
    let programs = file.get_mut("program").and_then(toml::Value::as_array_mut);
    for (at, program) in programs.into_iter().flatten().enumerate() {
        let Some(table) = program.as_table_mut() else { continue };
        let named = table.get("kind").and_then(toml::Value::as_str);
        let Some(kind) = kinds.iter().find(|kind| named == Some(kind.name)) else { continue };
        let mut table = std::mem::take(table);
        table.remove("kind");
        let config = (kind.read)(table.clone()).map_err(|why| format!("[[program]] {}: {why}", at + 1))?;
        *program = toml::Value::Table(toml::Table::from_iter([("kind".to_owned(), "forward".into())]));
        own.insert(at, OwnProgram { table, config });
    }
    let rest = (!own.is_empty()).then_some(file);
    Ok((own, rest))
}

/// Places of an old row of so many whose programs do not stay yet.
fn free(row: &[Next], old: usize) -> impl Iterator<Item = usize> {
    let stays: Vec<usize> = row.iter().filter_map(Next::place).collect();
    (0..old).filter(move |place| !stays.contains(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_switch::{ByteOrder, Program, WordRange};
    use adverb_wire::Duration;

    #[test]
    fn a_file_says_programs_ports_and_faults() {
        let text = r#"
            name = "lock"
            trace = 10
            [faults]
            loss = 0.25
            seed = 7
            [[port]]
            address = "10.9.0.2"
            faults = { delay-us = 20, direction = "tx" }
            pcap = "two.pcap"
            [[program]]
            kind = "ecn"
            every = 10
            [[program]]
            kind = "cas_to_write"
            server = "10.9.0.1"
            va = 0x0
            len = 0x40000
            byte-order = "big"
            hold-us = 500
        "#;
        let config = Config::parse(text).unwrap();
        assert_eq!((config.name.as_str(), config.program_names().as_str()), ("lock", "ecn, cas_to_write"));
        let gid = |text: &str| Gid::from(text.parse::<IpAddr>().unwrap());
        let (faults, pcap) = config.line_of(gid("10.9.0.2"));
        assert_eq!((faults.loss, faults.direction, pcap), (0.0, Direction::Tx, Some(Path::new("two.pcap"))));
        assert_eq!(faults.delay, std::time::Duration::from_micros(20));
        let (faults, pcap) = config.line_of(gid("10.9.0.9"));
        assert_eq!((faults.loss, faults.seed, pcap), (0.25, Some(7), None));
        let switch = config.switch(Instant::ZERO).unwrap();
        let Program::CasToWrite(program) = &switch.programs()[1] else { panic!("the second program") };
        let found = program.config();
        assert_eq!(found.words, WordRange::Range { va: 0, len: 0x40000 });
        assert_eq!((found.byte_order, found.hold), (ByteOrder::Big, Duration::from_us(500)));
        let empty = Config::parse("").unwrap();
        assert_eq!((empty.name.as_str(), empty.program_names().as_str()), ("sw0", "forward"));
    }

    #[test]
    fn a_row_keeps_what_can_go_on() {
        let cas = |of: &str, more: &str| {
            format!("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.{of}'\n{more}\n")
        };
        let ecn = |every: u32| format!("[[program]]\nkind = 'ecn'\nevery = {every}\n");
        let row = |before: &str, after: &str| -> Vec<&'static str> {
            let (before, after) = (Config::parse(before).unwrap(), Config::parse(after).unwrap());
            let row = after.row_behind(&before).unwrap();
            let told = row.iter().map(|next| match next {
                Next::Kept(0) => "kept 0",
                Next::Kept(1) => "kept 1",
                Next::Changed(0, _) => "changed 0",
                Next::Changed(1, _) => "changed 1",
                Next::Kept(_) | Next::Changed(..) => panic!("{row:?}"),
                Next::New(_) => "new",
            });
            told.collect()
        };
        let (one, two) = (cas("1", ""), cas("2", ""));
        assert_eq!(row(&one, &one), ["kept 0"]);
        assert_eq!(row(&one, &cas("1", "connections = 2000\nwords = 40000\nhold-us = 9")), ["changed 0"]);
        assert_eq!(row(&one, &cas("1", "rkey = 7\nva = 0\nlen = 8")), ["changed 0"]);
        // The default, said.
        assert_eq!(row(&one, &cas("1", "hold-us = 1000")), ["changed 0"]);
        // Tables do not shrink, and what was sent must stay what it was.
        for more in ["connections = 8", "words = 8", "byte-order = 'big'", "mode = 'multiplex'"] {
            assert_eq!(row(&one, &cas("1", more)), ["new"], "{more}");
        }
        assert_eq!(row(&one, &two), ["new"]);
        assert_eq!(
            row(&format!("{one}{two}"), &format!("{}{one}", cas("2", "hold-us = 9"))),
            ["changed 1", "kept 0"]
        );
        assert_eq!(
            row(&format!("{}{one}", ecn(2)), &format!("{}{}", cas("1", "hold-us = 9"), ecn(3))),
            ["changed 1", "changed 0"]
        );
        // Who is told the same goes first, and nothing becomes another kind.
        assert_eq!(
            row(&format!("{}{}", ecn(2), ecn(3)), &format!("{}{}", ecn(3), ecn(4))),
            ["kept 1", "changed 0"]
        );
        assert_eq!(row(&ecn(2), &ecn(2).replace("ecn", "trim")), ["new"]);
        assert_eq!(row(&ecn(2), &ecn(2).repeat(2)), ["kept 0", "new"]);
        let steer =
            |more: &str| format!("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 128\n{more}\n");
        assert_eq!(row(&steer(""), &steer("hold-us = 500\nlink-hold-us = 0")), ["changed 0"]);
        for more in ["keys = 2000", "connections = 2000", "reads = false", "hot = 3", "rkey = 7"] {
            assert_eq!(row(&steer(""), &steer(more)), ["new"], "{more}");
        }
    }

    #[test]
    fn hosts_of_a_lab_get_their_cables_in_order() {
        let text =
            "[[port]]\naddress = '10.9.0.9'\n[[port]]\naddress = '10.9.0.2'\nfaults = { loss = 0.5 }\n";
        let mut config = Config::parse(text).unwrap();
        let host = |n: u8| (IpAddr::from([10, 9, 0, n]), format!("port{n}"));
        config.wire(&[host(1), host(2)]).unwrap();
        let cables: Vec<_> = config.cables().map(|(kind, at)| (format!("{kind:?}"), at[0].ip())).collect();
        let wired = |n: u8| (format!("Interface(\"port{n}\")"), IpAddr::from([10, 9, 0, n]));
        assert_eq!(cables, [wired(1), wired(2)]);
        assert_eq!(config.line_of(Gid::from(IpAddr::from([10, 9, 0, 2]))).0.loss, 0.5);
        assert!(config.wire(&[host(2)]).unwrap_err().contains("has a cable already"));
    }

    #[test]
    fn the_examples_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        for (name, programs) in [
            ("forward", "forward"),
            ("ecn", "ecn"),
            ("lock", "cas_to_write"),
            ("guest", "ecn"),
            ("steer", "steer"),
        ] {
            let config = Config::read(&folder.join(name).with_extension("toml")).unwrap();
            assert_eq!(config.program_names(), programs);
        }
        let missing = Config::read(&folder.join("none.toml")).unwrap_err().to_string();
        assert!(missing.contains("none.toml"), "{missing}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("nmae = 'x'", "nmae"),
            ("name = 'a/b'", "name: 1 to 32"),
            ("trace = 100000", "at most 65536"),
            ("listen = '0.0.0.0:7471'", "listen and token go together"),
            ("token = 'a'", "listen and token go together"),
            ("listen = 'here'\ntoken = 'a'", "listen"),
            ("[faults]\nloss = 2.0", "[faults]: loss"),
            ("[faults]\ndirection = 'up'", "direction is rx"),
            ("[[port]]\naddress = '10.9.0.300'", "10.9.0.300"),
            ("[[port]]\naddress = '1.1.1.1'\n[[port]]\naddress = '1.1.1.1'", "two entries"),
            (
                "[[port]]\naddress = '1.1.1.1'\nqemu = 'a'\nalso = ['1.1.1.2']\n\
                 [[port]]\naddress = '1.1.1.2'",
                "two entries for 1.1.1.2",
            ),
            ("[[port]]\naddress = '1.1.1.1'\nalso = ['1.1.1.2']", "also is for a port with qemu"),
            ("[[port]]\naddress = '1.1.1.1'\nqemu = 'a'\ninterface = 'b'", "one cable"),
            ("[[program]]\nkind = 'sort'", "sort"),
            ("[[program]]\nkind = 'forward'\nfast = true", "fast"),
            ("[[program]]\nkind = 'ecn'", "give above"),
            ("[[program]]\nkind = 'trim'\nevery = 0", "nonzero"),
            ("[[program]]\nkind = 'cas_to_write'", "server"),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nva = 8", "va and len"),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nva = 4\nlen = 8", "multiple of 8"),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nspeed = 9", "speed"),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nclients = 2", "goes with mode"),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nmode = 'best'", "not one of in-place"),
            (
                "[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nmode = 'paper'\nclients = 2",
                "loses data and is for simulations",
            ),
            ("[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\nring = 8", "go with mode"),
            ("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'", "entry"),
            ("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 100", "a multiple of 8"),
            ("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 128\norder = 'any'", "not offered"),
            ("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 128\ndecay-ms = 5", "goes with hot"),
            ("[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 128\nhot = 0", "hot:"),
        ] {
            let found = Config::parse(text).unwrap_err();
            assert!(found.contains(said), "{text}: {found}");
        }
        let cas = "[[program]]\nkind = 'cas_to_write'\nserver = '10.9.0.1'\n";
        let steer = "[[program]]\nkind = 'steer'\nserver = '10.9.0.1'\nentry = 128\n";
        assert!(Config::parse(&format!("{cas}{steer}")).unwrap_err().contains("has to see all of them"));
        assert!(Config::parse(&cas.repeat(2)).unwrap_err().contains("10.9.0.1"), "one server, two programs");
        assert!(
            Config::parse(&"[[program]]\nkind = 'forward'\n".repeat(9)).unwrap_err().contains("at most 8")
        );
    }
}
