"""IRN between unmodified programs: both sides offer it, or one does; with and without loss and reordering; through shared
memory, through UDP, and between two hosts."""

import os

from harness import REPO, Case, Fail, read_counters, require
from captures import expect_sound, tshark
from suite_netns import TIMEOUT_S, Wire
from suite_perftest import LOSSY_TIMEOUT, combinations, expect_results, is_long, program
from suite_utils import RC_VARIANTS, SIZES, pingpong

NOTES = (
    "XRC is in the matrix although its queue pairs recover by go-back-N: offering IRN must not disturb them",
    "pingpongs run without faults: their sides leave after their last message, and then nobody repeats a lost last ACK",
)
IRN = ("--transport", "irn")
SIDES = {"both": (IRN, IRN), "server": (IRN, ()), "client": ((), IRN)}
FAULTS = {"": (), "-faulty": ("--loss", "0.01", "--reorder", "0.02", "--seed", "7")}
UDP = ("--path", "udp")
# Of a message on a captured wire: 200 of them are 800 frames at the larger MTU, of which 2% are lost.
CAPTURED_BYTES = 16384
DISSECTOR = os.path.join(REPO, "scripts", "adverb_irn.lua")


def counters(room):
    return {side: read_counters(room.path(side + ".counters")) for side in ("server", "client")}


def expect_choice(room, both, connected=True):
    """What the NICs say of the choice: each queue pair of a pair that both offer agreed, and no other."""
    for side, values in counters(room).items():
        agreed = values["irn_agreed"]
        if bool(agreed) != (both and connected):
            raise Fail(f"the {side}'s NIC agreed on IRN with {agreed} queue pairs")
        if not both and values["early_packets"]:
            raise Fail(f"the {side}'s NIC took packets as IRN's")


def pair_case(name, argv, sides, faults=(), rows=1, timeout=60, connected=True, **how):
    """Client and server with their options and counters, to their good end, and the choice that was due."""

    def run(room):
        require(argv[0])
        options = {}
        for side, chosen in zip(("server", "client"), SIDES[sides]):
            options[side + "_options"] = (*chosen, *faults, "--counters", room.path(side + ".counters"))
        _, client = room.both_succeed(argv, **options, **how)
        if rows:
            expect_results(client, rows)
        expect_choice(room, sides == "both", connected)

    return Case(f"irn/{name}", run, timeout, is_long(name.removesuffix("-faulty")))


def matrix():
    """Every operation of perftest, among all that it can do: both sides with IRN, on both ways, without and with faults."""
    for name, argv, rows, reliable in combinations():
        if not reliable:
            continue
        connected = "-xrc" not in name
        for suffix, faults in FAULTS.items():
            more = LOSSY_TIMEOUT if faults else []
            yield pair_case(f"{name}{suffix}", argv + more, "both", faults, rows, 120, connected)
    for operation in ("send", "write", "read", "atomic"):
        for kind in ("bw", "lat"):
            argv = program(operation, kind)
            for suffix, faults in FAULTS.items():
                more = LOSSY_TIMEOUT if faults else []
                yield pair_case(f"udp-{operation}-{kind}{suffix}", argv + more, "both", (*UDP, *faults), timeout=120)
                for side in ("server", "client"):
                    yield pair_case(f"only-{side}-{operation}-{kind}{suffix}", argv + more, side, faults, timeout=120)


def pingpongs():
    for sides in SIDES:
        for way, options in (("one-address", ()), ("udp", UDP)):
            for variant, extra in RC_VARIANTS.items():
                argv = pingpong("rc", *extra)
                yield pair_case(f"pingpong-{variant}-{way}-{sides}", argv, sides, options, rows=0)
            for kind in ("srq", "uc", "ud"):
                yield pair_case(f"pingpong-{kind}-{way}-{sides}", pingpong(kind), sides, options, rows=0,
                                connected=kind == "srq")
    for size in SIZES:
        argv = pingpong("rc", "-c", "-s", size, iterations=20)
        yield pair_case(f"pingpong-{size}B", argv, "both", UDP, rows=0)


def says(room):
    """Both sides say what was chosen: before the program runs, and with a line for each queue pair."""
    require("ib_write_bw")
    argv = program("write", "bw")
    options = ("--trace", *UDP)
    s, c = room.both_succeed(argv, server_options=(*options, *IRN), client_options=(*options, *IRN))
    for side in (s, c):
        if "; IRN with peers that offer it too" not in side.output() or "recovers by IRN: the peer agreed" not in side.output():
            raise Fail(f"{side.label} does not say that it uses IRN")


def says_unanswered(room):
    """A peer that does not answer is named as such, once it has been asked often enough: the transfer takes a second."""
    require("ib_write_bw")
    argv = ["ib_write_bw", "-F", "-s", "65536", "-D", "2"]
    s, c = room.both_succeed(argv, server_options=("--trace", *IRN), client_options=("--trace",))
    if "recovers by go-back-N: the peer did not answer" not in s.output():
        raise Fail("the server does not say that it goes on as plain RC")
    if "recovers by" in c.output():
        raise Fail("the client speaks of a choice that it was not offered")


def captured(mtu, argv, least):
    """Frames of IRN on a wire: right ICRCs, nothing malformed, and the dissector of this repository reads every one."""

    def run(room):
        require(argv[0], "tshark")
        wire = Wire(room, mtu)
        path, proc = wire.capture()
        room.both_succeed(argv, **wire.ends(options=(*IRN, "--loss", "0.02", "--seed", "3", "--direction", "tx")))
        proc.kill(15)
        room.expect_success(proc)
        expect_sound(path, least)
        frames = tshark(path, "-Y", "infiniband.bth.opcode >= 0xc0", "-T", "fields", "-e", "frame.number")
        if len(frames) < least:
            raise Fail(f"{len(frames)} of the captured frames are IRN's, not {least}")
        # One pass of the dissector for all that is asked of it: beside a busy host's other tasks each takes a minute.
        fields = ("frame.number", "adverb_irn.hello.version", "adverb_irn.ack.cumulative", "adverb_irn.sack.psn")
        columns = [word for field in fields for word in ("-e", field)]
        lines = tshark(path, "-X", "lua_script:" + DISSECTOR, "-Y", "adverb_irn && !_ws.malformed", "-T", "fields", *columns)
        read = [line.split("\t") for line in lines]
        if [number for number, *_ in read] != frames:
            raise Fail(f"the dissector reads {len(read)} frames of {len(frames)}")
        if {version for _, version, _, _ in read if version} != {"1"}:
            raise Fail("the dissector finds no hello of version 1, or one of another")
        # Of a lost packet the acknowledgement of a later one tells.
        if not any(psn and int(psn, 0) != int(cumulative, 0) for _, _, cumulative, psn in read):
            raise Fail("no acknowledgement names a packet behind one that is missing")

    return run


def cases():
    yield Case("irn/says-what-was-chosen", says)
    yield Case("irn/says-what-was-not-answered", says_unanswered)
    yield from pingpongs()
    yield from matrix()
    for mtu in (1500, 9000):
        for operation in ("write", "send", "read", "atomic"):
            argv = [*program(operation, "bw", size=CAPTURED_BYTES), *LOSSY_TIMEOUT]
            yield Case(f"irn/netns-{mtu}-capture-{operation}", captured(mtu, argv, 200), TIMEOUT_S)
