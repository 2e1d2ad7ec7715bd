"""Every operation, one at a time and queued, through one exerciser (guest/exercise.c) on both sides: what each side's
completions say, and what the memory of both holds afterwards."""

import re

import lab
from harness import Fail, require_text
from sides import LAB, both_ways, start

# What the exerciser's server puts into its word, what its client swaps in, and what it adds (guest/exercise.c).
TARGET = 0x0123456789ABCDEF
SWAPPED = 0x5A5A5A5AA5A5A5A5
ADDEND = 0x100
# The first bytes of the server's memory: as they were, and as the client writes them.
UNTOUCHED, WRITTEN = "05 24 43 62", "01 04 07 0a"
# Completion statuses (ibv_wc_status).
LOCAL_LENGTH, LOCAL_ACCESS, REMOTE_INVALID, REMOTE_ACCESS, REMOTE_OPERATION = 1, 8, 9, 10, 11
LOCAL_OPERATION, RETRY_EXCEEDED, RNR_EXCEEDED = 2, 12, 13
RECEIVED_BY = {"send": 0x80, "sendimm": 0x80, "writeimm": 0x81}
ALL = ("send", "sendimm", "write", "writeimm", "read", "cas", "faa")
# 4.096 us * 2^18 is 1.07 s: rxe's timer does not start anew on progress, so a shorter one fires in a slow guest.
LONG = ("--timeout", "18")
# Under loss, 134 ms: rxe heeds one NAK, and until the next ACK no other, so that it often waits for its timer. That
# this one fires too early at times is as well: duplicates must do no harm. Eight in a row bear a second of a guest
# without a processor; half of one was seen.
SHORT = ("--timeout", "15")


def exercise(*arguments):
    """The exerciser's argv for one side, as `start` wants it."""

    def argv(is_adverb, port, host):
        program = LAB.exercise if is_adverb else "exercise"
        gid = lab.ADVERB_GID if is_adverb else LAB.guest_gid
        role = ["--to", host] if host else []
        return [program, *role, "--gid-index", gid, "--port", str(port), *map(str, arguments)]

    return argv


def run_pair(room, client_is_adverb, *arguments):
    """A pair of exercisers to its end. Returns both, ended."""
    argv = exercise(*arguments)
    ends = start(room, client_is_adverb, argv, argv)
    room.wait_exit(ends.client)
    room.wait_exit(ends.server)
    return ends


def statuses(text, operation):
    """Statuses that the client printed for an operation."""
    return [int(s) for s in re.findall(rf"^{operation}: status (\d+)", text, re.M)]


def expect_good(ends, operations, size, count=1, queued=False):
    """Both sides ended well, and printed what these operations, done exactly once each, leave behind."""
    client, server = ends.client.output(), ends.server.output()
    for proc in (ends.client, ends.server):
        if proc.popen.returncode != 0:
            raise Fail(f"{proc.label} exited with {proc.popen.returncode}")
        require_text(proc.output(), "^OK$", proc.label)
    if not queued:
        for operation in operations:
            if statuses(client, operation) != [0] * count:
                raise Fail(f"{operation}: statuses {statuses(client, operation)}, not {count} times 0")
    expect_received(server, operations, size, count)
    expect_target(client, server, operations, count, queued)
    if size >= 4 and any(o.startswith("write") for o in operations):
        require_text(server, f"first bytes {WRITTEN}$", "the server")


def expect_received(server, operations, size, count):
    """The server's receives, in order: operation, length, immediate, and no byte that is wrong."""
    wanted = []
    for operation in operations:
        if operation not in RECEIVED_BY:
            continue
        for i in range(count):
            immediate = {"sendimm": 0x51000000 + i, "writeimm": 0x52000000 + i}.get(operation, 0)
            wanted.append((0, RECEIVED_BY[operation], size, immediate, 0))
    shape = r"^received \d+: status (\d+) opcode (\d+) length (\d+) immediate ([0-9a-f]+) wrong (\d+) "
    rows = re.findall(shape, server, re.M)
    got = [(int(s), int(o), int(n), int(i, 16), int(bad)) for s, o, n, i, bad in rows]
    if got != wanted:
        raise Fail(f"the server received {got}, not {wanted}")


def expect_target(client, server, operations, count, queued):
    """The atomics' target at the end, and what the client was told it held before each."""
    value, before = TARGET, []
    for operation in operations:
        for _ in range(count):
            if operation == "cas":
                before.append(value)
                value = SWAPPED if value == TARGET else value
            elif operation == "faa":
                before.append(value)
                value += ADDEND
    require_text(server, rf"^word {value:016x} ", "the server")
    told = [int(v, 16) for v in re.findall(r"^(?:cas|faa): .* before ([0-9a-f]+) ", client, re.M)]
    if not queued and told != before:
        raise Fail(f"the atomics returned {told}, not {before}")


def good(operations, size, *extra, count=1, queued=False, service="rc", timeout=LONG):
    """A case's function: the operations, `count` times each, all successful."""
    arguments = ["--service", service, "--ops", ",".join(operations), "--size", size, "--count", count, *timeout, *extra]
    if queued:
        arguments.append("--queued")

    def run(room, client_is_adverb):
        ends = run_pair(room, client_is_adverb, *arguments)
        expect_good(ends, operations, size, count, queued)

    return run


def failing(operation, client_status, server_status, *extra):
    """A case's function: one operation with these statuses at the client and in the server's receive. A status is a
    number, or a pair: of rxe, and of adverb, which follows IBTA's table of responder errors."""

    def run(room, client_is_adverb):
        ends = run_pair(room, client_is_adverb, "--ops", operation, "--patience", 4, *extra)
        if isinstance(client_status, tuple):
            wanted = client_status[0 if client_is_adverb else 1]
        else:
            wanted = client_status
        if statuses(ends.client.output(), operation) != [wanted]:
            raise Fail(f"{operation}: the client's status is {statuses(ends.client.output(), operation)}, not [{wanted}]")
        require_text(ends.server.output(), "^word ", "the server")
        if server_status is not None:
            wanted = server_status[0 if client_is_adverb else 1]
            require_text(ends.server.output(), rf"^received 0: status {wanted} ", "the server")
        if operation.startswith("wbad"):
            # The refused write left the target as it was.
            require_text(ends.server.output(), f"first bytes {UNTOUCHED}$", "the server")

    return run


def retry_exceeded(room, client_is_adverb):
    """Nothing arrives any more: the client gives up after its retries. (The case loses every packet.)"""
    ends = run_pair(room, client_is_adverb, "--ops", "write", "--timeout", 14, "--retries", 2)
    if statuses(ends.client.output(), "write") != [RETRY_EXCEEDED]:
        raise Fail(f"the client's status is {statuses(ends.client.output(), 'write')}, not [{RETRY_EXCEEDED}]")


def lossless():
    for operation in ALL:
        yield from both_ways(f"{operation}-64B", good([operation], 64), dissect=True)
    # READs and atomics replace what the receive buffers do not hold, so one run may carry them all.
    for size in (0, 1, 3, 1023, 1024, 1025, 4096):
        yield from both_ways(f"all-{size}B", good(ALL, size))
    for operation in ("send", "write", "writeimm", "read"):
        yield from both_ways(f"{operation}-1MB", good([operation], 1 << 20))
    for mtu in (256, 512):
        yield from both_ways(f"all-mtu{mtu}", good(ALL, 3000, "--mtu", mtu))
    # Each queue of 64 is posted before the first completion is awaited.
    for operation in ("send", "write", "read", "faa"):
        yield from both_ways(f"queue-{operation}", good([operation], 1500, count=64, queued=True))
    yield from both_ways("queue-mixed", good(("write", "read", "faa", "writeimm"), 2500, count=24, queued=True))
    yield from both_ways("psn-wrap", good(("send", "write", "read", "faa"), 4096, "--psn", "0xfffff0", count=8))
    yield from both_ways("psn-wrap-queue", good(["write"], 8192, "--psn", "0xfffff0", count=32, queued=True))
    yield from both_ways("psn-wrap-queue-read", good(["read"], 8192, "--psn", "0xfffff0", count=32, queued=True))
    # The server posts its receives 200 ms late: RNR NAKs until then.
    yield from both_ways("rnr", good(["send"], 2000, "--receive-after", 200))
    for size in (0, 1, 1024, 4096):
        yield from both_ways(f"uc-{size}B", good(("send", "sendimm", "write", "writeimm"), size, service="uc"), one_way=True)
    for size in (0, 1, 1024):
        yield from both_ways(f"ud-{size}B", ud(size), one_way=True)


def unrepeated(operation, size, service):
    """A case's function: messages of a service that repeats nothing, some of whose packets are lost. Of those that
    come, no byte is wrong, and they come once and in order."""
    count = 100

    def run(room, client_is_adverb):
        ends = run_pair(room, client_is_adverb, "--service", service, "--ops", operation, "--size", size,
                        "--count", count, "--lossy")
        room.expect_success(ends.client, ends.server)
        rows = re.findall(r"^received \d+: status 0 opcode \d+ length \d+ immediate ([0-9a-f]+) wrong 0 ",
                          ends.server.output(), re.M)
        came = [int(immediate, 16) & 0xFFFF for immediate in rows]
        if came != sorted(set(came)):
            raise Fail(f"the messages came as {came}")
        if not count // 10 <= len(came) < count:
            raise Fail(f"{len(came)} of {count} messages came")

    return run


def ud(size):
    def run(room, client_is_adverb):
        ends = run_pair(room, client_is_adverb, "--service", "ud", "--ops", "send,sendimm", "--size", size)
        # The receive's length counts the 40 bytes before the payload.
        expect_received(ends.server.output(), ("send", "sendimm"), size + 40, 1)
        room.expect_success(ends.client, ends.server)

    return run


def errors():
    yield from both_ways("write-bad-key", failing("wbadkey", REMOTE_ACCESS, None))
    yield from both_ways("read-bad-key", failing("rbadkey", REMOTE_ACCESS, None))
    # rxe acknowledges the SEND before it refuses to invalidate an ordinary region; adverb refuses it and says nothing
    # to the sender, as IBTA has it (9.9.3, class J), whose retries run out.
    yield from both_ways("send-invalidate-region",
                         failing("sendinv", (0, RETRY_EXCEEDED), (REMOTE_INVALID, LOCAL_ACCESS), *SHORT, "--retries", 2),
                         least=0)
    # rxe answers a message that is longer than its receive as an operation that failed; IBTA, as an invalid request.
    yield from both_ways("send-too-long",
                         failing("sendlong", (REMOTE_OPERATION, REMOTE_INVALID), (LOCAL_OPERATION, LOCAL_LENGTH)))
    late = ("--receive-after", 1500, "--rnr-retries", 2, "--patience", 1)
    yield from both_ways("rnr-exceeded", failing("send", RNR_EXCEEDED, None, *late))
    yield from both_ways("retry-exceeded", retry_exceeded, lose=1, least=0)


def lossy():
    """About every 50th packet lost, each way. What is exact must stay so: data, order, and atomics exactly once."""
    for operation in ("send", "sendimm", "write", "writeimm", "read", "faa"):
        run = good([operation], 3000, count=60, timeout=SHORT)
        yield from both_ways(f"loss-{operation}", run, timeout=60, lose=50)
    for operation in ("send", "write", "read", "faa"):
        run = good([operation], 4096, count=100, queued=True, timeout=SHORT)
        yield from both_ways(f"loss-queue-{operation}", run, timeout=60, lose=50)
    for operation in ("send", "write", "read"):
        run = good([operation], 1 << 20, timeout=SHORT)
        yield from both_ways(f"loss-{operation}-1MB", run, timeout=60, lose=50)
    run = good(["write"], 8192, "--psn", "0xfffff0", count=32, queued=True, timeout=SHORT)
    yield from both_ways("loss-psn-wrap", run, timeout=60, lose=11)
    yield from both_ways("loss-uc", unrepeated("sendimm", 3000, "uc"), timeout=60, lose=11, one_way=True)
    yield from both_ways("loss-ud", unrepeated("sendimm", 1000, "ud"), timeout=60, lose=5, one_way=True)


def large():
    """A link of MTU 4200, on which the path MTU may be 4096."""
    for mtu in (2048, 4096):
        yield from both_ways(f"all-mtu{mtu}", good(ALL, 9000, "--mtu", mtu), mtu=4200)
    for operation in ("write", "read"):
        yield from both_ways(f"{operation}-1MB-mtu4096", good([operation], 1 << 20, "--mtu", 4096), mtu=4200)


def ipv6():
    """The same over IPv6, without each size of each operation."""
    six = {"ip": 6, "timeout": 60}
    for size in (0, 1, 1025, 4096):
        yield from both_ways(f"ipv6-all-{size}B", good(ALL, size), dissect=size == 4096, **six)
    for operation in ("write", "read"):
        yield from both_ways(f"ipv6-{operation}-1MB", good([operation], 1 << 20), **six)
    mixed = good(("write", "read", "faa", "writeimm"), 2500, "--psn", "0xfffff0", count=24, queued=True)
    yield from both_ways("ipv6-queue-mixed", mixed, **six)
    for size in (1, 4096):
        run = good(("send", "sendimm", "write", "writeimm"), size, service="uc")
        yield from both_ways(f"ipv6-uc-{size}B", run, one_way=True, **six)
    for size in (1, 1024):
        yield from both_ways(f"ipv6-ud-{size}B", ud(size), one_way=True, **six)
    for operation in ("send", "write", "read", "faa"):
        run = good([operation], 3000, count=60, timeout=SHORT)
        yield from both_ways(f"ipv6-loss-{operation}", run, lose=50, **six)
    queued = good(["write"], 4096, count=100, queued=True, timeout=SHORT)
    yield from both_ways("ipv6-loss-queue-write", queued, lose=50, **six)
    yield from both_ways("ipv6-loss-uc", unrepeated("sendimm", 3000, "uc"), lose=11, one_way=True, **six)
    yield from both_ways("ipv6-loss-ud", unrepeated("sendimm", 1000, "ud"), lose=5, one_way=True, **six)


def cases():
    yield from lossless()
    yield from errors()
    yield from lossy()
    yield from ipv6()


def large_cases():
    yield from large()
