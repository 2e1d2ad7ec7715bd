//! Programs' calls, answers and notes, for people who read a replay.

use adverb_nic::SendOp;
use adverb_rdma::Error;
use adverb_rdma::seam::{Answer, Call, Data, Note, SendRequest, Wait};
use adverb_wire::Instant;
use core::fmt::Write;

/// Bytes that are shown of a copy.
const SHOWN: usize = 16;

/// A call.
pub(super) fn call(call: &Call) -> String {
    match call {
        Call::PostSend { qp, list } => {
            let list: Vec<String> = list.iter().map(request).collect();
            format!("posts to {qp:?}: {}", list.join("; "))
        }
        Call::PostRecv { to, list } => format!("posts {} receives to {to:?}", list.len()),
        Call::LoadWord { memory, at } => format!("loads word {at:#x} of memory {}", memory.0),
        Call::StoreWord { memory, at, value } => {
            format!("stores {value:#x} in word {at:#x} of memory {}", memory.0)
        }
        Call::Load { memory, at, len } => format!("loads {len} B at {at:#x} of memory {}", memory.0),
        Call::Store { memory, at, bytes } => {
            format!("stores {} at {at:#x} of memory {}", shown(bytes), memory.0)
        }
        Call::PollCq { cq, .. } => format!("polls {cq:?}"),
        Call::Until { .. } => "wakes".to_owned(),
        Call::Think(time) => format!("computes for {time:?}"),
        Call::Listen { name } => format!("listens at {name}"),
        Call::Accept(_) => "takes a question".to_owned(),
        Call::Reply { attributes, .. } => format!("replies {}", shown(attributes)),
        Call::ModifyQp { qp, attr, .. } => format!("modifies {qp:?} to {:?}", attr.state),
        Call::CreateQp { init, .. } => format!("creates a queue pair ({:?})", init.qp_type),
        other => format!("{other:?}"),
    }
}

fn request(request: &SendRequest) -> String {
    let len = match &request.data {
        Data::Piece(piece) => piece.len as usize,
        Data::Pieces(pieces) => pieces.iter().map(|piece| piece.len as usize).sum(),
        Data::Inline(bytes) => bytes.len(),
    };
    match request.op {
        SendOp::Write(addr, _) => format!("WRITE of {len} B to {addr:#x}"),
        SendOp::Read(addr, _) => format!("READ of {len} B from {addr:#x}"),
        SendOp::FetchAdd { addr, add, .. } => format!("fetch and add {add} at {addr:#x}"),
        SendOp::CompareSwap { addr, compare, swap, .. } => {
            format!("compare {compare:#x} and swap {swap:#x} at {addr:#x}")
        }
        SendOp::Send => format!("SEND of {len} B"),
        other => format!("{other:?} of {len} B"),
    }
}

fn shown(bytes: &[u8]) -> String {
    let mut text = format!("{} B", bytes.len());
    if !bytes.is_empty() {
        text.push_str(": ");
        for byte in bytes.iter().take(SHOWN) {
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str(if bytes.len() > SHOWN { "..." } else { "" });
    }
    text
}

/// An answer.
pub(super) fn answer(answer: &Result<Answer, Error>) -> String {
    match answer {
        Ok(Answer::Done) => "done".to_owned(),
        Ok(Answer::Word(word)) => format!("{word:#x}"),
        Ok(Answer::Bytes(bytes)) => shown(bytes),
        Ok(Answer::Posted(count, None)) => format!("{count} posted"),
        Ok(Answer::Completions(all)) => {
            let each = all.iter().map(|c| format!("{:?} of qp {}: {:?}", c.op, c.qp, c.status));
            let each: Vec<String> = each.collect();
            if each.is_empty() { "nothing".to_owned() } else { each.join(", ") }
        }
        Ok(Answer::Woken(None)) => "its time has come".to_owned(),
        Ok(Answer::Woken(Some(index))) => format!("condition {index} holds"),
        Ok(Answer::Told(_, attributes)) => format!("told {}", shown(attributes)),
        Ok(Answer::Asked(None)) => "none".to_owned(),
        Ok(Answer::Asked(Some((_, attributes)))) => shown(attributes),
        Ok(Answer::Attributes(attr)) => format!("{:?}", attr.state),
        Ok(other) => format!("{other:?}"),
        Err(error) => format!("ERROR: {error}"),
    }
}

/// What a call waits for.
pub(super) fn waits(waits: &[Wait], deadline: Option<u64>) -> String {
    let each = waits.iter().map(|wait| match wait {
        Wait::Cq(cq) => format!("a completion in {cq:?}"),
        Wait::Word { memory, at, seen } => {
            format!("word {at:#x} of memory {} not to be {seen:#x}", memory.0)
        }
        Wait::Asked(_) => "a question".to_owned(),
        Wait::Gone(_) => "the other's end".to_owned(),
        Wait::Stop => "being asked to end".to_owned(),
    });
    let mut each: Vec<String> = each.collect();
    each.extend(deadline.map(|at| format!("{:?}", Instant::from_ps(at))));
    format!("waits for {}", each.join(", or "))
}

/// A note.
pub(super) fn note(note: &Note) -> String {
    match note {
        Note::Begin { operation, object, name, arguments } => {
            format!("[{operation}] {name} of object {object:#x} with {arguments:x?} begins")
        }
        Note::End { operation, results } => format!("[{operation}] ends with {results:x?}"),
        Note::Void { operation } => format!("[{operation}] had no effect"),
        Note::Say(text) => format!("says: {text}"),
    }
}
