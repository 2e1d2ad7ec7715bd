//! `adverb redn worker`: the program that writes a hull's table, and answers calls in memcached's text
//! protocol. What it does for itself is found again by the next one. It needs no NIC; with `--two-sided` it
//! opens one of its own, and answers gets by SEND and RECV too.

use super::answers::Answers;
use crate::args::Nic;
use crate::error::Error;
use crate::settings::from_options;
use adverb_os::mapping::Mapping;
use adverb_os::signals::Quiet;
use adverb_os::unix::Channel;
use adverb_os::{clock, say};
use adverb_redn::service::layout::Layout;
use adverb_redn::service::memcached::{BAD_DATA, Command, LINE_MAX, Worker, Wrong, parse};
use adverb_redn::service::table::Table;
use clap::Args;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

/// For the hull to answer, in seconds.
const PATIENCE_S: u32 = 5;
/// Connections at once.
const CONNECTIONS_MAX: u32 = 1024;
/// Bytes of what a hull tells.
const TOLD_MAX: usize = 512;

/// `adverb redn worker`.
#[derive(Args, Debug)]
pub struct Options {
    /// The hull's socket, as `adverb redn serve` says it
    #[arg(long, value_name = "SOCKET")]
    pub attach: PathBuf,
    /// Answer gets by SEND and RECV too, at a NIC of this process's
    #[arg(long)]
    pub two_sided: bool,
    /// The NIC and its faults.
    #[command(flatten)]
    pub nic: Nic,
}

/// What a worker is told: which table this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attach(pub Layout);

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { buckets, seed, index, values, values_len } = self.0;
        write!(f, "table {buckets} {seed} {index} {values} {values_len}")
    }
}

impl Attach {
    fn parse(text: &str) -> Option<Attach> {
        let mut words = text.strip_prefix("table ")?.split(' ').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        let (buckets, seed, index) = (next()?, next()?, next()?);
        let layout = Layout { buckets, seed, index, values: next()?, values_len: next()? };
        layout.is_sound().then_some(Attach(layout))
    }
}

fn failed(what: impl fmt::Display) -> Error {
    Error::Remote(format!("--attach: {what}"))
}

#[expect(clippy::disallowed_methods, reason = "the edge")]
fn realtime_ns() -> u64 {
    clock::realtime_ns()
}

fn now_s() -> u64 {
    realtime_ns() / 1_000_000_000
}

/// What came from the hull.
struct Given {
    layout: Layout,
    files: Vec<OwnedFd>,
    calls: TcpListener,
}

fn take(channel: &Channel) -> Result<Given, Error> {
    let receive = || {
        let mut buffer = [0; TOLD_MAX];
        let (len, fds) = channel.receive(&mut buffer).map_err(failed)?.ok_or_else(|| failed("it ends"))?;
        Ok((String::from_utf8_lossy(&buffer[..len]).into_owned(), fds))
    };
    let (text, files) = receive()?;
    if let Some(why) = text.strip_prefix("refused ") {
        return Err(failed(why));
    }
    let Some(Attach(layout)) = Attach::parse(&text) else { return Err(failed("not a hull")) };
    if !(1..=2).contains(&files.len()) {
        return Err(failed("the table's files did not come"));
    }
    let (text, calls) = receive()?;
    let calls: [OwnedFd; 1] = calls.try_into().map_err(|_| failed("the socket for calls did not come"))?;
    if text != "calls" {
        return Err(failed("not a hull"));
    }
    let [calls] = calls;
    Ok(Given { layout, files, calls: TcpListener::from(calls) })
}

/// The files of a table: index and values, or one with both.
fn map(files: &[OwnedFd], layout: &Layout) -> Result<Vec<Mapping>, Error> {
    let map = |file: &OwnedFd, len: u64| {
        let len = usize::try_from(len).map_err(|_| failed("a table that does not fit"))?;
        Mapping::of_sealed(file.as_fd(), len).map_err(failed)
    };
    Ok(match files {
        [index, values] => vec![map(index, layout.index_len())?, map(values, layout.values_len)?],
        both => vec![map(&both[0], layout.index_len() + layout.values_len)?],
    })
}

/// Serves until the hull ends.
pub fn worker(options: &Options) -> Result<ExitCode, Error> {
    let channel = Channel::connect(&options.attach, PATIENCE_S)
        .map_err(|error| failed(format!("{}: {error}", options.attach.display())))?;
    let Given { layout, files, calls } = take(&channel)?;
    let mapped = map(&files, &layout)?;
    let (index, values) = match &mapped[..] {
        [index, values] => (index.words(), values.words()),
        both => both[0].words().split_at((layout.index_len() / 8) as usize),
    };
    // Each life's versions are greater than those of all before.
    let (table, found) = Table::open(layout, index, values, realtime_ns()).map_err(failed)?;
    let pid = std::process::id();
    if found.keys > 0 || found.without_record > 0 {
        say!(
            "worker {pid} found {} keys; it mended {} that were being moved, and {} that were not whole",
            found.keys,
            found.in_two_buckets,
            found.without_record
        );
    }
    let worker = Mutex::new(Worker::new(table, found, pid, now_s()));
    let connections = AtomicU32::new(0);
    let calls_at = calls.local_addr().map_err(failed)?.to_string();
    let answers = options.two_sided.then(|| Answers::new(layout, calls_at));
    let settings = from_options(&options.nic)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The hull says nothing more: its end is all that comes.
            channel.wait_for_end();
            // Nobody reads this table any more.
            std::process::exit(0);
        });
        if let Some(answers) = &answers {
            let (sender, opened) = mpsc::channel();
            let (worker, settings) = (&worker, &settings);
            let answer = move || {
                let find = |key: &[u8]| worker.lock().unwrap_or_else(PoisonError::into_inner).record(key);
                if let Err(error) = answers.run(settings, &sender, find) {
                    say!("adverb: {error}");
                    std::process::exit(1);
                }
            };
            let spawned =
                std::thread::Builder::new().name("adverb-answers".to_owned()).spawn_scoped(scope, answer);
            let opened = spawned.map_err(failed).and_then(|_| opened.recv().map_err(failed).flatten());
            if let Err(error) = opened {
                say!("adverb: {error}");
                std::process::exit(1);
            }
        }
        for stream in calls.incoming().flatten() {
            if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                connections.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (worker, answers, connections) = (&worker, answers.as_ref(), &connections);
            let builder = std::thread::Builder::new().name("adverb-call".to_owned());
            let spawned = builder.spawn_scoped(scope, move || {
                // Whatever went wrong, the connection ends, which says it.
                let _ = serve(&stream, worker, answers);
                connections.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    });
    Ok(ExitCode::SUCCESS)
}

/// Answers one connection's commands. A client that asks by SEND and RECV too is served as long as it lasts.
fn serve(stream: &TcpStream, worker: &Mutex<Worker<'_>>, answers: Option<&Answers>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = 0;
    let served = commands(stream, worker, answers, &mut client);
    if let Some(answers) = answers.filter(|_| client != 0) {
        answers.leave(client);
    }
    served
}

fn commands(
    stream: &TcpStream,
    worker: &Mutex<Worker<'_>>,
    answers: Option<&Answers>,
    client: &mut u32,
) -> io::Result<()> {
    let mut session = Session::new(stream);
    while let Some(line) = session.line()? {
        if line.starts_with(b"connect ") {
            let answer = match answers {
                None => "refused the worker has no NIC: serve --two-sided gives it one\n".to_owned(),
                Some(_) if *client != 0 => "refused connected already\n".to_owned(),
                Some(answers) => {
                    let (number, answer) = answers.connect(&line);
                    *client = number;
                    answer
                }
            };
            session.answer(answer.as_bytes())?;
            continue;
        }
        let answer = match parse(&line) {
            Ok(Command::Quit) => return Ok(()),
            Ok(command) => match session.data(&command)? {
                // Who has given up waits for nothing that is done now.
                Some(_) if stream.take_error()?.is_some() => return Ok(()),
                Some(data) => {
                    let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
                    worker.answer(&command, &data, now_s())
                }
                None => BAD_DATA.as_bytes().to_vec(),
            },
            Err(Wrong { answer, swallow }) => {
                session.swallow(swallow)?;
                answer.into_bytes()
            }
        };
        session.answer(&answer)?;
    }
    Ok(())
}

/// One connection of a client that speaks memcached's protocol.
pub struct Session<'s> {
    reader: BufReader<&'s TcpStream>,
    stream: &'s TcpStream,
}

impl<'s> Session<'s> {
    /// Of a stream.
    pub fn new(stream: &'s TcpStream) -> Session<'s> {
        Session { reader: BufReader::with_capacity(LINE_MAX, stream), stream }
    }

    /// The next line without its end; `None` when the client has gone. One that is too long is an error.
    pub fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let len = self.reader.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
        match line.pop() {
            None => Ok(None),
            Some(b'\n') => {
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                Ok(Some(line))
            }
            Some(_) if len == LINE_MAX => Err(io::ErrorKind::InvalidData.into()),
            Some(_) => Ok(None),
        }
    }

    /// The bytes that follow a command; `None` if no line's end stands behind them: then the rest of their
    /// line is gone.
    pub fn data(&mut self, command: &Command<'_>) -> io::Result<Option<Vec<u8>>> {
        let Command::Store(store) = command else { return Ok(Some(Vec::new())) };
        let mut data = vec![0; store.len + 2];
        self.reader.read_exact(&mut data)?;
        if data.ends_with(b"\r\n") {
            data.truncate(store.len);
            return Ok(Some(data));
        }
        if !data.ends_with(b"\n") {
            self.line()?;
        }
        Ok(None)
    }

    /// Passes over so many bytes.
    pub fn swallow(&mut self, bytes: usize) -> io::Result<()> {
        io::copy(&mut self.reader.by_ref().take(bytes as u64), &mut io::sink()).map(|_| ())
    }

    /// Answers.
    pub fn answer(&self, answer: &[u8]) -> io::Result<()> {
        Quiet(self.stream).write_all(answer)
    }
}
