"""Packets into and out of a switch through veth pairs, one by one: by packets.py, and by the packet test framework (PTF) of
P4's users where it is installed (`pip install ptf`; ADVERB_PTF names its command). Needs root, to make a namespace."""

import os
import shutil

from harness import HERE, Case, Fail, Skip, require_text
from packets import ADDRESSES
from suite_netns import ip, make_namespaces
from suite_switch import Switch

PORT = '[[port]]\naddress = "{}"\ninterface = "port{}"\n'
ECN = '[[program]]\nkind = "ecn"\nevery = 2\n'


class Cables:
    """A switch and the far ends of its two cables, in one namespace whose kernel keeps out of it."""

    def __init__(self, room):
        self.name, = make_namespaces(room, "s")
        for n in range(2):
            ip("-n", self.name, "link", "add", f"end{n}", "type", "veth", "peer", "name", f"port{n}")
            for side in (f"end{n}", f"port{n}"):
                ip("-n", self.name, "link", "set", side, "up")
        ports = "".join(PORT.format(address, n) for n, address in enumerate(ADDRESSES))
        self.switch = Switch(room, ports + ECN, netns=self.name)

    def run(self, room, label, argv):
        proc = room.spawn(label, ["ip", "netns", "exec", self.name, *argv])
        room.expect_success(proc)
        counters = self.switch.show()["counters"]
        room.note(f"rx_frames {counters['rx_frames']}, ecn_marked {counters['ecn_marked']}")
        if counters["ecn_marked"] != 5:
            raise Fail(f"{counters['ecn_marked']} packets were marked, not 5")
        return proc, counters


def by_sockets(room):
    cables = Cables(room)
    proc, counters = cables.run(room, "packets", ["python3", os.path.join(HERE, "packets.py"), "end0", "end1"])
    require_text(proc.output(), "^OK$", "packets.py")
    if counters["drop_source"] != 10:
        raise Fail(f"{counters['drop_source']} forged packets were dropped, not 10")


def by_ptf(room):
    ptf = os.environ.get("ADVERB_PTF") or shutil.which("ptf")
    if not ptf:
        raise Skip("ptf is not installed (pip install ptf; ADVERB_PTF names its command)")
    cables = Cables(room)
    tests = room.path("ptf")
    os.mkdir(tests)
    for name in ("ptf_ecn.py", "packets.py", "icrc.py"):
        shutil.copy(os.path.join(HERE, name), tests)
    argv = [ptf, "--test-dir", tests, "--interface", "0@end0", "--interface", "1@end1", "--log-file", room.path("ptf.log"),
            "ptf_ecn.Marked"]
    cables.run(room, "ptf", argv)


def cases():
    yield Case("switch/packets-veth", by_sockets, 60)
    yield Case("switch/packets-ptf", by_ptf, 90)
