//! Connections of other agents: a server's agent says which rules this address's clients get, and proves by
//! its certificate that the server's address is its own.

use super::{Agent, Lines, SLOT_SHIFT, lock, spawn};
use adverb_io::registry::words::{Order, Said};
use adverb_os::say;
use adverb_tls::{ServerStream, is_for};
use adverb_wire::{Gid, QpNumber};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// For the handshake and the first line.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// An agent that says nothing for so long is gone: it gives a sign of life each second.
const LOST: Duration = Duration::from_secs(5);
/// From a failure to accept a connection to the next attempt.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Connections at once.
const AGENTS_MAX: usize = 1024;
/// Connections of queue pairs for which a server has rules here.
const GIVEN_MAX: usize = 1 << 18;

/// Connections so far.
static NTH: AtomicU64 = AtomicU64::new(0);

/// What a server's agent has put here: of the connection that it has now.
pub struct Holder {
    nth: u64,
    /// By which it is ended.
    tcp: TcpStream,
    /// Clients' queue pairs, and the server's.
    given: BTreeSet<(QpNumber, QpNumber)>,
}

/// Takes in agents.
pub fn run(agent: &Arc<Agent>, listener: &TcpListener) {
    let count = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(tcp) = stream else {
            std::thread::park_timeout(ACCEPT_AGAIN);
            continue;
        };
        if count.load(Ordering::Relaxed) >= AGENTS_MAX {
            continue;
        }
        count.fetch_add(1, Ordering::Relaxed);
        let (agent, own) = (agent.clone(), count.clone());
        let spawned = spawn("agent", move || {
            let from = tcp.peer_addr().map_or_else(|_| "somebody".to_owned(), |from| from.ip().to_string());
            if let Err(why) = serve(&agent, tcp) {
                say!("adverb star registry: {from} is refused: {why}");
            }
            own.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Serves an agent until it goes. An error says why it was refused.
fn serve(agent: &Arc<Agent>, tcp: TcpStream) -> Result<(), String> {
    let handle = tcp.try_clone().map_err(|error| error.to_string())?;
    let (mut stream, who) = agent.acceptor.accept(tcp, HANDSHAKE).map_err(|error| error.to_string())?;
    stream.sock.allow(HANDSHAKE);
    let mut lines = Lines::default();
    let first = lines.next(&mut stream).map_err(|error| error.to_string())?;
    let claimed = first.strip_prefix("server ").and_then(|address| address.parse::<IpAddr>().ok());
    let Some(address) = claimed.filter(|address| is_for(&stream, *address)) else {
        let why = format!("the certificate of `{who}` is not for the server that it names ({first})");
        // It is told; if it does not hear, that is its own affair.
        let _ = answer(&mut stream, &Said::Refused(why.clone()));
        return Err(why);
    };
    let server = Gid::from(address);
    let nth = NTH.fetch_add(1, Ordering::Relaxed);
    agent.enter(server, nth, handle);
    say!("adverb star registry: {address} (`{who}`) puts rules here");
    // That it goes is no refusal.
    let ended = follow(agent, &mut stream, &mut lines, server, nth);
    if agent.leave(server, nth) {
        let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
        say!("adverb star registry: {address} has gone, and its rules with it{why}");
    }
    Ok(())
}

fn answer(stream: &mut ServerStream, said: &Said) -> io::Result<()> {
    stream.sock.allow(HANDSHAKE);
    stream.write_all(format!("{said}\n").as_bytes())?;
    stream.flush()
}

fn follow(
    agent: &Agent,
    stream: &mut ServerStream,
    lines: &mut Lines,
    server: Gid,
    nth: u64,
) -> io::Result<()> {
    answer(stream, &Said::Done)?;
    loop {
        stream.sock.allow(LOST);
        let line = lines.next(stream)?;
        let said = match line.split_once(' ') {
            None if line == "ping" => Said::Done,
            Some((to, order)) => match (to.parse::<u32>(), Order::parse(order)) {
                (Ok(to), Some(order)) if to < 1 << 24 && order.server() == server => {
                    agent.give(nth, QpNumber::new(to), &order)
                }
                _ => Said::Refused("no order, or another server's".to_owned()),
            },
            None => Said::Refused("no line of this version".to_owned()),
        };
        answer(stream, &said)?;
    }
}

impl Agent {
    /// A server's agent is there, in place of an earlier connection of it, which ends with its rules.
    pub(super) fn enter(&self, server: Gid, nth: u64, tcp: TcpStream) {
        let before = lock(&self.servers).insert(server.0, Holder { nth, tcp, given: BTreeSet::new() });
        if let Some(before) = before {
            // It may have ended by itself.
            let _ = before.tcp.shutdown(Shutdown::Both);
            self.take_back(server, before.given);
        }
    }

    /// Carries an order out, if its server's agent has no later connection.
    fn give(&self, nth: u64, to: QpNumber, order: &Order) -> Said {
        // Held until the process has answered: another connection of the server finds all that was given.
        let mut servers = lock(&self.servers);
        let holder = servers.get_mut(&order.server().0).filter(|holder| holder.nth == nth);
        let Some(holder) = holder else {
            return Said::Refused("the server's agent has another connection".to_owned());
        };
        let given = (to, order.number());
        match order {
            Order::Put(_) if holder.given.len() >= GIVEN_MAX => return Said::Full,
            Order::Put(_) => drop(holder.given.insert(given)),
            Order::Remove(_, _, None) => drop(holder.given.remove(&given)),
            Order::Remove(..) => {}
        }
        self.order(to, order)
    }

    /// A connection of a server's agent has ended: its rules end. False if it was not the latest.
    fn leave(&self, server: Gid, nth: u64) -> bool {
        let mut servers = lock(&self.servers);
        if servers.get(&server.0).is_none_or(|holder| holder.nth != nth) {
            return false;
        }
        let given = servers.remove(&server.0).map(|holder| holder.given);
        self.take_back(server, given.unwrap_or_default());
        true
    }

    fn take_back(&self, server: Gid, given: BTreeSet<(QpNumber, QpNumber)>) {
        for (to, number) in given {
            // A process that is gone has no rules.
            if lock(&self.takers).contains_key(&(to.get() >> SLOT_SHIFT)) {
                self.order(to, &Order::Remove(server, number, None));
            }
        }
    }
}
