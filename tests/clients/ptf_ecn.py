"""A test for the packet test framework (PTF), which runs it between two interfaces; suite_switch_packets.py starts it."""

import ptf
from icrc import roce_datagram
from packets import ADDRESSES, ARP_REQUEST, ETH_ARP, ETH_IPV4, EVERY, PATIENCE_S, arp, arp_answer, marked, send_only
from ptf import testutils
from ptf.base_tests import BaseTest

MACS = (b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02")


class Marked(BaseTest):
    """Every second packet of a port is marked, and is otherwise what it was."""

    def setUp(self):
        super().setUp()
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()

    def put(self, port, mac, ethertype, body):
        testutils.send(self, port, mac + MACS[port] + ethertype.to_bytes(2, "big") + body)

    def hear(self, port, wanted):
        while True:
            polled = self.dataplane.poll(timeout=PATIENCE_S)
            if not isinstance(polled, self.dataplane.PollSuccess):
                self.fail("nothing came")
            frame, at = bytes(polled.packet), polled.port
            answer = arp_answer(frame, ADDRESSES[at], MACS[at])
            if answer:
                testutils.send(self, at, answer)
            elif at == port and wanted(frame):
                return frame

    def runTest(self):
        self.put(0, b"\xff" * 6, ETH_ARP, arp(ARP_REQUEST, MACS[0], ADDRESSES[0], bytes(6), ADDRESSES[1]))
        mac = self.hear(0, lambda frame: frame[12:14] == ETH_ARP.to_bytes(2, "big"))[22:28]
        for psn in range(10):
            packet = send_only(*ADDRESSES, psn, b"payload%d" % psn)
            self.put(0, mac, ETH_IPV4, packet)
            came, _ = roce_datagram(self.hear(1, roce_datagram))
            self.assertEqual(came, marked(packet) if (psn + 1) % EVERY == 0 else packet)
