//! The port's sockets: [`RoceSockets`], which know what a fork does to them, what goes wrong when they are
//! opened, and what is counted.

use crate::counters::IoCounters;
use crate::error::OpenError;
use crate::fork;
use crate::payload::copy_payload;
use adverb_nic::memory::Gather;
use adverb_os::batch::Tally;
use adverb_os::framing::Datagram;
use adverb_os::roce::RoceSockets;
use adverb_os::steer::Mark;
use adverb_wire::{Flow, Gid, Instant, Packet};
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::Path;

/// The sockets of this process.
pub struct Udp {
    sockets: RoceSockets,
}

impl Udp {
    /// Binds port 4791. `sole` says that no other process of this directory has bound it.
    pub fn bind(address: IpAddr, interface_index: u32, sole: bool, folder: &Path) -> Result<Udp, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::PortTaken { address, directory: folder.to_owned() },
            io::ErrorKind::AddrNotAvailable => OpenError::Address { address, source },
            _ => OpenError::System { what: "binding UDP port 4791", source },
        };
        let sockets = RoceSockets::bind(address, interface_index, sole).map_err(failed)?;
        fork::note_socket(sockets.fd());
        Ok(Udp { sockets })
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.sockets.fd()
    }

    /// Descriptors of the groups' sockets.
    pub fn group_fds(&self) -> impl Iterator<Item = RawFd> {
        self.sockets.group_fds()
    }

    /// Bytes that the kernel keeps for a slow reader.
    pub fn receive_buffer(&self) -> usize {
        self.sockets.receive_buffer()
    }

    /// Receives a multicast group from now on. Each call wants a [`leave`](Self::leave).
    pub fn join(&mut self, gid: Gid) -> io::Result<()> {
        if let Some(fd) = self.sockets.join(gid)? {
            fork::note_socket(fd);
        }
        Ok(())
    }

    /// Takes one join back; after the last, the group is not received any longer.
    pub fn leave(&mut self, gid: Gid) {
        self.sockets.leave(gid, fork::forget_socket);
    }

    /// Whether frames came or went lately.
    #[inline]
    pub fn in_use(&self, now: Instant) -> bool {
        self.sockets.in_use(now)
    }

    /// Whether the stage takes another frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.sockets.has_room()
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        self.sockets.has_staged()
    }

    /// Stages a packet. False, and nothing staged, when it is longer than any path MTU allows.
    #[inline]
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, payload: &Gather) -> bool {
        self.sockets.stage_packet(now, packet, |place| copy_payload(payload, place))
    }

    /// Stages a complete frame as it is, without its IP and UDP headers (`flow` says what they said). Its
    /// ICRC is one for identification 0.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8]) -> bool {
        self.sockets.stage_bytes(now, flow, bytes)
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged.
    pub fn flush(&mut self, counters: &mut IoCounters) -> bool {
        let mut tally = Tally::default();
        let done = self.sockets.flush(&mut tally);
        counters.udp_tx_messages += tally.messages;
        counters.udp_tx_frames += tally.frames;
        counters.udp_tx_bytes += tally.bytes;
        counters.drop_too_long += tally.too_long;
        counters.drop_unreachable += tally.unreachable;
        counters.drop_send_failed += tally.failed;
        done
    }

    /// The sockets, to steer datagrams among processes.
    pub fn sockets(&self) -> &RoceSockets {
        &self.sockets
    }

    /// The next call takes a whole batch.
    #[inline]
    pub fn ask_for_all(&mut self) {
        self.sockets.ask_for_all();
    }

    /// Takes what has arrived, at most one batch per socket; returns how many frames.
    pub fn receive(
        &mut self,
        now: Instant,
        counters: &mut IoCounters,
        mut each: impl FnMut(Datagram<'_>, &mut IoCounters),
        on_mark: impl FnMut(Mark),
    ) -> usize {
        let received = self.sockets.receive(now, |datagram| each(datagram, counters), on_mark);
        counters.udp_rx_messages += received.messages;
        counters.udp_rx_frames += received.frames;
        counters.udp_rx_bytes += received.bytes;
        counters.receive_errors += received.errors;
        received.frames as usize
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        self.group_fds().chain([self.fd()]).for_each(fork::forget_socket);
    }
}
