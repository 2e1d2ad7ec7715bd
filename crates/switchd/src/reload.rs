//! Another file in the place of the one that a switch runs: programs that both have stay, where they are told
//! the same or can go on as what they are told, and so do ports. All that can fail is tried first; then all
//! changes, or nothing.

use crate::cable::Cable;
use crate::claims::open_capture;
use crate::config::{CableKind, Config};
use crate::control::Question;
use crate::line::Way;
use crate::members::Role;
use crate::process::{Behind, Process, seat_of};
use adverb_os::capture::Capture;
use adverb_os::faults::Faults;
use adverb_os::via::Message;
use adverb_switch::switch::PORTS_MAX;
use adverb_switch::{Next, PortId};
use adverb_wire::{Gid, Instant};
use serde_json::{Value, json};

/// A port with a cable that is to be.
struct NewCable {
    cable: Cable,
    hosts: Vec<Gid>,
    faults: Faults,
    capture: Option<Capture>,
}

/// A port that stays, and what is to change before it.
struct NewLine {
    port: PortId,
    address: Gid,
    faults: Option<Faults>,
    capture: Option<Option<Capture>>,
}

impl Process {
    /// Does what a question asks about ports, or about the file.
    pub(crate) fn rearrange(&mut self, now: Instant, question: &Question) -> Result<Value, String> {
        let next = match question {
            Question::Reload { file } => self.config.read_next(file.as_deref())?,
            Question::PortAdd { port } => self.config.with_port(port)?,
            Question::PortRemove { address } => self.config.without_port(*address)?,
            _ => return Err("that changes no port".to_owned()),
        };
        self.reload(now, next)
    }

    /// Becomes the switch of another file, or stays as it is and says why.
    fn reload(&mut self, now: Instant, next: Config) -> Result<Value, String> {
        let row = next.row_behind(&self.config)?;
        let gone = self.cables_gone(&next);
        let new = self.cables_new(now, &next, &gone)?;
        let lines = self.lines_changed(now, &next, &gone)?;
        let said = self.say(&next, &row, &gone, &new, &lines);
        // The row stays as it is where nothing of it changes, in a recording as well.
        let stays = (0..self.switch.programs().len()).map(Next::Kept);
        if !stays.eq(row.iter().cloned()) || next.trace != self.config.trace {
            self.switch.reload(now, next.text(), &row, next.trace).map_err(|e| e.to_string())?;
        }
        self.config = next;
        gone.iter().for_each(|port| self.close_seat(now, *port));
        for line in lines {
            self.change_line(now, line);
        }
        for NewCable { cable, hosts, faults, capture } in new {
            let Some(first) = hosts.first().copied() else { continue };
            let line = crate::line::Line::new(&faults, capture, self.seed_of(first));
            let opened = self.open_seat(now, first, Behind::Cable(Box::new(cable)), &hosts, line);
            assert!(opened.is_ok(), "the addresses are free: {opened:?}");
        }
        self.drain(now);
        self.keep_shifted();
        self.welcome_again();
        Ok(said)
    }

    /// Ports whose cable the next file does not have, or has with other addresses.
    fn cables_gone(&self, next: &Config) -> Vec<PortId> {
        let stays: Vec<_> = next.cables().collect();
        let old = self.config.cables().filter(|cable| !stays.contains(cable));
        old.filter_map(|(_, hosts)| self.switch.port_of(*hosts.first()?)).collect()
    }

    /// The cables that only the next file has, and what they need, opened.
    fn cables_new(&self, now: Instant, next: &Config, gone: &[PortId]) -> Result<Vec<NewCable>, String> {
        let there: Vec<(CableKind<'_>, Vec<Gid>)> = self.config.cables().collect();
        let mut new = Vec::new();
        for (kind, hosts) in next.cables().filter(|cable| !there.contains(cable)) {
            for host in &hosts {
                if let Some(port) = self.switch.port_of(*host).filter(|port| !gone.contains(port)) {
                    return Err(format!(
                        "port {} has the address {} already; end the processes there first",
                        port.0,
                        host.ip()
                    ));
                }
            }
            let Some(first) = hosts.first() else { continue };
            let (faults, pcap) = next.line_of(*first);
            let capture = pcap.map(|path| open_capture(now, path)).transpose()?;
            new.push(NewCable { cable: Cable::open(kind, &hosts)?, hosts, faults, capture });
        }
        if self.switch.ports().count() - gone.len() + new.len() > PORTS_MAX {
            return Err(format!("the switch has {PORTS_MAX} ports, and all are in use"));
        }
        Ok(new)
    }

    /// Ports that stay, and whose faults or capture are others in the next file.
    fn lines_changed(&self, now: Instant, next: &Config, gone: &[PortId]) -> Result<Vec<NewLine>, String> {
        let mut lines = Vec::new();
        let seats = self.seats.iter().enumerate().filter_map(|(at, seat)| Some((at, seat.as_ref()?)));
        for (at, seat) in seats {
            let (port, address) = (PortId(at as u16), seat.address);
            let ((was, pcap_was), (faults, pcap)) = (self.config.line_of(address), next.line_of(address));
            if gone.contains(&port) || (was == faults && pcap_was == pcap) {
                continue;
            }
            let capture = match pcap_was == pcap {
                true => None,
                false => Some(pcap.map(|path| open_capture(now, path)).transpose()?),
            };
            lines.push(NewLine { port, address, faults: (was != faults).then_some(faults), capture });
        }
        Ok(lines)
    }

    fn change_line(&mut self, now: Instant, line: NewLine) {
        let seed = self.seed_of(line.address);
        if let Some(faults) = &line.faults {
            // What the old faults hold back goes on now.
            for way in [Way::Rx, Way::Tx] {
                self.let_go(now, Instant::NEVER, usize::from(line.port.0), way);
            }
            seat_of(&mut self.seats, line.port)
                .into_iter()
                .for_each(|seat| seat.line.set_faults(faults, seed));
        }
        if let (Some(seat), Some(capture)) = (seat_of(&mut self.seats, line.port), line.capture) {
            seat.line.set_capture(now, capture);
        }
    }

    /// Tells processes anew whether their address's atomics are decided.
    fn welcome_again(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            if let Role::Member(port, _) = peer.role
                && let Some(Some(seat)) = self.seats.get(usize::from(port.0))
            {
                let decides = self.switch.decides_for(seat.address);
                peer.packer.add_message(&Message::Welcome { port: port.0, decides });
            }
        }
    }

    /// What is to change.
    fn say(
        &self,
        next: &Config,
        row: &[Next],
        gone: &[PortId],
        new: &[NewCable],
        lines: &[NewLine],
    ) -> Value {
        let old = self.switch.programs();
        let programs = row.iter().map(|next| match next {
            Next::Kept(at) => json!({ "kind": old[*at].name(), "is": "kept" }),
            Next::Changed(_, config) => json!({ "kind": config.name(), "is": "changed" }),
            Next::New(config) => json!({ "kind": config.name(), "is": "new" }),
        });
        let dropped = (0..old.len()).filter(|at| row.iter().all(|next| next.place() != Some(*at)));
        let gone = gone.iter().filter_map(|port| self.seats.get(usize::from(port.0))?.as_ref());
        let ip = |address: Gid| address.ip().to_string();
        let later = next.claims_behind(&self.config);
        let later = later.filter(|address| self.switch.port_of(Gid::from(*address)).is_none());
        json!({
            "programs": programs.collect::<Vec<_>>(),
            "programs_gone": dropped.map(|at| old[at].name()).collect::<Vec<_>>(),
            "ports_gone": gone.map(|seat| ip(seat.address)).collect::<Vec<_>>(),
            "ports_new": new.iter().filter_map(|new| Some(ip(*new.hosts.first()?))).collect::<Vec<_>>(),
            "ports_later": later.map(|address| address.to_string()).collect::<Vec<_>>(),
            "lines_new": lines.iter().map(|line| ip(line.address)).collect::<Vec<_>>(),
            "trace": next.trace,
        })
    }
}
