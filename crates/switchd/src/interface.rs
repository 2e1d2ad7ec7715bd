//! The cable to an interface: frames by a packet socket. The kernel may hand over frames that it has not
//! finished, for a card to do the rest: a checksum is put in here; what a card would cut apart is dropped and
//! counted, since a frame has to be one of the wire.

use adverb_os::packet::{Frames, PacketSocket, Unfinished, is_full, is_too_long};
use adverb_os::via::QUEUE_MAX;
use adverb_wire::ip::checksum_bytes;
use std::collections::VecDeque;
use std::io;
use std::io::ErrorKind;
use std::os::fd::RawFd;

/// Batches that are taken before others have their turn.
const TURN: usize = 16;

/// The interface.
pub struct Interface {
    name: String,
    socket: Option<PacketSocket>,
    frames: Box<Frames>,
    outbox: VecDeque<Vec<u8>>,
    depth: usize,
    /// Frames that were several in one.
    pub unsegmented: u64,
}

impl Interface {
    /// Opens the interface of a name.
    pub fn open(name: &str) -> io::Result<Interface> {
        Ok(Interface {
            name: name.to_owned(),
            socket: Some(PacketSocket::open(name)?),
            frames: Box::default(),
            outbox: VecDeque::new(),
            depth: 0,
            unsegmented: 0,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that wait for the kernel.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// To wait on, while the interface is there.
    pub fn fd(&self) -> Option<RawFd> {
        self.socket.as_ref().map(PacketSocket::fd)
    }

    /// Opens it again, if it is back.
    pub fn reopen(&mut self) {
        self.socket = PacketSocket::open(&self.name).ok();
    }

    /// Queues a frame. False, and nothing done, if too much waits already.
    pub fn add(&mut self, frame: Vec<u8>) -> bool {
        if self.depth + frame.len() > QUEUE_MAX {
            return false;
        }
        self.depth += frame.len();
        self.outbox.push_back(frame);
        true
    }

    /// Sends what waits, as far as the kernel takes it.
    pub fn flush(&mut self) {
        while let Some(socket) = self.socket.as_ref().filter(|_| !self.outbox.is_empty()) {
            let sent = match socket.send(self.outbox.iter().map(Vec::as_slice)) {
                Ok(sent) => sent,
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if is_full(&e) => return,
                // The first one is refused: longer than the interface takes. Others may do.
                Err(e) if is_too_long(&e) => 1,
                Err(_) => return self.unplug(),
            };
            for frame in self.outbox.drain(..sent) {
                self.depth -= frame.len();
            }
        }
    }

    /// Takes frames that have come.
    pub fn receive(&mut self, mut take: impl FnMut(&[u8])) {
        let Interface { socket, frames, unsegmented, .. } = self;
        for _ in 0..TURN {
            let Some(open) = socket.as_ref() else { return };
            let got = open.receive(frames, |frame, unfinished| match finish(frame, unfinished) {
                true => take(frame),
                false => *unsegmented += 1,
            });
            match got {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // A link that is down comes up again.
                Err(e) if is_full(&e) || e.kind() == ErrorKind::NetworkDown => return,
                Err(_) => return self.unplug(),
            }
        }
    }

    fn unplug(&mut self) {
        self.socket = None;
        self.outbox.clear();
        self.depth = 0;
    }
}

/// Does what is left to do to a frame. False if that cannot be done here.
fn finish(frame: &mut [u8], unfinished: Unfinished) -> bool {
    match unfinished {
        Unfinished::No => true,
        Unfinished::Several => false,
        Unfinished::Checksum { start, offset } => {
            let Some(summed) = frame.get_mut(start..) else { return false };
            // A zero would say that there is none, in UDP.
            let sum = match checksum_bytes(summed) {
                0 => u16::MAX,
                sum => sum,
            };
            match summed.get_mut(offset..offset + 2) {
                Some(place) => place.copy_from_slice(&sum.to_be_bytes()),
                None => return false,
            }
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_that_is_left_to_the_card_is_put_in() {
        // The sum of the pseudo header, 7, stands where the checksum goes.
        let mut frame = [1, 2, 0x12, 0x34, 0, 7, 9];
        assert!(finish(&mut frame, Unfinished::Checksum { start: 2, offset: 2 }));
        let all = [&[0, 7], &frame[2..]].concat();
        assert_eq!((checksum_bytes(&all), &frame[..4]), (0, &[1, 2, 0x12, 0x34][..]));
        for (start, offset) in [(8, 0), (2, 4), (usize::MAX - 1, 0)] {
            assert!(!finish(&mut frame, Unfinished::Checksum { start, offset }));
        }
        assert!(!finish(&mut frame, Unfinished::Several) && finish(&mut frame, Unfinished::No));
    }
}
