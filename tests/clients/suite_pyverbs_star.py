"""rdma-core's Python tests once more, over StaR: each must end as it does over plain RC, with either side stateless.

Both ends of a test are of one process, so one option serves both: with a threshold of 0 every connection gets roles, and
the queue pair with the lower number is the stateful one. Numbers are drawn. So a test that connects is run again until
the side that connects first has been either; every run counts.
"""

import subprocess

from harness import Case, Fail, Skip
from suite_pyverbs import CLASS_SECONDS, Results, failing, prepared

STAR = ("--transport", "star", "--star-threshold", "0", "--trace")
STATELESS, STATEFUL, UNCHANGED, PLAIN = "StaR, stateless", "StaR, stateful", "unchanged", "plain RC"
# With so many runs, one test in 16,000 has the same side stateful in all of them.
RUNS = 15
# Of v44's tests 48 are, where hellos are answered in time: on a busy host some come too late (45 once), which is RC.
LEAST_CARRIED = 40


class Roles:
    """Runs of all tests over StaR, and who was stateful in them."""

    def __init__(self, top, tests, plain):
        self.top = top
        self.tests = tests
        # Outcomes over plain RC.
        self.plain = plain
        self.seen = {}
        self.wrong = {}
        self.runs = 0

    def run(self, wanted):
        """Once more, those tests."""
        self.runs += 1
        results = Results(self.top, wanted, STAR)
        for group in sorted({test.rsplit(".", 1)[0] for test in wanted}):
            members = [test for test in wanted if test.rsplit(".", 1)[0] == group]
            results.run(f"star-{self.runs}-{group}", members, CLASS_SECONDS)
        for test in wanted:
            # What its class did not come to has a process of its own.
            outcome, text = results.of(test)
            expected = self.plain.of(test)[0]
            if outcome != expected:
                self.wrong[test] = f"{outcome} over StaR, {expected} over plain RC: {text}"
                continue
            seen = self.seen.setdefault(test, set())
            try:
                told = results.connections.get(test, ())
                roles = [self.role(results, *connection) for connection in told]
                # Both sides tell of a connection: the first of them counts.
                first = [set(pair[:2]) not in [set(other[:2]) for other in told[:at]] for at, pair in enumerate(told)]
                seen |= {role for role, counts in zip(roles, first) if counts}
            except Fail as fault:
                self.wrong[test] = str(fault)

    @staticmethod
    def role(results, own, peer, queue):
        """What the side that the connection is told of became, if that is what it must."""
        # A queue pair that is reset has as many lives.
        roles = [" and ".join(sorted(set(results.became.get(number, ["nothing"])))) for number in (own, peer)]
        if queue == "shared":
            # Of two with shared receive queues neither is asked; the peer of one asks in vain.
            wanted = ((UNCHANGED, UNCHANGED),)
        else:
            wanted = ((STATEFUL, STATELESS),) if own < peer else ((STATELESS, STATEFUL),)
        if tuple(roles) not in wanted:
            raise Fail(f"queue pairs {own:#x} and {peer:#x} with {queue} receive queues became {roles}, not {wanted[0]}")
        return roles[0]

    def is_settled(self, test):
        seen = self.seen.get(test, set())
        return test in self.wrong or not {STATEFUL, STATELESS} & seen or {STATEFUL, STATELESS} <= seen

    def of(self, test):
        """What the side that connects first has been in this test."""
        if not self.runs:
            self.run(self.tests)
        while not all(self.is_settled(other) for other in self.tests) and self.runs < RUNS:
            self.run([other for other in self.tests if not self.is_settled(other)])
        if test in self.wrong:
            raise Fail(self.wrong[test])
        if not self.is_settled(test):
            raise Fail(f"in {self.runs} runs the side that connects first was {self.seen[test]} only")
        return self.seen[test]


def star_case(roles, test):
    def run(room):
        seen = roles.of(test)
        outcome, text = roles.plain.of(test)
        if outcome == "skip":
            raise Skip(text)
        room.note("; ".join(sorted(seen)) or "connects nothing by RC")

    return Case("pyverbs-star/" + test, run, 1800)


def enough_case(roles, tests):
    """Were nothing connected, nothing would be compared."""

    def run(room):
        carried = sum(bool({STATEFUL, STATELESS} & roles.of(test)) for test in tests if test not in roles.wrong)
        if carried < LEAST_CARRIED:
            raise Fail(f"StaR carried {carried} of {len(tests)} tests, not {LEAST_CARRIED}")
        room.note(f"StaR carried {carried} tests in both role assignments, in {roles.runs} runs")

    return Case(f"pyverbs-star/at-least-{LEAST_CARRIED}-carried", run, 1800)




def cases():
    try:
        top, tests, plain = prepared()
    except (Skip, Fail, OSError, subprocess.TimeoutExpired) as error:
        yield Case("pyverbs-star/list", failing(error if isinstance(error, (Skip, Fail)) else Fail(str(error))))
        return
    roles = Roles(top, tests, plain)
    for test in tests:
        yield star_case(roles, test)
    yield enough_case(roles, tests)
