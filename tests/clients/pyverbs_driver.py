"""Runs named tests of rdma-core's own suite and prints one line each: `RESULT <name> <outcome> <text as JSON>`. Between
these, `PAIR <own number> <peer's number> private|shared` for each RC queue pair that a test connects, in its order, with
whose receive queue it has.

    pyverbs_driver.py DIRECTORY --list
    pyverbs_driver.py DIRECTORY DEVICE NAME..      a name is file.Class or file.Class.test
"""

import importlib
import json
import sys
import unittest


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


class Lines(unittest.TestResult):
    """Prints each outcome as soon as it is known, so that a hang or a crash loses only its own test."""

    def line(self, test, outcome, text=""):
        print("RESULT", test.id().removeprefix("tests."), outcome, json.dumps(text), flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.line(test, "start")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(test, "fail", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.line(test, "fail", self.errors[-1][1])


def tell_pairs(base):
    """Has every RC queue pair told that is connected by the means that the tests share."""
    connect = base.RCResources.pre_run

    def pre_run(self, rpsns, rqps_num):
        for own, peer in zip(self.qps_num, rqps_num):
            print("PAIR", own, peer, "shared" if self.srq else "private", flush=True)
        connect(self, rpsns, rqps_num)

    base.RCResources.pre_run = pre_run


def main():
    directory, word, *names = sys.argv[1:]
    sys.path.insert(0, directory)
    parser = importlib.import_module("args_parser").parser
    sys.argv[1:] = [] if word == "--list" else ["--dev", word]
    parser.parse_args()
    tests = importlib.import_module("tests")
    loader = unittest.defaultTestLoader
    if word == "--list":
        for module in tests.__test_modules__:
            for test in flatten(loader.loadTestsFromModule(module)):
                print("TEST", test.id().removeprefix("tests."))
        return
    tell_pairs(importlib.import_module("tests.base"))
    suite = loader.loadTestsFromNames(["tests." + name for name in names])
    suite.run(Lines())


main()
