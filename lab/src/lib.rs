//! The lab: published experiments, each a folder of its own, run again: in the simulator, and those of the
//! cache with real processes and packets too.
//!
//! ```text
//! lab/irn/paper.toml              the paper, its default scenario, and named changes to it
//! lab/irn/fig1/experiment.toml    series, points, the paper's values, bounds, mutations, what to plot
//! ```
//!
//! [`definition`] reads them, [`points`] turns them into scenarios, [`run`] runs every point for every seed,
//! [`measure`] says what came out of one run, [`bounds`] judges, [`verdicts`] counts, [`mutation`] shows that
//! the bounds can fail, [`report`] prints, [`csv`] writes files, [`plot`] draws, [`page`] puts all of it on
//! one page. [`store`] keeps runs, for one that is interrupted; [`compare`] puts verdicts of several folders
//! of runs beside one another. [`cache`] runs trials of the real cache, [`chains`] chains of work requests,
//! [`rack`] clients that share a server's memory behind a switch; [`budget`] says what that switch's programs
//! need of hardware. [`own`] has what somebody brings along: files, and settings. [`modules`] measures the
//! NIC's own code for the paper's hardware tables.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod budget;
pub mod cache;
pub mod chains;
pub mod compare;
pub mod csv;
pub mod definition;
mod lent;
pub mod measure;
pub mod modules;
pub mod mutation;
pub mod own;
pub mod page;
pub mod plot;
pub mod points;
pub mod rack;
pub mod registry;
pub mod report;
pub mod run;
pub mod store;
pub mod verdicts;

pub use definition::{Experiment, Scale};
pub use run::{Effort, Outcome, Progress};

use core::fmt;

/// Why an experiment cannot be run: where, and what to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Error {}
