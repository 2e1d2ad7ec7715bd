//! A switch's whole life as a program's: begun, announced, ended by SIGINT or SIGTERM.

use crate::config::Config;
use crate::error::OpenError;
use crate::process::Process;
use adverb_os::{say, signals};
use std::path::Path;

/// Runs a switch until the process is asked to end. Standard output has a line that says what it runs, and
/// one that says how programs come to it, when they may. `recording` is a file, and its bytes at most.
///
/// # Errors
/// It cannot begin, or cannot go on.
pub fn serve(config: Config, folder: &Path, recording: Option<(&Path, u64)>) -> Result<(), OpenError> {
    let (name, programs) = (config.name.clone(), config.program_names());
    let mut process = Process::open_recorded(config, folder, recording)?;
    let stopper = process.stopper();
    signals::on_stop(move || stopper.stop()).map_err(OpenError::System)?;
    let gate = process.gate().map(|at| format!("\nother hosts: adverb run --via {at} --via-token FILE"));
    let needs = process.switch().needs();
    say::announce(format_args!(
        "switch {name}: {programs}; {} registers, {} bytes\nports: adverb run --via {name} --address IP -- \
         PROGRAM{}",
        needs.registers.len(),
        needs.bytes(),
        gate.unwrap_or_default()
    ));
    process.run().map_err(OpenError::Broken)
}
