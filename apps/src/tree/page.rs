//! A page of the tree: 1 KB, a header and 54 entries of 18 bytes in no order, all little-endian.
//!
//! ```text
//! header   0      4      5      8    16    24     32      40        48
//!          CRC-32 level  0      low  high  right  splits  0
//! entry    0              1    9      17
//!          version:4 crc:4 key  value  version:4 crc:4
//! ```
//! A page holds keys from `low` on and below `high`; those from `high` on are in the page `right` and beyond
//! it (Lehman and Yao 1981). An entry whose key lies outside is none: a split leaves them where they were.
//!
//! Nobody writes a page as a whole while others can reach it. A change is one WRITE of an entry, or of the
//! header, each within one packet; so a page is never torn for good. But a READ has several packets, and an
//! entry that lies across the boundary of two may come in halves of different times. Its two versions tell
//! that, unless it has been written sixteen times, or a multiple of that, in between: *versions alone can
//! mislead*, so that there is a CRC too, of 8 bits, over page, place, version, key and value.

/// Bytes of a page.
pub const PAGE: u64 = 1024;
/// Bytes of a header.
pub const HEADER: usize = 48;
/// Bytes of an entry.
pub const ENTRY: usize = 18;
/// Entries of a page.
pub const ENTRIES: usize = 54;
/// Levels above the leaves at most: more than any tree of so many pages has.
pub const LEVEL_MAX: u8 = 63;
/// No key: that of an empty entry, and the upper bound of a level's last page.
pub const NO_KEY: u64 = u64::MAX;

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// 0 for leaves.
    pub level: u8,
    /// Its least key.
    pub low: u64,
    /// Above its greatest key.
    pub high: u64,
    /// The next page of the level; 0 if it is the last one.
    pub right: u64,
    /// How often it was split.
    pub splits: u64,
}

impl Header {
    /// Whether a key belongs here.
    pub fn covers(&self, key: u64) -> bool {
        self.low <= key && key < self.high
    }

    /// The bytes, for the page with a number.
    pub fn emit(&self, page: u64) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[4] = self.level;
        for (at, word) in [(8, self.low), (16, self.high), (24, self.right), (32, self.splits)] {
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let crc = header_crc(page, &out);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header of the page with a number, if that is what stands there.
    pub fn parse(page: u64, bytes: &[u8]) -> Option<Header> {
        let head = bytes.get(..HEADER)?;
        let word = |at: usize| head[at..].first_chunk().copied().map(u64::from_le_bytes);
        let header =
            Header { level: head[4], low: word(8)?, high: word(16)?, right: word(24)?, splits: word(32)? };
        let crc = u32::from_le_bytes(*head.first_chunk()?);
        let sound = header.low < header.high && header.level <= LEVEL_MAX;
        (sound && crc == header_crc(page, head)).then_some(header)
    }
}

fn header_crc(page: u64, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&page.to_le_bytes());
    crc.update(&header[4..HEADER]);
    crc.finalize()
}

/// CRC-8 of each byte, by x^8 + x^2 + x + 1: it misses no change of one bit, nor any within eight in a row.
const CRC: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut crc, mut bit) = (byte as u8, 0);
        while bit < 8 {
            crc = if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// An entry: a key's value in a leaf, the page from a key on in others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Counts how often it was written, modulo 16.
    pub version: u8,
    /// The key; [`NO_KEY`] if it is empty.
    pub key: u64,
    /// The value.
    pub value: u64,
}

impl Entry {
    /// What stands in an empty place.
    pub const EMPTY: Entry = Entry { version: 0, key: NO_KEY, value: 0 };

    /// What is written to its place next.
    pub fn next(&self, key: u64, value: u64) -> Entry {
        Entry { version: (self.version + 1) & 15, key, value }
    }

    fn crc(&self, page: u64, place: usize) -> u8 {
        let words = [page, self.key, self.value].into_iter().flat_map(u64::to_le_bytes);
        words.chain([place as u8, self.version]).fold(0, |crc, byte| CRC[usize::from(crc ^ byte)])
    }

    /// The bytes, for a place of the page with a number.
    pub fn emit(&self, page: u64, place: usize) -> [u8; ENTRY] {
        let crc = self.crc(page, place);
        let mut out = [0; ENTRY];
        out[0] = self.version << 4 | crc >> 4;
        out[1..9].copy_from_slice(&self.key.to_le_bytes());
        out[9..17].copy_from_slice(&self.value.to_le_bytes());
        out[17] = self.version << 4 | crc & 15;
        out
    }

    /// What stands there; `None` if it is torn, unless that is not looked at.
    pub fn parse(page: u64, place: usize, bytes: &[u8; ENTRY], checked: bool) -> Option<Entry> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_le_bytes);
        let entry = Entry { version: bytes[17] >> 4, key: word(1)?, value: word(9)? };
        let crc = bytes[0] << 4 | bytes[17] & 15;
        let whole = bytes[0] >> 4 == entry.version && crc == entry.crc(page, place);
        (whole || !checked).then_some(entry)
    }
}

/// A page that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Its header.
    pub header: Header,
    /// Its entries, in the order of their places; also those that are none.
    pub entries: [Entry; ENTRIES],
}

impl Page {
    /// A page of such entries, of which there are no more than places.
    pub fn new(header: Header, entries: &[(u64, u64)]) -> Page {
        assert!(entries.len() <= ENTRIES, "room for the entries");
        let mut page = Page { header, entries: [Entry::EMPTY; ENTRIES] };
        for (place, (key, value)) in page.entries.iter_mut().zip(entries) {
            *place = Entry { version: 0, key: *key, value: *value };
        }
        page
    }

    /// The bytes, for a page with a number.
    pub fn emit(&self, page: u64) -> Vec<u8> {
        let mut out = self.header.emit(page).to_vec();
        for (place, entry) in self.entries.iter().enumerate() {
            out.extend_from_slice(&entry.emit(page, place));
        }
        out.resize(PAGE as usize, 0);
        out
    }

    /// The page with a number, if its header is whole, and its entries are, unless that is not looked at.
    pub fn parse(page: u64, bytes: &[u8], checked: bool) -> Option<Page> {
        let header = Header::parse(page, bytes)?;
        let (entries, _) = bytes.get(HEADER..PAGE as usize)?.as_chunks::<ENTRY>();
        let mut out = Page { header, entries: [Entry::EMPTY; ENTRIES] };
        for (place, (entry, bytes)) in out.entries.iter_mut().zip(entries).enumerate() {
            *entry = Entry::parse(page, place, bytes, checked)?;
        }
        Some(out)
    }

    /// The entries that are some, each with its place.
    pub fn live(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(|(_, entry)| self.header.covers(entry.key))
    }

    /// Where a key stands.
    pub fn find(&self, key: u64) -> Option<usize> {
        self.live().find(|(_, entry)| entry.key == key).map(|(place, _)| place)
    }

    /// A place, of the first so many, that nobody needs.
    pub fn room(&self, places: usize) -> Option<usize> {
        self.entries.iter().take(places).position(|entry| !self.header.covers(entry.key))
    }

    /// The page below that a key leads to.
    pub fn child(&self, key: u64) -> Option<u64> {
        let at_most = self.live().filter(|(_, entry)| entry.key <= key);
        at_most.max_by_key(|(_, entry)| entry.key).map(|(_, entry)| entry.value)
    }

    /// The entries in the order of their keys.
    pub fn sorted(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self.live().map(|(_, entry)| (entry.key, entry.value)).collect();
        all.sort_unstable();
        all
    }
}

/// Where an entry stands in its page.
pub fn offset(place: usize) -> u64 {
    (HEADER + place * ENTRY) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAF: Header = Header { level: 0, low: 10, high: 1000, right: 9, splits: 2 };

    proptest! {
        #[test]
        fn a_page_reads_as_it_was_written(
            keys in prop::collection::btree_map(10u64..1000, any::<u64>(), 0..=ENTRIES),
            number in 1u64..1 << 40,
            level in 0u8..9,
        ) {
            let entries: Vec<(u64, u64)> = keys.into_iter().collect();
            let page = Page::new(Header { level, ..LEAF }, &entries);
            let bytes = page.emit(number);
            prop_assert_eq!(bytes.len() as u64, PAGE);
            let read = Page::parse(number, &bytes, true).unwrap();
            prop_assert_eq!(&read, &page);
            prop_assert_eq!(read.sorted(), entries);
            prop_assert!(Page::parse(number + 1, &bytes, true).is_none(), "another page's");
        }

        /// One write between the two halves of an entry is always noticed, whatever is written.
        #[test]
        fn an_entry_of_two_times_is_torn(
            old in (any::<u64>(), any::<u64>()), new in (any::<u64>(), any::<u64>()), cut in 1usize..ENTRY,
            version in 0u8..16,
        ) {
            let old = Entry { version, key: old.0, value: old.1 };
            let (before, after) = (old.emit(7, 11), old.next(new.0, new.1).emit(7, 11));
            let mut seen = before;
            seen[cut..].copy_from_slice(&after[cut..]);
            prop_assert_eq!(Entry::parse(7, 11, &seen, true), None);
            prop_assert_eq!(Entry::parse(7, 11, &before, true), Some(old));
        }

        #[test]
        fn any_flipped_bit_of_an_entry_or_a_header_is_noticed(
            key in any::<u64>(), value in any::<u64>(), bit in 0usize..144,
        ) {
            let entry = Entry { version: 3, key, value };
            let mut bytes = entry.emit(5, 1);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Entry::parse(5, 1, &bytes, true), None);
            let mut header = LEAF.emit(5);
            header[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::parse(5, &header), None);
        }

        #[test]
        fn any_bytes_are_a_page_or_none(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            prop_assert!(Page::parse(1, &bytes, true).is_none(), "a CRC by chance");
        }
    }

    /// Sixteen writes between two halves bring the same version again: it misleads who asks nothing else.
    #[test]
    fn versions_alone_mislead() {
        let old = Entry { version: 3, key: 40, value: 0x0101_0101_0101_0101 };
        let new = (0..16).fold(old, |entry, _| entry.next(40, 0x0202_0202_0202_0202));
        assert_eq!(new.version, old.version);
        let mut seen = old.emit(7, 11);
        seen[11..].copy_from_slice(&new.emit(7, 11)[11..]);
        assert_eq!(seen[0] >> 4, seen[17] >> 4);
        let misled = Entry::parse(7, 11, &seen, false).unwrap();
        assert_eq!(misled.value, 0x0202_0202_0202_0101, "nobody wrote that");
        assert_eq!(Entry::parse(7, 11, &seen, true), None);
    }

    /// Which entries lie across two packets of a READ, by the path MTU.
    #[test]
    fn entries_lie_across_packets() {
        let across = |mtu: u64| -> Vec<usize> {
            (0..ENTRIES).filter(|place| offset(*place) / mtu != (offset(*place) + 17) / mtu).collect()
        };
        assert_eq!((across(256), across(512), across(1024)), (vec![11, 25], vec![25], vec![]));
    }

    #[test]
    fn what_lies_outside_its_page_is_no_entry() {
        let mut page = Page::new(LEAF, &[(10, 1), (500, 2), (999, 3)]);
        assert_eq!((page.find(500), page.room(3), page.room(4)), (Some(1), None, Some(3)));
        assert_eq!((page.child(9), page.child(10), page.child(501)), (None, Some(1), Some(2)));
        page.header.high = 500;
        assert_eq!((page.find(500), page.find(999), page.room(3)), (None, None, Some(1)));
        assert_eq!(page.sorted(), [(10, 1)]);
        assert_eq!(page.child(501), Some(1));
        assert!(!LEAF.covers(NO_KEY) && !Header { high: NO_KEY, ..LEAF }.covers(NO_KEY));
    }
}
