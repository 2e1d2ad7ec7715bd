//! The sizes that sockets begin with: rdma-core's, or what the host's files say (`rsocket(7)`,
//! /etc/rdma/rsocket).

use super::options::{INLINE_MAX, MAPPINGS_MAX, RING_MAX, Settings, queue, ring_of};
use super::wire;
use std::path::Path;
use std::sync::OnceLock;

const FOLDER: &str = "/etc/rdma/rsocket";

/// A socket's settings when it is made. The files are read once, as rdma-core reads them.
pub(super) fn settings() -> Settings {
    static READ: OnceLock<Settings> = OnceLock::new();
    *READ.get_or_init(|| read(Path::new(FOLDER)))
}

/// What the files of a folder say. One that is not there, or has no number, leaves what it is about as it is.
fn read(folder: &Path) -> Settings {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok().as_deref().and_then(number);
    let mut settings = Settings::default();
    if let Some(bytes) = number("mem_default") {
        settings.receive = ring_of(bytes.min(RING_MAX));
    }
    if let Some(bytes) = number("wmem_default") {
        settings.send = ring_of(bytes.min(RING_MAX));
    }
    if let Some(requests) = number("sqsize_default") {
        settings.send_queue = queue(requests);
    }
    if let Some(requests) = number("rqsize_default") {
        settings.receive_queue = queue(requests);
    }
    if let Some(bytes) = number("inline_default") {
        settings.inline = bytes.min(INLINE_MAX);
    }
    if let Some(count) = number("iomap_size") {
        settings.mappings = wire::tellable(count.min(MAPPINGS_MAX));
    }
    settings
}

/// The number that a text begins with, after white space: what C's `scanf` would take. A larger one than
/// fits is the largest.
fn number(text: &str) -> Option<u32> {
    let text = text.trim_start();
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| &text[..end]);
    let digit = |value: u32, c: u8| value.saturating_mul(10).saturating_add(u32::from(c - b'0'));
    (!digits.is_empty()).then(|| digits.bytes().fold(0, digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_the_text_begins_with() {
        for (text, value) in [
            ("384", Some(384)),
            (" \n12 34", Some(12)),
            ("7x", Some(7)),
            ("0\n", Some(0)),
            ("99999999999", Some(u32::MAX)),
            ("", None),
            ("-1", None),
            ("x7", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
    }

    #[test]
    fn sizes_of_files_have_the_bounds_of_options() {
        let folder = std::env::temp_dir().join(format!("adverb-rsocket-{}", std::process::id()));
        let sizes = |settings: Settings| {
            let Settings { send, receive, send_queue, receive_queue, inline, mappings, .. } = settings;
            (send, receive, send_queue, receive_queue, inline, mappings)
        };
        let with = |files: &[(&str, &str)]| {
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in files {
                std::fs::write(folder.join(name), text).unwrap();
            }
            let settings = read(&folder);
            std::fs::remove_dir_all(&folder).unwrap();
            sizes(settings)
        };
        let usual = sizes(Settings::default());
        assert_eq!(sizes(read(&folder)), usual, "no folder");
        assert_eq!(with(&[("mem_default", "many"), ("polling_time", "5"), ("wake_up_interval", "1")]), usual);
        let all = |text: &'static str| {
            [
                "wmem_default",
                "mem_default",
                "sqsize_default",
                "rqsize_default",
                "inline_default",
                "iomap_size",
            ]
            .map(|name| (name, text))
        };
        assert_eq!(with(&all("100\n")), (2 * 2048, 2 * 2048, 100, 100, 100, 100));
        let (send, receive, send_queue, receive_queue, inline, mappings) = with(&all("4294967296"));
        assert_eq!((send, receive, inline, mappings), (RING_MAX, RING_MAX, INLINE_MAX, MAPPINGS_MAX));
        assert_eq!((send_queue, receive_queue), (8192, 8192));
        let mut files = all("100");
        files[1].1 = "1048576";
        assert_eq!(with(&files).1, 1 << 20);
    }
}
