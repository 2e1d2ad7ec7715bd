"""A trace for Perfetto's viewer, read by the field numbers of its protos (trace_packet.proto, track_event/*.proto),
and what must hold of any: time goes on, slices are nested, each flow begins before it ends, and both once."""

import collections
import struct

from harness import Fail

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """A protobuf message's fields: number and value, bytes where the message does not say more."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<Q", data, at)[0], at + 8
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            if len(value) != length:
                raise Fail("a message is cut off")
        else:
            raise Fail(f"a field of kind {kind}")
        yield tag >> 3, value


def first(data, number, default=None):
    return next((value for field, value in fields(data) if field == number), default)


class Trace:
    """`tracks`: names from the root on; `slices`: (track, name, begin, end); `instants`: names by their first word;
    `flows` and `ended`: when each began and ended; `samples`: values by track."""

    def __init__(self, path):
        with open(path, "rb") as f:
            packets = [value for number, value in fields(f.read()) if number == 1]
        described = [value for p in packets for number, value in fields(p) if number == 60]
        found = {first(d, 1): d for d in described}
        counters = {uuid for uuid, d in found.items() if first(d, 8) is not None}
        self.tracks = {uuid: self.name(found, d) for uuid, d in found.items()}
        self.slices, self.instants, self.samples = [], collections.Counter(), collections.defaultdict(list)
        self.flows, self.ended, self.open, last = {}, {}, collections.defaultdict(list), 0
        for packet in packets:
            event = first(packet, 11)
            if event is None:
                continue
            at, track, kind = first(packet, 8, 0), first(event, 11), first(event, 9)
            if at < last or track not in self.tracks or (kind == COUNTER) != (track in counters):
                raise Fail(f"an event at {at} after {last}, on track {track}, of kind {kind}")
            last = at
            self.take(event, at, track, kind)
        if any(self.open.values()):
            raise Fail("slices do not end")

    @staticmethod
    def name(found, track):
        parent = first(track, 5)
        above = Trace.name(found, found[parent]) if parent is not None else ()
        return (*above, first(track, 2).decode())

    def take(self, event, at, track, kind):
        name = first(event, 23, b"").decode()
        if kind == BEGIN:
            self.open[track].append((name, at))
        elif kind == END:
            begun, since = self.open[track].pop()
            self.slices.append((self.tracks[track], begun, since, at))
        elif kind == INSTANT:
            self.instants[name.split()[0]] += 1
        else:
            value = first(event, 44)
            self.samples[self.tracks[track]].append(first(event, 30, 0) if value is None else value)
        for number, flow in fields(event):
            if number == 47:
                if flow in self.flows:
                    raise Fail(f"flow {flow} begins twice")
                self.flows[flow] = at
            if number == 48:
                if flow not in self.flows or flow in self.ended or self.flows[flow] > at:
                    raise Fail(f"flow {flow} ends twice, or before it begins")
                self.ended[flow] = at
