"""What the tests of the package share: a scenario, and the processes that simulate."""

import os
import signal
import time

import adverb
import pytest

pytest_plugins = "pytester"


@pytest.fixture
def star():
    """Four hosts around a switch with little room, for a fraction of a second."""
    return {
        "topology": {"kind": "star", "hosts": 4, "rate": "100G"},
        "switch": {"buffer": "40KB"},
        "transport": {"mtu": 1024},
        "workload": {"kind": "poisson", "load": 0.9, "flows": 60, "sizes": "fixed 20KB"},
    }


@pytest.fixture
def long_star(star):
    """One that takes long enough to be killed in the middle."""
    star["workload"]["flows"] = 5_000
    return star


def simulating():
    """Processes of this package's command: their ids, and their parents'."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/exe") != os.path.realpath(adverb.command()):
                continue
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                found.append((int(name), int(f.read().rpartition(")")[2].split()[1])))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # It has ended since, or is another user's.
            continue
    return found


def kill_one(pick, among=None, timeout=60):
    """Waits until a simulation runs, whose parent is `among` these if they are given, and kills it or its parent. A
    simulation that is to be killed is this process's own.
    """
    if pick == "simulation":
        among = {os.getpid()}
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for own, parent in simulating():
            if among is not None and parent not in among:
                continue
            try:
                os.kill({"simulation": own, "worker": parent}[pick], signal.SIGKILL)
            except ProcessLookupError:
                # It has ended in between.
                continue
            return parent
        time.sleep(0.005)
    raise AssertionError("no simulation was seen")
