//! A client's side of the set-up exchange: a queue pair and a buffer, told to a hull over TCP.

use crate::error::Error;
use adverb_os::signals::Quiet;
use adverb_os::sys::keep_alive;
use adverb_rdma::{Connect, Rdma};
use adverb_redn::service::chain::Shape;
use adverb_redn::service::client::{By, Client, Half};
use adverb_redn::service::setup::{LINE_MAX, Offer, Told};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::Duration;

/// For a hull to answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Seconds after which a silent hull's host is asked whether it is there.
const IDLE_S: i32 = 15;
/// TCP port of a hull, if none is named.
const PORT: u16 = 7470;

/// A connection to a hull.
pub struct Served {
    /// For gets.
    pub client: Client,
    /// What the hull told.
    pub told: Told,
    /// Lasts as long as the hull: reading it waits for its end.
    pub line: TcpStream,
}

fn addresses(server: &str) -> io::Result<Vec<SocketAddr>> {
    let named = server.to_socket_addrs();
    named.or_else(|_| (server, PORT).to_socket_addrs()).map(Iterator::collect)
}

fn exchange(server: &str, offer: &Offer, patience: Duration) -> Result<(TcpStream, Told), String> {
    let mut last = "no address".to_owned();
    for address in addresses(server).map_err(text)? {
        let stream = match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => stream,
            Err(error) => {
                last = error.to_string();
                continue;
            }
        };
        stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(patience))).map_err(text)?;
        Quiet(&stream).write_all(format!("{offer}\n").as_bytes()).map_err(text)?;
        let mut line = String::new();
        let answered = BufReader::new(&stream).take(LINE_MAX as u64).read_line(&mut line);
        answered.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => format!("no answer within {patience:?}"),
            _ => text(error),
        })?;
        stream.set_read_timeout(None).and_then(|()| keep_alive(stream.as_fd(), IDLE_S)).map_err(text)?;
        return Ok((stream, Told::parse(&line).map_err(|wrong| wrong.to_string())?));
    }
    Err(last)
}

/// Connects to the hull of `--server`, an address with or without a port.
pub async fn connect(rdma: &Rdma, server: &str, shape: Shape, one_sided: bool) -> Result<Served, Error> {
    let failed = |why: String| Error::Remote(format!("--server {server}: {why}"));
    let to = To { by: By::Chain, shape, one_sided, patience: PATIENCE };
    to.connect(rdma, server).await.map_err(failed)
}

/// What is connected to.
#[derive(Clone, Copy)]
pub struct To {
    /// A hull, for its chains; or a worker, where its calls go.
    pub by: By,
    /// How much is under way.
    pub shape: Shape,
    /// Keys of index and values are asked for.
    pub one_sided: bool,
    /// How long the other side may take.
    pub patience: Duration,
}

impl To {
    /// Sets up.
    pub async fn connect(&self, rdma: &Rdma, server: &str) -> Result<Served, String> {
        let To { by, shape, one_sided, patience } = *self;
        let half = Half::new(rdma, shape).await.map_err(text)?;
        let how = Connect::default();
        let endpoint = half.qp.endpoint(&how).await.map_err(text)?;
        let offer = Offer { endpoint, buffer: half.buffer.remote(), shape, one_sided };
        let (line, told) = exchange(server, &offer, patience)?;
        half.qp.connect_to(&endpoint, &told.endpoint, &how).await.map_err(text)?;
        let client = half.connected_to(by, told.layout).await.map_err(text)?;
        Ok(Served { client, told, line })
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
