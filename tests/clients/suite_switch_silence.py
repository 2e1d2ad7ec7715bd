"""A peer behind a switch that is no longer heard: killed, stopped, or cut off by a fault of its port. Its requester tries as
often as it was told to, for as long as it was told to, and its trace says what is known of the peer. A switch that has no
processor is no such thing: it is waited for."""

import os
import re
import signal
import sys
import time

from harness import Case, Fail, Skip, read_counters, require, require_text
from suite_faults import CONFIGURED_S, DEAD_PEER, GRACE_S, RESULT_ROW
from suite_switch import SERVER, Switch

# perftest's own retry count.
RETRIES = 7
# All that one direction of the server's port carries is lost: `tx` is what its processes get, `rx` what they send.
LOST = '[[port]]\naddress = "{address}"\nfaults = {{ loss = 1.0, direction = "{direction}" }}\n'


def killed(_switch, server):
    server.kill(signal.SIGKILL)


def stopped(_switch, server):
    server.kill(signal.SIGSTOP)


def cut_off(direction):
    def cut(switch, _server):
        with open(switch.file, "w") as f:
            f.write(LOST.format(address=SERVER, direction=direction))
        require_text(switch.ask("reload"), f"{SERVER} has other faults", "reload")
    return cut


def silent_case(name, silence, said, lost=None):
    """`silence` makes the server silent, `said` is what the client's trace says of it. With `lost`, the server's port must
    have lost frames in that direction."""

    def run(room):
        require(DEAD_PEER[0])
        switch = Switch(room)
        counted = room.path("client.counters")
        ends = switch.ends(("--trace",))
        ends["client_options"] = (*ends["options"], "--counters", counted)
        server, client = room.pair(DEAD_PEER, DEAD_PEER, **ends)
        room.wait_output(client, RESULT_ROW)
        begun = time.monotonic()
        silence(switch, server)
        # A port goes with the last of its processes, and the server's ends when the client has.
        count = 0
        while lost and client.popen.poll() is None:
            found = [port[f"{lost}_faults"]["lost"] for port in switch.show()["ports"] if port["address"] == SERVER]
            count = max([count, *found])
        status = room.wait_exit(client)
        took = time.monotonic() - begun
        if status == 0:
            raise Fail("the client of a silent server exited with 0")
        require_text(client.output(), r"[Ff]ailed status 12", "the client")
        # However often silence was excused before: each retry costs a timeout, and so does the failure after them.
        words = rf"completed with TransportRetryExceeded: {said}.*local ACK timeout of \d+ us ran out {RETRIES + 1} times$"
        require_text(client.output(), words, "the trace")
        values = read_counters(counted)
        excused = values["timeouts_excused"] * CONFIGURED_S / (RETRIES + 1)
        if not CONFIGURED_S * 0.9 <= took <= (CONFIGURED_S + GRACE_S) * Case.time_scale + excused:
            raise Fail(f"the error came after {took:.2f} s; the timeouts come to {CONFIGURED_S:.2f} s")
        room.note(f"{took:.2f} s, {values['timeouts']} timeouts, {values['timeouts_excused']} excused")
        if lost:
            if count < RETRIES:
                raise Fail(f"{count} frames were lost at the server's port")
            room.note(f"{count} frames lost")

    return Case(f"switch/{name}", run, 60)


# Takes a processor from all who are not of its class, for so many seconds: less than the kernel lets it have in each.
SPINNER = """import os, sys, time
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""
SPIN_S = 0.85
SPINS = 3


def unscheduled(room):
    """Again and again the switch has no processor for longer than the timeouts come to, while both ends have theirs. That is
    no error, and the initiator's NIC says that it was borne."""
    require("ib_write_bw")
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        raise Skip("one processor, and the two ends need one too")
    switch = Switch(room)
    path = room.path("client.counters")
    ends = switch.ends(("--trace",))
    ends["client_options"] = (*ends["options"], "--counters", path)
    argv = ["ib_write_bw", "-F", "-s", "65536", "-D", "8"]
    server, client = room.pair(argv, argv, **ends)
    passed = lambda: switch.show()["counters"]["rx_frames"]  # noqa: E731
    room.wait_until("transfers", lambda: passed() > 1000)
    taken = {max(cpus)}
    os.sched_setaffinity(switch.proc.pid, taken)
    for proc in (server, client):
        for thread in map(int, os.listdir(f"/proc/{proc.pid}/task")):
            os.sched_setaffinity(thread, cpus - taken)
    for spin in range(SPINS):
        before = passed()
        room.wait_until("transfers that go on", lambda: client.popen.poll() is not None or passed() > before + 1000)  # noqa: B023
        if client.popen.poll() is not None:
            raise Fail(f"the client ended with {client.popen.returncode} after {spin} spells without a processor")
        spinner = room.spawn(f"spinner{spin}", [sys.executable, "-c", SPINNER, str(SPIN_S)])
        os.sched_setaffinity(spinner.pid, taken)
        if room.wait_exit(spinner):
            raise Skip("this user may not take a processor (SCHED_FIFO)")
    room.all_succeed(server, client)
    excused = read_counters(path)["timeouts_excused"]
    if not excused:
        raise Fail("the switch was never late: nothing was shown")
    room.note(f"{excused} timeouts excused")


def cases():
    yield silent_case("silent-killed", killed, "the peer's process has ended")
    yield silent_case("silent-stopped", stopped, "the peer's process is stopped")
    yield silent_case("silent-requests-lost", cut_off("tx"), "the peer runs and took in what arrived", "tx")
    yield silent_case("silent-answers-lost", cut_off("rx"), "the peer runs and took in what arrived", "rx")
    yield Case("switch/silent-unscheduled", unscheduled, 60)
