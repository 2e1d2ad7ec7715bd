"""Stock programs of rdma_cm, as Debian's rdmacm-utils ships them: connections, datagrams and rsockets, through shared
memory, UDP, with loss, with IRN."""

import glob
import os
import re
import signal
import struct

from harness import Case, Fail, Skip, compile_c, read_counters, require, require_text
from suite_switch import SERVER, VIA, Switch

NOTES = ("perftest's UC -R is not among them: rdma_cm makes connections of RC",)
TCP, UDP = 0x0106, 0x0111
LOSS = ("--loss", "0.01", "--seed", "5")
# How the two processes reach one another, and what happens to their packets.
ROUTES = {
    "shm": {},
    "udp": {"options": ("--path", "udp")},
    "two-addresses": {"client_address": "127.0.0.2"},
    "lossy": {"options": ("--path", "udp", *LOSS), "faulty": True},
    "irn": {"options": ("--path", "udp", "--transport", "irn", *LOSS), "faulty": True},
}
# For what sends too few packets for a loss to be sure, or datagrams, which nobody repeats.
CLEAN = ("shm", "udp", "two-addresses")
# The port that udaddy and mckey have written into them.
FIXED_PORT = 7174
ROW = 64
USED, LISTENS = 1 << 63, 1 << 36


def listens(folder, address, space, port):
    """Whether somebody listens on a port of rdma_cm: the table of ports of the address, in its shared folder."""
    for table in glob.glob(os.path.join(glob.escape(folder), f"*-{address}-v2", "ports")):
        with open(table, "rb") as f:
            rows = f.read()
        for at in range(0, len(rows) - 7, ROW):
            (key,) = struct.unpack_from("<Q", rows, at)
            if key & USED and key & LISTENS and key & 0xFFFFFFFF == (space << 16) + port:
                return True
    return False


def start(room, server, client, space=TCP, port=None, options=(), server_address="127.0.0.1", client_address=None,
          faulty=False, netns=(None, None)):
    """Starts both, the client when the server listens. `{port}` and `{server}` in their arguments are filled in."""
    del faulty
    require(server[0], client[0])
    port = port or room.port()
    words = {"port": str(port), "server": server_address}
    # A folder of its own, so that nothing is found there that somebody else left.
    folder = room.path("shared")
    env = {"ADVERB": f"directory={folder}"}
    procs = []
    addresses = server_address, client_address or server_address
    for side, argv, address, host in zip(("server", "client"), (server, client), addresses, netns):
        own = ("--counters", room.path(side + ".counters"), *options)
        procs.append(room.adverb(side, [word.format(**words) for word in argv], address=address, options=own, env=env,
                                 netns=host))
        if side == "server":
            room.wait_until("listener", lambda: alive(procs[0]) and listens(folder, server_address, space, port))
    return procs


def alive(proc):
    if proc.popen.poll() is not None:
        raise Fail(f"{proc.label} exited with {proc.popen.returncode} before it listened")
    return True


def expect_counters(room, faulty, sides=("server", "client")):
    """Messages of the connection manager went both ways; and where faults were asked for, some came."""
    sides = {side: read_counters(room.path(side + ".counters")) for side in sides}
    for side, counted in sides.items():
        if not counted.get("cm_sent") or not counted.get("cm_received"):
            raise Fail(f"the {side}'s connection manager sent {counted.get('cm_sent')} messages and received "
                       f"{counted.get('cm_received')}")
    faults = sum(value for counted in sides.values() for name, value in counted.items() if name.startswith("fault"))
    if faulty and faults == 0:
        raise Fail(f"no fault was counted: {sides}")


def case(name, server, client, server_says=(), client_says=(), timeout=30, routes=tuple(ROUTES), short=("shm", "lossy"),
         **how):
    """One for each route; `make test` has time for the short ones."""
    for route in routes:
        yield Case(f"rdmacm/{name}-{route}", runner(server, client, server_says, client_says, dict(how, **ROUTES[route])),
                   timeout, long=route not in short)


def runner(server, client, server_says, client_says, how):
    def run(room):
        sides = start(room, server, client, **how)
        room.all_succeed(*sides, excuse=channel_closed_under_it)
        for proc, patterns in zip(sides, (server_says, client_says)):
            for pattern in patterns:
                require_text(proc.output(), pattern, proc.label)
        # A program that two of its threads end at once may not come to writing them.
        expect_counters(room, how.get("faulty", False), who_counts(sides))

    return run


def channel_closed_under_it(proc):
    """rping's thread of events asks for the next one when the other has closed the channel, if it had no processor
    between acknowledging the last one and asking: it ends the process with its own words, whatever the NIC is. The
    channel's descriptor is none then, or has become another's, which has nothing to say."""
    said = proc.output()
    return (proc.popen.returncode == 255 and "DISCONNECT EVENT" in said and
            re.search("rdma_get_cm_event: (Bad file descriptor|Resource temporarily unavailable)$", said, re.M) is not None)


def who_counts(procs):
    """Those that wrote their counters when they ended: not who was ended by the other of its threads meanwhile."""
    return [proc.label for proc in procs if not channel_closed_under_it(proc)]


def lost_the_leave(proc):
    """perftest's sides take leave of each other by a last SEND over the connection, and end. Where its acknowledgement
    is lost nobody is left to repeat it, and that side fails after its measurement, as it does between adapters."""
    return proc.popen.returncode == 1 and "Bad wc status 12" in proc.output()


def pings(room):
    """rping's client prints each ping that came back, and both validate what is in it."""
    server, client = start(room, ["rping", "-s", "-a", "{server}", "-p", "{port}", "-C", "5", "-V", "-v"],
                           ["rping", "-c", "-a", "{server}", "-p", "{port}", "-C", "5", "-V", "-v"])
    room.all_succeed(server, client, excuse=channel_closed_under_it)
    for proc in (server, client):
        if len(re.findall(r"ping data: rdma-ping-\d", proc.output())) != 5:
            raise Fail(f"{proc.label} did not print five pings")


def refused(room):
    """Nobody listens: the client is told so at once."""
    require("rping")
    proc = room.adverb("client", ["rping", "-c", "-a", "127.0.0.1", "-p", str(room.port()), "-C", "1"])
    if room.wait_exit(proc) == 0:
        raise Fail("rping succeeded without a server")
    require_text(proc.output(), r"RDMA_CM_EVENT_REJECTED, error 8", "rping")


def many(room):
    """100 connections at once, set up and torn down. cmtime's server serves for ever."""
    argv = ["cmtime", "-p", "{port}", "-c", "100"]
    _, client = start(room, [*argv, "-b", "{server}"], [*argv, "-s", "{server}"])
    room.expect_success(client)
    require_text(client.output(), r"^destroy\s+:", "cmtime")
    counted = read_counters(room.path("client.counters"))
    if counted.get("cm_disconnected", 0) < 100:
        raise Fail(f"not 100 connections ended: {counted}")


def ten_thousand(way):
    """10,000 connections, 64 at a time: none is refused, though numbers of queue pairs come and go fast."""

    def run(room):
        binary = compile_c("connections", libraries=("rdmacm", "ibverbs"))
        argv = [binary, "rdma"]
        _, client = start(room, [*argv, "serve", "{server}", "{port}"],
                          [*argv, "connect", "{server}", "{port}", "10000", "64"], **ROUTES[way])
        room.expect_success(client)
        (krate,) = require_text(client.output(), r'^{"connections": 10000, "krate": ([\d.]+)', "connections").groups()
        expect_counters(room, False, sides=("client",))
        room.note(f"{krate} thousand a second")

    return run


# Where a client is killed, and in how many processes.
STAGES, KILLED_AT_EACH = ("asked", "answered", "up", "left", "ended"), 3


def dying(way):
    """Clients that are killed at each stage of a connection, with 16 under way: the server goes on, and its places for
    requests are not used up."""

    def run(room):
        binary = compile_c("connections", libraries=("rdmacm", "ibverbs"))
        argv = [binary, "rdma", "connect", "{server}", "{port}", "64", "16"]
        port, how = room.port(), ROUTES[way]
        server, client = start(room, [binary, "rdma", "serve", "{server}", "{port}"], argv, port=port, **how)
        room.expect_success(client)
        more = another(room, port, way)
        for stage in STAGES:
            for number in range(KILLED_AT_EACH):
                one = more(f"{stage} {number}", [*argv, stage])
                status = room.wait_exit(one)
                if status not in (-signal.SIGKILL, 128 + signal.SIGKILL):
                    raise Fail(f"{one.label} was to be killed, and exited with {status}")
        last = more("last", argv)
        room.expect_success(last)
        require_text(last.output(), r'^{"connections": 64, ', "connections")
        alive(server)

    return run


def another(room, port, way):
    """What starts another process beside those that `start` began."""
    address, env = ROUTES[way].get("client_address", "127.0.0.1"), {"ADVERB": f"directory={room.path('shared')}"}

    def begin(label, argv):
        argv = [word.format(server="127.0.0.1", port=port) for word in argv]
        return room.adverb(label, argv, address=address, options=ROUTES[way].get("options", ()), env=env)

    return begin


def restarted(way):
    """A listener that is killed is missed, and its port is the next one's."""

    def run(room):
        binary = compile_c("connections", libraries=("rdmacm", "ibverbs"))
        serve = [binary, "rdma", "serve", "{server}", "{port}"]
        argv = [binary, "rdma", "connect", "{server}", "{port}", "64", "16"]
        port = room.port()
        server, client = start(room, serve, argv, port=port, **ROUTES[way])
        more = another(room, port, way)
        for life in range(3):
            room.expect_success(client)
            server.kill()
            room.wait_exit(server)
            refused = more(f"refused {life}", argv)
            if room.wait_exit(refused) != 1:
                raise Fail(f"{refused.label} exited with {refused.popen.returncode}")
            require_text(refused.output(), r"^connection 0: RDMA_CM_EVENT_REJECTED, status 8$", refused.label)
            server = more(f"server {life}", serve)
            # By TCP too, when it can be asked; the dead one's row may stand in the table still.
            room.wait_listening(server, port)
            client = more(f"client {life}", argv)
        room.expect_success(client)

    return run


def calls(room):
    """What each call gives and each event has, to the number."""
    if not os.path.exists("/usr/include/rdma/rdma_cma.h"):
        raise Skip("rdma/rdma_cma.h is not installed (scripts/setup.sh installs librdmacm-dev)")
    binary = compile_c("cm_calls", libraries=("rdmacm", "ibverbs"))
    require_text(room.alone([binary, "127.0.0.1"]), r"^\d{3} checks, 0 failures", "cm_calls")


# Times as many runs, until what was to be shown has come about.
MOST_REPEATS = 10


def perftest(name, *more, repeats=1, least_kept=0, **how):
    """perftest -R connects twice. Its client does not survive a refusal, and may ask the second time before its server
    listens: of many runs, each ends well, and in some a request was kept for that. How seldom that is hangs on the host: it
    goes on until there were so many."""

    def run(room):
        kept = runs = 0
        while runs < repeats or (kept < least_kept and runs < MOST_REPEATS * repeats):
            runs += 1
            argv = [name, "-R", "-p", "{port}", *more]
            server, client = start(room, argv, [*argv, "{server}"], **how)
            room.all_succeed(server, client, excuse=lost_the_leave if how.get("faulty") else None)
            if server.popen.returncode and client.popen.returncode:
                raise Fail("both sides failed")
            # bw ends with a table whose last row has the size and the count, lat too.
            require_text(client.output(), r"^ \d+\s+\d+\s+[\d.]+\s+[\d.]+", name)
            expect_counters(room, how.get("faulty", False))
            kept += read_counters(room.path("server.counters"))["cm_kept"]
        if kept < least_kept:
            raise Fail("no request was kept for its listener: the case shows nothing")
        room.note(f"{kept} requests were kept for their listener, in {runs} runs")

    return run


def perftest_cases():
    rc = {"ib_write_bw": (), "ib_read_lat": (), "ib_send_lat": (), "ib_atomic_bw": (), "ib_write_bw -q 4": ("-q", "4")}
    for label, more in rc.items():
        name = label.split()[0]
        for route in ("shm", "lossy"):
            # A lost packet costs a timeout of 2.1 s, which is rdma_cm's.
            count = "60" if route == "lossy" else "500"
            yield Case(f"rdmacm/{label.replace(' ', '')}-R-{route}", perftest(name, "-n", count, *more, **ROUTES[route]), 60,
                       long=label != "ib_write_bw")
    # 1024 bytes and 400 of them, of which a receiver with 512 places loses none.
    datagrams = ("-c", "UD", "-s", "1024", "-n", "400")
    for name in ("ib_send_bw", "ib_send_lat"):
        for route in CLEAN:
            yield Case(f"rdmacm/{name}-R-ud-{route}", perftest(name, *datagrams, **ROUTES[route]), 60, long=route != "shm")
    yield Case("rdmacm/ib_send_bw-R-ud-20-runs", perftest("ib_send_bw", *datagrams, repeats=20, least_kept=1), 240)
    yield Case("rdmacm/ib_write_bw-R-20-runs", perftest("ib_write_bw", "-n", "500", repeats=20), 240, long=True)


def takes_udp(port):
    """Whether a socket of the kernel's UDP has a port, as a socket for datagrams has under its queue pair."""
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        with open(table) as f:
            if any(int(row.split()[1].rsplit(":", 1)[1], 16) == port for row in f.readlines()[1:]):
                return True
    return False


def udpong(*more, count=1000, size=1000, least_lost=0, options=(), faulty=False, **how):
    """Datagrams to a server, which counts them or sends each back; udpong prints how many its server had. The server
    serves for ever."""

    def run(room):
        require("udpong", "stdbuf")
        port = room.port()
        address = how.get("server_address", "127.0.0.1")
        client_address = how.get("client_address", address)
        server = room.adverb("server", ["stdbuf", "-oL", "udpong", "-b", address, "-p", str(port), *more], address=address,
                             options=("--counters", room.path("server.counters"), *options), env=how.get("env"))
        room.wait_until("socket", lambda: alive(server) and takes_udp(port))
        for attempt in range(3):
            # What is not back after 1 ms is sent again, but what came late has taken its place: where a server without
            # a processor lost the first, udpong waits for ever for a number that nobody saw.
            client = room.adverb(f"client {attempt}", ["timeout", "25", "udpong", "-s", address, "-p", str(port), "-C",
                                                       str(count), "-S", str(size), *more], address=client_address,
                                 options=("--counters", room.path("client.counters"), *options), env=how.get("env"))
            if "e" not in more or room.wait_exit(client) != 124:
                break
        room.expect_success(client)
        require_text(server.output(), rf"^client login from {re.escape(client_address)}$", "udpong")
        row = require_text(client.output(), r"^custom\s+\S+\s+([\d.]+)(k?)\s", "udpong")
        had = round(float(row.group(1)) * (1000 if row.group(2) else 1))
        counted = read_counters(room.path("client.counters"))
        if counted["tx_packets"] < count * 9 // 10:
            raise Fail(f"the NIC sent {counted['tx_packets']} packets of {count}: the others went by the kernel's UDP")
        if had == 0 or had > count * (2 if "e" in more else 1):
            raise Fail(f"the server had {had} datagrams of {count}")
        if faulty and (count - had < least_lost or not any(value for name, value in counted.items() if "fault" in name)):
            raise Fail(f"with loss the server had {had} datagrams of {count}, and the client counted {counted}")
        room.note(f"{had} of {count} came")

    return run


PRELOAD = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"


def moved(room, least, sides=("server", "client")):
    """Each side's NIC sent packets enough for that many bytes: they did not go by TCP."""
    for side in sides:
        counted = read_counters(room.path(side + ".counters"))
        if counted["qps_connected"] == 0 or counted["tx_packets"] < least // 4096:
            raise Fail(f"the {side}'s NIC sent {counted['tx_packets']} packets on {counted['qps_connected']} connections")
        room.note(f"{side} {counted['tx_packets']} packets")


def rstream(name, *more, size=10000, rounds=5, **how):
    """100 messages each way and round, checked byte by byte by both."""

    def run(room):
        argv = [name, "-p", "{port}", "-T", "v", "-C", "100", "-I", str(rounds), "-S", str(size), *more]
        sides = start(room, argv, [*argv, "-s", "{server}"], **how)
        room.all_succeed(*sides)
        for proc in sides:
            require_text(proc.output(), r"^custom\s", proc.label)
            if "failed" in proc.output():
                raise Fail(f"{proc.label} read other bytes than were written")
        expect_counters(room, how.get("faulty", False))
        moved(room, 100 * rounds * size)

    return run


def rcopy(room):
    """A file of 3 MB arrives as it is. rcopy's server serves for ever."""
    with open(room.path("source"), "wb") as f:
        f.write(os.urandom(3_000_001))
    _, client = start(room, ["rcopy", "-p", "{port}"],
                      ["rcopy", room.path("source"), "{server}:" + room.path("copy"), "-p", "{port}"],
                      options=("--path", "udp"))
    room.expect_success(client)
    with open(room.path("source"), "rb") as f, open(room.path("copy"), "rb") as g:
        if f.read() != g.read():
            raise Fail("the copy has other bytes")
    moved(room, 3_000_001, sides=("client",))


def iperf3(*more):
    """A program of TCP, given rsockets by rdma-core's library: select, sockets that do not block, two connections."""

    def run(room):
        if not os.path.exists(PRELOAD):
            raise Skip("librspreload.so is not installed (it comes with librdmacm1)")
        require("iperf3")
        preloaded = ["env", "LD_PRELOAD=" + PRELOAD, "iperf3", "-p", "{port}"]
        sides = start(room, [*preloaded, "-s", "-1"], [*preloaded, "-c", "{server}", "-n", "20M", *more])
        room.all_succeed(*sides)
        require_text(sides[1].output(), r"receiver", "iperf3")
        moved(room, 0)

    return run


def forked_server(room):
    """A server of TCP whose children serve, under librspreload with its support of forks: each child connects anew, and
    its bytes go by RDMA on both sides."""
    if not os.path.exists(PRELOAD):
        raise Skip("librspreload.so is not installed (it comes with librdmacm1)")
    binary, port, connections = compile_c("forking", libraries=()), room.port(), 3
    # The library's own lock between children, which a child that was killed leaves taken.
    lock = "/dev/shm/sem.rsocket_fork"
    if os.path.exists(lock):
        os.unlink(lock)
    preloaded = ["env", "LD_PRELOAD=" + PRELOAD, "RDMAV_FORK_SAFE=1", binary]
    expected = ("--expect-rdma", "--expect-bytes")
    server = room.adverb("server", [*preloaded, "serve", "127.0.0.1", str(port), str(connections)],
                         options=(*expected, str(connections * 2_000_000)))
    room.wait_listening(server, port)
    clients = [room.adverb(f"client {i}", [*preloaded, "ask", "127.0.0.1", str(port)], options=(*expected, "2000000"))
               for i in range(connections)]
    room.all_succeed(server, *clients)
    for client in clients:
        require_text(client.output(), r"^2000000 bytes came back", client.label)


def curl(room):
    """curl, with sockets that do not block and poll, fetches a file of 3 MB from a server of TCP: both by RDMA."""
    if not os.path.exists(PRELOAD):
        raise Skip("librspreload.so is not installed (it comes with librdmacm1)")
    require("curl")
    size, port, folder = 3_000_001, room.port(), room.path("shared")
    env = {"ADVERB": f"directory={folder}"}
    with open(room.path("file"), "wb") as f:
        f.write(os.urandom(size))
    preloaded, expected = ["env", "LD_PRELOAD=" + PRELOAD], ("--expect-rdma", "--expect-bytes")
    web = [*preloaded, compile_c("forking", libraries=()), "web", "127.0.0.1", str(port), room.path("file")]
    server = room.adverb("server", web, options=(*expected, str(size)), env=env)
    room.wait_until("listener", lambda: alive(server) and listens(folder, "127.0.0.1", TCP, port))
    ask = [*preloaded, "curl", "-sS", "-o", room.path("copy"), f"http://127.0.0.1:{port}/file"]
    client = room.adverb("client", ask, options=("--expect-rdma",), env=env)
    room.all_succeed(server, client)
    with open(room.path("file"), "rb") as f, open(room.path("copy"), "rb") as g:
        if f.read() != g.read():
            raise Fail("the copy has other bytes")


def calls_of_rsockets(room):
    """What each call gives and says, to the number: threads that wait, ends, addresses, options, what is refused."""
    if not os.path.exists("/usr/include/rdma/rsocket.h"):
        raise Skip("rdma/rsocket.h is not installed (scripts/setup.sh installs librdmacm-dev)")
    binary = compile_c("rsocket_calls", libraries=("rdmacm", "ibverbs", "pthread"))
    require_text(room.alone([binary, "127.0.0.1"]), r"^\d{2,} checks, 0 failures", "rsocket_calls")


def sizes_of_rsockets(room):
    """New sockets have the sizes of the files in /etc/rdma/rsocket, where a stream over them goes too."""
    require("unshare", "rstream")
    if os.geteuid():
        raise Skip("only root can mount a folder over /etc/rdma")
    if not os.path.isdir("/etc/rdma"):
        raise Skip("there is no /etc/rdma to mount over")
    binary = compile_c("rsocket_calls", libraries=("rdmacm", "ibverbs", "pthread"))
    usual = "send 131072 receive 131072 queues 384 384 inline 64 mappings 0"
    found = room.alone([binary, "127.0.0.1", "sizes"]) if not os.path.exists("/etc/rdma/rsocket") else usual
    require_text(found, "^" + usual, "rsocket_calls without files")
    files = {"mem_default": 65536, "wmem_default": 32768, "sqsize_default": 128, "rqsize_default": 96,
             "inline_default": 0, "iomap_size": 4, "polling_time": 3}
    for name, value in files.items():
        os.makedirs(room.path("etc/rsocket"), exist_ok=True)
        with open(room.path(f"etc/rsocket/{name}"), "w", encoding="utf-8") as f:
            f.write(f"{value}\n")
    script = 'mount --bind "$0" /etc/rdma && exec "$@"'
    said = room.adverb("sizes", ["unshare", "--mount", "sh", "-c", script, room.path("etc"), binary, "127.0.0.1", "sizes"])
    room.expect_success(said)
    other = "send 32768 receive 65536 queues 128 96 inline 0 mappings 4"
    require_text(said.output(), f"^{other}\n{other}$", "rsocket_calls")
    argv = ["unshare", "--mount", "sh", "-c", script, room.path("etc"), "rstream", "-T", "v", "-p", "{port}", "-S", "100000",
            "-C", "20", "-I", "5"]
    server, client = start(room, [*argv, "-b", "{server}"], [*argv, "-s", "{server}"])
    room.expect_success(server, client)


def udpong_via_switch(room):
    """Datagrams through a switch's port, where the kernel has the addresses too; where only the switch has them, a word."""
    require("udpong", "stdbuf", "timeout")
    switch = Switch(room)
    refused = room.adverb("refused", ["udpong", "-b", SERVER, "-T", "b"], address=SERVER, options=VIA, env=switch.env)
    if room.wait_exit(refused) == 0:
        raise Fail("udpong bound to an address that the kernel does not have")
    require_text(refused.output(), f"^adverb: a socket for datagrams needs .* no interface has {SERVER}$", "udpong")
    require_text(refused.output(), r"Cannot assign requested address", "udpong")
    before = switch.show()["counters"]["rx_frames"]
    udpong("-T", "b", client_address="127.0.0.2", options=VIA, env=switch.env)(room)
    went = switch.show()["counters"]["rx_frames"] - before
    if went < 900:
        raise Fail(f"{went} of 1000 datagrams came to the switch")
    room.note(f"{went} frames through the switch")


def answer_lost(room):
    """Who accepts says nothing to a peer that may not have the answer: where that is lost, its queue pair takes nothing
    until the answer is repeated, 6.1 s later, and who has sent has given up by then. A seed loses it at nearly every
    run."""
    for seed in range(524, 530):
        how = dict(ROUTES["irn"], options=("--path", "udp", "--transport", "irn", "--loss", "0.01", "--seed", str(seed)))
        rstream("rstream", "-T", "v", size=4000, **how)(room)
        counted = read_counters(room.path("server.counters"))
        if counted["cm_repeats"] + counted["cm_answered_again"] > 0:
            room.note(f"with seed {seed} the answer was lost")
            return
    raise Fail("no answer was lost: the case shows nothing")


def rsocket_cases():
    # A packet that is lost behind all others costs 0.54 s.
    short = (("", "shm"), ("-poll", "shm"), ("", "lossy"))
    for route, how in ROUTES.items():
        slow = {"rounds": 2} if how.get("faulty") else {}
        for suffix, more in {"": ["-T", "b"], "-poll": ["-T", "a"], "-spin": []}.items():
            yield Case(f"rdmacm/rstream{suffix}-{route}", rstream("rstream", *more, **slow, **how), 90,
                       long=(suffix, route) not in short)
    for route in ("shm", "udp", "lossy"):
        slow = {"rounds": 2} if route == "lossy" else {}
        yield Case(f"rdmacm/riostream-{route}", rstream("riostream", "-T", "b", **slow, **ROUTES[route]), 90,
                   long=route != "shm")
    yield Case("rdmacm/rcopy", rcopy, 60)
    for suffix, more in {"": [], "-reverse": ["-R"]}.items():
        yield Case(f"rdmacm/iperf3{suffix}", iperf3(*more), 60, long=bool(more))
    for route, how in ROUTES.items():
        # With loss it counts: see above.
        modes = {"": ["-T", "b"]} if how.get("faulty") else {"": ["-T", "b"], "-echo": ["-T", "e", "-T", "b"],
                                                            "-poll": ["-T", "e", "-T", "a"], "-spin": ["-T", "n"]}
        for suffix, more in modes.items():
            yield Case(f"rdmacm/udpong{suffix}-{route}",
                       udpong(*more, least_lost=5, count=100 if "e" in more else 1000, **how), 90,
                       long=route not in ("shm", "udp", "lossy") or suffix in ("-poll", "-spin"))
    yield Case("rdmacm/udpong-ipv6", udpong("-T", "e", "-T", "b", count=100, size=500, server_address="::1"), 90,
               long=True)
    yield Case("rdmacm/forked-server", forked_server, 60)
    yield Case("rdmacm/curl", curl, 30)
    yield Case("rdmacm/rsocket-calls", calls_of_rsockets, 60)
    yield Case("rdmacm/rstream-answer-lost", answer_lost, 90)
    yield Case("rdmacm/udpong-via", udpong_via_switch, 90)
    yield Case("rdmacm/rsocket-files", sizes_of_rsockets, 60)


RPING = (["rping", "-s", "-a", "{server}", "-p", "{port}", "-V"],
         ["rping", "-c", "-a", "{server}", "-p", "{port}", "-V", "-v"])
ENDS = (r"^return status 0",)


def cases():
    yield Case("rdmacm/rping-five", pings)
    yield Case("rdmacm/nobody-listens", refused)
    yield Case("rdmacm/calls", calls, timeout=60)
    server, client = RPING
    for way in ("shm", "udp"):
        yield Case(f"rdmacm/rping-ipv6-{way}", runner([*server, "-C", "50"], [*client, "-C", "50"], (), (),
                                                      {**ROUTES[way], "server_address": "::1"}))
    for suffix, more in {"": [], "-own-qp": ["-q"]}.items():
        # A lost packet costs a timeout of 2.1 s, which is rdma_cm's.
        yield from case(f"rping{suffix}", [*server, "-C", "50", *more], [*client, "-C", "50", *more],
                        client_says=(r"ping data: rdma-ping-49",), timeout=90, short=() if more else tuple(ROUTES))
    for suffix, more in {"": [], "-migrate": ["-m"], "-many": ["-c", "20"]}.items():
        argv = ["-p", "{port}", "-C", "200", "-S", "4000", *more]
        yield from case(f"ucmatose{suffix}", ["ucmatose", "-b", "{server}", *argv],
                        ["ucmatose", "-s", "{server}", *argv],
                        (r"completing sends", *ENDS), (r"receiving data transfers", *ENDS), timeout=60,
                        short=("shm",) if more else tuple(ROUTES))
    for suffix, more in {"": [], "-many": ["-c", "10"]}.items():
        argv = ["-C", "10", "-S", "1000", *more]
        # Datagrams that are lost are lost.
        yield from case(f"udaddy{suffix}", ["udaddy", "-b", "{server}", *argv], ["udaddy", "-s", "{server}", *argv],
                        ENDS, ENDS, space=UDP, port=FIXED_PORT, routes=CLEAN)
    yield from case("rdma_client", ["rdma_server", "-p", "{port}"], ["rdma_client", "-s", "{server}", "-p", "{port}"],
                    (r"rdma_server: end 0",), (r"rdma_client: end 0",), routes=CLEAN)
    yield from case("rdma_xclient", ["rdma_xserver", "-p", "{port}"],
                    ["rdma_xclient", "-s", "{server}", "-p", "{port}"],
                    (r"rdma_xserver: end 0",), (r"rdma_xclient: end 0",), routes=CLEAN)
    yield Case("rdmacm/cmtime", many, timeout=60)
    for way in CLEAN:
        yield Case(f"rdmacm/ten-thousand-{way}", ten_thousand(way), timeout=180, long=way != "shm")
        if way != "two-addresses":
            yield Case(f"rdmacm/restarted-listener-{way}", restarted(way), timeout=120, long=way != "shm")
        yield Case(f"rdmacm/dying-clients-{way}", dying(way), timeout=120, long=way != "shm")
    yield from perftest_cases()
    yield from rsocket_cases()
