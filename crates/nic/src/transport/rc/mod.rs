//! Reliable connection and XRC: PSNs in order, acknowledgements, retries (IBTA 9.7).
//!
//! Recovery is go-back-N: the responder takes packets in PSN order only and NAKs the first gap; the
//! requester goes back to it and sends everything again. [`recovery`] is the requester's side of it,
//! [`responder`] the other one. Between two NICs that offer it, [`irn`] takes the place of both.

pub mod irn;
pub(crate) mod recovery;
pub(crate) mod responder;

/// Time that an RNR NAK's 5-bit code stands for (IBTA table 49).
pub(crate) fn rnr_time(code: u8) -> adverb_wire::Duration {
    /// In units of 10 us.
    const TABLE: [u16; 32] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let tens = match code & 0x1f {
        0 => 65536,
        n => TABLE[n as usize] as u64,
    };
    adverb_wire::Duration::from_us(10 * tens)
}
