//! One run of a program, watched from both ends: what was in memory before and after it, and what its client
//! got. [`differences`] compares it with what the interpreter says.

use crate::language::interpret::{Memory, Outcome, interpret};
use crate::language::{Compiled, File};
use crate::run::{BUFFER, connect, serve};
use adverb_rdma::{Duration, On, Rdma};
use std::collections::BTreeMap;

/// Statements that the interpreter executes at most.
const STEPS_MAX: u64 = 10_000_000;
/// How long a client waits for replies that should not come, and stays to acknowledge the last one again.
const SURPLUS: Duration = Duration::from_ms(5_000);
/// How long a client waits until its server listens.
const LISTENS: Duration = Duration::from_ms(10_000);

/// What a server saw.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Regions before the program was started, and after its end.
    pub before: BTreeMap<String, Memory>,
    /// See `before`.
    pub after: BTreeMap<String, Memory>,
    /// Variables after its end.
    pub variables: BTreeMap<String, u64>,
}

/// What a client saw.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// The arguments that it sent.
    pub arguments: Vec<u64>,
    /// Immediates of replies, as they came.
    pub replies: Vec<u32>,
    /// Its buffer after the last of them.
    pub buffer: Vec<u8>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Serves a program until its end, which has to come within this time; then until its client goes. It was
/// compiled to say its end. What was seen is handed to `keep` as soon as it is complete.
pub async fn serve_once(
    rdma: &Rdma,
    name: &str,
    compiled: Compiled,
    patience: Duration,
    keep: impl FnOnce(Served),
) -> Result<(), String> {
    let served = serve(rdma, name, compiled).await.map_err(text)?;
    let before = served.regions_before();
    if served.ended(rdma, patience).await.map_err(text)?.is_none() {
        return Err("the program did not end".to_owned());
    }
    let variables = served.variables().await.map_err(text)?;
    keep(Served { before, after: served.regions().await.map_err(text)?, variables });
    rdma.until(&[On::Gone(&served.line), On::Stop], None).await.map_err(text)?;
    Ok(())
}

/// Sends a program its file's arguments, and takes replies until the one with this immediate has come, and no
/// other one behind it; without one, until none has come for `patience`.
pub async fn ask_once(
    rdma: &Rdma,
    name: &str,
    (file, compiled): (&File, &Compiled),
    last: Option<u32>,
    patience: Duration,
) -> Result<Asked, String> {
    let client = connect(rdma, name, LISTENS).await.map_err(text)?;
    let arguments = client.arguments(file, &[])?;
    client.ask(&compiled.message(&arguments)).await.map_err(text)?;
    let mut replies = Vec::new();
    let mut limit = patience;
    while let Some(reply) = client.reply(rdma, limit).await.map_err(text)? {
        replies.push(reply.imm);
        if Some(reply.imm) == last {
            limit = SURPLUS;
        }
    }
    let buffer = client.buffer.read(0, BUFFER as usize).await.map_err(text)?;
    Ok(Asked { arguments, replies, buffer })
}

/// What the interpreter says of the same run.
pub fn interpreted(file: &File, served: &Served, asked: &Asked) -> Outcome {
    interpret(&file.program, &asked.arguments, served.before.clone(), STEPS_MAX)
}

/// How a run differs from what the interpreter says, a line each; nothing, if it does not.
pub fn differences(said: &Outcome, served: &Served, asked: &Asked) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(why) = &said.stopped {
        out.push(format!("the interpreter stopped: {why}"));
    }
    for (name, value) in &served.variables {
        let expected = said.variables.get(name).copied().unwrap_or(0);
        if *value != expected {
            out.push(format!("variable {name} is {value:#x}, and should be {expected:#x}"));
        }
    }
    for (name, expected) in &said.regions {
        let Some(found) = served.after.get(name) else {
            out.push(format!("region {name} was not looked at"));
            continue;
        };
        let differs = found.bytes.iter().zip(&expected.bytes).position(|(a, b)| a != b);
        if let Some(at) = differs {
            let (is, should) = (found.bytes[at], expected.bytes[at]);
            out.push(format!("region {name}: byte {at} is {is:#04x}, and should be {should:#04x}"));
        } else if found != expected {
            out.push(format!("region {name} is not as long, or not where it was"));
        }
    }
    let immediates: Vec<u32> = said.replies.iter().filter_map(|(_, imm)| *imm).collect();
    if asked.replies != immediates {
        out.push(format!("replies {:?} came, and should be {immediates:?}", asked.replies));
    }
    // Each reply is written over the one before.
    let mut buffer = vec![0; asked.buffer.len()];
    for (bytes, _) in &said.replies {
        buffer[..bytes.len()].copy_from_slice(bytes);
    }
    if let Some(at) = (0..buffer.len()).find(|at| buffer[*at] != asked.buffer[*at]) {
        let (is, should) = (asked.buffer[at], buffer[at]);
        out.push(format!("byte {at} of the client's buffer is {is:#04x}, and should be {should:#04x}"));
    }
    out
}
