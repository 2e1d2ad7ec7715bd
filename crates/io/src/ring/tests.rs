use super::*;
use crate::shm::anonymous_file;
use adverb_nic::memory::Gather;
use adverb_wire::{Flow, Gid};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

/// Both ends of one ring, mapped apart as in two processes.
fn pair(len: usize) -> (Producer, Consumer) {
    let file = anonymous_file(Mirror::file_len(len)).unwrap();
    let map = || Mirror::map(file.as_fd(), len).unwrap();
    (Producer::new(map()), Consumer::new(map()))
}

fn take(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (frame, taken) = consumer.next().unwrap()?;
    frame.copy_to(&mut bytes);
    assert_eq!(frame.len(), bytes.len());
    consumer.skip(taken);
    Some(bytes)
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Publish,
    Take(usize),
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0usize..5000).prop_map(Step::Push),
        2 => Just(Step::Publish),
        2 => (1usize..10).prop_map(Step::Take),
        1 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 1..300)
}

proptest! {
    /// Against a model: a queue of frames, of which some are published.
    #[test]
    fn a_ring_is_a_queue(steps in steps()) {
        let (mut producer, mut consumer) = pair(4 * PAGE);
        let (mut model, mut published) = (VecDeque::new(), 0);
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Push(len) => {
                    let frame = vec![number as u8; len];
                    let fits = producer.has_room(entry_len(WORD, len)).unwrap();
                    prop_assert_eq!(producer.push_bytes(&frame).unwrap(), fits);
                    if fits {
                        model.push_back(frame);
                    } else {
                        // Refused only if what is published, read or not, takes the room.
                        prop_assert!(!model.is_empty() || consumer.unreleased() > 0);
                    }
                }
                Step::Publish => {
                    producer.publish();
                    prop_assert_eq!(producer.unpublished(), 0);
                    published = model.len();
                }
                Step::Take(count) => {
                    for _ in 0..count {
                        let expected = if published > 0 { model.pop_front() } else { None };
                        published = published.saturating_sub(1);
                        prop_assert_eq!(take(&mut consumer), expected);
                    }
                }
                Step::Release => {
                    consumer.release();
                    prop_assert_eq!(consumer.unreleased(), 0);
                }
            }
            prop_assert_eq!(consumer.has_frames(), published > 0);
        }
    }

    /// Whatever the producer's process writes, the consumer stays inside the mapping and reports it.
    #[test]
    fn hostile_producers_are_survived(tail: u64, words in proptest::collection::vec(any::<u64>(), 1..64)) {
        let (producer, mut consumer) = pair(PAGE);
        for (i, word) in words.iter().enumerate() {
            // SAFETY: 64 words of 64 bytes are the page.
            unsafe { producer.map.data().add(i * ALIGN).cast::<u64>().write(*word) };
        }
        for tail in [tail, tail % (2 * PAGE as u64), (tail % 65) * ALIGN as u64] {
            producer.map.control().u64_at(TAIL_AT).store(tail, Ordering::Relaxed);
            let mut bytes = Vec::new();
            for _ in 0..200 {
                let Ok(Some((frame, taken))) = consumer.next() else { break };
                frame.copy_to(&mut bytes);
                let mut prefix = [0; MAX_IP_PREFIX_LEN];
                let len = frame.read_prefix(&mut prefix);
                prop_assert_eq!(&prefix[..len], &bytes[..len]);
                prop_assert!(frame.payload(frame.len(), 1).is_none());
                prop_assert!(frame.payload(usize::MAX, 2).is_none());
                consumer.skip(taken);
            }
            consumer.release();
        }
    }

    #[test]
    fn hostile_consumers_are_survived(head: u64) {
        let (mut producer, _consumer) = pair(PAGE);
        while producer.push_bytes(&[1; 100]).unwrap() {}
        producer.publish();
        producer.map.control().u64_at(HEAD_AT).store(head, Ordering::Relaxed);
        let honest = head <= PAGE as u64;
        match producer.has_room(PAGE) {
            Ok(_) => prop_assert!(honest),
            Err(Broken) => {
                prop_assert!(!honest);
                // Broken for good.
                producer.map.control().u64_at(HEAD_AT).store(0, Ordering::Relaxed);
                prop_assert_eq!(producer.has_room(PAGE), Err(Broken));
            }
        }
    }
}

#[test]
fn packets_arrive_as_emitted() {
    let (mut producer, mut consumer) = pair(4 * PAGE);
    let gid = |last| Gid::from(Ipv4Addr::new(127, 0, 0, last));
    let flow = Flow { src: gid(1), dst: gid(2), src_port: 4791, traffic_class: 0, hop_limit: 64 };
    for _ in 0..100 {
        let packet = Packet { flow, ..Packet::default() };
        assert_eq!(producer.push_packet(&packet, &Gather::new()), Ok(true));
        producer.publish();
        let (frame, taken) = consumer.next().unwrap().unwrap();
        assert_eq!(frame.flags, ICRC_ELIDED);
        let mut prefix = [0; MAX_IP_PREFIX_LEN];
        let len = frame.read_prefix(&mut prefix);
        let parsed = Packet::parse_ip_headers(&prefix[..len], frame.len()).unwrap();
        assert_eq!(parsed.packet, packet);
        consumer.skip(taken);
        consumer.release();
    }
}

#[test]
fn large_payloads_start_at_cache_lines() {
    for header_len in 40..120 {
        let offset = frame_offset(header_len, 4096);
        assert!((offset + header_len).is_multiple_of(ALIGN) && (WORD..=OFFSET_MAX).contains(&offset));
        assert!(entry_len(offset, header_len + 4096 + 3 + ICRC_LEN) <= MAX_ENTRY);
    }
}

#[test]
fn a_waiting_producer_is_told_once_half_is_free() {
    let (mut producer, mut consumer) = pair(PAGE);
    while producer.push_bytes(&[0; 1]).unwrap() {}
    producer.publish();
    assert_eq!(producer.wait_for_room(), Ok(true));
    let mut told = Vec::new();
    for i in 1..=64 {
        assert!(take(&mut consumer).is_some());
        if consumer.release() {
            told.push(i);
        }
        assert_eq!(producer.seems_drained(), i >= 32);
    }
    assert_eq!(told, [32]);
    assert_eq!(producer.has_drained(), Ok(true));
    assert_eq!(producer.wait_for_room(), Ok(false));
}

#[test]
fn two_threads_pass_a_million_bytes_in_order() {
    const FRAMES: u32 = if cfg!(miri) { 50 } else { 50_000 };
    let (mut producer, mut consumer) = pair(4 * PAGE);
    let sender = std::thread::spawn(move || {
        let mut next = 0u32;
        while next < FRAMES {
            let bytes = next.to_le_bytes();
            let frame: Vec<u8> =
                bytes.iter().copied().cycle().take(4 + (next as usize * 37) % 3000).collect();
            if producer.push_bytes(&frame).unwrap() {
                next += 1;
                if next.is_multiple_of(3) || next == FRAMES {
                    producer.publish();
                }
            } else {
                producer.publish();
                std::thread::yield_now();
            }
        }
    });
    let mut frame = Vec::new();
    for expected in 0..FRAMES {
        loop {
            if let Some((found, taken)) = consumer.next().unwrap() {
                found.copy_to(&mut frame);
                consumer.skip(taken);
                break;
            }
            consumer.release();
            std::thread::yield_now();
        }
        assert_eq!(frame.len(), 4 + (expected as usize * 37) % 3000);
        let bytes = expected.to_le_bytes();
        assert!(frame.iter().enumerate().all(|(i, &b)| b == bytes[i % 4]), "frame {expected}");
    }
    sender.join().unwrap();
}
