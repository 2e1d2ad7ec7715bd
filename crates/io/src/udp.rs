//! RoCEv2 over UDP port 4791: frames are staged during a burst and sent together, runs of equal length as
//! one message that the kernel cuts apart.
//!
//! The ICRC covers the IPv4 identification. An unconnected socket with DF set sends identification 0, and
//! segment k of a message that is cut apart gets k; each frame's ICRC is computed with its own.
//! The source port is 4791 for all frames, since the socket is one: routers that choose among
//! paths by it see one flow per pair of addresses (a deviation from IBTA A17.9.1's advice).

use crate::counters::IoCounters;
use crate::error::OpenError;
use crate::fork;
use crate::socket::{HOP_LIMIT, Inbox, Run, Socket};
use adverb_nic::memory::Gather;
use adverb_wire::{Duration, Flow, Gid, ICRC_LEN, Icrc, Instant, Packet, ROCE_UDP_PORT};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::Path;

/// Bytes staged before the kernel gets them.
const STAGE_LEN: usize = 512 << 10;
/// A frame of the largest path MTU, headers and ICRC included, fits.
const FRAME_MAX: usize = 4096 + 256;
/// Frames that the kernel cuts out of one message (UDP_MAX_SEGMENTS).
const RUN_FRAMES_MAX: usize = 64;
/// Bytes of one message, below what UDP over IPv4 carries.
const RUN_BYTES_MAX: usize = 65_000;
/// Messages staged before the kernel gets them.
const RUNS_MAX: usize = 64;
/// The socket counts as in use, and is asked at every poll, for this long after its last frame.
const IN_USE: Duration = Duration::from_ms(100);

/// Sockets and staged frames.
pub struct Udp {
    socket: Socket,
    groups: Vec<Group>,
    own: Gid,
    interface_index: u32,
    stage: Box<[u8]>,
    staged: usize,
    runs: Vec<Run>,
    /// Frames may still join the last run.
    open_run: bool,
    /// Runs before this one were sent.
    sent: usize,
    inbox: Inbox,
    segmentation: bool,
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
            stage: vec![0; STAGE_LEN].into_boxed_slice(),
            staged: 0,
            runs: Vec::with_capacity(RUNS_MAX),
            open_run: false,
            sent: 0,
            inbox: Inbox::new(),
            segmentation: true,
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
        self.stage.len() - self.staged >= FRAME_MAX && self.runs.len() < RUNS_MAX
    }

    /// Whether frames wait for the kernel.
    #[inline]
    pub fn has_staged(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Stages a packet. False, and nothing staged, when it is longer than any path MTU allows.
    #[inline]
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, payload: &Gather) -> bool {
        let len = packet.wire_len();
        if len > FRAME_MAX || payload.len() != packet.payload_len as usize {
            return false;
        }
        let flow = Flow { src_port: ROCE_UDP_PORT, ..packet.flow };
        let id = self.join_run(&flow, len, self.segmentation);
        let frame = &mut self.stage[self.staged..self.staged + len];
        let header_len = packet.emit_bth(frame);
        let (covered, icrc) = frame.split_at_mut(len - ICRC_LEN);
        let (data, pad) = covered[header_len..].split_at_mut(payload.len());
        copy_payload(payload, data);
        pad.fill(0);
        let sum = Icrc::over_flow(&flow, id, len, covered).finish();
        icrc.copy_from_slice(&sum.to_le_bytes());
        self.staged += len;
        self.last_used = Some(now);
        true
    }

    /// Stages a complete frame as it is, without its IP and UDP headers (`flow` says what they said).
    /// Its ICRC is one for identification 0.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8]) -> bool {
        if bytes.len() > FRAME_MAX {
            return false;
        }
        self.join_run(flow, bytes.len(), false);
        self.stage[self.staged..self.staged + bytes.len()].copy_from_slice(bytes);
        self.staged += bytes.len();
        self.last_used = Some(now);
        true
    }

    /// Puts a frame of `len` bytes into the last run or a new one, and returns its identification.
    #[inline]
    fn join_run(&mut self, flow: &Flow, len: usize, may_join: bool) -> u16 {
        let to = SocketAddr::new(flow.dst.ip(), ROCE_UDP_PORT);
        if may_join
            && self.open_run
            && let Some(run) = self.runs.last_mut()
            && run.to == to
            && (run.traffic_class, run.hop_limit) == (flow.traffic_class, flow.hop_limit)
            && len <= run.segment
            && run.frames < RUN_FRAMES_MAX
            && run.len + len <= RUN_BYTES_MAX
        {
            let id = run.frames as u16;
            run.frames += 1;
            run.len += len;
            // A shorter frame can only be the last.
            self.open_run = len == run.segment;
            return id;
        }
        self.runs.push(Run {
            to,
            start: self.staged,
            len,
            segment: len,
            frames: 1,
            traffic_class: flow.traffic_class,
            hop_limit: flow.hop_limit,
        });
        self.open_run = may_join;
        0
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged.
    pub fn flush(&mut self, n: &mut IoCounters) -> bool {
        while self.sent < self.runs.len() {
            let (taken, error) = self.socket.send(&self.runs[self.sent..], &self.stage);
            for run in &self.runs[self.sent..self.sent + taken] {
                n.udp_tx_messages += 1;
                n.udp_tx_frames += run.frames as u64;
                n.udp_tx_bytes += run.len as u64;
            }
            self.sent += taken;
            let Some(error) = error else { continue };
            match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                _ if self.runs[self.sent].frames > 1 => self.send_apart(n),
                _ => {
                    count_failure(&error, n);
                    self.sent += 1;
                }
            }
        }
        self.runs.clear();
        (self.sent, self.staged, self.open_run) = (0, 0, false);
        true
    }

    /// Sends the frames of a refused run one by one, each with the identification it then has.
    #[cold]
    fn send_apart(&mut self, n: &mut IoCounters) {
        let run = self.runs[self.sent];
        self.sent += 1;
        let mut delivered = 0;
        for k in 0..run.frames {
            let start = run.start + k * run.segment;
            let len = run.segment.min(run.start + run.len - start);
            let flow = Flow {
                src: self.own,
                dst: Gid::from(run.to.ip()),
                src_port: ROCE_UDP_PORT,
                traffic_class: run.traffic_class,
                hop_limit: run.hop_limit,
            };
            let (covered, icrc) = self.stage[start..start + len].split_at_mut(len - ICRC_LEN);
            icrc.copy_from_slice(&Icrc::over_flow(&flow, 0, len, covered).finish().to_le_bytes());
            let one = Run { start, len, segment: len, frames: 1, ..run };
            match self.socket.send(&[one], &self.stage) {
                (1, _) => delivered += 1,
                (_, Some(error)) => count_failure(&error, n),
                (_, None) => {}
            }
        }
        n.udp_tx_messages += delivered;
        n.udp_tx_frames += delivered;
        // A kernel or adapter that cannot cut messages apart refuses them every time.
        self.segmentation &= delivered == 0;
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

fn count_failure(error: &io::Error, n: &mut IoCounters) {
    match error.raw_os_error() {
        Some(libc::EMSGSIZE) => n.drop_too_long += 1,
        Some(
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::ECONNREFUSED
            | libc::EACCES
            | libc::EPERM
            | libc::EAFNOSUPPORT
            | libc::EINVAL
            | libc::EADDRNOTAVAIL,
        ) => n.drop_unreachable += 1,
        _ => n.drop_send_failed += 1,
    }
}
