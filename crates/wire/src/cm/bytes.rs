//! Fields of a MAD by their offsets, which are all below its fixed length.

/// Reads big-endian fields.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

/// Writes them.
pub(super) struct Writer<'a>(pub &'a mut [u8]);

impl Reader<'_> {
    pub fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        core::array::from_fn(|i| self.0[at + i])
    }

    pub fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub fn u24(self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    pub fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// `bits` bits of a byte, of which `below` follow.
    pub fn bits(self, at: usize, below: u32, bits: u32) -> u8 {
        (self.0[at] >> below) & ((1 << bits) - 1)
    }
}

impl Writer<'_> {
    pub fn bytes(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, &value.to_be_bytes());
    }

    /// Three bytes; the one behind them stays.
    pub fn u24(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes()[1..]);
    }

    pub fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_be_bytes());
    }

    pub fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_be_bytes());
    }

    /// `bits` bits of a byte, of which `below` follow; the others stay. What does not fit is cut off.
    pub fn bits(&mut self, at: usize, below: u32, bits: u32, value: u8) {
        let mask = (1u8 << bits) - 1;
        self.0[at] |= (value & mask) << below;
    }
}
