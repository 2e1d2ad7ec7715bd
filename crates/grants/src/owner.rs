//! A region's owner: its [`Registry`](crate::registry), and the threads that wait on it.

use crate::clock::now;
use crate::error::{Error, Refusal};
use crate::policy::Policy;
use crate::registry::Registry;
use crate::wire::{Answer, Issued, Known, MAX_HELD, Request, Rotation, Secret};
use adverb_rma::{Region, Rma};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// What an application makes of a call: the client's name, and its bytes. The answer, or why there is none.
pub type Handler = Box<dyn Fn(&str, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// Longest wait of a question for news.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);
/// For how long a rotation waits until those who listen have their new keys.
pub const TELL_TIME: Duration = Duration::from_millis(500);

/// Decides who gets keys of the regions that were entered, and when they change.
pub struct Owner {
    registry: Mutex<Registry>,
    /// Something of that changed.
    changed: Condvar,
    handler: Option<Handler>,
}

impl Owner {
    /// The owner of regions of the NIC with this address. `handler` takes clients' calls.
    pub fn new(address: IpAddr, policy: Policy, handler: Option<Handler>) -> Arc<Owner> {
        let registry = Mutex::new(Registry::new(address, policy, crate::clock::unlike_before()));
        Arc::new(Owner { registry, changed: Condvar::new(), handler })
    }

    /// Enters a region under a name.
    pub fn add(&self, name: &str, region: Region) -> Result<(), Refusal> {
        self.lock().add(name, region)
    }

    /// Gives a region a random key: first to all who listen, K_d under it, then to the NIC.
    pub fn rotate(&self, name: &str) -> Result<Rotation, Refusal> {
        let key = Rma::random_key().map_err(|error| Refusal::Nic(error.to_string()))?;
        let begun = now();
        let mut registry = self.lock();
        registry.announce(name, key)?;
        self.changed.notify_all();
        let mut at = begun;
        loop {
            let (told, listening, deaf) = registry.audience(at, name);
            let left = (begun + TELL_TIME).saturating_duration_since(at);
            if listening == 0 || left.is_zero() {
                let epoch = registry.conclude(name)?;
                drop(registry);
                self.changed.notify_all();
                let waited_us = at.duration_since(begun).as_micros() as u64;
                return Ok(Rotation { epoch, told, untold: listening + deaf, waited_us });
            }
            registry = self.wait(registry, left);
            at = now();
        }
    }

    /// Rotates the keys of regions of which a lease has ended.
    pub(crate) fn rotate_lapsed(&self) {
        let lapsed = self.lock().lapsed(now());
        for name in lapsed {
            // Somebody else rotates it just now, or the NIC is closed: both leave nothing to do.
            let _ = self.rotate(&name);
        }
    }

    /// Answers a client's request.
    pub(crate) fn answer(&self, client: &str, request: Request, closing: &dyn Fn() -> bool) -> Answer {
        let answered = match request {
            Request::Hello => Ok(Answer::Hello { client: client.to_owned() }),
            Request::List => Ok(Answer::Regions(self.lock().list(now(), client))),
            Request::Grant(ask) => self.lock().grant(now(), client, &ask).map(Answer::Issued),
            Request::Renew { lease } => self.lock().renew(now(), client, lease).map(Answer::Issued),
            Request::Release { lease } => self.release(client, lease),
            Request::Rotate { region } => {
                let allowed = self.lock().may_rotate(client, &region);
                allowed.and_then(|()| self.rotate(&region)).map(Answer::Rotated)
            }
            Request::Watch { held, wait_ms } => {
                let wait = Duration::from_millis(wait_ms.into()).min(MAX_WAIT);
                self.news(client, &held, wait, closing).map(Answer::Told)
            }
            Request::Call(bytes) => self.call(client, &bytes),
        };
        answered.unwrap_or_else(Answer::Refused)
    }

    fn release(&self, client: &str, lease: u64) -> Result<Answer, Refusal> {
        self.lock().release(now(), client, lease)?;
        // The region's key is to change.
        self.changed.notify_all();
        Ok(Answer::Released)
    }

    fn call(&self, client: &str, bytes: &Secret) -> Result<Answer, Refusal> {
        let handler = self.handler.as_ref().ok_or(Refusal::NoApplication)?;
        if !self.lock().policy().may_call(client) {
            let what = "call the application".to_owned();
            return Err(Refusal::Denied { client: client.to_owned(), what });
        }
        let answer = handler(client, &bytes.0).map_err(Refusal::Application)?;
        Ok(Answer::Called(Secret(answer.into())))
    }

    /// Waits for news of leases.
    fn news(
        &self,
        client: &str,
        held: &[Known],
        wait: Duration,
        closing: &dyn Fn() -> bool,
    ) -> Result<Vec<Issued>, Refusal> {
        if held.len() > MAX_HELD {
            return Err(Refusal::Invalid(format!(
                "{} leases in one question; at most {MAX_HELD}",
                held.len()
            )));
        }
        let end = now() + wait;
        let mut registry = self.lock();
        loop {
            let at = now();
            let news = registry.news(at, client, held)?;
            // A rotation may wait for what this client knows now.
            self.changed.notify_all();
            if !news.is_empty() || at >= end || closing() {
                return Ok(news);
            }
            // It counts as listening while it waits here.
            registry = self.wait(registry, (end - at).min(Duration::from_millis(500)));
        }
    }

    pub(crate) fn wake_all(&self) {
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Registry>, time: Duration) -> MutexGuard<'a, Registry> {
        match self.changed.wait_timeout(guard, time) {
            Ok((guard, _)) => guard,
            Err(poisoned) => poisoned.into_inner().0,
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        Answer::Refused(refusal)
    }
}

impl Answer {
    /// The answer, unless it is a refusal.
    pub(crate) fn granted(self) -> Result<Answer, Error> {
        match self {
            Answer::Refused(refusal) => Err(Error::Refused(refusal)),
            other => Ok(other),
        }
    }
}
