//! A timestamp oracle: numbers for transactions, each greater than all that were given before it. It is the
//! StaR paper's own case of a server with thousands of clients that seldom ask (section I).
//!
//! A timestamp has the time in milliseconds above and a count below, so that one that starts again goes on
//! above its predecessor's, as long as the clock does not go back further than the process was away.
//!
//! A request is how many timestamps are wanted, a reply the first of them, both little-endian. No state is
//! any client's.

/// Bits of a timestamp that count within a millisecond.
pub const COUNT_BITS: u32 = 18;

/// Gives timestamps.
#[derive(Debug, Default)]
pub struct Oracle {
    /// The next one, at least.
    next: u64,
}

impl Oracle {
    /// The first of `count` timestamps at a time; `None` for none, or for more than a millisecond has.
    pub fn allot(&mut self, now_ms: u64, count: u32) -> Option<u64> {
        if count == 0 || count > 1 << COUNT_BITS {
            return None;
        }
        // When more are asked for than a millisecond has, they go on in the next one, ahead of the clock.
        let first = self.next.max(now_ms << COUNT_BITS);
        self.next = first + u64::from(count);
        Some(first)
    }

    /// Answers a request. The reply to one that makes no sense is empty.
    pub fn answer(&mut self, now_ms: u64, request: &[u8], reply: &mut [u8; 8]) -> usize {
        let count = <[u8; 4]>::try_from(request).map(u32::from_le_bytes);
        match count.ok().and_then(|count| self.allot(now_ms, count)) {
            Some(first) => {
                *reply = first.to_le_bytes();
                reply.len()
            }
            None => 0,
        }
    }
}

/// A request for so many timestamps.
pub fn request(count: u32) -> [u8; 4] {
    count.to_le_bytes()
}

/// The first timestamp of a reply.
pub fn first(reply: &[u8]) -> Option<u64> {
    reply.try_into().map(u64::from_le_bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_greater_than_all_before() {
        let mut oracle = Oracle::default();
        let mut last = 0;
        // The clock stands, goes on, goes back.
        for (now, count) in [(1000, 1), (1000, 5), (1001, 1 << COUNT_BITS), (1001, 1), (990, 3), (5000, 1)] {
            let first = oracle.allot(now, count).unwrap();
            assert!(first > last && first >> COUNT_BITS >= now.min(1001), "{now} {count}");
            last = first + u64::from(count) - 1;
        }
        assert_eq!(last, 5000 << COUNT_BITS);
    }

    #[test]
    fn a_request_without_sense_gets_an_empty_reply_and_takes_nothing() {
        let (mut oracle, mut reply) = (Oracle::default(), [0; 8]);
        for bad in [&[][..], &[1], &[0; 4], &[255; 4], &[1, 0, 0, 0, 0]] {
            assert_eq!(oracle.answer(7, bad, &mut reply), 0, "{bad:?}");
        }
        assert_eq!(oracle.answer(7, &request(2), &mut reply), 8);
        assert_eq!(first(&reply), Some(7 << COUNT_BITS));
        assert_eq!(oracle.answer(7, &request(1), &mut reply), 8);
        assert_eq!(first(&reply), Some((7 << COUNT_BITS) + 2));
        assert_eq!(first(&reply[..7]), None);
    }
}
