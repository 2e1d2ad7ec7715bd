"""The pingpongs and perftest between adverb and rxe, the frames of large writes, and two processes at once."""

import os

import farewell
import lab
from harness import Case, read_counters, require
from sides import LAB, both_sides, both_ways, start, watched
from suite_perftest import expect_results
from suite_operations import LONG, SHORT, exercise, expect_good

# Few messages: the guest is emulated, and its clock is not what is measured.
ITERATIONS = 50
SIZE = {"bw": 8192, "lat": 64}
LONG_TIMEOUT, SHORT_TIMEOUT = ["-u", LONG[1]], ["-u", SHORT[1]]
SERVICES = {"send": ("RC", "UC", "UD"), "write": ("RC", "UC"), "read": ("RC",), "atomic": ("RC",)}


def stock(program, *arguments, device_option=None, gid_option="-g"):
    """The argv of a Debian program for one side, as `start` wants it."""

    def argv(is_adverb, port, host):
        gid = lab.ADVERB_GID if is_adverb else LAB.guest_gid
        device = [] if is_adverb or device_option is None else [device_option, "rxe0"]
        return [program, gid_option, gid, *device, "-p", str(port), *map(str, arguments), *([host] if host else [])]

    return argv


def has_left(count):
    """Whether a pingpong did not end by the race that its sides have by design: adverb's had all of its messages and
    their acknowledgements, and left; rxe's lacks the last one."""

    def why_not(room, path):
        ends = both_sides(room)
        if ends["adverb"].popen.poll() != 0 or ends["rxe"].popen.poll() is not None:
            return "it is not only rxe's side that has not ended"
        (counters,) = [name for name in os.listdir(room.dir) if name.endswith(".counters")]
        completions = read_counters(room.path(counters))["completions"]
        if completions != 2 * count:
            return f"adverb's side had {completions} completions, not {2 * count}"
        return farewell.last_acknowledgement_was_lost(path, *LAB.packed())

    return why_not


def pingpong(kind, *extra, count=100):
    argv = stock(f"ibv_{kind}_pingpong", "-n", count, *extra)

    def run(room, client_is_adverb):
        require(f"ibv_{kind}_pingpong")
        ends = start(room, client_is_adverb, argv, argv)
        room.all_succeed(ends.server, ends.client)

    return run


def perftest_argv(operation, kind, service, *extra, timeout=LONG_TIMEOUT):
    arguments = ["-F", "-c", service, "-n", ITERATIONS]
    if operation != "atomic":
        arguments += ["-s", 1024 if service == "UD" else SIZE[kind]]
    if service == "RC":
        arguments += timeout
    return stock(f"ib_{operation}_{kind}", *arguments, *extra, device_option="-d", gid_option="-x")


def perftest(operation, kind, service="RC", *extra, timeout=LONG_TIMEOUT):
    argv = perftest_argv(operation, kind, service, *extra, timeout=timeout)

    def run(room, client_is_adverb):
        require(f"ib_{operation}_{kind}")
        ends = start(room, client_is_adverb, argv, argv)
        room.all_succeed(ends.server, ends.client)
        expect_results(ends.client, 1)

    return run


def segmented_write(room):
    """A large write leaves adverb as datagrams that the kernel cuts: each frame on the wire has an identification of
    its own, and an ICRC that covers it."""
    argv = exercise("--ops", "write", "--size", 1 << 20, "--count", 4, "--queued", *LONG)
    ends = start(room, True, argv, argv)
    room.expect_success(ends.client, ends.server)
    expect_good(ends, ["write"], 1 << 20, 4, queued=True)


def three_processes(room):
    """Three processes at adverb's one address and port, two clients and a server, each with a peer in the guest: each
    must get its own frames, whichever of them the kernel gave them to. Timeouts are long, because all of them spin."""
    argv = perftest_argv("send", "lat", "RC", "-n", 300)
    out = start(room, True, argv, argv, label="out-")
    back = start(room, False, argv, argv, label="back-")
    third = start(room, True, argv, argv, label="third-")
    room.all_succeed(*[p for ends in (out, back, third) for p in (ends.server, ends.client)])
    for ends in (out, back, third):
        expect_results(ends.client, 1)


def cases():
    for kind, extra, bears in (("rc", ("-c",), has_left(100)), ("uc", (), None), ("ud", ("-s", 1000), None), ("srq", (), None)):
        yield from both_ways(f"{kind}-pingpong", pingpong(kind, *extra), dissect=True, bears=bears)
    yield from both_ways("rc-pingpong-events", pingpong("rc", "-e", "-c"), bears=has_left(100),
                         look=lambda path: farewell.expect_right(path, *LAB.packed()))
    yield from both_ways("rc-pingpong-65000B", pingpong("rc", "-c", "-s", 65000, count=20), bears=has_left(20))
    for operation, services in SERVICES.items():
        for kind in ("bw", "lat"):
            for service in services:
                name = f"{operation}-{kind}-{service.lower()}"
                one_way = kind == "bw" and service != "RC"
                yield from both_ways(name, perftest(operation, kind, service), one_way=one_way)
    yield from both_ways("write-bw-rc-4-qps", perftest("write", "bw", "RC", "-q", 4))
    yield from both_ways("send-bw-rc-bidirectional", perftest("send", "bw", "RC", "-b"))
    yield Case("interop/segmented-write", watched(segmented_write, least=4 * 1024 // 66, segmented=2048, dissect=True), 60)
    yield Case("interop/three-processes", watched(three_processes), 60)
    # No pingpong here: a side leaves once it has its last message, and then nobody repeats a lost last ACK.
    for operation in SERVICES:
        yield from both_ways(f"loss-{operation}-bw", perftest(operation, "bw", timeout=SHORT_TIMEOUT), timeout=60, lose=50)
        yield from both_ways(f"loss-{operation}-lat", perftest(operation, "lat", timeout=SHORT_TIMEOUT), timeout=60, lose=50)


    for kind, extra, bears in (("rc", ("-c",), has_left(100)), ("uc", (), None), ("ud", ("-s", 1000), None)):
        yield from both_ways(f"ipv6-{kind}-pingpong", pingpong(kind, *extra), timeout=60, dissect=True, ip=6, bears=bears)
    for operation, services in SERVICES.items():
        for service in services:
            yield from both_ways(f"ipv6-{operation}-lat-{service.lower()}", perftest(operation, "lat", service),
                                 timeout=60, ip=6)
    yield from both_ways("ipv6-loss-write-bw", perftest("write", "bw", timeout=SHORT_TIMEOUT), timeout=60, lose=50, ip=6)


def large_cases():
    yield from both_ways("rc-pingpong-mtu4096", pingpong("rc", "-c", "-m", 4096, "-s", 100000, count=20), mtu=4200,
                         bears=has_left(20))
    yield from both_ways("uc-pingpong-mtu4096", pingpong("uc", "-m", 4096, "-s", 10000, count=20), mtu=4200)
