#!/usr/bin/env python3
"""Runs single tests again and again beside one another, to find those that fail once in a thousand times.

    scripts/again.py                       half an hour, in six lanes
    scripts/again.py --minutes 5 -k nicd   of the programs whose name contains the text; repeatable
    scripts/again.py --longest 0           those too that take long, by which all others have fewer turns

The tests are those that have sockets, memory and processes of the host in common (`scripts/unit.py` tells them apart). In
each round every one runs once, in an order of its own, in a process with a network and a /dev/shm of its own; so it meets
other neighbours and other loads each time. A failure is one line with the file of what the test said. One that does not end
is killed with all that it has started, and has failed. The last line is `N passed, N failed, N skipped`; the exit status is
1 on any failure.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time

import unit

# Seconds after which a test hangs.
PATIENCE_S = 300
ROOM = ["mount -t tmpfs -o size=64m tmpfs /dev/shm && ip link set lo up && exec \"$@\"", "again"]


def listed(folder, program, *more):
    """Names of a program's tests."""
    argv = [program, "--list", "--format", "terse", *more]
    said = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.removesuffix(": test") for line in said.splitlines() if line.endswith(": test")]


def single_tests(patterns):
    """(folder of the package, program, test) of each that is not ignored."""
    found = []
    for package, folder, _, program in unit.built():
        if package not in unit.ALONE and any(text in os.path.basename(program) for text in patterns):
            ignored = set(listed(folder, program, "--ignored"))
            found += [(folder, program, test) for test in listed(folder, program) if test not in ignored]
    return found


def run(folder, program, test):
    """Whether it passed, and what it said."""
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    argv = ["unshare", *root, "--mount", "--net", "sh", "-c", *ROOM, program, "--exact", test]
    with subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", start_new_session=True,
                          env=dict(os.environ, CARGO_MANIFEST_DIR=folder)) as child:
        try:
            said = child.communicate(timeout=PATIENCE_S)[0]
            return child.returncode == 0, said
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return False, child.communicate()[0] + f"\nit did not end within {PATIENCE_S} s\n"


class Rounds:
    """What runs next, and what has come of it."""

    def __init__(self, tests, end, longest):
        self.tests, self.end, self.longest = tests, end, longest
        self.left, self.rounds, self.passed, self.failed = [], 0, 0, 0
        self.slow = set()
        self.lock = threading.Lock()
        self.logs = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "test-logs")
        os.makedirs(self.logs, exist_ok=True)

    def next(self):
        with self.lock:
            self.left = [test for test in self.left if test not in self.slow]
            if not self.left:
                self.left = [test for test in self.tests if test not in self.slow]
                random.shuffle(self.left)
                self.rounds += 1
            return self.left.pop() if self.left and time.monotonic() < self.end else None

    def lane(self):
        while (one := self.next()) is not None:
            begun = time.monotonic()
            passed, said = run(*one)
            took = time.monotonic() - begun
            with self.lock:
                if self.longest and took > self.longest:
                    self.slow.add(one)
                self.passed += passed
                self.failed += not passed
                if not passed:
                    self.tell(one, took, said)

    def tell(self, one, took, said):
        path = os.path.join(self.logs, f"again-{self.failed}.log")
        with open(path, "w") as f:
            f.write(said)
        print(f"FAIL {os.path.basename(one[1])} {one[2]} ({took:.1f} s, round {self.rounds}): {path}", flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--minutes", type=float, default=30)
    words.add_argument("--lanes", type=int, default=6)
    words.add_argument("--longest", type=float, default=3, metavar="SECONDS", help="a test that took longer runs once only")
    words.add_argument("-k", action="append", dest="patterns", metavar="TEXT")
    options = words.parse_args()
    tests = single_tests(options.patterns or [""])
    rounds = Rounds(tests, time.monotonic() + 60 * options.minutes, options.longest)
    lanes = [threading.Thread(target=rounds.lane) for _ in range(options.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    print(f"{len(tests)} tests in {rounds.rounds} rounds, of which the last may not have ended")
    print(f"{rounds.passed} passed, {rounds.failed} failed, 0 skipped")
    return 1 if rounds.failed else 0


if __name__ == "__main__":
    sys.exit(main())
