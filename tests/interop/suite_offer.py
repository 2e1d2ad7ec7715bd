"""A NIC that offers IRN, against rxe, which does not know it: everything goes on as plain RoCE, and rxe does not notice.

The hellos are repeated while rxe's requests are under way. An rxe that took an opcode that it does not know for a response
(as older kernels do; 6.1 drops it) would look at the PSN first: one beyond its oldest request completes it, one among its
requests fails the queue pair. So these cases put its PSNs where a hello without a thought to them would do either.
"""

import os
import re

from harness import Case, Fail, read_counters, require
from sides import LAB, start, watched
from suite_perftest import expect_results
from suite_stock import SHORT_TIMEOUT, perftest_argv, stock
from suite_operations import ALL, LONG, SHORT, exercise, expect_good

IRN = ("--transport", "irn")
# Of the client: just before the circle's end; where 0 is half a circle ahead; and where it is half a circle behind.
PSNS = ("0xfffff0", "0x900000", "0x700000")
TIMEOUT_S = 60


def kernel_lines():
    """What rxe has logged so far in the guest."""
    return [row for row in LAB.in_guest("dmesg").split("\n") if re.search("rxe|opcode|psn", row, re.I)]


def expect_unheard(room):
    """adverb asked, nobody answered, and it spoke plain RC."""
    values = read_counters(next(p for p in map(room.path, ("client.counters", "server.counters")) if os.path.exists(p)))
    if values["irn_hellos_sent"] < 2 or values["irn_agreed"] != 0:
        raise Fail(f"{values['irn_hellos_sent']} hellos sent, {values['irn_agreed']} agreed")
    if values["early_packets"] or values["early_refused"]:
        raise Fail("packets were taken as IRN's")


def offered(name, run, **how):
    """Both ways, with the kernel's log before and after."""
    for word, client_is_adverb in (("to-rxe", True), ("from-rxe", False)):

        def one(room, client_is_adverb=client_is_adverb):
            before = kernel_lines()
            run(room, client_is_adverb)
            expect_unheard(room)
            said = kernel_lines()[len(before):]
            if said:
                raise Fail(f"the guest's kernel says: {said[:5]}")

        yield Case(f"interop/irn-{name}/{word}", watched(one, **how), TIMEOUT_S)


def operations(names, size, *extra, count=1, queued=False, timeout=LONG):
    arguments = ["--ops", ",".join(names), "--size", size, "--count", count, *timeout, *extra]
    argv = exercise(*arguments, *(["--queued"] if queued else []))

    def run(room, client_is_adverb):
        ends = start(room, client_is_adverb, argv, argv, options=IRN)
        room.wait_exit(ends.client)
        room.wait_exit(ends.server)
        expect_good(ends, names, size, count, queued)

    return run


def program(argv, results):
    def run(room, client_is_adverb):
        require(argv(True, 0, None)[0])
        ends = start(room, client_is_adverb, argv, argv, options=IRN)
        room.all_succeed(ends.server, ends.client)
        if results:
            expect_results(ends.client, 1)

    return run


def cases():
    yield from offered("all-4096B", operations(ALL, 4096), dissect=True)
    yield from offered("ipv6-all-4096B", operations(ALL, 4096), ip=6)
    for psn in PSNS:
        for operation in ("write", "send", "read", "faa"):
            run = operations([operation], 8192, "--psn", psn, count=64, queued=True)
            yield from offered(f"{operation}-psn-{psn}", run)
    # A request that rxe took for done, and whose packets were lost, would be missing afterwards.
    for operation in ("write", "send", "faa", "read"):
        run = operations([operation], 3000, "--psn", "0x900000", count=40, timeout=SHORT)
        yield from offered(f"loss-{operation}", run, lose=11)
    yield from offered("rc-pingpong", program(stock("ibv_rc_pingpong", "-n", 100, "-c"), False))
    for operation in ("send", "write", "read", "atomic"):
        yield from offered(f"{operation}-bw", program(perftest_argv(operation, "bw", "RC"), True))
    yield from offered("loss-write-bw", program(perftest_argv("write", "bw", "RC", timeout=SHORT_TIMEOUT), True), lose=50)


def large_cases():
    yield from ()
