//! Connections to other agents. Each has a thread, which knows what the other side was told: when a
//! connection was lost and is there again, that is told again.

use super::{Agent, Lines, garbled, lock, now, spawn};
use adverb_io::registry::words::{Order, Said};
use adverb_nic::{Rule, RuleFor};
use adverb_os::say;
use adverb_tls::ClientStream;
use adverb_wire::{Gid, QpNumber};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// A connection on which nothing is said gets a sign of life so often.
const PING: Duration = Duration::from_secs(1);
/// So long a peer is left alone that could not be reached.
const AGAIN: Duration = Duration::from_secs(1);
/// Peers' agents at most.
const PEERS_MAX: usize = 1024;
/// Orders that wait for one of them.
const ORDERS_MAX: usize = 1 << 12;

/// The thread of a peer's agent.
pub struct Session {
    jobs: SyncSender<Job>,
}

struct Job {
    to: QpNumber,
    order: Order,
    reply: Sender<Said>,
}

impl Agent {
    /// Tells peers' agents; each order goes to a queue pair of a peer. Returns when all have answered, or the
    /// time for that is over, with the worst of what was said: a full table first.
    pub(super) fn tell(self: &Arc<Self>, orders: Vec<(Gid, QpNumber, Order)>) -> Said {
        let (reply, answers) = channel();
        let mut worst = Said::Done;
        let mut expected = 0;
        for (peer, to, order) in orders {
            match self.submit(peer, Job { to, order, reply: reply.clone() }) {
                Ok(()) => expected += 1,
                Err(said) => worst = said,
            }
        }
        drop(reply);
        let end = now() + self.patience;
        for _ in 0..expected {
            let said = match answers.recv_timeout(end.saturating_duration_since(now())) {
                Ok(said) => said,
                Err(_) => {
                    let late = Said::Refused("a peer's agent has not answered in time".to_owned());
                    return if worst == Said::Full { worst } else { late };
                }
            };
            if said == Said::Full || worst == Said::Done {
                worst = said;
            }
        }
        worst
    }

    fn submit(self: &Arc<Self>, peer: Gid, job: Job) -> Result<(), Said> {
        let busy = |why: &str| Said::Refused(format!("{peer}: {why}"));
        let mut sessions = lock(&self.sessions);
        if !sessions.contains_key(&peer.0) {
            if sessions.len() >= PEERS_MAX {
                return Err(busy("this agent has too many peers"));
            }
            let (jobs, waiting) = sync_channel(ORDERS_MAX);
            let agent = self.clone();
            spawn("peer", move || run(&agent, peer, &waiting)).map_err(|_| busy("no thread for it"))?;
            sessions.insert(peer.0, Session { jobs });
        }
        let session = &sessions[&peer.0];
        session.jobs.try_send(job).map_err(|_| busy("too much waits for its agent"))
    }
}

/// Of a rule: whose client's queue pair it is for, the server's, and the key.
type Name = (QpNumber, QpNumber, Option<u32>);

struct Peer<'a> {
    agent: &'a Agent,
    peer: Gid,
    link: Option<(ClientStream, Lines)>,
    /// What was told, to be told again.
    rules: BTreeMap<Name, Rule>,
    /// No attempt before this time.
    again: Instant,
}

fn run(agent: &Agent, peer: Gid, jobs: &Receiver<Job>) {
    let mut peer = Peer { agent, peer, link: None, rules: BTreeMap::new(), again: now() };
    loop {
        match jobs.recv_timeout(PING) {
            Ok(Job { to, order, reply }) => {
                let said = peer.carry(to, &order);
                // Who has asked waits for so long only.
                let _ = reply.send(said);
            }
            Err(RecvTimeoutError::Timeout) => peer.beat(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn name(to: QpNumber, rule: &Rule) -> Name {
    let key = match rule.what {
        RuleFor::Posted => None,
        RuleFor::Region { key, .. } => Some(key.0),
    };
    (to, rule.number, key)
}

impl Peer<'_> {
    fn carry(&mut self, to: QpNumber, order: &Order) -> Said {
        match order {
            Order::Put(rule) => {
                let said = self.connect().and_then(|()| self.exchange(&format!("{} {order}", to.get())));
                let said = self.heed(said);
                if said == Said::Done {
                    self.rules.insert(name(to, rule), *rule);
                }
                said
            }
            Order::Remove(_, number, key) => {
                self.rules.retain(|name, _| {
                    (name.0, name.1) != (to, *number) || key.is_some_and(|key| name.2 != Some(key.0))
                });
                if self.link.is_none() {
                    // Without a connection it has no rules of ours.
                    return Said::Done;
                }
                let said = self.exchange(&format!("{} {order}", to.get()));
                self.heed(said)
            }
        }
    }

    /// A sign of life; a connection that was lost is made again, if there is something to be told.
    fn beat(&mut self) {
        if self.link.is_some() {
            let said = self.exchange("ping");
            self.heed(said);
        } else if !self.rules.is_empty() {
            let said = self.connect().map(|()| Said::Done);
            self.heed(said);
        }
    }

    /// An error ends the connection, with which the other side's rules end.
    fn heed(&mut self, said: io::Result<Said>) -> Said {
        said.unwrap_or_else(|error| {
            if self.link.take().is_some() {
                say!("adverb star registry: the agent of {} has gone: {error}", self.peer);
            }
            Said::Refused(format!("the agent of {}: {error}", self.peer))
        })
    }

    fn exchange(&mut self, line: &str) -> io::Result<Said> {
        let Some((stream, lines)) = &mut self.link else { return Err(io::ErrorKind::NotConnected.into()) };
        stream.write_all(format!("{line}\n").as_bytes())?;
        stream.flush()?;
        Said::parse(&lines.next(stream)?).ok_or_else(garbled)
    }

    /// Connects, if it is not, and tells all that was told before.
    fn connect(&mut self) -> io::Result<()> {
        if self.link.is_some() {
            return Ok(());
        }
        if now() < self.again {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "it could not be reached just now"));
        }
        self.again = now() + AGAIN;
        let (agent, ip) = (self.agent, self.peer.ip());
        let tcp = TcpStream::connect_timeout(&SocketAddr::new(ip, agent.port), agent.patience)?;
        let stream = agent.connector.connect(tcp, &ip.to_string(), agent.patience);
        self.link = Some((stream.map_err(io::Error::other)?, Lines::default()));
        match self.exchange(&format!("server {}", agent.address))? {
            Said::Done => {}
            said => {
                self.link = None;
                say!(
                    "adverb star registry: the agent of {} takes no rules of {}: {said}",
                    self.peer,
                    agent.address
                );
                return Err(io::Error::other(said.to_string()));
            }
        }
        for (name, rule) in std::mem::take(&mut self.rules) {
            let said = self.exchange(&format!("{} {}", name.0.get(), Order::Put(rule)))?;
            if said == Said::Done {
                self.rules.insert(name, rule);
            } else {
                say!("adverb star registry: {} does not take a rule again: {said}", self.peer);
            }
        }
        Ok(())
    }
}
