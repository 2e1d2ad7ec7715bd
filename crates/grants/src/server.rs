//! The owner's port: a thread for each connection, as many as are allowed.

use crate::error::Error;
use crate::owner::Owner;
use crate::wire::{self, ALPN, Request};
use adverb_tls::{Acceptor, Identity};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections at once. A client with news takes two.
pub const MAX_CONNECTIONS: usize = 512;
/// A client that says nothing for so long is gone.
const IDLE: Duration = Duration::from_secs(600);
/// How often keys may change because leases have ended. By so much longer can the key of an expired lease be
/// used.
const LAPSE_PERIOD: Duration = Duration::from_secs(1);
/// From a failure to accept a connection to the next attempt.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// For the handshake, and for the rest of a message that has begun.
const PATIENCE: Duration = Duration::from_secs(5);

struct Shared {
    owner: Arc<Owner>,
    acceptor: Acceptor,
    closing: Mutex<bool>,
    closed: Condvar,
    /// A place for each connection, by which it is ended from outside.
    connections: Mutex<Vec<Option<TcpStream>>>,
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Option<TcpStream>>> {
        self.connections.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        for connection in self.connections().iter().flatten() {
            // It may be over.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.owner.wake_all();
    }
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
            connections: Mutex::new((0..MAX_CONNECTIONS).map(|_| None).collect()),
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
        let Ok(handle) = stream.try_clone() else { continue };
        let place = {
            let mut places = shared.connections();
            let free = places.iter().position(Option::is_none);
            if let Some(place) = free {
                places[place] = Some(handle);
            }
            free
        };
        // Beyond the bound a client sees its connection end.
        let Some(place) = place else { continue };
        let serving = shared.clone();
        let spawned = std::thread::Builder::new().name("adverb-client".to_owned()).spawn(move || {
            // Why a connection ended is the client's to know; it has been told by TLS or by an answer.
            let _ = serve(&serving, stream);
            serving.connections()[place] = None;
        });
        if spawned.is_err() {
            shared.connections()[place] = None;
        }
    }
}

fn serve(shared: &Shared, tcp: TcpStream) -> Result<(), Error> {
    let (mut stream, client) = shared.acceptor.accept(tcp, PATIENCE)?;
    loop {
        let patience = |time| move |tcp: &TcpStream| tcp.set_read_timeout(Some(time));
        patience(IDLE)(&stream.sock).map_err(Error::Lost)?;
        let handle = stream.sock.try_clone().map_err(Error::Lost)?;
        // The socket's option is one for both handles. If it cannot be set, the longer time holds.
        let begun = || drop(patience(PATIENCE)(&handle));
        let request: Request = wire::receive(&mut stream, begun)?;
        let answer = shared.owner.answer(&client, request, &|| shared.closing());
        wire::send(&mut stream, &answer)?;
    }
}
