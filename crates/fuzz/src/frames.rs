//! How an input of a NIC's target is made of steps, and how it is taken apart again: each step is a byte that
//! says what it is, two bytes of length, and that many bytes. Whatever stands in an input, it can be taken
//! apart.

/// What a step asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// A frame arrives.
    Frame(&'a [u8]),
    /// The NIC's own side posts a request.
    Post(&'a [u8]),
    /// Time passes: the first byte says how much.
    Wait(&'a [u8]),
}

/// Steps of one input at most; more would only make it slow.
const STEPS_MAX: usize = 64;
const HEADER: usize = 3;

/// The steps of an input.
pub fn steps(mut input: &[u8]) -> impl Iterator<Item = Step<'_>> {
    std::iter::from_fn(move || {
        let (header, rest) = input.split_first_chunk::<HEADER>()?;
        let len = (u16::from_be_bytes([header[1], header[2]]) as usize).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        input = rest;
        Some(match header[0] % 4 {
            0 | 1 => Step::Frame(bytes),
            2 => Step::Post(bytes),
            _ => Step::Wait(bytes),
        })
    })
    .take(STEPS_MAX)
}

/// Appends a step to an input.
pub fn append(input: &mut Vec<u8>, step: Step<'_>) {
    let (kind, bytes) = match step {
        Step::Frame(bytes) => (0, bytes),
        Step::Post(bytes) => (2, bytes),
        Step::Wait(bytes) => (3, bytes),
    };
    input.push(kind);
    input.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    input.extend_from_slice(bytes);
}

/// An input of these steps.
pub fn input(steps: &[Step<'_>]) -> Vec<u8> {
    let mut input = Vec::new();
    steps.iter().for_each(|step| append(&mut input, *step));
    input
}
