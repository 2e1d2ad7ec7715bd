//! This host's processes: those that take rules for their NICs, and those that grant something.

use super::{Agent, SLOT_SHIFT, lock, next_word, spawn};
use adverb_io::registry::words::{ASKS, Ask, Order, Region, Said, TAKES};
use adverb_nic::{Rule, RuleFor};
use adverb_os::say;
use adverb_os::sys::WaitSet;
use adverb_os::unix::{Channel, Listener};
use adverb_wire::{Gid, Key, QpNumber};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// For a process's first word.
const FIRST: Duration = Duration::from_secs(5);
/// Connections of processes at once: an address has 254 slots.
const PROCESSES_MAX: usize = 1024;
/// Connections and regions of a process that are granted at most.
const GRANTS_MAX: usize = 1 << 16;

/// Takes in this user's processes.
pub fn run(agent: &Arc<Agent>, listener: &Listener) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut set = WaitSet::default();
    loop {
        set.clear();
        set.add(listener.fd(), false);
        set.wait(None);
        let Ok(channel) = listener.accept() else { continue };
        if !channel.is_of_own_user() || count.load(Ordering::Relaxed) >= PROCESSES_MAX {
            continue;
        }
        count.fetch_add(1, Ordering::Relaxed);
        let (agent, own) = (agent.clone(), count.clone());
        let spawned = spawn("process", move || {
            // Why a process has gone is its own to know.
            let _ = serve(&agent, channel);
            own.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn serve(agent: &Arc<Agent>, channel: Channel) -> io::Result<()> {
    let Some(first) = next_word(&channel, FIRST)? else { return Ok(()) };
    let done = |channel: &Channel| channel.send(Said::Done.to_string().as_bytes(), &[]);
    let slot = first.strip_prefix(TAKES).and_then(|slot| slot.trim_start().parse::<u8>().ok());
    match slot {
        _ if first == ASKS => {
            done(&channel)?;
            grant(agent, &channel)
        }
        Some(slot) => {
            let mut takers = lock(&agent.takers);
            done(&channel)?;
            takers.insert(slot.into(), Arc::new(Mutex::new(channel)));
            Ok(())
        }
        None => channel.send(Said::Refused("no word of this version".to_owned()).to_string().as_bytes(), &[]),
    }
}

/// Answers a server's process until it ends, and then takes back what it has granted.
fn grant(agent: &Arc<Agent>, channel: &Channel) -> io::Result<()> {
    let mut granter = Granter::new(agent);
    // A child that it has forked may hold its end of the connection for longer.
    let life = channel.peer_life();
    let mut set = WaitSet::default();
    loop {
        set.clear();
        set.add(channel.fd(), false);
        if let Some(life) = &life {
            set.add(life.as_raw_fd(), false);
        }
        set.wait(None);
        if life.is_some() && set.is_ready(1) {
            return Ok(());
        }
        if !set.is_ready(0) {
            continue;
        }
        let Some(line) = next_word(channel, FIRST)? else { return Ok(()) };
        let said = match Ask::parse(&line) {
            Some(ask) => granter.answer(&ask),
            None => Said::Refused("no question of this version".to_owned()),
        };
        channel.send(said.to_string().as_bytes(), &[])?;
    }
}

pub(super) struct Connection {
    pd: u32,
    peer: Gid,
    peer_number: QpNumber,
}

/// What a process grants.
pub(super) struct Granter<'a> {
    agent: &'a Arc<Agent>,
    connections: BTreeMap<QpNumber, Connection>,
    /// By key.
    regions: BTreeMap<u32, Granted>,
}

/// What a process grants of its memory.
#[derive(Clone, Copy, PartialEq)]
struct Granted {
    /// To the peers of this domain.
    pd: u32,
    /// Or of one queue pair of it only.
    only: Option<QpNumber>,
    region: Region,
}

impl Granted {
    fn is_for(&self, number: QpNumber, connection: &Connection) -> bool {
        self.pd == connection.pd && self.only.is_none_or(|only| only == number)
    }
}

impl<'a> Granter<'a> {
    pub(super) fn new(agent: &'a Arc<Agent>) -> Granter<'a> {
        Granter { agent, connections: BTreeMap::new(), regions: BTreeMap::new() }
    }

    pub(super) fn answer(&mut self, ask: &Ask) -> Said {
        match *ask {
            Ask::Connect { number, pd, peer, peer_number } => {
                self.end_connection(number);
                if self.connections.len() >= GRANTS_MAX {
                    return Said::Full;
                }
                let connection = Connection { pd, peer, peer_number };
                let granted = self.regions.values().filter(|granted| granted.is_for(number, &connection));
                let rules = granted.map(|granted| granted.region.rule());
                let rules = std::iter::once(RuleFor::Posted).chain(rules);
                let orders = rules.map(|what| Order::Put(Rule { server: self.agent.address, number, what }));
                let orders = orders.map(|order| (peer, peer_number, order)).collect();
                self.connections.insert(number, connection);
                let said = self.agent.tell(orders);
                if said != Said::Done {
                    self.end_connection(number);
                }
                said
            }
            Ask::EndConnect { number } => {
                self.end_connection(number);
                Said::Done
            }
            Ask::Region { pd, region } => self.put(Granted { pd, only: None, region }),
            Ask::Window { number, pd, region } => self.put(Granted { pd, only: Some(number), region }),
            Ask::EndRegion { key } => {
                self.end_region(key);
                Said::Done
            }
        }
    }

    /// Grants memory, in place of what was granted under its key. That is not taken back first where it goes
    /// to the same peers: a rule takes the place of an earlier one of its name.
    fn put(&mut self, granted: Granted) -> Said {
        let key = granted.region.key;
        match self.regions.get(&key.0) {
            Some(before) if (before.pd, before.only) != (granted.pd, granted.only) => self.end_region(key),
            None if self.regions.len() >= GRANTS_MAX => return Said::Full,
            _ => {}
        }
        self.regions.insert(key.0, granted);
        let rule = granted.region.rule();
        let put = |number| Order::Put(Rule { server: self.agent.address, number, what: rule });
        if self.agent.tell(self.of(&granted, put)) == Said::Full {
            self.end_region(key);
            return Said::Full;
        }
        // Who has not answered is dead, or has no rules.
        Said::Done
    }

    /// An order for each connection that something is granted to.
    fn of(&self, granted: &Granted, order: impl Fn(QpNumber) -> Order) -> Vec<(Gid, QpNumber, Order)> {
        let of = self.connections.iter().filter(|(number, to)| granted.is_for(**number, to));
        of.map(|(number, to)| (to.peer, to.peer_number, order(*number))).collect()
    }

    fn end_connection(&mut self, number: QpNumber) {
        let Some(Connection { peer, peer_number, .. }) = self.connections.remove(&number) else { return };
        let order = Order::Remove(self.agent.address, number, None);
        // Who does not answer in time is dead.
        self.agent.tell(vec![(peer, peer_number, order)]);
    }

    fn end_region(&mut self, key: Key) {
        let Some(granted) = self.regions.remove(&key.0) else { return };
        let orders = self.of(&granted, |number| Order::Remove(self.agent.address, number, Some(key)));
        self.agent.tell(orders);
    }
}

impl Drop for Granter<'_> {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.connections).into_iter();
        let orders = all
            .map(|(number, to)| (to.peer, to.peer_number, Order::Remove(self.agent.address, number, None)));
        let orders: Vec<_> = orders.collect();
        let count = orders.len();
        self.agent.tell(orders);
        if count > 0 {
            say!("adverb star registry: a process has gone, and what it has granted is taken back");
        }
    }
}

const _: () = assert!(SLOT_SHIFT == 16, "a slot is the upper byte of a number");
