//! RoCEv2 over UDP port 4791.
//!
//! The ICRC covers the IPv4 identification. An unconnected socket with DF set sends identification 0, and
//! segment k of a message that is cut apart gets k; each frame's ICRC is computed with its own.
//! The source port is 4791 for all frames, since the socket is one: routers that choose among
//! paths by it see one flow per pair of addresses (a deviation from IBTA A17.9.1's advice).

use crate::batch::{Batch, Tally, Way};
use crate::counters::IoCounters;
use crate::error::OpenError;
use crate::fork;
use crate::inbox::Inbox;
use crate::socket::{HOP_LIMIT, Socket};
use adverb_nic::memory::Gather;
use adverb_wire::{Duration, Flow, Gid, ICRC_LEN, Icrc, Instant, Packet, ROCE_UDP_PORT};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;

/// A frame of the largest path MTU, headers and ICRC included, fits.
const FRAME_MAX: usize = 4096 + 256;
/// The socket counts as in use, and is asked at every poll, for this long after its last frame.
const IN_USE: Duration = Duration::from_ms(100);

/// Sockets and staged frames.
pub struct Udp {
    socket: Socket,
    groups: Vec<Group>,
    own: Gid,
    interface_index: u32,
    batch: Batch,
    inbox: Inbox,
    last_used: Option<Instant>,
}

/// A multicast group's socket.
struct Group {
    gid: Gid,
    socket: Socket,
    /// Joins that were not taken back.
    joins: usize,
}

/// A frame that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Addresses, class, and source port.
    pub flow: Flow,
    /// From the BTH through the ICRC.
    pub bytes: &'a [u8],
}

impl Udp {
    /// Binds port 4791. `sole` says that no other process of this directory has bound it.
    pub fn bind(address: IpAddr, interface_index: u32, sole: bool, folder: &Path) -> Result<Udp, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::PortTaken { address, directory: folder.to_owned() },
            io::ErrorKind::AddrNotAvailable => OpenError::Address { address, source },
            _ => OpenError::System { what: "binding UDP port 4791", source },
        };
        // Sharing the port with processes that are not in the directory would lose their frames and ours.
        let socket = Socket::bind(address, sole).map_err(failed)?;
        fork::note_socket(socket.fd());
        // Without multicast, unicast still works: joining a group will say what is wrong.
        let _ = socket.multicast_from(interface_index);
        Ok(Udp {
            socket,
            groups: Vec::new(),
            own: Gid::from(address),
            interface_index,
            batch: Batch::new(),
            inbox: Inbox::new(),
            last_used: None,
        })
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Descriptors of the groups' sockets.
    pub fn group_fds(&self) -> impl Iterator<Item = RawFd> {
        self.groups.iter().map(|group| group.socket.fd())
    }

    /// Bytes that the kernel keeps for a slow reader.
    pub fn receive_buffer(&self) -> usize {
        self.socket.receive_buffer()
    }

    /// Receives a multicast group from now on. Each call wants a [`leave`](Self::leave).
    pub fn join(&mut self, gid: Gid) -> io::Result<()> {
        if let Some(group) = self.groups.iter_mut().find(|group| group.gid == gid) {
            group.joins += 1;
            return Ok(());
        }
        let socket = Socket::bind_group(gid.ip(), self.own.ip(), self.interface_index)?;
        fork::note_socket(socket.fd());
        self.groups.push(Group { gid, socket, joins: 1 });
        Ok(())
    }

    /// Takes one join back; after the last, the group is not received any longer.
    pub fn leave(&mut self, gid: Gid) {
        self.groups.retain_mut(|group| {
            if group.gid == gid {
                group.joins -= 1;
                if group.joins == 0 {
                    fork::forget_socket(group.socket.fd());
                }
            }
            group.joins > 0
        });
    }

    /// Whether frames came or went lately.
    #[inline]
    pub fn in_use(&self, now: Instant) -> bool {
        self.last_used.is_some_and(|last| now.since(last) < IN_USE)
    }

    /// Whether the stage takes another frame.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.batch.has_room(FRAME_MAX)
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        self.batch.has_staged()
    }

    /// Stages a packet. False, and nothing staged, when it is longer than any path MTU allows.
    #[inline]
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, payload: &Gather) -> bool {
        let len = packet.wire_len();
        if len > FRAME_MAX || payload.len() != packet.payload_len as usize {
            return false;
        }
        let flow = Flow { src_port: ROCE_UDP_PORT, ..packet.flow };
        let (id, frame) = self.batch.stage(&way(&flow), len);
        let header_len = packet.emit_bth(frame);
        let (covered, icrc) = frame.split_at_mut(len - ICRC_LEN);
        let (data, pad) = covered[header_len..].split_at_mut(payload.len());
        copy_payload(payload, data);
        pad.fill(0);
        let sum = Icrc::over_flow(&flow, id, len, covered).finish();
        icrc.copy_from_slice(&sum.to_le_bytes());
        self.last_used = Some(now);
        true
    }

    /// Stages a complete frame as it is, without its IP and UDP headers (`flow` says what they said).
    /// Its ICRC is one for identification 0.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8]) -> bool {
        if bytes.len() > FRAME_MAX {
            return false;
        }
        self.batch.stage_alone(&way(flow), bytes.len()).copy_from_slice(bytes);
        self.last_used = Some(now);
        true
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged.
    pub fn flush(&mut self, n: &mut IoCounters) -> bool {
        let mut tally = Tally::default();
        let own = self.own;
        // A frame that leaves alone has another identification than in a message.
        let done = self.batch.flush(&self.socket, &mut tally, |way, frame| {
            let len = frame.len();
            let flow = Flow {
                src: own,
                dst: Gid::from(way.to.ip()),
                src_port: ROCE_UDP_PORT,
                traffic_class: way.traffic_class,
                hop_limit: way.hop_limit,
            };
            let (covered, icrc) = frame.split_at_mut(len - ICRC_LEN);
            icrc.copy_from_slice(&Icrc::over_flow(&flow, 0, len, covered).finish().to_le_bytes());
        });
        n.udp_tx_messages += tally.messages;
        n.udp_tx_frames += tally.frames;
        n.udp_tx_bytes += tally.bytes;
        n.drop_too_long += tally.too_long;
        n.drop_unreachable += tally.unreachable;
        n.drop_send_failed += tally.failed;
        done
    }

    /// Takes what has arrived, at most one batch per socket; returns how many frames.
    pub fn receive(
        &mut self,
        now: Instant,
        n: &mut IoCounters,
        mut each: impl FnMut(Datagram<'_>, &mut IoCounters),
    ) -> usize {
        let Udp { socket, groups, own, inbox, last_used, .. } = self;
        let own = (*own, &*socket);
        let mut total = 0;
        let groups = groups.iter().map(|group| (group.gid, &group.socket));
        for (dst, socket) in std::iter::once(own).chain(groups) {
            match socket.receive(inbox) {
                Ok(0) => continue,
                Ok(count) => n.udp_rx_messages += count as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => {
                    n.receive_errors += 1;
                    continue;
                }
            }
            *last_used = Some(now);
            for message in inbox.messages() {
                let flow = Flow {
                    src: Gid::from(message.from.ip()),
                    dst,
                    src_port: message.from.port(),
                    traffic_class: message.traffic_class,
                    hop_limit: HOP_LIMIT,
                };
                for bytes in message.bytes.chunks(message.segment.max(1)) {
                    n.udp_rx_frames += 1;
                    n.udp_rx_bytes += bytes.len() as u64;
                    total += 1;
                    each(Datagram { flow, bytes }, n);
                }
            }
        }
        total
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        self.group_fds().chain([self.fd()]).for_each(fork::forget_socket);
    }
}

/// Copies a frame's payload to private memory.
#[inline]
pub fn copy_payload(payload: &Gather, out: &mut [u8]) {
    assert!(out.len() == payload.len(), "room for the payload");
    payload.copy_to(as_uninit(out));
}

/// Initialised bytes as bytes that need not be. The callee initialises what it writes.
#[inline]
#[allow(unsafe_code, reason = "std has no safe form of this cast")]
fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: `MaybeUninit<u8>` has the layout of `u8`, and `Gather::copy_to` only ever writes
    // initialised bytes, so the slice is still initialised when the borrow ends.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

#[inline]
fn way(flow: &Flow) -> Way {
    let to = SocketAddr::new(flow.dst.ip(), ROCE_UDP_PORT);
    Way { to, traffic_class: flow.traffic_class, hop_limit: flow.hop_limit }
}
