//! Captures of links: every packet that reaches a link's end, in a pcap stream. A packet whose payload
//! is elided is recorded cut off behind its headers, with its true length.

use crate::fabric::link::LINK_CAPTURE;
use crate::fabric::packet::{FLAG_MESSAGE, Packets};
use crate::sim::Sim;
use adverb_wire::ip::{IPV4_DF, IPV4_LEN, Ipv4, PROTOCOL_UDP};
use adverb_wire::one_rma::UDP_PORT;
use adverb_wire::packet::{MAX_IP_HEADER_LEN, WireExtra};
use adverb_wire::pcap::{LinkType, Writer};
use adverb_wire::udp::{UDP_LEN, Udp};
use adverb_wire::{Gid, Packet};
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
        if self.sinks.is_empty() {
            return;
        }
        let packet = packets.descriptor(id);
        if let Some(message) =
            packets.payload(id).filter(|_| packets.hot[id as usize].flags & FLAG_MESSAGE != 0)
        {
            return self.write_message(link, now, &packet, message);
        }
        let extra = WireExtra::default();
        self.frame.resize(packet.frame_len().max(MAX_IP_HEADER_LEN), 0);
        let len = match packets.payload(id) {
            Some(bytes) => packet.emit_frame(&extra, bytes, &mut self.frame),
            None if packet.payload_len == 0 => packet.emit_frame(&extra, &[], &mut self.frame),
            None => packet.emit_ip(&mut self.frame),
        };
        self.record(link, now, len, packet.frame_len());
    }

    /// Records a message of 1RMA, in a UDP datagram of its own port.
    fn write_message(&mut self, link: u32, now: u64, packet: &Packet, message: &[u8]) {
        let last = |gid: &Gid| [gid.0[12], gid.0[13], gid.0[14], gid.0[15]];
        let datagram = (UDP_LEN + message.len()) as u16;
        let ip = Ipv4 {
            header_len: IPV4_LEN as u8,
            tos: 0,
            total_len: IPV4_LEN as u16 + datagram,
            id: 0,
            flags: IPV4_DF,
            ttl: packet.flow.hop_limit,
            protocol: PROTOCOL_UDP,
            src: last(&packet.flow.src),
            dst: last(&packet.flow.dst),
        };
        let udp = Udp { src_port: packet.flow.src_port, dst_port: UDP_PORT, len: datagram, checksum: 0 };
        let (mut first, mut second) = ([0; IPV4_LEN], [0; UDP_LEN]);
        ip.emit(&mut first);
        udp.write(&mut second);
        self.frame.clear();
        self.frame.extend_from_slice(&first);
        self.frame.extend_from_slice(&second);
        self.frame.extend_from_slice(message);
        self.record(link, now, self.frame.len(), self.frame.len());
    }

    /// Writes the first `len` bytes of the frame, which has `of`.
    fn record(&mut self, link: u32, now: u64, len: usize, of: usize) {
        let (seconds, nanos) = ((now / 1_000_000_000_000) as u32, (now / 1000 % 1_000_000_000) as u32);
        for sink in self.sinks.iter_mut().filter(|s| s.link == link && s.error.is_none()) {
            let piece = [&self.frame[..len]];
            sink.error = sink.out.record_cut(seconds, nanos, &piece, of).err();
        }
    }
}

impl Sim {
    /// Captures what arrives at the end of a link from now on.
    pub fn capture(&mut self, link: u32, out: Box<dyn Write + Send>) -> io::Result<()> {
        let out = Writer::new(out, LinkType::Raw)?;
        self.watch.captures.sinks.push(Sink { link, out, error: None });
        self.fabric.links[link as usize].flags |= LINK_CAPTURE;
        Ok(())
    }

    /// Writes out what the captures hold; the first error of any of them.
    pub fn finish_captures(&mut self) -> io::Result<()> {
        for mut sink in self.watch.captures.sinks.drain(..) {
            self.fabric.links[sink.link as usize].flags &= !LINK_CAPTURE;
            if let Some(error) = sink.error {
                return Err(error);
            }
            sink.out.flush()?;
        }
        Ok(())
    }
}
