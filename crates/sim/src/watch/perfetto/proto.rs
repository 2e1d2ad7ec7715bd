//! The part of Perfetto's trace format that is written: protobuf messages, by the field numbers of
//! `protos/perfetto/trace/trace_packet.proto` and `track_event/*.proto`.

/// Fields of `Trace`, `TracePacket`, `TrackDescriptor`, `CounterDescriptor`, `TrackEvent` and
/// `DebugAnnotation`.
mod field {
    pub const TRACE_PACKET: u32 = 1;
    pub const PACKET_TIMESTAMP: u32 = 8;
    pub const PACKET_SEQUENCE: u32 = 10;
    pub const PACKET_TRACK_EVENT: u32 = 11;
    pub const PACKET_TRACK_DESCRIPTOR: u32 = 60;
    pub const TRACK_UUID: u32 = 1;
    pub const TRACK_NAME: u32 = 2;
    pub const TRACK_PARENT: u32 = 5;
    pub const TRACK_COUNTER: u32 = 8;
    pub const COUNTER_UNIT_NAME: u32 = 6;
    pub const EVENT_ANNOTATION: u32 = 4;
    pub const EVENT_TYPE: u32 = 9;
    pub const EVENT_TRACK: u32 = 11;
    pub const EVENT_NAME: u32 = 23;
    pub const EVENT_COUNTER_VALUE: u32 = 30;
    pub const EVENT_COUNTER_DOUBLE: u32 = 44;
    pub const EVENT_FLOWS: u32 = 47;
    pub const EVENT_FLOWS_END: u32 = 48;
    pub const ANNOTATION_UINT: u32 = 3;
    pub const ANNOTATION_NAME: u32 = 10;
}

/// The one writer of a trace.
const SEQUENCE: u64 = 1;

/// What an event is, as `TrackEvent.Type` numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A slice begins.
    Begin = 1,
    /// The slice that began last on its track ends.
    End = 2,
    /// It takes no time.
    Instant = 3,
    /// A counter's value.
    Counter = 4,
}

/// A message that is being written.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn uint(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// A track: a row of slices, or a counter with its unit.
pub fn track(uuid: u64, parent: Option<u64>, name: &str, unit: Option<&str>) -> Vec<u8> {
    let mut track = Message::default();
    track.uint(field::TRACK_UUID, uuid);
    track.bytes(field::TRACK_NAME, name.as_bytes());
    if let Some(parent) = parent {
        track.uint(field::TRACK_PARENT, parent);
    }
    if let Some(unit) = unit {
        let mut counter = Message::default();
        counter.bytes(field::COUNTER_UNIT_NAME, unit.as_bytes());
        track.bytes(field::TRACK_COUNTER, &counter.0);
    }
    packet(None, field::PACKET_TRACK_DESCRIPTOR, &track)
}

/// An event on a track.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// When, in ns.
    pub at: u64,
    /// Its track.
    pub track: u64,
    /// What it is.
    pub kind: Kind,
    /// Its name; none for ends and counters.
    pub name: &'a str,
    /// What else is said of it.
    pub annotations: &'a [(&'a str, u64)],
    /// A flow that goes on from here, and one that ends here.
    pub flow: (Option<u64>, Option<u64>),
    /// A counter's value.
    pub value: f64,
}

impl Event<'_> {
    /// Its packet.
    pub fn written(&self) -> Vec<u8> {
        let mut event = Message::default();
        for (name, value) in self.annotations {
            let mut annotation = Message::default();
            annotation.uint(field::ANNOTATION_UINT, *value);
            annotation.bytes(field::ANNOTATION_NAME, name.as_bytes());
            event.bytes(field::EVENT_ANNOTATION, &annotation.0);
        }
        event.uint(field::EVENT_TYPE, self.kind as u64);
        event.uint(field::EVENT_TRACK, self.track);
        if !self.name.is_empty() {
            event.bytes(field::EVENT_NAME, self.name.as_bytes());
        }
        match self.kind {
            Kind::Counter if self.value.fract() == 0.0 => {
                event.uint(field::EVENT_COUNTER_VALUE, self.value as u64)
            }
            Kind::Counter => event.fixed(field::EVENT_COUNTER_DOUBLE, self.value.to_bits()),
            _ => {}
        }
        if let Some(id) = self.flow.0 {
            event.fixed(field::EVENT_FLOWS, id);
        }
        if let Some(id) = self.flow.1 {
            event.fixed(field::EVENT_FLOWS_END, id);
        }
        packet(Some(self.at), field::PACKET_TRACK_EVENT, &event)
    }
}

/// A packet of the trace, as one of the `Trace` message's.
fn packet(at: Option<u64>, field: u32, inner: &Message) -> Vec<u8> {
    let mut packet = Message::default();
    if let Some(at) = at {
        packet.uint(field::PACKET_TIMESTAMP, at);
    }
    packet.uint(field::PACKET_SEQUENCE, SEQUENCE);
    packet.bytes(field, &inner.0);
    let mut trace = Message::default();
    trace.bytes(field::TRACE_PACKET, &packet.0);
    trace.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against bytes that protobuf's own encoder gives.
    #[test]
    fn bytes_are_protobufs() {
        // packet { trusted_packet_sequence_id: 1 track_descriptor { uuid: 300 name: "a" parent_uuid: 1 } }
        let expected = [10, 13, 80, 1, 226, 3, 8, 8, 172, 2, 18, 1, 97, 40, 1];
        assert_eq!(track(300, Some(1), "a", None), expected);
        let event = Event {
            at: 5,
            track: 2,
            kind: Kind::Counter,
            name: "",
            annotations: &[],
            flow: (None, None),
            value: 0.5,
        };
        // packet { timestamp: 5 trusted_packet_sequence_id: 1
        //          track_event { type: TYPE_COUNTER track_uuid: 2 double_counter_value: 0.5 } }
        let head = [10, 20, 64, 5, 80, 1, 90, 14, 72, 4, 88, 2, 225, 2];
        assert_eq!(event.written(), [&head[..], &0.5f64.to_le_bytes()].concat());
    }
}
