//! The port space of one address, which all its processes share: who has which port of rdma_cm, and who
//! listens. A table in shared memory beside the directory's, made when the first port is taken; a row is good
//! as long as its process lives.
//!
//! Rows of a port are within [`PROBE`] rows of where its number leads, so that who looks needs no lock: who
//! gets a request from the network finds the listener's slot here. Rows change under a record lock. The rules
//! of conflict are those of Linux (`cma_check_port`).

use crate::directory::{Member, Slot};
use adverb_nic::cm::{Address, CmError, PortSpace, Service};
use adverb_os::folders::private_file;
use adverb_os::mapping::Mapping;
use adverb_os::sys;
use adverb_wire::Gid;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Name of the table in the address's folder.
pub const NAME: &str = "ports";
/// Ports that the processes of an address have at most.
const ROWS: usize = 1 << 14;
/// Rows that one port may stand in.
const PROBE: usize = 64;
const ROW_LEN: usize = 64;
const TABLE_LEN: usize = ROWS * ROW_LEN;
/// Service and flags; 0 of a row that nobody has had.
const KEY_AT: usize = 0;
const SLOT_AT: usize = 8;
const GENERATION_AT: usize = 16;
const ADDRESS_AT: usize = 24;

const USED: u64 = 1 << 63;
/// Of a row that its owner has given back: it is free, but says who had the port last.
const LEFT: u64 = 1 << 62;
const ANY_V4: u64 = 1 << 32;
const ANY_V6: u64 = 1 << 33;
const REUSE: u64 = 1 << 34;
const AF_ONLY: u64 = 1 << 35;
const LISTENS: u64 = 1 << 36;
/// IPv6's, bound to one address.
const IS_V6: u64 = 1 << 37;

/// Byte of the file that is locked while rows change.
const CHANGE_LOCK: u64 = 0;
/// How long another process may hold it before it is taken to be stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ports below this need a privilege, where the kernel does not say otherwise.
const PRIVILEGED: u16 = 1024;
/// Range of ports that programs are given, where the kernel does not say otherwise.
const RANGE: (u16, u16) = (32768, 60999);
/// Bit of `CapEff`.
const CAP_NET_BIND_SERVICE: u64 = 10;

/// What a row says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The service.
    pub service: Service,
    /// The address.
    pub address: Address,
    /// Others with this flag may have the port too, until one listens.
    pub reuse: bool,
    /// It stands for no address of the other family.
    pub af_only: bool,
    /// Its owner takes requests.
    pub listens: bool,
}

/// Whose a row is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The process's slot.
    pub slot: Slot,
    /// Which process of those that had the slot.
    pub generation: u64,
}

impl Row {
    fn is_any(&self) -> bool {
        matches!(self.address, Address::Any { .. })
    }

    fn is_v6(&self) -> bool {
        match self.address {
            Address::Any { ipv6, .. } => ipv6,
            Address::One(gid) => !gid.is_ipv4(),
        }
    }

    /// Whether both cannot be at once, and why (`cma_check_port`).
    fn conflict(&self, other: &Row) -> Result<(), CmError> {
        if self.reuse && other.reuse {
            return Ok(());
        }
        if self.af_only && other.af_only && self.is_v6() != other.is_v6() {
            return Ok(());
        }
        if self.is_any() || other.is_any() {
            return Err(CmError::NotAvailable);
        }
        if self.address == other.address { Err(CmError::InUse) } else { Ok(()) }
    }

    fn key(&self) -> u64 {
        let flag = |is: bool, bit: u64| if is { bit } else { 0 };
        let address = match self.address {
            Address::Any { ipv4, ipv6 } => flag(ipv4, ANY_V4) | flag(ipv6, ANY_V6),
            Address::One(gid) => flag(!gid.is_ipv4(), IS_V6),
        };
        let flags = flag(self.reuse, REUSE) | flag(self.af_only, AF_ONLY) | flag(self.listens, LISTENS);
        USED | address | flags | self.service.id()
    }
}

/// The ports of an address, as this process sees them.
#[derive(Debug)]
pub struct Ports {
    path: PathBuf,
    /// Opened by who has seen that it is there: a megabyte is much where memory is scarce, and most programs
    /// take no port.
    table: OnceLock<Table>,
    /// Threads of this process do not keep each other out by record locks. The port given last, if one was.
    change: Mutex<Option<u16>>,
}

/// The table, open.
#[derive(Debug)]
struct Table {
    file: File,
    words: Mapping,
}

/// Where the rows of a service begin.
fn home(service: Service) -> usize {
    let mixed = (service.id() as u32).wrapping_mul(0x9e37_79b9);
    (mixed >> 18) as usize % ROWS
}

fn rows_of(service: Service) -> impl Iterator<Item = usize> {
    let first = home(service);
    (0..PROBE).map(move |i| (first + i) % ROWS)
}

impl Table {
    /// Opens a table, and makes it if told to and it is not there; without memory for it that fails.
    fn open(path: &Path, create: bool) -> io::Result<Table> {
        let file = private_file().create(create).truncate(false).open(path)?;
        if create {
            sys::allocate(file.as_fd(), TABLE_LEN as u64)?;
        } else if file.metadata()?.len() < TABLE_LEN as u64 {
            // Who makes it is about to allocate it, or could not.
            return Err(io::ErrorKind::NotFound.into());
        }
        let words = Mapping::of_file(file.as_fd(), TABLE_LEN)?;
        Ok(Table { file, words })
    }

    /// A row and whose it is; nothing if nobody has it. Others may change it meanwhile: what is read is used
    /// only if the key is still the same.
    fn read(&self, row: usize) -> Option<(Row, Owner)> {
        let word = |at: usize| self.words.u64_at(row * ROW_LEN + at);
        let key = word(KEY_AT).load(Ordering::Acquire);
        if key & USED == 0 {
            return None;
        }
        let (slot, generation) = (word(SLOT_AT).load(Ordering::Acquire), word(GENERATION_AT));
        let generation = generation.load(Ordering::Acquire);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&word(ADDRESS_AT).load(Ordering::Acquire).to_le_bytes());
        bytes[8..].copy_from_slice(&word(ADDRESS_AT + 8).load(Ordering::Acquire).to_le_bytes());
        if word(KEY_AT).load(Ordering::Acquire) != key {
            return None;
        }
        let service = Service::of(key & 0xffff_ffff)?;
        let (ipv4, ipv6) = (key & ANY_V4 != 0, key & ANY_V6 != 0);
        let address = if ipv4 || ipv6 { Address::Any { ipv4, ipv6 } } else { Address::One(Gid(bytes)) };
        let (reuse, af_only, listens) = (key & REUSE != 0, key & AF_ONLY != 0, key & LISTENS != 0);
        let row = Row { service, address, reuse, af_only, listens };
        Some((row, Owner { slot: Slot::new(slot as u8)?, generation }))
    }

    fn write(&self, at: usize, row: &Row, owner: Owner) {
        let word = |offset: usize| self.words.u64_at(at * ROW_LEN + offset);
        word(KEY_AT).store(0, Ordering::Release);
        word(SLOT_AT).store(owner.slot.get().into(), Ordering::Release);
        word(GENERATION_AT).store(owner.generation, Ordering::Release);
        if let Address::One(Gid(bytes)) = row.address {
            let half = |i: usize| core::array::from_fn(|byte| bytes[i * 8 + byte]);
            word(ADDRESS_AT).store(u64::from_le_bytes(half(0)), Ordering::Release);
            word(ADDRESS_AT + 8).store(u64::from_le_bytes(half(1)), Ordering::Release);
        }
        word(KEY_AT).store(row.key(), Ordering::Release);
    }

    fn clear(&self, at: usize) {
        self.words.u64_at(at * ROW_LEN + KEY_AT).store(0, Ordering::Release);
    }

    /// Gives a row back.
    fn leave(&self, at: usize, row: &Row) {
        self.words.u64_at(at * ROW_LEN + KEY_AT).store(LEFT | row.service.id(), Ordering::Release);
    }

    /// Who has a row, or had it last, if it is of a service.
    fn last_owner(&self, at: usize, service: Service) -> Option<Owner> {
        let word = |offset: usize| self.words.u64_at(at * ROW_LEN + offset).load(Ordering::Acquire);
        let key = word(KEY_AT);
        if key & (USED | LEFT) == 0 || key & 0xffff_ffff != service.id() {
            return None;
        }
        let owner = Owner { slot: Slot::new(word(SLOT_AT) as u8)?, generation: word(GENERATION_AT) };
        (word(KEY_AT) == key).then_some(owner)
    }

    /// Rows of a service whose owners live; those of the dead are cleared.
    fn live_rows(&self, service: Service, lives: &impl Fn(Owner) -> bool) -> Vec<(usize, Row)> {
        let mut found = Vec::new();
        for at in rows_of(service) {
            match self.read(at) {
                Some((row, owner)) if row.service == service && lives(owner) => found.push((at, row)),
                Some((row, _)) if row.service == service => self.clear(at),
                _ => {}
            }
        }
        found
    }

    fn insert(&self, row: &Row, owner: Owner, lives: &impl Fn(Owner) -> bool) -> Result<usize, CmError> {
        let is_free = |at: &usize| self.read(*at).is_none_or(|(_, owner)| !lives(owner));
        let at = rows_of(row.service).find(is_free).ok_or(CmError::TableFull)?;
        self.write(at, row, owner);
        Ok(at)
    }
}

impl Ports {
    /// Those of a folder, to whose address this process belongs.
    pub fn of(folder: &Path) -> Ports {
        Ports { path: folder.join(NAME), table: OnceLock::new(), change: Mutex::new(None) }
    }

    /// The table, if any process has made it.
    fn table(&self) -> Option<&Table> {
        self.opened(false)
    }

    /// The table, made if nobody has.
    fn made(&self) -> Result<&Table, CmError> {
        self.opened(true).ok_or(CmError::TableFull)
    }

    fn opened(&self, create: bool) -> Option<&Table> {
        if let Some(table) = self.table.get() {
            return Some(table);
        }
        // One descriptor alone: to close another of the file would give up this process's record locks.
        let _alone = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        if self.table.get().is_none() {
            let _ = self.table.set(Table::open(&self.path, create).ok()?);
        }
        self.table.get()
    }

    /// Changes rows while nobody else does.
    fn change<R>(
        &self,
        table: &Table,
        change: impl FnOnce(&mut Option<u16>) -> Result<R, CmError>,
    ) -> Result<R, CmError> {
        let mut last = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        match sys::lock_byte_patiently(table.file.as_fd(), CHANGE_LOCK, PATIENCE) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(CmError::Held),
        }
        let result = change(&mut last);
        sys::unlock_byte(table.file.as_fd(), CHANGE_LOCK);
        result
    }

    /// Takes a port for a process, port 0 standing for one that nobody has: which row, and which port.
    pub fn bind(
        &self,
        row: &Row,
        owner: Owner,
        lives: impl Fn(Owner) -> bool,
    ) -> Result<(usize, u16), CmError> {
        let port = row.service.port;
        if port != 0 {
            if port < unprivileged_from() && !may_bind_all() {
                return Err(CmError::Privileged);
            }
            let table = self.made()?;
            return self.change(table, |_| {
                let rows = table.live_rows(row.service, &lives);
                rows.iter().try_for_each(|(_, other)| row.conflict(other))?;
                table.insert(row, owner, &lives).map(|at| (at, port))
            });
        }
        let (first, last) = port_range();
        let count = u32::from(last - first) + 1;
        let table = self.made()?;
        let random = sys::random_bytes::<2>().map(u16::from_le_bytes).map_err(|_| CmError::NotAvailable)?;
        self.change(table, |given| {
            let before = u32::from(given.unwrap_or(random));
            for i in 1..=count {
                let port = first + ((before + i) % count) as u16;
                let service = Service { port, ..row.service };
                if table.live_rows(service, &lives).is_empty()
                    && let Ok(at) = table.insert(&Row { service, ..*row }, owner, &lives)
                {
                    *given = Some(port - first);
                    return Ok((at, port));
                }
            }
            Err(CmError::NotAvailable)
        })
    }

    /// The owner of a row listens, and shares its port no more.
    pub fn listen(&self, at: usize, owner: Owner, lives: impl Fn(Owner) -> bool) -> Result<Row, CmError> {
        let table = self.table().ok_or(CmError::NoSuchObject)?;
        self.change(table, |_| {
            let (row, found) = table.read(at).ok_or(CmError::NoSuchObject)?;
            if found != owner {
                return Err(CmError::NoSuchObject);
            }
            let listening = Row { listens: true, reuse: false, ..row };
            let others = table.live_rows(row.service, &lives);
            let mut others = others.iter().filter(|(other, _)| *other != at);
            others.try_for_each(|(_, other)| listening.conflict(other))?;
            table.write(at, &listening, owner);
            Ok(listening)
        })
    }

    /// It listens no more.
    pub fn unlisten(&self, at: usize, owner: Owner) -> Result<(), CmError> {
        let table = self.table().ok_or(CmError::NoSuchObject)?;
        self.change(table, |_| match table.read(at) {
            Some((row, found)) if found == owner => {
                table.write(at, &Row { listens: false, ..row }, owner);
                Ok(())
            }
            _ => Err(CmError::NoSuchObject),
        })
    }

    /// Gives a row back.
    pub fn unbind(&self, at: usize, owner: Owner) -> Result<(), CmError> {
        let table = self.table().ok_or(CmError::NoSuchObject)?;
        self.change(table, |_| {
            if let Some((row, found)) = table.read(at)
                && found == owner
            {
                table.leave(at, &row);
            }
            Ok(())
        })
    }

    /// Who listens for a service at an address: one that is bound to the address before one bound to any.
    pub fn listener(&self, service: Service, dst: Gid, lives: impl Fn(Owner) -> bool) -> Option<Slot> {
        let table = self.table()?;
        let mut found = None;
        for at in rows_of(service) {
            let Some((row, owner)) = table.read(at) else { continue };
            if row.service != service || !row.listens || !row.address.takes(dst) || !lives(owner) {
                continue;
            }
            if row.address == Address::One(dst) {
                return Some(owner.slot);
            }
            found = found.or(Some(owner.slot));
        }
        found
    }

    /// Where nobody listens: a process that has a port in some space, or had it last. It knows whether its
    /// listener has only just gone.
    pub fn keeper(&self, port: u16, lives: impl Fn(Owner) -> bool) -> Option<Slot> {
        let table = self.table()?;
        PortSpace::ALL
            .into_iter()
            .find_map(|space| {
                let service = Service { space, port };
                rows_of(service).filter_map(|at| table.last_owner(at, service)).find(|owner| lives(*owner))
            })
            .map(|owner| owner.slot)
    }

    /// All services that are listened for, up to `max`, and by whom.
    pub fn listeners(&self, max: usize, lives: impl Fn(Owner) -> bool) -> Vec<(Service, Slot)> {
        let Some(table) = self.table() else { return Vec::new() };
        let all = (0..ROWS).filter_map(|at| table.read(at));
        let listening = all.filter(|(row, owner)| row.listens && lives(*owner));
        listening.map(|(row, owner)| (row.service, owner.slot)).take(max).collect()
    }
}

impl Member {
    /// This process as an owner of ports.
    pub fn owner(&self) -> Owner {
        Owner { slot: self.slot(), generation: self.generation() }
    }

    /// Whether an owner of ports lives.
    pub fn lives(&self, owner: Owner) -> bool {
        self.generation_of(owner.slot) == owner.generation && self.is_alive(owner.slot)
    }
}

/// Row of a port that is bound as a program asked for it. `own` is the NIC's address.
pub fn row(
    space: PortSpace,
    port: u16,
    address: std::net::IpAddr,
    reuse: bool,
    af_only: bool,
    own: Gid,
) -> Row {
    let gid = Gid::from(address);
    // rdma_cm takes loopback addresses for any, but this NIC may be at one.
    let is_any = gid != own && (address.is_unspecified() || address.is_loopback());
    let address = match is_any {
        true if address.is_ipv4() => Address::Any { ipv4: true, ipv6: false },
        true => Address::Any { ipv4: !af_only, ipv6: true },
        false => Address::One(gid),
    };
    // One of IPv4 never stands for IPv6.
    let af_only = af_only || gid.is_ipv4();
    Row { service: Service { space, port }, address, reuse, af_only, listens: false }
}

fn number_of(path: &str) -> Option<Vec<u16>> {
    let text = std::fs::read_to_string(path).ok()?;
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

fn port_range() -> (u16, u16) {
    match number_of("/proc/sys/net/ipv4/ip_local_port_range").as_deref() {
        Some(&[first, last]) if first > 0 && first <= last => (first, last),
        _ => RANGE,
    }
}

fn unprivileged_from() -> u16 {
    match number_of("/proc/sys/net/ipv4/ip_unprivileged_port_start").as_deref() {
        Some(&[first]) => first,
        _ => PRIVILEGED,
    }
}

fn may_bind_all() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    bits & (1 << CAP_NET_BIND_SERVICE) != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const OWN: &str = "10.0.0.1";

    fn own() -> Gid {
        Gid::from(OWN.parse::<IpAddr>().unwrap())
    }

    fn table() -> (Ports, std::path::PathBuf) {
        let number = u64::from_le_bytes(sys::random_bytes::<8>().unwrap());
        let folder = std::env::temp_dir().join(format!("adverb-ports-{}-{number:x}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        (Ports::of(&folder), folder)
    }

    fn owner(slot: u8) -> Owner {
        Owner { slot: Slot::new(slot).unwrap(), generation: u64::from(slot) }
    }

    fn tcp(port: u16, address: &str, reuse: bool, af_only: bool) -> Row {
        row(PortSpace::Tcp, port, address.parse().unwrap(), reuse, af_only, own())
    }

    #[test]
    fn conflicts_are_those_of_linux() {
        for (first, second, outcome) in [
            ("0.0.0.0", "0.0.0.0", Err(CmError::NotAvailable)),
            ("0.0.0.0", OWN, Err(CmError::NotAvailable)),
            (OWN, "0.0.0.0", Err(CmError::NotAvailable)),
            (OWN, "127.0.0.1", Err(CmError::NotAvailable)),
            (OWN, "::", Err(CmError::NotAvailable)),
            (OWN, OWN, Err(CmError::InUse)),
            (OWN, "10.0.0.2", Ok(())),
        ] {
            let (ports, folder) = table();
            ports.bind(&tcp(7174, first, false, false), owner(1), |_| true).unwrap();
            for other in [1, 2] {
                let again = ports.bind(&tcp(7174, second, false, false), owner(other), |_| true).map(drop);
                assert_eq!(again, if other == 2 && outcome.is_ok() { Err(CmError::InUse) } else { outcome });
            }
            // Another space, another port, or the first one's end: free.
            let udp =
                Row { service: Service { space: PortSpace::Udp, port: 7174 }, ..tcp(0, first, false, false) };
            ports.bind(&udp, owner(2), |_| true).unwrap();
            ports.bind(&tcp(7175, second, false, false), owner(2), |_| true).unwrap();
            ports.bind(&tcp(7174, second, false, false), owner(3), |owner| owner.slot.get() == 9).unwrap();
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn who_reuses_shares_until_one_listens() {
        let (ports, folder) = table();
        let all = |_: Owner| true;
        let (a, _) = ports.bind(&tcp(9000, "0.0.0.0", true, false), owner(1), all).unwrap();
        let (b, _) = ports.bind(&tcp(9000, OWN, true, false), owner(2), all).unwrap();
        assert_eq!(ports.listen(a, owner(1), all), Err(CmError::NotAvailable));
        ports.unbind(b, owner(2)).unwrap();
        assert!(ports.listen(a, owner(1), all).unwrap().listens);
        let third = ports.bind(&tcp(9000, OWN, true, false), owner(3), all);
        assert_eq!(third, Err(CmError::NotAvailable), "who listens shares no more");
        assert_eq!(ports.unlisten(a, owner(2)), Err(CmError::NoSuchObject), "another's row");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn families_are_apart_where_both_say_so() {
        let (ports, folder) = table();
        let all = |_: Owner| true;
        let (v6, _) = ports.bind(&tcp(3260, "::", false, true), owner(1), all).unwrap();
        let (v4, _) = ports.bind(&tcp(3260, "0.0.0.0", false, false), owner(2), all).unwrap();
        ports.listen(v6, owner(1), all).unwrap();
        ports.listen(v4, owner(2), all).unwrap();
        let service = Service { space: PortSpace::Tcp, port: 3260 };
        let of = |address: &str| {
            let dst = Gid::from(address.parse::<IpAddr>().unwrap());
            ports.listener(service, dst, all).map(Slot::get)
        };
        assert_eq!((of(OWN), of("fd00::1")), (Some(2), Some(1)));
        ports.unbind(v6, owner(1)).unwrap();
        assert_eq!((of(OWN), of("fd00::1")), (Some(2), None));
        ports.unbind(v4, owner(2)).unwrap();
        let (both, _) = ports.bind(&tcp(3260, "::", false, false), owner(3), all).unwrap();
        assert_eq!(of(OWN), None, "bound is not listening");
        ports.listen(both, owner(3), all).unwrap();
        assert_eq!((of(OWN), of("fd00::1")), (Some(3), Some(3)));
        assert_eq!(ports.listeners(8, all), [(service, Slot::new(3).unwrap())]);
        assert_eq!(ports.listeners(8, |_| false), []);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_has_a_port_or_had_it_last_is_found() {
        let (ports, folder) = table();
        let all = |_: Owner| true;
        let keeper = |lives: fn(Owner) -> bool| ports.keeper(9000, lives).map(Slot::get);
        let (at, _) = ports.bind(&tcp(9000, OWN, false, false), owner(1), all).unwrap();
        assert_eq!(keeper(|_| true), Some(1), "bound");
        ports.unbind(at, owner(1)).unwrap();
        assert_eq!((keeper(|_| true), keeper(|_| false)), (Some(1), None), "given back; its owner has died");
        assert_eq!(ports.keeper(9001, all), None, "another port");
        // The row is free: another process takes it, in whatever space.
        let (again, _) = ports.bind(&tcp(9000, "0.0.0.0", false, false), owner(2), all).unwrap();
        assert_eq!((again, keeper(|_| true)), (at, Some(2)));
        ports.unbind(again, owner(1)).unwrap();
        assert!(ports.listen(again, owner(2), all).is_ok(), "another's row is not given back");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn port_0_is_one_that_nobody_has_and_not_the_last_one() {
        let (ports, folder) = table();
        let all = |_: Owner| true;
        let mut given = std::collections::BTreeSet::new();
        let mut last = 0;
        for _ in 0..2000 {
            let (at, port) = ports.bind(&tcp(0, OWN, false, false), owner(1), all).unwrap();
            assert!(port != last && port >= port_range().0 && port <= port_range().1);
            last = port;
            if given.len() < 1000 {
                assert!(given.insert(port));
            } else {
                assert!(!given.contains(&port));
                ports.unbind(at, owner(1)).unwrap();
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_table_is_bounded_and_its_rows_die_with_their_owners() {
        let (ports, folder) = table();
        let all = |_: Owner| true;
        let mut bound = 0;
        let full = loop {
            match ports.bind(&tcp(0, OWN, false, false), owner(1), all) {
                Ok(_) => bound += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(full, CmError::NotAvailable);
        assert!(bound > ROWS / 2 && bound <= ROWS, "{bound}");
        ports.bind(&tcp(0, OWN, false, false), owner(2), |owner| owner.slot.get() != 1).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
