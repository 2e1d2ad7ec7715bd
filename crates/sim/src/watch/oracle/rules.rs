//! StaR's registry under the oracle: what each side has granted its peer's NIC is kept here a second time.
//! Sides grant all that their peer's work names, or less; they take a region back, and the agents that carry
//! rules are started anew, while work goes on. No packet may leave that nothing granted names, and nothing
//! may be refused where all was granted.

use super::{Oracle, SOURCE_BYTES, side};
use crate::host::host_of;
use crate::sim::Sim;
use crate::watch::sabotage::Sabotage;
use adverb_nic::{Error, Rule, RuleFor, Status};
use adverb_wire::star::{Grant, Op, StarEth, names_carried};
use adverb_wire::{Key, Operation, Packet, QpNumber, Service};

pub(super) const ALL: u8 = Grant::WRITE | Grant::READ | Grant::ATOMIC;
/// One side of so many grants less than its peer's work names.
const LESS_OF: u32 = 6;

/// A part of a side's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    pub key: Key,
    pub va: u64,
    pub len: u64,
    pub rights: u8,
}

/// Rules for one side, at its peer's NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Rules {
    posted: bool,
    region: Option<Region>,
    /// Of its window: the next one may stand before the last one has ended.
    windows: [Option<Region>; 2],
}

impl Rules {
    fn list(self) -> impl Iterator<Item = RuleFor> {
        let rule = |Region { key, va, len, rights }| RuleFor::Region { key, va, len, rights };
        self.posted.then_some(RuleFor::Posted).into_iter().chain(self.regions().map(rule))
    }

    fn regions(self) -> impl Iterator<Item = Region> {
        self.region.into_iter().chain(self.windows.into_iter().flatten())
    }

    fn allow(self, named: &Named) -> bool {
        match *named {
            Named::Posted => self.posted,
            Named::Region(part) => self.regions().any(|region| {
                let ends = |region: &Region| u128::from(region.va) + u128::from(region.len);
                let within = region.va <= part.va && ends(&part) <= ends(&region);
                region.key == part.key && within && region.rights & part.rights != 0
            }),
            Named::Carried(part) => self.posted || self.allow(&Named::Region(Region { rights: ALL, ..part })),
        }
    }
}

/// What a packet for a stateless side names there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Named {
    Posted,
    Region(Region),
    /// Posted, by address.
    Carried(Region),
}

impl Named {
    /// Of a packet that moves data; others need no rule.
    fn of(packet: &Packet) -> Option<Named> {
        let opcode = packet.bth.opcode;
        let eth = StarEth::from(packet.irn);
        let (len, right) = match (opcode.operation(), eth.op()) {
            _ if !opcode.is_of(Service::Star) => return None,
            (Operation::RemoteData | Operation::GetData, Some(Op::CompareSwap | Op::FetchAdd)) => {
                (8, Grant::ATOMIC)
            }
            (Operation::RemoteData, _) => (packet.payload_len, Grant::WRITE),
            (Operation::GetData, _) => (eth.asked(), Grant::READ),
            _ => return None,
        };
        // Nothing of a region is moved where nothing is.
        if eth.has(StarEth::POSTED) || len == 0 {
            return Some(Named::Posted);
        }
        let (key, va) = (packet.reth.rkey, packet.reth.va);
        let region = Region { key, va, len: len.into(), rights: right };
        let carried = names_carried(opcode.operation(), eth);
        Some(if carried { Named::Carried(region) } else { Named::Region(region) })
    }
}

/// What a side has granted.
#[derive(Clone, Copy, Debug)]
struct Granting {
    number: QpNumber,
    /// What it grants, and what of that stands at its peer's NIC now.
    wants: Rules,
    stands: Rules,
    /// Something that work names was missing, at some time: the peer's requests may have been refused.
    lacked: bool,
}

/// What all sides have granted, by side; nothing where the peer's NIC asks no registry.
pub(super) struct Registries {
    rng: fastrand::Rng,
    granting: Vec<Option<Granting>>,
    counts: Counts,
}

/// What befell registries, to be seen above zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    taken_back: u64,
    restarts: u64,
    kept: u64,
    refused: u64,
}

impl Registries {
    pub fn new(seed: u64) -> Registries {
        let rng = fastrand::Rng::with_seed(crate::watch::trace::seed_of(seed, "rules", 0));
        Registries { rng, granting: Vec::new(), counts: Counts::default() }
    }

    fn of(&self, number: u32) -> Option<Granting> {
        self.granting.get(number as usize).copied().flatten()
    }

    /// Whether a connection's requests may have been refused, by either side's number.
    fn has_lacked(&self, number: u32) -> bool {
        [number, number ^ 1].into_iter().filter_map(|n| self.of(n)).any(|granting| granting.lacked)
    }

    /// Something that a side's peer names may be missing from now on.
    pub fn lacks(&mut self, number: u32) {
        if let Some(Some(granting)) = self.granting.get_mut(number as usize) {
            granting.lacked = true;
        }
    }

    /// Leaves out of what a side grants something that its peer's work may name.
    fn lessen(&mut self, rules: &mut Rules, slice: u64) {
        let Some(region) = &mut rules.region else { return };
        match self.rng.u32(0..5) {
            // Only half of the slice that the peer writes and reads.
            0 | 1 => region.len -= slice / 2,
            2 => region.rights &= ALL & !Grant::WRITE,
            3 => region.rights &= ALL & !Grant::READ,
            _ => rules.posted = false,
        }
    }
}

impl Sim {
    /// Whether packets of a host leave for stateless sides only where its registry says so.
    fn has_registry(&self, host: u32) -> bool {
        self.offer(host).is_some_and(|star| star.registry.is_some())
    }

    fn offer(&self, host: u32) -> Option<adverb_nic::StarConfig> {
        self.config.star_of.get(host as usize).copied().unwrap_or(self.config.transport.star)
    }

    /// A side that is about to be connected grants its peer what that is to name. Where the peer's table has
    /// no room it keeps the connection from StaR, as programs do.
    pub(super) fn grant_rules(&mut self, oracle: &mut Oracle, number: u32) -> Result<(), Error> {
        let side = &oracle.sides[number as usize];
        let (own, peer, qp) = (side.host, side.peer, side.qp);
        let until = oracle.sides[number as usize ^ 1].slice + side::SLICE_BYTES;
        let granting = &mut oracle.registries.granting;
        granting.resize(granting.len().max(number as usize + 1), None);
        if !self.has_registry(peer) || self.offer(own).is_none() {
            return Ok(());
        }
        let room = &oracle.rooms[own as usize];
        let va = room.buffer.addr() + SOURCE_BYTES as u64;
        let region = Region { key: room.mr.rkey, va, len: (until - SOURCE_BYTES) as u64, rights: ALL };
        let mut wants = Rules { posted: true, region: Some(region), windows: [None; 2] };
        let registries = &mut oracle.registries;
        let lacked = registries.rng.u32(0..LESS_OF) == 0;
        if lacked {
            registries.lessen(&mut wants, side::SLICE_BYTES as u64);
        }
        let nic = &mut self.hosts.list[own as usize].nic;
        let qp_number = nic.qp_number(qp)?;
        let stands = Rules::default();
        registries.granting[number as usize] = Some(Granting { number: qp_number, wants, stands, lacked });
        if self.put_rules(oracle, number).is_err() {
            self.take_back(oracle, number, false);
            if let Some(granting) = &mut oracle.registries.granting[number as usize] {
                granting.wants = Rules::default();
            }
            oracle.registries.counts.kept += 1;
            self.hosts.list[own as usize].nic.keep_from_star(qp)?;
            return Ok(());
        }
        self.give_window(oracle, number)
    }

    /// Puts the rule of a side's window at its peer's NIC; not while an agent is missing that would bring it,
    /// and not where there is no room. Whether it stands.
    pub(super) fn put_window(&mut self, oracle: &mut Oracle, number: u32, region: Region) -> bool {
        let (own, peer) = (oracle.sides[number as usize].host, oracle.sides[number as usize].peer);
        let Some(Some(granting)) = oracle.registries.granting.get_mut(number as usize) else { return false };
        let Some(free) = granting.wants.windows.iter().position(Option::is_none) else { return false };
        if granting.stands != granting.wants {
            return false;
        }
        let Region { key, va, len, rights } = region;
        let (server, what) = (self.hosts.list[own as usize].gid, RuleFor::Region { key, va, len, rights });
        let rule = Rule { server, number: granting.number, what };
        if self.hosts.list[peer as usize].nic.put_rule(&rule).is_err() {
            return false;
        }
        granting.wants.windows[free] = Some(region);
        granting.stands = granting.wants;
        true
    }

    /// Takes back the rule of a window that has ended. Whether there was one.
    pub(super) fn end_window(&mut self, oracle: &mut Oracle, number: u32, key: Key) -> bool {
        let (dead, peer) = (oracle.sides[number as usize].dead, oracle.sides[number as usize].peer);
        let server = self.hosts.list[oracle.sides[number as usize].host as usize].gid;
        let Some(Some(granting)) = oracle.registries.granting.get_mut(number as usize) else { return false };
        let is_its = |window: &Option<Region>| window.is_some_and(|region| region.key == key);
        if !granting.wants.windows.iter().any(is_its) {
            return false;
        }
        for rules in [&mut granting.wants, &mut granting.stands] {
            rules.windows.iter_mut().filter(|window| is_its(window)).for_each(|window| *window = None);
        }
        // It went with its queue pair: its peer may be about to name it.
        granting.lacked |= dead;
        if self.watch.sabotage != Some(Sabotage::StarRuleKept) {
            self.hosts.list[peer as usize].nic.remove_rule(server, granting.number, Some(key));
        }
        true
    }

    /// Puts what a side grants at its peer's NIC.
    fn put_rules(&mut self, oracle: &mut Oracle, number: u32) -> Result<(), Error> {
        let (own, peer) = (oracle.sides[number as usize].host, oracle.sides[number as usize].peer);
        let Some(granting) = &mut oracle.registries.granting[number as usize] else { return Ok(()) };
        let server = self.hosts.list[own as usize].gid;
        let nic = &mut self.hosts.list[peer as usize].nic;
        for what in granting.wants.list() {
            let what = match (self.watch.sabotage, what) {
                (Some(Sabotage::StarRuleWide), RuleFor::Region { key, .. }) => {
                    RuleFor::Region { key, va: 0, len: u64::MAX, rights: ALL }
                }
                (Some(Sabotage::StarRuleLost), RuleFor::Region { .. }) if number.is_multiple_of(3) => {
                    continue;
                }
                (_, what) => what,
            };
            nic.put_rule(&Rule { server, number: granting.number, what })?;
        }
        granting.stands = granting.wants;
        Ok(())
    }

    /// Takes back a side's region, or all of its rules, at its peer's NIC. Whether there was something.
    fn take_back(&mut self, oracle: &mut Oracle, number: u32, only_region: bool) -> bool {
        let (own, peer) = (oracle.sides[number as usize].host, oracle.sides[number as usize].peer);
        let Some(Some(granting)) = oracle.registries.granting.get_mut(number as usize) else { return false };
        let key = granting.stands.region.map(|region| region.key).filter(|_| only_region);
        if only_region && key.is_none() {
            return false;
        }
        if self.watch.sabotage != Some(Sabotage::StarRuleKept) {
            let server = self.hosts.list[own as usize].gid;
            self.hosts.list[peer as usize].nic.remove_rule(server, granting.number, key);
        }
        let had = granting.stands != Rules::default();
        granting.stands.region = None;
        granting.stands.posted &= only_region;
        if !only_region {
            granting.stands.windows = [None; 2];
        }
        granting.lacked = true;
        had
    }

    /// A side takes its region back, and does not grant it again.
    pub(super) fn withdraw(&mut self, oracle: &mut Oracle, number: u32) {
        let had = self.take_back(oracle, number, true);
        if let Some(Some(granting)) = oracle.registries.granting.get_mut(number as usize) {
            granting.wants.region = None;
        }
        oracle.registries.counts.taken_back += u64::from(had);
    }

    /// A side's program ends: so do all of its rules, before its queue pair.
    pub(super) fn end_rules(&mut self, oracle: &mut Oracle, number: u32) {
        self.take_back(oracle, number, false);
        if let Some(Some(granting)) = oracle.registries.granting.get_mut(number as usize) {
            granting.wants = Rules::default();
        }
    }

    /// A host's agent ends: what it has brought, and what others have brought to it.
    pub(super) fn end_agent(&mut self, oracle: &mut Oracle, host: u32) {
        let mut had = false;
        for number in rules_with(oracle, host) {
            had |= self.take_back(oracle, number, false);
        }
        // The process clears its NIC's table itself when its agent is gone.
        if self.watch.sabotage != Some(Sabotage::StarRuleKept) {
            self.hosts.list[host as usize].nic.clear_rules();
        }
        oracle.registries.counts.restarts += u64::from(had);
    }

    /// It is there again, and so is what sides still grant.
    pub(super) fn begin_agent(&mut self, oracle: &mut Oracle, host: u32) {
        for number in rules_with(oracle, host) {
            if self.put_rules(oracle, number).is_ok() {
                continue;
            }
            // Windows of others may have taken the room meanwhile.
            if oracle.has_windows_of_others(number) {
                self.end_rules(oracle, number);
                oracle.registries.counts.kept += 1;
            } else {
                oracle.fail(format!("side {number}: its rules had room before, and have none now"));
            }
        }
    }

    /// A host's NIC has given a frame, which stands in `out`: something that was granted must name it.
    #[cold]
    pub(crate) fn check_leaving(&mut self, h: u32) {
        let packet = &self.hosts.out.packet;
        let Some(named) = Named::of(packet).filter(|_| self.has_registry(h)) else { return };
        let (at, number) = (host_of(&packet.flow.dst), packet.bth.dest_qp);
        let Some(oracle) = self.watch.oracle.as_deref_mut() else { return };
        let row = oracle.side_of_qp.get(at as usize);
        let side = row.and_then(|row| row.get((number.get() & 0xffff) as usize).copied());
        let granting = side.and_then(|side| oracle.registries.of(side));
        if granting.is_some_and(|granting| granting.stands.allow(&named)) {
            return;
        }
        // Addresses differ from process to process.
        let what = match named {
            Named::Posted => "what is posted".to_owned(),
            Named::Region(region) | Named::Carried(region) => {
                format!("{} bytes of key {:#x}", region.len, region.key.0)
            }
        };
        let failure = format!(
            "host {h}: a packet leaves for {what} of queue pair {number:?} of host {at}, \
                               which nothing allows"
        );
        self.watch.journal.add(self.now, format_args!("host {h}"), format_args!("WRONG: {failure}"));
        oracle.fail(failure);
    }
}

/// Sides whose rules a host's agent brings, or keeps.
fn rules_with(oracle: &Oracle, host: u32) -> impl Iterator<Item = u32> + use<> {
    let with = oracle.sides.iter().enumerate().filter(|(_, side)| side.host == host || side.peer == host);
    with.map(|(number, _)| number as u32).collect::<Vec<u32>>().into_iter()
}

impl Oracle {
    /// Whether rules of other sides' windows stand at the NIC that has this side's.
    fn has_windows_of_others(&self, number: u32) -> bool {
        let at = self.sides[number as usize].peer;
        let stand =
            |n: u32| self.registries.of(n).is_some_and(|g| g.stands.windows.iter().any(Option::is_some));
        (0..self.sides.len() as u32).any(|n| n != number && self.sides[n as usize].peer == at && stand(n))
    }

    /// A request has failed; where all was granted, not because of rules.
    pub(super) fn check_refusal(&mut self, number: u32, status: Status) {
        let asked = [number, number ^ 1].into_iter().any(|n| self.registries.of(n).is_some());
        if status == Status::MemoryWindowBind || status == Status::LocalProtection {
            self.fail(format!("side {number}: a request on its window was refused: {status:?}"));
        }
        if status != Status::RemoteAccess || !asked {
            return;
        }
        if self.registries.has_lacked(number) {
            self.registries.counts.refused += 1;
        } else {
            self.fail(format!("side {number}: a request was refused, and all that it names was granted"));
        }
    }

    /// What befell registries: regions taken back, agents that ended, connections for which a table had no
    /// room, sides that heard a refusal; windows that were bound, and rules of windows that ended.
    pub(crate) fn rule_counts(&self) -> [u64; 6] {
        let Counts { taken_back, restarts, kept, refused } = self.registries.counts;
        let [bound, ended] = self.windows.counts;
        [taken_back, restarts, kept, refused, bound, ended]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_allowed_within_its_region_only() {
        let region = Region { key: Key(7), va: 100, len: 50, rights: Grant::WRITE | Grant::READ };
        let rules = Rules { posted: false, region: Some(region), ..Rules::default() };
        let part = |key, va, len, rights| Named::Region(Region { key: Key(key), va, len, rights });
        for (named, allowed) in [
            (part(7, 100, 50, Grant::WRITE), true),
            (part(7, 149, 1, Grant::READ), true),
            (part(7, 149, 2, Grant::READ), false),
            (part(7, 99, 2, Grant::READ), false),
            (part(7, 100, 8, Grant::ATOMIC), false),
            (part(8, 100, 8, Grant::READ), false),
            (part(7, u64::MAX, u64::MAX, Grant::READ), false),
            (Named::Posted, false),
        ] {
            assert_eq!(rules.allow(&named), allowed, "{named:?}");
        }
        assert!(Rules { posted: true, ..Rules::default() }.allow(&Named::Posted));
        assert!(!Rules::default().allow(&part(7, 100, 1, Grant::WRITE)));
    }
}
