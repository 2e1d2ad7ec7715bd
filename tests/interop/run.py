#!/usr/bin/python3
"""Runs adverb against Linux's rdma_rxe: a guest under QEMU on a bridge, adverb on the bridge's address, each of them
client and server. Every frame of every case is captured on the guest's tap and its ICRC checked. The last cases go
through the process of a switch, to which the guest has a cable of its own.

    tests/interop/run.py                 everything
    tests/interop/run.py -k loss         cases whose name contains the text (or matches it as a glob); repeatable
    tests/interop/run.py --long          those too that take long and show little more
    tests/interop/run.py --list          names only

Each case prints one line. The last line is `N passed, N failed, N skipped`; the exit status is 1 on any failure.
Where the lab cannot be had (QEMU, Debian's packages, root, network namespaces), one line says why and all are skipped.
"""

import argparse
import atexit
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "clients"))

import harness
import suite_cable
import suite_cm
import suite_entries
import suite_offer
import suite_operations
import suite_redn
import suite_stock
import suite_vanish
import suite_words
from sides import LAB, SECOND

SUITES = (suite_operations, suite_stock, suite_offer, suite_redn, suite_entries,
          suite_cm, suite_vanish, suite_cable, suite_words)


def all_cases():
    # The cases on a larger MTU come last, so that the way is changed once.
    return [c for suite in SUITES for c in suite.cases()] + [c for suite in SUITES for c in suite.large_cases()]


def stop(signum, _frame):
    sys.exit(128 + signum)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--long", action="store_true", help="the cases of make test-long too")
    parser.add_argument("--list", action="store_true", help="print the names, run nothing")
    options = parser.parse_args()

    cases = harness.chosen(all_cases(), options.patterns)
    if not options.long and not options.patterns:
        cases = [case for case in cases if not case.long]
    if options.list:
        for case in cases:
            print(case.name)
        return 0
    if not os.access(harness.ADVERB, os.X_OK):
        print(f"{harness.ADVERB} is not there: run `make build` first, or set ADVERB_BIN", file=sys.stderr)
        return 2
    if not cases:
        print(f"no case matches {options.patterns}", file=sys.stderr)
        return 2
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, stop)
    for guest in (LAB, SECOND):
        atexit.register(guest.down)
    try:
        LAB.up()
    except harness.Skip as e:
        print(f"SKIPPED: {e}")
        print(f"0 passed, 0 failed, {len(cases)} skipped")
        return 0
    passed, failed, skipped = harness.run_cases(cases)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
