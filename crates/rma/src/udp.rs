//! Messages on UDP port 61113: staged during a round and sent together, runs of equal length to one peer as one message that the kernel cuts apart.

use crate::counters::DriverCounters;
use crate::settings::Faults;
use adverb_io::faults::{Lane, Parcel};
use adverb_io::socket::{HOP_LIMIT, Inbox, Run, Socket};
use adverb_nic::OneRma;
use adverb_wire::one_rma::{MAX_MESSAGE, UDP_PORT};
use adverb_wire::{Gid, Instant};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Bytes staged before the kernel gets them.
const STAGE_LEN: usize = 512 << 10;
/// Messages that the kernel cuts out of one (UDP_MAX_SEGMENTS).
const RUN_MESSAGES_MAX: usize = 64;
/// Bytes of one run, below what UDP over IPv4 carries.
const RUN_BYTES_MAX: usize = 65_000;
/// Runs staged before the kernel gets them.
const RUNS_MAX: usize = 64;
/// Sendings to one and the same peer, after which it is worth a connection.
const FAITHFUL: u32 = 64;

/// See the top of this file.
pub(crate) struct Udp {
    socket: Socket,
    inbox: Inbox,
    stage: Box<[u8]>,
    staged: usize,
    runs: Vec<Run>,
    open_run: bool,
    /// Runs before this one were sent.
    sent: usize,
    segmentation: bool,
    faults: Option<Lane<Gid>>,
    address: IpAddr,
    /// Connected to the peer that is written to all the time, if there is one.
    direct: Option<Socket>,
    /// Who was written to last, and how many times in a row.
    last: Option<SocketAddr>,
    in_a_row: u32,
}

impl Udp {
    pub fn bind(address: IpAddr, faults: &Faults) -> io::Result<Udp> {
        let lane = || {
            let settings = adverb_io::Settings {
                loss: faults.loss,
                duplicate: faults.duplicate,
                reorder: faults.reorder,
                corrupt: faults.corrupt,
                delay: faults.delay,
                ..adverb_io::Settings::default()
            };
            Lane::new(&settings, adverb_io::Direction::Tx, faults.seed)
        };
        Ok(Udp {
            socket: Socket::bind_alone(SocketAddr::new(address, UDP_PORT))?,
            inbox: Inbox::new(),
            stage: vec![0; STAGE_LEN].into_boxed_slice(),
            staged: 0,
            runs: Vec::with_capacity(RUNS_MAX),
            open_run: false,
            sent: 0,
            segmentation: true,
            faults: faults.any().then(lane),
            address,
            direct: None,
            last: None,
            in_a_row: 0,
        })
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Bytes that the kernel keeps for a slow reader.
    pub fn receive_buffer(&self) -> usize {
        self.socket.receive_buffer()
    }

    /// Whether messages wait for the kernel to take them.
    pub fn has_staged(&self) -> bool {
        !self.runs.is_empty()
    }

    /// When a message that a fault holds back goes on.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.faults.as_ref().and_then(Lane::next_deadline)
    }

    /// Gives the NIC what has arrived, if anything has: then returns the time that it came with. `clock` is asked afterwards: no message is newer
    /// than that.
    pub fn receive(
        &mut self,
        nic: &mut OneRma,
        n: &mut DriverCounters,
        clock: impl Fn() -> Instant,
    ) -> Option<Instant> {
        match self.socket.receive(&mut self.inbox) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // A peer's port that was closed: 1RMA's timeouts tell.
            Err(_) => {
                n.receive_errors += 1;
                return None;
            }
        }
        let now = clock();
        self.inbox.for_each_mut(|from, segment, bytes| {
            let from = Gid::from(from.ip());
            n.rx_datagrams += 1;
            for message in bytes.chunks_mut(segment.max(1)) {
                nic.on_frame(now, from, message);
            }
        });
        Some(now)
    }

    /// Sends what the NIC has to send.
    pub fn transmit(&mut self, nic: &mut OneRma, n: &mut DriverCounters, now: Instant) -> bool {
        let mut any = false;
        loop {
            while let Some(room) = self.room()
                && let Some((to, len)) = nic.next_message(now, room)
            {
                any = true;
                match &mut self.faults {
                    None => self.put(to, len),
                    Some(lane) => {
                        let bytes = self.stage[self.staged..self.staged + len].to_vec();
                        lane.admit(now, Parcel { bytes, bth_at: 0, tag: to });
                    }
                }
            }
            self.release_faulty(now);
            if !self.flush(n) || !nic.has_work() {
                return any;
            }
        }
    }

    fn release_faulty(&mut self, now: Instant) {
        while self.room().is_some()
            && let Some(Parcel { bytes, tag, .. }) = self.faults.as_mut().and_then(|lane| lane.next(now))
        {
            self.stage[self.staged..self.staged + bytes.len()].copy_from_slice(&bytes);
            self.put(tag, bytes.len());
        }
    }

    /// Where the next message is to be written, if one may be.
    fn room(&mut self) -> Option<&mut [u8; MAX_MESSAGE]> {
        self.stage[self.staged..].first_chunk_mut().filter(|_| self.runs.len() < RUNS_MAX)
    }

    /// Takes in the message that has been written there.
    fn put(&mut self, to: Gid, len: usize) {
        self.join_run(SocketAddr::new(to.ip(), UDP_PORT), len);
        self.staged += len;
    }

    fn join_run(&mut self, to: SocketAddr, len: usize) {
        if self.open_run
            && let Some(run) = self.runs.last_mut()
            && run.to == to
            && len <= run.segment
            && run.frames < RUN_MESSAGES_MAX
            && run.len + len <= RUN_BYTES_MAX
        {
            run.frames += 1;
            run.len += len;
            // A shorter one can only be the last.
            self.open_run = len == run.segment;
            return;
        }
        let start = self.staged;
        self.runs.push(Run {
            to,
            start,
            len,
            segment: len,
            frames: 1,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        });
        self.open_run = self.segmentation;
    }

    /// Gives staged messages to the kernel. False while it takes no more: they stay staged.
    fn flush(&mut self, n: &mut DriverCounters) -> bool {
        self.flush_directly(n);
        while self.sent < self.runs.len() {
            let (taken, error) = self.socket.send(&self.runs[self.sent..], &self.stage);
            n.tx_datagrams += taken as u64;
            self.sent += taken;
            let Some(error) = error else { continue };
            match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                _ if self.runs[self.sent].frames > 1 => self.send_apart(n),
                _ => {
                    n.drop_send_failed += 1;
                    self.sent += 1;
                }
            }
        }
        self.runs.clear();
        (self.sent, self.staged, self.open_run) = (0, 0, false);
        true
    }

    /// Sends what is staged through the connected socket, if all of it is for its peer. What it does not take goes the other way.
    fn flush_directly(&mut self, n: &mut DriverCounters) {
        let Some(peer) = self.runs.get(self.sent).map(|run| run.to) else { return };
        if self.runs[self.sent..].iter().any(|run| run.to != peer) {
            self.last = None;
            return;
        }
        if self.last != Some(peer) {
            (self.last, self.in_a_row) = (Some(peer), 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row == FAITHFUL {
            self.connect(peer);
        }
        let Some(direct) = self.direct.as_ref().filter(|direct| direct.peer() == Some(peer)) else { return };
        let (taken, error) = direct.send(&self.runs[self.sent..], &self.stage);
        n.tx_datagrams += taken as u64;
        self.sent += taken;
        if error.is_some_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            // The peer's port was closed, or the way to it has changed.
            (self.direct, self.in_a_row) = (None, 0);
        }
    }

    /// Connects the second socket to a peer; without one, all goes through the first.
    #[cold]
    fn connect(&mut self, peer: SocketAddr) {
        let direct = self.direct.take().map_or_else(|| Socket::sender(self.address), Ok);
        self.direct = direct.and_then(|mut direct| direct.connect(peer).map(|()| direct)).ok();
    }

    /// Sends the messages of a refused run one by one.
    #[cold]
    fn send_apart(&mut self, n: &mut DriverCounters) {
        let run = self.runs[self.sent];
        self.sent += 1;
        let mut delivered = 0;
        for k in 0..run.frames {
            let start = run.start + k * run.segment;
            let len = run.segment.min(run.start + run.len - start);
            let one = Run { start, len, segment: len, frames: 1, ..run };
            match self.socket.send(&[one], &self.stage).0 {
                1 => delivered += 1,
                _ => n.drop_send_failed += 1,
            }
        }
        n.tx_datagrams += delivered;
        // A kernel or adapter that cannot cut messages apart refuses them every time.
        self.segmentation &= delivered == 0;
    }
}
