"""The pytest plugin: a test gets a NIC for the programs that it starts, and fails when no RDMA happened.

    @pytest.mark.adverb(loss=0.01, seed=7)
    def test_pingpong(adverb_nic):
        port = adverb_nic.port()
        server = adverb_nic.start("ibv_rc_pingpong", "-g", "0", "-p", port)
        server.listens(port)
        client = adverb_nic.run("ibv_rc_pingpong", "-g", "0", "-p", port, adverb_nic.address)
        assert "1000 iters" in client.output
        server.wait()
        assert adverb_nic.counters["fault_rx_lost"] > 0

RDMA happened when a request to another process completed without error and moved payload: what `adverb run --summary`
counts, over all processes of the programs, those that were killed too.
"""

import collections
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from ._command import command

# What `adverb run` takes with a value, by the names that Python gives them; `trace` has none.
OPTIONS = (
    "address", "via", "via_token", "path", "transport", "star_threshold", "star_hold", "star_registry", "congestion", "loss",
    "duplicate", "reorder", "corrupt", "mark", "delay", "direction", "seed", "pcap",
)
NIC = pytest.StashKey()
POLL_S = 0.01
# How long programs have to end when the test has.
END_S = 5.0
# The state of a listening socket in /proc/net/tcp.
LISTEN = "0A"


class Program:
    """A program that runs on the NIC. Its standard output and error are in `output`."""

    def __init__(self, argv, popen, log):
        self.argv = argv
        self.process = popen
        self.log = log

    @property
    def output(self):
        """What it has printed so far."""
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait(self, timeout=60, check=True):
        """Waits for its end, and gives its exit status: 0, unless `check` is false."""
        try:
            status = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self} did not end within {timeout} s; it printed\n{self.output}", pytrace=False)
        if check and status != 0:
            pytest.fail(f"{self} ended with status {status}; it printed\n{self.output}", pytrace=False)
        return status

    def listens(self, port, timeout=30):
        """Waits until somebody listens on a TCP port, by the kernel's table: a connection would be taken for a client."""
        self._until(lambda: listening(port), f"listen on TCP port {port}", timeout)

    def prints(self, text, timeout=30):
        """Waits until it has printed a text."""
        self._until(lambda: text in self.output, f"print {text!r}", timeout)

    def _until(self, holds, what, timeout):
        deadline = time.monotonic() + timeout
        while not holds():
            if self.process.poll() is not None and not holds():
                pytest.fail(f"{self} ended before it did {what}; it printed\n{self.output}", pytrace=False)
            if time.monotonic() > deadline:
                pytest.fail(f"{self} did not {what} within {timeout} s; it printed\n{self.output}", pytrace=False)
            time.sleep(POLL_S)

    def __str__(self):
        return " ".join(self.argv)


class Nic:
    """A test's NIC: one address, whose processes find each other; settings for the programs started from now on."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.expects_rdma = settings.pop("expect_rdma", True)
        self.settings = {"address": own_address()}
        self.programs = []
        self.set(**settings)
        self.counted = folder / "counters"
        self.counted.mkdir()

    @property
    def address(self):
        """Where it is: one of 127.0.0.0/8 that is this test process's own."""
        return self.settings["address"]

    def set(self, **settings):
        """Faults and the like, as options of `adverb run`: loss=0.01, transport="irn". None takes one away."""
        for name, value in settings.items():
            if name not in OPTIONS and name != "trace":
                raise ValueError(f"{name}: adverb's NIC has {', '.join(OPTIONS)}, trace")
            self.settings[name] = value

    def start(self, *argv, env=None, cwd=None, **settings):
        """Starts a program on the NIC; `settings` are for it alone."""
        argv = [str(word) for word in argv]
        before = dict(self.settings)
        self.set(**settings)
        line = [command(), "run", f"--summary={self.counted / f'{len(self.programs)}.json'}"]
        for name, value in self.settings.items():
            option = "--" + name.replace("_", "-")
            line += [option] if value is True else [] if value in (None, False) else [option, str(value)]
        self.settings = before
        log = self.folder / f"program-{len(self.programs)}.log"
        with open(log, "wb") as out:
            popen = subprocess.Popen(
                [*line, "--", *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )
        program = Program(argv, popen, log)
        self.programs.append(program)
        return program

    def run(self, *argv, timeout=60, check=True, **more):
        """Starts a program and waits for its end."""
        program = self.start(*argv, **more)
        program.wait(timeout, check)
        return program

    def port(self):
        """A TCP port that nobody listens on."""
        with socket.socket() as found:
            found.bind(("", 0))
            return found.getsockname()[1]

    @property
    def counters(self):
        """The NICs' counters by name, summed over all processes of all programs that have ended."""
        total = collections.Counter()
        for told in self._told():
            total.update(told["total"])
        return total

    def _told(self):
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.counted.glob("*.json"))]

    def end(self):
        """Ends what still runs: by SIGTERM to each program's group, then by SIGKILL."""
        for program in self.programs:
            for sent, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, None)):
                try:
                    os.killpg(program.process.pid, sent)
                except ProcessLookupError:
                    break
                try:
                    program.process.wait(seconds)
                except subprocess.TimeoutExpired:
                    continue
            program.process.wait()

    def require_rdma(self):
        """Fails the test unless RDMA happened."""
        counted = self.counters
        well = counted["requests_done"]
        # A program that only serves what others ask for has completed nothing itself.
        payload = max(counted["payload_requested"], counted["payload_served"])
        if payload > 0:
            return
        opened = sum(len(told["processes"]) for told in self._told())
        why = f"{opened} of the programs' processes opened the device" if opened else "no program opened the device"
        tried = "; ".join(f"{p} (status {p.process.poll()})" for p in self.programs) or "no program was started"
        pytest.fail(
            f"no RDMA happened: {well} requests completed well, {payload} bytes of payload moved; {why}: {tried}. A test that "
            "wants none says @pytest.mark.adverb(expect_rdma=False)",
            pytrace=False,
        )


def own_address():
    """An address of this process alone: tests side by side do not meet."""
    n = os.getpid()
    return f"127.{64 + (n >> 16) % 128}.{n >> 8 & 255}.{n & 255}"


def listening(port):
    """Whether a socket of this network namespace listens on a TCP port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as f:
                rows = [line.split() for line in f.readlines()[1:]]
        except FileNotFoundError:
            continue
        if any(row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows):
            return True
    return False


def pytest_configure(config):
    config.addinivalue_line("markers", "adverb(expect_rdma=True, **settings): settings of the test's NIC, as of adverb run")


@pytest.fixture
def adverb_nic(request, tmp_path_factory):
    """A NIC for the programs that the test starts."""
    settings = {}
    for mark in reversed(list(request.node.iter_markers("adverb"))):
        settings.update(mark.kwargs)
    nic = Nic(tmp_path_factory.mktemp("adverb"), **settings)
    request.node.stash[NIC] = nic
    yield nic
    nic.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    result = yield
    # Part of the test itself: it fails, and does not merely end in an error.
    nic = item.stash.get(NIC, None)
    if nic is not None and nic.expects_rdma:
        nic.end()
        nic.require_rdma()
    return result
