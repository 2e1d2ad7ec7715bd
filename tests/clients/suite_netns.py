"""Two network namespaces and a veth pair: two hosts, real frames. Needs root, to make the namespaces."""

import itertools
import os
import subprocess
import sys

from captures import expect_sound
from harness import HERE, Case, Fail, Skip, require, require_text
from suite_perftest import expect_results, program
from suite_utils import PINGPONGS, pingpong

HOSTS = ("10.99.0.1", "10.99.0.2")
# Link MTU -> the path MTU that fits it.
MTUS = {1500: 1024, 9000: 4096}
TIMEOUT_S = 30


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Fail(f"ip {' '.join(words)}: {done.stderr.strip()}")


SERIAL = itertools.count(1)


def make_namespaces(room, letters):
    """Namespaces of this case, a letter for each, gone when its room closes; their names."""
    if os.geteuid() != 0:
        raise Skip("needs root, to make network namespaces")
    require("ip")
    stem = f"adv{os.getpid() % 10000}x{next(SERIAL)}"
    names = [stem + letter for letter in letters]
    for name in names:
        try:
            ip("netns", "add", name)
        except Fail as e:
            raise Skip(f"this root may not make network namespaces: {e}") from None
        room.cleanups.append(lambda name=name: ip("netns", "del", name))
    return names


class Wire:
    """A veth pair between two namespaces of this case, gone when its room closes."""

    def __init__(self, room, mtu):
        self.room = room
        self.names = a, b = make_namespaces(room, "ab")
        ip("link", "add", "veth0", "netns", a, "mtu", str(mtu), "type", "veth",
           "peer", "name", "veth0", "netns", b, "mtu", str(mtu))
        for name, host in zip(self.names, HOSTS):
            ip("-n", name, "addr", "add", host + "/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")

    def ends(self, **how):
        """What a pair needs to know to have its server at the first host and its client at the second."""
        return {"server_netns": self.names[0], "client_netns": self.names[1],
                "server_address": HOSTS[0], "client_address": HOSTS[1], **how}

    def capture(self):
        """Starts a capture at the first host; returns the file and the process. Without segmentation by the
        device: a veth would carry several frames as one, which no wire does."""
        for name in self.names:
            ip("-n", name, "link", "set", "veth0", "gso_max_segs", "1")
        path = self.room.path("veth.pcap")
        script = os.path.join(HERE, "capture.py")
        proc = self.room.spawn("capture", ["ip", "netns", "exec", self.names[0], sys.executable, script, "veth0", path])
        self.room.wait_output(proc, "^capturing")
        return path, proc


def devinfo_case(mtu):
    def run(room):
        require("ibv_devinfo")
        wire = Wire(room, mtu)
        text = room.alone(["ibv_devinfo", "-v"], netns=wire.names[0], address=HOSTS[0])
        require_text(text, rf"active_mtu:\s+{MTUS[mtu]} ", f"ibv_devinfo at MTU {mtu}")
        require_text(text, rf"GID\[\s*\d+\]:\s+::ffff:{HOSTS[0]}, RoCE v2", f"ibv_devinfo at MTU {mtu}")

    return run


def pingpong_case(mtu, kind, extra=()):
    def run(room):
        require(f"ibv_{kind}_pingpong")
        room.both_succeed(pingpong(kind, *extra), **Wire(room, mtu).ends())

    return run


def perftest_case(mtu, argv):
    def run(room):
        require(argv[0])
        _, client = room.both_succeed(argv, **Wire(room, mtu).ends())
        expect_results(client, 1)

    return run


def capture_case(mtu, argv, least):
    def run(room):
        require(argv[0], "tshark")
        wire = Wire(room, mtu)
        path, proc = wire.capture()
        room.both_succeed(argv, **wire.ends())
        proc.kill(15)
        room.expect_success(proc)
        expect_sound(path, least)

    return run


def cases():
    for mtu in MTUS:
        yield Case(f"netns/{mtu}-devinfo", devinfo_case(mtu), TIMEOUT_S)
        for kind in PINGPONGS:
            extra = ("-m", MTUS[mtu]) if kind in ("rc", "uc", "srq") else ("-s", 1024) if kind == "ud" else ()
            yield Case(f"netns/{mtu}-{kind}-pingpong", pingpong_case(mtu, kind, extra), TIMEOUT_S)
        yield Case(f"netns/{mtu}-rc-pingpong-validate", pingpong_case(mtu, "rc", ("-c", "-s", 100000)), TIMEOUT_S)
        for operation in ("send", "write", "read", "atomic"):
            for kind in ("bw", "lat"):
                argv = program(operation, kind)
                yield Case(f"netns/{mtu}-{operation}-{kind}", perftest_case(mtu, argv), TIMEOUT_S)
        yield Case(f"netns/{mtu}-send-bw-ud", perftest_case(mtu, program("send", "bw", "UD")), TIMEOUT_S)
        # 100 exchanges of 4096 B, there and back: 4 packets each way and message at path MTU 1024, 1 at 4096.
        frames = 100 * 2 * (4096 // MTUS[mtu])
        argv = pingpong("rc", "-c", "-m", MTUS[mtu])
        yield Case(f"netns/{mtu}-capture-rc-pingpong", capture_case(mtu, argv, frames), TIMEOUT_S)
        yield Case(f"netns/{mtu}-capture-read", capture_case(mtu, program("read", "lat"), 200), TIMEOUT_S)
        yield Case(f"netns/{mtu}-capture-atomic", capture_case(mtu, program("atomic", "lat"), 200), TIMEOUT_S)
