//! The exchange of attributes over TCP, on an address of its own: a question, an answer, and the
//! connection's end, which tells that the other process has left.
//!
//! ```text
//! asker      connect ── question ──►  ◄── answer ──  .. end
//! listener   accept  ◄─ question ──  ── answer ──►   .. end
//! frame      "advX" length:32, big-endian, then so many bytes
//! ```
//! Each line has a thread that reads it; what peers can make this process keep is bounded.

use crate::waits::{Waits, Watch, clock_ns};
use adverb_os::signals::library_thread;
use adverb_rdma::seam::{LineId, ListenerId, Object, Ticket, Wait};
use adverb_rdma::{Answer, Call, Error};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

const MAGIC: &[u8; 4] = b"advX";
/// Bytes of attributes at most.
const ATTRIBUTES_MAX: usize = 64 << 10;
/// Lines of a process at most.
const LINES_MAX: usize = 2048;
/// For a question to arrive whole, and an answer to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// For one attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(1);
/// From one attempt to the next.
const AGAIN: Duration = Duration::from_millis(20);

struct ListenerState {
    address: SocketAddr,
    asked: VecDeque<(u32, Vec<u8>)>,
}

#[derive(Default)]
struct LineState {
    stream: Option<TcpStream>,
    gone: bool,
    /// Of a question asked here: what came of it.
    told: Option<Result<Vec<u8>, Error>>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<u32, ListenerState>,
    lines: BTreeMap<u32, LineState>,
    /// The last number given to a listener or a line.
    last: u32,
}

/// The exchange of a process's programs: TCP connections, and a thread for each.
pub struct Exchange {
    state: Mutex<State>,
    /// A line was released, or all are.
    changed: Condvar,
    waits: Arc<Waits>,
}

fn system(what: &str, error: &io::Error) -> Error {
    Error::System(format!("{what}: {error}"))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    library_thread(name, run).map(|_| ()).map_err(|error| system("starting a thread", &error))
}

fn write_frame(mut stream: &TcpStream, attributes: &[u8]) -> io::Result<()> {
    let mut frame = MAGIC.to_vec();
    frame.extend_from_slice(&(attributes.len() as u32).to_be_bytes());
    frame.extend_from_slice(attributes);
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&frame)
}

fn read_frame(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut head = [0; 8];
    stream.read_exact(&mut head)?;
    let len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if &head[..4] != MAGIC || len > ATTRIBUTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not an exchange of attributes"));
    }
    let mut attributes = vec![0; len];
    stream.read_exact(&mut attributes)?;
    Ok(attributes)
}

/// Returns when the other end has left, or this end has shut the connection down.
fn wait_for_end(mut stream: &TcpStream) {
    let mut byte = [0];
    // A peer has nothing more to say; one that does so all the same is left alone from here on.
    while stream.set_read_timeout(None).is_ok() {
        match stream.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// What a driver asks of it.
impl Exchange {
    /// Without listeners and lines; who waits is woken there.
    pub fn new(waits: Arc<Waits>) -> Arc<Exchange> {
        Arc::new(Exchange { state: Mutex::default(), changed: Condvar::new(), waits })
    }

    /// Answers a call that never waits; `None` for one that is none of the exchange's.
    pub fn answer(self: &Arc<Exchange>, call: &Call) -> Option<Result<Answer, Error>> {
        match call {
            Call::Listen { name } => Some(self.listen(name).map(|id| Answer::Listener(ListenerId(id)))),
            Call::Accept(ListenerId(listener)) => Some(
                self.accept(*listener)
                    .map(|asked| Answer::Asked(asked.map(|(line, attributes)| (LineId(line), attributes)))),
            ),
            Call::Reply { line: LineId(line), attributes } => {
                Some(self.reply(*line, attributes).map(|()| Answer::Done))
            }
            _ => None,
        }
    }

    /// Whether a condition holds; `None` for one that is none of the exchange's.
    pub fn holds(&self, wait: &Wait) -> Option<bool> {
        match *wait {
            Wait::Asked(ListenerId(listener)) => Some(self.has_asked(listener)),
            Wait::Gone(LineId(line)) => Some(self.is_gone(line)),
            Wait::Stop => Some(self.waits.is_stopped()),
            Wait::Cq(_) | Wait::Word { .. } => None,
        }
    }

    /// The answer of a question, once there is one; until then its asker is woken by the exchange.
    pub fn poll_told(&self, ticket: Ticket, line: u32, waker: &Waker) -> Poll<Result<Answer, Error>> {
        let watch = Watch { waker: waker.clone(), cqs: Vec::new(), words: Vec::new(), deadline_ns: None };
        // Without a deadline no thread is started, which is all that could fail.
        let watched = self.waits.set(ticket, watch).map_err(|error| system("waiting", &error));
        let told = match watched {
            Ok(()) => self.told(line),
            Err(error) => Some(Err(error)),
        };
        let Some(told) = told else { return Poll::Pending };
        self.waits.remove(ticket);
        Poll::Ready(told.map(|attributes| Answer::Told(LineId(line), attributes)))
    }

    /// A handle is gone, of a listener or a line.
    pub fn release(&self, object: Object) {
        match object {
            Object::Listener(ListenerId(listener)) => self.release_listener(listener),
            Object::Line(LineId(line)) => self.release_line(line),
            _ => {}
        }
    }

    /// All listeners and lines end, and with them the threads.
    pub fn close(&self) {
        let state = self.lock();
        let lines: Vec<u32> = state.lines.keys().copied().collect();
        let listeners: Vec<u32> = state.listeners.keys().copied().collect();
        drop(state);
        listeners.into_iter().for_each(|listener| self.release_listener(listener));
        lines.into_iter().for_each(|line| self.release_line(line));
    }
}

impl Exchange {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes whoever may have waited for that.
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.waits.wake_all();
    }

    fn listen(self: &Arc<Exchange>, name: &str) -> Result<u32, Error> {
        let socket =
            TcpListener::bind(name).map_err(|error| system(&format!("listening at {name}"), &error))?;
        let address = socket.local_addr().map_err(|error| system("listening", &error))?;
        let number = {
            let mut state = self.lock();
            state.last += 1;
            let number = state.last;
            state.listeners.insert(number, ListenerState { address, asked: VecDeque::new() });
            number
        };
        let own = self.clone();
        spawn("adverb-listen", move || own.run_listener(number, &socket))?;
        Ok(number)
    }

    fn run_listener(self: Arc<Exchange>, number: u32, socket: &TcpListener) {
        loop {
            let accepted = socket.accept();
            let mut state = self.lock();
            if !state.listeners.contains_key(&number) {
                return;
            }
            let Ok((stream, _)) = accepted else {
                // Out of descriptors, for instance.
                drop(self.changed.wait_timeout(state, AGAIN).unwrap_or_else(PoisonError::into_inner));
                continue;
            };
            if state.lines.len() >= LINES_MAX {
                continue;
            }
            let Ok(kept) = stream.try_clone() else { continue };
            state.last += 1;
            let line = state.last;
            state.lines.insert(line, LineState { stream: Some(kept), ..LineState::default() });
            drop(state);
            let own = self.clone();
            // Without a thread its line ends at once, which the peer hears.
            if spawn("adverb-line", move || own.run_asked(number, line, &stream)).is_err() {
                self.release_line(line);
            }
        }
    }

    fn run_asked(&self, listener: u32, line: u32, stream: &TcpStream) {
        let question = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| read_frame(stream));
        let Ok(question) = question else { return self.release_line(line) };
        let mut known = false;
        self.change(|state| {
            if let Some(listener) = state.listeners.get_mut(&listener) {
                listener.asked.push_back((line, question));
                known = true;
            }
        });
        if !known {
            return self.release_line(line);
        }
        wait_for_end(stream);
        self.left(line);
    }

    fn left(&self, line: u32) {
        self.change(|state| {
            if let Some(line) = state.lines.get_mut(&line) {
                line.gone = true;
            }
        });
    }

    /// The oldest question at a listener that nobody has taken, and its line.
    fn accept(&self, listener: u32) -> Result<Option<(u32, Vec<u8>)>, Error> {
        let mut state = self.lock();
        let listener = state.listeners.get_mut(&listener).ok_or(Error::NoSuchObject("listener"))?;
        Ok(listener.asked.pop_front())
    }

    fn has_asked(&self, listener: u32) -> bool {
        self.lock().listeners.get(&listener).is_none_or(|listener| !listener.asked.is_empty())
    }

    fn is_gone(&self, line: u32) -> bool {
        self.lock().lines.get(&line).is_none_or(|line| line.gone)
    }

    fn reply(&self, line: u32, attributes: &[u8]) -> Result<(), Error> {
        if attributes.len() > ATTRIBUTES_MAX {
            return Err(Error::System(format!("attributes of {} bytes", attributes.len())));
        }
        let state = self.lock();
        let line = state.lines.get(&line).ok_or(Error::NoSuchObject("line"))?;
        let stream = line.stream.as_ref().and_then(|stream| stream.try_clone().ok()).ok_or(Error::Left)?;
        drop(state);
        write_frame(&stream, attributes).map_err(|_| Error::Left)
    }

    /// Begins to ask, for `time` at most; its line.
    pub fn ask(
        self: &Arc<Exchange>,
        name: &str,
        question: Vec<u8>,
        time: Option<Duration>,
    ) -> Result<u32, Error> {
        if question.len() > ATTRIBUTES_MAX {
            return Err(Error::System(format!("attributes of {} bytes", question.len())));
        }
        let addresses: Vec<SocketAddr> =
            name.to_socket_addrs().map_err(|error| system(&format!("asking {name}"), &error))?.collect();
        let line = {
            let mut state = self.lock();
            if state.lines.len() >= LINES_MAX {
                return Err(Error::Refused(adverb_nic::Error::TableFull));
            }
            state.last += 1;
            let line = state.last;
            state.lines.insert(line, LineState::default());
            line
        };
        let until = time.map(|time| clock_ns().saturating_add(time.as_nanos() as u64));
        let own = self.clone();
        spawn("adverb-line", move || own.run_ask(line, &addresses, &question, until))?;
        Ok(line)
    }

    fn run_ask(&self, line: u32, addresses: &[SocketAddr], question: &[u8], until: Option<u64>) {
        let told = self.try_ask(line, addresses, question, until);
        let stream = told.as_ref().ok().map(|(stream, _)| stream.try_clone());
        let told = told.map(|(_, answer)| answer);
        self.change(|state| {
            if let Some(line) = state.lines.get_mut(&line) {
                line.gone = told.is_err();
                line.told = Some(told);
            }
        });
        if let Some(Ok(stream)) = stream {
            wait_for_end(&stream);
        }
        self.left(line);
    }

    /// Connects, however often it takes, and gets the answer.
    fn try_ask(
        &self,
        line: u32,
        addresses: &[SocketAddr],
        question: &[u8],
        until: Option<u64>,
    ) -> Result<(TcpStream, Vec<u8>), Error> {
        let left = || until.map(|until| Duration::from_nanos(until.saturating_sub(clock_ns())));
        loop {
            if left().is_some_and(|left| left.is_zero()) {
                return Err(Error::NoAnswer);
            }
            let attempt = left().map_or(ATTEMPT, |left| left.min(ATTEMPT));
            let stream = addresses.iter().find_map(|to| TcpStream::connect_timeout(to, attempt).ok());
            let mut state = self.lock();
            // Nobody waits for it any more.
            let Some(kept) = state.lines.get_mut(&line) else { return Err(Error::NoAnswer) };
            let Some(stream) = stream else {
                let pause = left().map_or(AGAIN, |left| left.min(AGAIN));
                drop(self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner));
                continue;
            };
            kept.stream = stream.try_clone().ok();
            drop(state);
            write_frame(&stream, question).map_err(|_| Error::Left)?;
            let time = left().map(|left| left.max(Duration::from_millis(1)));
            let answer = stream.set_read_timeout(time).and_then(|()| read_frame(&stream));
            return match answer {
                Ok(answer) => Ok((stream, answer)),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    Err(Error::NoAnswer)
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(Error::Garbled("an answer")),
                Err(_) => Err(Error::Left),
            };
        }
    }

    /// What came of a question.
    fn told(&self, line: u32) -> Option<Result<Vec<u8>, Error>> {
        let mut state = self.lock();
        let told = state.lines.get_mut(&line).map_or(Some(Err(Error::Left)), |line| line.told.take());
        if matches!(told, Some(Err(_))) {
            state.lines.remove(&line);
        }
        told
    }

    /// Leaves a line; the other end hears it. A question's asker has given up.
    pub fn release_line(&self, line: u32) {
        let released = self.lock().lines.remove(&line);
        if let Some(stream) = released.and_then(|line| line.stream) {
            // An error says that it has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    fn release_listener(&self, listener: u32) {
        let Some(released) = self.lock().listeners.remove(&listener) else { return };
        released.asked.iter().for_each(|(line, _)| self.release_line(*line));
        // Its thread waits in `accept`, and looks whether it is still wanted when somebody comes.
        let _ = TcpStream::connect_timeout(&released.address, ATTEMPT);
    }
}
