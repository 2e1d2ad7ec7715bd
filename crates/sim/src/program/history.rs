//! From programs' notes to a history of operations.

use super::Noted;
use crate::linear::{History, Model, Operation};
use adverb_rdma::seam::Note;
use std::collections::BTreeMap;

/// An operation as a program noted it.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// What it was done to.
    pub object: u64,
    /// What was done.
    pub name: &'a str,
    /// With what.
    pub arguments: &'a [u64],
    /// What came of it; `None` if it was never said.
    pub results: Option<&'a [u64]>,
}

/// The history that notes tell. `read` says what an operation is in the model's terms: its call, and its
/// answer if it has results; `Ok(None)` for one that the model does not know of. Each life of each program is
/// a client. An operation that was noted to have had no effect is left out. What `read` cannot understand is
/// an error.
pub fn history<M: Model>(
    notes: &[Noted],
    mut read: impl FnMut(&Told<'_>) -> Result<Option<(M::Call, Option<M::Answer>)>, String>,
) -> Result<History<M>, String> {
    // By program, life and operation: where it began.
    let mut open: BTreeMap<(u32, u32, u64), usize> = BTreeMap::new();
    let mut ends: BTreeMap<usize, (usize, Option<&[u64]>)> = BTreeMap::new();
    for (at, noted) in notes.iter().enumerate() {
        let key = |operation: u64| (noted.program, noted.life, operation);
        match &noted.note {
            Note::Begin { operation, .. } => {
                if open.insert(key(*operation), at).is_some() {
                    return Err(format!("program {} began operation {operation} twice", noted.program));
                }
            }
            Note::End { operation, .. } | Note::Void { operation } => {
                let results = match &noted.note {
                    Note::End { results, .. } => Some(results.as_slice()),
                    _ => None,
                };
                let begun = open.remove(&key(*operation)).ok_or_else(|| {
                    format!("program {} ended operation {operation}, which was not open", noted.program)
                })?;
                ends.insert(begun, (at, results));
            }
            Note::Say(_) => {}
        }
    }
    let clients: BTreeMap<(u32, u32), u32> = notes.iter().map(|n| ((n.program, n.life), 0)).collect();
    let clients: BTreeMap<(u32, u32), u32> = clients.into_keys().zip(0..).collect();
    let mut history = History::default();
    for (begun, noted) in notes.iter().enumerate() {
        let Note::Begin { object, name, arguments, .. } = &noted.note else { continue };
        let end = ends.get(&begun);
        if matches!(end, Some((_, None))) {
            continue;
        }
        let results = end.and_then(|(_, results)| *results);
        let told = Told { object: *object, name, arguments, results };
        let Some((call, answer)) = read(&told)? else { continue };
        let ended = match (end, answer) {
            (Some((at, _)), Some(answer)) => Some((*at as u64, answer)),
            (None, None) => None,
            _ => return Err(format!("{name}: an operation has an answer when it has ended, and only then")),
        };
        let client = clients[&(noted.program, noted.life)];
        history.add(Operation { client, object: *object, call, begun: begun as u64, ended });
    }
    Ok(history)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::model::{Word, WordCall};
    use crate::linear::{Verdict, WORK_MAX};

    fn begin(program: u32, life: u32, operation: u64, name: &'static str, arguments: Vec<u64>) -> Noted {
        Noted { at: 0, program, life, note: Note::Begin { operation, object: 1, name, arguments } }
    }

    fn end(program: u32, life: u32, operation: u64, results: Vec<u64>) -> Noted {
        Noted { at: 0, program, life, note: Note::End { operation, results } }
    }

    fn words(told: &Told<'_>) -> Result<Option<(WordCall, Option<u64>)>, String> {
        let call = match (told.name, told.arguments) {
            ("read", []) => WordCall::Read,
            ("write", [value]) => WordCall::Write(*value),
            ("look", _) => return Ok(None),
            other => return Err(format!("{other:?}")),
        };
        Ok(Some((call, told.results.map(|results| results.first().copied().unwrap_or(0)))))
    }

    #[test]
    fn notes_become_operations() {
        let mut notes = vec![
            begin(0, 0, 0, "write", vec![7]),
            begin(1, 0, 0, "read", vec![]),
            end(1, 0, 0, vec![7]),
            // The same number in another life is another operation; the first one stays open.
            begin(0, 1, 0, "write", vec![9]),
            Noted { at: 0, program: 0, life: 1, note: Note::Void { operation: 0 } },
            begin(0, 1, 1, "look", vec![]),
        ];
        let made = history::<Word>(&notes, words).unwrap();
        let all = made.operations();
        assert_eq!(all.len(), 2, "neither what had no effect nor what the model does not know");
        assert_eq!((all[0].call, all[0].ended), (WordCall::Write(7), None));
        assert_eq!((all[1].begun, all[1].ended), (1, Some((2, 7))));
        assert_ne!(all[0].client, all[1].client);
        assert_eq!(made.check(&Word::default(), WORK_MAX), Verdict::Linearizable);
        notes.push(end(1, 0, 0, vec![7]));
        assert!(history::<Word>(&notes, words).unwrap_err().contains("not open"));
        notes.pop();
        notes.push(begin(5, 0, 0, "jump", vec![]));
        assert!(history::<Word>(&notes, words).is_err());
    }
}
