"""A load beside which cases run: about ten times more tasks than processors, of mixed kinds, as on a machine that builds
and tests other things at the same time. What fails beside it and not alone takes a peer without a processor for dead."""

import os
import subprocess
import sys

from harness import Fail, WORK, compile_c, read_counters

# Tasks of each kind for two processors; the numbers grow with the processors.
KINDS = {"cpu": 8, "memory": 4, "disk": 2, "switch": 4, "fork": 2}
# Everything may take so much longer.
TIME_SCALE = 12


class Load:
    """The load, as long as the `with` block lasts. Where `runs` of these stand beside each other, each brings its part: at
    least one task of each kind."""

    def __init__(self, runs=1):
        self.runs = runs

    def __enter__(self):
        binary = compile_c("load", libraries=())
        self.dir = os.path.join(WORK, "load")
        os.makedirs(self.dir, exist_ok=True)
        factor = max(len(os.sched_getaffinity(0)) / 2, 0.5) / self.runs
        argv = [binary, *(str(max(round(count * factor), 1)) for count in KINDS.values())]
        self.log = os.path.join(self.dir, "log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, cwd=self.dir)
        return self

    def check(self):
        """Fails if the load has ended by itself."""
        if self.process.poll() is not None:
            with open(self.log) as log:
                raise Fail(f"the load ended with {self.process.returncode}: {log.read()}")

    def __exit__(self, kind, *_error):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()
        if kind is None:
            self.check_rounds()

    def check_rounds(self):
        made = read_counters(self.log)
        idle = [name for name in KINDS if not made.get(name)]
        if idle:
            raise Fail(f"the load did nothing of {', '.join(idle)}: {made}")
        print("# the load made " + ", ".join(f"{made[name]} rounds of {name}" for name in KINDS), file=sys.stderr)
