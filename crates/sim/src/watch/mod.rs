//! What is seen of a run: its trace, counts, samples, captures, journal and a trace for Perfetto, and an
//! oracle that knows what must come of it.

pub mod capture;
pub(crate) mod journal;
pub mod oracle;
pub mod perfetto;
pub mod record;
pub mod sabotage;
pub mod series;
pub mod slowdowns;
pub mod statistics;
pub mod trace;

use crate::workload::ways::Recoveries;
use capture::Captures;
use journal::Journal;
use oracle::Oracle;
use record::{Samples, Stats};
use sabotage::{Lives, Newest, NewestMerged, Sabotage};
use series::Series;
use trace::Trace;

/// Everything that looks at a run. None of it changes what happens, but for sabotage, which is asked for.
#[derive(Default)]
pub(crate) struct Watch {
    pub trace: Trace,
    pub stats: Stats,
    pub samples: Samples,
    pub recoveries: Recoveries,
    pub series: Series,
    pub captures: Captures,
    pub journal: Journal,
    pub oracle: Option<Box<Oracle>>,
    pub sabotage: Option<Sabotage>,
    /// Packets that sabotage has changed, and what it goes by.
    pub spoilt: u32,
    pub newest: Newest,
    pub merged: NewestMerged,
    pub lives: Lives,
}
