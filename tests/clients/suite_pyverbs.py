"""rdma-core's own generic Python tests, as Debian ships them with python3-pyverbs, each a case of its own.

A test that is skipped must stand in pyverbs-skips.txt with its reason, word for word; a line there whose test runs, or
skips for another reason, fails. A line that starts with `?` is up to the machine: that test may run as well.
`tests/clients/suite_pyverbs.py` prints what the list should say now.
"""

import atexit
import functools
import glob
import gzip
import json
import os
import re
import shutil
import subprocess
import sys

from harness import ADVERB, HERE, WORK, Case, Fail, Room, Skip, run_case

NOTES = ("the tests of vendors' devices (mlx5, efa, cuda) are left out: 103 of v44's 273",)
SOURCE = "/usr/share/doc/rdma-core/tests"
PYTHON = "/usr/bin/python3"
DRIVER = os.path.join(HERE, "pyverbs_driver.py")
SKIPS = os.path.join(HERE, "pyverbs-skips.txt")
VENDORS = ("mlx5", "efa", "cuda")
LEAST_OK = 140
IRN = ("--transport", "irn")
CLASS_SECONDS = 90
TEST_SECONDS = 30
DEVICE = "adverb0"
HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
HUGE_PAGES_WANTED = 24


def set_huge_pages(count):
    with open(HUGE_PAGES, "w") as f:
        f.write(str(count))


def lend_huge_pages():
    """Three tests want huge pages. Where there are none and this process may set them up, it does, until it ends."""
    try:
        with open(HUGE_PAGES) as f:
            if int(f.read()) > 0:
                return
        set_huge_pages(HUGE_PAGES_WANTED)
    except OSError:
        return
    atexit.register(set_huge_pages, 0)


def unpack():
    """The tests, unpacked into a package of their own; the directory to import from."""
    if not os.path.isdir(SOURCE):
        raise Skip("python3-pyverbs is not installed (scripts/setup.sh installs it)")
    top = os.path.join(WORK, "pyverbs")
    package = os.path.join(top, "tests")
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(package)
    for path in glob.glob(os.path.join(SOURCE, "*.py*")):
        name = os.path.basename(path).removesuffix(".gz")
        if name.startswith("test_") and any(vendor in name for vendor in VENDORS):
            continue
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rb") as source, open(os.path.join(package, name), "wb") as out:
            out.write(source.read())
    # The package's modules import each other both by the package's name and from the top, as its own runner allows.
    shutil.copy(os.path.join(package, "args_parser.py"), top)
    return top


def names(top):
    argv = [ADVERB, "run", "--address", "127.0.0.1", "--", PYTHON, DRIVER, top, "--list"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TEST_SECONDS, check=False)
    found = [row.split()[1] for row in done.stdout.split("\n") if row.startswith("TEST ")]
    if done.returncode != 0 or not found:
        raise Fail(f"the tests could not be listed (exit {done.returncode}):\n{done.stdout}{done.stderr}")
    return found


class KnownSkips:
    """The list: test -> reason, and those that the machine decides."""

    def __init__(self):
        with open(SKIPS) as f:
            rows = [row.rstrip("\n") for row in f if row.strip() and not row.startswith("#")]
        self.reasons = dict(row.removeprefix("?").split("  ", 1) for row in rows)
        self.optional = {row[1:].split("  ", 1)[0] for row in rows if row.startswith("?")}


class Results:
    """Outcomes by test. A class runs in one process; what it leaves unfinished runs again test by test."""

    def __init__(self, top, tests, options=(), **how):
        self.top = top
        self.tests = tests
        # How its processes are started: options of `adverb run`, its address and environment.
        self.how = {"options": options, **how}
        self.outcomes = {}
        # By test: its RC connections, in the order in which they were made; what each queue pair became, by the trace.
        self.connections = {}
        self.became = {}

    def of(self, test):
        if test not in self.outcomes:
            group = test.rsplit(".", 1)[0]
            self.run(group, [group], CLASS_SECONDS)
            for member in self.tests:
                if member.rsplit(".", 1)[0] == group and member not in self.outcomes:
                    self.run(member, [member], TEST_SECONDS)
                    self.outcomes.setdefault(member, ("fail", f"hung for {TEST_SECONDS} s, or its process died"))
        return self.outcomes[test]

    def run(self, label, targets, limit):
        room = Room(Case("pyverbs-runs/" + label, None, limit))
        try:
            # test_rdmacm finds the interface in sysfs. Its two ends are forked children of a process that has opened
            # the device, and open it afresh.
            proc = room.adverb("tests", [PYTHON, DRIVER, self.top, DEVICE, *targets], **self.how)
            try:
                status = room.wait_exit(proc)
                died = f"the process died with {status}" if status != 0 else None
            except Fail:
                died = f"hung: killed after {limit} s"
            self.read(proc.output(), died if len(self.tests) and targets[0] in self.tests else None)
        finally:
            room.close()

    def read(self, text, died):
        started = None
        for number, role in re.findall(r"^adverb: qp (0x[0-9a-f]+) is ([^\n:]+)", text, re.M):
            self.became.setdefault(int(number, 16), []).append(role)
        for row in text.split("\n"):
            fields = row.split(" ", 3)
            if fields[0] == "PAIR" and started:
                self.connections.setdefault(started, []).append((int(fields[1]), int(fields[2]), fields[3]))
            if fields[0] != "RESULT" or len(fields) < 4:
                continue
            _, test, outcome, words = fields
            if outcome == "start":
                started = test
                continue
            started = None
            # A test's sub-results: the worst stays.
            if self.outcomes.get(test, ("ok", ""))[0] != "fail":
                self.outcomes[test] = (outcome, " ".join(json.loads(words).split("\n")) if outcome == "skip"
                                       else json.loads(words))
        if died and started:
            self.outcomes[started] = ("fail", f"{died}\n{text[-3000:]}")


def test_case(results, test, skips):
    def run(_room):
        outcome, text = results.of(test)
        if outcome == "fail":
            raise Fail(text)
        if outcome == "skip":
            if skips.reasons.get(test) != text:
                raise Fail(f"skipped, but pyverbs-skips.txt does not say so: {text}")
            raise Skip(text)
        if test in skips.reasons and test not in skips.optional:
            raise Fail(f"ran, but pyverbs-skips.txt says that it skips: {skips.reasons[test]}")

    return Case("pyverbs/" + test, run, 600)


def total_case(results, tests, skips):
    def run(_room):
        ok = sum(results.of(test)[0] == "ok" for test in tests)
        # Those that only this machine kept from running are not the NIC's to answer for.
        excused = sum(results.of(test)[0] == "skip" for test in skips.optional & set(tests))
        if ok + excused < LEAST_OK:
            raise Fail(f"{ok} of {len(tests)} tests are ok and {excused} lack only this machine, not {LEAST_OK}")
        vanished = sorted(set(skips.reasons) - set(tests))
        if vanished:
            raise Fail(f"pyverbs-skips.txt names tests that are not there: {vanished}")

    return Case(f"pyverbs/at-least-{LEAST_OK}-ok", run, 1800)


def expect_as_plain(results, plain, where):
    """Each test must end as it does over plain RC; how many ended well."""
    for test in results.tests:
        outcome, text = results.of(test)
        if outcome == "fail" or outcome != plain.of(test)[0]:
            raise Fail(f"{test}: {outcome} {where}, {plain.of(test)[0]} over plain RC: {text}")
    return sum(results.of(test)[0] == "ok" for test in results.tests)


def irn_case(results, top, tests):
    """All tests once more, between queue pairs that recover by IRN: each must end as it does over plain RC."""

    def run(_room):
        expect_as_plain(Results(top, tests, IRN), results, "where IRN is offered")

    return Case("pyverbs/irn-as-rc", run, 1800)


@functools.cache
def prepared():
    """Where the tests are, their names, and what comes of them over plain RC."""
    top = unpack()
    tests = names(top)
    return top, tests, Results(top, tests)


def failing(error):
    def run(_room):
        raise error

    return run


def cases():
    try:
        top, tests, results = prepared()
        skips = KnownSkips()
    except (Skip, Fail, OSError, subprocess.TimeoutExpired) as error:
        yield Case("pyverbs/list", failing(error if isinstance(error, (Skip, Fail)) else Fail(str(error))))
        return
    lend_huge_pages()
    for test in tests:
        yield test_case(results, test, skips)
    yield total_case(results, tests, skips)
    yield irn_case(results, top, tests)


def main():
    """Prints the list of skips as it is now."""
    _top, tests, results = prepared()
    for test in tests:
        outcome, text = results.of(test)
        if outcome == "skip":
            print(f"{test}  {text}")
        elif outcome == "fail":
            print(f"{test}: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
