"""Runs named tests of rdma-core's own suite and prints one line each: `RESULT <name> <outcome> <text as JSON>`.

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
    suite = loader.loadTestsFromNames(["tests." + name for name in names])
    suite.run(Lines())


main()
