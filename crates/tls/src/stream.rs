//! Connections in which both sides have proved who they are.

use crate::error::Error;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection as the side that made it has it.
pub type ClientStream = StreamOwned<ClientConnection, TcpStream>;
/// A connection as the side that accepted it has it.
pub type ServerStream = StreamOwned<ServerConnection, Timed>;

/// How long the end of a failed handshake waits for what the client still sends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A TCP connection of which all reads and writes together have a time, not only each of them: who sends a
/// byte now and then keeps to the latter for ever.
pub struct Timed {
    tcp: TcpStream,
    end: Instant,
}

#[expect(clippy::disallowed_methods, reason = "patience with real connections")]
fn now() -> Instant {
    Instant::now()
}

impl Timed {
    /// A connection on which everything has to be over when this time is.
    pub fn new(tcp: TcpStream, time: Duration) -> Timed {
        Timed { tcp, end: now() + time }
    }

    /// Gives what follows a time of its own.
    pub fn allow(&mut self, time: Duration) {
        self.end = now() + time;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.left()?))?;
        self.tcp.read(into)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write(bytes)
    }

    /// TLS tries once to send what it has before it gives a handshake up: all of it, or the reason is lost.
    fn write_vectored(&mut self, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// Makes connections.
#[derive(Clone)]
pub struct Connector(pub(crate) Arc<ClientConfig>);

/// Accepts connections.
#[derive(Clone)]
pub struct Acceptor(pub(crate) Arc<ServerConfig>);

fn prepare(tcp: &TcpStream, patience: Duration) -> Result<(), Error> {
    let set = |done: io::Result<()>| done.map_err(Error::Lost);
    set(tcp.set_nodelay(true))?;
    set(tcp.set_read_timeout(Some(patience)))?;
    set(tcp.set_write_timeout(Some(patience)))
}

impl Connector {
    /// Shakes hands with the other side, whose certificate has to be for this name. Each read and write may
    /// take so long.
    pub fn connect(&self, mut tcp: TcpStream, name: &str, patience: Duration) -> Result<ClientStream, Error> {
        prepare(&tcp, patience)?;
        let mut tls =
            ClientConnection::new(self.0.clone(), server_name(name)?).map_err(|e| Error::tls(&e))?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp).map_err(Error::lost)?;
        }
        Ok(StreamOwned::new(tls, tcp))
    }
}

impl Acceptor {
    /// Shakes hands with the other side, and says the name in its certificate. All of it may take so long;
    /// the stream that is returned is to be given a time for what follows.
    pub fn accept(&self, tcp: TcpStream, patience: Duration) -> Result<(ServerStream, String), Error> {
        tcp.set_nodelay(true).map_err(Error::Lost)?;
        let mut tcp = Timed::new(tcp, patience);
        let mut tls = ServerConnection::new(self.0.clone()).map_err(|e| Error::tls(&e))?;
        while tls.is_handshaking() {
            if let Err(error) = tls.complete_io(&mut tcp) {
                farewell(&mut tcp);
                return Err(Error::lost(error));
            }
        }
        let certificate = tls.peer_certificates().and_then(<[_]>::first);
        let client = certificate.and_then(client_name).ok_or(Error::Nameless)?;
        Ok((StreamOwned::new(tls, tcp), client))
    }
}

/// Whether the client's certificate, which TLS has verified, is for this address too.
pub fn is_for(stream: &ServerStream, address: IpAddr) -> bool {
    let certificate = stream.conn.peer_certificates().and_then(<[_]>::first);
    let parsed = certificate.and_then(|der| webpki::EndEntityCert::try_from(der).ok());
    let name = ServerName::from(address);
    parsed.is_some_and(|parsed| parsed.verify_is_valid_for_subject_name(&name).is_ok())
}

/// Lets the reason of a failed handshake reach the client: what it still sends is read, or the kernel would
/// answer it by a reset that overtakes the reason.
fn farewell(tcp: &mut Timed) {
    // All of this only helps the client to a better message.
    let _ = tcp.tcp.shutdown(Shutdown::Write);
    tcp.allow(FAREWELL);
    let _ = io::copy(&mut Read::by_ref(tcp).take(64 << 10), &mut io::sink());
}

/// A name to check the other side's certificate against: a DNS name or an address.
fn server_name(text: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(text.to_owned())
        .map_err(|_| Error::Tls(format!("`{text}` is no name that a certificate can have")))
}

/// The first DNS name in a client's certificate, which TLS has verified.
fn client_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    parsed.valid_dns_names().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Holder, Identity, write_trial_certificates};
    use std::net::TcpListener;
    use std::path::PathBuf;

    const ALPN: &[u8] = b"adverb-tls-test/1";
    const PATIENCE: Duration = Duration::from_secs(5);

    fn certificates(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("adverb-tls-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let holders = ["owner", "alice"].map(|name| Holder { name: name.into(), addresses: Vec::new() });
        write_trial_certificates(&folder, &holders).unwrap();
        folder
    }

    fn identity(folder: &std::path::Path, name: &str) -> Identity {
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        Identity::load(&folder.join("ca.pem"), &file("pem"), &file("key")).unwrap()
    }

    /// What each side makes of a handshake; an echo shows that bytes pass.
    fn meet(
        server: &Identity,
        client: &Identity,
        name: &str,
        alpn: &[u8],
    ) -> (Result<String, Error>, Result<(), Error>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (acceptor, connector) = (server.acceptor(ALPN).unwrap(), client.connector(alpn).unwrap());
        let address = listener.local_addr().unwrap();
        let accepting = std::thread::spawn(move || {
            let (tcp, _) = listener.accept().unwrap();
            let (mut stream, who) = acceptor.accept(tcp, PATIENCE)?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).and_then(|()| stream.write_all(&word)).map_err(Error::lost)?;
            stream.flush().map_err(Error::lost)?;
            Ok(who)
        });
        let connected = connector.connect(TcpStream::connect(address).unwrap(), name, PATIENCE);
        let echoed = connected.and_then(|mut stream| {
            let mut word = [0; 4];
            let done = stream.write_all(b"word").and_then(|()| stream.read_exact(&mut word));
            done.map_err(Error::lost)?;
            assert_eq!(&word, b"word");
            Ok(())
        });
        (accepting.join().unwrap(), echoed)
    }

    #[test]
    fn both_sides_prove_who_they_are() {
        let (ours, theirs) = (certificates("ours"), certificates("theirs"));
        let (owner, alice) = (identity(&ours, "owner"), identity(&ours, "alice"));
        let (who, echoed) = meet(&owner, &alice, "owner", ALPN);
        assert_eq!(who.unwrap(), "alice");
        echoed.unwrap();
        let stranger = identity(&theirs, "alice");
        for (server, client, name, alpn, said) in [
            (&owner, &stranger, "owner", ALPN, "not signed by the CA given"),
            (&stranger, &alice, "alice", ALPN, "not signed by the CA given"),
            (&owner, &alice, "alice", ALPN, "is for another name"),
            (&owner, &alice, "owner", &b"another/1"[..], "another version"),
        ] {
            let (who, echoed) = meet(server, client, name, alpn);
            assert!(who.is_err());
            assert!(echoed.unwrap_err().to_string().contains(said), "{said}");
        }
        assert!(matches!(server_name("no name"), Err(Error::Tls(_))));
    }

    #[test]
    fn a_handshake_byte_by_byte_ends_in_time() {
        let ours = certificates("slow");
        let acceptor = identity(&ours, "owner").acceptor(ALPN).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp, _) = listener.accept().unwrap();
        let start = now();
        let (over, ended) = std::sync::mpsc::channel();
        let accepting = std::thread::spawn(move || {
            let refused = acceptor.accept(tcp, Duration::from_millis(300)).map(drop).unwrap_err();
            over.send(()).unwrap();
            refused
        });
        // A record of 16 KB, of which a byte comes each 50 ms, for 20 s at most.
        let mut record = [22, 3, 1, 0x3f, 0xff].into_iter().chain([1; 400]);
        while ended.recv_timeout(Duration::from_millis(50)).is_err() {
            let Some(byte) = record.next() else { panic!("the handshake goes on for ever") };
            // The other side has gone when this fails.
            let _ = client.write_all(&[byte]);
        }
        assert!(matches!(accepting.join().unwrap(), Error::Lost(_)));
        assert!(start.elapsed() < Duration::from_millis(300) + 4 * FAREWELL, "{:?}", start.elapsed());
    }
}
