"""An older adverb and today's, each as client and as server, over UDP between two addresses: RC, UC and UD, IRN, with and
without loss, and 1RMA. scripts/older.sh builds the older one; where it cannot be had, the cases are skipped."""

import os

from harness import ADVERB, TARGET, Case, Fail, Skip, read_counters, require, require_text
from suite_perftest import LOSSY_TIMEOUT, expect_results, program
from suite_utils import pingpong

NOTES = (
    "no release has been made: the older one is the state that the first programs were written for",
    "pingpongs run without faults: their sides leave after their last message, and then nobody repeats a lost last ACK",
)
COMMIT = "86e1a6e"
OLDER = os.path.join(TARGET, "older", COMMIT, "adverb")
LOSS = ("--loss", "0.01", "--seed", "7")
TIMEOUT_S = 60
# Each case has addresses of its own: beside each other they share nothing but the folder of processes.
SERVER, CLIENT = "127.0.62.1", "127.0.62.2"
POLICY = """
[[client]]
name = "app"
regions = ["kv-*"]
rights = ["read"]
call = true
"""


def ends():
    """(word, the server's command, the client's), both ways."""
    return (("to-older", OLDER, ADVERB), ("from-older", ADVERB, OLDER))


def expect_older():
    if not os.access(OLDER, os.X_OK):
        raise Skip(f"{OLDER} is not there (scripts/older.sh builds it)")


def counters_of(room, side):
    return read_counters(room.path(side + ".counters"))


def pair(room, commands, argv, options):
    """A server and a client of two builds to their good end; the client."""
    expect_older()
    require(argv[0])
    port = str(room.port())
    procs = []
    for side, command, address, host in zip(("server", "client"), commands, (SERVER, CLIENT), ([], [SERVER])):
        chosen = ("--counters", room.path(side + ".counters"), *options)
        procs.append(room.adverb(side, [*argv, "-p", port, *host], address=address, options=chosen, command=command))
        if side == "server":
            room.wait_listening(procs[0], int(port))
    room.all_succeed(*procs)
    return procs[1]


def both_ways(name, argv, rows=1, options=(), agreed=False, lossy=False):
    for word, server, client in ends():

        def run(room, commands=(server, client)):
            proc = pair(room, commands, argv, options)
            if rows:
                expect_results(proc, rows)
            for side in ("server", "client"):
                values = counters_of(room, side)
                if bool(values["irn_agreed"]) != agreed:
                    raise Fail(f"the {side}'s NIC agreed on IRN with {values['irn_agreed']} queue pairs")
                if not values["udp_rx_frames"]:
                    raise Fail(f"the {side}'s NIC took no frames from the network")
                if not lossy and values["drop_icrc"]:
                    raise Fail(f"{values['drop_icrc']} frames with a wrong ICRC came to the {side}")

        yield Case(f"older/{name}/{word}", run, TIMEOUT_S)


def one_rma(room, server, client):
    """A cache over 1RMA: values set and read by a client of another build than the replica's, over UDP."""
    expect_older()
    certificates = room.spawn("certs", [ADVERB, "certs", "--out", room.path("certs"), f"kv={SERVER}", "app"])
    room.expect_success(certificates)
    with open(room.path("policy.toml"), "w") as f:
        f.write(POLICY)
    replica = room.spawn("replica", [server, "kv", "serve", "--address", SERVER, "--path", "udp", "--state",
                                     room.path("s"), "--as", room.path("certs/kv"), "--policy", room.path("policy.toml")])
    room.wait_output(replica, " ready at ")
    common = ["--replica", f"{SERVER}:7450", "--as", room.path("certs/app"), "--address", CLIENT, "--path", "udp",
              "--state", room.path("c")]
    for i, size in enumerate((1, 4096, 20000)):
        # In rows, so that a failure shows the last of them.
        value = "".join("\n" if j % 64 == 63 else chr(ord("a") + (j * 7 + i) % 26) for j in range(size))
        with open(room.path("value"), "w") as f:
            f.write(value)
        with open(room.path("value")) as f:
            room.expect_success(room.spawn(f"set-{size}", [client, "kv", "set", f"key{i}", "-", *common], stdin=f))
        got = room.spawn(f"get-{size}", [client, "kv", "get", f"key{i}", *common])
        room.expect_success(got)
        if got.output().rstrip("\n") != value.rstrip("\n"):
            raise Fail(f"{len(got.output())} bytes came, not the {size} that were set")
    bench = room.spawn("bench", [client, "kv", "bench", "--time", "1s", *common])
    room.expect_success(bench)
    hits = require_text(bench.output(), r" (\d+) hits, 0 misses, 0 torn, 0 refused", "the benchmark")
    if int(hits.group(1)) < 100:
        raise Fail(f"only {hits.group(1)} gets came back")


def cases():
    for kind, extra in (("rc", ("-c",)), ("uc", ("-c",)), ("ud", ()), ("srq", ("-c",))):
        yield from both_ways(f"{kind}-pingpong", pingpong(kind, *extra), rows=0)
    irn = ("--transport", "irn")
    for operation in ("send", "write", "read", "atomic"):
        argv = program(operation, "bw")
        yield from both_ways(f"{operation}-bw", argv)
        yield from both_ways(f"loss-{operation}-bw", argv + LOSSY_TIMEOUT, options=LOSS, lossy=True)
        yield from both_ways(f"irn-{operation}-bw", argv, options=irn, agreed=True)
        yield from both_ways(f"irn-loss-{operation}-bw", argv + LOSSY_TIMEOUT, options=(*irn, *LOSS), agreed=True,
                             lossy=True)
    yield from both_ways("irn-rc-pingpong", pingpong("rc", "-c"), rows=0, options=irn, agreed=True)
    for word, server, client in ends():
        yield Case(f"older/one-rma/{word}", lambda room, s=server, c=client: one_rma(room, s, c), TIMEOUT_S)
