"""Scenarios from the topology and flow files of HPCC's ns-3 simulator.

A topology file has the numbers of nodes, switches and links, the switches' ids, and for each link its two nodes, rate,
delay and error rate. A flow file has the number of flows that are read, and for each one its source, destination,
priority group, destination port, bytes and start in seconds. What is behind that is comment.
"""

import math
import re
from decimal import Decimal, InvalidOperation

RATE = re.compile(r"\d+(\.\d+)?[GMK]?bps")
DELAY = re.compile(r"\d+(\.\d+)?(ns|us|ms|s)")
# A message of adverb's.
BYTES_MAX = 1 << 30


class _Lines:
    """The lines of a file that are not empty, one after another; what is wrong is named with file and line."""

    def __init__(self, path):
        self.path = path
        self.number = 0
        with open(path, encoding="utf-8") as f:
            lines = [(n, line.split()) for n, line in enumerate(f, 1)]
        self.left = iter([(n, words) for n, words in lines if words])

    def wrong(self, why):
        return ValueError(f"{self.path}:{self.number}: {why}")

    def next(self, count, what):
        """The next line's words, so many of them, or any number for None."""
        self.number, words = next(self.left, (self.number, None))
        if words is None:
            raise self.wrong(f"the file ends where {what} should be")
        if count is not None and len(words) != count:
            raise self.wrong(f"{what}: {count} words are needed, not {len(words)}")
        return words

    def numbers(self, words):
        try:
            found = [int(word) for word in words]
        except ValueError as e:
            raise self.wrong(f"whole numbers are needed: {e}") from e
        if any(n < 0 for n in found):
            raise self.wrong("a number is below 0")
        return found


def from_ns3(topology, flows):
    """A scenario, as a dict, of a topology file and a flow file of HPCC's ns-3 simulator.

    Hosts are the nodes that are no switches, in the order of their ids; cables are in the order of links. Error rates
    of links are chances that a packet is lost. The first flow starts at 0, the others as much later as they do there.
    Destination ports, which only chose among equal paths, have no place here. What else that simulator is told (buffers,
    PFC, congestion control) stands in a file of its own: add it as the scenario's `switch` and `transport`.
    """
    scenario, hosts = _topology(_Lines(topology))
    scenario["workload"] = {"kind": "list", "list": _flows(_Lines(flows), hosts)}
    return scenario


def _topology(lines):
    nodes, count, links = lines.numbers(lines.next(3, "the numbers of nodes, switches and links"))
    switches = lines.numbers(lines.next(count, "the switches' ids")) if count else []
    if len(set(switches)) != count or any(n >= nodes for n in switches):
        raise lines.wrong(f"the switches' ids are not {count} different ones of {nodes} nodes")
    number = {node: n for n, node in enumerate(switches)}
    hosts = {node: n for n, node in enumerate(node for node in range(nodes) if node not in number)}
    cables, faults = [], []
    for link in range(links):
        *ends, rate, delay, error = lines.next(5, f"link {link} of {links}")
        ends = lines.numbers(ends)
        if any(node >= nodes for node in ends):
            raise lines.wrong(f"there is no such node; there are {nodes}, from 0")
        if not RATE.fullmatch(rate) or not DELAY.fullmatch(delay):
            raise lines.wrong(f"{rate} {delay}: a rate such as 100Gbps and a delay such as 1000ns are needed")
        names = [f"switch {number[node]}" if node in number else f"host {hosts[node]}" for node in ends]
        cables.append({"from": names[0], "to": names[1], "rate": rate.removesuffix("bps"), "delay": delay})
        loss = _share(lines, error)
        if loss:
            faults.append({"links": [2 * link, 2 * link + 1], "loss": loss})
    if not cables:
        raise lines.wrong("there are no links")
    table = {"kind": "cables", "hosts": len(hosts), "switches": count, "rate": cables[0]["rate"], "cables": cables}
    return {"topology": table} | ({"faults": {"link": faults}} if faults else {}), hosts


def _share(lines, word):
    try:
        share = float(word)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise lines.wrong(f"{word}: an error rate is from 0 to below 1")
    return share


def _flows(lines, hosts):
    (count,) = lines.numbers(lines.next(1, "the number of flows"))
    found, groups = [], set()
    for flow in range(count):
        *words, start = lines.next(6, f"flow {flow} of {count}")
        src, dst, group, _port, size = lines.numbers(words)
        for node in (src, dst):
            if node not in hosts:
                raise lines.wrong(f"node {node} is no host")
        if src == dst:
            raise lines.wrong("a flow goes to another host than it comes from")
        if not 0 < size <= BYTES_MAX:
            raise lines.wrong(f"{size} bytes: 1 to {BYTES_MAX} are a message; send several")
        groups.add(group)
        if len(groups) > 1:
            raise lines.wrong(f"priority group {group} beside others: a scenario's flows are of one class")
        found.append((_picoseconds(lines, start), hosts[src], hosts[dst], size))
    if not found:
        raise lines.wrong("there are no flows")
    first = min(at for at, *_ in found)
    time = lambda at: f"{Decimal(at - first) / 1000:f}ns"
    return [{"src": src, "dst": dst, "bytes": str(size), "start": time(at)} for at, src, dst, size in found]


def _picoseconds(lines, word):
    """Seconds as a whole number of picoseconds: nothing of a start is rounded but what is below one."""
    try:
        seconds = Decimal(word)
    except InvalidOperation:
        seconds = Decimal("NaN")
    if not (seconds.is_finite() and 0 <= seconds < 10**6):
        raise lines.wrong(f"{word}: a start is a number of seconds")
    return int(seconds * 10**12)
