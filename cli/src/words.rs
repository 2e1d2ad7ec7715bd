//! `adverb completions` and `adverb man`: what shells and `man` know of the command, made from the command
//! line's own definition, so that they cannot say anything else.

use crate::args::Cli;
use crate::error::Error;
use crate::output::print;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// How they are used.
pub const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(adverb completions bash)
  adverb completions zsh >~/.zfunc/_adverb
  adverb completions fish >~/.config/fish/completions/adverb.fish";

/// Prints a shell's script.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "adverb", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes `adverb.1`, and a page for each command and the commands within it.
pub fn manual(directory: &Path) -> Result<(), Error> {
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map_err(|source| Error::File { option: "man", path: directory.to_owned(), source })
}
