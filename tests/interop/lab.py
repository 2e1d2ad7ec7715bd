"""The lab: one Linux guest with rdma_rxe under QEMU, on a bridge in a network namespace of this run.

The lab's script builds the guest's image once (kept in the temporary directory between runs) and boots it; adverb
runs inside the namespace, on the bridge's own address. Everything that a run starts is taken down by `down`, also
what a run that was killed left behind.
"""

import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from harness import HERE as CLIENTS
from harness import REPO, Fail, Skip

SCRIPT = os.environ.get("RXE_LAB", os.path.join(os.path.dirname(REPO), "shared", "tools", "rxe-lab.sh"))
CACHE = os.path.join(tempfile.gettempdir(), "adverb-rxe-lab")
RUN_STEM = "adverb-rxe-run-"
HOST = "10.77.0.1"
GUEST = "10.77.0.11"
GUEST_LINK = "eth0"
BRIDGE = "br0"
TAP = "t1"
# rxe's first GID is the link-local one; adverb's only one is its address.
GUEST_GID = "1"
ADVERB_GID = "0"
BUILD_S = 240
BOOT_S = 90
WORD_S = 20
# Link MTU of an ordinary Ethernet: path MTU 1024.
MTU = 1500
DROP_TABLE = "adverbinterop"
# Packets after which the pattern of losses repeats. A plain every-k-th can lose the same packet for ever, where each
# retry sends a multiple of k packets; no retry here is as long as this.
LOSS_PERIOD = 2011


class Lab:
    """The booted guest and the namespace."""

    def __init__(self):
        self.dir = os.path.join(tempfile.gettempdir(), f"{RUN_STEM}{os.getpid()}")
        self.netns = f"adverb-rxe-{os.getpid()}"
        self.vt = os.path.join(CACHE, "root", "usr", "bin", "vt")
        self.mtu = MTU
        self.started = False

    # -- up and down -----------------------------------------------------------------------------------------

    def up(self):
        """Boots the guest; Skip says why it cannot be."""
        expect_permitted()
        sweep()
        build()
        os.makedirs(os.path.join(self.dir, "run"), exist_ok=True)
        for part in ("img", "src"):
            os.symlink(os.path.join(CACHE, part), os.path.join(self.dir, part))
        self.started = True
        done = script(self.dir, self.netns, ["up", "1"], BOOT_S, TIMEOUT=str(BOOT_S - 10))
        if done.returncode != 0:
            raise Skip(f"the guest does not boot: {last_line(done)}")

    def down(self):
        """Ends what `up` began. Harmless twice."""
        if not self.started:
            return
        self.started = False
        script(self.dir, self.netns, ["down"], WORD_S)
        shutil.rmtree(self.dir, ignore_errors=True)

    # -- words to both sides ---------------------------------------------------------------------------------

    def words(self, *argv):
        """Runs a host command inside the namespace to its good end; returns what it printed."""
        done = subprocess.run(["ip", "netns", "exec", self.netns, *argv], capture_output=True, text=True,
                              timeout=WORD_S, check=False)
        if done.returncode != 0:
            raise Fail(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def guest_argv(self, command):
        """What runs a shell command in the guest, its output and status passed on; it ends there when ended here."""
        rx = os.path.join(CACHE, "src", "rx.py")
        return ["ip", "netns", "exec", self.netns, sys.executable, "-I", "-S", rx, "10.78.0.11", command]

    def in_guest(self, command):
        """Runs a shell command in the guest to its good end."""
        done = subprocess.run(self.guest_argv(command), capture_output=True, text=True, timeout=WORD_S, check=False)
        if done.returncode != 0:
            raise Fail(f"guest: {command}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def set_mtu(self, mtu):
        """The MTU of the whole way: bridge, tap, the guest's link. rxe follows its link's."""
        if mtu == self.mtu:
            return
        self.words("ip", "link", "set", TAP, "mtu", str(mtu))
        self.words("ip", "link", "set", BRIDGE, "mtu", str(mtu))
        self.in_guest(f"ip link set {GUEST_LINK} mtu {mtu}")
        self.mtu = mtu

    # -- loss ------------------------------------------------------------------------------------------------

    def lose_every(self, k):
        """Loses about every k-th RoCE packet that the host receives, and about every k-th that it sends, counted
        apart, the k-th first. What the sender hands down as one large datagram is cut before it comes here, so that
        single packets are lost: the bridge cuts because the tap cannot, and to be sure it is told to."""
        self.words("ethtool", "-K", BRIDGE, "tx-udp-segmentation", "off")
        which = ""
        if k > 1:
            which = f"numgen inc mod {LOSS_PERIOD} {{ {', '.join(map(str, losses(k)))} }} "
        rules = "".join(
            f" chain {hook} {{ type filter hook {hook} priority 0; policy accept; udp dport 4791 {which}counter drop; }};"
            for hook in ("input", "output")
        )
        self.words("nft", f"table bridge {DROP_TABLE} {{{rules} }}")

    def lost(self):
        """(received, sent) packets lost since `lose_every`."""
        text = self.words("nft", "list", "table", "bridge", DROP_TABLE)
        counts = [int(n) for n in re.findall(r"counter packets (\d+)", text)]
        return tuple(counts)

    def lose_none(self):
        subprocess.run(["ip", "netns", "exec", self.netns, "nft", "delete", "table", "bridge", DROP_TABLE],
                       capture_output=True, timeout=WORD_S, check=False)

    def capture_argv(self, path):
        """What captures the guest's tap: the frames as they are on the wire, after segmentation."""
        return ["ip", "netns", "exec", self.netns, sys.executable, os.path.join(CLIENTS, "capture.py"), TAP, path]


def script(directory, netns, arguments, timeout, **more):
    """The lab's script, with its state in `directory`."""
    env = dict(os.environ, RXELAB_DIR=directory, RXELAB_NS=netns, MTU=str(MTU), **more)
    log = os.path.join(directory, f"{arguments[0]}.log")
    with open(log, "w") as out:
        popen = subprocess.Popen(["bash", SCRIPT, *arguments], stdout=out, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, env=env, start_new_session=True)
        try:
            popen.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
    with open(log, errors="replace") as f:
        popen.text = f.read()
    return popen


def losses(k):
    """The places in a period that are lost: the k-th, then at gaps between k/2 and 3k/2, the same in every run."""
    gaps = random.Random(k)
    at = k - 1
    while at < LOSS_PERIOD:
        yield at
        at += gaps.randint(k // 2, k + k // 2)


def last_line(done):
    rows = done.text.strip().split("\n")
    return f"{rows[-1] or 'no output'} (status {done.returncode})"


def expect_permitted():
    """Skips, with a reason in one line, where the lab cannot be."""
    if not os.path.exists(SCRIPT):
        raise Skip("the lab's script is not here (RXE_LAB names another place)")
    if os.geteuid() != 0:
        raise Skip("needs root, to make a network namespace and taps")
    for program in ("ip", "bash"):
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed")
    name = f"adverb-may-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skip(f"network namespaces are not permitted: {done.stderr.strip()}")
    tap = ["ip", "netns", "exec", name, "ip", "tuntap", "add", "t0", "mode", "tap"]
    done = subprocess.run(tap, capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    if done.returncode != 0:
        raise Skip(f"taps are not permitted: {done.stderr.strip()}")


def build():
    """Makes the guest's image, unless it is there and younger than the lab's script."""
    os.makedirs(CACHE, exist_ok=True)
    image = os.path.join(CACHE, "img", "initramfs.cpio")
    with open(os.path.join(CACHE, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(image) and os.path.getmtime(image) > os.path.getmtime(SCRIPT):
            return
        done = script(CACHE, "unused", ["build"], BUILD_S)
        if done.returncode != 0 or not os.path.exists(image):
            raise Skip(f"the guest's image cannot be made: {last_line(done)}")
    if shutil.which("qemu-system-x86_64") is None:
        raise Skip("qemu-system-x86_64 is not installed")


def sweep():
    """Takes down what killed runs left."""
    for name in os.listdir(tempfile.gettempdir()):
        pid = name.removeprefix(RUN_STEM)
        if pid == name or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        stale = os.path.join(tempfile.gettempdir(), name)
        script(stale, f"adverb-rxe-{pid}", ["down"], WORD_S)
        shutil.rmtree(stale, ignore_errors=True)
