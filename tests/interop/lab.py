"""The lab: a Linux guest with rdma_rxe under QEMU, on a bridge in a network namespace of this run. Cases of two guests boot
a second one, in another namespace, which has to do with the first by a switch only.

The guest's image is made from Debian's packages (guest_image.py). adverb runs inside the namespace, on the bridge's own
address. Everything that a run starts is taken down by `down`; QEMU ends with the run that started it, and what else a
run that was killed left behind goes with the next.
"""

import ctypes
import ipaddress
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import guest_image
from harness import HERE as CLIENTS
from harness import Fail, Skip

RUN_STEM = "adverb-rxe-run-"
NETNS_STEM = "adverb-rxe-"
# The letter of the second guest, and its address on its cable.
SECOND = "b"
CABLE_SECOND = "10.9.0.12"
# Addresses of the two ends, by version of IP. A program's own words over TCP take IPv4 always.
HOSTS = {4: "10.77.0.1", 6: "fd77::1"}
GUESTS = {4: "10.77.0.11", 6: "fd77::11"}
HOST, GUEST = HOSTS[4], GUESTS[4]
# What the cases exchange over RDMA alone passes the first link; words to the guest take the second.
WORDS_HOST = "10.78.0.1"
WORDS_GUEST = "10.78.0.11"
# A third link is a cable to the process of a switch, without any interface of this host.
CABLE_GUEST = "10.9.0.11"
CABLE_LINK, CABLE_RXE = "eth2", "rxe1"
AGENT_PORT = 7000
GUEST_LINK = "eth0"
BRIDGE = "br0"
TAP = "t1"
WORDS_TAP = "t2"
GUEST_MACS = ("52:54:00:00:77:11", "52:54:00:00:78:11", "52:54:00:00:09:11")
# adverb's only GID is its address; rxe has one for each address of its link.
ADVERB_GID = "0"
GUEST_GIDS = "/sys/class/infiniband/{}/ports/1/gids"
GUEST_MEMORY_MB = 384
# Seconds to boot, and the accelerators in the order in which they are tried. Where the machine is itself a guest, KVM
# may be offered and yet not run one: it gets less time, and what worked is remembered.
ACCELERATORS = (("kvm", 12), ("tcg", 90))
KERNEL_LINE = ("console=ttyS0 quiet loglevel=4 rdinit=/init panic=-1 mitigations=off net.ifnames=0 tsc=reliable "
               "random.trust_cpu=on")
WORD_S = 20
# Link MTU of an ordinary Ethernet: path MTU 1024.
MTU = 1500
DROP_TABLE = "adverbinterop"
# Packets after which the pattern of losses repeats. A plain every-k-th can lose the same packet for ever, where each
# retry sends a multiple of k packets; no retry here is as long as this.
LOSS_PERIOD = 2011
PR_SET_PDEATHSIG = 1


class Lab:
    """The booted guest and the namespace. A second one has a letter behind its run's number."""

    def __init__(self, letter=""):
        self.dir = os.path.join(tempfile.gettempdir(), f"{RUN_STEM}{os.getpid()}{letter}")
        self.netns = f"{NETNS_STEM}{os.getpid()}{letter}"
        self.image = None
        self.guest = None
        self.mtu = MTU
        self.started = False
        # The version of IP that the frames of the case take.
        self.ip = 4
        self.guest_gids = {}

    @property
    def exercise(self):
        """The verbs exerciser's binary on the host."""
        return self.image.exercise

    @property
    def host(self):
        """adverb's address, of the case's version of IP."""
        return HOSTS[self.ip]

    def packed(self):
        """Both ends' addresses of that version, as they stand in packets."""
        return tuple(ipaddress.ip_address(addresses[self.ip]).packed for addresses in (HOSTS, GUESTS))

    @property
    def cable(self):
        """Where QEMU listens for the switch that the guest's third link goes to."""
        return os.path.join(self.dir, "cable")

    @property
    def guest_gid(self):
        """The index of rxe's GID of that version."""
        return self.guest_gids[self.ip]

    # -- up and down -----------------------------------------------------------------------------------------

    def up(self):
        """Boots the guest; Skip says why it cannot be."""
        expect_permitted()
        sweep()
        self.image = guest_image.image(GUESTS, WORDS_GUEST, CABLE_GUEST, AGENT_PORT)
        os.makedirs(self.dir, exist_ok=True)
        self.started = True
        self.make_network()
        for accelerator, limit_s in self.accelerators():
            why = self.boot(accelerator, limit_s)
            if why is None:
                self.guest_gids = self.find_gids()
                with open(self.image.accelerator, "w") as f:
                    f.write(accelerator)
                return
            self.end_guest()
        self.down()
        raise Skip(f"the guest does not boot: {why}")

    def down(self):
        """Ends what `up` began. Harmless twice."""
        if not self.started:
            return
        self.started = False
        self.end_guest()
        remove_netns(self.netns)
        shutil.rmtree(self.dir, ignore_errors=True)

    def make_network(self):
        """The namespace with the bridge that carries RDMA and a tap for words, one queue of the guest on each."""
        done = subprocess.run(["ip", "netns", "add", self.netns], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Skip(f"network namespaces are not permitted: {done.stderr.strip()}")
        # IPv6 only where a case needs it: nothing else is to speak on the links.
        for key in ("all", "default"):
            self.words("sh", "-c", f"echo 1 >/proc/sys/net/ipv6/conf/{key}/disable_ipv6")
        for row in (
            "link set lo up",
            f"link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"tuntap add {TAP} mode tap",
            f"tuntap add {WORDS_TAP} mode tap",
            f"link set {TAP} mtu {MTU} master {BRIDGE} up",
            f"link set {BRIDGE} mtu {MTU} up",
            f"link set {WORDS_TAP} up",
            f"addr add {HOST}/24 dev {BRIDGE}",
            f"addr add {WORDS_HOST}/24 dev {WORDS_TAP}",
        ):
            self.words("ip", *row.split())
        self.words("sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{BRIDGE}/disable_ipv6")
        self.words("ip", "addr", "add", f"{HOSTS[6]}/64", "dev", BRIDGE, "nodad")

    def accelerators(self):
        """Those to try: the one that worked last, or all."""
        try:
            with open(self.image.accelerator) as f:
                known = f.read()
        except OSError:
            known = None
        usable = [a for a in ACCELERATORS if a[0] != "kvm" or os.access("/dev/kvm", os.W_OK)]
        return [a for a in usable if a[0] == known] or usable

    def boot(self, accelerator, limit_s):
        """Starts the guest and waits until it is ready. Returns None, or why it is not."""
        console = os.path.join(self.dir, f"console-{accelerator}")
        said = os.path.join(self.dir, f"qemu-{accelerator}")
        argv = ["ip", "netns", "exec", self.netns, "qemu-system-x86_64", "-M", "pc,usb=off", "-accel", accelerator,
                "-cpu", "host" if accelerator == "kvm" else "max", "-m", str(GUEST_MEMORY_MB), "-nodefaults",
                "-no-user-config", "-display", "none", "-no-reboot", "-serial", f"file:{console}",
                "-kernel", self.image.kernel, "-initrd", self.image.initial, "-append", KERNEL_LINE]
        # No virtio header: a tap then takes no datagrams larger than its MTU, and what is captured is frames.
        links = [f"tap,id=n{index},ifname={tap},script=no,downscript=no,vnet_hdr=off"
                 for index, tap in enumerate((TAP, WORDS_TAP))]
        links.append(f"stream,id=n2,server=on,addr.type=unix,addr.path={self.cable}")
        for index, (link, mac) in enumerate(zip(links, GUEST_MACS)):
            argv += ["-netdev", link,
                     "-device", f"virtio-net-pci,netdev=n{index},mac={mac},romfile=,addr={3 + index}"]
        if os.path.exists(self.cable):
            os.remove(self.cable)
        with open(said, "wb") as out:
            self.guest = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                          start_new_session=True, preexec_fn=end_with_parent)
        deadline = time.monotonic() + limit_s
        while "guest: ready" not in text_of(console):
            if self.guest.poll() is not None:
                return f"QEMU ({accelerator}) ended: {last_line(text_of(said) or text_of(console))}"
            if time.monotonic() > deadline:
                return f"not ready within {limit_s} s ({accelerator}): {last_line(text_of(console))}"
            time.sleep(0.05)
        if complaint := re.search(r"^guest: (?!ready).*", text_of(console), re.M):
            return complaint.group(0)
        try:
            self.in_guest("true")
        except Fail as e:
            return str(e)
        return None

    def end_guest(self):
        if self.guest is not None:
            if self.guest.poll() is None:
                os.killpg(self.guest.pid, signal.SIGKILL)
            self.guest.wait()
            self.guest = None

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
        shell = os.path.join(guest_image.HERE, "guest_shell.py")
        return ["ip", "netns", "exec", self.netns, sys.executable, "-I", "-S", shell, WORDS_GUEST, str(AGENT_PORT), command]

    def in_guest(self, command):
        """Runs a shell command in the guest to its good end."""
        done = subprocess.run(self.guest_argv(command), capture_output=True, text=True, timeout=WORD_S, check=False)
        if done.returncode != 0:
            raise Fail(f"guest: {command}: {done.stdout.strip()} {done.stderr.strip()}")
        return done.stdout

    def gids_of(self, device):
        """The indexes of an rxe device's GIDs, as text, by GID."""
        folder = GUEST_GIDS.format(device)
        rows = self.in_guest(f"cd {folder} && grep -v '^0000:0000:0000:0000:0000:0000:0000:0000$' *").split()
        return {ipaddress.IPv6Address(gid): index for index, gid in (row.split(":", 1) for row in rows)}

    def find_gids(self):
        """The indexes of rxe's GIDs, as text, by version of IP."""
        found = self.gids_of("rxe0")
        wanted = {4: ipaddress.IPv6Address("::ffff:" + GUESTS[4]), 6: ipaddress.IPv6Address(GUESTS[6])}
        if missing := [str(gid) for gid in wanted.values() if gid not in found]:
            raise Fail(f"rxe has no GID {' or '.join(missing)}, but {' '.join(map(str, found))}")
        return {ip: found[gid] for ip, gid in wanted.items()}

    def set_mtu(self, mtu):
        """The MTU of the whole way: bridge, tap, the guest's link. rxe follows its link's."""
        if mtu == self.mtu:
            return
        self.words("ip", "link", "set", TAP, "mtu", str(mtu))
        self.words("ip", "link", "set", BRIDGE, "mtu", str(mtu))
        self.in_guest(f"ip link set {GUEST_LINK} mtu {mtu}")
        self.mtu = mtu

    def counted(self):
        """What links, UDP and rxe have counted on both sides since the guest booted, for a failure: where packets may have
        been lost. A side that does not answer says so."""
        host = "ip -s link; ip neigh; grep ^Udp: /proc/net/snmp"
        guest = ("cat /proc/net/dev; grep ^Udp: /proc/net/snmp; rdma resource show qp; "
                 "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -v '^0$' *")
        told = []
        for name, words in (("host", lambda: self.words("sh", "-c", host)), ("guest", lambda: self.in_guest(guest))):
            try:
                text = words()
            except (Fail, OSError, subprocess.SubprocessError) as e:
                text = f"is not told: {e}"
            told.append(f"counted by the {name}:\n{text.rstrip()}")
        return "\n".join(told)

    # -- loss ------------------------------------------------------------------------------------------------

    def lose_every(self, k):
        """Loses about every k-th RoCE packet that the host receives, and about every k-th that it sends, counted
        apart, the k-th first."""
        places = range(LOSS_PERIOD) if k == 1 else list(losses(k))
        self.lose(received=places, sent=places)

    def lose(self, received=(), sent=()):
        """Loses RoCE packets by their places among those that the host receives, and sends. What the sender hands down
        as one large datagram is cut before it comes here, so that single packets are lost: the bridge cuts because
        the tap cannot, and to be sure it is told to."""
        self.words("ethtool", "-K", BRIDGE, "tx-udp-segmentation", "off")
        rules = ""
        for hook, places in (("input", received), ("output", sent)):
            if not places:
                continue
            which = ""
            if len(places) < LOSS_PERIOD:
                which = f"numgen inc mod {LOSS_PERIOD} {{ {', '.join(map(str, places))} }} "
            rules += (f" chain {hook} {{ type filter hook {hook} priority 0; policy accept; "
                      f"udp dport 4791 {which}counter drop; }};")
        self.words("nft", f"table bridge {DROP_TABLE} {{{rules} }}")

    def lost(self):
        """Packets lost since then, those received before those sent."""
        text = self.words("nft", "list", "table", "bridge", DROP_TABLE)
        counts = [int(n) for n in re.findall(r"counter packets (\d+)", text)]
        return tuple(counts)

    def lose_none(self):
        subprocess.run(["ip", "netns", "exec", self.netns, "nft", "delete", "table", "bridge", DROP_TABLE],
                       capture_output=True, timeout=WORD_S, check=False)

    def capture_argv(self, path):
        """What captures the guest's tap: the frames as they are on the wire, after segmentation."""
        return ["ip", "netns", "exec", self.netns, sys.executable, os.path.join(CLIENTS, "capture.py"), TAP, path]


def end_with_parent():
    """In the child, before it becomes QEMU: the kernel ends it when the run ends, however that is."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def losses(k):
    """The places in a period that are lost: the k-th, then at gaps between k/2 and 3k/2, the same in every run."""
    gaps = random.Random(k)
    at = k - 1
    while at < LOSS_PERIOD:
        yield at
        at += gaps.randint(k // 2, k + k // 2)


def text_of(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def last_line(text):
    return text.strip().split("\n")[-1] or "it says nothing"


def expect_permitted():
    """Skips, with a reason in one line, where the lab cannot be."""
    if os.geteuid() != 0:
        raise Skip("needs root, to make a network namespace and taps")
    for program in ("ip", "nft", "ethtool", "cc", "apt-get", "qemu-system-x86_64"):
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed (scripts/setup.sh test installs it)")
    name = f"adverb-may-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skip(f"network namespaces are not permitted: {done.stderr.strip()}")
    tap = ["ip", "netns", "exec", name, "ip", "tuntap", "add", "t0", "mode", "tap"]
    done = subprocess.run(tap, capture_output=True, text=True, check=False)
    remove_netns(name)
    if done.returncode != 0:
        raise Skip(f"taps are not permitted: {done.stderr.strip()}")


def remove_netns(name):
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def sweep():
    """Takes down what killed runs left: their QEMU has ended with them."""
    for name in os.listdir(tempfile.gettempdir()):
        run = name.removeprefix(RUN_STEM)
        pid = run.rstrip(SECOND)
        if run == name or not pid.isdigit() or os.path.exists(f"/proc/{pid}"):
            continue
        remove_netns(NETNS_STEM + run)
        shutil.rmtree(os.path.join(tempfile.gettempdir(), name), ignore_errors=True)
