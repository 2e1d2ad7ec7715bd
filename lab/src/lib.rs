//! The lab: published experiments, each a folder of its own, run again: in the simulator, and those of the cache with real processes and packets too.
//!
//! ```text
//! lab/irn/paper.toml              the paper, its default scenario, and named changes to it
//! lab/irn/fig1/experiment.toml    series, points, the paper's values, bounds, what to plot
//! ```
//!
//! [`definition`] reads them, [`points`] turns them into scenarios, [`run`] runs every point for every seed, [`measure`] says
//! what came out of one run, [`bounds`] compares, [`report`] prints and writes CSV, [`plot`] draws.
//! [`served`] is what trials of the real cache ask for and find. [`modules`] measures the NIC's own code for the paper's hardware tables.
#![forbid(unsafe_code)]

pub mod bounds;
pub mod definition;
pub mod measure;
pub mod modules;
pub mod operations;
pub mod plot;
pub mod points;
pub mod registry;
pub mod report;
pub mod run;
pub mod served;
mod served_plot;

pub use definition::{Experiment, Scale};
pub use run::{Outcome, Progress};

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
