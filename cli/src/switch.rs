//! `adverb switch`: a programmable switch as a process, and questions to one that runs.

use crate::error::Error;
use crate::holes::{self, Holes};
use crate::output::print;
use crate::remote::number;
use crate::switch_lab::{self, Lab};
use crate::switch_live;
use adverb_io::Settings;
use adverb_os::folders;
use adverb_os::via::socket_path;
use adverb_switch::{Needs, Profile, Shares, Switch, Usage, pairs, stf};
use adverb_switchd::replay::replay;
use adverb_switchd::tape::{self, End};
use adverb_switchd::{Config, Question, control, serve};
use adverb_wire::Instant;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufReader};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown by `adverb switch --help`.
pub const EXAMPLES: &str = "\
Programs come to a port with `adverb run --via sw0 --address 10.9.0.N -- PROGRAM`. Their addresses need not
be this host's: only RDMA's frames cross the switch, TCP goes where it always does. docs/switch.md has the
file's keys. Without a switch file, `adverb switch run` forwards.

Examples:
  adverb switch run lock.toml &
  adverb run --via sw0 --address 10.9.0.1 -- ib_write_bw &
  adverb run --via sw0 --address 10.9.0.2 -- ib_write_bw 127.0.0.1
  adverb switch show
  adverb switch trace --qp 0x110001 --last 20
  adverb switch set cas_to_write --word 0x1a0 --forget
  adverb switch table cas_to_write words
  adverb switch reload lock.toml
  adverb switch port add 10.9.0.7 --interface veth7 --loss 0.01
  adverb switch check lock.toml --target tofino1
  adverb switch test lock.toml cases/
  adverb switch run --record lock.tape lock.toml
  adverb switch replay lock.tape
  adverb switch holes H1";

/// `adverb switch`.
#[derive(Subcommand, Debug)]
pub enum SwitchAction {
    /// Be the switch that a file describes, until ended by a signal
    Run(RunFile),
    /// Print ports, programs and counters of a switch that runs
    Show(Show),
    /// Print what became of the last packets, and why
    Trace(Trace),
    /// Change a program of a switch that runs
    Set(Set),
    /// Print tables and registers of a program that runs, or set an entry
    Table(switch_live::Table),
    /// Let a switch that runs take another file, or its own again: programs, ports, faults
    Reload(switch_live::Reload),
    /// Give a switch that runs a port, or take one away
    #[command(subcommand)]
    Port(switch_live::PortAction),
    /// Say what a file's programs need of hardware; the exit status is 1 if that does not fit
    Check(Check),
    /// Give a file's programs packets, and compare what leaves with what should; no process is started
    Test(Test),
    /// Run a command among hosts that a switch connects, each a network namespace; needs no root
    #[command(after_help = switch_lab::EXAMPLES)]
    Lab(Lab),
    /// Feed a recording to a switch without sockets and clock, and compare what leaves, counts and registers
    Replay(Replay),
    /// Show what the draft's scheme for atomics loses, for which fault, and that the default does not
    Holes(Holes),
}

/// `adverb switch run`.
#[derive(Args, Debug)]
pub struct RunFile {
    /// The file [default: a switch sw0 that forwards]
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// Record all that the switch is given and gives, for `adverb switch replay`; a switch that is started
    /// again goes on in the same file
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// What a recording may have at most; then it ends, and the switch goes on
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "record")]
    pub record_max: u64,
}

/// `adverb switch replay`.
#[derive(Args, Debug)]
pub struct Replay {
    /// The recording
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Which switch is meant.
#[derive(Args, Debug)]
pub struct Which {
    /// The switch's name, or its socket's path
    #[arg(long, value_name = "NAME", default_value = "sw0")]
    pub via: PathBuf,
}

/// `adverb switch show`.
#[derive(Args, Debug)]
pub struct Show {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `adverb switch trace`.
#[derive(Args, Debug)]
pub struct Trace {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// Only packets that name this queue pair, such as 0x110001
    #[arg(long, value_name = "QP", value_parser = qp)]
    pub qp: Option<u32>,
    /// The last so many [default: all that the switch keeps: 1000, or as many as `trace` in its file says,
    /// 65536 at most]
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
}

/// `adverb switch set`.
#[derive(Args, Debug)]
pub struct Set {
    /// Which switch.
    #[command(flatten)]
    pub which: Which,
    /// The program, by name or by its number from 1 on
    #[arg(value_name = "PROGRAM")]
    pub program: String,
    /// Of cas_to_write: a word's address; of steer: a key
    #[arg(long, value_name = "ADDRESS", value_parser = word, requires = "forget")]
    pub word: Option<u64>,
    /// The server decides about the word again; the end of the key's chain is learned anew
    #[arg(long, requires = "word", conflicts_with_all = ["above", "every"])]
    pub forget: bool,
    /// Of ecn and trim: packets for ports at which so many bytes wait
    #[arg(long, value_name = "BYTES")]
    pub above: Option<u32>,
    /// Of ecn and trim: every so many-th packet of a port
    #[arg(long, value_name = "N")]
    pub every: Option<NonZeroU32>,
}

/// `adverb switch check`.
#[derive(Args, Debug)]
pub struct Check {
    /// The file
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// The hardware: software, tofino1 or tofino2
    #[arg(long, value_name = "NAME", value_parser = profile, default_value = "software")]
    pub target: Profile,
}

/// `adverb switch test`.
#[derive(Args, Debug)]
pub struct Test {
    /// The file; its ports are numbered from 0
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// Cases in STF, captures NAMEin.pcap of frames that come in, beside NAMEout.pcap of those that have to
    /// leave, or folders of both
    #[arg(value_name = "CASE", required = true)]
    pub cases: Vec<PathBuf>,
}

fn profile(text: &str) -> Result<Profile, String> {
    let names: Vec<&str> = Profile::ALL.iter().map(|profile| profile.name()).collect();
    Profile::named(text).ok_or_else(|| format!("give one of {}", names.join(", ")))
}

/// A whole number.
pub fn word(text: &str) -> Result<u64, String> {
    number(text).ok_or_else(|| "a whole number is needed, such as 416 or 0x1a0".to_owned())
}

/// A queue pair's number, which has 24 bits.
fn qp(text: &str) -> Result<u32, String> {
    let qp = number(text).and_then(|qp| u32::try_from(qp).ok()).filter(|qp| *qp < 1 << 24);
    qp.ok_or_else(|| "a queue pair's number is needed, such as 0x110001: below 0x1000000".to_owned())
}

/// Does what was asked.
pub fn switch(action: &SwitchAction) -> Result<ExitCode, Error> {
    match action {
        SwitchAction::Run(arguments) => run(arguments).map(|()| ExitCode::SUCCESS),
        SwitchAction::Show(arguments) => {
            let shown = ask(&arguments.which, &Question::Show {})?;
            let text = if arguments.json { format!("{shown:#}\n") } else { as_text(&shown) };
            print(&text).map(|()| ExitCode::SUCCESS)
        }
        SwitchAction::Trace(arguments) => switch_live::trace(arguments).map(|()| ExitCode::SUCCESS),
        SwitchAction::Set(arguments) => set(arguments).map(|()| ExitCode::SUCCESS),
        SwitchAction::Table(arguments) => switch_live::table(arguments).map(|()| ExitCode::SUCCESS),
        SwitchAction::Reload(arguments) => switch_live::reload(arguments).map(|()| ExitCode::SUCCESS),
        SwitchAction::Port(action) => switch_live::port(action).map(|()| ExitCode::SUCCESS),
        SwitchAction::Check(arguments) => check(arguments),
        SwitchAction::Test(arguments) => test(arguments),
        SwitchAction::Lab(arguments) => switch_lab::lab(arguments),
        SwitchAction::Replay(arguments) => replayed(arguments),
        SwitchAction::Holes(arguments) => holes::holes(arguments),
    }
}

fn folder() -> Result<PathBuf, Error> {
    let settings = Settings::from_env().map_err(|e| Error::Device(e.to_string()))?;
    Ok(settings.directory.unwrap_or_else(folders::shared_directory))
}

fn read(path: &Path) -> Result<Config, Error> {
    Config::read(path).map_err(|e| Error::Options(e.to_string()))
}

fn run(arguments: &RunFile) -> Result<(), Error> {
    let config = match &arguments.file {
        Some(path) => read(path)?,
        None => Config::parse("").map_err(Error::Options)?,
    };
    let bytes_max = arguments.record_max.saturating_mul(1 << 20);
    if arguments.record.is_some() && bytes_max < tape::BYTES_MIN {
        return Err(Error::Options(format!("--record-max: {} MiB at least", tape::BYTES_MIN >> 20)));
    }
    let recording = arguments.record.as_deref().map(|path| (path, bytes_max));
    serve(config, &folder()?, recording).map_err(|e| Error::Device(e.to_string()))
}

/// Says what each life of a recorded switch was. A difference is printed like a failed case, and fails.
fn replayed(arguments: &Replay) -> Result<ExitCode, Error> {
    let name = arguments.file.display();
    let input = File::open(&arguments.file).map_err(|e| Error::Options(format!("{name}: {e}")))?;
    let lives = match replay(BufReader::with_capacity(1 << 18, input)) {
        Ok(lives) => lives,
        Err(failure) => return print(&format!("{name} DIFFERS: {failure}\n")).map(|()| ExitCode::FAILURE),
    };
    let mut text = String::new();
    for (life, number) in lives.iter().zip(1..) {
        let end = match life.end {
            Some(End::Stopped) => "stopped",
            Some(End::Full) => "ends where the recording was full",
            None => "killed",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "life {number}: {} frames in, {} out, {} timers, {} controls, {} reloads, {} queue pairs known \
             at its start; {end}",
            life.frames_in, life.frames_out, life.timers, life.controls, life.reloads, life.shifted
        );
        let counts = life.counts.iter().map(|(name, count)| format!("{name} {count}"));
        let _ = writeln!(text, "  {}", counts.collect::<Vec<_>>().join(", "));
        let _ = writeln!(text, "  counters and registers compared {} times", life.states);
    }
    let frames: u64 = lives.iter().map(|life| life.frames_out).sum();
    let _ = writeln!(text, "{name}: the same {frames} packets out, registers and counters");
    print(&text).map(|()| ExitCode::SUCCESS)
}

/// Asks a switch.
pub fn ask(which: &Which, question: &Question) -> Result<Value, Error> {
    let path = socket_path(&folder()?, &which.via);
    control::ask(&path, question).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Error::Remote(e.to_string()),
        _ => Error::Remote(format!(
            "no switch answers at {} ({e}); start one with `adverb switch run`, or name another with --via",
            path.display()
        )),
    })
}

/// What a switch says of itself.
pub fn shown(via: &Path) -> Result<Value, Error> {
    ask(&Which { via: via.to_owned() }, &Question::Show {})
}

fn set(arguments: &Set) -> Result<(), Error> {
    let program = arguments.program.clone();
    let question = match (arguments.word, arguments.above, arguments.every) {
        (Some(word), _, _) => Question::Forget { program, word },
        (None, None, None) => {
            return Err(Error::Options("give --word ADDRESS --forget, --above or --every".to_owned()));
        }
        (None, above, every) => Question::Mark { program, above, every },
    };
    ask(&arguments.which, &question).map(drop)
}

/// What a file's programs need, register by register.
fn check(arguments: &Check) -> Result<ExitCode, Error> {
    let config = read(&arguments.file)?;
    let switch: Switch = config.switch(Instant::ZERO).map_err(Error::Options)?;
    let needs: Needs = switch.needs();
    let misfits = needs.misfits(arguments.target);
    let mut text = format!("{}: {}\n", config.name, config.program_names());
    for shape in &needs.registers {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {:<12} stage {:>2}  {:>4} bits x {}",
            shape.name, shape.stage, shape.width, shape.entries
        );
    }
    for ability in &needs.abilities {
        let _ = writeln!(text, "  {}", ability.name());
    }
    let target = arguments.target.name();
    let usage = needs.usage();
    if let Some(Shares { sram, map_ram, stateful_alu }) = usage.shares(arguments.target) {
        let Usage { stages, sram_blocks, stateful_alus } = usage;
        let _ = writeln!(
            text,
            "{target}: registers in {stages} stages: {sram_blocks} SRAM blocks ({sram:.1}% of theirs, and \
             {map_ram:.1}% of their map RAMs), {stateful_alus} stateful ALUs ({stateful_alu:.1}%)"
        );
    }
    if misfits.is_empty() {
        let _ = writeln!(text, "{target}: fits, {} bytes of registers", needs.bytes());
    }
    for misfit in &misfits {
        let _ = writeln!(text, "{target}: does not fit: {misfit}");
    }
    print(&text)?;
    Ok(if misfits.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a capture of frames that come in is called at its end, and what the one of those that leave is.
const CAME: &str = "in.pcap";
const LEAVES: &str = "out.pcap";

/// Whether a file is a case. What has to leave is beside what comes in, and not one of its own.
fn is_case(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".stf") || name.ends_with(CAME)
}

/// The files of cases that are named, and those in folders that are.
fn cases(named: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut cases = Vec::new();
    for path in named {
        if !path.is_dir() {
            cases.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|e| unread(path, e))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<PathBuf> = paths.filter(|at| is_case(at)).collect();
        found.sort();
        cases.append(&mut found);
    }
    Ok(cases)
}

fn unread(path: &Path, e: io::Error) -> Error {
    Error::Options(format!("{}: {e}", path.display()))
}

/// Runs a case on a switch of its own. What it fails with is in words.
fn test_one(config: &Config, path: &Path) -> Result<Result<stf::Passed, String>, Error> {
    let (mut switch, ports) = config.with_ports(Instant::ZERO).map_err(Error::Options)?;
    let bytes = |path: &Path| std::fs::read(path).map_err(|e| unread(path, e));
    let name = path.to_string_lossy();
    if let Some(stem) = name.strip_suffix(CAME) {
        let leaves = PathBuf::from(format!("{stem}{LEAVES}"));
        return Ok(pairs::run(&mut switch, Instant::ZERO, &bytes(path)?, &bytes(&leaves)?));
    }
    let case = std::fs::read_to_string(path).map_err(|e| unread(path, e))?;
    Ok(stf::run(&mut switch, &ports, Instant::ZERO, &case).map_err(|failure| failure.to_string()))
}

/// Runs cases, each on a switch of its own.
fn test(arguments: &Test) -> Result<ExitCode, Error> {
    let config = read(&arguments.file)?;
    let cases = cases(&arguments.cases)?;
    let (mut text, mut failed) = (String::new(), 0);
    for path in &cases {
        let name = path.display();
        // Writing to a String cannot fail.
        let _ = match test_one(&config, path)? {
            Ok(passed) => {
                writeln!(text, "ok   {name}: {} packets in, {} out", passed.packets, passed.expected)
            }
            Err(failure) => {
                failed += 1;
                writeln!(text, "FAIL {name}: {failure}")
            }
        };
    }
    let _ = writeln!(text, "{} passed, {failed} failed", cases.len() - failed);
    print(&text)?;
    Ok(if failed == 0 && !cases.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The answer to `show` as tables.
fn as_text(shown: &Value) -> String {
    let list = |key: &str| shown[key].as_array().cloned().unwrap_or_default();
    let mut text = format!(
        "{:<5} {:<15} {:>4} {:>12} {:>12} {:>9} {:>9}\n",
        "port", "peer", "proc", "rx frames", "tx frames", "dropped", "changed"
    );
    for port in list("ports") {
        let number = |key: &str| port[key].as_u64().unwrap_or_default();
        let dropped = number("dropped") + number("drop_no_process") + number("drop_queue_full");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<5} {:<15} {:>4} {:>12} {:>12} {:>9} {:>9}",
            number("port"),
            port["address"].as_str().unwrap_or_default(),
            number("processes"),
            number("rx_frames"),
            number("tx_frames"),
            dropped,
            number("changed")
        );
    }
    for program in list("programs") {
        let _ = write!(text, "{}:", program["kind"].as_str().unwrap_or_default());
        for (key, value) in program.as_object().into_iter().flatten().filter(|(key, _)| *key != "kind") {
            let value =
                value.as_str().map_or_else(|| value.to_string().replace(['{', '}', '"'], ""), str::to_owned);
            let _ = write!(text, " {key} {value}");
        }
        text.push('\n');
    }
    for (name, count) in shown["counters"].as_object().into_iter().flatten() {
        if count != 0 {
            let _ = writeln!(text, "{name} {count}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!((word("416"), word("0x1a0")), (Ok(416), Ok(416)));
        assert!(word("1a0").is_err() && word("").is_err() && word("-1").is_err());
        assert_eq!(qp("0xffffff"), Ok(0xff_ffff));
        assert!(qp("0x1000000").is_err() && qp("0x110001100").is_err());
    }

    #[test]
    fn a_switch_is_shown_as_a_table() {
        let shown = json!({
            "ports": [{ "port": 0, "address": "10.9.0.1", "processes": 1, "rx_frames": 12, "tx_frames": 5,
                        "dropped": 1, "drop_queue_full": 2, "drop_no_process": 3, "changed": 4 }],
            "programs": [{ "kind": "cas_to_write", "held": 0, "words": { "known": 3 } }],
            "counters": { "rx_frames": 12, "drop_gap": 0 },
        });
        let text = as_text(&shown);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "port  peer            proc    rx frames    tx frames   dropped   changed");
        assert_eq!(lines[1], "0     10.9.0.1           1           12            5         6         4");
        assert_eq!(lines[2], "cas_to_write: held 0 words known:3");
        assert_eq!(lines[3..], ["rx_frames 12"]);
    }
}
