//! `adverb redn figure` and long runs of `adverb redn bench`, with real processes.
#![cfg(unix)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// An address that no other run of these tests uses.
fn address(host: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{host}", 160 + high % 32)
}

fn adverb(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.arg("redn").args(words);
    command
}

/// What a figure prints, whose gets by the NIC do not fail.
fn figure(host: u8, words: &[&str]) -> String {
    let (server, client) = (address(host), address(host + 1));
    let mut command = adverb(&["figure", "--server-address", &server, "--address", &client]);
    let output = command.args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Rows of numbers, by their first one.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let row = |line: &str| line.split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<f64>>();
    text.lines().map(row).filter(|row| row.len() > 4).collect()
}

#[test]
fn figure_14_has_all_sizes_by_all_ways() {
    let text = figure(1, &["14", "--time", "40ms"]);
    let rows = rows(&text);
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, [64.0, 1024.0, 4096.0, 16384.0, 65528.0], "{text}");
    for row in &rows {
        // Three ways' medians and 99th percentiles; the paper's.
        assert!(row.len() == 10 && row[1..7].iter().all(|us| *us > 0.0), "{text}");
        assert!(row[1] <= row[2] && row[3] <= row[4] && row[5] <= row[6], "{text}");
    }
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn figure_15_has_writers_at_work() {
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        let (server, client) = (address(3), address(4));
        let output =
            adverb(&["figure", "--server-address", &server, "--address", &client, "15"]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("needs two processors"));
        return;
    }
    let text = figure(3, &["15", "--time", "150ms"]);
    let rows = rows(&text);
    let writers: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(writers, [1.0, 2.0, 4.0, 8.0, 16.0], "{text}");
    // Medians, 99th percentiles, sets.
    assert!(rows.iter().all(|row| row.len() == 10 && row[1..6].iter().all(|value| *value > 0.0)), "{text}");
}

#[test]
fn figure_16_has_gets_while_the_worker_is_stopped_and_killed() {
    let text = figure(5, &["16", "--time", "700ms"]);
    let states: Vec<(f64, f64, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let numbers: Vec<f64> = words.by_ref().take(6).map_while(|word| word.parse().ok()).collect();
            Some((*numbers.get(1)?, *numbers.get(3)?, words.next()?))
        })
        .collect();
    for (offload, two_sided, state) in &states {
        assert!(*offload > 0.0, "{text}");
        assert!(!two_sided.is_nan() && ["serves", "stopped", "killed"].contains(state), "{text}");
    }
    assert!(states.iter().any(|(.., state)| *state == "stopped"), "{text}");
    assert!(states.iter().any(|(_, two_sided, state)| *state == "killed" && *two_sided == 0.0), "{text}");
    assert!(text.contains("serves again"), "{text}");
    let offload =
        text.lines().find(|line| line.starts_with("offload: ") && line.contains(" gets, ")).unwrap();
    assert!(offload.contains("; 0 failed, 0 timeouts") && offload.contains(" 0 fallbacks"), "{text}");
}

struct Server {
    hull: Child,
    setup: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.hull.kill();
        let _ = self.hull.wait();
    }
}

fn serve(host: u8) -> Server {
    let socket = std::env::temp_dir().join(format!("adverb-redn-figures-{}-{host}", std::process::id()));
    let mut command = adverb(&["serve", "--address", &address(host), "--port", "0", "--calls-port", "0"]);
    let mut hull = command.arg("--socket").arg(socket).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(hull.stdout.take().unwrap()).lines().map_while(Result::ok);
    let setup = lines.skip(1).find_map(|line| line.strip_prefix("set-up at ").map(str::to_owned)).unwrap();
    let setup = setup.split(',').next().unwrap().to_owned();
    Server { hull, setup }
}

/// So many gets through shared memory, each compared with what was set.
fn many_gets(host: u8, gets: u64) -> String {
    let server = serve(host);
    let words =
        ["bench", "--server", &server.setup, "--address", &address(host), "--gets", &gets.to_string()];
    let output = adverb(&words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let made: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(
        made >= gets && text.contains("; 0 failed, 0 timeouts") && text.contains(" 0 fallbacks"),
        "{text}"
    );
    text
}

/// More than the 16 bits of an ENABLE's blocks and of a receive queue's indices can count.
#[test]
fn twenty_thousand_gets_are_right() {
    println!("{}", many_gets(7, 20_000));
}

/// More than the 24 bits of a WAIT can count.
#[test]
#[ignore = "minutes: of make test-long"]
fn seventeen_million_gets_are_right() {
    println!("{}", many_gets(8, (1 << 24) + 250_000));
}
