//! The sequencer's switch on real ports: `own-switch SERVER EPOCHS [FILE.toml]`.
//!
//! `EPOCHS` is a file that keeps the number of the last start. It has to outlive the host's memory: a disk's.

use adverb_os::folders::{private_file, shared_directory};
use adverb_switchd::{Config, serve};
use own_switch::KIND;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Takes the next epoch: when this returns, no other start gets the same one, even after a crash.
fn next_epoch(path: &Path) -> io::Result<u64> {
    let last = match std::fs::read_to_string(path) {
        Ok(text) => text.trim().parse::<u64>().map_err(io::Error::other)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
        Err(e) => return Err(e),
    };
    let beside = path.with_extension("new");
    let mut file = private_file().create(true).truncate(true).open(&beside)?;
    writeln!(file, "{}", last + 1)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()?;
    Ok(last + 1)
}

/// The switch's folder, as `adverb run` takes it from `ADVERB=directory=PATH`.
fn folder() -> PathBuf {
    let set = std::env::var("ADVERB").unwrap_or_default();
    let named = set.split(',').find_map(|word| word.strip_prefix("directory=").map(PathBuf::from));
    named.unwrap_or_else(shared_directory)
}

fn run(words: &[String]) -> Result<(), String> {
    let (server, epochs, file) = match words {
        [server, epochs] => (server, epochs, None),
        [server, epochs, file] => (server, epochs, Some(file)),
        _ => return Err("own-switch SERVER EPOCHS [FILE.toml]".to_owned()),
    };
    let server: IpAddr = server.parse().map_err(|_| format!("{server} is no address"))?;
    let named = |path: &String, e: io::Error| format!("{path}: {e}");
    let mut text = match file {
        Some(path) => std::fs::read_to_string(path).map_err(|e| named(path, e))?,
        None => String::new(),
    };
    let epoch = next_epoch(Path::new(epochs)).map_err(|e| named(epochs, e))?;
    // In the text, so that a recording has it.
    text += &format!("\n[[program]]\nkind = \"sequencer\"\nserver = \"{server}\"\nepoch = {epoch}\n");
    let config = Config::parse_with(&text, &[KIND])?;
    serve(config, &folder(), None).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("own-switch: {why}");
            ExitCode::FAILURE
        }
    }
}
