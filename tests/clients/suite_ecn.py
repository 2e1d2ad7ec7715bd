"""Congestion marks that a kernel makes, between two network namespaces: queue pairs under DCQCN send ECN-capable packets,
the kernel of the receiving host marks some, that NIC sends CNPs, and the sender slows down. Needs root, to make the
namespaces."""

import shutil
import subprocess

from harness import Case, Fail, Skip, read_counters, require
from suite_netns import TIMEOUT_S, Wire
from suite_perftest import result_rows

MTU = 9000
DCQCN = ("--congestion", "dcqcn")
SECONDS = 2
# Notifications that a sender handles at least: it is far above the unmarked rate at first, and may be notified once in 50 us.
CUTS = 8
# What the kernel lets pass without a mark, in megabytes a second: a small part of what a veth pair carries.
UNMARKED_MB_S = 30
# Queueing disciplines that mark ECN-capable packets when the link behind them is slower than its senders.
DISCIPLINES = {
    "red": "red limit 4mb min 20kb max 80kb avpkt 9000 burst 3 probability 0.5 bandwidth 1gbit ecn",
    "fq_codel": "fq_codel target 100us interval 2ms ecn",
}


def nft_limit(wire):
    """The receiving host marks what comes faster than a rate, as a policer does that marks where others drop."""
    if shutil.which("nft") is None:
        raise Skip("nft is not installed")
    rule = (f"ip ecn ect0 udp dport 4791 limit rate over {UNMARKED_MB_S} mbytes/second burst 256 kbytes "
            "counter ip ecn set ce")
    hook = "type filter hook ingress device veth0 priority 0;"
    done = in_host(wire, 0, "nft", f"table netdev adverb {{\n chain marks {{\n {hook}\n {rule}\n }}\n}}\n")
    if "syntax error" in done.stderr:
        raise Fail(done.stderr)
    if done.returncode != 0:
        raise Skip(f"this kernel has no rule that sets ECN by rate: {done.stderr.strip()}")


def discipline(kind):
    """A link of 1 Gb/s at the sending host, whose queue marks instead of dropping."""

    def make(wire):
        require("tc")
        top = in_host(wire, 1, "tc", *"qdisc add dev veth0 root handle 1: htb default 1".split())
        rate = in_host(wire, 1, "tc", *"class add dev veth0 parent 1: classid 1:1 htb rate 1gbit".split())
        leaf = in_host(wire, 1, "tc", *f"qdisc add dev veth0 parent 1:1 {DISCIPLINES[kind]}".split())
        for done in (top, rate, leaf):
            if done.returncode != 0:
                raise Skip(f"this kernel or tc has no {kind} with ECN: {' '.join(done.stderr.split())}")

    return make


def in_host(wire, host, *words):
    return subprocess.run(["ip", "netns", "exec", wire.names[host], *words], capture_output=True, text=True, check=False)


def throughput(room, wire, label, options=()):
    """MB/s of 64 KB WRITEs from the second host to the first, and the counters of the two."""
    argv = ["ib_write_bw", "-F", "-s", "65536", "-D", str(SECONDS)]
    paths = {side: room.path(f"{label}.{side}.counters") for side in ("server", "client")}
    ends = wire.ends(label=label + "-", **{f"{side}_options": (*options, "--counters", path) for side, path in paths.items()})
    _, client = room.both_succeed(argv, **ends)
    return float(result_rows(client.output())[-1].split()[3]), {side: read_counters(path) for side, path in paths.items()}


def marked_case(make):
    """What the marks led to, by the counters of both ends: each notification that came cut the sender's rate. Megabytes a second
    would say the same on a quiet machine only."""

    def run(room):
        require("ib_write_bw")
        wire = Wire(room, MTU)
        make(wire)
        _, unheeding = throughput(room, wire, "halving")
        rate, counted = throughput(room, wire, "dcqcn", DCQCN)
        server, client = counted["server"], counted["client"]
        for side, values, name in (("server", server, "ecn_marked"), ("server", server, "cnp_sent"),
                                   ("client", client, "cnps_received"), ("client", client, "cnp_handled")):
            if not values[name]:
                raise Fail(f"{name} of the {side} is 0: {rate} MB/s, {values}")
        if client["ecn_marked"] or client["drop_source"] or server["drop_source"]:
            raise Fail(f"marks or drops where none should be: {client} {server}")
        if client["cnp_handled"] != client["cnps_received"] or server["cnp_sent"] > server["ecn_marked"]:
            raise Fail(f"a notification without a mark, or one that cut no rate: {client} {server}")
        if unheeding["server"]["ecn_marked"] or unheeding["client"]["cnp_handled"]:
            raise Fail(f"marks on packets that are not ECN-capable, or a rate cut where there is none: {unheeding}")
        return client["cnp_handled"]

    return run


def slows(make):
    """With a marker that marks all that comes faster than its rate, the sender is slowed down again and again."""

    def run(room):
        cuts = marked_case(make)(room)
        if cuts < CUTS:
            raise Fail(f"the rate was cut {cuts} times, not {CUTS}: the marks were not heeded")

    return run


def cases():
    yield Case("ecn/nft-limit", slows(nft_limit), TIMEOUT_S)
    for kind in DISCIPLINES:
        yield Case(f"ecn/{kind}", marked_case(discipline(kind)), TIMEOUT_S)
