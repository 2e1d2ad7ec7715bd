//! A row of posts for the socket that waits in its send queue: the NIC turns it into frames in one go, which
//! leave in one message, and asks for an acknowledgement with the last of them and with each that the
//! program waits for. `hold` says when posts may wait; here is for how many.

use adverb_nic::Posted;

/// Requests of a row that wait at most: with half as many a sender of 100 pays for one more call
/// (the notebook's "rows of small messages over UDP, again").
const REQUESTS_MAX: u32 = 96;
/// Requests without a completion, after which one with a completion ends the row: the program waits for that.
const LONG: u32 = 8;
/// Bytes of a request of a row, at most: one frame, whatever the path's MTU (IBTA 9.4.3).
const SMALL: u64 = 256;

/// What is to be done with a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It waits.
    Waits,
    /// So many frames are to be sent, all requests but the last: that one waits, so that none of these asks
    /// for an acknowledgement as the last one of its queue.
    Full(usize),
    /// All of them are to be sent: the program waits for the last.
    Awaited,
}

/// Requests that wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    requests: u32,
    signaled: bool,
}

impl Row {
    /// Whether what was posted may be part of a row: requests of one frame each.
    #[inline]
    pub fn suits(posted: Posted) -> bool {
        posted.requests > 0 && posted.longest <= SMALL
    }

    /// Whether there are any.
    #[inline]
    pub fn waits(&self) -> bool {
        self.requests > 0
    }

    /// What was posted, which [suits](Row::suits), joins the others.
    #[inline]
    pub fn takes(&mut self, posted: Posted) -> Taken {
        if posted.signaled && !self.signaled && self.requests >= LONG {
            return Taken::Awaited;
        }
        self.requests += posted.requests;
        self.signaled |= posted.signaled;
        if self.requests < REQUESTS_MAX {
            return Taken::Waits;
        }
        let frames = self.requests as usize - 1;
        *self = Row { requests: 1, signaled: posted.signaled };
        Taken::Full(frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many posts wait before frames are sent, and what happens then; `signaled` says which of them are.
    fn waits(signaled: impl Fn(u32) -> bool) -> (u32, Taken) {
        let mut row = Row::default();
        let mut n = 0;
        loop {
            n += 1;
            match row.takes(Posted { requests: 1, longest: 64, signaled: signaled(n) }) {
                Taken::Waits => assert!(row.waits()),
                taken => return (n - 1, taken),
            }
        }
    }

    #[test]
    fn a_row_ends_when_it_is_long_or_with_what_the_program_waits_for() {
        let full = (95, Taken::Full(95));
        assert_eq!(waits(|_| false), full);
        assert_eq!(waits(|n| n == 20), (19, Taken::Awaited));
        assert_eq!(waits(|n| n == LONG), full, "it began just before");
        assert_eq!(waits(|_| true), full, "each asks for one: none is the end");
        assert!(!Row::default().waits());
    }

    #[test]
    fn the_last_request_of_a_full_row_begins_the_next() {
        let mut row = Row::default();
        let list = |requests, signaled| Posted { requests, longest: 64, signaled };
        assert_eq!(row.takes(list(200, false)), Taken::Full(199));
        assert!(row.waits());
        assert_eq!(row.takes(list(94, false)), Taken::Waits);
        assert_eq!(row.takes(list(1, false)), Taken::Full(95));
        assert_eq!(row.takes(list(20, true)), Taken::Waits);
    }

    #[test]
    fn a_row_is_of_requests_of_one_frame_each() {
        for (requests, longest, suits) in
            [(0, 0, false), (1, 0, true), (3, SMALL, true), (3, SMALL + 1, false)]
        {
            assert_eq!(Row::suits(Posted { requests, longest, signaled: false }), suits);
        }
    }
}
