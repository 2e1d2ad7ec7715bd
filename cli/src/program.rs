//! What commands that are native programs share: the NIC, and signals that the program waits for.

use crate::args::Nic;
use crate::error::Error;
use crate::settings::from_options;
use adverb_io::program::Programs;
use adverb_os::signals;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

/// Opens the NIC for a program that a signal ends at once.
pub fn open_plain(nic: &Nic) -> Result<Rc<Programs>, Error> {
    Programs::open(&from_options(nic)?).map_err(|error| Error::Device(error.to_string()))
}

/// Opens the NIC for a program, which is told of SIGINT and SIGTERM.
pub fn open(nic: &Nic) -> Result<Rc<Programs>, Error> {
    let settings = from_options(nic)?;
    // Signals are kept from all threads, those of the NIC too, so before it is opened.
    let (sender, stoppers) = mpsc::channel::<adverb_io::program::Stopper>();
    signals::on_stop(move || {
        // Without a stopper the NIC was not opened, and the command has ended.
        if let Ok(stopper) = stoppers.recv() {
            stopper.stop();
        }
    })
    .map_err(|error| Error::Device(format!("waiting for signals: {error}")))?;
    let programs = Programs::open(&settings).map_err(|error| Error::Device(error.to_string()))?;
    // Nobody receives it only if the signals' thread has ended.
    let _ = sender.send(programs.stopper());
    Ok(programs)
}

/// A program's time.
pub fn wire_time(time: Duration) -> adverb_rdma::Duration {
    adverb_rdma::Duration::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 12))
}
