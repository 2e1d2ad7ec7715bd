//! Where clients set up: a TCP connection is a client, for as long as both sides keep it. Each has a thread,
//! which sleeps in `read` while gets go on.

use super::desk::Desk;
use super::serve::Question;
use adverb_os::signals::Quiet;
use adverb_os::sys;
use adverb_redn::service::setup::{LINE_MAX, Line, Offer};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// For a client to say what it wants.
const FIRST_WORD: Duration = Duration::from_secs(10);
/// For an answer to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// Seconds after which a silent client's host is asked whether it is there.
const IDLE_S: i32 = 15;
/// Connections beyond those of clients: who asks for counters, or is told that there is no room.
const VISITORS: u32 = 64;

/// The door, and how many are inside.
pub struct Door {
    desk: Arc<Desk<Question>>,
    inside: AtomicU32,
    most: u32,
}

/// One who came in.
struct Visit(Arc<Door>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Door {
    /// For so many clients.
    pub fn new(desk: Arc<Desk<Question>>, clients: u32) -> Arc<Door> {
        Arc::new(Door { desk, inside: AtomicU32::new(0), most: clients.saturating_add(VISITORS) })
    }

    /// Lets clients in, for ever.
    pub fn open(self: &Arc<Door>, listener: &TcpListener) {
        for stream in listener.incoming().flatten() {
            let visit = Visit(self.clone());
            if self.inside.fetch_add(1, Ordering::Relaxed) >= self.most {
                // It hears so by the connection's end.
                continue;
            }
            let builder = std::thread::Builder::new().name("adverb-client".to_owned());
            // Without a thread the visit ends here, and the connection with it.
            let _ = builder.spawn(move || visit.0.serve(&stream));
        }
    }

    fn serve(&self, stream: &TcpStream) {
        let mut client = None;
        // Whatever went wrong, the connection ends, which says it.
        let _ = self.talk(stream, &mut client);
        if let Some(client) = client {
            self.desk.ask(Question::Leave(client));
        }
    }

    fn talk(&self, stream: &TcpStream, client: &mut Option<u32>) -> io::Result<()> {
        stream.set_nodelay(true)?;
        sys::keep_alive(stream.as_fd(), IDLE_S)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(FIRST_WORD))?;
        let mut reader = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            let len = reader.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
            if len == 0 {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&line);
            let answer = match Line::parse(&text) {
                Ok(Line::Quit) => return Ok(()),
                Ok(Line::Counters) => self.counters(),
                Ok(Line::Connect(_)) if client.is_some() => "refused connected already\n".to_owned(),
                Ok(Line::Connect(offer)) => {
                    let answer = self.connect(offer, stream.try_clone()?, client);
                    stream.set_read_timeout(None)?;
                    answer
                }
                Err(wrong) => format!("refused {wrong}\n"),
            };
            Quiet(stream).write_all(answer.as_bytes())?;
            if !line.ends_with(b"\n") {
                return Ok(());
            }
        }
    }

    fn connect(&self, offer: Box<Offer>, line: TcpStream, client: &mut Option<u32>) -> String {
        let (sender, receiver) = mpsc::channel();
        self.desk.ask(Question::Connect(offer, line, sender));
        match receiver.recv() {
            Ok(Ok(told)) => {
                *client = Some(told.client);
                format!("{told}\n")
            }
            Ok(Err(why)) => format!("refused {why}\n"),
            Err(_) => "refused the hull ends\n".to_owned(),
        }
    }

    fn counters(&self) -> String {
        let (sender, receiver) = mpsc::channel();
        self.desk.ask(Question::Counters(sender));
        let counted = receiver.recv().unwrap_or_default();
        let lines = counted.iter().map(|(name, value)| format!("{name} {value}\n"));
        lines.chain(["end\n".to_owned()]).collect()
    }
}
