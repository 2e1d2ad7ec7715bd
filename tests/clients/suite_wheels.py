"""Transfer engines out of Python's registry, as they are published there: NIXL over UCX, Mooncake over verbs. A program
of ours (transfers.py) calls them; nothing of theirs is built here. That the bytes went by the device is asked of
`adverb run`."""

import os
import re
import shutil
import subprocess
import sys

from harness import HERE, WORK, Case, Fail, Skip, read_counters, require_text
from suite_rdmacm import LOSS

NOTES = (
    "mooncake-transfer-engine itself needs libcuda.so.1, which is part of a driver; the same engine without CUDA is here",
)
HALF = 4 << 20
FETCH_S = 60
# Without what these wheels name as dependencies: NIXL's ask for 3 GB of CUDA and torch, which a transfer does not use.
WHEELS = {"nixl": ("nixl-cu12==1.5.1", "numpy<3"), "mooncake": ("mooncake-transfer-engine-non-cuda==0.3.13.post1",)}
# What else Mooncake's library is linked with.
LIBRARIES = {"nixl": (), "mooncake": ("libnuma.so.1", "libcurl.so.4")}
# NIXL's wheel brings UCX and a libibverbs under a name of its own, in the place of which `adverb run` puts adverb's. UCX is
# told to use nothing else.
SETTINGS = {"nixl": {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": "adverb0:1"}, "mooncake": {}}
IS_COPY = r"^adverb: .*nixl_.*/libibverbs-.* is a copy of libibverbs\.so\.1"


def environment(engine):
    """A Python with that engine, made once; Skip says why not."""
    for library in LIBRARIES[engine]:
        known = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        if library not in known:
            raise Skip(f"{library} is not installed, which the wheel needs")
    return python_with("wheels-" + engine, WHEELS[engine])


def python_with(name, wanted):
    """A Python of this name with these wheels, made once; Skip where they do not come."""
    folder = os.path.join(WORK, name)
    python, mark = os.path.join(folder, "bin", "python"), os.path.join(folder, "has " + " ".join(wanted))
    if os.path.exists(mark):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--retries", "1", "--only-binary",
           ":all:", *wanted]
    for argv in ([sys.executable, "-m", "venv", folder], pip):
        try:
            subprocess.run(argv, capture_output=True, text=True, check=True, timeout=FETCH_S)
        except subprocess.TimeoutExpired:
            raise Skip(f"{' '.join(wanted)} did not come from the registry within {FETCH_S} s") from None
        except subprocess.CalledProcessError as e:
            raise Skip(f"{' '.join(wanted)}: {(e.stderr or e.stdout).strip().splitlines()[-1]}") from None
    with open(mark, "w", encoding="utf-8"):
        return python


def sides(room, engine, options=()):
    """Both processes, running; each is asked for its bytes by `adverb run` itself."""
    argv = [environment(engine), os.path.join(HERE, "transfers.py"), engine]
    return [room.adverb(side, [*argv, side, room.path("meta")], env=SETTINGS[engine],
                        options=("--counters", room.path(side + ".counters"), *options, *expected))
            for side, expected in (("target", ()), ("initiator", ("--expect-rdma", "--expect-bytes", str(2 * HALF))))]


def transfers(engine, options=(), faulty=False):
    """4 MB are read, 4 MB written, in 16 pieces each; each side compares what it got."""

    def run(room):
        target, initiator = sides(room, engine, options)
        room.all_succeed(target, initiator)
        require_text(initiator.output(), rf"^read from the peer: {HALF} bytes, all right", engine)
        require_text(target.output(), rf"^written by the peer: {HALF} bytes, all right", engine)
        counted = [read_counters(room.path(side + ".counters")) for side in ("target", "initiator")]
        if any(values["rx_bytes"] < HALF for values in counted):
            raise Fail("the bytes did not go by the device")
        resent = sum(values["retransmitted_packets"] for values in counted)
        if faulty and not resent:
            raise Fail("nothing was sent again under loss")
        room.note(f"{counted[0]['rx_packets']} packets to the target, {resent} sent again")

    return run


def not_caught(room):
    """The control: where the copy stays NIXL finds no device, so that without adverb's library nothing can pass."""
    _, initiator = sides(room, "nixl", ("--facade", "off"))
    if room.wait_exit(initiator) == 0:
        raise Fail("NIXL's own libibverbs made a transfer: the other cases prove nothing")
    require_text(initiator.output(), IS_COPY + r", and stays \(--facade off\)$", "adverb run")
    if not re.search(r"network device 'adverb0:1' is not available|NIXL_ERR_BACKEND", initiator.output()):
        raise Fail("NIXL ended for another reason than a device that is not there")


def cases():
    lossy = ("--path", "udp", *LOSS)
    for engine in WHEELS:
        yield Case(f"wheels/{engine}", transfers(engine), timeout=FETCH_S + 90)
        yield Case(f"wheels/{engine}-lossy", transfers(engine, lossy, True), timeout=FETCH_S + 90, long=True)
    yield Case("wheels/nixl-preload", transfers("nixl", ("--facade", "preload")), timeout=FETCH_S + 90, long=True)
    yield Case("wheels/nixl-not-caught", not_caught, timeout=FETCH_S + 90, long=True)
