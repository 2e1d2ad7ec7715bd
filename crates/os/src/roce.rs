//! RoCEv2 over UDP port 4791.
//!
//! The ICRC covers the IPv4 identification. An unconnected socket with DF set sends identification 0, and
//! segment k of a message that is cut apart gets k; each frame's ICRC is computed with its own. The source
//! port is 4791 for all frames, since the socket is one: routers that choose among paths by it see one flow
//! per pair of addresses (a deviation from IBTA A17.9.1's advice).

use crate::batch::{Batch, Tally, Way};
use crate::framing::Datagram;
use crate::inbox::Inbox;
use crate::socket::{HOP_LIMIT, Run, Socket};
use crate::steer::Mark;
use adverb_wire::{Duration, Flow, Gid, ICRC_LEN, Icrc, Instant, Packet, ROCE_UDP_PORT};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

/// A frame of the largest path MTU, headers and ICRC included, fits.
const FRAME_MAX: usize = 4096 + 256;
/// The socket counts as in use, and is asked at every poll, for this long after its last frame.
const IN_USE: Duration = Duration::from_ms(100);

/// Where the upper byte of the destination's number stands in a frame.
const OWNER_AT: usize = 5;

/// The sockets of one address, and frames on their way to them.
pub struct RoceSockets {
    socket: Socket,
    groups: Vec<Group>,
    own: Gid,
    interface_index: u32,
    batch: Batch,
    inbox: Inbox,
    last_used: Option<Instant>,
    /// Upper byte of the last staged frame's destination: the kernel gives a message as a whole to whom its
    /// first frame is for.
    owner: u8,
}

/// A multicast group's socket.
struct Group {
    gid: Gid,
    socket: Socket,
    /// Joins that were not taken back.
    joins: usize,
}

/// What has arrived at once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Received {
    /// Messages, of one frame or of several that the kernel put together.
    pub messages: u64,
    /// Frames in them.
    pub frames: u64,
    /// Bytes of these, from the BTH on.
    pub bytes: u64,
    /// Errors that the kernel reported, such as a peer's port that was closed.
    pub errors: u64,
}

impl RoceSockets {
    /// Binds port 4791, which other processes of this user may hold too unless `alone` says that none does:
    /// sharing it with strangers would lose their frames and ours.
    pub fn bind(address: IpAddr, interface_index: u32, alone: bool) -> io::Result<RoceSockets> {
        let socket = Socket::bind(address, alone)?;
        // Without multicast, unicast still works: joining a group will say what is wrong.
        let _ = socket.multicast_from(interface_index);
        Ok(RoceSockets {
            socket,
            groups: Vec::new(),
            own: Gid::from(address),
            interface_index,
            batch: Batch::new(),
            inbox: Inbox::gradual(),
            last_used: None,
            owner: 0,
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

    /// Receives a multicast group from now on. Each call wants a [`leave`](Self::leave). The descriptor is
    /// that of a socket that was opened for it.
    pub fn join(&mut self, gid: Gid) -> io::Result<Option<RawFd>> {
        if let Some(group) = self.groups.iter_mut().find(|group| group.gid == gid) {
            group.joins += 1;
            return Ok(None);
        }
        let socket = Socket::bind_group(gid.ip(), self.own.ip(), self.interface_index)?;
        let fd = socket.fd();
        self.groups.push(Group { gid, socket, joins: 1 });
        Ok(Some(fd))
    }

    /// Takes one join back; after the last, the group is not received any longer. `closing` is called before
    /// its socket is closed.
    pub fn leave(&mut self, gid: Gid, closing: impl Fn(RawFd)) {
        self.groups.retain_mut(|group| {
            if group.gid == gid {
                group.joins -= 1;
                if group.joins == 0 {
                    closing(group.socket.fd());
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

    /// Stages a packet, whose payload `write` puts where it is told. False, and nothing staged, when it is
    /// longer than any path MTU allows.
    #[inline]
    pub fn stage_packet(&mut self, now: Instant, packet: &Packet, write: impl FnOnce(&mut [u8])) -> bool {
        let len = packet.wire_len();
        if len > FRAME_MAX {
            return false;
        }
        let flow = Flow { src_port: ROCE_UDP_PORT, ..packet.flow };
        self.begin_for((packet.bth.dest_qp.get() >> 16) as u8);
        let (id, frame) = self.batch.stage(&way(&flow), len);
        let header_len = packet.emit_bth(frame);
        let (covered, icrc) = frame.split_at_mut(len - ICRC_LEN);
        let (data, pad) = covered[header_len..].split_at_mut(packet.payload_len as usize);
        write(data);
        pad.fill(0);
        let sum = Icrc::over_flow(&flow, id, len, covered).finish();
        icrc.copy_from_slice(&sum.to_le_bytes());
        self.last_used = Some(now);
        true
    }

    /// Stages a complete frame, without its IP and UDP headers (`flow` says what they said). If `is_sound`,
    /// its ICRC is right for identification 0, and is changed to that of its place in a message; else the
    /// frame leaves as it is, in a message of its own.
    pub fn stage_bytes(&mut self, now: Instant, flow: &Flow, bytes: &[u8], is_sound: bool) -> bool {
        let len = bytes.len();
        if len > FRAME_MAX {
            return false;
        }
        self.last_used = Some(now);
        let flow = Flow { src_port: ROCE_UDP_PORT, ..*flow };
        let covered = match bytes.split_last_chunk::<ICRC_LEN>() {
            Some((covered, _)) if is_sound && covered.len() > OWNER_AT => covered,
            _ => {
                self.batch.stage_alone(&way(&flow), len).copy_from_slice(bytes);
                return true;
            }
        };
        self.begin_for(covered[OWNER_AT]);
        let (id, frame) = self.batch.stage(&way(&flow), len);
        frame.copy_from_slice(bytes);
        if id != 0 {
            let sum = Icrc::over_flow(&flow, id, len, covered).finish();
            frame[len - ICRC_LEN..].copy_from_slice(&sum.to_le_bytes());
        }
        true
    }

    /// What follows is for this upper byte of a queue pair number: another than before begins a message.
    #[inline]
    fn begin_for(&mut self, owner: u8) {
        if owner != self.owner {
            self.owner = owner;
            self.batch.end_run();
        }
    }

    /// Gives staged frames to the kernel. False while it takes no more: they stay staged.
    pub fn flush(&mut self, tally: &mut Tally) -> bool {
        let own = self.own;
        // A frame that leaves alone has another identification than in a message.
        self.batch.flush(&self.socket, tally, |way, frame| {
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
        })
    }

    /// Forgets the staged frames that the kernel has not taken; how many these were.
    pub fn give_up(&mut self) -> u64 {
        self.batch.give_up()
    }

    /// Sends marks to itself, each from a port that it had not before: where one of no index goes, a hash of
    /// the port decides.
    pub fn send_marks(&self, marks: impl Iterator<Item = Mark>) -> io::Result<()> {
        let to = SocketAddr::new(self.own.ip(), ROCE_UDP_PORT);
        let sender = Socket::sender(self.own.ip())?;
        for mark in marks {
            let bytes = mark.emit();
            let len = bytes.len();
            let run =
                Run { to, start: 0, len, segment: len, frames: 1, traffic_class: 0, hop_limit: HOP_LIMIT };
            if let (0, Some(error)) = sender.send(&[run], &bytes) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Has the kernel steer datagrams among the processes of the address; see [`Socket::steer`].
    pub fn steer(&self, owners: &[(u8, u8)], listeners: &[(u32, u8)], other: u8) -> io::Result<()> {
        self.socket.steer(owners, listeners, other)
    }

    /// The next call takes a whole batch; else a call takes few messages, and more when there were as many.
    pub fn ask_for_all(&mut self) {
        self.inbox.ask_for_all();
    }

    /// Takes what has arrived, at most one batch per socket. Marks that come from the own address are no
    /// frames; `on_mark` gets them.
    pub fn receive(
        &mut self,
        now: Instant,
        mut each: impl FnMut(Datagram<'_>),
        mut on_mark: impl FnMut(Mark),
    ) -> Received {
        let RoceSockets { socket, groups, own, inbox, last_used, .. } = self;
        let own = (*own, &*socket);
        let mut total = Received::default();
        let groups = groups.iter().map(|group| (group.gid, &group.socket));
        for (dst, socket) in std::iter::once(own).chain(groups) {
            match socket.receive(inbox) {
                Ok(0) => continue,
                Ok(count) => total.messages += count as u64,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => {
                    total.errors += 1;
                    continue;
                }
            }
            for message in inbox.messages() {
                let flow = Flow {
                    src: Gid::from(message.from.ip()),
                    dst,
                    src_port: message.from.port(),
                    traffic_class: message.traffic_class,
                    hop_limit: HOP_LIMIT,
                };
                let mut behind = message.bytes;
                for (number, bytes) in (0u32..).zip(message.bytes.chunks(message.segment.max(1))) {
                    behind = &behind[bytes.len()..];
                    if let Some(mark) = Mark::parse(bytes).filter(|_| flow.src == own.0) {
                        on_mark(mark);
                        continue;
                    }
                    *last_used = Some(now);
                    total.frames += 1;
                    total.bytes += bytes.len() as u64;
                    each(Datagram { flow, bytes, likely_id: number as u16, behind });
                }
            }
        }
        total
    }
}

#[inline]
fn way(flow: &Flow) -> Way {
    let to = SocketAddr::new(flow.dst.ip(), ROCE_UDP_PORT);
    Way { to, traffic_class: flow.traffic_class, hop_limit: flow.hop_limit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::{Bth, Opcode, Operation, Psn, Service, verify_udp};

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 43, last])
    }

    /// What reaches a socket until `count` frames have come.
    fn heard(sockets: &mut RoceSockets, count: u64) -> Vec<(Flow, Vec<u8>)> {
        let (mut all, mut frames) = (Vec::new(), 0);
        while frames < count {
            assert!(crate::sys::wait_readable(sockets.fd(), std::time::Duration::from_secs(5)));
            let mut take = |d: Datagram<'_>| {
                // Of sound frames the identification is the likely one, so that nobody has to look for it.
                assert!(verify_udp(&d.flow, d.bytes).is_none_or(|id| id == d.likely_id));
                all.push((d.flow, d.bytes.to_vec()));
            };
            let received = sockets.receive(Instant::ZERO, &mut take, |_| {});
            frames += received.frames;
        }
        all
    }

    #[test]
    fn frames_arrive_with_icrcs_of_their_own() {
        let [from, to] = [1, 2].map(address);
        let mut a = RoceSockets::bind(from, 1, true).unwrap();
        let mut b = RoceSockets::bind(to, 1, true).unwrap();
        assert!(!a.in_use(Instant::ZERO));
        let flow = Flow { src: Gid::from(from), dst: Gid::from(to), traffic_class: 2, ..Flow::default() };
        let packet = |psn| Packet {
            flow,
            bth: Bth {
                opcode: Opcode::new(Service::Rc, Operation::SendMiddle),
                psn: Psn::new(psn),
                ..Bth::default()
            },
            payload_len: 256,
            ..Packet::default()
        };
        for psn in 0..5 {
            assert!(a.stage_packet(Instant::ZERO, &packet(psn), |at| at.fill(psn as u8)));
        }
        assert!(
            !a.stage_packet(Instant::ZERO, &Packet { payload_len: 5000, ..packet(9) }, |_| panic!("unasked"))
        );
        let mut tally = Tally::default();
        assert!(a.has_staged() && a.flush(&mut tally) && !a.has_staged());
        assert_eq!((tally.frames, tally.failed, tally.unreachable), (5, 0, 0));
        assert!(a.in_use(Instant::ZERO) && !a.in_use(Instant::ZERO + IN_USE));
        for (psn, (flow, bytes)) in heard(&mut b, 5).iter().enumerate() {
            assert_eq!((flow.src.ip(), flow.dst.ip(), flow.traffic_class), (from, to, 2));
            assert!(verify_udp(flow, bytes).is_some(), "frame {psn}");
            let parsed = Packet::parse_bth(*flow, bytes).unwrap();
            assert_eq!(parsed.packet.bth.psn, Psn::new(psn as u32));
            assert!(bytes[parsed.payload].iter().all(|&byte| byte == psn as u8));
        }
    }

    #[test]
    fn whole_frames_leave_in_messages_too_but_for_damaged_ones() {
        let [from, to] = [4, 5].map(address);
        let mut a = RoceSockets::bind(from, 1, true).unwrap();
        let mut b = RoceSockets::bind(to, 1, true).unwrap();
        let flow = Flow { src: Gid::from(from), dst: Gid::from(to), ..Flow::default() };
        // Two for one process, one that was damaged, two more, and one for another process.
        let frames: Vec<Vec<u8>> = (0u8..6)
            .map(|i| {
                let mut bytes = vec![i; 64];
                bytes[OWNER_AT] = 1 + i / 5;
                let flow = Flow { src_port: ROCE_UDP_PORT, ..flow };
                let sum = Icrc::over_flow(&flow, 0, 64 + ICRC_LEN, &bytes).finish();
                bytes.extend_from_slice(&sum.to_le_bytes());
                bytes[20] ^= u8::from(i == 2);
                bytes
            })
            .collect();
        for (i, bytes) in frames.iter().enumerate() {
            assert!(a.stage_bytes(Instant::ZERO, &flow, bytes, i != 2));
        }
        assert!(a.stage_bytes(Instant::ZERO, &flow, &[1, 2, 3], true), "what is no frame leaves as it is");
        assert!(!a.stage_bytes(Instant::ZERO, &flow, &[0; FRAME_MAX + 1], true));
        let mut tally = Tally::default();
        assert!(a.flush(&mut tally));
        assert_eq!((tally.messages, tally.frames), (5, 7));
        let came = heard(&mut b, 7);
        for (i, (sent, (flow, bytes))) in frames.iter().zip(&came).enumerate() {
            assert_eq!(sent[..64], bytes[..64], "frame {i}");
            assert_eq!(verify_udp(flow, bytes).is_some(), i != 2, "frame {i}");
        }
        assert_eq!(came[2].1, frames[2]);
        assert_eq!(came[6].1, [1, 2, 3]);
    }

    #[test]
    fn a_group_is_left_after_its_last_join() {
        let group = Gid::from("239.43.0.1".parse::<IpAddr>().unwrap());
        let mut sockets = RoceSockets::bind(address(3), 1, true).unwrap();
        let fd = sockets.join(group).unwrap().expect("a socket was opened");
        assert_eq!(sockets.join(group).unwrap(), None);
        assert_eq!(sockets.group_fds().collect::<Vec<_>>(), [fd]);
        sockets.leave(group, |_| panic!("it was joined twice"));
        let closed = std::cell::Cell::new(0);
        sockets.leave(group, |fd| closed.set(fd));
        assert_eq!((closed.get(), sockets.group_fds().count()), (fd, 0));
    }
}
