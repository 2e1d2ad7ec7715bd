"""valgrind's memcheck over the library: stock programs run under it without one error, and a planted one is found. It sees
single instructions, so the copies that are written in assembly too, which no sanitizer of the compiler sees."""

import os
import re

from harness import HERE, Case, Fail, compile_c, require, require_text
from suite_perftest import program
from suite_utils import pingpong

# What a program of valgrind ends with when there was an error, whatever its own status.
ERROR_STATUS = 9
MEMCHECK = ["valgrind", "--quiet", f"--error-exitcode={ERROR_STATUS}", "--leak-check=no",
            "--suppressions=" + os.path.join(HERE, "memcheck.supp")]
# A processor is emulated, by one thread at a time.
TIMEOUT_S = 120
ITERATIONS = 50


def clean(argv, **how):
    """Both sides under memcheck end well, which they do not after an error."""

    def run(room):
        require("valgrind", argv[0])
        for proc in room.both_succeed([*MEMCHECK, *argv], **how):
            if re.search(r"^==\d+==", proc.output(), re.M):
                raise Fail(f"memcheck says something of {proc.label}")

    return run


def planted(room):
    """The NIC writes to memory that the program has freed: found, in the library's own copy."""
    require("valgrind")
    proc = room.adverb("freed", [*MEMCHECK, compile_c("freed")])
    status = room.wait_exit(proc)
    if status != ERROR_STATUS:
        raise Fail(f"status {status}, not {ERROR_STATUS}: the planted error was not found")
    require_text(proc.output(), "Invalid write of size", "memcheck")
    require_text(proc.output(), "free'd", "memcheck")


def cases():
    yield Case("memcheck/planted", planted, TIMEOUT_S)
    for kind, extra in (("rc", ("-c",)), ("uc", ()), ("ud", ("-s", 1000)), ("srq", ())):
        yield Case(f"memcheck/{kind}-pingpong", clean(pingpong(kind, *extra, iterations=ITERATIONS)), TIMEOUT_S)
    yield Case("memcheck/rc-pingpong-events", clean(pingpong("rc", "-e", "-c", iterations=ITERATIONS)), TIMEOUT_S)
    irn = ("--transport", "irn", "--loss", "0.02", "--seed", "5")
    for operation in ("write", "read", "atomic"):
        argv = program(operation, "bw", extra=("-u", "18"), size=8192, iterations=ITERATIONS)
        yield Case(f"memcheck/{operation}-bw", clean(argv), TIMEOUT_S)
        yield Case(f"memcheck/{operation}-bw-irn-loss", clean(argv, options=irn), TIMEOUT_S)
