//! The port's way out of the process: [`RoceSockets`], or [`Via`] to a switch's process. It knows what a fork
//! does to descriptors, what goes wrong when they are opened, and what is counted.

use crate::counters::IoCounters;
use crate::error::OpenError;
use crate::fork;
use crate::payload::copy_payload;
use adverb_nic::Nic;
use adverb_nic::memory::Gather;
use adverb_os::batch::Tally;
use adverb_os::framing::Datagram;
use adverb_os::roce::RoceSockets;
use adverb_os::steer::Mark;
use adverb_os::via::{Hello, Place, QUEUE_MAX, Via, is_remote, read_token, socket_path};
use adverb_wire::{Flow, Gid, Instant, Packet};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::fd::RawFd;
use std::path::Path;

/// How many frames ahead of the one at hand a number's tables are asked for: memory answers before.
const AHEAD: usize = 4;

/// What frames leave through.
#[expect(clippy::large_enum_variant, reason = "a process has one, and the usual way is not one step further")]
enum Way {
    Sockets(RoceSockets),
    Via(Box<Via>),
}

/// Asks for what a frame that comes soon in the same message leads to; with the first one, for what all
/// those before that one lead to.
#[inline]
pub fn prefetch_coming(nic: &Nic, datagram: &Datagram<'_>) {
    let from = if datagram.likely_id == 0 { 1 } else { AHEAD };
    for (opcode, number) in (from..=AHEAD).map_while(|places| datagram.coming(places)) {
        nic.prefetch_number(opcode, number);
    }
}

/// Where the switch of a name listens.
fn place_of(switch: &Path, token: Option<&Path>, directory: &Path) -> io::Result<Place> {
    let Some(name) = switch.to_str().filter(|_| is_remote(switch)) else {
        return Ok(Place::Local(socket_path(directory, switch)));
    };
    let missing = "a switch of another host asks for its token: adverb run --via-token FILE, or via_token=";
    let token = token.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, missing))?;
    let address = name.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(Place::Remote(address, read_token(token)?))
}

/// The sockets of this process, or its port at a switch.
pub struct Udp {
    way: Way,
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
        Ok(Udp { way: Way::Sockets(sockets) })
    }

    /// Claims an address at the switch of a name, or of HOST:PORT with the token that a file has.
    pub fn via(
        switch: &Path,
        token: Option<&Path>,
        directory: &Path,
        hello: Hello,
    ) -> Result<Udp, OpenError> {
        let failed =
            |source| OpenError::Via { switch: switch.to_owned(), address: hello.address.ip(), source };
        let place = place_of(switch, token, directory).map_err(failed)?;
        let via = Via::open(place, hello).map_err(failed)?;
        fork::note_socket(via.fd());
        Ok(Udp { way: Way::Via(Box::new(via)) })
    }

    /// Whether frames go to a switch, which lets nobody send under another's address.
    #[inline]
    pub fn is_via(&self) -> bool {
        matches!(self.way, Way::Via(_))
    }

    /// The process of the switch that frames go to, if it is on this host, and its thread that takes them.
    pub fn switch(&self) -> Option<(u32, u32)> {
        match &self.way {
            Way::Sockets(_) => None,
            Way::Via(via) => via.process(),
        }
    }

    /// Whether a switch decides atomics to this address, and sends them on as WRITEs.
    pub fn decides_atomics(&self) -> bool {
        match &self.way {
            Way::Sockets(_) => false,
            Way::Via(via) => via.decides(),
        }
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        match &self.way {
            Way::Sockets(sockets) => sockets.fd(),
            Way::Via(via) => via.fd(),
        }
    }

    /// Descriptors of the groups' sockets. A switch sends groups' frames the way of all others.
    pub fn group_fds(&self) -> impl Iterator<Item = RawFd> {
        self.sockets().into_iter().flat_map(RoceSockets::group_fds)
    }

    /// Bytes that are kept for a slow reader.
    pub fn receive_buffer(&self) -> usize {
        match &self.way {
            Way::Sockets(sockets) => sockets.receive_buffer(),
            Way::Via(_) => QUEUE_MAX,
        }
    }

    /// When something is due although nothing comes.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.way {
            Way::Sockets(_) => None,
            Way::Via(via) => via.next_deadline(),
        }
    }

    /// Receives a multicast group from now on. Each call wants a [`leave`](Self::leave).
    pub fn join(&mut self, gid: Gid) -> io::Result<()> {
        if let Way::Sockets(sockets) = &mut self.way
            && let Some(fd) = sockets.join(gid)?
        {
            fork::note_socket(fd);
        }
        Ok(())
    }

    /// Takes one join back; after the last, the group is not received any longer.
    pub fn leave(&mut self, gid: Gid) {
        if let Way::Sockets(sockets) = &mut self.way {
            sockets.leave(gid, fork::forget_socket);
        }
    }

    /// Whether frames came or went lately.
    #[inline]
    pub fn in_use(&self, now: Instant) -> bool {
        match &self.way {
            Way::Sockets(sockets) => sockets.in_use(now),
            Way::Via(via) => via.in_use(now),
        }
    }

    /// Whether the stage takes another frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        match &self.way {
            Way::Sockets(sockets) => sockets.has_room(),
            Way::Via(via) => via.has_room(),
        }
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        match &self.way {
            Way::Sockets(sockets) => sockets.has_staged(),
            Way::Via(via) => via.has_staged(),
        }
    }

    /// Stages a packet. False, and nothing staged, when it is longer than any path MTU allows.
    #[inline]
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, payload: &Gather) -> bool {
        let write = |place: &mut [u8]| copy_payload(payload, place);
        match &mut self.way {
            Way::Sockets(sockets) => sockets.stage_packet(now, packet, write),
            Way::Via(via) => via.stage_packet(now, packet, write),
        }
    }

    /// Stages a complete frame as it is, without its IP and UDP headers (`flow` says what they said).
    /// `is_sound` says that its ICRC is right for identification 0.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8], is_sound: bool) -> bool {
        match &mut self.way {
            Way::Sockets(sockets) => sockets.stage_bytes(now, flow, bytes, is_sound),
            Way::Via(via) => via.stage_bytes(now, flow, bytes),
        }
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged.
    pub fn flush(&mut self, counters: &mut IoCounters) -> bool {
        let mut tally = Tally::default();
        let done = match &mut self.way {
            Way::Sockets(sockets) => sockets.flush(&mut tally),
            Way::Via(via) => via.flush(&mut tally),
        };
        counters.udp_tx_messages += tally.messages;
        counters.udp_tx_frames += tally.frames;
        counters.udp_tx_bytes += tally.bytes;
        counters.drop_too_long += tally.too_long;
        counters.drop_unreachable += tally.unreachable;
        counters.drop_send_failed += tally.failed;
        done
    }

    /// Forgets the staged frames that the kernel has not taken; how many these were.
    pub fn give_up(&mut self) -> u64 {
        match &mut self.way {
            Way::Sockets(sockets) => sockets.give_up(),
            Way::Via(via) => via.give_up(),
        }
    }

    /// The sockets, to steer datagrams among processes. A switch needs none for that.
    pub fn sockets(&self) -> Option<&RoceSockets> {
        match &self.way {
            Way::Sockets(sockets) => Some(sockets),
            Way::Via(_) => None,
        }
    }

    /// The next call takes a whole batch.
    #[inline]
    pub fn ask_for_all(&mut self) {
        if let Way::Sockets(sockets) = &mut self.way {
            sockets.ask_for_all();
        }
    }

    /// Takes what has arrived, at most one batch per socket; returns how many frames.
    pub fn receive(
        &mut self,
        now: Instant,
        counters: &mut IoCounters,
        mut each: impl FnMut(Datagram<'_>, &mut IoCounters),
        on_mark: impl FnMut(Mark),
    ) -> usize {
        let received = match &mut self.way {
            Way::Sockets(sockets) => sockets.receive(now, |datagram| each(datagram, counters), on_mark),
            Way::Via(via) => {
                let before = via.fd();
                let received = via.receive(now, |datagram| each(datagram, counters));
                // The switch has gone, or has come back.
                if before != via.fd() {
                    fork::forget_socket(before);
                    if via.fd() >= 0 {
                        fork::note_socket(via.fd());
                    }
                }
                received
            }
        };
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
