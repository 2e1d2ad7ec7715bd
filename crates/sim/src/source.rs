//! Sources of events: who an event is about. This is the one place that packs them into numbers.
//!
//! Events of one time come in the order of these numbers, so the order of the kinds is part of what a seed
//! replays.

/// Who an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A packet, the event's word, reaches the end of this link.
    Arrival(u32),
    /// The port that feeds this link has finished sending.
    PortFree(u32),
    /// A deadline of this host's NICs.
    Deadline(u32),
    /// This host's 1RMA NIC has read payload, or may read more.
    Sent(u32),
    /// This host's 1RMA NIC has written payload.
    Received(u32),
    /// Work of this host's hardware is due.
    Hardware(u32),
    /// Flows start.
    Flows,
    /// A cable fails or is repaired.
    Faults,
    /// Queues are sampled.
    Sample,
    /// The oracle posts work.
    Oracle,
    /// Something happens to a region of 1RMA.
    Regions,
    /// Something happens with programs.
    Programs,
    /// A program of a switch has something due, or the switch is started anew.
    SwitchPrograms,
}

/// Kinds of sources that there is one of for each host.
const OF_HOSTS: u32 = 4;
/// Kinds of sources that there is one of.
const ALONE: u32 = 7;

/// How many there are of each kind. The kinds follow one another in the order of [`Source`].
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    links: u32,
    hosts: u32,
    /// First number of each kind of which hosts have one.
    deadlines: u32,
    sent: u32,
    received: u32,
    hardware: u32,
    /// First number of those that there is one of.
    alone: u32,
}

impl Sources {
    /// The sources of a fabric.
    pub fn new(links: u32, hosts: u32) -> Sources {
        let deadlines = 2 * links;
        let of_hosts = |kind: u32| deadlines + kind * hosts;
        Sources {
            links,
            hosts,
            deadlines,
            sent: of_hosts(1),
            received: of_hosts(2),
            hardware: of_hosts(3),
            alone: of_hosts(OF_HOSTS),
        }
    }

    /// First number that is a timer: it has one event at most, which can be moved.
    pub fn first_timer(&self) -> u32 {
        self.deadlines
    }

    /// How many timers there are.
    pub fn timers(&self) -> u32 {
        OF_HOSTS * self.hosts + ALONE
    }

    /// The number of a source.
    #[inline(always)]
    pub fn pack(&self, source: Source) -> u32 {
        match source {
            Source::Arrival(link) => link,
            Source::PortFree(link) => self.links + link,
            Source::Deadline(host) => self.deadlines + host,
            Source::Sent(host) => self.sent + host,
            Source::Received(host) => self.received + host,
            Source::Hardware(host) => self.hardware + host,
            Source::Flows => self.alone,
            Source::Faults => self.alone + 1,
            Source::Sample => self.alone + 2,
            Source::Oracle => self.alone + 3,
            Source::Regions => self.alone + 4,
            Source::Programs => self.alone + 5,
            Source::SwitchPrograms => self.alone + 6,
        }
    }

    /// The source with a number.
    #[inline(always)]
    pub fn unpack(&self, number: u32) -> Source {
        if number < self.links {
            return Source::Arrival(number);
        }
        if number < self.deadlines {
            return Source::PortFree(number - self.links);
        }
        if number < self.sent {
            return Source::Deadline(number - self.deadlines);
        }
        if number < self.received {
            return Source::Sent(number - self.sent);
        }
        if number < self.hardware {
            return Source::Received(number - self.received);
        }
        if number < self.alone {
            return Source::Hardware(number - self.hardware);
        }
        match number - self.alone {
            0 => Source::Flows,
            1 => Source::Faults,
            2 => Source::Sample,
            3 => Source::Oracle,
            4 => Source::Regions,
            5 => Source::Programs,
            _ => Source::SwitchPrograms,
        }
    }

    /// The link that a number of one is about, if it is about a link: one where a packet arrives, or whose
    /// port is free.
    #[inline(always)]
    pub fn link_of(&self, number: u32) -> u32 {
        // Below zero the difference wraps to above the number.
        number.min(number.wrapping_sub(self.links))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_one_source() {
        let sources = Sources::new(6, 3);
        let count = sources.first_timer() + sources.timers();
        let all: Vec<Source> = (0..count).map(|number| sources.unpack(number)).collect();
        for (number, source) in all.iter().enumerate() {
            assert_eq!(sources.pack(*source), number as u32);
        }
        assert_eq!(all[5..7], [Source::Arrival(5), Source::PortFree(0)]);
        assert_eq!(all[12..14], [Source::Deadline(0), Source::Deadline(1)]);
        assert_eq!(*all.last().unwrap(), Source::SwitchPrograms);
    }
}
