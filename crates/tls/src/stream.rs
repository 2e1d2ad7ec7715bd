//! Connections in which both sides have proved who they are.

use crate::error::Error;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A connection as the side that made it has it.
pub type ClientStream = StreamOwned<ClientConnection, TcpStream>;
/// A connection as the side that accepted it has it.
pub type ServerStream = StreamOwned<ServerConnection, TcpStream>;

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
    /// Shakes hands with the other side, and says the name in its certificate. Each read and write may take
    /// so long.
    pub fn accept(&self, mut tcp: TcpStream, patience: Duration) -> Result<(ServerStream, String), Error> {
        prepare(&tcp, patience)?;
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

/// Lets the reason of a failed handshake reach the client: what it still sends is read, or the kernel would
/// answer it by a reset that overtakes the reason.
fn farewell(tcp: &mut TcpStream) {
    // All of this only helps the client to a better message.
    let _ = tcp.shutdown(Shutdown::Write);
    let _ = tcp.set_read_timeout(Some(Duration::from_secs(1)));
    let _ = io::copy(&mut tcp.by_ref().take(64 << 10), &mut io::sink());
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
    use std::io::Write;
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
}
