"""Who has ended answers nothing any more. An RC program ends with its last completion, whether or not its peer has the last
acknowledgement. rxe drops one that comes late: where its timer has set a message back, to be sent again, an acknowledgement
finds it not yet begun (`get_wqe` in rxe_comp.c, `req_retry` in rxe_req.c). Then nobody is left to give it another, and as a
retry count of 7 means for ever to rxe, it repeats its last message until it is killed. So it would be beside an adapter,
whose queue pairs go with their programs. The same comes of an acknowledgement that the network loses, for either side, where
nothing else is said at the end, as by perftest over rdma_cm. A recording says whether it was that and nothing else."""

import os
import struct

import icrc
from harness import Fail

BTH = 8
SENDS = range(0x00, 0x06)
# Datagrams, as the connection manager's are.
DATAGRAMS = range(0x60, 0x80)
ACKNOWLEDGE = 0x11
PSNS = 1 << 24
# Repeats that are seen before anything is concluded from them.
REPEATS = 2


def is_ahead(psn, other):
    return 0 < (psn - other) % PSNS < PSNS // 2


def spoken(path):
    """(sender, queue pair it is for, opcode, PSN, whether it acknowledges) of each packet of a connection."""
    for frame in icrc.frames(path):
        found = icrc.roce_datagram(frame)
        if found is None:
            continue
        ip, udp = found
        at = udp + BTH
        if ip[at] in DATAGRAMS:
            continue
        # A positive syndrome.
        acknowledges = ip[at] == ACKNOWLEDGE and ip[at + 12] >> 5 == 0
        yield (ip[8:24] if udp == 40 else ip[12:16], ip[at + 5 : at + 8], ip[at], int.from_bytes(ip[at + 9 : at + 12], "big"),
               acknowledges)


def last_acknowledgement_was_lost(path, left, stayed):
    """None if the recording shows that who left, at that address (packed), had acknowledged the last message of the one that
    stayed, and that this was repeated when nothing came any more for its queue pair. Else what it shows instead."""
    packets = list(spoken(path))
    messages = [packet for packet in packets if packet[0] == stayed and packet[2] in SENDS]
    if not messages:
        return "who stayed sent no message"
    number, last = messages[-1][1], messages[-1][3]
    if any(packet[1] == number and is_ahead(packet[3], last) for packet in messages):
        return "the last message was not acknowledged"
    # The queue pair that it is from.
    own = {to for source, to, _, psn, acknowledges in packets if source == left and acknowledges and psn == last}
    if len(own) != 1:
        return "the last message was not acknowledged"
    is_acknowledged, repeats = False, 0
    for source, to, opcode, psn, acknowledges in packets:
        if source == left and to in own:
            repeats = 0
            is_acknowledged |= acknowledges and psn == last
        elif source == stayed and to == number and opcode in SENDS and psn == last and is_acknowledged:
            repeats += 1
    if repeats < REPEATS:
        return f"the last packet was repeated {repeats} times to nobody, not {REPEATS}"
    return None


def expect_right(path, host, guest):
    """That the above sees on a recording of a connection that ended well, and on ones made of it, what each shows."""
    frames = [frame for frame in icrc.frames(path) if icrc.roce_datagram(frame)]

    def part(frame, at, length=1):
        ip, udp = icrc.roce_datagram(frame)
        return ip[udp + BTH + at : udp + BTH + at + length]

    def of(source, opcodes):
        for frame in frames:
            ip, udp = icrc.roce_datagram(frame)
            if (ip[8:24] if udp == 40 else ip[12:16]) == source and part(frame, 0)[0] in opcodes:
                yield frame

    *_, last = of(guest, SENDS)
    # More than one, where rxe has repeated its last message although it was acknowledged.
    acks = [frame for frame in of(host, (ACKNOWLEDGE,)) if part(frame, 9, 3) == part(last, 9, 3)]
    ack = acks[0]
    earlier = next(of(host, (ACKNOWLEDGE,)))
    ended = [frame for frame in frames[: frames.index(last) + 1] if frame not in acks]
    refused = bytearray(ack)
    refused[len(ack) - icrc.ICRC_LEN - 4] = 0x63
    tried = (
        ("repeated 0 times", [*frames, ack]),
        ("repeated 1 times", [*frames, ack, last]),
        ("repeated 1 times", [*frames, last, last, ack, last]),
        (None, [*frames, ack, last, last]),
        ("was not acknowledged", [*ended, last, last]),
        ("was not acknowledged", [*ended, earlier, last, last]),
        ("was not acknowledged", [*ended, bytes(refused), last, last]),
    )
    altered = path + ".altered"
    for wanted, variant in tried:
        write(altered, variant)
        told = last_acknowledgement_was_lost(altered, host, guest)
        if told != wanted and (wanted is None or wanted not in (told or "")):
            raise Fail(f"of a recording it was to be said that {wanted}, and {told} was")
    os.remove(altered)


def write(path, frames):
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 16, icrc.LINKTYPE_ETHERNET))
        for frame in frames:
            out.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
