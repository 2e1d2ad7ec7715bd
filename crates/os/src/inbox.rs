//! Where messages lie that the kernel has brought, and how they are taken from it.
#![allow(unsafe_code)]

use crate::batch::{LINE, before_line};
use crate::socket::{BATCH, Call, Control, Socket, decode, no_message};
use crate::sys::wait_readable;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes of one received message, at most: what UDP can carry, coalesced segments included.
const MESSAGE_MAX: usize = 1 << 16;
/// Bytes taken in one call, about, by what the last one brought: what the kernel has copied is read while the
/// nearest caches hold it.
const WARM: usize = 2 * MESSAGE_MAX;
/// Messages of one frame each, one at a time, after which the kernel is told to put none together any more.
const CALM: u32 = 64;

/// One received message: frames of `segment` bytes each, the last one possibly shorter.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Where it came from.
    pub from: SocketAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Bytes of one frame.
    pub segment: usize,
    /// Bytes of all frames.
    pub bytes: &'a [u8],
}

/// Reads the segment size and the traffic class of a received message.
fn read_controls(header: &libc::msghdr) -> (Option<usize>, u8) {
    let (mut segment, mut class) = (None, 0);
    // SAFETY: the kernel filled the control buffer, which lives as long as the header's borrow; the
    // CMSG functions stay inside it, and each value has the size its type has.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            let data = libc::CMSG_DATA(at);
            match ((*at).cmsg_level, (*at).cmsg_type) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    let size = data.cast::<libc::c_int>().read_unaligned();
                    segment = usize::try_from(size).ok().filter(|&s| s > 0);
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => class = data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    (segment, class)
}

#[derive(Clone, Copy, Debug, Default)]
struct Size {
    len: usize,
    segment: usize,
    traffic_class: u8,
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

/// Where received messages lie.
pub struct Inbox {
    buffer: Box<[u8]>,
    /// Where the first message begins.
    origin: usize,
    names: [libc::sockaddr_storage; BATCH],
    sizes: [Size; BATCH],
    count: usize,
    /// How many messages to ask for next, and at most, as they are long.
    ask: usize,
    ask_max: usize,
    /// It asks for a single message, and for more as long as there are as many as it asks for.
    stepwise: bool,
    /// It has the kernel put frames together only while they come in company.
    lone: bool,
    /// Messages of one frame that came alone, in a row; [`CALM`] from when on the kernel puts none together.
    alone: u32,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> Inbox {
        Inbox {
            buffer: vec![0; BATCH * MESSAGE_MAX + LINE].into_boxed_slice(),
            origin: 0,
            // SAFETY: all zeroes is a valid `sockaddr_storage`.
            names: unsafe { zeroed() },
            sizes: [Size::default(); BATCH],
            count: 0,
            ask: BATCH,
            ask_max: BATCH,
            stepwise: false,
            lone: false,
            alone: 0,
        }
    }

    /// One that asks for a single message, and for more as long as there are as many as it asks for: to look
    /// for another in vain holds up the one that is there. For who comes back at once; who does something
    /// else between two looks [takes what there is](Inbox::ask_for_all).
    pub fn gradual() -> Inbox {
        Inbox { ask: 1, stepwise: true, ..Inbox::new() }
    }

    /// The next call takes what there is.
    pub fn ask_for_all(&mut self) {
        self.ask = BATCH;
    }

    /// A gradual one, for short messages that are answered one by one.
    ///
    /// While messages come one by one, the kernel does not put frames together (UDP_GRO), so that it need not
    /// say how long they are: a shorter call. Traffic classes are not told. The inbox is for one socket. What
    /// follows the first `header_len` bytes of a message begins a cache line.
    pub fn stepwise(header_len: usize) -> Inbox {
        let mut inbox = Inbox { lone: true, ..Inbox::gradual() };
        inbox.origin = before_line(&inbox.buffer, header_len);
        inbox
    }

    /// What the last call took, to be changed in place.
    pub fn for_each_mut(&mut self, mut each: impl FnMut(SocketAddr, usize, &mut [u8])) {
        for (i, size) in self.sizes.iter().enumerate().take(self.count) {
            let start = self.origin + i * MESSAGE_MAX;
            let bytes = self.buffer.get_mut(start..start + size.len);
            if let (Some(from), Some(bytes)) = (decode(&self.names[i]), bytes) {
                each(from, size.segment, bytes);
            }
        }
    }

    /// What the last call took.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        (0..self.count).filter_map(|i| {
            let size = self.sizes[i];
            let start = self.origin + i * MESSAGE_MAX;
            Some(Message {
                from: decode(&self.names[i])?,
                traffic_class: size.traffic_class,
                segment: size.segment,
                bytes: self.buffer.get(start..start + size.len)?,
            })
        })
    }
}

impl Socket {
    /// Takes messages that have arrived, as many as the inbox asks for at most; returns how many.
    pub fn receive(&self, inbox: &mut Inbox) -> io::Result<usize> {
        if !inbox.stepwise {
            return self.receive_many(inbox);
        }
        let ask = inbox.ask.min(inbox.ask_max);
        let count = if inbox.lone && ask == 1 && inbox.alone == CALM {
            self.receive_one(inbox)?
        } else {
            let received = self.receive_many(inbox);
            inbox.ask = 1;
            let count = received?;
            let first = inbox.sizes[0];
            if inbox.lone {
                self.note_company(inbox, ask == 1 && first.segment == first.len);
            }
            count
        };
        inbox.ask = if count == ask { (2 * ask).min(BATCH) } else { count.max(1) };
        Ok(count)
    }

    /// Has the kernel put frames together, or not any more, as it is worth it by what has just come.
    fn note_company(&self, inbox: &mut Inbox, alone: bool) {
        let gather = |on: bool| self.set(libc::SOL_UDP, libc::UDP_GRO, on.into());
        let together = inbox.alone < CALM;
        inbox.alone = if alone { (inbox.alone + 1).min(CALM) } else { 0 };
        match (together, inbox.alone < CALM) {
            // A kernel that never does it, and that nobody needs to tell.
            (true, false) if gather(false).is_err() => inbox.alone = 0,
            // What it put together before waits to be read, and without the option it does not say how long
            // the frames in it are.
            (true, false) if wait_readable(self.fd(), Duration::ZERO) => {
                inbox.alone = 0;
                let _ = gather(true);
            }
            (false, true) => drop(gather(true)),
            _ => {}
        }
    }

    fn receive_many(&self, inbox: &mut Inbox) -> io::Result<usize> {
        let ask = inbox.ask.min(inbox.ask_max);
        inbox.count = 0;
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
        let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; BATCH];
        for i in 0..ask {
            let start = inbox.origin + i * MESSAGE_MAX;
            let piece = inbox.buffer[start..start + MESSAGE_MAX].as_mut_ptr();
            let header = &mut headers[i].write(no_message()).msg_hdr;
            header.msg_name = (&raw mut inbox.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = pieces[i].write(libc::iovec { iov_base: piece.cast(), iov_len: MESSAGE_MAX });
            header.msg_iovlen = 1;
            header.msg_control = controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>() as _;
        }
        // SAFETY: the first `ask` headers are written, and point to buffers that outlive the call and are as
        // long as they say.
        let count = unsafe { self.call(Call::Receive, &mut headers[..ask])? };
        for (i, header) in headers.iter().take(count).enumerate() {
            // SAFETY: written above, and then by the kernel.
            let header = unsafe { header.assume_init_ref() };
            let len = header.msg_len as usize;
            let (segment, traffic_class) = read_controls(&header.msg_hdr);
            inbox.sizes[i] = Size { len, segment: segment.unwrap_or(len), traffic_class };
        }
        inbox.count = count;
        let len: usize = inbox.sizes[..count].iter().map(|size| size.len).sum();
        inbox.ask_max = if len > WARM / BATCH * count { (WARM * count / len).max(1) } else { BATCH };
        Ok(count)
    }

    /// Takes a message of one frame. There is no header for the kernel to copy in and out.
    fn receive_one(&self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.count = 0;
        let start = inbox.buffer[inbox.origin..inbox.origin + MESSAGE_MAX].as_mut_ptr();
        let mut name_len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        let (fd, name, flags) = (self.fd(), &raw mut inbox.names[0], libc::MSG_DONTWAIT);
        // SAFETY: buffer and name are writable, as long as the call is told, and outlive it.
        let len = unsafe {
            libc::syscall(libc::SYS_recvfrom, fd, start, MESSAGE_MAX, flags, name, &raw mut name_len)
        };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        inbox.sizes[0] = Size { len, segment: len, traffic_class: 0 };
        inbox.count = 1;
        Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, Tally, Way};
    use std::net::IpAddr;

    fn address(last: u8) -> SocketAddr {
        let [.., high, low] = std::process::id().to_be_bytes();
        SocketAddr::from((IpAddr::from([127, 192 + high % 32, low, last]), 4999))
    }

    #[test]
    fn one_after_the_other_or_many_at_once_they_come_as_they_were_sent() {
        let [from, to] = [1, 2].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let (mut batch, mut inbox) = (Batch::new(), Inbox::stepwise(0));
        let mut send = |lengths: &[u8]| {
            for &len in lengths {
                batch.stage(&Way::plain(to), len as usize).1.fill(len);
            }
            assert!(batch.flush(&a, &mut Tally::default(), |_, _| {}));
        };
        let mut take = || {
            assert!(wait_readable(b.fd(), Duration::from_secs(5)));
            let mut calls = Vec::new();
            while let Ok(1..) = b.receive(&mut inbox) {
                let mut frames = Vec::new();
                inbox.for_each_mut(|whom, segment, bytes| {
                    assert_eq!(whom, from);
                    frames.extend(bytes.chunks(segment).map(|frame| (frame.len(), frame[0] as usize)));
                });
                calls.push(frames);
            }
            calls
        };
        // Frames that were sent together come so, before, between and after those that come one by one: after
        // these the kernel is told, and the shorter call is taken.
        for times in [0, 1, CALM - 1, CALM, CALM + 1, 2 * CALM] {
            for _ in 0..times {
                send(&[9]);
                assert_eq!(take(), [[(9, 9)]]);
            }
            let lengths = [20, 20, 5, 30, 30, 30, 30];
            for _ in 0..2 {
                send(&lengths);
                let came: Vec<_> = take().concat();
                assert_eq!(came, lengths.map(|len| (len as usize, len as usize)), "after {times}");
            }
            // The first two messages, of three and four frames, in one call each: it is told to put them
            // together again.
            send(&lengths);
            assert_eq!(take().iter().map(Vec::len).collect::<Vec<_>>(), [3, 4], "after {times}");
        }
        // Those that lie behind the last one by which the kernel would be told.
        for times in [CALM - 2, CALM - 1, CALM, CALM + 1] {
            for _ in 0..times {
                send(&[9]);
                assert_eq!(take(), [[(9, 9)]]);
            }
            send(&[9]);
            send(&[20, 20, 5]);
            assert_eq!(take().concat(), [(9, 9), (20, 20), (20, 20), (5, 5)], "behind {times}");
        }
        // It asks for more the more there are, and begins again with one.
        send(&[40, 50, 60, 70, 80]);
        assert_eq!(take().iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 2]);
        assert_eq!(inbox.ask, 1);
    }

    #[test]
    fn of_long_messages_few_are_taken_in_one_call() {
        let [from, to] = [3, 4].map(address);
        let [a, b] = [from, to].map(|at| Socket::bind_alone(at).unwrap());
        let (mut batch, mut inbox) = (Batch::new(), Inbox::new());
        let mut take = |count: usize, len: usize| {
            for _ in 0..count {
                batch.stage_alone(&Way::plain(to), len);
                assert!(batch.flush(&a, &mut Tally::default(), |_, _| {}));
            }
            assert!(wait_readable(b.fd(), Duration::from_secs(5)));
            let calls: Vec<usize> = std::iter::from_fn(|| b.receive(&mut inbox).ok()).collect();
            assert_eq!(calls.iter().sum::<usize>(), count);
            calls
        };
        assert_eq!(take(2, 60_000), [2]);
        assert_eq!(take(3, 60_000), [2, 1]);
        assert_eq!(take(6, 30_000), [2, 4]);
        assert_eq!(take(20, 100), [4, 16]);
    }
}
