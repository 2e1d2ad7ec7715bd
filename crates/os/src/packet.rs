//! Ethernet frames of an interface (packet(7)), with what the kernel says of a frame that it has not
//! finished: a checksum that the card would have filled in, segments that it would have cut apart.
#![allow(unsafe_code)]

use crate::check;
use crate::sys::{Buffer, ask_for_buffer};
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Frames given to or taken from the kernel in one call.
pub const BATCH: usize = 16;
/// Bytes of a frame at most: an interface's MTU of 9000, and more.
pub const FRAME_MAX: usize = 9728;
/// Bytes that the kernel is asked to keep in each direction.
const BUFFER: usize = 8 << 20;
/// Of `linux/if_packet.h`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// What the kernel says of a frame (`struct virtio_net_hdr`).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct About {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;

const NOWHERE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// What is left to do to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfinished {
    /// Nothing.
    No,
    /// A checksum over all from `start` on, to be put `offset` bytes behind that, where the sum of the pseudo
    /// header stands.
    Checksum {
        /// Where what is summed up begins.
        start: usize,
        /// Where the sum goes, from there.
        offset: usize,
    },
    /// It is several frames in one, or was too long for its place here.
    Several,
}

/// A socket that sees what an interface receives, and sends what it should.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// Room for a batch.
pub struct Frames {
    bytes: Box<[u8]>,
    abouts: [About; BATCH],
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { bytes: vec![0; BATCH * FRAME_MAX].into_boxed_slice(), abouts: [About::default(); BATCH] }
    }
}

impl PacketSocket {
    /// Opens an interface, whatever hardware address frames are for. Needs CAP_NET_RAW over the network
    /// namespace. What the host itself sends by the interface is not seen.
    pub fn open(interface: &str) -> io::Result<PacketSocket> {
        let name = CString::new(interface)?;
        // SAFETY: the name ends with a zero.
        let index = match unsafe { libc::if_nametoindex(name.as_ptr()) } {
            0 => return Err(io::Error::last_os_error()),
            index => index,
        };
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Of no protocol until it is bound, so that nothing comes of other interfaces.
        // SAFETY: plain values; the descriptor returned is ours.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?) };
        let socket = PacketSocket(fd);
        socket.set(libc::PACKET_VNET_HDR, &1i32)?;
        socket.set(PACKET_IGNORE_OUTGOING, &1i32)?;
        let all = libc::packet_mreq {
            mr_ifindex: index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        socket.set(libc::PACKET_ADD_MEMBERSHIP, &all)?;
        ask_for_buffer(socket.0.as_fd(), Buffer::Receive, BUFFER)?;
        ask_for_buffer(socket.0.as_fd(), Buffer::Send, BUFFER)?;
        // SAFETY: all zeroes is a valid `sockaddr_ll`.
        let mut place: libc::sockaddr_ll = unsafe { zeroed() };
        place.sll_family = libc::AF_PACKET as libc::c_ushort;
        place.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        place.sll_ifindex = index as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address lives here and has that length.
        check(unsafe { libc::bind(socket.fd(), (&raw const place).cast(), len) })?;
        Ok(socket)
    }

    fn set<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        let (place, size) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
        // SAFETY: the value is plain data of that size, which the kernel copies.
        check(unsafe { libc::setsockopt(self.fd(), libc::SOL_PACKET, option, place, size) }).map(drop)
    }

    /// The descriptor, to wait on.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Takes frames that have come, as many as fit into a batch; returns how many. An error says that there
    /// are none, or why.
    pub fn receive(
        &self,
        room: &mut Frames,
        mut each: impl FnMut(&mut [u8], Unfinished),
    ) -> io::Result<usize> {
        // SAFETY: all zeroes is a valid header.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        let mut places = [[NOWHERE; 2]; BATCH];
        let slots = room.bytes.chunks_exact_mut(FRAME_MAX).zip(&mut room.abouts);
        for ((header, place), (bytes, about)) in headers.iter_mut().zip(&mut places).zip(slots) {
            let about = std::ptr::from_mut(about).cast();
            place[0] = libc::iovec { iov_base: about, iov_len: size_of::<About>() };
            place[1] = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: FRAME_MAX };
            header.msg_hdr.msg_iov = place.as_mut_ptr();
            header.msg_hdr.msg_iovlen = 2;
        }
        // SAFETY: each header points to two places that live here and have the lengths given; no names and no
        // control messages are asked for.
        let got = check(unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            libc::recvmmsg(
                self.fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                flags as _,
                std::ptr::null_mut(),
            )
        })? as usize;
        let slots = room.bytes.chunks_exact_mut(FRAME_MAX).zip(&room.abouts);
        for (header, (bytes, about)) in headers.iter().zip(slots).take(got) {
            let len = (header.msg_len as usize).saturating_sub(size_of::<About>());
            let unfinished = match about {
                _ if len > FRAME_MAX || about.gso_type != 0 => Unfinished::Several,
                _ if about.flags & NEEDS_CHECKSUM != 0 => Unfinished::Checksum {
                    start: about.checksum_start.into(),
                    offset: about.checksum_offset.into(),
                },
                _ => Unfinished::No,
            };
            each(&mut bytes[..len.min(FRAME_MAX)], unfinished);
        }
        Ok(got)
    }

    /// Sends frames in their order; returns how many the kernel took, at most a batch.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        let none = About::default();
        // SAFETY: all zeroes is a valid header.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
        let mut places = [[NOWHERE; 2]; BATCH];
        let mut count = 0;
        for ((header, place), frame) in headers.iter_mut().zip(&mut places).zip(frames) {
            let about = (&raw const none).cast_mut().cast();
            place[0] = libc::iovec { iov_base: about, iov_len: size_of::<About>() };
            place[1] = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            header.msg_hdr.msg_iov = place.as_mut_ptr();
            header.msg_hdr.msg_iovlen = 2;
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point to places that live here; the kernel only reads them.
        check(unsafe { libc::sendmmsg(self.fd(), headers.as_mut_ptr(), count, flags as _) })
            .map(|sent| sent as usize)
    }
}

/// Whether an error says that the kernel has no room now, or nothing to give.
pub fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether an error says that a frame is longer than the interface takes.
pub fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMSGSIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EtherType for experiments of one's own (IEEE 802, 9.2.4).
    const OWN: [u8; 2] = [0x88, 0xb5];

    #[test]
    fn frames_of_the_loopback_come_back() {
        use std::io::Write as _;
        let socket = match PacketSocket::open("lo") {
            Ok(socket) => socket,
            Err(e) => {
                // Not captured, so that the suite counts it.
                let line =
                    format!("SKIPPED: frames of the loopback: no packet socket can be opened here: {e}\n");
                return io::stdout().write_all(line.as_bytes()).unwrap();
            }
        };
        let frame = |n: u8, len: usize| {
            let mut frame = [&[0; 12][..], &OWN, &std::process::id().to_le_bytes(), &[n]].concat();
            frame.resize(len, n);
            frame
        };
        let sent: Vec<Vec<u8>> = (0..20).map(|n| frame(n, 60 + 100 * usize::from(n))).collect();
        let mut at = 0;
        while at < sent.len() {
            at += socket.send(sent[at..].iter().map(Vec::as_slice)).unwrap();
        }
        let mut frames = Frames::default();
        let mut got: Vec<Vec<u8>> = Vec::new();
        while got.len() < sent.len() {
            let ready = crate::sys::wait_readable(socket.fd(), std::time::Duration::from_secs(20));
            assert!(ready, "{} of {} frames came", got.len(), sent.len());
            // What others say on the loopback is here too.
            let taken = socket.receive(&mut frames, |frame, unfinished| {
                if frame[12..18] == sent[0][12..18] {
                    assert_eq!(unfinished, Unfinished::No);
                    got.push(frame.to_vec());
                }
            });
            assert!(taken.as_ref().is_ok_and(|n| *n > 0) || is_full(&taken.unwrap_err()));
        }
        assert_eq!(got, sent);
    }

    #[test]
    fn an_interface_that_is_not_there_is_an_error() {
        for name in ["no-such-interface", "zero\0inside"] {
            assert!(PacketSocket::open(name).is_err(), "{name}");
        }
    }
}
