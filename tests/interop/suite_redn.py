"""rxe as a client of `adverb redn serve`: a program in plain verbs sets up over TCP, and its SENDs are answered by the
chains of adverb's NIC, whether the worker that wrote the table lives or not."""

import os
import signal
import sys

import lab
from harness import ADVERB, Case, Fail
from sides import LAB, rxe, watched

KEYS = 20
# Sets keys by the worker's calls, in memcached's text protocol: host, port, number of keys.
SET = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as s:
    answers = s.makefile("rb")
    for n in range(int(sys.argv[3])):
        value = b"value %d " % n + b"x" * (n * n)
        s.sendall(b"set key%d 0 0 %d\\r\\n%s\\r\\n" % (n, len(value), value))
        if (answer := answers.readline()) != b"STORED\\r\\n":
            sys.exit(f"key{n}: {answer}")
"""


def gets(room):
    host, guest = LAB.host, lab.GUESTS[LAB.ip]
    setup, calls = room.port(), room.port()
    hull = room.spawn("hull", [
        "ip", "netns", "exec", LAB.netns, ADVERB, "redn", "serve", "--address", host, "--port", str(setup),
        "--calls-port", str(calls), "--memory", "4MB", "--keys", "1000", "--socket", room.path("socket")])
    worker = int(room.wait_output(hull, r"worker (\d+)\nset-up at .*\n").group(1))
    LAB.words(sys.executable, "-c", SET, host, str(calls), str(KEYS))
    names = [f"key{n}" for n in range(KEYS)]
    expected = "".join(f"key{n} value {n} {'x' * (n * n)}\n" for n in range(KEYS)) + "nobody -\n"
    for label in ("alive", "dead"):
        argv = ["redn_get", "-g", LAB.guest_gid, host, str(setup), guest, *names, "nobody"]
        client = rxe(room, label, argv)
        room.expect_success(client)
        if not client.output().endswith(expected):
            raise Fail(f"the guest with the worker {label} got something else")
        if label == "alive":
            os.kill(worker, signal.SIGKILL)
            room.wait_output(hull, f"worker {worker} has ended")


def cases():
    # Each get is a message and a reply, and either is acknowledged.
    least = 2 * (KEYS + 2)
    yield Case("interop/redn-gets", watched(gets, least=least, dissect=True), 60)
    yield Case("interop/redn-gets-loss", watched(gets, least=least, lose=11), 60)


def large_cases():
    return ()
