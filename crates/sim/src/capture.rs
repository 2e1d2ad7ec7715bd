//! Captures of links: every packet that reaches a link's end, in a pcap stream. A packet whose payload
//! is elided is recorded cut off behind its headers, with its true length.

use crate::link::LINK_CAPTURE;
use crate::packet::Packets;
use crate::sim::Sim;
use adverb_wire::packet::{MAX_IP_HEADER_LEN, WireExtra};
use adverb_wire::pcap::{LinkType, Writer};
use std::io::{self, Write};

/// Where a link's packets go.
struct Sink {
    link: u32,
    out: Writer<Box<dyn Write + Send>>,
    error: Option<io::Error>,
}

/// The captures of a run.
#[derive(Default)]
pub struct Captures {
    sinks: Vec<Sink>,
    frame: Vec<u8>,
}

impl Captures {
    /// Records a packet that reached the end of `link`. After an error nothing more is written.
    pub(crate) fn write(&mut self, link: u32, now: u64, packets: &Packets, id: u32) {
        let packet = packets.descriptor(id);
        let extra = WireExtra::default();
        self.frame.resize(packet.frame_len().max(MAX_IP_HEADER_LEN), 0);
        let len = match packets.payload(id) {
            Some(bytes) => packet.emit_frame(&extra, bytes, &mut self.frame),
            None if packet.payload_len == 0 => packet.emit_frame(&extra, &[], &mut self.frame),
            None => packet.emit_ip(&mut self.frame),
        };
        let (seconds, nanos) = ((now / 1_000_000_000_000) as u32, (now / 1000 % 1_000_000_000) as u32);
        for sink in self.sinks.iter_mut().filter(|s| s.link == link && s.error.is_none()) {
            let piece = [&self.frame[..len]];
            sink.error = sink.out.record_cut(seconds, nanos, &piece, packet.frame_len()).err();
        }
    }
}

impl Sim {
    /// Captures what arrives at the end of a link from now on.
    pub fn capture(&mut self, link: u32, out: Box<dyn Write + Send>) -> io::Result<()> {
        let out = Writer::new(out, LinkType::Raw)?;
        self.captures.sinks.push(Sink { link, out, error: None });
        self.links[link as usize].flags |= LINK_CAPTURE;
        Ok(())
    }

    /// Writes out what the captures hold; the first error of any of them.
    pub fn finish_captures(&mut self) -> io::Result<()> {
        for mut sink in self.captures.sinks.drain(..) {
            self.links[sink.link as usize].flags &= !LINK_CAPTURE;
            if let Some(error) = sink.error {
                return Err(error);
            }
            sink.out.flush()?;
        }
        Ok(())
    }
}
