//! The owner's port: a thread for each connection, as many as are allowed ([`Places`]).

use crate::error::Error;
use crate::owner::Owner;
use crate::places::Places;
use crate::wire::{self, ALPN, Answer, Request};
use adverb_tls::{Acceptor, Identity};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// A client that says nothing for so long is gone.
const IDLE: Duration = Duration::from_secs(600);
/// How often keys may change because leases have ended. By so much longer can the key of an expired lease be
/// used.
const LAPSE_PERIOD: Duration = Duration::from_secs(1);
/// From a failure to accept a connection to the next attempt.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// For the whole handshake, however its bytes come; and for the first question of a client for which there is
/// no place.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// For the rest of a message that has begun, and for a client to take an answer.
const MESSAGE: Duration = Duration::from_secs(30);

struct Shared {
    owner: Arc<Owner>,
    acceptor: Acceptor,
    closing: Mutex<bool>,
    closed: Condvar,
    /// Each connection, by which it is ended from outside.
    places: Mutex<Places<TcpStream>>,
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, Places<TcpStream>> {
        self.places.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn closing(&self) -> bool {
        *self.closing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for the end, at most this long.
    fn closed_within(&self, time: Duration) {
        let closing = self.closing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(self.closed.wait_timeout_while(closing, time, |closing| !*closing));
    }

    fn close(&self) {
        *self.closing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.closed.notify_all();
        self.places().handles().for_each(end);
        self.owner.wake_all();
    }
}

/// Ends a connection, which may be over.
fn end(connection: &TcpStream) {
    let _ = connection.shutdown(Shutdown::Both);
}

/// An owner that clients can reach. Its connections end when it is dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens. Port 0 takes any that is free.
    pub fn start(listen: SocketAddr, identity: &Identity, owner: Arc<Owner>) -> Result<Server, Error> {
        let unheard = |e| Error::Listen(listen.to_string(), e);
        let listener = TcpListener::bind(listen).map_err(unheard)?;
        let address = listener.local_addr().map_err(unheard)?;
        let shared = Arc::new(Shared {
            owner,
            acceptor: identity.acceptor(ALPN)?,
            closing: Mutex::new(false),
            closed: Condvar::new(),
            places: Mutex::new(Places::new()),
        });
        let mut server = Server { address, shared: shared.clone(), threads: Vec::new() };
        let accepting = shared.clone();
        server.spawn("adverb-grants", move || accept(&accepting, &listener))?;
        server.spawn("adverb-leases", move || {
            while !shared.closing() {
                shared.owner.rotate_lapsed();
                shared.closed_within(LAPSE_PERIOD);
            }
        })?;
        Ok(server)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(|e| Error::System("starting a thread", e))?);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.close();
        // Wakes `accept`.
        let _ = TcpStream::connect(self.address);
        for thread in self.threads.drain(..) {
            // A panic in it was reported by itself.
            let _ = thread.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for stream in listener.incoming() {
        if shared.closing() {
            return;
        }
        let Ok(stream) = stream else {
            // The client is gone again, or there are no descriptors for it, which is so again at once.
            shared.closed_within(ACCEPT_AGAIN);
            continue;
        };
        let (Ok(handle), Ok(from)) = (stream.try_clone(), stream.peer_addr()) else { continue };
        let (place, ended) = shared.places().arrive(from.ip(), handle);
        ended.iter().for_each(end);
        let serving = shared.clone();
        let spawned = std::thread::Builder::new().name("adverb-client".to_owned()).spawn(move || {
            // Why a connection ended is the client's to know; it has been told by TLS or by an answer.
            let _ = serve(&serving, stream, place);
            serving.places().leave(place);
        });
        if spawned.is_err() {
            shared.places().leave(place);
        }
    }
}

fn serve(shared: &Shared, tcp: TcpStream, place: u64) -> Result<(), Error> {
    let (mut stream, client) = shared.acceptor.accept(tcp, HANDSHAKE)?;
    let entered = shared.places().enter(place, &client);
    loop {
        stream.sock.allow(if entered.is_ok() { IDLE } else { HANDSHAKE });
        let request: Request = wire::receive(&mut stream, |stream| stream.sock.allow(MESSAGE))?;
        let answer = match &entered {
            Ok(()) => shared.owner.answer(&client, request, &|| shared.closing()),
            Err(refusal) => Answer::Refused(refusal.clone()),
        };
        stream.sock.allow(MESSAGE);
        wire::send(&mut stream, &answer)?;
        if entered.is_err() {
            return Ok(());
        }
    }
}
