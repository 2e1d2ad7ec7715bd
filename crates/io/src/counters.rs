//! What the driver counts, by name; the NIC's own counters are written beside them.

use adverb_os::faults::FaultCounts;
use adverb_wire::ParseError;
use std::fmt::Write as _;
use std::path::Path;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one process's port. None ever decreases.
        #[derive(Clone, Debug, Default)]
        pub struct IoCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
            /// Dropped: not a RoCEv2 packet, by the check that failed.
            pub drop_parse: [u64; ParseError::COUNT],
            /// Faults done to arriving frames.
            pub rx_faults: FaultCounts,
            /// Faults done to leaving frames.
            pub tx_faults: FaultCounts,
        }

        impl IoCounters {
            /// Names and values.
            pub fn iter(&self) -> impl Iterator<Item = (String, u64)> {
                let plain = [$((stringify!($name), self.$name),)*];
                let parse = ParseError::ALL
                    .map(|e| (format!("drop_{}", e.name()), self.drop_parse[e as usize]));
                let faults = |way: &'static str, c: FaultCounts| {
                    [("lost", c.lost), ("duplicated", c.duplicated), ("reordered", c.reordered),
                     ("corrupted", c.corrupted), ("marked", c.marked)]
                        .map(|(what, n)| (format!("fault_{way}_{what}"), n))
                };
                plain.into_iter().map(|(name, n)| (name.to_owned(), n)).chain(parse)
                    .chain(faults("rx", self.rx_faults)).chain(faults("tx", self.tx_faults))
            }
        }
    };
}

counters! {
    /// Frames sent through shared memory, to this process itself included.
    shm_tx_frames,
    /// Their bytes from IP on.
    shm_tx_bytes,
    /// Frames received through shared memory.
    shm_rx_frames,
    /// Their bytes.
    shm_rx_bytes,
    /// Frames received whose ICRC their sender left out, since memory flips no bits.
    shm_rx_icrc_elided,
    /// Frames sent through UDP.
    udp_tx_frames,
    /// Their bytes from the BTH on.
    udp_tx_bytes,
    /// Messages given to the kernel for them; each may carry several frames.
    udp_tx_messages,
    /// Frames received through UDP.
    udp_rx_frames,
    /// Their bytes.
    udp_rx_bytes,
    /// Messages that the kernel gave for them.
    udp_rx_messages,
    /// Frames of the address's other processes that arrived here and were handed on.
    forwarded_frames,
    /// Times that this process told the kernel which process gets which datagrams.
    steering_programs,
    /// Times that the kernel did not let it.
    steering_refused,
    /// Rings opened to other processes.
    rings_opened_tx,
    /// Rings opened from other processes.
    rings_opened_rx,
    /// Times that a ring was full and its queue pairs had to wait.
    ring_full,
    /// Times that datagrams waited for a full ring or socket no longer, because its other end did nothing.
    paths_given_up,
    /// Rings given up because the other process broke their rules.
    rings_broken,
    /// Dropped: no live process has the slot that the queue pair number names.
    drop_no_process,
    /// Dropped: ring full, for frames that cannot wait.
    drop_ring_full,
    /// Rings for which there was no memory: their frames go over UDP.
    rings_unmade,
    /// Dropped: no ring could be made, for frames that another process was to get through one.
    drop_ring_failed,
    /// Dropped: from an address of this host, but not from port 4791, where its NICs send from.
    drop_injected,
    /// Dropped: ICRC wrong.
    drop_icrc,
    /// Dropped: the kernel refused the destination (no route, unreachable, not permitted).
    drop_unreachable,
    /// Dropped: longer than the path to the destination carries.
    drop_too_long,
    /// Dropped: the kernel refused to send for another reason.
    drop_send_failed,
    /// Dropped: the kernel had no room for them while the NIC closed.
    drop_unsent,
    /// Errors that the kernel reported on receiving, such as an unreachable port.
    receive_errors,
    /// Times that acknowledgements in rings waited for the application's next call.
    acks_held,
    /// Times that this process woke another.
    bells_rung,
    /// Times that the progress thread was woken by another process or a socket.
    wakes,
    /// Of these, times that the application had dealt with everything already.
    wakes_useless,
    /// Times that a poll slept until a datagram came, on a host with more to do than it can.
    caller_sleeps,
    /// Times that the progress thread went to another processor, since on its own it spun in vain.
    thread_moves,
    /// Times that the progress thread looked by the clock while the application was busy.
    ticks,
    /// Frames that the progress thread dealt with.
    frames_by_thread,
    /// Rounds of the progress thread that dealt with any.
    rounds_by_thread,
    /// Nanoseconds for which it spun and found none.
    thread_vain_ns,
    /// Frames that the application dealt with in its own calls.
    frames_by_calls,
}

impl IoCounters {
    /// A round of the progress thread, and how many frames it dealt with.
    pub fn note_round_of_thread(&mut self, frames: usize) {
        self.frames_by_thread += frames as u64;
        self.rounds_by_thread += u64::from(frames > 0);
    }
}

/// Counters as lines of `name value`, or as a JSON object.
pub fn render<'a>(counters: impl Iterator<Item = (std::borrow::Cow<'a, str>, u64)>, json: bool) -> String {
    let mut text = String::new();
    let mut separator = "{\n";
    for (name, value) in counters {
        // Writing to a String cannot fail.
        if json {
            let _ = write!(text, "{separator}  \"{name}\": {value}");
            separator = ",\n";
        } else {
            let _ = writeln!(text, "{name} {value}");
        }
    }
    if json {
        text.push_str(if text.is_empty() { "{}\n" } else { "\n}\n" });
    }
    text
}

/// Whether a file asks for JSON by its name.
pub fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_its_own_name() {
        let mut names: Vec<String> = IoCounters::default().iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.contains(&"drop_parse_bth_opcode".to_owned()));
        assert!(names.contains(&"fault_rx_lost".to_owned()));
    }

    #[test]
    fn text_and_json() {
        let counters = || [("a".into(), 1), ("b".into(), 2)].into_iter();
        assert_eq!(render(counters(), false), "a 1\nb 2\n");
        assert_eq!(render(counters(), true), "{\n  \"a\": 1,\n  \"b\": 2\n}\n");
        assert_eq!(render(std::iter::empty(), true), "{}\n");
        assert!(is_json(Path::new("/tmp/c.json")) && !is_json(Path::new("/tmp/json")));
    }
}
