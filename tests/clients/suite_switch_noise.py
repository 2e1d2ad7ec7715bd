"""A switch at which each kind of port says random bytes, as fast as they are taken, while clients count up words through it:
nothing crashes, each frame is counted once, and the clients' queue pairs go on. Needs root, for the interface."""

import os
import re
import sys

from harness import HERE, Case, Fail
from suite_netns import ip, make_namespaces
from suite_switch import CAS, CONVERTED, ECN, PATIENT, SERVER, Switch, words

CLIENTS = 3
# The kinds of ports, and the address of each.
KINDS = {"unix": "10.9.0.21", "tcp": "10.9.0.22", "machine": "10.9.0.23", "interface": "10.9.0.24"}
# Of the clients' rate without noise, the least that is left to them: their share is a half, and a host whose
# processors others use gives and takes.
LEAST_SHARE = 0.1
# How long the rate without noise is looked at.
LOOK_S = 1.5


class Noisy:
    """A switch with a port of each kind for who says anything."""

    def __init__(self, room, text):
        self.room = room
        self.far, middle = make_namespaces(room, "as")
        self.middle = middle
        ip("link", "add", "veth0", "netns", self.far, "type", "veth", "peer", "name", "port0", "netns", middle)
        for name, device in ((self.far, "lo"), (self.far, "veth0"), (middle, "lo"), (middle, "port0")):
            ip("-n", name, "link", "set", device, "up")
        self.token, self.machine = room.path("token"), room.path("machine")
        with open(os.open(self.token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("5eed" * 16)
        self.place = f"127.0.0.1:{room.port()}"
        ports = (f'[[port]]\naddress = "{KINDS["machine"]}"\nqemu = "{self.machine}"\n'
                 f'[[port]]\naddress = "{KINDS["interface"]}"\ninterface = "port0"\n')
        self.switch = Switch(room, f'listen = "{self.place}"\ntoken = "{self.token}"\n' + text + ports, netns=middle)

    def shout(self, seconds):
        """Starts who says anything at each kind of port."""
        where = {"unix": [os.path.join(self.switch.folder, "sw0.switch")], "tcp": [self.place, self.token],
                 "machine": [self.machine], "interface": ["veth0"]}
        spaces = {"unix": self.middle, "tcp": self.middle, "machine": self.middle, "interface": self.far}
        targets = ",".join((SERVER, *(f"10.9.0.{2 + i}" for i in range(CLIENTS)), *KINDS.values()))
        script = os.path.join(HERE, "noise.py")
        shouting = {}
        for seed, (kind, address) in enumerate(KINDS.items()):
            argv = [sys.executable, script, str(seed), str(seconds), address, targets, kind, *where[kind]]
            shouting[kind] = self.room.spawn("noise-" + kind, ["ip", "netns", "exec", spaces[kind], *argv])
        return shouting

    def port(self, address):
        return next((port for port in self.switch.show()["ports"] if port["address"] == address), None)

    def served(self):
        """Frames of the clients' server."""
        port = self.port(SERVER)
        return port["rx_frames"] if port else 0

    def rate(self, ended):
        """Frames of the server in a second, until `ended` says so."""
        at, before = self.room.remaining(), self.served()
        self.room.wait_until("end of a look", lambda: ended(at - self.room.remaining()))
        return (self.served() - before) / (at - self.room.remaining())

    def heard(self, shouting):
        """What each has sent, when the switch has counted it all, by kind."""
        counts = {}
        for kind, proc in shouting.items():
            said = self.room.wait_output(proc, r"^sent (\d+) frames, (\d+) other messages, (\d+) connections$")
            counts[kind] = [int(count) for count in said.groups()]

        def arrived(kind):
            port = self.port(KINDS[kind])
            cable = port["cable"] or {"ignored": 0, "drop_not_rdma": 0}
            return port["rx_frames"] + cable["ignored"] + cable["drop_not_rdma"]

        for kind, (frames, *_) in counts.items():
            if kind == "interface":
                # A kernel drops what a packet socket has no room for, and has words of its own for an interface.
                self.room.wait_until("frames of the interface", lambda: self.port(KINDS["interface"])["rx_frames"])
                continue
            self.room.wait_until(f"{frames} frames by {kind}", lambda kind=kind, frames=frames: arrived(kind) >= frames)
            if arrived(kind) != frames:
                raise Fail(f"{frames} frames were sent by {kind}, {arrived(kind)} were counted")
        return counts


def expect_sums(counters):
    """Each frame that came has left, or was dropped for one reason."""
    dropped = {name: count for name, count in counters.items() if name.startswith("drop_")}
    came, gone = counters["rx_frames"] + counters["generated"], counters["tx_frames"] + sum(dropped.values())
    if came != gone:
        raise Fail(f"{came} frames came, {gone} left or were dropped: {counters}")
    if not dropped["drop_parse"] or not dropped["drop_source"]:
        raise Fail(f"what nobody should say was not dropped: {dropped}")


def noise(text, seconds):
    def run(room):
        noisy = Noisy(room, text)
        decides = CAS in text

        def during(procs):
            def works():
                counters = noisy.switch.show()["counters"]
                return noisy.served() > 2000 and (not decides or any(counters[name] for name in CONVERTED))

            room.wait_until("work of the clients", works)
            alone = noisy.rate(lambda passed: passed >= LOOK_S)
            shouting = noisy.shout(seconds)
            beside = noisy.rate(lambda _: all(re.search("^sent", proc.output(), re.M) for proc in shouting.values()))
            counts = noisy.heard(shouting)
            after = noisy.rate(lambda passed: passed >= LOOK_S)
            for proc in procs:
                if proc.popen.poll() is not None:
                    raise Fail(f"{proc.label} has ended before the noise had")
                proc.kill(15)
            sent = (f"{kind} {frames} frames and {rest[0]} other messages" for kind, (frames, *rest) in counts.items())
            room.note(", ".join(sent))
            room.note(f"the server's frames/s {alone:.0f} alone, {beside:.0f} beside it, {after:.0f} after")
            malformed = noisy.switch.show()["messages_malformed"]
            if malformed < sum(messages for _, messages, _ in counts.values()):
                raise Fail(f"{malformed} messages were found malformed, and more were sent: {counts}")
            if beside < LEAST_SHARE * min(alone, after):
                raise Fail(f"of {alone:.0f} and {after:.0f} frames a second {beside:.0f} were left to the clients")

        doubt = words(room, noisy.switch, CLIENTS, room.case.seconds, during)
        if doubt and not decides:
            raise Fail("a queue pair failed beside the noise")
        counters = noisy.switch.show()["counters"]
        if not decides:
            expect_sums(counters)
        noisy.switch.say(counters)

    return run


def cases():
    for name, text in {"noise": ECN, "noise-cas": CAS + PATIENT}.items():
        yield Case(f"switch/{name}", noise(text, 3), 90)
        yield Case(f"switch/{name}-minute", noise(text, 60), 240, long=True)
