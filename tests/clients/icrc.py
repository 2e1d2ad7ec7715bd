#!/usr/bin/python3
"""Checks the invariant CRC of every RoCEv2 frame of a pcap file, apart from the NIC's own code: zlib's CRC-32 over
the frame with the fields that routers may change set to ones (IBTA annex A17.3).

    tests/clients/icrc.py FILE..
"""

import struct
import sys
import zlib

ROCE_PORT = 4791
UDP = 17
ICRC_LEN = 4
LINKTYPE_ETHERNET = 1
# The masked link header that stands before the IP header in the sum.
LINK_ONES = b"\xff" * 8
# Offsets of the variant fields, from the IP header for IP and from the UDP header for the rest.
IPV4_VARIANT = (1, 8, 10, 11)
IPV6_VARIANT = ((0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF))
UDP_CHECKSUM = (6, 7)
BTH_FECN_BECN = 8 + 4


def frames(path):
    """(frame bytes) of an Ethernet pcap file."""
    with open(path, "rb") as f:
        data = f.read()
    magic = data[:4]
    order = "<" if magic in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    (link,) = struct.unpack_from(order + "I", data, 20)
    if link != LINKTYPE_ETHERNET:
        raise ValueError(f"{path}: link type {link}, not Ethernet")
    at = 24
    while at + 16 <= len(data):
        captured, original = struct.unpack_from(order + "II", data, at + 8)
        if captured != original:
            raise ValueError(f"{path}: a frame of {original} bytes was cut to {captured}")
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def roce_datagram(frame):
    """The IP packet of a RoCEv2 frame and the offset of its UDP header, or None for any other frame."""
    (ether_type,) = struct.unpack_from("!H", frame, 12)
    ip = frame[14:]
    if ether_type == 0x0800 and ip[9] == UDP:
        udp = (ip[0] & 0x0F) * 4
        (length,) = struct.unpack_from("!H", ip, 2)
    elif ether_type == 0x86DD and ip[6] == UDP:
        udp = 40
        length = 40 + struct.unpack_from("!H", ip, 4)[0]
    else:
        return None
    (port,) = struct.unpack_from("!H", ip, udp + 2)
    return (ip[:length], udp) if port == ROCE_PORT else None


def icrc_holds(ip, udp):
    masked = bytearray(ip)
    if udp == 40:
        for offset, bits in IPV6_VARIANT:
            masked[offset] |= bits
    else:
        for offset in IPV4_VARIANT:
            masked[offset] = 0xFF
    for offset in UDP_CHECKSUM:
        masked[udp + offset] = 0xFF
    masked[udp + BTH_FECN_BECN] = 0xFF
    (stored,) = struct.unpack_from("<I", ip, len(ip) - ICRC_LEN)
    return zlib.crc32(LINK_ONES + bytes(masked[:-ICRC_LEN])) == stored


def count(path):
    """(frames with a right ICRC, frames with a wrong one)."""
    right = wrong = 0
    for frame in frames(path):
        found = roce_datagram(frame)
        if found is None:
            continue
        if icrc_holds(*found):
            right += 1
        else:
            wrong += 1
    return right, wrong


def main():
    any_wrong = False
    for path in sys.argv[1:]:
        right, wrong = count(path)
        any_wrong |= wrong > 0
        print(f"{path}: {right} right, {wrong} wrong")
    return 1 if any_wrong or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
