"""What goes wrong on purpose: faults on the wire, dead and busy peers, forks, threads, churn, and what the NIC says."""

import os
import signal
import sys
import time

from captures import expect_sound
from harness import Case, Fail, Skip, compile_c, listens, read_counters, require, require_text
from suite_perftest import program
from suite_utils import pingpong

WIRE_FAULTS = {
    "corrupt": ("--corrupt", "0.02"),
    "duplicate": ("--duplicate", "0.05"),
    "reorder": ("--reorder", "0.05"),
    "loss": ("--loss", "0.05"),
    "everything": ("--loss", "0.01", "--corrupt", "0.01", "--duplicate", "0.01", "--reorder", "0.01"),
}
CHURN_CYCLES = int(os.environ.get("ADVERB_CHURN", "200000"))
# Kinds whose cycle costs system calls, packets or a whole NIC get fewer.
CHURN_KINDS = {"pd": 1, "mr": 1, "mw": 1, "cq": 1, "srq": 1, "ah": 1, "xrcd": 1, "qp": 1, "channel": 1,
               "connection": 20, "context": 400}
DEAD_PEER = ["ib_write_bw", "-F", "-s", "65536", "--run_infinitely", "-D", "1"]
# 4.096 us * 2^14, the default, eight times: what a dead or stopped peer is given.
CONFIGURED_S = 8 * 4.096e-6 * 2**14
# Beyond that, for two processes on a machine with more to do to notice and to end.
GRACE_S = 6
ROUTES = {"": {}, "-udp": {"options": ("--path", "udp")}, "-two-addresses": {"client_address": "127.0.0.2"}}
RESULT_ROW = r"^ 65536\s+\d+\s+[\d.]+"


def lossy_pingpong(room, server_options, client_options, iterations=300):
    """A validated pingpong in which the side that ends first may take an acknowledgement with it: RC leaves nobody
    behind to repeat one that is lost. So one side may fail with status 12, and only for its very last send. Returns
    both sides' counters, summed."""
    require("ibv_rc_pingpong")
    argv = pingpong("rc", "-c", "-s", 8192, iterations=iterations)
    paths = room.path("server.counters"), room.path("client.counters")
    sides = room.pair(argv, argv, server_options=(*server_options, "--seed", "3", "--counters", paths[0]),
                      client_options=(*client_options, "--seed", "4", "--counters", paths[1]))
    statuses = [room.wait_exit(proc) for proc in sides]
    counters = [read_counters(path) for path in paths]
    if all(statuses):
        raise Fail("both sides failed")
    for proc, status, counted in zip(sides, statuses, counters):
        if status:
            require_text(proc.output(), r"\(12\)", proc.label)
        if counted["completions"] < 2 * iterations - (status != 0):
            raise Fail(f"{proc.label} exited with {status} after {counted['completions']} good completions")
        if "invalid data" in proc.output():
            raise Fail(f"{proc.label} received invalid data")
    return {name: sum(counted.get(name, 0) for counted in counters) for name in counters[0]}


def wire_fault_case(options, route):
    def run(room):
        counted = lossy_pingpong(room, (*options, *route), (*options, *route))
        if sum(value for name, value in counted.items() if name.startswith("fault")) == 0:
            raise Fail(f"no fault was counted: {counted}")

    return run


def delay(room):
    """200 us on the way out and 200 us on the way in, at both ends: a round trip takes at least 800. And nobody takes
    along, at its end, an acknowledgement that is on its way."""
    require("ibv_rc_pingpong")
    _, client = room.both_succeed(pingpong("rc", "-c"), options=("--delay", "200us"))
    took = float(require_text(client.output(), r"= ([\d.]+) usec/iter", "ibv_rc_pingpong").group(1))
    if took < 800:
        raise Fail(f"a round trip took {took} us")


def same_seed(room):
    """A seed decides which packets are lost: two runs of one process lose the same ones."""
    binary = compile_c("churn")
    texts = []
    for attempt in ("first", "second"):
        counters = room.path(attempt)
        proc = room.adverb(attempt, [binary, "connection", "40"],
                           options=("--loss", "0.05", "--seed", "11", "--counters", counters))
        room.expect_success(proc)
        texts.append({k: v for k, v in read_counters(counters).items() if k.startswith("fault")})
    if texts[0] != texts[1] or sum(texts[0].values()) == 0:
        raise Fail(f"one seed, two runs: {texts[0]} and {texts[1]}")


def dead_peer(room):
    """SIGKILL of one side in the middle of ib_write_bw: the other gets completion error 12 and says so; a pair
    beside it is not disturbed; the next pair on the same host is clean."""
    require("ib_write_bw", "ib_send_bw")
    port = room.port()
    server, client = room.pair(DEAD_PEER, DEAD_PEER, port=port, label="doomed-")
    room.wait_output(client, RESULT_ROW)
    bystander_argv = ["ib_send_bw", "-F", "-s", "4096", "-D", "3"]
    bystanders = room.pair(bystander_argv, bystander_argv, label="bystander-")
    server.kill()
    status = room.wait_exit(client)
    if status == 0:
        raise Fail("the client of a killed server exited with 0")
    require_text(client.output(), r"[Ff]ailed status 12", "the client of a killed server")
    for proc in bystanders:
        if proc.popen.poll() is not None:
            raise Fail(f"{proc.label} ended before the peer's death was noticed: nothing was shown")
    room.all_succeed(*bystanders)
    room.wait_until("free port", lambda: not listens(os.getpid(), port))
    room.both_succeed(pingpong("rc", "-c"), label="next-")


def silenced_case(signum, word, route):
    """The target is killed, or stopped for longer than the timeouts come to: an error in time, and the trace says which."""

    def run(room):
        require("ib_write_bw")
        how = dict(route)
        how["options"] = (*how.get("options", ()), "--trace")
        server, client = room.pair(DEAD_PEER, DEAD_PEER, **how)
        room.wait_output(client, RESULT_ROW)
        begun = time.monotonic()
        server.kill(signum)
        status = room.wait_exit(client)
        took = time.monotonic() - begun
        if status == 0:
            raise Fail("the client of a silent server exited with 0")
        require_text(client.output(), r"[Ff]ailed status 12", "the client")
        require_text(client.output(), rf"completed with TransportRetryExceeded: the peer's process {word}", "the trace")
        if not CONFIGURED_S * 0.9 <= took <= (CONFIGURED_S + GRACE_S) * Case.time_scale:
            raise Fail(f"the error came after {took:.2f} s; the timeouts come to {CONFIGURED_S:.2f} s")

    return run


def set_schedule(pid, policy, cpus):
    """Gives every thread of a process a scheduling policy and processors."""
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        os.sched_setaffinity(thread, cpus)
        os.sched_setscheduler(thread, policy, os.sched_param(0))


# Until one shows something.
TRANSFERS = 3


def unscheduled_case(route):
    """The target runs when nobody else wants its processor, and four others always do: for much longer than the timeouts
    come to it gets none. That is no error, and the initiator's NIC says that it was borne."""

    def run(room):
        require("ib_write_bw", "stdbuf")
        cpus = os.sched_getaffinity(0)
        if len(cpus) < 2:
            raise Skip("one processor, and the initiator needs one too")
        busy = {max(cpus)}
        # Eight timeouts of 4.096 us * 2^8 are 8 ms.
        argv = ["ib_write_bw", "-F", "-s", "65536", "-u", "8", "-D", "4"]
        # Else a pipe is told of the table's head together with its end.
        told = ["stdbuf", "-oL", *argv]
        path = room.path("client.counters")
        options = route.get("options", ())
        how = {**route, "options": options, "client_options": (*options, "--trace", "--counters", path)}
        for i in range(4):
            spinner = room.spawn(f"spinner{i}", [sys.executable, "-c", "while True: pass"])
            os.sched_setaffinity(spinner.pid, busy)
        # A scheduler may give the target enough now and then.
        for transfer in range(TRANSFERS):
            server, client = room.pair(argv, told, label=f"{transfer}-", **how)
            # The transfer has begun when the target's NIC has opened its peer's ring or socket, and its table is set.
            room.wait_output(client, r"^ #bytes ")
            set_schedule(server.pid, os.SCHED_IDLE, busy)
            room.expect_success(client)
            set_schedule(server.pid, os.SCHED_OTHER, cpus)
            room.expect_success(server)
            if read_counters(path).get("timeouts_excused", 0) > 0:
                return
        raise Fail("the target was never late: nothing was shown")

    return run


def paused(room):
    """A server that is stopped again and again, for less than the timeouts come to each time, is no error."""
    require("ib_write_bw")
    argv = ["ib_write_bw", "-F", "-s", "65536", "-D", "3"]
    server, client = room.pair(argv, argv)
    while client.popen.poll() is None and server.popen.poll() is None:
        server.kill(signal.SIGSTOP)
        time.sleep(CONFIGURED_S / 4)
        server.kill(signal.SIGCONT)
        time.sleep(CONFIGURED_S / 10)
    room.all_succeed(server, client)


def killed_client(room):
    """SIGKILL of the initiator: the target, which makes no verbs call, ends by its TCP connection; the next is clean."""
    require("ib_write_bw")
    server, client = room.pair(DEAD_PEER, DEAD_PEER, label="doomed-")
    room.wait_output(client, RESULT_ROW)
    client.kill()
    room.wait_exit(server)
    room.both_succeed(pingpong("rc", "-c"), label="next-")


def one_sided_case(mode, route):
    def run(room):
        binary = compile_c("one_sided")
        room.both_succeed([binary, "target", mode], [binary, "initiator"], **route)

    return run


def explanation_case(mode, status, *patterns):
    def run(room):
        binary = compile_c("errors")
        text = room.alone([binary, mode], options=("--trace",))
        require_text(text, rf"^status {status} ", "the client")
        for pattern in patterns:
            require_text(text, pattern, "the trace")

    return run


def pcap_case(argv, options, least, wrong_allowed=0):
    def run(room):
        require(argv[0], "tshark")
        paths = room.path("server.pcap"), room.path("client.pcap")
        room.both_succeed(argv, server_options=(*options, "--pcap", paths[0]),
                          client_options=(*options, "--pcap", paths[1]))
        for path in paths:
            expect_sound(path, least, wrong_allowed)

    return run


def fork_case(mode):
    def run(room):
        text = room.alone([compile_c("forker"), mode])
        require_text(text, "^parent moved data", "forker")
        if mode == "child":
            for child in (1, 2):
                require_text(text, f"^child {child} moved data", "forker")

    return run


def threads_case(count, options):
    def run(room):
        require_text(room.alone([compile_c("threads"), str(count), "3000"], options=options),
                     "each exactly once", "threads")

    return run


def churn_case(kind, divisor):
    def run(room):
        room.alone([compile_c("churn"), kind, str(max(CHURN_CYCLES // divisor, 100))])

    return run


def many_processes(room):
    """Eight pairs at one address at once, each validated."""
    require("ibv_rc_pingpong")
    pairs = [room.pair(pingpong("rc", "-c", iterations=500), pingpong("rc", "-c", iterations=500), label=f"pair{i}-")
             for i in range(8)]
    room.all_succeed(*[proc for pair in pairs for proc in pair])


def signals(room):
    """A program that waits for a signal gets it, though the library has a thread that the program does not know of."""
    require_text(room.alone([compile_c("signals")]), r"^1000 signals, all taken here", "signals")


def cases():
    for name, options in WIRE_FAULTS.items():
        yield Case(f"faults/{name}", wire_fault_case(options, ()), 60)
        yield Case(f"faults/{name}-udp", wire_fault_case(options, ("--path", "udp")), 60)
    yield Case("faults/delay", delay)
    yield Case("faults/same-seed", same_seed)
    yield Case("faults/dead-peer", dead_peer, 60)
    yield Case("faults/killed-client", killed_client, 60)
    for name, route in ROUTES.items():
        yield Case(f"faults/killed-server{name}", silenced_case(signal.SIGKILL, "has ended", route), 60)
        yield Case(f"faults/stopped-server{name}", silenced_case(signal.SIGSTOP, "is stopped", route), 60)
    for name, route in ROUTES.items():
        yield Case(f"faults/unscheduled-server{name}", unscheduled_case(route), 60)
    yield Case("faults/paused-server", paused, 60)
    yield Case("faults/many-processes", many_processes, 60)
    for mode in ("sleep", "spin"):
        yield Case(f"faults/one-sided-{mode}", one_sided_case(mode, {}))
        yield Case(f"faults/one-sided-{mode}-udp", one_sided_case(mode, {"options": ("--path", "udp")}))
        yield Case(f"faults/one-sided-{mode}-two-addresses", one_sided_case(mode, {"client_address": "127.0.0.2"}))
    yield Case("faults/explain-retry", explanation_case("retry", 12, r"wr_id 0xadbe", r"PSN \d+", r"timeout.*times"))
    yield Case("faults/explain-access", explanation_case("access", 10, r"wr_id 0xadbe", r"syndrome 0x62"))
    yield Case("faults/explain-length", explanation_case("length", 10, r"wr_id 0xadbe", r"syndrome 0x62"))
    yield Case("faults/pcap-rc", pcap_case(pingpong("rc", "-c"), (), 200))
    yield Case("faults/pcap-udp", pcap_case(pingpong("rc", "-c"), ("--path", "udp"), 200))
    yield Case("faults/pcap-ud", pcap_case(pingpong("ud"), (), 200))
    yield Case("faults/pcap-loss", pcap_case(program("write", "bw", extra=["-u", 13]), ("--loss", "0.02"), 200))
    for mode in ("parent", "child"):
        yield Case(f"faults/fork-{mode}", fork_case(mode))
    yield Case("faults/signals", signals, 60)
    yield Case("faults/threads-4", threads_case(4, ()), 60)
    yield Case("faults/threads-4-loss", threads_case(4, ("--loss", "0.001", "--seed", "5")), 120)
    for kind, divisor in CHURN_KINDS.items():
        yield Case(f"faults/churn-{kind}", churn_case(kind, divisor), 120)
