"""Unmodified programs on hosts of their own, network namespaces, each on a cable of a switch: frames, ARP and TCP of both
cross its process, and no program knows of it. Needs root, to make the namespaces."""

import os

from harness import Case, Fail, require
from suite_netns import ip, make_namespaces
from suite_perftest import LOSSY_TIMEOUT, expect_results, program
from suite_switch import ECN, LOSS, Switch, expect_counted
from suite_utils import PINGPONGS, pingpong

HOSTS = ("10.99.1.1", "10.99.1.2")
PORT = '[[port]]\naddress = "{}"\ninterface = "port{}"\n'
MTU = 1500


class Wired:
    """Two hosts and a switch in three namespaces, gone when the room closes."""

    serial = 0

    def __init__(self, room, text):
        Wired.serial += 1
        stem = f"advs{os.getpid() % 10000}x{Wired.serial}"
        self.hosts = (stem + "a", stem + "b")
        middle = stem + "s"
        make_namespaces(room, (*self.hosts, middle))
        for n, (name, host) in enumerate(zip(self.hosts, HOSTS)):
            ip("link", "add", "veth0", "netns", name, "mtu", str(MTU), "type", "veth",
               "peer", "name", f"port{n}", "netns", middle)
            # A veth would carry several frames as one, which no wire does.
            ip("-n", name, "link", "set", "veth0", "gso_max_segs", "1")
            ip("-n", name, "addr", "add", host + "/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", middle, "link", "set", f"port{n}", "up")
        self.switch = Switch(room, "".join(PORT.format(host, n) for n, host in enumerate(HOSTS)) + text, netns=middle)

    def ends(self, **how):
        """What a pair needs to know to have its server at the first host and its client at the second."""
        return {"server_netns": self.hosts[0], "client_netns": self.hosts[1],
                "server_address": HOSTS[0], "client_address": HOSTS[1], **how}


def pair_case(name, argv, text="", rows=1, timeout=60, options=(), frames=20, then=None):

    def run(room):
        require(argv[0])
        wired = Wired(room, text)
        server, client = room.both_succeed(argv, **wired.ends(options=options))
        if rows:
            expect_results(client, rows)
        if "invalid data" in server.output() + client.output():
            raise Fail("a side received invalid data")
        shown, counters = wired.switch.show(), wired.switch.counters()
        if counters["rx_frames"] < frames:
            raise Fail(f"{counters['rx_frames']} frames came to the switch, not {frames}")
        for port in shown["ports"]:
            if port["cable"]["drop_unsegmented"] or port["cable"]["drop_queue_full"]:
                raise Fail(f"the cable lost frames: {port['cable']}")
        if then:
            then(counters)

    return Case(f"switch/netns-{name}", run, timeout)


def cases():
    for operation in ("send", "write", "read", "atomic"):
        yield pair_case(f"{operation}-bw", program(operation, "bw"), frames=400)
    for kind in PINGPONGS:
        extra = ("-c",) if kind == "rc" else ()
        yield pair_case(f"pingpong-{kind}", pingpong(kind, *extra), rows=0)
    argv = program("write", "bw", size=4096) + LOSSY_TIMEOUT
    yield pair_case("loss-write-bw", argv, LOSS, timeout=120)
    yield pair_case("ecn-write-bw-dcqcn", program("write", "bw"), ECN, options=("--congestion", "dcqcn"),
                    then=lambda counters: expect_counted(counters, "ecn_marked"))
