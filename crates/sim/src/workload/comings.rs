//! Connections that come and go while others last, and those of a second server: what StaR's roles follow
//! (StaR, VI). Each comes at a random time of its step; the oldest leave first, when their calls have ended.

use super::persistent::{Asked, Part, Persistent};
use crate::host::{Hosts, TransportConfig};
use adverb_nic::{Error, Event, Nic, Rule, RuleFor, StarOutcome, StarSide};
use adverb_wire::Instant;
use adverb_wire::star::Grant;

/// Connections of a second server, beside those of the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Others {
    /// The one end of all, which may be a client of the first server's.
    pub server: u32,
    /// The other ends, in turns.
    pub clients: Vec<u32>,
    /// How many there are at the beginning.
    pub connections: u32,
}

/// From a time on there are so many connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The first one comes, or leaves, then, in ps.
    pub at_ps: u64,
    /// And the last one so much later.
    pub over_ps: u64,
    /// Of the server; as many as before, if absent.
    pub connections: Option<u32>,
    /// Of the other server.
    pub others: Option<u32>,
}

/// One comes or leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Coming {
    pub at: u64,
    /// 0: of the server; 1: of the other one.
    of: usize,
    opens: bool,
}

/// How far a connection's life is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Open,
    /// No call begins; it is closed when all is done.
    Leaving,
    Closed,
}

/// A side has changed its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// When, in ps.
    pub at: u64,
    /// Its host.
    pub host: u32,
    /// What it is now.
    pub to: StarSide,
    /// For how long it held back what was posted, in ps.
    pub paused: u64,
}

impl Asked {
    /// The ends of one of the two kinds.
    pub(super) fn ends(&self, of: usize) -> (u32, &[u32]) {
        match (&self.others, of) {
            (Some(others), 1) => (others.server, &others.clients),
            _ => (self.server, &self.clients),
        }
    }

    /// How many there are of both kinds at the beginning.
    pub(super) fn at_first(&self) -> [u32; 2] {
        [self.connections, self.others.as_ref().map_or(0, |others| others.connections)]
    }

    /// When each comes or leaves, the last one first.
    pub(super) fn timetable(&self, rng: &mut fastrand::Rng) -> Vec<Coming> {
        let (mut now, mut list) = (self.at_first(), Vec::new());
        for step in &self.steps {
            for (of, asked) in [step.connections, step.others].into_iter().enumerate() {
                let Some(asked) = asked else { continue };
                let opens = asked > now[of];
                for _ in 0..asked.abs_diff(now[of]) {
                    list.push(Coming { at: step.at_ps + rng.u64(0..=step.over_ps), of, opens });
                }
                now[of] = asked;
            }
        }
        list.sort_unstable_by(|one, other| other.cmp(one));
        list
    }

    /// How many are made in all, of both kinds.
    pub(crate) fn made_in_all(&self) -> [u32; 2] {
        let (mut now, mut all) = (self.at_first(), self.at_first());
        for step in &self.steps {
            for (of, asked) in [step.connections, step.others].into_iter().enumerate() {
                let asked = asked.unwrap_or(now[of]);
                all[of] += asked.saturating_sub(now[of]);
                now[of] = asked;
            }
        }
        all
    }

    /// How many of them a host has an end of, at most.
    pub(super) fn ends_at(&self, host: u32) -> u32 {
        let of_kind = |of: usize, all: u32| {
            let (server, clients) = self.ends(of);
            let share = all.div_ceil(clients.len().max(1) as u32);
            let times = clients.iter().filter(|client| **client == host).count() as u32;
            if server == host { all } else { share * times }
        };
        let all = self.made_in_all();
        of_kind(0, all[0]) + of_kind(1, all[1])
    }
}

impl Persistent {
    /// Who is due comes, or is to leave.
    pub(super) fn come_and_go(&mut self, hosts: &mut Hosts, now: u64, t: &TransportConfig) {
        while let Some(coming) = self.comings.pop_if(|coming| coming.at <= now) {
            if coming.opens {
                match self.open(hosts, now, coming.of, t) {
                    Ok(n) => {
                        let (client, server) = self.hosts_of(n);
                        self.posted.extend([client, server]);
                        if self.drawn.is_none() {
                            self.begin(hosts, now, n, Part::Request);
                        }
                    }
                    Err(_) => self.failed += 1,
                }
            } else if let Some(n) = self.open[coming.of].pop_front() {
                self.list[n as usize].life = Life::Leaving;
                self.close_if_done(n);
            }
        }
    }

    /// A connection that is to leave is closed when nothing of it is under way.
    pub(super) fn close_if_done(&mut self, n: u32) {
        let connection = &self.list[n as usize];
        if connection.life == Life::Leaving && !connection.calls && connection.unfinished == 0 {
            self.closing.push(n);
        }
    }

    /// Closes what is to be closed: both ends at once.
    pub(super) fn close(&mut self, hosts: &mut Hosts) {
        for n in core::mem::take(&mut self.closing) {
            let connection = &mut self.list[n as usize];
            if core::mem::replace(&mut connection.life, Life::Closed) == Life::Closed {
                continue;
            }
            let ends = [connection.client, connection.server];
            if self.asked.registry {
                self.take_back(hosts, n);
            }
            let gone = ends.map(|(host, qp)| hosts.list[host as usize].nic.destroy_qp(qp));
            self.posted.extend(ends.map(|(host, _)| host));
            if gone.iter().any(Result::is_err) {
                self.lose(n);
            }
        }
    }

    /// Both sides put rules at the other for what it may name: what is posted, and their one region (StaR,
    /// III-D). Where addresses travel the region's is the only one.
    pub(super) fn grant(&self, hosts: &mut Hosts, n: u32) -> Result<(), Error> {
        let connection = &self.list[n as usize];
        for (own, peer) in [(connection.client, connection.server), (connection.server, connection.client)] {
            let granting = &hosts.list[own.0 as usize];
            let (server, number) = (granting.gid, granting.nic.qp_number(own.1)?);
            let region = granting.region.ok_or(Error::NoSuchObject)?;
            let (va, len) = (hosts.region.addr(), hosts.region.len() as u64);
            let rights = Grant::READ | Grant::WRITE;
            let posted = (!self.asked.by_address).then_some(RuleFor::Posted);
            for what in posted.into_iter().chain([RuleFor::Region { key: region.rkey, va, len, rights }]) {
                hosts.list[peer.0 as usize].nic.put_rule(&Rule { server, number, what })?;
            }
        }
        Ok(())
    }

    /// The rules of a connection that is closed.
    fn take_back(&self, hosts: &mut Hosts, n: u32) {
        let connection = &self.list[n as usize];
        for (own, peer) in [(connection.client, connection.server), (connection.server, connection.client)] {
            let granting = &hosts.list[own.0 as usize];
            let Ok(number) = granting.nic.qp_number(own.1) else { continue };
            let server = granting.gid;
            hosts.list[peer.0 as usize].nic.remove_rule(server, number, None);
        }
    }

    /// A NIC has told something of a connection.
    pub(crate) fn on_event(&mut self, now: u64, host: u32, nic: &Nic, event: &Event) {
        match event {
            Event::Star(qp, StarOutcome::Switched(to, _)) => {
                let since = nic.star_held_since(*qp).map_or(now, Instant::as_ps);
                self.changed.push(Changed { at: now, host, to: *to, paused: now - since });
            }
            Event::Star(_, StarOutcome::NotSwitched) => self.not_changed += 1,
            _ => {}
        }
    }
}
