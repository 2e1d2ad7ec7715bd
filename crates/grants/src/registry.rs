//! The owner's books: its regions by name, and who holds leases of their keys. Time is an argument here.
//!
//! A lease says until when a client counts on its keys. K_d itself knows no time: what makes a lease's end
//! real is that the region gets another key then, of which all others are told ahead ([`Registry::lapsed`]).
//!
//! A rotation goes in two steps. *Announced*, there is a next key, and holders are given K_d under it.
//! *Concluded*, the NIC has it.

use crate::error::{Refusal, rights_text};
use crate::policy::Policy;
use crate::wire::{Ask, Issued, Known, MAX_NAME, RegionInfo, Secret};
use adverb_nic::one_rma::derive;
use adverb_rma::{Grant, Op, Region, RegionKey, Rights};
use adverb_wire::Gid;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Regions of an owner at most.
pub const MAX_REGIONS: usize = 1024;
/// Leases of an owner at most, expired ones that are remembered included.
pub const MAX_LEASES: usize = 1 << 16;
/// Leases of one client at most.
pub const MAX_LEASES_OF_CLIENT: usize = 4096;
/// For how long after its last question a client that asks for news is taken to listen.
const LISTENS: Duration = Duration::from_secs(2);

struct Entry {
    name: String,
    region: Region,
    /// Counts its keys.
    epoch: u64,
    /// Announced.
    next: Option<RegionKey>,
    /// A lease has ended since it has this key.
    lapsed: bool,
}

struct Lease {
    client: String,
    /// Index of an entry.
    region: usize,
    address: IpAddr,
    pid: u32,
    rights: Rights,
    ttl: Duration,
    expires: Instant,
    /// What its holder knows.
    epoch: u64,
    announced: u64,
    /// The latest of its keys that left for it.
    issued: u64,
    /// It asks for news.
    listens_until: Instant,
}

/// An owner's regions and the leases of their keys.
pub(crate) struct Registry {
    address: IpAddr,
    policy: Policy,
    entries: Vec<Entry>,
    leases: BTreeMap<u64, Lease>,
    next_lease: u64,
}

impl Registry {
    /// `first_lease` should differ from run to run, so that a lease of an earlier owner is not taken for one
    /// of this.
    pub fn new(address: IpAddr, policy: Policy, first_lease: u64) -> Registry {
        Registry { address, policy, entries: Vec::new(), leases: BTreeMap::new(), next_lease: first_lease }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Enters a region under a name.
    pub fn add(&mut self, name: &str, region: Region) -> Result<(), Refusal> {
        if name.is_empty() || name.len() > MAX_NAME || self.find(name).is_some() {
            return Err(Refusal::Invalid(format!(
                "`{name}` cannot name a region: it is taken, empty or longer than {MAX_NAME} bytes"
            )));
        }
        if self.entries.len() == MAX_REGIONS {
            return Err(Refusal::Full { what: "regions".to_owned(), limit: MAX_REGIONS as u64 });
        }
        self.entries.push(Entry { name: name.to_owned(), region, epoch: 0, next: None, lapsed: false });
        Ok(())
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }

    /// A region that the client may know of, and what it may do to it.
    fn allowed(&self, client: &str, name: &str) -> Result<(usize, Rights, Duration), Refusal> {
        let found = self.find(name).and_then(|at| Some((at, self.policy.on_region(client, name)?)));
        match found {
            Some((at, (rights, ttl))) => Ok((at, rights, ttl)),
            None => Err(Refusal::UnknownRegion(name.to_owned())),
        }
    }

    /// The regions that a client may know of.
    pub fn list(&self, now: Instant, client: &str) -> Vec<RegionInfo> {
        let seen = |(at, entry): (usize, &Entry)| {
            let (rights, _) = self.policy.on_region(client, &entry.name)?;
            let leases =
                self.leases.values().filter(|lease| lease.region == at && lease.expires > now).count();
            let counts = (entry.epoch, leases as u32);
            let region = (entry.region.id(), entry.region.len() as u64);
            Some(RegionInfo::new(&entry.name, region, self.address, rights, counts))
        };
        self.entries.iter().enumerate().filter_map(seen).collect()
    }

    /// A new lease.
    pub fn grant(&mut self, now: Instant, client: &str, ask: &Ask) -> Result<Issued, Refusal> {
        let (region, allowed, max_ttl) = self.allowed(client, &ask.region)?;
        let allowed = allowed & self.entries[region].region.rights();
        let rights = Rights::from_bits(ask.rights).filter(|rights| !rights.is_empty());
        let rights =
            rights.ok_or_else(|| Refusal::Invalid("rights: give read, write or rekey".to_owned()))?;
        if !allowed.contains(rights) {
            let what = format!("{} `{}`", rights_text(rights - allowed), ask.region);
            return Err(Refusal::Denied { client: client.to_owned(), what });
        }
        let ttl = Duration::from_millis(ask.ttl_ms);
        if ttl.is_zero() || ttl > max_ttl {
            let longest = max_ttl.as_secs_f64();
            let asked = ttl.as_secs_f64();
            return Err(Refusal::Invalid(format!(
                "a lease of {asked} s: this client's leases of `{}` last more than 0 and at most {longest} s",
                ask.region
            )));
        }
        self.make_room(now, client)?;
        let epoch = self.entries[region].epoch;
        let lease = Lease {
            client: client.to_owned(),
            region,
            address: ask.address,
            pid: ask.pid,
            rights,
            ttl,
            expires: now + ttl,
            epoch,
            announced: epoch,
            issued: epoch,
            listens_until: now + LISTENS,
        };
        let number = self.next_lease;
        let issued = self.issue(now, number, &lease, false)?;
        self.next_lease += 1;
        self.leases.insert(number, lease);
        Ok(issued)
    }

    /// Forgets expired leases, the oldest first, where there is no room else.
    fn make_room(&mut self, now: Instant, client: &str) -> Result<(), Refusal> {
        let of_client = self.leases.values().filter(|lease| lease.client == client).count();
        let (full, limit) = match (of_client >= MAX_LEASES_OF_CLIENT, self.leases.len() >= MAX_LEASES) {
            (true, _) => (Some(client), MAX_LEASES_OF_CLIENT),
            (false, true) => (None, MAX_LEASES),
            (false, false) => return Ok(()),
        };
        let over = |lease: &Lease| lease.expires <= now && full.is_none_or(|client| lease.client == client);
        let oldest = self.leases.iter().find(|(_, lease)| over(lease)).map(|(number, _)| *number);
        let Some(oldest) = oldest else {
            let whose = if full.is_some() { "leases of this client" } else { "leases" };
            return Err(Refusal::Full { what: whose.to_owned(), limit: limit as u64 });
        };
        self.forget(oldest);
        Ok(())
    }

    /// Its key may still be held somewhere.
    fn forget(&mut self, number: u64) {
        if let Some(lease) = self.leases.remove(&number) {
            self.entries[lease.region].lapsed |= lease.issued >= self.entries[lease.region].epoch;
        }
    }

    fn issue(&self, now: Instant, number: u64, lease: &Lease, next: bool) -> Result<Issued, Refusal> {
        let entry = &self.entries[lease.region];
        let nic = |error: adverb_rma::Error| Refusal::Nic(error.to_string());
        let grant = match entry.next.as_ref().filter(|_| next) {
            None => entry.region.grant(lease.address, lease.pid, lease.rights).map_err(nic)?,
            Some(key) => {
                let target = Gid::from(self.address);
                let grant = Grant::new(target, entry.region.id(), entry.region.len() as u64);
                let ops = [(Op::Read, Rights::READ), (Op::Write, Rights::WRITE), (Op::Rekey, Rights::REKEY)];
                ops.iter().filter(|(_, right)| lease.rights.contains(*right)).fold(grant, |grant, (op, _)| {
                    let region = entry.region.id().wire();
                    grant.with_key(*op, derive(key, target, region, lease.address.into(), lease.pid, *op))
                })
            }
        };
        Ok(Issued {
            lease: number,
            epoch: entry.epoch + next as u64,
            in_force: !next,
            left_ms: lease.expires.saturating_duration_since(now).as_millis() as u64,
            grant: Secret(grant.to_bytes()),
        })
    }

    fn held(&mut self, now: Instant, client: &str, number: u64) -> Result<&mut Lease, Refusal> {
        let lease = self.leases.get_mut(&number).filter(|lease| lease.client == client);
        let lease = lease.ok_or(Refusal::UnknownLease(number))?;
        match now.checked_duration_since(lease.expires) {
            None => Ok(lease),
            Some(ago) => Err(Refusal::Expired { lease: number, ago_ms: ago.as_millis() as u64 }),
        }
    }

    /// A lease begins anew, with the key that is in force.
    pub fn renew(&mut self, now: Instant, client: &str, number: u64) -> Result<Issued, Refusal> {
        let lease = self.held(now, client, number)?;
        let region = lease.region;
        // What the policy takes away is gone with the next rotation at the latest; a lease is not renewed
        // beyond it.
        let (rights, ttl) = (lease.rights, lease.ttl);
        let name = self.entries[region].name.clone();
        let (_, allowed, max_ttl) = self.allowed(client, &name)?;
        if !allowed.contains(rights) {
            let what = format!("{} `{name}`", rights_text(rights - allowed));
            return Err(Refusal::Denied { client: client.to_owned(), what });
        }
        let epoch = self.entries[region].epoch;
        let Some(lease) = self.leases.get_mut(&number) else { return Err(Refusal::UnknownLease(number)) };
        lease.expires = now + ttl.min(max_ttl);
        lease.epoch = epoch;
        lease.issued = lease.issued.max(epoch);
        self.issue(now, number, &self.leases[&number], false)
    }

    /// A lease ends. Its key is worthless after the region's next rotation.
    pub fn release(&mut self, now: Instant, client: &str, number: u64) -> Result<(), Refusal> {
        self.held(now, client, number)?;
        self.forget(number);
        Ok(())
    }

    /// What a client does not know yet of the keys of its leases. It counts as listening for a while.
    pub fn news(&mut self, now: Instant, client: &str, held: &[Known]) -> Result<Vec<Issued>, Refusal> {
        let mut news = Vec::new();
        for known in held {
            let lease = match self.held(now, client, known.lease) {
                Ok(lease) => lease,
                // It asks for itself and is told.
                Err(Refusal::Expired { .. }) => continue,
                Err(other) => return Err(other),
            };
            (lease.epoch, lease.announced) = (known.epoch, known.announced);
            lease.listens_until = now + LISTENS;
            let lease = &self.leases[&known.lease];
            let entry = &self.entries[lease.region];
            let announce = entry.next.is_some() && known.announced <= entry.epoch;
            if known.epoch < entry.epoch || announce {
                let issued = self.issue(now, known.lease, lease, known.epoch >= entry.epoch)?;
                if let Some(lease) = self.leases.get_mut(&known.lease) {
                    lease.issued = lease.issued.max(issued.epoch);
                }
                news.push(issued);
            }
        }
        Ok(news)
    }

    /// The regions whose key is to change because a lease of it has ended.
    pub fn lapsed(&mut self, now: Instant) -> Vec<String> {
        for lease in self.leases.values() {
            let entry = &mut self.entries[lease.region];
            entry.lapsed |= lease.expires <= now && lease.issued >= entry.epoch;
        }
        self.entries
            .iter()
            .filter(|entry| entry.lapsed && entry.next.is_none())
            .map(|entry| entry.name.clone())
            .collect()
    }

    /// Whether a client may have a region's key rotated.
    pub fn may_rotate(&self, client: &str, name: &str) -> Result<(), Refusal> {
        let (_, rights, _) = self.allowed(client, name)?;
        if rights.contains(Rights::REKEY) {
            return Ok(());
        }
        Err(Refusal::Denied { client: client.to_owned(), what: format!("rekey `{name}`") })
    }

    /// Announces a key. From now on [`Registry::news`] tells of it.
    pub fn announce(&mut self, name: &str, key: RegionKey) -> Result<(), Refusal> {
        let at = self.find(name).ok_or_else(|| Refusal::UnknownRegion(name.to_owned()))?;
        let entry = &mut self.entries[at];
        if entry.next.is_some() {
            return Err(Refusal::Rotating(name.to_owned()));
        }
        entry.next = Some(key);
        Ok(())
    }

    /// Leases whose holders have the announced key; others that listen and will ask for it; others.
    pub fn audience(&self, now: Instant, name: &str) -> (u32, u32, u32) {
        let Some(at) = self.find(name) else { return (0, 0, 0) };
        let next = self.entries[at].epoch + 1;
        let of_region = self.leases.values().filter(|lease| lease.region == at && lease.expires > now);
        of_region.fold((0, 0, 0), |(told, listening, deaf), lease| {
            match (lease.announced >= next, lease.listens_until > now) {
                (true, _) => (told + 1, listening, deaf),
                (false, true) => (told, listening + 1, deaf),
                (false, false) => (told, listening, deaf + 1),
            }
        })
    }

    /// Gives the announced key to the NIC: its number.
    pub fn conclude(&mut self, name: &str) -> Result<u64, Refusal> {
        let at = self.find(name).ok_or_else(|| Refusal::UnknownRegion(name.to_owned()))?;
        let entry = &mut self.entries[at];
        let key =
            entry.next.take().ok_or_else(|| Refusal::Invalid(format!("no key is announced for `{name}`")))?;
        entry.region.rotate(&key).map_err(|error| Refusal::Nic(error.to_string()))?;
        entry.epoch += 1;
        // Leases that had ended before this key was announced are worthless now; `lapsed` finds the others.
        entry.lapsed = false;
        Ok(entry.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_rma::{Memory, Rma, Settings};

    const POLICY: &str = "
        [[client]]
        name = 'alice'
        regions = ['log']
        rights = ['read']
        [[client]]
        name = 'bob'
        regions = ['log']
        rights = ['read', 'rekey']
    ";

    fn registry(host: u8) -> (Rma, Memory, Registry) {
        let address = IpAddr::from([127, 62, 0, host]);
        let folder = std::env::temp_dir().join(format!("adverb-registry-{}-{host}", std::process::id()));
        let rma = Rma::open(Settings { state: Some(folder.clone()), ..Settings::new(address) }).unwrap();
        // It holds its file open; these NICs send nothing.
        std::fs::remove_dir_all(folder).unwrap();
        let memory = rma.allocate(4096).unwrap();
        let mut registry = Registry::new(address, Policy::parse(POLICY).unwrap(), 1);
        registry.add("log", memory.register(0..4096, Rights::READ).unwrap()).unwrap();
        (rma, memory, registry)
    }

    fn ask(seconds: u64) -> Ask {
        let address = IpAddr::from([127, 62, 0, 9]);
        Ask { region: "log".to_owned(), address, pid: 7, rights: Rights::READ.bits(), ttl_ms: seconds * 1000 }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_client_has_so_many_leases_and_those_that_ended_make_room() {
        let (_rma, _memory, mut registry) = registry(1);
        let start = crate::clock::now();
        let first = registry.grant(start, "alice", &ask(10)).unwrap().lease;
        for _ in 1..MAX_LEASES_OF_CLIENT {
            registry.grant(start, "alice", &ask(60)).unwrap();
        }
        let full = registry.grant(start, "alice", &ask(60)).unwrap_err();
        assert_eq!(full, Refusal::Full { what: "leases of this client".to_owned(), limit: 4096 });
        assert!(registry.grant(start, "bob", &ask(60)).is_ok(), "another client does not notice");
        assert!(registry.lapsed(start).is_empty());
        // The first one's place is given away; that its key may still be held is not forgotten.
        registry.grant(after(start, 11), "alice", &ask(60)).unwrap();
        assert!(registry.grant(after(start, 11), "alice", &ask(60)).is_err());
        assert_eq!(
            registry.renew(after(start, 11), "alice", first).unwrap_err(),
            Refusal::UnknownLease(first)
        );
        assert_eq!(registry.lapsed(after(start, 11)), ["log"]);
    }

    #[test]
    fn a_region_whose_lease_ended_gets_one_new_key_and_who_listens_is_told_before() {
        let (_rma, _memory, mut registry) = registry(2);
        let start = crate::clock::now();
        let short = registry.grant(start, "alice", &ask(10)).unwrap();
        let long = registry.grant(start, "bob", &ask(60)).unwrap();
        let at = after(start, 10);
        assert_eq!(registry.lapsed(at), ["log"]);
        let known = |epoch, announced| [Known { lease: long.lease, epoch, announced }];
        assert!(registry.news(at, "bob", &known(0, 0)).unwrap().is_empty());
        registry.announce("log", RegionKey::new([5; 16])).unwrap();
        assert!(matches!(registry.announce("log", RegionKey::new([6; 16])), Err(Refusal::Rotating(_))));
        assert!(registry.lapsed(at).is_empty(), "it is under way");
        assert_eq!(registry.audience(at, "log"), (0, 1, 0));
        let told = registry.news(at, "bob", &known(0, 0)).unwrap();
        assert_eq!((told.len(), told[0].epoch, told[0].in_force), (1, 1, false));
        assert!(registry.news(at, "bob", &known(0, 1)).unwrap().is_empty());
        assert_eq!(registry.audience(at, "log"), (1, 0, 0));
        assert_eq!(registry.conclude("log"), Ok(1));
        // What was announced is what the NIC derives now.
        let now = registry.news(at, "bob", &known(0, 1)).unwrap();
        assert_eq!((now[0].epoch, now[0].in_force), (1, true));
        assert_eq!(*now[0].grant.0, *told[0].grant.0);
        assert_ne!(*now[0].grant.0, *long.grant.0);
        assert!(registry.lapsed(at).is_empty(), "once is enough");
        assert!(matches!(registry.renew(at, "alice", short.lease), Err(Refusal::Expired { .. })));
        // Bob was told of the key and goes: it changes again.
        registry.release(at, "bob", long.lease).unwrap();
        assert_eq!(registry.lapsed(at), ["log"]);
        // Who does not listen is not waited for.
        assert_eq!(registry.audience(after(start, 20), "log"), (0, 0, 0));
        registry.grant(at, "alice", &ask(60)).unwrap();
        assert_eq!(registry.audience(after(start, 20), "log"), (0, 0, 1));
    }
}
