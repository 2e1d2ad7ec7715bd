//! `adverb redn show --pid`: the queues of a running process, and what each of them waits for.

use crate::error::Error;
use crate::output::print;
use adverb_io::looks::{Looked, LookedWait, look};
use adverb_redn::show::show;
use std::fmt::Write as _;

/// Blocks of a queue that are printed on either side of the next WQE.
const AROUND: u32 = 32;

/// Prints them.
pub fn show_process(pid: u32) -> Result<(), Error> {
    let queues = look(pid).map_err(|error| Error::Device(format!("process {pid}: {error}")))?;
    let mut out = String::new();
    queues.iter().for_each(|queue| one(queue, &mut out));
    if queues.is_empty() {
        let _ = writeln!(out, "process {pid} has no cross-channel queues");
    }
    print(&out)
}

fn one(queue: &Looked, out: &mut String) {
    let Looked {
        number, state, managed, posted, enabled, cached, next, in_flight, blocks, not_ready, ..
    } = queue;
    let order = if *managed { "managed" } else { "unmanaged" };
    let waits = match queue.waits {
        None if next == enabled => "nothing to do".to_owned(),
        None => "under way".to_owned(),
        Some(LookedWait::Enable) => format!("waits for an ENABLE beyond <{}", *enabled as u16),
        Some(LookedWait::Rate) => "waits for its rate".to_owned(),
        Some(LookedWait::Answers) => "waits for READs and atomics before it".to_owned(),
        Some(LookedWait::Completion { cq, index, produced }) => {
            format!("waits for cq {cq}[{index}], which has had {produced}")
        }
    };
    let state = state.to_uppercase();
    let early = match not_ready {
        0 => String::new(),
        messages => format!("; {messages} messages found no receive"),
    };
    let _ = writeln!(
        out,
        "qp {number:#x}: {order}, {state}, ring of {blocks}, posted <{posted}, enabled <{enabled}, \
         fetched <{cached}, next {next}, in flight {in_flight}: {waits}{early}"
    );
    let at = if *blocks > 0 { next % blocks } else { 0 };
    for line in show(&queue.code, *blocks, None) {
        let near =
            at.wrapping_sub(line.block) % blocks <= AROUND || line.block.wrapping_sub(at) % blocks <= AROUND;
        if near {
            let mark = if line.block == at && next != enabled { '>' } else { ' ' };
            let _ = writeln!(out, " {mark}{:>5}  {}", line.block, line.text);
        }
    }
}
