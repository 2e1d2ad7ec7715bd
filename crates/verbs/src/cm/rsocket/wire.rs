//! What rsockets put on the wire: private data of connections, 32-bit messages in immediate data, and the
//! entries that peers write into each other's tables (rdma-core's `librdmacm/docs/rsocket`).

/// The protocol's version.
const VERSION: u8 = 1;
/// Bytes of the private data of a request and of its answer.
pub(super) const CONNECT_LEN: usize = 40;
/// `flags`: tables are written in network order, by a big-endian host.
const FLAG_NET: u8 = 1;
/// `flags`: the peer's table of mappings follows its table of buffers.
const FLAG_IOMAP: u8 = 2;
/// An entry of a table of buffers: address, key, length.
pub(super) const TARGET_LEN: usize = 16;
/// An entry of a table of mappings: an offset, and a buffer.
pub(super) const MAPPING_LEN: usize = 8 + TARGET_LEN;
/// Immediate data: three bits say what it is, the others which or how much.
const KIND_SHIFT: u32 = 29;
/// What the lower bits can hold.
pub(super) const VALUE_MAX: u32 = (1 << KIND_SHIFT) - 1;

const DATA: u32 = 0;
const CREDIT: u32 = 4;
const MAPPED: u32 = 6;
const CONTROL: u32 = 7;
const DISCONNECT: u32 = 0;
const KEEPALIVE: u32 = 1;
const SHUTDOWN: u32 = 2;

/// Why a peer's bytes are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Malformed {
    /// Another version, or too few bytes.
    Connect,
    /// A message that is none of ours.
    Message,
    /// More bytes than there was room for.
    TooMuch,
}

/// Memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Target {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) len: u32,
}

impl Target {
    /// As an entry of a table, in the byte order of the peer's host.
    pub(super) fn entry(self, net: bool) -> [u8; TARGET_LEN] {
        let mut entry = [0; TARGET_LEN];
        if net {
            entry[..8].copy_from_slice(&self.addr.to_be_bytes());
            entry[8..12].copy_from_slice(&self.key.to_be_bytes());
            entry[12..].copy_from_slice(&self.len.to_be_bytes());
        } else {
            entry[..8].copy_from_slice(&self.addr.to_le_bytes());
            entry[8..12].copy_from_slice(&self.key.to_le_bytes());
            entry[12..].copy_from_slice(&self.len.to_le_bytes());
        }
        entry
    }

    /// From the two words of an entry of this host's own table. The second one was read first: while its
    /// length is 0, nothing was written.
    pub(super) fn of_words(addr: u64, key_and_len: u64) -> Target {
        Target { addr, key: key_and_len as u32, len: (key_and_len >> 32) as u32 }
    }
}

/// A buffer that the peer may write to by an offset of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    /// Which entry of the peer's table it is.
    pub(super) index: u32,
    pub(super) offset: u64,
    pub(super) target: Target,
}

impl Mapping {
    /// As an entry of a table.
    pub(super) fn entry(self, net: bool) -> [u8; MAPPING_LEN] {
        let mut entry = [0; MAPPING_LEN];
        let offset = if net { self.offset.to_be_bytes() } else { self.offset.to_le_bytes() };
        entry[..8].copy_from_slice(&offset);
        entry[8..].copy_from_slice(&self.target.entry(net));
        entry
    }
}

/// What a side says of itself when it asks for a connection, and when it accepts one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Connect {
    /// Its host writes tables in network order.
    pub(super) net: bool,
    /// Messages that it takes.
    pub(super) credits: u16,
    /// Entries of its table of mappings; 0 where it has none.
    pub(super) mappings: u32,
    /// Its table of buffers; `len` counts entries.
    pub(super) table: Target,
    /// The first buffer.
    pub(super) buffer: Target,
}

/// Counts up to 128 as they are, and larger ones in steps of 256: 8 bits.
fn scaled(count: u32) -> u8 {
    if count <= 128 { count as u8 } else { 128 | (count >> 8).min(127) as u8 }
}

/// Back from [`scaled`], which has rounded down.
fn unscaled(byte: u8) -> u32 {
    if byte <= 128 { byte.into() } else { u32::from(byte & 127) << 8 }
}

/// How many mappings a count that is told to the peer comes to.
pub(super) fn tellable(count: u32) -> u32 {
    unscaled(scaled(count))
}

impl Connect {
    /// As private data.
    pub(super) fn emit(&self) -> [u8; CONNECT_LEN] {
        let mut bytes = [0; CONNECT_LEN];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP | if self.net { FLAG_NET } else { 0 };
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = scaled(self.mappings);
        bytes[8..24].copy_from_slice(&self.table.entry(true));
        bytes[24..].copy_from_slice(&self.buffer.entry(true));
        bytes
    }

    /// From private data, which may be longer.
    pub(super) fn parse(bytes: &[u8]) -> Result<Connect, Malformed> {
        let Some((bytes, _)) = bytes.split_first_chunk::<CONNECT_LEN>() else {
            return Err(Malformed::Connect);
        };
        let word = |at: usize| u32::from_be_bytes(core::array::from_fn(|i| bytes[at + i]));
        let target = |at: usize| Target {
            addr: u64::from(word(at)) << 32 | u64::from(word(at + 4)),
            key: word(at + 8),
            len: word(at + 12),
        };
        if bytes[0] != VERSION {
            return Err(Malformed::Connect);
        }
        let mappings = if bytes[1] & FLAG_IOMAP != 0 { unscaled(bytes[7]) } else { 0 };
        let connect = Connect {
            net: bytes[1] & FLAG_NET != 0,
            credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            mappings,
            table: target(8),
            buffer: target(24),
        };
        if connect.table.len == 0 { Err(Malformed::Connect) } else { Ok(connect) }
    }
}

/// A message in immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// So many bytes have been written behind those before.
    Data(u32),
    /// Messages up to this one may be sent; and the table of buffers may have a new entry.
    Credit(u16),
    /// An entry of the table of mappings was written.
    Mapped(u32),
    /// The peer sends no more, and takes no more.
    Disconnect,
    /// The peer is there.
    Keepalive,
    /// The peer sends no more.
    Shutdown,
}

impl Message {
    /// As immediate data.
    pub(super) fn emit(self) -> u32 {
        let (kind, value) = match self {
            Message::Data(bytes) => (DATA, bytes),
            Message::Credit(up_to) => (CREDIT, up_to.into()),
            Message::Mapped(index) => (MAPPED, index),
            Message::Disconnect => (CONTROL, DISCONNECT),
            Message::Keepalive => (CONTROL, KEEPALIVE),
            Message::Shutdown => (CONTROL, SHUTDOWN),
        };
        assert!(value <= VALUE_MAX, "a value of 29 bits");
        kind << KIND_SHIFT | value
    }

    /// From immediate data.
    pub(super) fn parse(immediate: u32) -> Result<Message, Malformed> {
        let value = immediate & VALUE_MAX;
        match (immediate >> KIND_SHIFT, value) {
            (DATA, _) => Ok(Message::Data(value)),
            // Peers count to 2^16; what is above does not matter.
            (CREDIT, _) => Ok(Message::Credit(value as u16)),
            (MAPPED, _) => Ok(Message::Mapped(value)),
            (CONTROL, DISCONNECT) => Ok(Message::Disconnect),
            (CONTROL, KEEPALIVE) => Ok(Message::Keepalive),
            (CONTROL, SHUTDOWN) => Ok(Message::Shutdown),
            _ => Err(Malformed::Message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT: Connect = Connect {
        net: false,
        credits: 384,
        mappings: 1,
        table: Target { addr: 0x1122_3344_5566_7788, key: 0x0a0b_0c0d, len: 2 },
        buffer: Target { addr: 0x99aa_bbcc_ddee_ff00, key: 0x0102_0304, len: 65536 },
    };

    #[test]
    fn private_data_has_the_documented_bytes() {
        let bytes = CONNECT.emit();
        assert_eq!(bytes[..8], [1, 2, 1, 0x80, 0, 0, 0, 1]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788u64.to_be_bytes());
        assert_eq!(bytes[16..24], [0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 2]);
        assert_eq!(bytes[36..], [0, 1, 0, 0]);
        assert_eq!(Connect::parse(&bytes), Ok(CONNECT));
        let mut padded = bytes.to_vec();
        padded.extend([0; 16]);
        assert_eq!(Connect::parse(&padded), Ok(CONNECT));
    }

    #[test]
    fn strangers_are_refused() {
        let bytes = CONNECT.emit();
        assert_eq!(Connect::parse(&bytes[..39]), Err(Malformed::Connect));
        assert_eq!(Connect::parse(&[]), Err(Malformed::Connect));
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(Connect::parse(&other), Err(Malformed::Connect));
        let mut without_table = bytes;
        without_table[20..24].fill(0);
        assert_eq!(Connect::parse(&without_table), Err(Malformed::Connect));
    }

    #[test]
    fn messages_go_there_and_back_and_all_others_are_refused() {
        let all = [
            (Message::Data(VALUE_MAX), 0x1fff_ffff),
            (Message::Credit(0xffff), 0x8000_ffff),
            (Message::Mapped(3), 0xc000_0003),
            (Message::Disconnect, 0xe000_0000),
            (Message::Keepalive, 0xe000_0001),
            (Message::Shutdown, 0xe000_0002),
        ];
        for (message, immediate) in all {
            assert_eq!(message.emit(), immediate);
            assert_eq!(Message::parse(immediate), Ok(message));
        }
        for immediate in [0x2000_0000, 0x4000_0001, 0x6000_0000, 0xa000_0000, 0xe000_0003] {
            assert_eq!(Message::parse(immediate), Err(Malformed::Message), "{immediate:#x}");
        }
    }

    #[test]
    fn counts_of_mappings_survive_their_eight_bits() {
        for count in (0..=128).chain([256, 512, 127 << 8]) {
            assert_eq!(tellable(count), count);
        }
        assert_eq!(tellable(300), 256);
        assert_eq!(tellable(u32::MAX), 127 << 8);
    }
}
