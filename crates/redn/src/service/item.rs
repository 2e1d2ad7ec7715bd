//! What a value is made of for clients of memcached's protocol: their flags, when it ends, and their bytes.
//!
//! ```text
//! 0      4                    8
//! flags  seconds since 1970   data ...     big-endian; 0 seconds for ever
//! ```

use super::layout::VALUE_MAX;

/// Bytes before the data.
pub const HEAD_LEN: usize = 8;
/// Bytes of data at most.
pub const DATA_MAX: usize = VALUE_MAX - HEAD_LEN;

/// An item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    /// The client's.
    pub flags: u32,
    /// When it ends, in seconds since 1970; 0 for never.
    pub ends_s: u32,
    /// The client's bytes.
    pub data: &'a [u8],
}

impl<'a> Item<'a> {
    /// As a value.
    pub fn to_value(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN + self.data.len());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.ends_s.to_be_bytes());
        out.extend_from_slice(self.data);
        out
    }

    /// What a value is; `None` for one that is too short to be an item.
    pub fn of_value(value: &'a [u8]) -> Option<Item<'a>> {
        let (flags, rest) = value.split_first_chunk::<4>()?;
        let (ends, data) = rest.split_first_chunk::<4>()?;
        Some(Item { flags: u32::from_be_bytes(*flags), ends_s: u32::from_be_bytes(*ends), data })
    }

    /// Whether it has ended at this time.
    pub fn has_ended(&self, now_s: u64) -> bool {
        self.ends_s != 0 && u64::from(self.ends_s) <= now_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_a_value_and_no_shorter_value_is_one() {
        let item = Item { flags: 0x0102_0304, ends_s: 50, data: b"abc" };
        let value = item.to_value();
        assert_eq!(value, [1, 2, 3, 4, 0, 0, 0, 50, b'a', b'b', b'c']);
        assert_eq!(Item::of_value(&value), Some(item));
        assert_eq!(Item::of_value(&value[..8]).map(|item| item.data.len()), Some(0));
        assert_eq!(Item::of_value(&value[..7]), None);
        assert!(item.has_ended(50) && !item.has_ended(49));
        assert!(!Item { ends_s: 0, ..item }.has_ended(u64::MAX));
    }
}
