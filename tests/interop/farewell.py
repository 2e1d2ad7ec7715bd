"""Who has ended answers nothing any more. An RC program ends with its last completion, whether or not its peer has the last
acknowledgement. rxe drops one that comes late: where its timer has set a message back, to be sent again, an acknowledgement
finds it not yet begun (`get_wqe` in rxe_comp.c, `req_retry` in rxe_req.c). Then nobody is left to give it another, and as a
retry count of 7 means for ever to rxe, it repeats its last message until it is killed. So it would be beside an adapter,
whose queue pairs go with their programs. A recording says whether it was that and nothing else."""

import os
import struct

import icrc
from harness import Fail

BTH = 8
SENDS = range(0x00, 0x06)
ACKNOWLEDGE = 0x11
PSNS = 1 << 24
# Repeats that are seen before anything is concluded from them.
REPEATS = 2


def is_ahead(psn, other):
    return 0 < (psn - other) % PSNS < PSNS // 2


def last_acknowledgement_was_lost(path, host, guest):
    """None if the recording of one connection shows that adverb, at `host` (packed), had acknowledged the guest's last
    message, and that the guest repeated it when nothing came from adverb any more. Else what it shows instead."""
    last, is_acknowledged, repeats, to = None, False, 0, set()
    for frame in icrc.frames(path):
        found = icrc.roce_datagram(frame)
        if found is None:
            continue
        ip, udp = found
        at = udp + BTH
        source = ip[8:24] if udp == 40 else ip[12:16]
        opcode, psn = ip[at], int.from_bytes(ip[at + 9 : at + 12], "big")
        if source == host:
            to.add(ip[at + 5 : at + 8])
            repeats = 0
            # A positive acknowledgement, of this message or of a later one.
            if opcode == ACKNOWLEDGE and ip[at + 12] >> 5 == 0 and last is not None and not is_ahead(last, psn):
                is_acknowledged = True
        elif source == guest and opcode in SENDS:
            if last is None or is_ahead(psn, last):
                last, is_acknowledged = psn, False
            elif is_acknowledged and psn == last:
                repeats += 1
    if len(to) != 1:
        return f"adverb's side sent to {len(to)} queue pairs, not to one"
    if not is_acknowledged:
        return "the guest's last message was not acknowledged"
    if repeats < REPEATS:
        return f"the guest repeated its last packet {repeats} times to nobody, not {REPEATS}"
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
    ack = next(frame for frame in of(host, (ACKNOWLEDGE,)) if part(frame, 9, 3) == part(last, 9, 3))
    earlier = next(of(host, (ACKNOWLEDGE,)))
    ended = frames[: frames.index(last) + 1]
    refused = bytearray(ack)
    refused[len(ack) - icrc.ICRC_LEN - 4] = 0x63
    tried = (
        ("repeated its last packet 0 times", [*frames, ack]),
        ("repeated its last packet 1 times", [*frames, ack, last]),
        ("repeated its last packet 1 times", [*frames, last, last, ack, last]),
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
