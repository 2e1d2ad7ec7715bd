//! What this crate does with a [`Mapping`] besides its words: bytes are copied as a NIC copies them, and all
//! of it is registered with a NIC. What is read may be torn where somebody writes at the same time.
#![allow(unsafe_code)]

use adverb_nic::memory::{MrInit, Span, dma};
use adverb_nic::{Access, MrInfo, OneRma, PdId};
use adverb_os::mapping::Mapping;

/// # Panics
/// If the range is not inside.
fn span(mapping: &Mapping, offset: usize, len: usize) -> Span {
    assert!(offset <= mapping.len() && len <= mapping.len() - offset, "inside the memory");
    // SAFETY: inside the mapping, which lives as long as the borrow; callers use the span within their own
    // call.
    unsafe { Span::new(mapping.addr() + offset as u64, len) }
}

/// Copies bytes out.
///
/// # Panics
/// If the bytes are not inside.
pub(crate) fn read(mapping: &Mapping, offset: usize, out: &mut [u8]) {
    dma::read_bytes(span(mapping, offset, out.len()), out);
}

/// Copies bytes in.
///
/// # Panics
/// If the bytes are not inside.
pub(crate) fn write(mapping: &Mapping, offset: usize, bytes: &[u8]) {
    dma::write_bytes(span(mapping, offset, bytes.len()), bytes);
}

/// Registers all of it. The caller keeps the mapping until it has deregistered it.
pub(crate) fn register(mapping: &Mapping, nic: &mut OneRma, pd: PdId) -> Result<MrInfo, adverb_nic::Error> {
    let (addr, len) = (mapping.addr(), mapping.len() as u64);
    let init = MrInit { pd, addr, len, iova: addr, access: Access::LOCAL_WRITE };
    // SAFETY: who registers keeps the mapping beside the registration (`memory.rs`, `nicd/tenant.rs`), and
    // drops it after the other.
    unsafe { nic.memory().reg_mr(&init) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put_and_nowhere_else() {
        let memory = Mapping::anonymous(100).unwrap();
        let mut out = [9; 5];
        read(&memory, 95, &mut out);
        assert_eq!(out, [0; 5]);
        write(&memory, 3, b"12345");
        read(&memory, 3, &mut out);
        assert_eq!(&out, b"12345");
        for wrong in [96, 97, usize::MAX] {
            assert!(std::panic::catch_unwind(|| write(&memory, wrong, b"12345")).is_err());
        }
    }
}
