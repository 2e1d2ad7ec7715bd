//! What threads of sockets ask of the program that owns the NIC. The program sleeps while nobody asks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

struct State<Q> {
    questions: VecDeque<Q>,
    waker: Option<Waker>,
}

/// Where questions lie.
pub struct Desk<Q> {
    state: Mutex<State<Q>>,
}

impl<Q> Desk<Q> {
    /// Without questions.
    pub fn new() -> Arc<Desk<Q>> {
        Arc::new(Desk { state: Mutex::new(State { questions: VecDeque::new(), waker: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks.
    pub fn ask(&self, question: Q) {
        let mut state = self.lock();
        state.questions.push_back(question);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The oldest question.
    pub async fn next(&self) -> Q {
        poll_fn(|context| {
            let mut state = self.lock();
            match state.questions.pop_front() {
                Some(question) => Poll::Ready(question),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The oldest question, if there is one.
    pub fn try_next(&self) -> Option<Q> {
        self.lock().questions.pop_front()
    }
}
