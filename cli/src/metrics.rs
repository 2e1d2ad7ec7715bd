//! `adverb run --metrics`: the counters of all processes of a program, as OpenMetrics 1.0 over HTTP/1.1,
//! while it runs. One request at a time, each of bounded size and time; nothing is kept of whoever asks.

use crate::error::Error;
use crate::tallied::fresh;
use adverb_io::board::{self, Told};
use adverb_os::say;
use adverb_os::signals::without_sigpipe;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a request's head at most.
const HEAD_MAX: usize = 8192;
/// How long a request may take to come, and its answer to go.
const PATIENCE: Duration = Duration::from_secs(2);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Reads the option: a port, or an address and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let port = text.parse().map(|port: u16| SocketAddr::new(loopback, port));
    port.or_else(|_| text.parse()).map_err(|_| {
        "give a port, such as 9464 (0 for any), or an address and a port, such as 127.0.0.1:9464".to_owned()
    })
}

/// The socket, before the program is there.
pub struct Exporter {
    listener: TcpListener,
}

impl Exporter {
    /// Listens, and says where.
    pub fn bind(at: SocketAddr) -> Result<Exporter, Error> {
        let bound = TcpListener::bind(at).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (at, listener) = bound.map_err(|e| {
            Error::Options(format!("--metrics {at}: {e}; give another port, or 0 for one that is free"))
        })?;
        say!("adverb: metrics at http://{at}/metrics");
        Ok(Exporter { listener })
    }

    /// Its descriptor.
    pub fn fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// Serves what is counted in a folder, on a thread of its own, for as long as this process lives.
    pub fn serve(self, folder: PathBuf) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("adverb-metrics".to_owned());
        thread.spawn(move || {
            for stream in self.listener.incoming().flatten() {
                // Whoever asked may be gone.
                let _ = answer(&stream, &folder);
            }
        })?;
        Ok(())
    }
}

#[expect(clippy::disallowed_methods, reason = "the edge: a client that says nothing is not waited for")]
fn answer(stream: &TcpStream, folder: &Path) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = match request(stream)? {
        None => ("400 Bad Request", "text/plain", "no HTTP request within 8 KB and 2 s\n".to_owned()),
        Some((method, _)) if method != "GET" => {
            ("405 Method Not Allowed", "text/plain", "only GET\n".to_owned())
        }
        Some((_, path)) if path != "/metrics" => {
            ("404 Not Found", "text/plain", "there is /metrics\n".to_owned())
        }
        Some(_) => match fresh(|| board::read(folder)) {
            Ok(told) => ("200 OK", CONTENT_TYPE, render(&told)),
            Err(e) => ("500 Internal Server Error", "text/plain", format!("{e}\n")),
        },
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let mut stream = stream;
    without_sigpipe(|| stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())))?;
    // What has come and was not read would have the kernel reset the connection, and the answer be lost.
    stream.shutdown(std::net::Shutdown::Write)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut [0; 1024])? == 0 {
            return Ok(());
        }
    }
}

/// Method and path of a request, without what follows a question mark. `None` if it is none.
#[expect(clippy::disallowed_methods, reason = "the edge: a client that says nothing is not waited for")]
fn request(mut stream: &TcpStream) -> io::Result<Option<(String, String)>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_MAX {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(n) => head.extend_from_slice(&bytes[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    if head.len() > HEAD_MAX {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.lines().next().unwrap_or("").split(' ');
    let (method, path, version) = (words.next(), words.next(), words.next());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1."));
    let (Some(method), Some(path), true) = (method, path, is_http) else { return Ok(None) };
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    Ok(Some((method.to_owned(), path.to_owned())))
}

/// A label's value, in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// All counters of all processes. A process that has ended stays, with what it counted.
pub fn render(told: &[Told]) -> String {
    let labels: Vec<String> = told
        .iter()
        .enumerate()
        .map(|(nic, told)| {
            let (name, address) = (quoted(&told.name), quoted(&told.address));
            format!("{{nic=\"{nic}\",pid=\"{}\",command={name},address={address}}}", told.pid)
        })
        .collect();
    let mut families: BTreeMap<&str, Vec<(usize, u64)>> = BTreeMap::new();
    for (at, one) in told.iter().enumerate() {
        for (name, value) in &one.counters {
            families.entry(name).or_default().push((at, *value));
        }
    }
    let mut out = String::from("# TYPE adverb_queue_pairs gauge\n");
    // Writing to a String cannot fail.
    for (one, labels) in told.iter().zip(&labels) {
        let _ = writeln!(out, "adverb_queue_pairs{labels} {}", one.live_qps());
    }
    for (name, values) in families {
        let _ = writeln!(out, "# TYPE adverb_{name} counter");
        for (at, value) in values {
            let _ = writeln!(out, "adverb_{name}_total{} {value}", labels[at]);
        }
    }
    out.push_str("# EOF\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_loopbacks() {
        assert_eq!(address("9464"), Ok("127.0.0.1:9464".parse().unwrap()));
        assert_eq!(address("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        for wrong in ["", "65536", "localhost:1", "127.0.0.1"] {
            assert!(address(wrong).unwrap_err().contains("such as 9464"), "{wrong}");
        }
    }

    #[test]
    fn labels_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\nd\"");
        assert_eq!(render(&[]), "# TYPE adverb_queue_pairs gauge\n# EOF\n");
    }
}
