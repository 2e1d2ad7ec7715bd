//! What commands write to standard output. An answer that cannot be written is the command's failure; a line
//! that says that something is ready may be lost.

use crate::error::Error;
use adverb_os::say;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Writes an answer as it is.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}

/// Writes a line that is the answer, and gives the status to end with: a failure that has been said, where
/// it could not be written.
pub fn answer(text: fmt::Arguments<'_>) -> ExitCode {
    match print(&format!("{text}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("adverb: {error}");
            ExitCode::from(error.status())
        }
    }
}
