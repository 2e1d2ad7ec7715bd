//! A call as a future: begun when first polled, forgotten when dropped before its answer.

use crate::error::Error;
use crate::seam::{Answer, Begun, Call, Driver, Ticket};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

/// See the module.
#[must_use = "a call begins when it is polled"]
pub(crate) struct Pending<'a> {
    driver: &'a dyn Driver,
    state: State,
}

enum State {
    New(Call),
    Waiting(Ticket),
    Done,
}

impl<'a> Pending<'a> {
    pub fn new(driver: &'a dyn Driver, call: Call) -> Pending<'a> {
        Pending { driver, state: State::New(call) }
    }
}

impl Future for Pending<'_> {
    type Output = Result<Answer, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let driver = self.driver;
        match core::mem::replace(&mut self.state, State::Done) {
            State::New(call) => match driver.begin(call, context) {
                Begun::Ready(answer) => Poll::Ready(answer),
                Begun::Waiting(ticket) => {
                    self.state = State::Waiting(ticket);
                    Poll::Pending
                }
            },
            State::Waiting(ticket) => {
                let polled = driver.poll(ticket, context);
                if polled.is_pending() {
                    self.state = State::Waiting(ticket);
                }
                polled
            }
            State::Done => panic!("a call that has its answer was polled again"),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let State::Waiting(ticket) = self.state {
            self.driver.forget(ticket);
        }
    }
}
