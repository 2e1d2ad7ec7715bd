#!/usr/bin/python3
"""Packets into and out of a switch's cables, through packet sockets, as packet test frameworks send them.

    tests/clients/packets.py INTERFACE0 INTERFACE1

The two interfaces are the ends of cables at which the switch has ADDRESSES; its file has `ecn` with every = 2. It prints
what went wrong and exits with 1, or OK."""

import select
import socket
import struct
import sys
import time
import zlib

from icrc import IPV4_VARIANT, BTH_FECN_BECN, LINK_ONES, ROCE_PORT, UDP_CHECKSUM, icrc_holds, roce_datagram

ADDRESSES = ("10.99.1.1", "10.99.1.2")
EVERY = 2
ETH_IPV4, ETH_ARP = 0x0800, 0x0806
ARP_REQUEST, ARP_REPLY = 1, 2
PATIENCE_S = 20
SEND_ONLY = 0x04


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def send_only(source, to, psn, payload, traffic_class=2):
    """A SEND of RoCEv2 from its IP header through its ICRC."""
    bth = struct.pack("!BBHII", SEND_ONLY, 0, 0xFFFF, 0x17, psn)
    length = 8 + len(bth) + len(payload) + 4
    udp = struct.pack("!HHHH", 0xC000, ROCE_PORT, length, 0)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, traffic_class, 20 + length, 0, 0x4000, 64, 17, 0,
                       socket.inet_aton(source), socket.inet_aton(to))
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    packet = head + udp + bth + payload
    masked = bytearray(packet)
    for at in (*IPV4_VARIANT, *(20 + at for at in UDP_CHECKSUM), 20 + BTH_FECN_BECN):
        masked[at] = 0xFF
    return packet + struct.pack("<I", zlib.crc32(LINK_ONES + bytes(masked)))


def arp(kind, own_mac, own, their_mac, theirs):
    ends = own_mac + socket.inet_aton(own) + their_mac + socket.inet_aton(theirs)
    return struct.pack("!HHBBH", 1, ETH_IPV4, 6, 4, kind) + ends


def arp_answer(frame, own, mac):
    """What a host of this address says to a frame that asks for it; None to another frame."""
    asks = frame[12:14] == struct.pack("!H", ETH_ARP) and frame[20:22] == struct.pack("!H", ARP_REQUEST)
    if not asks or frame[38:42] != socket.inet_aton(own):
        return None
    answer = arp(ARP_REPLY, mac, own, frame[22:28], socket.inet_ntoa(frame[28:32]))
    return frame[6:12] + mac + struct.pack("!H", ETH_ARP) + answer


class End:
    """One end of a cable: a host that answers for its address, and otherwise only does as it is told."""

    def __init__(self, interface, own):
        self.own = own
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((interface, 0))
        self.mac = self.socket.getsockname()[4]

    def put(self, mac, ethertype, body):
        self.socket.send(mac + self.mac + struct.pack("!H", ethertype) + body)

    def hear(self, wanted, ends):
        """The next frame for which `wanted` is true. Meanwhile all ends answer who asks for them."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([end.socket for end in ends], [], [], 0.1)
            for end in ends:
                if end.socket not in ready:
                    continue
                frame, about = end.socket.recvfrom(1 << 16)
                if about[2] == socket.PACKET_OUTGOING:
                    continue
                answer = arp_answer(frame, end.own, end.mac)
                if answer:
                    end.socket.send(answer)
                elif end is self and wanted(frame):
                    return frame
        raise SystemExit(f"{self.own}: nothing came within {PATIENCE_S} s")

    def resolve(self, address, ends):
        """The hardware address that the switch tells for another port's address."""
        self.put(b"\xff" * 6, ETH_ARP, arp(ARP_REQUEST, self.mac, self.own, bytes(6), address))
        told = self.hear(lambda frame: frame[12:14] == struct.pack("!H", ETH_ARP), ends)
        return told[22:28]


def marked(packet):
    """The packet with a mark of congestion, as a switch that met some sends it on."""
    head = packet[:1] + bytes([packet[1] | 3]) + packet[2:10] + b"\0\0" + packet[12:20]
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + packet[20:]


def main():
    ends = [End(interface, own) for interface, own in zip(sys.argv[1:3], ADDRESSES)]
    one, two = ends
    mac = one.resolve(two.own, ends)
    for psn in range(10):
        packet = send_only(one.own, two.own, psn, b"payload%d" % psn)
        # One under an address that its port does not have goes nowhere.
        one.put(mac, ETH_IPV4, send_only("10.99.1.9", two.own, psn, b"forged.."))
        one.put(mac, ETH_IPV4, packet)
        came, at = roce_datagram(two.hear(roce_datagram, ends))
        wanted = marked(packet) if (psn + 1) % EVERY == 0 else packet
        if came != wanted or not icrc_holds(came, at):
            raise SystemExit(f"packet {psn}: {came.hex()} came, not {wanted.hex()}")
    print("OK")


if __name__ == "__main__":
    main()
