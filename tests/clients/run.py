#!/usr/bin/python3
"""Runs unmodified RDMA programs on adverb, each case in real processes.

    tests/clients/run.py                 everything
    tests/clients/run.py -k perftest     cases whose name contains the text (or matches it as a glob); repeatable
    tests/clients/run.py --without older/  all but those whose name contains the text
    tests/clients/run.py --long          those too that take long and show little more
    tests/clients/run.py --starved       beside a load of ten tasks for each processor (starve.py), with longer time limits
    tests/clients/run.py --starved --of 3  beside a third of that load: two more such runs bring the rest
    tests/clients/run.py --list          names only

Each case prints one line. The last line is `N passed, N failed, N skipped`; the exit status is 1 on any failure.
"""

import argparse
import os
import signal
import sys

import harness
import starve
import suite_addresses
import suite_chain
import suite_copies
import suite_crates
import suite_ecn
import suite_facade
import suite_faults
import suite_irn
import suite_iser
import suite_memcached
import suite_memcheck
import suite_netns
import suite_observe
import suite_older
import suite_perftest
import suite_programs
import suite_pyverbs
import suite_pyverbs_star
import suite_qemu
import suite_rdmacm
import suite_releases
import suite_run
import suite_star
import suite_star_registry
import suite_stores
import suite_switch
import suite_switch_netns
import suite_switch_noise
import suite_switch_packets
import suite_switch_retries
import suite_switch_silence
import suite_utils
import suite_valkey
import suite_wheels
import suite_xchannel

SUITES = (suite_run, suite_facade, suite_copies, suite_observe, suite_utils, suite_perftest, suite_rdmacm,
          suite_addresses, suite_programs, suite_wheels, suite_crates, suite_qemu, suite_iser, suite_faults, suite_irn,
          suite_star, suite_star_registry, suite_stores, suite_switch, suite_chain, suite_switch_netns,
          suite_switch_noise, suite_switch_packets, suite_switch_retries, suite_switch_silence, suite_older, suite_netns,
          suite_ecn, suite_memcheck, suite_xchannel, suite_memcached, suite_pyverbs, suite_pyverbs_star, suite_releases,
          suite_valkey)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--long", action="store_true", help="the cases of make test-long too")
    parser.add_argument("--list", action="store_true", help="print the names and the notes, run nothing")
    parser.add_argument("--starved", action="store_true", help="beside a load of ten tasks for each processor")
    parser.add_argument("--of", type=int, default=1, metavar="RUNS", help="starved runs at once, which share the load")
    options = parser.parse_args()
    if options.of < 1 or (options.of > 1 and not options.starved):
        parser.error("--of takes a number of runs from 1 on, of --starved ones")

    cases = [case for suite in SUITES for case in suite.cases()]
    # Whoever names a case means it.
    if not options.long and not options.patterns:
        cases = [case for case in cases if not case.long]
    cases = harness.chosen(cases, options.patterns, options.without)
    if options.list:
        for suite in SUITES:
            for note in getattr(suite, "NOTES", ()):
                print(f"# {suite.__name__.removeprefix('suite_')}: {note}")
        for case in cases:
            print(case.name)
        return 0
    # Started in the background of a script, it may ignore SIGINT: so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Told to end, it ends as after an exception: the running case's processes are killed.
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    if not os.access(harness.ADVERB, os.X_OK):
        print(f"{harness.ADVERB} is not there: run `make build` first, or set ADVERB_BIN", file=sys.stderr)
        return 2
    if not cases:
        print(f"no case matches {options.patterns}", file=sys.stderr)
        return 2
    if options.starved:
        harness.Case.time_scale = starve.TIME_SCALE
        with starve.Load(options.of) as load:
            passed, failed, skipped = harness.run_cases(cases, before_each=load.check)
    else:
        passed, failed, skipped = harness.run_cases(cases)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
