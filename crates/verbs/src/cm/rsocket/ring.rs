//! Positions in a ring of bytes: what was put in last, what goes out next. The bytes are elsewhere.

/// A ring's positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    size: usize,
    /// Where the oldest byte is.
    head: usize,
    len: usize,
}

impl Ring {
    /// An empty ring.
    pub(super) fn new(size: usize) -> Ring {
        Ring { size, head: 0, len: 0 }
    }

    /// Bytes in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it has room for.
    pub(super) fn room(&self) -> usize {
        self.size - self.len
    }

    /// The piece that begins `skip` bytes behind the oldest: where, and how many bytes without a break.
    pub(super) fn piece(&self, skip: usize) -> (usize, usize) {
        let skip = skip.min(self.len);
        let at = (self.head + skip) % self.size;
        (at, (self.len - skip).min(self.size - at))
    }

    /// The first piece of its room.
    pub(super) fn back(&self) -> (usize, usize) {
        let at = (self.head + self.len) % self.size;
        (at, self.room().min(self.size - at))
    }

    /// Puts bytes in.
    pub(super) fn push(&mut self, bytes: usize) {
        assert!(bytes <= self.room(), "room was asked for");
        self.len += bytes;
    }

    /// Takes the oldest out.
    pub(super) fn pop(&mut self, bytes: usize) {
        assert!(bytes <= self.len, "no more than there is");
        self.head = (self.head + bytes) % self.size;
        self.len -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_the_ring_does() {
        let mut ring = Ring::new(10);
        assert_eq!((ring.back(), ring.piece(0)), ((0, 10), (0, 0)));
        ring.push(8);
        assert_eq!((ring.back(), ring.piece(0)), ((8, 2), (0, 8)));
        ring.pop(5);
        assert_eq!((ring.back(), ring.room()), ((8, 2), 7));
        ring.push(2);
        ring.push(3);
        assert_eq!((ring.piece(0), ring.piece(5), ring.piece(6)), ((5, 5), (0, 3), (1, 2)));
        assert_eq!(ring.piece(99), (3, 0));
        ring.pop(8);
        assert_eq!((ring.len(), ring.piece(0)), (0, (3, 0)));
    }

    #[test]
    #[should_panic(expected = "room was asked for")]
    fn too_much_is_a_bug_of_ours() {
        Ring::new(4).push(5);
    }
}
