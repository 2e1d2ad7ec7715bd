"""Scenarios from the topology and connection matrix files of htsim (csg-htsim, its fat trees).

A topology file (.topo) has the numbers of nodes and tiers and the size of a pod, then for each tier of switches, from
the hosts on, the speed and delay of the links below it, how many links a switch has down and up, links in a bundle,
oversubscription and the time through a switch. A connection matrix (.cm) has the numbers of nodes and connections,
then a line for each: `SRC->DST id N start PICOSECONDS size BYTES`. Lines that begin with # are comments.
"""

from decimal import Decimal, InvalidOperation

from ._ns3 import BYTES_MAX, _Lines

HEADER = ("nodes", "tiers", "podsize")
TIER = (
    "downlink_speed_gbps", "downlink_latency_ns", "radix_down", "radix_up", "bundle", "oversubscribed",
    "switch_latency_ns",
)
QUEUES = ("queue_up", "queue_down")


def from_htsim(topology, connections):
    """A scenario, as a dict, of a topology file and a connection matrix of htsim.

    Switches are numbered from those at the hosts up, tier by tier, as there; cables stand in the order hosts, first
    tier, second tier. Starts are those of the file. Connections that wait for triggers, failures of links, and queues
    of a size for each port are refused: what a switch holds is the scenario's `switch`, what is wanted of the NICs its
    `transport`.
    """
    scenario, hosts = _topology(_Lines(topology))
    scenario["workload"] = {"kind": "list", "list": _connections(_Lines(connections), hosts)}
    return scenario


def _words(lines):
    """Lines that are no comments, one after another."""
    for lines.number, words in lines.left:
        if not words[0].startswith("#"):
            yield words


def _number(lines, words, least):
    if len(words) != 2:
        raise lines.wrong(f"{words[0]}: one number is needed")
    (found,) = lines.numbers(words[1:])
    if found < least:
        raise lines.wrong(f"{words[0]}: {found} is below {least}")
    return found


def _read(lines):
    """The header, and the tiers by number."""
    header, tiers, into = {}, {}, None
    for words in _words(lines):
        key = words[0].lower()
        if key == "tier":
            tier = _number(lines, words, 0)
            if tier in tiers or tier > 2:
                raise lines.wrong(f"tier {tier}: each of 0 to 2 stands once")
            into = tiers[tier] = {}
        elif key in QUEUES:
            raise lines.wrong(f"{words[0]}: queues of a size for each port are not taken over; give `switch`")
        elif key not in (HEADER if into is None else TIER):
            raise lines.wrong(f"{words[0]}: not known here")
        else:
            table = header if into is None else into
            if key in table:
                raise lines.wrong(f"{words[0]} stands twice")
            table[key] = _number(lines, words, 0 if key == "switch_latency_ns" else 1)
    for key in HEADER:
        if key not in header:
            raise lines.wrong(f"{key} is missing")
    if header["tiers"] not in (2, 3):
        raise lines.wrong(f"{header['tiers']} tiers: fat trees have 2 or 3")
    if sorted(tiers) != list(range(header["tiers"])):
        raise lines.wrong(f"there must be tiers 0 to {header['tiers'] - 1}, and no other ones")
    top = header["tiers"] - 1
    for number, tier in sorted(tiers.items()):
        needed = TIER[:3] if number == top else TIER[:4]
        for key in needed:
            if key not in tier:
                raise lines.wrong(f"tier {number}: {key} is missing")
        if number == top and "radix_up" in tier:
            raise lines.wrong(f"tier {number}: no links go up from the top")
        tier.setdefault("bundle", 1)
        tier.setdefault("oversubscribed", 1)
        tier.setdefault("switch_latency_ns", 0)
    return header, [tiers[number] for number in range(header["tiers"])]


def _shape(lines, header, tiers):
    """Switches of each tier: how many in all, and in a pod; (all, each pod)."""

    def parts(whole, part, what):
        if part == 0 or whole % part or whole < part:
            raise lines.wrong(f"{what}: {whole} are not a multiple of {part}")
        return whole // part

    nodes, tor, agg = header["nodes"], tiers[0], tiers[1]
    pods = parts(nodes, header["podsize"], "nodes by podsize")
    if len(tiers) == 2 and pods != 1:
        raise lines.wrong(f"2 tiers are one pod: podsize must be {nodes}")
    if tor["bundle"] != 1:
        raise lines.wrong("tier 0: a host has one link, so bundle must be 1")
    tors = parts(header["podsize"], tor["radix_down"], "podsize by tier 0's radix_down")
    speed = lambda tier: tier["downlink_speed_gbps"]
    up = parts(nodes * speed(tor), speed(agg) * tor["oversubscribed"], "tier 0's links up, by speeds")
    aggs = parts(up, pods * agg["radix_down"], "tier 0's links up by tier 1's radix_down")
    if tor["radix_up"] != aggs * agg["bundle"] or agg["radix_down"] != tors * agg["bundle"]:
        raise lines.wrong(
            f"a pod has {tors} switches of tier 0 and {aggs} of tier 1: with bundles of {agg['bundle']} radix_up of "
            f"tier 0 must be {aggs * agg['bundle']} and radix_down of tier 1 {tors * agg['bundle']}"
        )
    shape = [(tors * pods, tors), (aggs * pods, aggs)]
    if len(tiers) == 3:
        core = tiers[2]
        up = parts(up * speed(agg), speed(core) * agg["oversubscribed"], "tier 1's links up, by speeds")
        cores = parts(up, core["radix_down"], "tier 1's links up by tier 2's radix_down")
        each = parts(agg["radix_up"], core["bundle"], "tier 1's radix_up by tier 2's bundle")
        if cores != each * aggs or core["radix_down"] != pods * core["bundle"]:
            raise lines.wrong(
                f"tier 2 has {cores} switches, and {pods} pods of {aggs} with {each} bundles up: they must be "
                f"{each * aggs}, with radix_down {pods * core['bundle']}"
            )
        shape.append((cores, each))
    return shape


def _topology(lines):
    header, tiers = _read(lines)
    shape = _shape(lines, header, tiers)
    latencies = {tier["switch_latency_ns"] for tier in tiers}
    if len(latencies) > 1:
        raise lines.wrong("switch_latency_ns differs by tier: a scenario's switches take the same time")
    first = [0, shape[0][0], shape[0][0] + shape[1][0]]
    cables = []

    def join(below, above, tier):
        cable = {"from": below, "to": f"switch {above}", "rate": f"{tiers[tier]['downlink_speed_gbps']}G"}
        cables.extend([cable | {"delay": f"{tiers[tier]['downlink_latency_ns']}ns"}] * tiers[tier]["bundle"])

    for host in range(header["nodes"]):
        join(f"host {host}", host // tiers[0]["radix_down"], 0)
    tors, aggs = shape[0][1], shape[1][1]
    for tor in range(shape[0][0]):
        for n in range(aggs):
            join(f"switch {tor}", first[1] + tor // tors * aggs + n, 1)
    if len(tiers) == 3:
        for agg in range(shape[1][0]):
            for n in range(shape[2][1]):
                join(f"switch {first[1] + agg}", first[2] + agg % aggs + n * aggs, 2)
    table = {"kind": "cables", "hosts": header["nodes"], "switches": sum(count for count, _ in shape)}
    scenario = {"topology": table | {"rate": cables[0]["rate"], "cables": cables}}
    (latency,) = latencies
    return scenario | ({"switch": {"latency": f"{latency}ns"}} if latency else {}), header["nodes"]


def _connections(lines, hosts):
    header, found, priorities = {}, [], set()
    for words in _words(lines):
        if "->" in words[0]:
            found.append(_connection(lines, words, hosts, priorities))
        elif words[0] in ("trigger", "failure"):
            raise lines.wrong(f"a {words[0]}: flows start at times, and cables fail by `faults.outage`: yours to add")
        elif words[0] not in ("Nodes", "Connections", "Triggers", "Failures") or found:
            raise lines.wrong(f"{words[0]}: not known here")
        else:
            header[words[0]] = _number(lines, words, 0)
    if header.get("Nodes") != hosts:
        raise lines.wrong(f"Nodes is {header.get('Nodes', 'missing')}, and the topology has {hosts}")
    if header.get("Connections") != len(found):
        raise lines.wrong(f"Connections is {header.get('Connections', 'missing')}, and there are {len(found)}")
    if not found:
        raise lines.wrong("there are no connections")
    return found


def _connection(lines, words, hosts, priorities):
    src, dst = lines.numbers(words[0].split("->", 1))
    for node in (src, dst):
        if node >= hosts:
            raise lines.wrong(f"there is no node {node}; there are {hosts}, from 0")
    if src == dst:
        raise lines.wrong("a connection goes to another host than it comes from")
    keys, values = words[1::2], words[2::2]
    if len(keys) != len(values):
        raise lines.wrong(f"{keys[-1]}: a value is needed")
    given = dict(zip(keys, values))
    for key in given:
        if "trigger" in key:
            raise lines.wrong(f"{key}: connections that wait for others are not taken over; flows start at times")
        if key not in ("id", "start", "size", "prio"):
            raise lines.wrong(f"{key}: not known here")
    priorities.add(given.get("prio"))
    if len(priorities) > 1:
        raise lines.wrong("prio: connections of several priorities are not taken over; flows are of one class")
    for key in ("start", "size"):
        if key not in given:
            raise lines.wrong(f"{key} is missing")
    (size,) = lines.numbers([given["size"]])
    if not 0 < size <= BYTES_MAX:
        raise lines.wrong(f"{size} bytes: 1 to {BYTES_MAX} are a message; send several")
    try:
        start = Decimal(given["start"])
    except InvalidOperation:
        start = Decimal("NaN")
    if not (start.is_finite() and 0 <= start < 10**18):
        raise lines.wrong(f"{given['start']}: a start is a number of picoseconds")
    return {"src": src, "dst": dst, "bytes": str(size), "start": f"{Decimal(int(start)) / 1000:f}ns"}
