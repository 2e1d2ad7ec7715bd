"""Debian's QEMU moves a running guest to another QEMU by rdma. The guest (guest.s) fills 32 MB and writes to memory for
ever; what arrives is compared, all of it, with what the source has kept."""

import filecmp
import json
import os
import shutil
import socket
import subprocess

from harness import HERE, WORK, Case, Fail, Skip, read_counters, require
from suite_rdmacm import LOSS, TCP, alive, listens

MEMORY = 48 << 20
# What the guest has filled with words, no two pages of which are alike.
FILLED = 32 << 20
# As long as the guest may stand still, where a lost packet can cost 2.1 s: with QEMU's 300 ms it writes faster than it moves.
PATIENT_MS = 60_000


class Monitor:
    """QEMU's machine protocol over a Unix socket (QMP): one command, one answer; events go by."""

    def __init__(self, room, side, proc):
        def connected():
            if not alive(proc):
                raise Fail(f"{side} exited with {proc.popen.poll()}")
            end = socket.socket(socket.AF_UNIX)
            try:
                end.connect(os.path.relpath(room.path(side + ".qmp")))
                return end
            except OSError:
                end.close()
                return None

        self.side = side
        end = room.wait_until(f"monitor of {side}", connected)
        room.cleanups.append(end.close)
        end.settimeout(max(room.remaining(), 0.001))
        self.words = end.makefile("rwb")
        self.line()
        self("qmp_capabilities")

    def line(self):
        try:
            text = self.words.readline()
        except OSError as e:
            raise Fail(f"{self.side}'s monitor: {e}") from None
        if not text:
            raise Fail(f"{self.side}'s monitor has gone")
        return json.loads(text)

    def ask(self, command, arguments):
        self.words.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        self.words.flush()
        while True:
            answer = self.line()
            if "return" in answer or "error" in answer:
                return answer

    def __call__(self, command, **arguments):
        answer = self.ask(command, arguments)
        if "error" in answer:
            raise Fail(f"{self.side}: {command}: {answer['error']['desc']}")
        return answer["return"]

    def refusal(self, command, **arguments):
        """What QEMU says of a command that it does not carry out, or None."""
        return self.ask(command, arguments).get("error", {}).get("desc")


def guest():
    """The boot sector, assembled once."""
    require("as", "ld")
    source, folder = os.path.join(HERE, "guest.s"), os.path.join(WORK, "bin")
    image, unlinked = os.path.join(folder, "guest.img"), os.path.join(folder, "guest.o")
    if not os.path.exists(image) or os.path.getmtime(image) < os.path.getmtime(source):
        os.makedirs(folder, exist_ok=True)
        for argv in (["as", "--32", "-o", unlinked, source],
                     ["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", image, unlinked]):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Fail(f"{argv[0]} failed on {source}:\n{done.stderr}")
    return image


def qemu(room, side, *more, options=()):
    """A QEMU with that guest, without an accelerator of the host's."""
    argv = ["qemu-system-x86_64", "-machine", "pc,accel=tcg", "-m", str(MEMORY >> 20), "-display", "none", "-nodefaults",
            "-no-user-config", "-drive", f"file={guest()},format=raw,if=floppy,readonly=on", "-debugcon", f"file:{side}.said",
            "-qmp", f"unix:{side}.qmp,server=on,wait=off", *more]
    folder = room.path("shared")
    return room.adverb(side, argv, options=(*options, "--counters", room.path(side + ".counters")),
                       env={"ADVERB": f"directory={folder}"})


def said(room, side):
    """What the guest has said to that QEMU: a destination's file begins anew."""
    path = room.path(side + ".said")
    if not os.path.exists(path):
        return ""
    with open(path, encoding="latin-1") as f:
        return f.read()


def migrated(room, source, target, port, pin, faulty):
    """Starts the migration, and waits until the source says that it is complete."""
    for monitor in (source, target):
        monitor("migrate-set-capabilities", capabilities=[{"capability": "rdma-pin-all", "state": pin}])
    if faulty:
        source("migrate-set-parameters", **{"downtime-limit": PATIENT_MS})
    target("migrate-incoming", uri=f"rdma:127.0.0.1:{port}")
    room.wait_until("QEMU that listens", lambda: listens(room.path("shared"), "127.0.0.1", TCP, port))
    source("migrate", uri=f"rdma:127.0.0.1:{port}")

    def ended():
        state = source("query-migrate")
        if state.get("status") in ("failed", "cancelled"):
            raise Fail(f"the migration {state['status']}: {state.get('error-desc', 'QEMU does not say why')}")
        return state if state.get("status") == "completed" else None

    state = room.wait_until("end of the migration", ended)
    room.wait_until("guest at the target", lambda: target("query-status")["status"] != "inmigrate")
    return state


def migration(pin=False, options=(), faulty=False):
    """The guest runs while its memory goes; then both QEMUs stand still and have the same memory; then it goes on."""

    def run(room):
        if not shutil.which("qemu-system-x86_64"):
            raise Skip("qemu-system-x86_64 is not installed (scripts/setup.sh installs it)")
        port = room.port()
        expect = ("--expect-rdma", "--expect-bytes", str(FILLED))
        procs = [qemu(room, "source", options=(*options, *expect)),
                 qemu(room, "target", "-incoming", "defer", "-S", options=options)]
        source, target = (Monitor(room, side, proc) for side, proc in zip(("source", "target"), procs))
        room.wait_until("guest that counts", lambda: said(room, "source").startswith("b."))
        state = migrated(room, source, target, port, pin, faulty)
        if state["ram"]["transferred"] < FILLED:
            raise Fail(f"{state['ram']['transferred']} bytes of memory went over")
        if [monitor("query-status")["status"] for monitor in (source, target)] != ["postmigrate", "paused"]:
            raise Fail("the two do not stand still")
        compare(room, source, target)
        target("cont")
        room.wait_until("guest that goes on", lambda: "." in said(room, "target"))
        for monitor in (source, target):
            monitor("quit")
        room.all_succeed(*procs)
        expect_counted(room, faulty)
        resent = read_counters(room.path("source.counters"))["retransmitted_packets"]
        room.note(f"{state['ram']['transferred'] >> 20} MB, {resent} packets sent again")

    return run


def compare(room, source, target):
    """All memory of the two machines."""
    paths = [room.path(side + ".memory") for side in ("source", "target")]
    for monitor, path in zip((source, target), paths):
        monitor("pmemsave", val=0, size=MEMORY, filename=path)
    same = filecmp.cmp(*paths, shallow=False)
    size = os.path.getsize(paths[0])
    for path in paths:
        os.remove(path)
    if not same or size != MEMORY:
        raise Fail("the target's memory is not the source's")


def expect_counted(room, faulty):
    counted = [read_counters(room.path(side + ".counters")) for side in ("source", "target")]
    if counted[1]["rx_bytes"] < FILLED or not counted[0]["cm_established"]:
        raise Fail(f"{counted[1]['rx_bytes']} bytes came by the device")
    if faulty and not counted[0]["retransmitted_packets"]:
        raise Fail("nothing was sent again under loss")


def nobody(room):
    """The control: where nobody waits for it a migration is refused, and the guest goes on where it is."""
    if not shutil.which("qemu-system-x86_64"):
        raise Skip("qemu-system-x86_64 is not installed (scripts/setup.sh installs it)")
    proc = qemu(room, "source")
    source = Monitor(room, "source", proc)
    room.wait_until("guest that counts", lambda: said(room, "source").startswith("b."))
    refused = source.refusal("migrate", uri=f"rdma:127.0.0.1:{room.port()}")
    if "RDMA ERROR: connecting to destination" not in (refused or ""):
        raise Fail(f"QEMU says {refused!r} of a target that is not there")
    before = len(said(room, "source"))
    room.wait_until("guest that goes on", lambda: len(said(room, "source")) > before)
    source("quit")
    room.expect_success(proc)


def cases():
    yield Case("qemu/migration", migration(), timeout=90)
    yield Case("qemu/migration-pinned", migration(pin=True), timeout=90, long=True)
    # rdma_cm's queue pairs wait 2.1 s for a packet that was lost behind all others: with one in a hundred lost, 90 s.
    for suffix, more in {"lossy": ("--loss", "0.001", "--seed", "5"), "lossy-irn": (*LOSS, "--transport", "irn")}.items():
        lossy = migration(pin=True, options=("--path", "udp", *more), faulty=True)
        yield Case(f"qemu/migration-{suffix}", lossy, timeout=180, long=True)
    yield Case("qemu/migration-to-nobody", nobody, timeout=90, long=True)
