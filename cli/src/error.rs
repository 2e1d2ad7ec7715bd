//! What the command line tool can refuse, each with its remedy.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why `adverb` did not do what it was asked. The text names what was given and what to do instead.
#[derive(Debug)]
pub enum Error {
    /// No directory holds the verbs library.
    NoLibrary {
        /// Where it was looked for.
        tried: Vec<PathBuf>,
    },
    /// The directory that `ADVERB_LIB` names does not hold the verbs library.
    BadLibraryDirectory(PathBuf),
    /// The direct verbs are not where they belong.
    NoDirectVerbs(PathBuf),
    /// No program of this name in PATH.
    NoCommand(OsString),
    /// The program was named by a path, and the system found nothing there or did not let it be looked at.
    NoProgram(PathBuf, io::Error),
    /// The file is there, but may not be executed.
    NotExecutable(PathBuf),
    /// A statically linked program loads no library.
    StaticCommand(PathBuf),
    /// The dynamic linker ignores the library path of a program that changes its user or group.
    SetidCommand(PathBuf),
    /// A program of another word size or machine cannot load the library.
    ForeignCommand(PathBuf),
    /// A program of musl cannot load a library of glibc, nor the other way round.
    OtherLibcCommand(PathBuf),
    /// The kernel refused to run the command.
    Exec(PathBuf, io::Error),
    /// The NIC cannot be had with these settings; the text is the port's.
    Device(String),
    /// What was asked of another process did not work; the text says of which option, why, and what helps.
    Remote(String),
    /// The device cannot be shown in sysfs and /dev; the text says by which way, why, and what helps.
    Facade(String),
    /// A file that an option names cannot be written.
    File {
        /// The option.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing the answer failed.
    Output(io::Error),
    /// A scenario that cannot run; the text names file, line, key and remedy.
    Scenario(adverb_sim::Error),
    /// Options that do not go together, or with this scenario; the text says what to give instead.
    Options(String),
    /// An experiment that cannot run; the text says which and why.
    Lab(adverb_lab::Error),
    /// Experiments whose bounds do not hold, or in which flows did not end.
    Bounds(String),
    /// Experiments whose bounds hold although something is wrong on purpose.
    Survived(String),
    /// Verdicts that are not the same in several folders; the text says how many.
    Verdicts(String),
    /// Programs of a scenario that did what they must not; the text names the seeds.
    Judged(String),
}

impl Error {
    /// The exit status: 127 and 126 as shells use them for a command that is not there or cannot run, else 1.
    pub fn status(&self) -> u8 {
        match self {
            Error::NoCommand(_) => 127,
            Error::NoProgram(_, e) if e.kind() == io::ErrorKind::NotFound => 127,
            Error::NoProgram(..)
            | Error::NotExecutable(_)
            | Error::StaticCommand(_)
            | Error::SetidCommand(_)
            | Error::ForeignCommand(_)
            | Error::OtherLibcCommand(_)
            | Error::Exec(..) => 126,
            Error::NoLibrary { .. }
            | Error::BadLibraryDirectory(_)
            | Error::NoDirectVerbs(_)
            | Error::Device(_)
            | Error::Remote(_)
            | Error::Facade(_)
            | Error::File { .. }
            | Error::Output(_)
            | Error::Scenario(_)
            | Error::Options(_)
            | Error::Lab(_)
            | Error::Bounds(_)
            | Error::Survived(_)
            | Error::Verdicts(_)
            | Error::Judged(_) => 1,
        }
    }
}

fn other_libc(f: &mut fmt::Formatter<'_>, path: &Path) -> fmt::Result {
    let (its, own) = if cfg!(target_env = "musl") { ("glibc", "musl") } else { ("musl", "glibc") };
    write!(
        f,
        "{}: linked to {its}, and cannot load adverb's library, which is linked to {own}; run it by adverb's \
         package for {its}",
        path.display()
    )
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoLibrary { tried } => {
                write!(f, "libibverbs.so.1 of adverb is in none of")?;
                tried.iter().try_for_each(|directory| write!(f, " {}", directory.display()))?;
                write!(f, "; run `make build`, or set ADVERB_LIB to the directory that holds it")
            }
            Error::BadLibraryDirectory(directory) => write!(
                f,
                "ADVERB_LIB={}: no libibverbs.so.1 there; name the directory that `make build` filled, \
                 or unset ADVERB_LIB",
                directory.display()
            ),
            Error::NoDirectVerbs(at) => write!(f, "no libmlx5.so.1 in {}; run `make build`", at.display()),
            Error::NoCommand(command) => write!(
                f,
                "{}: no such command in PATH; check the name, or install the package that has it \
                 (ibverbs-utils, perftest)",
                command.display()
            ),
            Error::NoProgram(path, e) if e.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "{}: no such file; check the path, which was not searched for in PATH",
                    path.display()
                )
            }
            Error::NoProgram(path, e) => {
                write!(f, "{}: {e}; name a program that this user may run", path.display())
            }
            Error::NotExecutable(path) => {
                write!(f, "{}: not an executable file; give a program, or chmod +x it", path.display())
            }
            Error::StaticCommand(path) => write!(
                f,
                "{}: statically linked, so it loads no libibverbs.so.1 and cannot be captured; \
                 link it dynamically",
                path.display()
            ),
            Error::SetidCommand(path) => write!(
                f,
                "{}: setuid or setgid, so the dynamic linker ignores LD_LIBRARY_PATH; run a copy without \
                 that bit",
                path.display()
            ),
            Error::ForeignCommand(path) => write!(
                f,
                "{}: built for another machine or word size than adverb's library; run a native 64-bit \
                 program",
                path.display()
            ),
            Error::OtherLibcCommand(path) => other_libc(f, path),
            Error::Exec(path, e) => write!(f, "{}: cannot be run: {e}", path.display()),
            Error::Device(text) | Error::Remote(text) | Error::Facade(text) => write!(f, "{text}"),
            Error::File { option, path, source } => {
                write!(f, "{option} {}: {source}; name a file in a directory that exists", path.display())
            }
            Error::Output(e) => write!(f, "cannot write the answer: {e}"),
            Error::Scenario(e) => write!(f, "{e}"),
            Error::Options(text) | Error::Verdicts(text) | Error::Judged(text) => write!(f, "{text}"),
            Error::Lab(e) => write!(f, "{e}"),
            Error::Bounds(names) => {
                write!(f, "{names}: a bound that is claimed does not hold, or flows did not end; see above")
            }
            Error::Survived(names) => {
                write!(f, "{names}: the bounds hold although something is wrong on purpose; see above")
            }
        }
    }
}

impl std::error::Error for Error {}
