"""A NIC that offers IRN, or StaR in any role, against rxe, which knows neither: everything goes on as plain RoCE, and rxe
does not notice. On the wire there is nothing of the offer but hellos.

The hellos are repeated while rxe's requests are under way. An rxe that took an opcode that it does not know for a response
(as older kernels do; 6.1 drops it) would look at the PSN first: one beyond its oldest request completes it, one among its
requests fails the queue pair. So these cases put its PSNs where a hello without a thought to them would do either.
"""

import os
import re

import lab
from harness import Case, Fail, read_counters, require
from sides import LAB, opcodes, start, watched
from suite_perftest import expect_results
from suite_stock import SHORT_TIMEOUT, perftest_argv, stock
from suite_operations import ALL, LONG, SHORT, exercise, expect_good

# By name: options, what its counters begin with, its hello's opcode, all of its opcodes.
IRN_OPCODES = range(0xC0, 0xE0)
STAR_OPCODES = range(0xE0, 0x100)
OFFERS = {
    "irn": (("--transport", "irn"), "irn", 0xD9, IRN_OPCODES),
    "star-server": (("--transport", "star-server"), "star", 0xF9, STAR_OPCODES),
    "star-client": (("--transport", "star-client"), "star", 0xF9, STAR_OPCODES),
    "star": (("--transport", "star", "--star-threshold", "0"), "star", 0xF9, STAR_OPCODES),
}
# Of the client: just before the circle's end; where 0 is half a circle ahead; and where it is half a circle behind.
PSNS = ("0xfffff0", "0x900000", "0x700000")
TIMEOUT_S = 60


def kernel_lines():
    """What rxe has logged so far in the guest, but for its start, which comes late at times."""
    rows = [row for row in LAB.in_guest("dmesg").split("\n") if re.search("rxe|opcode|psn", row, re.I)]
    return [row for row in rows if not row.endswith("set active")]


def expect_unheard(room, prefix, least):
    """adverb asked, nobody answered, and it spoke plain RC."""
    values = read_counters(next(p for p in map(room.path, ("client.counters", "server.counters")) if os.path.exists(p)))
    if values[prefix + "_hellos_sent"] < least or values[prefix + "_agreed"] != 0:
        raise Fail(f"{values[prefix + '_hellos_sent']} hellos sent, {values[prefix + '_agreed']} agreed")
    if values["early_packets"] or values["early_refused"] or values["star_executed"] or values["star_work_sent"]:
        raise Fail("packets were taken as those of what was offered")


def expect_plain(room):
    """StaR says what each queue pair became."""
    said = "".join(proc.output() for proc in room.procs)
    roles = re.findall(r"^adverb: qp \S+ is ([^\n:]+)", said, re.M)
    if not roles or set(roles) != {"plain RC"}:
        raise Fail(f"the queue pairs became {roles or 'nothing'}")


def offered(offer, name, run, **how):
    """Both ways, with the kernel's log before and after."""
    options, prefix, hello, own = OFFERS[offer]
    for word, client_is_adverb in (("to-rxe", True), ("from-rxe", False)):

        def one(room, client_is_adverb=client_is_adverb):
            before = kernel_lines()
            run(room, client_is_adverb, options)
            # A server of StaR's is told by the first request that rxe does not know it.
            expect_unheard(room, prefix, 1 if prefix == "star" else 2)
            if prefix == "star":
                expect_plain(room)
            said = kernel_lines()[len(before):]
            if said:
                raise Fail(f"the guest's kernel says: {said[:5]}")

        def look(path):
            sent = opcodes(path, lab.HOSTS[how.get("ip", 4)])
            strange = {opcode: count for opcode, count in sent.items() if opcode in own and opcode != hello}
            if strange or not sent.get(hello):
                raise Fail(f"opcodes of {offer} on the wire: {strange}; hellos: {sent.get(hello, 0)}")

        yield Case(f"interop/{offer}-{name}/{word}", watched(one, look=look, **how), TIMEOUT_S)


def operations(names, size, *extra, count=1, queued=False, timeout=LONG):
    arguments = ["--ops", ",".join(names), "--size", size, "--count", count, *timeout, *extra]
    argv = exercise(*arguments, *(["--queued"] if queued else []))

    def run(room, client_is_adverb, options):
        ends = start(room, client_is_adverb, argv, argv, options=options)
        room.wait_exit(ends.client)
        room.wait_exit(ends.server)
        expect_good(ends, names, size, count, queued)

    return run


def program(argv, results):
    def run(room, client_is_adverb, options):
        require(argv(True, 0, None)[0])
        ends = start(room, client_is_adverb, argv, argv, options=options)
        room.all_succeed(ends.server, ends.client)
        if results:
            expect_results(ends.client, 1)

    return run


def cases():
    for offer in OFFERS:
        yield from offered(offer, "all-4096B", operations(ALL, 4096), dissect=True)
        yield from offered(offer, "rc-pingpong", program(stock("ibv_rc_pingpong", "-n", 100, "-c"), False))
    for offer in ("irn", "star-server", "star-client"):
        yield from offered(offer, "ipv6-all-4096B", operations(ALL, 4096), ip=6)
        for operation in ("send", "read") if offer != "irn" else ("send", "write", "read", "atomic"):
            yield from offered(offer, f"{operation}-bw", program(perftest_argv(operation, "bw", "RC"), True))
        lossy = program(perftest_argv("write", "bw", "RC", timeout=SHORT_TIMEOUT), True)
        yield from offered(offer, "loss-write-bw", lossy, lose=50)
    # The hellos of IRN are repeated beside requests.
    for psn in PSNS:
        for operation in ("write", "send", "read", "faa"):
            run = operations([operation], 8192, "--psn", psn, count=64, queued=True)
            yield from offered("irn", f"{operation}-psn-{psn}", run)
    # A request that rxe took for done, and whose packets were lost, would be missing afterwards.
    for operation in ("write", "send", "faa", "read"):
        run = operations([operation], 3000, "--psn", "0x900000", count=40, timeout=SHORT)
        yield from offered("irn", f"loss-{operation}", run, lose=11)
        yield from offered("star-server", f"loss-{operation}", run, lose=11)


def large_cases():
    yield from ()
