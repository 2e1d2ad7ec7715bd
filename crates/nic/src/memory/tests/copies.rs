//! Spans, gathers, payloads, copies of all lengths and alignments, queue memory.

use super::super::copy as raw;
use super::*;

const SHARED: raw::Source = raw::Source::Shared;

/// Lengths around every branch of the copies.
fn lengths() -> Vec<usize> {
    let mut lengths: Vec<usize> = (0..=200).collect();
    for edge in [256, 320, 512, 1024, 1536, 4096] {
        lengths.extend(edge - 2..=edge + 2);
    }
    if cfg!(miri) { vec![0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 65, 130] } else { lengths }
}

fn alignments() -> &'static [usize] {
    if cfg!(miri) { &[0, 3] } else { &[0, 1, 2, 3, 4, 7, 8, 15, 31, 33, 63] }
}

/// Runs a copy of each length between each pair of alignments; it must change exactly its target.
fn exact(copy: impl Fn(&Host, usize, &Host, usize, usize)) {
    let (src, dst) = (Host::new(8192), Host::new(8192));
    for i in 0..8192 {
        // SAFETY: inside.
        unsafe { src.at(i).write((i % 251) as u8) };
    }
    for &a in alignments() {
        for &b in alignments() {
            for len in lengths() {
                dst.fill(0xee);
                copy(&dst, 64 + a, &src, b, len);
                assert_eq!(dst.bytes(64 + a, len), src.bytes(b, len), "{len} bytes, {b} to {a}");
                let around = dst.bytes(0, 64 + a).into_iter().chain(dst.bytes(64 + a + len, 64));
                assert!(around.into_iter().all(|byte| byte == 0xee), "{len} bytes, {b} to {a}");
            }
        }
    }
}

#[test]
fn plain_copies_are_exact() {
    // SAFETY: `exact` stays inside both.
    exact(|dst, to, src, from, len| unsafe { raw::copy(dst.at(to), src.at(from), len, SHARED) });
}

#[test]
fn ordered_copies_are_exact() {
    exact(|dst, to, src, from, len| dma::copy(dst.span(to, len), src.span(from, len)));
}

#[test]
fn portable_copies_are_exact() {
    // SAFETY: `exact` stays inside both.
    exact(|dst, to, src, from, len| unsafe { raw::portable::copy(dst.at(to), src.at(from), len, SHARED) });
    exact(|dst, to, src, from, len| {
        if matches!(len, 1 | 2 | 4 | 8) {
            // SAFETY: as above.
            unsafe { raw::portable::copy_word(dst.at(to), src.at(from), len, SHARED) }
        } else {
            // SAFETY: as above.
            unsafe { raw::portable::copy(dst.at(to), src.at(from), len, SHARED) }
        }
    });
}

#[test]
fn private_bytes_in_and_out() {
    exact(|dst, to, src, from, len| {
        let mut bytes = vec![0; len];
        dma::read_bytes(src.span(from, len + 3), &mut bytes);
        dma::write_bytes(dst.span(to, len + 5), &bytes);
    });
    exact(|dst, to, src, from, len| {
        let bytes = src.bytes(from, len);
        let mut whole = vec![0xaa; 7];
        whole.extend(&bytes);
        dma::write(dst.span(to, len), &Payload::from_slice(&whole), 7, len);
    });
}

#[test]
fn a_payload_is_bytes_or_only_their_number() {
    let host = Host::new(64);
    host.fill(7);
    // SAFETY: `host` outlives the payload.
    let raw = unsafe { Payload::from_raw(host.at(8), 4) };
    let mut out = [0; 3];
    raw.read(1, &mut out);
    assert_eq!(out, [7; 3]);
    assert!(!raw.is_elided() && raw.len() == 4 && raw.slice(1, 2).len() == 2);

    let elided = Payload::elided(32);
    assert!(elided.is_elided() && elided.len() == 32 && !elided.is_empty());
    assert!(elided.slice(4, 8).is_elided());
    dma::write(host.span(0, 32), &elided, 0, 32);
    assert_eq!(host.bytes(0, 64), [7; 64]);
    elided.read(0, &mut out);
    assert_eq!(out, [0; 3]);
    assert!(Payload::EMPTY.is_empty());
    assert!(!Payload::from_slice(&[]).is_elided());
}

#[test]
fn copies_and_slices_outside_are_our_own_bug() {
    let host = Host::new(64);
    let span = host.span(0, 16);
    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| ignore(span.slice(0, 17))));
    assert!(panics(&|| ignore(span.slice(17, 0))));
    assert!(panics(&|| ignore(span.slice(usize::MAX, 2))));
    assert!(!panics(&|| ignore(span.slice(16, 0))));
    assert!(panics(&|| dma::write(span, &Payload::from_slice(&[0; 17]), 0, 17)));
    assert!(panics(&|| dma::write(span, &Payload::from_slice(&[0; 8]), 1, 8)));
    assert!(panics(&|| dma::write(span, &Payload::elided(8), 1, 8)));
    assert!(panics(&|| dma::copy(span, host.span(0, 17))));
    assert!(panics(&|| dma::write_bytes(span, &[0; 17])));
    assert!(panics(&|| dma::read_bytes(span, &mut [0; 17])));
    assert!(panics(&|| ignore(dma::fetch_add(host.span(4, 8), 1))));
    assert!(panics(&|| ignore(dma::compare_swap(host.span(0, 7), 1, 1))));
    assert!(panics(&|| Payload::elided(8).read(6, &mut [0; 3])));
    assert_eq!(host.bytes(0, 64), [0; 64]);
}

#[test]
fn a_gather_collects_in_order() {
    let host = Host::new(4096);
    for i in 0..4096 {
        // SAFETY: inside.
        unsafe { host.at(i).write((i % 251) as u8) };
    }
    let mut gather = Gather::new();
    for round in 0..3 {
        gather.clear();
        assert!(gather.is_empty() && gather.spans().is_empty());
        let mut expected = Vec::new();
        for i in 0..Gather::CAPACITY {
            let (offset, len) = (i * 100 + round, i * 3 + round);
            gather.push(host.span(offset, len));
            expected.extend(host.bytes(offset, len));
        }
        gather.push(Span::EMPTY);
        assert_eq!(gather.len(), expected.len());
        let mut out = vec![0xee; expected.len() + 1];
        gather.read(&mut out);
        assert_eq!((&out[..expected.len()], out[expected.len()]), (&expected[..], 0xee));
    }
    gather.clear();
    for _ in 0..Gather::CAPACITY {
        gather.push(host.span(0, 1));
    }
    let mut short = [0; 3];
    let full = std::panic::AssertUnwindSafe(&mut gather);
    assert!(std::panic::catch_unwind(move || { full }.0.push(host.span(0, 1))).is_err());
    assert!(std::panic::catch_unwind(move || gather.read(&mut short)).is_err());
}

#[test]
fn queue_memory_is_words_blocks_and_spans() {
    let queue = QueueMemory::new(5000).unwrap();
    assert_eq!((queue.len(), queue.addr() % 4096), (5000, 0));
    assert_eq!(queue.read_block(4928), [0; 64]);
    let block: Vec<u8> = (1..=64).collect();
    queue.write(4096, &block);
    assert_eq!(queue.read_block(4096)[..], block[..]);
    assert_eq!(queue.read_u32_be(4100), 0x0506_0708);
    let span = queue.span(4098, 2);
    assert_eq!((span.addr(), span.len()), (queue.addr() + 4098, 2));
    dma::write_bytes(span, &[0xab, 0xcd]);
    assert_eq!(queue.read_u32_be(4096), 0x0102_abcd);

    let panics = |f: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(panics(&|| ignore(queue.read_u32_be(4998))));
    assert!(panics(&|| ignore(queue.read_u32_be(5000))));
    assert!(panics(&|| ignore(queue.read_u32_be(2))));
    assert!(panics(&|| ignore(queue.read_block(4960))));
    assert!(panics(&|| ignore(queue.read_block(4))));
    assert!(panics(&|| ignore(queue.span(4999, 2))));
    assert!(panics(&|| ignore(queue.span(usize::MAX, 1))));
    assert!(panics(&|| queue.write(4999, &[1, 2])));
    assert!(QueueMemory::new(usize::MAX).is_err());
    assert!(QueueMemory::new(isize::MAX as usize).is_err());
}

#[test]
fn a_queue_is_zeroed_and_its_spans_outlive_it() {
    // A size that no other test uses, so that the block comes back.
    let len = 4096 * 64;
    let first = QueueMemory::new(len).unwrap();
    first.write(100, &[9; 64]);
    let (addr, span) = (first.addr(), first.span(100, 64));
    drop(first);
    let mut bytes = [0; 64];
    dma::read_bytes(span, &mut bytes);
    assert_eq!(bytes, [9; 64]);
    let second = QueueMemory::new(len - 5).unwrap();
    assert_eq!(second.addr(), addr, "a block is used again");
    assert_eq!(second.read_block(96), [0; 64]);
    assert_ne!(QueueMemory::new(len).unwrap().addr(), addr, "but not twice at a time");
}
