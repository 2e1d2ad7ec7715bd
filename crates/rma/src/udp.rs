//! Messages on UDP port 61113.

use crate::counters::DriverCounters;
use crate::near::Near;
use adverb_nic::OneRma;
use adverb_os::batch::{Batch, Tally, Way};
use adverb_os::faults::{Direction, Faults, Lane, Parcel};
use adverb_os::inbox::Inbox;
use adverb_os::socket::Socket;
use adverb_wire::one_rma::{HEAD_LEN, MAX_MESSAGE, UDP_PORT};
use adverb_wire::{Gid, Instant};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// Bytes before the payload of a message that has one.
pub(crate) const PAYLOAD_AT: usize = HEAD_LEN + 4;
/// Sendings to one and the same peer, after which it is worth a connection.
const FAITHFUL: u32 = 64;

/// The sockets of a NIC, and messages on their way to them.
pub(crate) struct Udp {
    socket: Socket,
    inbox: Inbox,
    batch: Batch,
    faults: Option<Lane<Gid>>,
    address: IpAddr,
    /// Connected to the peer that is written to all the time, if there is one.
    direct: Option<Socket>,
    /// Who was written to last, and how many times in a row.
    last: Option<SocketAddr>,
    in_a_row: u32,
}

impl Udp {
    /// Binds the port of an address that nobody else has. `seed` decides about faults that name none.
    pub fn bind(address: IpAddr, faults: &Faults, seed: u64) -> io::Result<Udp> {
        Ok(Udp {
            socket: Socket::bind_alone(SocketAddr::new(address, UDP_PORT))?,
            inbox: Inbox::stepwise(PAYLOAD_AT),
            batch: Batch::with_header(PAYLOAD_AT),
            faults: faults.any().then(|| Lane::new(faults, Direction::Tx, seed)),
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
        self.batch.has_staged()
    }

    /// When a message that a fault holds back goes on.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.faults.as_ref().and_then(Lane::next_deadline)
    }

    /// Gives the NIC what has arrived, if anything has: then returns the time that it came with. `clock` is
    /// asked afterwards: no message is newer than that.
    pub fn receive(
        &mut self,
        nic: &mut OneRma,
        counters: &mut DriverCounters,
        clock: impl Fn() -> Instant,
    ) -> Option<Instant> {
        match self.socket.receive(&mut self.inbox) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            // A peer's port that was closed: 1RMA's timeouts tell.
            Err(_) => {
                counters.receive_errors += 1;
                return None;
            }
        }
        let now = clock();
        self.inbox.for_each_mut(|from, segment, bytes| {
            let from = Gid::from(from.ip());
            counters.rx_datagrams += 1;
            for message in bytes.chunks_mut(segment.max(1)) {
                nic.on_frame(now, from, message);
            }
        });
        Some(now)
    }

    /// Sends what the NIC has to send, to near peers the near way.
    pub fn transmit(
        &mut self,
        nic: &mut OneRma,
        mut near: Option<&mut Near>,
        counters: &mut DriverCounters,
        now: Instant,
    ) -> bool {
        let mut any = false;
        loop {
            while let Some(room) = self.room()
                && let Some((to, len)) = nic.next_message(now, room)
            {
                any = true;
                match &mut self.faults {
                    None => {
                        let message = &self.batch.room()[..len];
                        if !near.as_mut().is_some_and(|near| near.send(now, to, message, counters)) {
                            self.put(to, len);
                        }
                        // Before a look for more: who waits for this one waits longer for that.
                        if !nic.has_work() {
                            break;
                        }
                    }
                    Some(lane) => {
                        let bytes = self.batch.room()[..len].to_vec();
                        lane.admit(now, Parcel::unchecked(bytes, 0, to));
                    }
                }
            }
            self.release_faulty(now);
            if let Some(near) = &mut near {
                near.flush(counters);
            }
            if !self.flush(counters) || !nic.has_work() {
                return any;
            }
        }
    }

    fn release_faulty(&mut self, now: Instant) {
        while self.batch.has_room(MAX_MESSAGE)
            && let Some(Parcel { bytes, tag, .. }) = self.faults.as_mut().and_then(|lane| lane.next(now))
        {
            self.batch.room()[..bytes.len()].copy_from_slice(&bytes);
            self.put(tag, bytes.len());
        }
    }

    /// Where the next message is to be written, if one may be.
    #[inline]
    fn room(&mut self) -> Option<&mut [u8; MAX_MESSAGE]> {
        if !self.batch.has_room(MAX_MESSAGE) {
            return None;
        }
        self.batch.room().first_chunk_mut()
    }

    /// Takes in the message that has been written there.
    #[inline]
    fn put(&mut self, to: Gid, len: usize) {
        self.batch.stage(&Way::plain(SocketAddr::new(to.ip(), UDP_PORT)), len);
    }

    /// Gives staged messages to the kernel. False while it takes no more: they stay staged.
    fn flush(&mut self, counters: &mut DriverCounters) -> bool {
        let mut tally = Tally::default();
        self.push_directly(&mut tally);
        // A message means the same wherever it stands.
        let done = self.batch.flush(&self.socket, &mut tally, |_, _| {});
        counters.tx_datagrams += tally.messages;
        counters.drop_send_failed += tally.too_long + tally.unreachable + tally.failed;
        done
    }

    /// Sends what is staged through the connected socket, if all of it is for its peer. What it does not take
    /// goes the other way.
    fn push_directly(&mut self, tally: &mut Tally) {
        if !self.batch.has_staged() {
            return;
        }
        let Some(peer) = self.batch.only_peer() else {
            self.last = None;
            return;
        };
        if self.last != Some(peer) {
            (self.last, self.in_a_row) = (Some(peer), 0);
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row == FAITHFUL {
            self.connect(peer);
        }
        let Some(direct) = self.direct.as_ref().filter(|direct| direct.peer() == Some(peer)) else { return };
        let error = self.batch.push(direct, tally);
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
}
