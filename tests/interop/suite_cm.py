"""Linux's rdma_cm over rxe, and adverb's: each of them asks, and each listens. One program (guest/connect.c) prints what
either side is told, which must be the same, word for word, as between two rxe's; stock programs of rdma_cm run both ways.

A message of the connection manager that is lost is repeated after 6.2 s, so what loses many takes long."""

import farewell
import lab
from harness import Case, Fail, read_counters, require, require_text
from sides import LAB, Ends, adverb, await_in_guest, both_sides, rxe, start, wait_cm_listening_in_guest, watched
from suite_rdmacm import FIXED_PORT, TCP, UDP, alive, channel_closed_under_it, listens

SPACES = {TCP: "TCP", UDP: "UDP"}
LIMIT_S = 20


def begin(room, client_is_adverb, server, client, space=TCP, port=None, label="", options=()):
    """Starts a server of rdma_cm, waits until it listens, and starts the client towards it. `{host}` and `{port}` in
    their arguments are the server's. Returns the running ends."""
    port = port or room.port()
    words = {"port": str(port), "host": lab.GUESTS[LAB.ip] if client_is_adverb else lab.HOSTS[LAB.ip]}
    server, client = ([word.format(**words) for word in argv] for argv in (server, client))
    # A folder of its own, so that nothing is found there that another case left.
    folder = room.path("shared")
    env = {"ADVERB": f"directory={folder}"}
    if client_is_adverb:
        s = rxe(room, label + "server", server)
        wait_cm_listening_in_guest(room, s, port, SPACES[space])
        c = adverb(room, label + "client", client, options, env)
    else:
        s = adverb(room, label + "server", server, options, env)
        room.wait_until("listener", lambda: alive(s) and listens(folder, LAB.host, space, port))
        c = rxe(room, label + "client", client)
    return Ends(s, c)


# -- what either side is told ----------------------------------------------------------------------------------------

# What two rxe's were told, by scenario and version of IP: each is run once.
REFERENCES = {}
MOST = {"request": 56, "answer": 196, "refusal": 148, "question": 180, "found": 136}
WORDS = "abcdefghijklmnopqrstuvwxyz0123456789" * 6


class Scenario:
    """The options of both sides; without a server, nobody listens."""

    def __init__(self, server, client, space=TCP):
        self.server = server
        self.client = client
        self.space = space
        if space == UDP:
            self.server, self.client = (side if side is None else [*side, "--datagrams"] for side in (server, client))


SCENARIOS = {
    "client-leaves": Scenario(["--data", "an answer", "--sends", "5", "--receives", "16"],
                              ["--data", "a question", "--sends", "16", "--receives", "5", "--leave"]),
    "server-leaves": Scenario(["--sends", "16", "--receives", "5", "--leave"], ["--sends", "5", "--receives", "16"]),
    "timewait": Scenario(["--timewait"], ["--leave", "--timewait"]),
    "most-data": Scenario(["--data", WORDS[: MOST["answer"]]], ["--data", WORDS[: MOST["request"]], "--leave"]),
    # Powers of two: rxe makes them of others.
    "resources": Scenario(["--resources", "4,1"], ["--resources", "16,8", "--leave"]),
    "no-resources": Scenario(["--resources", "0,0"], ["--resources", "0,0", "--leave"]),
    "nobody": Scenario(None, ["--data", "a question"]),
    "rejected": Scenario(["--reject"], ["--data", "a question"]),
    "rejected-most-data": Scenario(["--reject", "--data", WORDS[: MOST["refusal"]]], []),
    "abandoned": Scenario(["--abandon"], []),
    # What fio's verb=send meets: it accepts with an RNR retry count of 0, and may have posted less than comes.
    "few-receives": Scenario(["--posts", "1", "--rnr", "0"], ["--rnr", "0", "--late", "4", "--leave"]),
    "client-exits": Scenario(["--receives", "3"], ["--sends", "3", "--exit"]),
    "server-exits": Scenario(["--sends", "3", "--exit"], ["--receives", "3"]),
    "datagrams": Scenario(["--data", "an answer", "--receives", "3"], ["--data", "a question", "--sends", "3"], UDP),
    "datagrams-most-data": Scenario(["--data", WORDS[: MOST["found"]]], ["--data", WORDS[: MOST["question"]]], UDP),
    "datagrams-nobody": Scenario(None, [], UDP),
    "datagrams-rejected": Scenario(["--reject", "--data", "go away"], [], UDP),
    "datagrams-abandoned": Scenario(["--abandon"], [], UDP),
}


def connect(side, is_adverb, options):
    """connect.c's argv for a side."""
    return [LAB.image.connect if is_adverb else "connect", side, "{host}", "--port", "{port}", *options]


def told(proc):
    """What a side was told: its output without times and without adverb's own words."""
    return [row for row in proc.output().split("\n") if row and not row.startswith(("after ", "adverb:"))]


def reference(room, name, scenario):
    """What two rxe's are told."""
    if (name, LAB.ip) not in REFERENCES:
        REFERENCES[name, LAB.ip] = between_two_rxes(room, scenario)
    return REFERENCES[name, LAB.ip]


def between_two_rxes(room, scenario):
    port, sides = str(room.port()), []

    def at_rxe(argv):
        return [word.format(host=lab.GUESTS[LAB.ip], port=port) for word in argv]

    if scenario.server is not None:
        sides.append(rxe(room, "reference-server", at_rxe(connect("--serve", False, scenario.server))))
        wait_cm_listening_in_guest(room, sides[0], int(port), SPACES[scenario.space])
    sides.append(rxe(room, "reference-client", at_rxe(connect("--to", False, scenario.client))))
    room.all_succeed(*sides)
    return [told(side) for side in sides]


def begin_other_server(room):
    """A process at adverb's address that listens on another port: without one nobody answers."""
    port, folder = room.port(), room.path("shared")
    argv = [word.format(host=LAB.host, port=port) for word in connect("--serve", True, [])]
    other = adverb(room, "other", argv, env={"ADVERB": f"directory={folder}"})
    room.wait_until("listener", lambda: alive(other) and listens(folder, LAB.host, TCP, port))


def same(name, scenario):
    """A case's function: both are told what two rxe's are."""

    def run(room, client_is_adverb):
        wanted_of_both = reference(room, name, scenario)
        client = connect("--to", client_is_adverb, scenario.client)
        if scenario.server is None:
            host = lab.GUESTS[LAB.ip] if client_is_adverb else lab.HOSTS[LAB.ip]
            if not client_is_adverb:
                begin_other_server(room)
            argv = [word.format(host=host, port=room.port()) for word in client]
            sides = [adverb(room, "client", argv) if client_is_adverb else rxe(room, "client", argv)]
        else:
            ends = begin(room, client_is_adverb, connect("--serve", not client_is_adverb, scenario.server), client,
                         scenario.space)
            sides = [ends.server, ends.client]
        room.all_succeed(*sides)
        for side, wanted in zip(sides, wanted_of_both):
            if told(side) != wanted:
                raise Fail(f"{side.label} was told\n  " + "\n  ".join(told(side)) + "\nand rxe is told\n  " + "\n  ".join(wanted))

    return run


def lost(message):
    """One message of a connection is lost, which its sender repeats 6.2 s later, or for which its answer's sender does.
    Both are told what they are without a loss."""
    name, by_client, place = LOST[message]
    told_the_same = same(name, SCENARIOS[name])

    def run(room, client_is_adverb):
        reference(room, name, SCENARIOS[name])
        if message == "drep" and not client_is_adverb:
            # The server has ended when it is asked again, and its address answers for it.
            begin_other_server(room)
        places = {"sent" if by_client == client_is_adverb else "received": [place]}
        room.cleanups.append(LAB.lose_none)
        LAB.lose(**places)
        before = guest_count("cm_tx_retries")
        told_the_same(room, client_is_adverb)
        if sum(LAB.lost()) != 1:
            raise Fail(f"{LAB.lost()} packets were lost, not one")
        counted = read_counters(room.path(("client" if client_is_adverb else "server") + ".counters"))
        repeats, by_rxe = counted["cm_repeats"], guest_count("cm_tx_retries") - before
        if repeats + by_rxe + counted["cm_implied"] == 0:
            raise Fail(f"nobody repeated a message: {counted}")
        room.note(f"adverb repeated {repeats}, rxe {by_rxe}")

    return run


def guest_count(which, message="*"):
    """What rxe's connection manager has counted, of one kind of message or of all."""
    return sum(map(int, LAB.in_guest(f"cat /sys/class/infiniband/rxe0/ports/1/{which}/{message}").split()))


def slow(room, client_is_adverb):
    """The listener takes 7 s: it is asked again after 6.2 s, and asks for patience in turn."""
    which = "cm_tx_msgs" if client_is_adverb else "cm_rx_msgs"
    reference(room, "slow", SLOW)
    before = guest_count(which, "mra")
    same("slow", SLOW)(room, client_is_adverb)
    if guest_count(which, "mra") == before:
        raise Fail("nobody asked for patience")


def unreachable(room, client_is_adverb):
    """Nobody is there: the client gives up after sixteen requests, 6.2 s apart."""
    host = lab.GUESTS[LAB.ip] if client_is_adverb else lab.HOSTS[LAB.ip]
    argv = [word.format(host=host, port=room.port()) for word in connect("--to", client_is_adverb, [])]
    client = adverb(room, "client", argv) if client_is_adverb else rxe(room, "client", argv)
    room.expect_success(client)
    require_text(client.output(), r"^UNREACHABLE -110 data 0/0 $", client.label)
    (took,) = require_text(client.output(), r"^after ([\d.]+) s: RDMA_CM_EVENT_UNREACHABLE", client.label).groups()
    if not 90 < float(took) < 110:
        raise Fail(f"it gave up after {took} s")
    room.note(f"after {took} s")


# -- stock programs --------------------------------------------------------------------------------------------------


def program(server, client, server_says=(), client_says=(), serves_for_ever=False, repeated=False, **how):
    """A case's function: a stock program's server and client, which end well and say so."""

    def run(room, client_is_adverb):
        require(server[0], client[0])
        before = guest_count("cm_tx_retries")
        ends = begin(room, client_is_adverb, server, client, **how)
        waited = [ends.client] if serves_for_ever else [ends.server, ends.client]
        room.all_succeed(*waited, excuse=channel_closed_under_it)
        for proc, patterns in ((ends.server, server_says), (ends.client, client_says)):
            for pattern in patterns:
                require_text(proc.output(), pattern, proc.label)
        if repeated:
            by_rxe = guest_count("cm_tx_retries") - before
            if not by_rxe:
                raise Fail("rxe repeated no message: nothing was shown")
            room.note(f"rxe repeated {by_rxe} messages")

    return run


def persistent(room, client_is_adverb):
    """A server that serves whoever comes, one after the other."""
    argv = ["rping", "-a", "{host}", "-p", "{port}", "-V", "-C", "10"]
    port = room.port()
    ends = begin(room, client_is_adverb, [*argv, "-s", "-P"], [*argv, "-c", "-v"], port=port)
    words = {"host": lab.GUESTS[LAB.ip] if client_is_adverb else lab.HOSTS[LAB.ip], "port": port}
    client = ends.client
    for number in range(5):
        room.all_succeed(client, excuse=channel_closed_under_it)
        require_text(client.output(), r"ping data: rdma-ping-9", client.label)
        if number < 4:
            again = [word.format(**words) for word in (*argv, "-c", "-v")]
            client = (adverb if client_is_adverb else rxe)(room, f"client-{number}", again)
    alive(ends.server)


def group(room, client_is_adverb):
    """Ten datagrams to a group of IPv4, of which the receiver's kernel is told by its rdma_cm."""
    require("mckey")
    argv = ["mckey", "-m", "239.1.1.1", "-C", "10", "-b"]
    joined = "grep -q 010101EF /proc/net/igmp"
    if client_is_adverb:
        receiver = rxe(room, "receiver", [*argv, lab.GUEST])
        await_in_guest(room, receiver, "the group", joined)
        sender = adverb(room, "sender", [*argv, lab.HOST, "-s"])
    else:
        receiver = adverb(room, "receiver", [*argv, lab.HOST])
        room.wait_until("group", lambda: alive(receiver) and "010101EF" in LAB.words("cat", "/proc/net/igmp"))
        sender = rxe(room, "sender", [*argv, lab.GUEST, "-s"])
    room.all_succeed(receiver, sender)
    for proc in (receiver, sender):
        require_text(proc.output(), r"^return status 0", proc.label)


def qperf(test):
    """qperf, whose connection's port its server tells over TCP. The server serves for ever."""

    def run(room, client_is_adverb):
        require("qperf")

        def server(_is_adverb, port, _host):
            return ["qperf", "-lp", str(port)]

        def client(_is_adverb, port, host):
            return ["qperf", host, "-lp", str(port), "-cm", "1", "-t", "1", test]

        ends = start(room, client_is_adverb, server, client)
        room.all_succeed(ends.client)
        require_text(ends.client.output(), r"^ +(latency|bw) +=", "qperf")

    return run


def no_datagram_sockets(room):
    """rdma-core's library makes no address handle for datagrams on rxe, so that its udpong reaches neither rxe nor adverb.
    When it does, there is something to run here."""
    require("udpong")
    port = room.port()
    bound = f":{port:04X} "
    servers = (rxe(room, "server", ["udpong", "-b", lab.GUEST, "-p", str(port), "-T", "b"]),
               adverb(room, "server", ["udpong", "-b", LAB.host, "-p", str(port), "-T", "b"]))
    await_in_guest(room, servers[0], "a socket", f"grep -q '{bound}' /proc/net/udp")
    room.wait_until("socket", lambda: alive(servers[1]) and bound in LAB.words("cat", "/proc/net/udp"))
    for host in (lab.GUEST, LAB.host):
        client = rxe(room, "client-" + host, ["udpong", "-s", host, "-p", str(port), "-T", "b", "-C", "10", "-S", "100"])
        if room.wait_exit(client) == 0:
            raise Fail("it ends well")
        require_text(client.output(), r"^rconnect: No such file or directory", client.label)


def both_ways(name, run, timeout=LIMIT_S, long=False, **how):
    for word, client_is_adverb in (("to-rxe", True), ("from-rxe", False)):

        def one(room, client_is_adverb=client_is_adverb):
            run(room, client_is_adverb)

        yield Case(f"interop/rdmacm-{name}/{word}", watched(one, **how), timeout, long)


SHORT = ("client-leaves", "server-leaves", "nobody", "rejected", "few-receives", "client-exits", "datagrams",
         "datagrams-rejected")
SLOW = Scenario(["--wait", "7", "--data", "late"], ["--leave"])
# In which scenario a message is lost, whether the client sends it, and its place among all that this side sends.
LOST = {
    "req": ("client-leaves", True, 0),
    "rep": ("client-leaves", False, 0),
    "rtu": ("client-leaves", True, 1),
    "dreq": ("timewait", True, 2),
    "drep": ("timewait", False, 1),
    "sidr-req": ("datagrams", True, 0),
    "sidr-rep": ("datagrams", False, 0),
}


def cases():
    for name, scenario in SCENARIOS.items():
        yield from both_ways(f"told-{name}", same(name, scenario), long=name not in SHORT)
        yield from both_ways(f"ipv6-told-{name}", same(name, scenario), long=True, ip=6)
    for message in LOST:
        to_rxe, from_rxe = both_ways(f"lost-{message}", lost(message), long=True, timeout=60)
        from_rxe.long = message != "rep"
        # Once a program has answered it, Linux gives it a repeated question as another one, which this one leaves be.
        yield from (from_rxe,) if message == "sidr-rep" else (to_rxe, from_rxe)
    yield from both_ways("slow", slow, long=True, timeout=40)
    yield from both_ways("unreachable", unreachable, long=True, timeout=150, lose=1, least=0)
    yield from stock()


def has_left(room, path):
    """Whether one side failed because the other, which had all that it wanted, had ended, and the network had lost its last
    acknowledgement: perftest's sides say nothing else to one another at the end."""
    statuses = {word: p.popen.poll() for word, p in both_sides(room).items()}
    failed = [word for word, status in statuses.items() if status != 0]
    if len(failed) != 1:
        return f"not one side alone failed: {statuses}"
    host, guest = LAB.packed()
    left, stayed = (guest, host) if failed == ["adverb"] else (host, guest)
    return farewell.last_acknowledgement_was_lost(path, left, stayed)


def stock():
    ends = (r"^return status 0",)
    for size in (64, 1000, 60000):
        argv = ["rping", "-a", "{host}", "-p", "{port}", "-V", "-v", "-C", "10", "-S", str(size)]
        run = program([*argv, "-s"], [*argv, "-c"], client_says=(r"ping data: rdma-ping-9",))
        yield from both_ways(f"rping-{size}B", run, long=size != 1000)
        yield from both_ways(f"ipv6-rping-{size}B", run, long=size != 1000, ip=6)
    # A packet that is lost behind all others costs 2.1 s.
    argv = ["rping", "-a", "{host}", "-p", "{port}", "-V", "-v", "-C", "10", "-S", "4000"]
    run = program([*argv, "-s"], [*argv, "-c"], client_says=(r"ping data: rdma-ping-9",))
    yield from both_ways("loss-rping", run, long=True, timeout=150, lose=10)
    yield from both_ways("rping-persistent", persistent, long=True)
    yield from both_ways("mckey", group, one_way=True)
    yield Case("interop/rdmacm-no-datagram-sockets", watched(no_datagram_sockets, least=0), LIMIT_S, long=True)
    for test in ("rc_lat", "rc_bw", "rc_rdma_read_bw"):
        yield from both_ways(f"qperf-{test}", qperf(test), long=True, timeout=40)
    argv = ["-p", "{port}", "-C", "50", "-S", "4000"]
    for suffix, more in {"": [], "-many": ["-c", "20"], "-migrate": ["-m"]}.items():
        run = program(["ucmatose", "-b", "{host}", *argv, *more], ["ucmatose", "-s", "{host}", *argv, *more], ends, ends)
        yield from both_ways(f"ucmatose{suffix}", run, long=bool(suffix))
        yield from both_ways(f"ipv6-ucmatose{suffix}", run, long=True, ip=6)
    argv = ["-C", "10", "-S", "1000"]
    run = program(["udaddy", "-b", "{host}", *argv], ["udaddy", "-s", "{host}", *argv], ends, ends, space=UDP,
                  port=FIXED_PORT)
    yield from both_ways("udaddy", run)
    yield from both_ways("ipv6-udaddy", run, ip=6, long=True)
    for name in ("rdma_client", "rdma_xclient"):
        server = name.replace("client", "server")
        run = program([server, "-p", "{port}"], [name, "-s", "{host}", "-p", "{port}"], (rf"{server}: end 0",),
                      (rf"{name}: end 0",))
        yield from both_ways(name, run, long=True)
    for name, more in {"rstream": ["-T", "b"], "riostream": ["-T", "b"]}.items():
        argv = [name, "-p", "{port}", "-T", "v", "-C", "50", "-I", "2", "-S", "4096", *more]
        run = program([*argv, "-b", "{host}"], [*argv, "-s", "{host}"], (r"^custom\s",), (r"^custom\s",))
        yield from both_ways(name, run, long=name != "rstream")
        yield from both_ways("ipv6-" + name, run, long=True, ip=6)
    argv = ["cmtime", "-p", "{port}", "-c", "50"]
    run = program([*argv, "-b", "{host}"], [*argv, "-s", "{host}"], client_says=(r"^destroy\s+:",), serves_for_ever=True)
    yield from both_ways("cmtime", run)
    run = program([*argv, "-b", "{host}"], [*argv, "-s", "{host}"], client_says=(r"^destroy\s+:",), serves_for_ever=True,
                  repeated=True)
    yield from both_ways("loss-cmtime", run, long=True, timeout=120, lose=5)
    for name, more in {"ib_write_bw": ["-s", "8192"], "ib_send_lat": ["-c", "UD", "-s", "1024"], "ib_read_lat": [],
                       "ib_atomic_bw": [], "ib_send_bw": ["-b", "-s", "8192"]}.items():
        argv = [name, "-R", "-F", "-p", "{port}", "-n", "50", *more]
        run = program(argv, [*argv, "{host}"], client_says=(r"^ \d+\s+\d+\s+[\d.]+\s+[\d.]+",))
        yield from both_ways(f"{name}-R", run, long=name not in ("ib_write_bw", "ib_send_lat", "ib_read_lat"),
                             timeout=40)
    argv = ["ib_write_bw", "-R", "-F", "-p", "{port}", "-n", "50", "-s", "8192"]
    run = program(argv, [*argv, "{host}"], client_says=(r"^ \d+\s+\d+\s+[\d.]+\s+[\d.]+",))
    yield from both_ways("loss-ib_write_bw-R", run, long=True, timeout=200, lose=50, bears=has_left)


def large_cases():
    return ()
