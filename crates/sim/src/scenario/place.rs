//! Where in a scenario's text a key stands, so that a refusal can name its line.

use core::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Line of the byte at `offset`, from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1
}

/// Line of a key such as `switch.pfc.xoff` or `faults.link[2].loss`. A key that is missing is looked for
/// where it belongs: the line of its table.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut table = document.get_ref();
    let mut found = None;
    for part in key.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Some((word, value)) = table.iter().find(|(word, _)| word.get_ref() == name) else { break };
        found = Some(word.span().start);
        let mut value = value;
        if let (DeValue::Array(list), Some(index)) = (value.get_ref(), index) {
            let Some(element) = list.get(index) else { break };
            found = Some(element.span().start);
            value = element;
        }
        let DeValue::Table(inner) = value.get_ref() else { break };
        table = inner;
    }
    found.map(|offset| line_at(text, offset))
}

/// The key that the byte at `offset` belongs to, with the tables that it is in.
pub(super) fn key_at(text: &str, offset: usize) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let key = in_table(document.get_ref(), offset)?;
    Some(key.trim_start_matches('.').to_owned())
}

fn holds(span: Range<usize>, offset: usize) -> bool {
    span.contains(&offset)
}

fn in_table(table: &DeTable<'_>, offset: usize) -> Option<String> {
    for (word, value) in table.iter() {
        if let Some(rest) = in_value(value, offset) {
            return Some(format!(".{}{rest}", word.get_ref()));
        }
        if holds(word.span(), offset) {
            return Some(format!(".{}", word.get_ref()));
        }
    }
    None
}

/// The rest of the key below a value; empty when it is the value itself that holds the offset. Tables are
/// looked into first: their own span may be that of their header alone.
fn in_value(value: &Spanned<DeValue<'_>>, offset: usize) -> Option<String> {
    let below = match value.get_ref() {
        DeValue::Table(table) => in_table(table, offset),
        DeValue::Array(list) => list
            .iter()
            .enumerate()
            .find_map(|(n, element)| in_value(element, offset).map(|rest| format!("[{n}]{rest}"))),
        _ => None,
    };
    below.or_else(|| holds(value.span(), offset).then(String::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "seed = 1\n[switch]\nbuffer = \"1MB\"\n[switch.pfc]\nxoff = \
        \"1KB\"\n\n[[workload]]\nkind = \"list\"\n\
                        list = [\n  { src = 0, dst = 1 },\n  { src = 0, dst = 7 },\n]\n[[workload]]\n\
                        kind = \"incast\"\n";

    #[test]
    fn keys_and_lines_find_each_other() {
        for (key, line) in [
            ("seed", 1),
            ("switch.buffer", 3),
            ("switch.pfc", 4),
            ("switch.pfc.xoff", 5),
            ("workload[0].kind", 8),
            ("workload[0].list[1].dst", 11),
            ("workload[1].kind", 14),
        ] {
            assert_eq!(line_of(TEXT, key), Some(line), "{key}");
            let value = TEXT.lines().take(line - 1).map(|l| l.len() + 1).sum::<usize>();
            let within = TEXT[value..].find(key.rsplit('.').next().unwrap()).unwrap();
            assert_eq!(key_at(TEXT, value + within).as_deref(), Some(key));
        }
        assert_eq!(line_of(TEXT, "switch.pfc.xon"), Some(4), "where a missing key belongs");
        assert_eq!(line_of(TEXT, "workload[1].senders"), Some(13));
        assert_eq!(line_of(TEXT, "topology.rate"), None);
        assert_eq!(line_at(TEXT, usize::MAX), 15);
    }
}
