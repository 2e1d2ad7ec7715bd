//! A lookup: two one-sided reads, of the index and of a record, over the native seam of 1RMA's transfers.
//!
//! What decides which replica is read, with which key, and what a failure means, stands around it in
//! `client` and `replica`: here is only what the bytes of a replica say.

use super::layout::{BUCKET_LEN, Layout, Place, Record, candidates, hash};

/// A lookup that meets a torn record begins anew so many times.
pub(super) const TORN_TRIES: u32 = 16;

/// Which of a replica's regions is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    Index,
    Data,
}

/// What a replica says about a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Found {
    Hit(Vec<u8>),
    Miss,
}

/// Something met on the way that is not the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Met {
    /// Bytes that were overwritten while they were read: the lookup begins anew.
    Torn,
    /// A record of another key with the same tag.
    Collision,
}

/// Why a lookup found out nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trouble<E> {
    /// A read failed.
    Read(E),
    /// The records changed faster than they could be read.
    Torn,
}

/// Looks a key up in a replica with this layout. `read` reads bytes of one of its regions; `met` hears what
/// was met.
pub(super) async fn look_up<E>(
    layout: &Layout,
    key: &[u8],
    met: impl Fn(Met),
    mut read: impl AsyncFnMut(Which, u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Found, Trouble<E>> {
    let hash = hash(layout.seed, key);
    'again: for _ in 0..TORN_TRIES {
        let at = layout.bucket_at(hash);
        let bucket = read(Which::Index, at, BUCKET_LEN).await.map_err(Trouble::Read)?;
        for Place { offset, len, .. } in candidates(&bucket, hash) {
            // What a word says is the replica's word: it is checked before it is used.
            if len > layout.record_max() || offset + len as u64 > layout.log_len {
                met(Met::Torn);
                continue 'again;
            }
            let bytes = read(Which::Data, offset, len).await.map_err(Trouble::Read)?;
            match Record::parse(&bytes) {
                None => {
                    met(Met::Torn);
                    continue 'again;
                }
                Some(record) if record.key == key => return Ok(Found::Hit(record.value.to_vec())),
                Some(_) => met(Met::Collision),
            }
        }
        return Ok(Found::Miss);
    }
    Err(Trouble::Torn)
}

#[cfg(test)]
mod tests {
    use super::super::layout::record_len;
    use super::*;
    use std::cell::RefCell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Runs a future that never waits.
    fn ready<F: Future>(future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("it waits"),
        }
    }

    const LAYOUT: Layout = Layout { buckets: 1, log_len: 1 << 20, value_max: 1024, seed: 3 };

    /// A bucket whose first word points to a record of the key, and the record.
    fn replica(key: &[u8], tag_of: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let hashed = hash(LAYOUT.seed, tag_of);
        let mut record = vec![0; record_len(key.len(), value.len())];
        Record { version: 1, hash: hash(LAYOUT.seed, key), key, value }.emit(&mut record);
        let word = Place { tag: Place::tag_of(hashed), offset: 64, len: record.len() }.word();
        let mut bucket = vec![0; BUCKET_LEN];
        bucket[..8].copy_from_slice(&word.to_le_bytes());
        (bucket, record)
    }

    #[test]
    fn hits_misses_and_torn_records() {
        let (bucket, record) = replica(b"key", b"key", b"value");
        let met = RefCell::new(Vec::new());
        let met_by = |what| met.borrow_mut().push(what);
        let whole = async |which, at, len: usize| {
            let bytes = if which == Which::Index { &bucket } else { &record };
            assert_eq!((at, len), if which == Which::Index { (0, 64) } else { (64, record.len()) });
            Ok::<_, ()>(bytes.clone())
        };
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, whole)), Ok(Found::Hit(b"value".to_vec())));
        assert!(met.borrow().is_empty());

        // Torn once, then whole.
        let turn = RefCell::new(0);
        let torn = async |which, _, _| {
            let mut bytes = if which == Which::Index { bucket.clone() } else { record.clone() };
            if which == Which::Data && turn.replace(1) == 0 {
                bytes[40] ^= 1;
            }
            Ok::<_, ()>(bytes)
        };
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, torn)), Ok(Found::Hit(b"value".to_vec())));
        assert_eq!(met.take(), [Met::Torn]);

        // Torn for ever; failing; empty; another key's record.
        let never = async |which, _, len| {
            Ok::<_, ()>(if which == Which::Index { bucket.clone() } else { vec![0; len] })
        };
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, never)), Err(Trouble::Torn));
        assert_eq!(met.take().len(), TORN_TRIES as usize);
        let fails = async |_, _, _| Err("gone");
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, fails)), Err(Trouble::Read("gone")));
        let empty = async |_, _, len| Ok::<_, ()>(vec![0; len]);
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, empty)), Ok(Found::Miss));
        let (bucket, record) = replica(b"other", b"key", b"value");
        let other = async |which, _, _| {
            Ok::<_, ()>(if which == Which::Index { bucket.clone() } else { record.clone() })
        };
        assert_eq!(ready(look_up(&LAYOUT, b"key", met_by, other)), Ok(Found::Miss));
        assert_eq!(met.take(), [Met::Collision]);
    }
}
