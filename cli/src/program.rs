//! What commands that are native programs share: the NIC, signals that the program waits for, and clients
//! side by side.

use crate::args::Nic;
use crate::error::Error;
use crate::settings::from_options;
use adverb_io::program::Programs;
use adverb_os::signals;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
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

/// All of these side by side, each looked at whenever anything has come.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut open: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = open.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, done) in open.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}
