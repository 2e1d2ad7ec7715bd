//! Questions to a running switch, and their answers: JSON both ways, one question a connection.

use crate::cable::{Cable, Far};
use crate::process::{Behind, Process};
use adverb_os::unix::Channel;
use adverb_os::via::{MESSAGE_MAX, Message};
use adverb_switch::{MarkConfig, Program, Switch, Trace, entries};
use adverb_wire::Instant;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// How long a switch may take to answer, in seconds.
const PATIENCE_S: u32 = 10;
/// Bytes of an answer's lines at most: what a socket holds at once, and what is written between two frames.
const TRACE_BYTES_MAX: usize = 256 << 10;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", deny_unknown_fields, rename_all = "kebab-case")]
pub enum Question {
    /// Ports, programs, counters.
    Show {},
    /// The last events, those of one queue pair only if it is named: as many as an answer has room for.
    Trace {
        /// The queue pair that packets name.
        qp: Option<u32>,
        /// How many.
        last: Option<usize>,
        /// Only those before the event of this number: the `first` of another answer, for the ones that had
        /// no room in it. A switch of an older version does not know the key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<u64>,
    },
    /// A word is given back to the server, or the end of a key's chain is forgotten.
    Forget {
        /// The program, by name or by number from 1 on.
        program: String,
        /// The word's address, or the key.
        word: u64,
    },
    /// Other conditions for `ecn` or `trim`.
    Mark {
        /// The program, by name or by number from 1 on.
        program: String,
        /// At so many waiting bytes.
        above: Option<u32>,
        /// Every so many-th packet of a port.
        every: Option<NonZeroU32>,
    },
    /// What a table or register of a program has.
    Entries {
        /// The program, by name or by number from 1 on.
        program: String,
        /// The table; their names, if none is named.
        table: Option<String>,
        /// One entry; all of them, if none is named.
        key: Option<u64>,
    },
    /// An entry of a table or register is set.
    SetEntry {
        /// The program, by name or by number from 1 on.
        program: String,
        /// The table.
        table: String,
        /// The entry.
        key: u64,
        /// What it is from now on; without it, it goes.
        value: Option<u64>,
    },
    /// Another file takes the place of the one that the switch runs, or the same again.
    Reload {
        /// The file, by its whole path.
        file: Option<PathBuf>,
    },
    /// A port more, with the keys of a `[[port]]`.
    PortAdd {
        /// The keys.
        port: Value,
    },
    /// A port that the file, or somebody since, has named goes.
    PortRemove {
        /// One of its addresses.
        address: IpAddr,
    },
}

/// Asks the switch that listens at a path. A refusal is an error with the switch's words.
pub fn ask(path: &Path, question: &Question) -> io::Result<Value> {
    let channel = Channel::connect(path, PATIENCE_S)?;
    let text = serde_json::to_vec(question)?;
    channel.send(&Message::Ask(&text).emit(), &[])?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; MESSAGE_MAX]);
    while let Some((len, _)) = channel.receive(&mut buffer)? {
        match Message::parse(&buffer[..len]) {
            Some(Message::Answer(part)) => answer.extend_from_slice(part),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "what listens there is no switch")),
        }
    }
    let mut answer: Value = serde_json::from_slice(&answer)?;
    match answer.get("error").and_then(Value::as_str) {
        Some(why) => Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())),
        None => Ok(answer.take()),
    }
}

/// Answers.
pub(crate) fn answer(process: &mut Process, now: Instant, text: &[u8]) -> String {
    let answered = match serde_json::from_slice(text) {
        Ok(Question::Show {}) => Ok(show(process)),
        Ok(Question::Trace { qp, last, before }) => Ok(trace(process.switch.trace(), qp, last, before)),
        Ok(Question::Entries { program, table, key }) => entries(&process.switch, &program, table, key),
        Ok(question @ (Question::Reload { .. } | Question::PortAdd { .. } | Question::PortRemove { .. })) => {
            process.rearrange(now, &question)
        }
        Ok(question) => process.switch.control(now, &question),
        Err(e) => Err(format!("no question: {e}")),
    };
    answered.unwrap_or_else(|why| json!({ "error": why })).to_string()
}

/// Changes a program of a switch: the same to one that runs as to one that is fed with a recording.
pub(crate) fn change(switch: &mut Switch, now: Instant, question: &Question) -> Result<Value, String> {
    match question {
        Question::Forget { program, word } => forget(switch, now, program, *word),
        Question::Mark { program, above, every } => mark(switch, program, *above, *every),
        Question::SetEntry { program, table, key, value } => {
            program_named(switch, program)?.set_entry(now, table, *key, *value)?;
            Ok(json!({ "key": key, "value": value }))
        }
        Question::Show {} | Question::Trace { .. } | Question::Entries { .. } => {
            Err("that changes nothing".to_owned())
        }
        Question::Reload { .. } | Question::PortAdd { .. } | Question::PortRemove { .. } => {
            Err("that is for the process".to_owned())
        }
    }
}

fn entries(switch: &Switch, program: &str, table: Option<String>, key: Option<u64>) -> Result<Value, String> {
    let program = &switch.programs()[entries::named(switch.programs(), program)?];
    Ok(match (table, key) {
        (None, _) => json!({ "tables": program.tables() }),
        (Some(table), None) => json!({ "entries": program.entries(&table)? }),
        (Some(table), Some(key)) => {
            let entry = program.entry(&table, key)?.map(|value| (key, value));
            json!({ "entries": entry.into_iter().collect::<Vec<_>>() })
        }
    })
}

fn show(process: &Process) -> Value {
    let Process { switch, seats, tally, malformed, gate, .. } = process;
    let ports = switch.ports().filter_map(|(port, _, counts)| {
        let seat = seats.get(usize::from(port.0))?.as_ref()?;
        let faults = seat.line.counts().map(|counts| {
            json!({
                "lost": counts.lost, "duplicated": counts.duplicated, "reordered": counts.reordered,
                "corrupted": counts.corrupted, "marked": counts.marked,
            })
        });
        let (processes, cable) = match &seat.behind {
            Behind::Members(members) => (members.all().count(), Value::Null),
            Behind::Cable(cable) => (0, show_cable(cable, seat.strange)),
        };
        Some(json!({
            "port": port.0, "address": seat.address.ip().to_string(), "processes": processes, "cable": cable,
            "rx_frames": counts.rx_frames, "rx_bytes": counts.rx_bytes, "tx_frames": counts.tx_frames,
            "tx_bytes": counts.tx_bytes, "changed": counts.changed, "dropped": counts.dropped,
            "drop_no_process": seat.nobody, "drop_queue_full": seat.full,
            "rx_faults": faults[0], "tx_faults": faults[1],
        }))
    });
    let counters: Map<String, Value> =
        switch.counters().iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    json!({
        "name": process.config.name, "ports": ports.collect::<Vec<_>>(),
        "programs": switch.programs().iter().map(show_program).collect::<Vec<_>>(), "counters": counters,
        "recirculated": switch.recirculated(), "messages_sent": tally.messages,
        "messages_malformed": malformed,
        "strangers_refused": gate.as_ref().map_or(0, |gate| gate.refused),
    })
}

fn show_program(program: &Program) -> Value {
    match program {
        Program::Ecn(mark) | Program::Trim(mark) => {
            let MarkConfig { above, every } = mark.config();
            json!({ "kind": program.name(), "above": above, "every": every })
        }
        Program::CasToWrite(cas) => {
            let words = cas.count_words();
            let carriers = cas.carriers().map(|connection| {
                let lane = &connection.lane;
                json!({
                    "client": connection.client.ip().to_string(), "qp": connection.server_qpn.get(),
                    "psn": lane.out.get(), "under_way": lane.ring.len(), "closed": lane.closed,
                })
            });
            json!({
                "kind": program.name(), "server": cas.config().server.ip().to_string(),
                "connections": cas.connections().count(), "held": cas.held(),
                "carriers": carriers.collect::<Vec<_>>(), "shifted": cas.shifted().len(),
                "words": {
                    "known": words.known, "pending": words.pending, "learning": words.learning,
                    "unsure": words.unsure,
                },
            })
        }
        Program::Steer(steer) => {
            let chains = steer.count_chains();
            let config = steer.config();
            json!({
                "kind": program.name(), "server": config.server.ip().to_string(), "entry": config.entry,
                "connections": steer.connections().count(), "held": steer.held(),
                "chains": { "known": chains.known, "pending": chains.pending, "unknown": chains.unknown },
            })
        }
        Program::Own(name, own) => {
            let counts = own.counts().into_iter().map(|(name, count)| (name.to_owned(), count.into()));
            json!({ "kind": name, "counts": counts.collect::<Map<_, _>>() })
        }
        Program::Paper(_) | Program::PaperSteer(_) => unreachable!("the configuration refuses it"),
    }
}

fn show_cable(cable: &Cable, strange: u64) -> Value {
    let (malformed, unsegmented) = match &cable.far {
        Far::Machine(machine) => (machine.malformed, 0),
        Far::Interface(interface) => (0, interface.unsegmented),
    };
    json!({
        "far": cable.far.to_string(), "plugged": cable.is_plugged(),
        "addresses": cable.edge.addresses().map(|at| at.ip().to_string()).collect::<Vec<_>>(),
        "drop_unplugged": cable.unplugged, "drop_queue_full": cable.full,
        "drop_no_answer": cable.edge.unanswered, "drop_not_rdma": strange,
        "drop_unsegmented": unsegmented, "ignored": cable.edge.ignored, "malformed": malformed,
    })
}

fn trace(trace: &Trace, qp: Option<u32>, last: Option<usize>, before: Option<u64>) -> Value {
    let (kept, noted) = (trace.kept(), trace.noted());
    let numbered = (noted - kept as u64..noted).rev().zip(trace.events().rev());
    let named = numbered.filter(|(number, event)| {
        before.is_none_or(|before| *number < before) && qp.is_none_or(|qp| event.qpn.get() == qp)
    });
    let (mut lines, mut bytes, mut first, mut older) = (Vec::new(), 0, None, 0);
    for (number, event) in named.take(last.unwrap_or(usize::MAX)) {
        let line = (older == 0).then(|| event.to_string());
        match line.filter(|line| bytes + line.len() <= TRACE_BYTES_MAX) {
            Some(line) => {
                bytes += line.len();
                first = Some(number);
                lines.push(line);
            }
            None => older += 1,
        }
    }
    lines.reverse();
    json!({ "events": lines, "first": first, "older": older, "kept": kept, "noted": noted })
}

fn program_named<'a>(switch: &'a mut Switch, name: &str) -> Result<&'a mut Program, String> {
    let at = entries::named(switch.programs(), name)?;
    Ok(&mut switch.programs_mut()[at])
}

fn forget(switch: &mut Switch, now: Instant, name: &str, word: u64) -> Result<Value, String> {
    match program_named(switch, name)? {
        Program::CasToWrite(program) => match program.forget_word(now, word) {
            true => Ok(json!({ "word": word })),
            false => Err(format!("the word {word:#x} is not followed, or something is on its way to it")),
        },
        Program::Steer(program) => match program.forget_key(word) {
            true => Ok(json!({ "key": word })),
            false => Err(format!("no chain of the key {word:#x} has a known end")),
        },
        program => Err(format!("{} follows no words", program.name())),
    }
}

fn mark(
    switch: &mut Switch,
    name: &str,
    above: Option<u32>,
    every: Option<NonZeroU32>,
) -> Result<Value, String> {
    match program_named(switch, name)? {
        Program::Ecn(mark) | Program::Trim(mark) => {
            mark.set_config(MarkConfig { above, every });
            Ok(json!({ "above": above, "every": every }))
        }
        program => Err(format!("{} marks nothing", program.name())),
    }
}
