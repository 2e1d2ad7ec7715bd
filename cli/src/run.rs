//! `adverb run`: becomes the program, or its parent where something is to be counted, with the library in
//! its path and the settings in its environment.

use crate::args::Run;
use crate::error::Error;
use crate::{command, copies, facade, library, settings, stay};
use adverb_os::say;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Where `Settings::from_env` looks, in the program.
pub const VARIABLE: &str = "ADVERB";

/// Replaces this process by the command, and returns only when that failed; or stays as the command's parent,
/// and returns its exit status, where it is to be counted what the command does.
pub fn run(arguments: &Run) -> Result<ExitCode, Error> {
    let program = program(&arguments.command)?;
    let executable = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("adverb"));
    let directory = library::directory(std::env::var_os("ADVERB_LIB").as_deref(), &executable)?;
    let mut directories = vec![directory.clone()];
    if arguments.mlx5dv {
        directories.insert(0, library::direct_verbs(&directory)?);
    }
    let mut settings = settings::from_options(&arguments.nic)?;
    let counted = stay::prepare(&arguments.count, &mut settings)?;
    let device = settings::describe(&settings)?;
    say!("adverb: {device}");
    let path = prepended(&directories, std::env::var_os(LIBRARY_PATH).as_deref());
    let copies = copies::found(&program, &path, &directory);
    let mut command = Command::new(&program);
    command
        .arg0(&arguments.command[0])
        .args(&arguments.command[1..])
        .env(LIBRARY_PATH, path)
        .env(VARIABLE, settings.to_env());
    // The last thing before the program: what this process reads it reads from the host.
    facade::show(arguments.facade, &settings, &directory, &copies, &mut command)?;
    match counted {
        Some(counted) => counted.run(&mut command).map_err(|e| Error::Exec(program, e)),
        None => Err(Error::Exec(program, command.exec())),
    }
}

fn program(command: &[OsString]) -> Result<PathBuf, Error> {
    // The command line's definition requires a word; an empty list is as good as an empty name.
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    command::resolve(name, std::env::var_os("PATH").as_deref())
}

/// The directories before what the path held. An empty path means the working directory to the linker: not
/// kept.
fn prepended(directories: &[PathBuf], path: Option<&OsStr>) -> OsString {
    let own = directories.iter().map(|directory| directory.as_os_str());
    let kept = path.filter(|path| !path.is_empty());
    own.chain(kept).collect::<Vec<_>>().join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_the_rest_stays() {
        let own = [PathBuf::from("/adverb/lib")];
        assert_eq!(prepended(&own, None), "/adverb/lib");
        assert_eq!(prepended(&own, Some(OsStr::new(""))), "/adverb/lib");
        assert_eq!(prepended(&own, Some(OsStr::new("/a:/b"))), "/adverb/lib:/a:/b");
        let both = [PathBuf::from("/adverb/lib/mlx5dv"), PathBuf::from("/adverb/lib")];
        assert_eq!(prepended(&both, Some(OsStr::new("/a"))), "/adverb/lib/mlx5dv:/adverb/lib:/a");
    }
}
