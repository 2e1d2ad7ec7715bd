//! NICs of tests.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod child;
mod place;

use adverb_rma::{OneRmaConfig, Rma, Settings};
pub use place::{Folder, address};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

pub fn settings(folder: &Folder, test: u8, host: u8) -> Settings {
    Settings { state: Some(folder.0.clone()), ..Settings::new(address(test, host)) }
}

/// With times that a machine which stands still for a while does not exceed: for tests in which nothing may
/// time out.
pub fn patient(settings: Settings) -> Settings {
    let times = OneRmaConfig {
        dispatch_timeout: adverb_wire::Duration::from_ms(1500),
        timeout: adverb_wire::Duration::from_ms(3000),
        ..settings.nic.clone()
    };
    Settings { nic: times, ..settings }
}

pub fn pair(folder: &Folder, test: u8) -> (Rma, Rma) {
    let open = |host| Rma::open(patient(settings(folder, test, host))).unwrap();
    (open(1), open(2))
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Bytes as text, for the lines that processes exchange.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// An executor that knows nothing of NICs: the NIC's thread does all the work.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

/// Runs futures side by side.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        for (future, output) in running.iter_mut().filter(|(_, output)| output.is_none()) {
            if let Poll::Ready(done) = future.as_mut().poll(context) {
                *output = Some(done);
            }
        }
        if running.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().map(|(_, output)| output.unwrap()).collect()
}
