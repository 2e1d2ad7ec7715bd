//! StaR's security registry, as a process has it: the rules of what its NIC may send to stateless peers come
//! from an agent of its host, a process of its own (`adverb star registry`), and what a stateless side grants
//! goes to its peers by the same agent. The agents speak TLS to one another; nothing of that is in here.
//!
//! A server's process waits for its agent's answer when it sets a connection up, registers memory or takes
//! that back. The agent answers when every peer has, or its time for that is over.

mod grants;
mod windows;
pub mod words;

use crate::error::OpenError;
use crate::host::Shared;
use adverb_nic::{Access, Nic};
use adverb_os::say;
use adverb_os::sys::wait_readable;
use adverb_os::unix::Channel;
use adverb_wire::star::Grant;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use windows::Windows;
use words::{ASKS, Ask, LINE, Order, Said, TAKES};

pub use grants::Refusal;

/// Seconds after which an agent that has not answered is taken for gone. Its own time for its peers is
/// shorter.
const PATIENCE_S: u32 = 30;

/// The connections to the agent.
pub struct Registry {
    /// Says why something was refused.
    trace: bool,
    asks: Mutex<Channel>,
    takes: Channel,
    windows: Mutex<Windows>,
}

impl Registry {
    /// Finds the agent of an address, for the process in a slot.
    pub fn open(address: IpAddr, slot: u8, trace: bool) -> Result<Registry, OpenError> {
        let failed = |source| OpenError::Registry { address, source };
        let channel = |word: &str| {
            let channel = Channel::connect(&words::socket(address), PATIENCE_S)?;
            if !channel.is_of_own_user() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is another user's"));
            }
            channel.send(word.as_bytes(), &[])?;
            match said(&channel)? {
                Said::Done => Ok(channel),
                said => Err(io::Error::other(said.to_string())),
            }
        };
        let asks = channel(ASKS).map_err(failed)?;
        let takes = channel(&format!("{TAKES} {slot}")).map_err(failed)?;
        Ok(Registry { trace, asks: Mutex::new(asks), takes, windows: Mutex::default() })
    }

    /// Asks the agent, and waits for what it says.
    pub fn ask(&self, ask: &Ask) -> Said {
        let channel = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = channel.send(ask.to_string().as_bytes(), &[]).and_then(|()| said(&channel));
        let said = answered.unwrap_or_else(|error| {
            // What it may say later is no answer to the next question.
            channel.hang_up();
            Said::Refused(format!("the agent of this address does not answer: {error}"))
        });
        match &said {
            Said::Done => {}
            Said::Full if self.trace => say!("adverb: StaR's registry of a peer has no room"),
            Said::Refused(why) if self.trace => say!("adverb: StaR's registry: {why}"),
            Said::Full | Said::Refused(_) => {}
        }
        said
    }

    /// Ends the connections.
    pub fn close(&self) {
        self.takes.hang_up();
        if let Ok(asks) = self.asks.try_lock() {
            asks.hang_up();
        }
    }
}

/// What the agent says.
fn said(channel: &Channel) -> io::Result<Said> {
    let mut bytes = [0; LINE];
    let (len, _) = channel.receive(&mut bytes)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let line = std::str::from_utf8(&bytes[..len]).ok();
    line.and_then(Said::parse)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it speaks otherwise"))
}

/// What a region grants to peers, as rules say it; 0 for nothing.
pub fn rights(access: Access) -> u8 {
    let mut rights = 0;
    for (of, right) in [
        (Access::REMOTE_WRITE, Grant::WRITE),
        (Access::REMOTE_READ, Grant::READ),
        (Access::REMOTE_ATOMIC, Grant::ATOMIC),
    ] {
        if access.contains(of) {
            rights |= right;
        }
    }
    rights
}

/// The thread that takes rules from the agent, until that or the NIC is gone. Without an agent nobody could
/// take a rule back, so then none is left.
pub fn run(shared: &Shared) {
    let Some(registry) = &shared.registry else { return };
    let mut bytes = [0; LINE];
    loop {
        // No call of the channel waits for longer than its patience.
        while !wait_readable(registry.takes.fd(), Duration::from_secs(3600)) {}
        let Ok(Some((len, _))) = registry.takes.receive(&mut bytes) else { break };
        let order = std::str::from_utf8(&bytes[..len]).ok().and_then(Order::parse);
        let said = match order {
            Some(order) => carry_out(&mut shared.core.visit().nic, &order),
            None => Said::Refused("no order of this version".to_owned()),
        };
        if registry.takes.send(said.to_string().as_bytes(), &[]).is_err() {
            break;
        }
    }
    let mut core = shared.core.visit();
    core.nic.clear_rules();
    let is_open = core.port.is_some();
    drop(core);
    if is_open {
        say!(
            "adverb: the agent of StaR's registry has gone, and with it all rules: nothing leaves for a \
             stateless peer any more; start `adverb star registry`, then this program again"
        );
    }
}

fn carry_out(nic: &mut Nic, order: &Order) -> Said {
    match order {
        Order::Put(rule) => match nic.put_rule(rule) {
            Ok(()) => Said::Done,
            Err(adverb_nic::Error::TableFull) => Said::Full,
            Err(error) => Said::Refused(error.to_string()),
        },
        Order::Remove(server, number, key) => {
            nic.remove_rule(*server, *number, *key);
            Said::Done
        }
    }
}
