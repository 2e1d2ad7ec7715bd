//! What must come of transfers, known from outside. Every flow has a part of both its hosts' memories to
//! itself, and every host's memory starts as a pattern of its own. So when a flow ends well, its destination
//! holds its source's pattern; when it fails, its destination holds the one or the other, byte for byte, and
//! never changes again (section 5.1: no side effect follows a reported failure); and nothing else ever
//! changes.

use crate::host::one_rma::RmaHost;
use crate::watch::trace::mix;
use crate::workload::flows::FlowSpec;

/// Things found wrong that are told at most.
const TOLD: usize = 20;

/// A flow that has ended.
struct Ended {
    host: u32,
    at: usize,
    /// What its destination held then.
    bytes: Vec<u8>,
}

/// What every host's memory must hold, and which transfers are still to be reported.
#[derive(Default)]
pub(crate) struct Oracle {
    apart: usize,
    /// By flow.
    ended: Vec<Option<Ended>>,
    pub failures: Vec<String>,
}

/// A byte of a host's memory at first.
fn pattern(host: u32, at: usize) -> u8 {
    (mix(u64::from(host) << 40 | at as u64 >> 3) >> (at % 8 * 8)) as u8
}

impl Oracle {
    /// Fills the hosts' memories.
    pub fn new(hosts: &[RmaHost], apart: u64) -> Oracle {
        for (h, host) in hosts.iter().enumerate() {
            if let Some(memory) = host.memory() {
                let bytes: Vec<u8> = (0..memory.len()).map(|at| pattern(h as u32, at)).collect();
                memory.write(0, &bytes);
            }
        }
        Oracle { apart: apart as usize, ..Oracle::default() }
    }

    fn fail(&mut self, what: String) {
        if self.failures.len() < TOLD {
            self.failures.push(what);
        }
    }

    fn read(hosts: &[RmaHost], host: u32, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if let Some(memory) = hosts[host as usize].memory() {
            memory.read(at, &mut bytes);
        }
        bytes
    }

    /// A flow has ended.
    pub fn on_report(&mut self, hosts: &[RmaHost], number: u32, spec: &FlowSpec, ok: bool) {
        let at = number as usize * self.apart;
        let bytes = Self::read(hosts, spec.dst, at, spec.bytes as usize);
        for (i, byte) in bytes.iter().enumerate() {
            let (new, old) = (pattern(spec.src, at + i), pattern(spec.dst, at + i));
            if *byte != new && (ok || *byte != old) {
                let how = if ok { "well" } else { "in a failure" };
                self.fail(format!(
                    "flow {number} ended {how}, and its byte {i} is {byte:#04x}, not {new:#04x}"
                ));
                break;
            }
        }
        if self.ended.len() <= number as usize {
            self.ended.resize_with(number as usize + 1, || None);
        }
        let ended = Ended { host: spec.dst, at, bytes };
        if self.ended[number as usize].replace(ended).is_some() {
            self.fail(format!("flow {number} was reported twice"));
        }
    }

    /// When nothing is left to happen: whether memory is as the reports said, and all else as it was. `flows`
    /// is how many there were.
    pub fn verdict(&mut self, hosts: &[RmaHost], flows: usize) {
        if self.ended.iter().filter(|ended| ended.is_some()).count() != flows {
            self.fail("flows were never reported".to_owned());
        }
        for h in 0..hosts.len() as u32 {
            let Some(len) = hosts[h as usize].memory().map(crate::host::memory::Buffer::len) else {
                continue;
            };
            let mut expected: Vec<u8> = (0..len).map(|at| pattern(h, at)).collect();
            for ended in self.ended.iter().flatten().filter(|ended| ended.host == h) {
                expected[ended.at..ended.at + ended.bytes.len()].copy_from_slice(&ended.bytes);
            }
            let found = Self::read(hosts, h, 0, len);
            if let Some(at) = (0..len).find(|at| found[*at] != expected[*at]) {
                let flow = at / self.apart;
                let (is, was) = (found[at], expected[at]);
                self.fail(format!(
                    "host {h}: byte {at}, flow {flow}'s, is {is:#04x}, and was {was:#04x} when \
                    that was reported"
                ));
            }
        }
    }
}
