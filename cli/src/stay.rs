//! `adverb run` as the parent of its program: with `--expect-rdma`, `--expect-bytes`, `--summary` or
//! `--metrics`. The NICs of the program's processes leave what they count in a folder of this run
//! (`adverb_io::board`), which is read when the program has ended, and while it runs by `metrics`.

use crate::error::Error;
use crate::metrics::Exporter;
use crate::tallied::{fresh, summary_json, summary_text, verdict};
use crate::traced::{self, Traces};
use adverb_io::{Settings, board, is_json};
use adverb_os::attend::{Attendant, Ending, end_by};
use adverb_os::folders::shared_directory;
use adverb_os::say;
use adverb_os::signals::without_sigpipe;
use clap::Args;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Exit status where the program ended well, and did not do the RDMA that was expected.
pub const NO_RDMA: u8 = 120;
const HEADING: &str = "Did RDMA happen?";

/// What is counted over all processes of a program.
#[derive(Args, Debug, Default)]
pub struct Count {
    /// Fail, with exit status 120 and the reason, if the program ends well without RDMA: if no process opened
    /// the device, none connected to another process, or no request moved payload
    #[arg(long, help_heading = HEADING)]
    pub expect_rdma: bool,
    /// The same, unless requests that completed have moved this many bytes of payload, between processes
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = clap::value_parser!(u64).range(1..))]
    pub expect_bytes: Option<u64>,
    /// At the end, say on standard error what each process did: queue pairs, requests, payload, packets,
    /// retransmissions; or write it to a file, as JSON if its name ends in .json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = HEADING)]
    pub summary: Option<Option<PathBuf>>,
    /// While the program runs, serve the counters of all its processes as OpenMetrics over HTTP; a port, on
    /// 127.0.0.1, or an address and a port
    #[arg(long, value_name = "[IP:]PORT", value_parser = crate::metrics::address, help_heading = HEADING)]
    pub metrics: Option<std::net::SocketAddr>,
    /// Write a trace for Perfetto's viewer (ui.perfetto.dev): processes, queue pairs, requests, packets,
    /// windows over time
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    pub perfetto: Option<PathBuf>,
}

/// A run that is counted.
pub struct Counted {
    run: board::Run,
    /// Bytes that are expected to move; none where nothing is expected.
    expected: Option<u64>,
    summary: Option<Option<PathBuf>>,
    exporter: Option<Exporter>,
    traces: Option<Traces>,
}

/// Prepares for counting, where that is asked for, and has the settings tell the program's processes.
pub fn prepare(count: &Count, settings: &mut Settings) -> Result<Option<Counted>, Error> {
    let expected = count.expect_bytes.or(count.expect_rdma.then_some(1));
    let is_seen = count.summary.is_some() || count.metrics.is_some() || count.perfetto.is_some();
    if expected.is_none() && !is_seen {
        return Ok(None);
    }
    let summary = match &count.summary {
        Some(Some(path)) => Some(Some(crate::settings::absolute("--summary", path)?)),
        other => other.clone(),
    };
    let exporter = count.metrics.map(Exporter::bind).transpose()?;
    let directory = settings.directory.clone().unwrap_or_else(shared_directory);
    let run = board::Run::create(&directory, settings.boards.as_deref()).map_err(|why| {
        Error::Options(format!("{}: nothing can be counted there: {why}; make room", directory.display()))
    })?;
    settings.boards = Some(run.folder().to_owned());
    // The last thing that can be refused: it leaves a folder.
    let traces = count.perfetto.as_ref().map(|path| traced::prepare(path, settings)).transpose();
    match traces {
        Ok(traces) => Ok(Some(Counted { run, expected, summary, exporter, traces })),
        Err(e) => {
            run.remove();
            Err(e)
        }
    }
}

impl Counted {
    /// Runs the program, and gives its exit status: its own, or [`NO_RDMA`]. Where a signal ended it, the
    /// same one ends this process.
    pub fn run(self, command: &mut Command) -> io::Result<ExitCode> {
        let Counted { run, expected, summary, exporter, traces } = self;
        let keep: Vec<_> = exporter.iter().map(Exporter::fd).collect();
        let started = Attendant::start(command, &keep);
        let mut attendant = match started {
            Ok(attendant) => attendant,
            Err(e) => {
                run.remove();
                traces.iter().for_each(Traces::remove);
                return Err(e);
            }
        };
        if let Some(exporter) = exporter {
            exporter.serve(run.folder().to_owned())?;
        }
        let ending = attendant.wait();
        let told = fresh(|| board::read(run.folder()))?;
        let ending = ending?;
        run.remove();
        match summary {
            Some(None) => summary_text(&told).lines().for_each(|line| say!("{line}")),
            Some(Some(path)) => {
                let text = if is_json(&path) { summary_json(&told) } else { summary_text(&told) };
                if let Err(e) = without_sigpipe(|| std::fs::write(&path, text)) {
                    say!("adverb: --summary {}: {e}", path.display());
                    return Ok(ExitCode::FAILURE);
                }
            }
            None => {}
        }
        if !traces.is_none_or(Traces::finish) {
            return Ok(ExitCode::FAILURE);
        }
        let failed = expected.and_then(|bytes| verdict(&told, bytes).err());
        if let Some(why) = &failed {
            say!("adverb: {why}");
        }
        Ok(ExitCode::from(match ending {
            Ending::Status(0) if failed.is_some() => NO_RDMA,
            Ending::Status(status) => status,
            Ending::Signal(signal) => {
                end_by(signal);
                // A signal that ends nobody: what shells say of a program that it ended.
                128u8.wrapping_add(signal as u8)
            }
        }))
    }
}
