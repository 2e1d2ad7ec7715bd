//! Who gets a port: a process claims an address, and shares its port with others of its host.

use crate::line::Line;
use crate::members::{Members, Role};
use crate::process::{Behind, MULTICAST, Process, Seat, WELL_KNOWN, seat_of};
use adverb_os::capture::Capture;
use adverb_os::clock::realtime_ns;
use adverb_os::sys;
use adverb_os::via::{Hello, Message};
use adverb_switch::PortId;
use adverb_wire::{Gid, Instant};
use std::path::Path;

/// Turns that a process has before another may have its slot: more than its socket holds.
const TURNS_MAX: usize = 8;

impl Process {
    /// Gives a process its port, or says why not.
    pub(crate) fn greet(&mut self, now: Instant, at: usize, hello: &Hello) {
        let claimed = self.claim(now, at, hello);
        let decides = self.switch.decides_for(hello.address);
        let Some(peer) = &mut self.peers[at] else { return };
        match claimed {
            Ok(port) => {
                peer.role = Role::Member(port, hello.slot);
                peer.packer.add_message(&Message::Welcome { port: port.0, decides });
                // Whoever runs the switch: its first thread may have other things to do.
                let (pid, tid) = (std::process::id(), sys::thread_id());
                peer.packer.add_message(&Message::Thread { pid, tid });
            }
            Err(why) => {
                peer.role = Role::Leaving;
                peer.packer.add_message(&Message::Refused(&why));
            }
        }
    }

    fn claim(&mut self, now: Instant, at: usize, hello: &Hello) -> Result<PortId, String> {
        let address = hello.address.ip();
        if matches!(hello.slot, WELL_KNOWN | MULTICAST) {
            return Err(format!("{} is no process's slot", hello.slot));
        }
        self.notice_the_gone(now);
        let port = match self.switch.port_of(hello.address) {
            Some(port) => port,
            None => {
                let members = Behind::Members(Box::new(Members::new(hello)));
                let line = self.line_of(now, hello.address)?;
                self.open_seat(now, hello.address, members, &[hello.address], line)?
            }
        };
        let Some(seat) = seat_of(&mut self.seats, port) else { return Err("no port".to_owned()) };
        let members = match &mut seat.behind {
            Behind::Members(members) => members,
            Behind::Cable(cable) => {
                return Err(format!(
                    "port {} has the address {address} for what is at {}; choose another address",
                    port.0, cable.far
                ));
            }
        };
        if !members.are_of(hello) {
            return Err(format!(
                "port {} has the address {address} for processes of another host or folder; choose another \
                 address",
                port.0
            ));
        }
        if members.of_slot(hello.slot).is_some() {
            return Err(format!("a process with slot {} has the address {address} already", hello.slot));
        }
        members.add(hello.slot, at);
        Ok(port)
    }

    /// Takes what processes have left that ended a moment ago, and forgets them: another may want their slot.
    fn notice_the_gone(&mut self, now: Instant) {
        for at in 0..self.peers.len() {
            for _ in 0..TURNS_MAX {
                match &self.peers[at] {
                    Some(peer) if matches!(peer.role, Role::Member(..)) && !peer.is_gone => {}
                    _ => break,
                }
                if !self.peers[at]
                    .as_ref()
                    .is_some_and(|p| sys::wait_readable(p.link.fd(), Default::default()))
                {
                    break;
                }
                self.take(now, at);
            }
            if self.peers[at].as_ref().is_some_and(|peer| peer.is_gone) {
                self.forget(now, at);
            }
        }
    }

    /// What stands between an address's port and the switch, as the file has it: it opens the capture.
    pub(crate) fn line_of(&self, now: Instant, address: Gid) -> Result<Line, String> {
        let (faults, pcap) = self.config.line_of(address);
        let capture = pcap.map(|path| open_capture(now, path)).transpose()?;
        Ok(Line::new(&faults, capture, self.seed_of(address)))
    }

    /// Of faults that name none.
    pub(crate) fn seed_of(&self, address: Gid) -> u64 {
        address.0.iter().fold(self.seed, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(*byte)))
    }

    pub(crate) fn open_seat(
        &mut self,
        now: Instant,
        address: Gid,
        behind: Behind,
        claimed: &[Gid],
        line: Line,
    ) -> Result<PortId, String> {
        let port = self.switch.add_port().map_err(|e| e.to_string())?;
        let mut claims = claimed.iter().map(|address| self.switch.claim(port, *address));
        if let Some(e) = claims.find_map(Result::err) {
            // It was added just now.
            let _ = self.switch.remove_port(now, port);
            return Err(e.to_string());
        }
        let seat = Seat { address, behind, line, nobody: 0, full: 0, strange: 0 };
        let at = usize::from(port.0);
        if at >= self.seats.len() {
            self.seats.resize_with(at + 1, || None);
        }
        self.seats[at] = Some(seat);
        Ok(port)
    }
}

/// A capture that begins now.
#[expect(clippy::disallowed_methods, reason = "the edge")]
pub(crate) fn open_capture(now: Instant, path: &Path) -> Result<Capture, String> {
    let epoch = realtime_ns().saturating_sub(now.since(Instant::ZERO).as_ns());
    Capture::open(path, epoch).map_err(|e| format!("pcap {} of the switch: {e}", path.display()))
}
