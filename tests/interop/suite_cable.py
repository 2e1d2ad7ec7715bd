"""rxe behind a port of a switch: QEMU's cable ends at `adverb switch run`, without a bridge or an interface of this host,
and programs of adverb's NIC at addresses that nobody has are the other ends."""

import ipaddress
import json

import lab
from harness import Case, Fail, require
from sides import LAB, SECOND, rxe, wait_listening_in_guest
from suite_perftest import expect_results
from suite_stock import ITERATIONS, LONG_TIMEOUT, SHORT_TIMEOUT, SIZE
from suite_switch import CAS, CONVERTED, ECN, LOSS, SERVER, Switch, expect_counted

PORT = '[[port]]\naddress = "{}"\nqemu = "{}"\n'
# A word is the server's for a while after the switch has first heard of it.
ATOMICS_S = 3
# A traffic class of packets that a switch may mark (RFC 3168, 5).
CAPABLE = 2


class Cable:
    """A switch to which the guest has a cable, and an rxe device on its link."""

    def __init__(self, room, text):
        self.room = room
        self.switch = Switch(room, PORT.format(lab.CABLE_GUEST, LAB.cable) + text)
        room.wait_until("machine on the cable", lambda: self.port()["cable"]["plugged"])
        room.cleanups.append(lambda: LAB.in_guest(f"rdma link delete {lab.CABLE_RXE}"))
        LAB.in_guest(f"rdma link add {lab.CABLE_RXE} type rxe netdev {lab.CABLE_LINK}")
        wanted = ipaddress.IPv6Address("::ffff:" + lab.CABLE_GUEST)
        self.gid = room.wait_until("GID", lambda: LAB.gids_of(lab.CABLE_RXE).get(wanted))

    def port(self):
        ports = self.switch.show()["ports"]
        return next(port for port in ports if port["address"] == lab.CABLE_GUEST)

    def argv(self, words, is_adverb, port, host):
        """perftest's words for a side. The first exchange goes over TCP, past the switch."""
        side = ["-x", lab.ADVERB_GID] if is_adverb else ["-d", lab.CABLE_RXE, "-x", self.gid]
        return [*words, *side, "-p", str(port), *([host] if host else [])]

    def adverb(self, label, argv):
        counters = self.room.path(label + ".counters")
        return self.room.adverb(label + "-adverb", argv, address=SERVER, netns=LAB.netns, env=self.switch.env,
                                options=("--via", "sw0", "--trace", "--counters", counters))

    def run(self, words, client_is_adverb):
        """A program between the two; returns the client."""
        require(words[0])
        port = self.room.port()
        if client_is_adverb:
            server = rxe(self.room, "server", self.argv(words, False, port, None))
            wait_listening_in_guest(self.room, server, port)
            client = self.adverb("client", self.argv(words, True, port, lab.WORDS_GUEST))
        else:
            server = self.adverb("server", self.argv(words, True, port, None))
            self.room.wait_listening(server, port)
            client = rxe(self.room, "client", self.argv(words, False, port, lab.WORDS_HOST))
        self.room.all_succeed(server, client)
        return client


class Guests:
    """A switch to which two guests have a cable each, and an rxe device at each end. What their programs say over TCP crosses
    it as well."""

    def __init__(self, room, text):
        self.room = room
        if not SECOND.started:
            SECOND.up()
            # The image has the first one's address.
            SECOND.in_guest(f"ip addr flush dev {lab.CABLE_LINK} && ip addr add {lab.CABLE_SECOND}/24 dev {lab.CABLE_LINK}")
        self.guests = {lab.CABLE_GUEST: LAB, lab.CABLE_SECOND: SECOND}
        ports = "".join(PORT.format(address, guest.cable) for address, guest in self.guests.items())
        self.switch = Switch(room, ports + text)
        room.wait_until("machines on their cables", lambda: all(port["cable"]["plugged"] for port in self.ports()))
        self.gids = {}
        for address, guest in self.guests.items():
            room.cleanups.append(lambda guest=guest: guest.in_guest(f"rdma link delete {lab.CABLE_RXE}"))
            guest.in_guest(f"rdma link add {lab.CABLE_RXE} type rxe netdev {lab.CABLE_LINK}")
            gid = ipaddress.IPv6Address("::ffff:" + address)
            self.gids[address] = room.wait_until("GID", lambda guest=guest, gid=gid: guest.gids_of(lab.CABLE_RXE).get(gid))

    def ports(self):
        return self.switch.show()["ports"]

    def argv(self, words, address, port):
        return [*words, "-d", lab.CABLE_RXE, "-x", self.gids[address], "-p", str(port)]

    def run(self, words):
        """A program whose server is the first guest; returns the client."""
        require(words[0])
        port = self.room.port()
        server = rxe(self.room, "server", self.argv(words, lab.CABLE_GUEST, port))
        wait_listening_in_guest(self.room, server, port)
        argv = [*self.argv(words, lab.CABLE_SECOND, port), lab.CABLE_GUEST]
        client = rxe(self.room, "client", argv, SECOND)
        self.room.all_succeed(server, client)
        return client


def between_guests(name, text, words, timeout=180, least=ITERATIONS // 2, then=None):
    """A pair of which neither end is adverb's. The first case's time has to suffice for a guest to boot."""

    def run(room):
        guests = Guests(room, text)
        expect_results(guests.run(words), 1)
        counters, ports = guests.switch.counters(), guests.ports()
        for port in ports:
            if not port["rx_frames"] or port["cable"]["drop_no_answer"] or port["cable"]["malformed"]:
                raise Fail(f"a port: {json.dumps(port)}")
        if counters["rx_frames"] < least:
            raise Fail(f"{counters['rx_frames']} frames came to the switch, not {least}")
        if then:
            then(counters)

    return Case(f"interop/rxe-to-rxe-{name}", run, timeout)


def perftest(operation, kind, service="RC", timeout=LONG_TIMEOUT, extra=()):
    words = [f"ib_{operation}_{kind}", "-F", "-c", service, "-n", str(ITERATIONS)]
    if operation != "atomic":
        words += ["-s", str(1024 if service == "UD" else SIZE[kind])]
    return [*words, *(timeout if service == "RC" else ()), *extra]


def both_ways(name, text, words, timeout=60, least=ITERATIONS // 2, then=None):
    for word, client_is_adverb in (("to-rxe", True), ("from-rxe", False)):

        def run(room, client_is_adverb=client_is_adverb):
            cable = Cable(room, text)
            expect_results(cable.run(words, client_is_adverb), 1)
            counters, port = cable.switch.counters(), cable.port()
            if port["rx_frames"] + port["tx_frames"] < least:
                raise Fail(f"{port['rx_frames']} frames from the guest and {port['tx_frames']} to it, not {least}")
            if port["cable"]["drop_no_answer"] or port["cable"]["malformed"]:
                raise Fail(f"the cable: {json.dumps(port['cable'])}")
            if then:
                then(counters, client_is_adverb)

        yield Case(f"interop/cable-{name}/{word}", run, timeout)


def marked(counters, _client_is_adverb):
    expect_counted(counters, "ecn_marked")


def decided(counters, client_is_adverb):
    """adverb's end is the server whose words the switch decides. The guest's own words are its own."""
    if client_is_adverb:
        if any(counters[name] for name in CONVERTED):
            raise Fail("an atomic to the guest was decided by the switch")
        return
    expect_counted(counters, *CONVERTED)


def cases():
    for operation, services in (("send", ("RC", "UC", "UD")), ("write", ("RC", "UC")), ("read", ("RC",)), ("atomic", ("RC",))):
        for service in services:
            for kind in ("bw", "lat"):
                # All kinds one way; what waits for each answer, where both sides send and where the switch decides.
                if kind == "lat" and (service != "RC" or operation in ("write", "read")):
                    continue
                name = f"forward-{operation}-{kind}-{service.lower()}"
                yield from both_ways(name, "", perftest(operation, kind, service))
    for operation in ("send", "write", "read", "atomic"):
        yield from both_ways(f"loss-{operation}-bw", LOSS, perftest(operation, "bw", timeout=SHORT_TIMEOUT), timeout=90)
    # rxe sends and marks as any host does, but has no control of congestion that would answer.
    yield from both_ways("ecn-write-bw", ECN, perftest("write", "bw"))
    seconds = ["ib_atomic_bw", "-F", "-D", str(ATOMICS_S), *LONG_TIMEOUT]
    yield from both_ways("cas-fetch-add-bw", CAS, seconds, timeout=90, then=decided)
    yield from both_ways("cas-compare-swap-bw", CAS, [*seconds, "-A", "CMP_AND_SWAP"], timeout=90, then=decided)
    yield from both_ways("cas-untouched-write-bw", CAS, perftest("write", "bw"))
    for operation in ("send", "write", "read", "atomic"):
        yield between_guests(f"forward-{operation}-bw", "", perftest(operation, "bw"))
    yield between_guests("loss-write-bw", LOSS, perftest("write", "bw", timeout=SHORT_TIMEOUT))
    capable = perftest("write", "bw", extra=("--tclass", str(CAPABLE)))
    yield between_guests("ecn-write-bw", ECN, capable, then=lambda counters: expect_counted(counters, "ecn_marked"))
    decides = CAS.replace(SERVER, lab.CABLE_GUEST)
    yield between_guests("cas-untouched-write-bw", decides, perftest("write", "bw"))
    yield between_guests("cas-fetch-add-bw", decides, seconds)


def large_cases():
    return ()
