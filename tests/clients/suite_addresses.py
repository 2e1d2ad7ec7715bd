"""Addresses of rdma_cm: who of several listeners answers for an address and a port, of one process and of several; IPv6
between processes of one address, of two, and of two hosts."""

import os
import re

from harness import Case, Fail, compile_c, read_counters, require, require_text
from suite_netns import ip, make_namespaces
from suite_rdmacm import TCP, UDP, channel_closed_under_it, expect_counters, listens, start, who_counts

SPACES = ("tcp", "udp", "ib")
# Addresses of this run alone: other programs of the host may be at 127.0.0.1.
OWN, OTHER, ASKER = (f"127.77.{os.getpid() % 250}.{host}" for host in (1, 2, 3))
REFUSED = {"tcp": "RDMA_CM_EVENT_REJECTED 8", "ib": "RDMA_CM_EVENT_REJECTED 8", "udp": "RDMA_CM_EVENT_UNREACHABLE 1"}
# Of a host of its own with two addresses, and of two hosts with a cable between.
HOSTS_V6 = ("fd00:99::1", "fd00:99::2")


class Listeners:
    """Processes that listen at one port, and questions to them."""

    def __init__(self, room):
        self.room = room
        self.port = str(room.port())
        self.binary = compile_c("reach", libraries=("rdmacm", "ibverbs"))
        self.count = 0
        # Nothing is found there that somebody else left.
        self.env = {"ADVERB": "directory=" + room.path("shared")}

    def serve(self, *listeners, address=OWN):
        """Starts a process; what became of each of its listeners."""
        self.count += 1
        proc = self.room.adverb(f"server{self.count}", [self.binary, "serve", self.port, *listeners], address=address,
                                env=self.env)
        self.room.wait_output(proc, "^ready$")
        return [row for row in proc.output().split("\n") if re.match("(tcp|udp|ib),", row)]

    def expect(self, answers, own=OWN, options=()):
        """Asks for each of the words from a process at `own`; the answers must be these."""
        self.count += 1
        proc = self.room.adverb(f"client{self.count}", [self.binary, "ask", self.port, *answers], address=own,
                                options=options, env=self.env)
        self.room.expect_success(proc)
        found = [row for row in proc.output().split("\n") if re.match("(tcp|udp|ib),", row)]
        wanted = [f"{words}: {answer}" for words, answer in answers.items()]
        if found != wanted:
            raise Fail(f"asked from {own}: {found}, not {wanted}")


def equal(found, wanted):
    if found != wanted:
        raise Fail(f"{found}, not {wanted}")


def any_v6_takes_v4(room):
    """`::` stands for IPv4's addresses too, for who asks by shared memory and for who asks by UDP."""
    listeners = Listeners(room)
    equal(listeners.serve("tcp,::", "udp,::", "ib,::"), ["tcp,:: listens", "udp,:: listens", "ib,:: listens"])
    for own, options in ((OWN, ()), (OWN, ("--path", "udp")), (ASKER, ())):
        answers = {f"{space},{OWN}": f"{space},:: at {OWN} from {own}" for space in SPACES}
        listeners.expect(answers, own=own, options=options)


def family_only(room):
    """... unless it stands for its family alone: then who asks over IPv4 is refused, until IPv4's any listens too. In one
    process, and in two."""
    listeners = Listeners(room)
    equal(listeners.serve(*(f"{space},::,only" for space in SPACES)), [f"{space},::,only listens" for space in SPACES])
    for own in (OWN, ASKER):
        listeners.expect({f"{space},{OWN}": REFUSED[space] for space in SPACES}, own=own)
    equal(listeners.serve("tcp,0.0.0.0"), ["tcp,0.0.0.0 listens"])
    one = Listeners(room)
    equal(one.serve("tcp,::,only", "tcp,0.0.0.0"), ["tcp,::,only listens", "tcp,0.0.0.0 listens"])
    for asked in (listeners, one):
        for own in (OWN, ASKER):
            asked.expect({f"tcp,{OWN}": f"tcp,0.0.0.0 at {OWN} from {own}"}, own=own)


def families_share(room):
    """Without that, one port is for one of the two, whoever comes first."""
    listeners = Listeners(room)
    equal(listeners.serve("tcp,::"), ["tcp,:: listens"])
    equal(listeners.serve("tcp,0.0.0.0", f"tcp,{OWN}", "udp,0.0.0.0"),
          ["tcp,0.0.0.0 cannot bind: EADDRNOTAVAIL", f"tcp,{OWN} cannot bind: EADDRNOTAVAIL", "udp,0.0.0.0 listens"])


def at_v6(room):
    """A NIC at ::1: `::` is reached, with and without its family alone; IPv4's any is not."""
    for words in ("::", "::,only", "::1"):
        listeners = Listeners(room)
        listeners.serve(*(f"{space},{words}" for space in SPACES), address="::1")
        answers = {f"{space},::1": f"{space},{words} at ::1 from ::1" for space in SPACES}
        listeners.expect(answers, own="::1")
        listeners.expect(answers, own="::1", options=("--path", "udp"))
    listeners = Listeners(room)
    equal(listeners.serve("tcp,0.0.0.0", address="::1"), ["tcp,0.0.0.0 listens"])
    listeners.expect({"tcp,::1": REFUSED["tcp"]}, own="::1")


def two_addresses(room):
    """Any address, at one port, by two processes at two addresses: each answers for its own."""
    listeners = Listeners(room)
    for address in (OWN, OTHER):
        equal(listeners.serve("tcp,0.0.0.0", "udp,0.0.0.0", address=address), ["tcp,0.0.0.0 listens", "udp,0.0.0.0 listens"])
    for own in (OWN, OTHER, ASKER):
        listeners.expect({f"{space},{to}": f"{space},0.0.0.0 at {to} from {own}" for space in ("tcp", "udp")
                          for to in (OWN, OTHER)}, own=own)


def spaces(room):
    """One number in three port spaces, in one process, and in three: each answers in its own."""
    one, three = Listeners(room), Listeners(room)
    equal(one.serve(*(f"{space},{OWN}" for space in SPACES)), [f"{space},{OWN} listens" for space in SPACES])
    for space in SPACES:
        equal(three.serve(f"{space},{OWN}"), [f"{space},{OWN} listens"])
    for listeners in (one, three):
        for own in (OWN, ASKER):
            listeners.expect({f"{space},{OWN}": f"{space},{OWN} at {OWN} from {own}" for space in SPACES},
                             own=own)
    # Who has only one of them is refused in the others.
    few = Listeners(room)
    few.serve(f"udp,{OWN}")
    few.expect({f"{space},{OWN}": f"udp,{OWN} at {OWN} from {OWN}" if space == "udp" else REFUSED[space]
                for space in SPACES})


def one_host(room):
    """A network namespace with two IPv6 addresses; both sides' ends."""
    (name,) = make_namespaces_of(room, 1)
    for address in HOSTS_V6:
        ip("-n", name, "addr", "add", address + "/128", "dev", "lo", "nodad")
    return name, name


def two_hosts(room):
    """Two network namespaces with a cable."""
    names = make_namespaces_of(room, 2)
    ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
    for name, address in zip(names, HOSTS_V6):
        ip("-n", name, "addr", "add", address + "/64", "dev", "veth0", "nodad")
        ip("-n", name, "link", "set", "veth0", "up")
    return names


def make_namespaces_of(room, count):
    names = make_namespaces(room, "ab"[:count])
    for name in names:
        ip("-n", name, "link", "set", "lo", "up")
    return names


def between(hosts, server, client, space=TCP, port=None, says=()):
    """A stock program between two IPv6 addresses."""

    def run(room):
        require(server[0], client[0])
        names = hosts(room)
        sides = start(room, server, client, space=space, port=port, server_address=HOSTS_V6[0],
                      client_address=HOSTS_V6[1], netns=names)
        room.all_succeed(*sides, excuse=channel_closed_under_it)
        for pattern in says:
            require_text(sides[1].output(), pattern, client[0])
        expect_counters(room, False, who_counts(sides))

    return run


def group(room):
    """Ten sends to a group of IPv6, to another host. On `lo` the kernel carries none."""
    require("mckey", "stdbuf")
    names = two_hosts(room)
    argv = ["stdbuf", "-oL", "mckey", "-m", "ff0e::1234", "-C", "10", "-b"]
    counters = ("--counters", room.path("receiver.counters"))
    receiver = room.adverb("receiver", [*argv, HOSTS_V6[0]], HOSTS_V6[0], counters, names[0])
    room.wait_output(receiver, r"^mckey: joined dgid: ff0e::1234")
    sender = room.adverb("sender", [*argv, HOSTS_V6[1], "-s"], HOSTS_V6[1], netns=names[1])
    room.all_succeed(receiver, sender)
    if read_counters(room.path("receiver.counters"))["completions"] < 10:
        raise Fail("not ten messages came")


def cases():
    for run in (any_v6_takes_v4, family_only, families_share, at_v6, two_addresses, spaces):
        yield Case("addresses/" + run.__name__.replace("_", "-"), run, timeout=60)
    rping = ["rping", "-a", "{server}", "-p", "{port}", "-V", "-v", "-C", "50"]
    ucmatose = ["ucmatose", "-p", "{port}", "-C", "50", "-S", "4000"]
    udaddy = ["udaddy", "-C", "10", "-S", "1000"]
    rstream = ["rstream", "-p", "{port}", "-T", "b", "-C", "100", "-I", "5", "-S", "10000"]
    for label, hosts in (("one-host", one_host), ("two-hosts", two_hosts)):
        yield Case(f"addresses/v6-rping-{label}",
                   between(hosts, [*rping, "-s"], [*rping, "-c"], says=(r"ping data: rdma-ping-49",)), timeout=60)
        yield Case(f"addresses/v6-ucmatose-{label}",
                   between(hosts, [*ucmatose, "-b", "{server}"], [*ucmatose, "-s", "{server}"],
                           says=(r"^return status 0",)), timeout=60)
        yield Case(f"addresses/v6-rstream-{label}",
                   between(hosts, [*rstream, "-T", "v", "-b", "{server}"], [*rstream, "-T", "v", "-s", "{server}"],
                           says=(r"^custom\s",)), timeout=60)
        yield Case(f"addresses/v6-udaddy-{label}",
                   between(hosts, [*udaddy, "-b", "{server}"], [*udaddy, "-s", "{server}"], space=UDP, port=7174,
                           says=(r"^return status 0",)), timeout=60)
    yield Case("addresses/v6-mckey-two-hosts", group, timeout=60)
