//! A ring against a model, hostile ends of it, and two threads at once.

use super::*;
use crate::shm::anonymous_file;
use adverb_wire::{Bth, Flow, Gid, Opcode, Operation, Psn, Service};
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

/// The address of both ends: 127.0.0.1.
const OWN: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);

/// Headers of several lengths, with and without a payload.
const OPCODES: [Opcode; 4] = [
    Opcode::new(Service::Rc, Operation::WriteMiddle),
    Opcode::new(Service::Rc, Operation::WriteOnly),
    Opcode::new(Service::Rc, Operation::WriteOnlyImm),
    Opcode::new(Service::Ud, Operation::SendOnlyImm),
];

/// Words, of which many are plausible.
fn hostile_word() -> impl Strategy<Value = u64> {
    let plausible =
        (0u16..300, WORD as u8..80, 0u8..8, any::<u32>()).prop_map(|(len, offset, flags, rest)| {
            Word { len, offset, flags: flags | VALID, ..Word::unpack(u64::from(rest) << 32) }.pack()
        });
    prop_oneof![1 => any::<u64>(), 4 => plausible]
}

fn take(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (frame, taken) = consumer.peek().unwrap()?;
    frame.copy_to(&mut bytes);
    assert_eq!(frame.frame_len(), bytes.len());
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
                    let fits = producer.has_room(entry_len(frame_offset(0, len), len)).unwrap();
                    prop_assert_eq!(producer.push_bytes(&frame, 0).unwrap(), fits);
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
    fn hostile_producers_are_survived(
        words in proptest::collection::vec(hostile_word(), 1..64),
        bytes in proptest::collection::vec(any::<u8>(), PAGE),
    ) {
        let (producer, mut consumer) = pair(PAGE);
        // SAFETY: the page, of which 64 words of 64 bytes are a part.
        unsafe {
            producer.map.data().copy_from_nonoverlapping(bytes.as_ptr(), PAGE);
            for (i, word) in words.iter().enumerate() {
                producer.map.data().add(i * ALIGN).cast::<u64>().write(*word);
            }
        }
        producer.map.control().u64_at(TAIL_AT).store(words[0], Ordering::Relaxed);
        let mut bytes = Vec::new();
        for _ in 0..200 {
            let Ok(Some((frame, taken))) = consumer.peek() else { break };
            frame.copy_to(&mut bytes);
            if let Ok(headers) = frame.parse_headers(OWN) {
                let len = headers.packet.payload_len as usize;
                prop_assert!(frame.part(headers.payload_offset, len).is_some());
                prop_assert!(!frame.is_compact() || headers.packet.flow.src == OWN);
            }
            prop_assert!(frame.part(frame.frame_len(), 1).is_none());
            prop_assert!(frame.part(usize::MAX, 2).is_none());
            consumer.skip(taken);
        }
        consumer.release();
    }

    /// A packet arrives as it left, compact or whole, among others, and only once it is published.
    #[test]
    fn packets_arrive_as_emitted(
        sizes in proptest::collection::vec(
            (0usize..4097, 0usize..OPCODES.len(), any::<[u8; 4]>(), any::<bool>()), 1..40),
    ) {
        let (mut producer, mut consumer) = pair(64 * PAGE);
        let mut sent = Vec::new();
        for (len, opcode, [class, hops, port, last], compact) in sizes {
            let other = Gid::from(Ipv4Addr::new(127, 0, 0, last));
            let packet = Packet {
                flow: Flow {
                    src: if compact { OWN } else { other },
                    dst: OWN,
                    src_port: 0xc000 | u16::from(port),
                    traffic_class: class,
                    hop_limit: hops,
                },
                bth: Bth { opcode: OPCODES[opcode], psn: Psn::new(len as u32), ..Bth::default() },
                payload_len: len as u32,
                ..Packet::default()
            };
            // SAFETY: as many bytes as the packet says that its payload has.
            let write = |at: *mut u8| unsafe { at.write_bytes(7, len) };
            prop_assert_eq!(producer.push_packet(OWN, &packet, write), Ok(true));
            sent.push((packet, compact || packet.flow.src == OWN));
        }
        prop_assert!(!consumer.has_frames() && consumer.peek().unwrap().is_none());
        producer.publish();
        for (packet, compact) in sent {
            let (frame, taken) = consumer.peek().unwrap().unwrap();
            prop_assert_eq!((frame.elides_icrc(), frame.is_compact()), (true, compact));
            let headers = frame.parse_headers(OWN).unwrap();
            prop_assert_eq!(headers.packet, packet);
            let found = frame.part(headers.payload_offset, packet.payload_len as usize).unwrap();
            let mut bytes = Vec::new();
            frame.copy_to(&mut bytes);
            let payload = &bytes[headers.payload_offset..][..packet.payload_len as usize];
            prop_assert!(payload.iter().all(|&b| b == 7));
            let large = payload.len() >= ALIGNED_PAYLOAD_MIN && frame.is_compact();
            prop_assert!(!large || found.addr().is_multiple_of(ALIGN));
            consumer.skip(taken);
        }
        prop_assert!(consumer.peek().unwrap().is_none());
    }

    #[test]
    fn hostile_consumers_are_survived(head: u64) {
        let (mut producer, _consumer) = pair(PAGE);
        while producer.push_bytes(&[1; 100], 0).unwrap() {}
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
fn small_writes_take_few_lines() {
    let lines = |payload: usize| entry_len(frame_offset(28, payload), 28 + payload) / ALIGN;
    assert_eq!((lines(0), lines(8), lines(28), lines(64), lines(92)), (1, 1, 1, 2, 2));
}

#[test]
fn large_payloads_start_at_cache_lines() {
    for header_len in 12..=MAX_BTH_HEADER_LEN {
        let offset = frame_offset(header_len, 4096);
        assert!((offset + header_len).is_multiple_of(ALIGN) && (WORD..=OFFSET_MAX).contains(&offset));
        assert!(entry_len(offset, header_len + 4096 + 3 + ICRC_LEN) <= MAX_ENTRY);
    }
}

#[test]
fn a_waiting_producer_is_told_once_half_is_free() {
    let (mut producer, mut consumer) = pair(PAGE);
    while producer.push_bytes(&[0; 1], 0).unwrap() {}
    producer.publish();
    assert_eq!(producer.wait_for_room(), Ok(true));
    let mut told = Vec::new();
    // One line is for the word behind the last entry.
    for i in 1..=63 {
        assert!(take(&mut consumer).is_some());
        if consumer.release() {
            told.push(i);
        }
        assert_eq!(producer.seems_drained(), i >= 31);
    }
    assert_eq!(told, [31]);
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
            if producer.push_bytes(&frame, 0).unwrap() {
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
            if let Some((found, taken)) = consumer.peek().unwrap() {
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

#[test]
fn a_sleeping_consumer_is_woken_once() {
    let (mut producer, mut consumer) = pair(PAGE);
    assert!(!producer.take_sleep());
    consumer.set_sleeps(true);
    assert!(producer.take_sleep() && !producer.take_sleep());
    consumer.set_sleeps(true);
    consumer.set_sleeps(false);
    assert!(!producer.take_sleep());

    assert_eq!(producer.progress(), Ok((0, 0)));
    assert!(producer.push_bytes(&[1; 300], 0).unwrap());
    producer.publish();
    assert_eq!(producer.progress(), Ok((0, 384)));
    assert!(take(&mut consumer).is_some());
    consumer.release();
    // 64 bytes before the frame, 300 of it, whole lines.
    assert_eq!(producer.progress(), Ok((384, 384)));
}
