"""Memcached's clients that know nothing of a NIC, against `adverb redn proxy`: gets by the hull's chain, whatever
becomes of the worker, and everything else by the worker."""

import importlib.util
import os
import re
import signal

from harness import ADVERB, HERE, Case, Fail, Skip, await_silence, compile_c, require, require_text

NOTES = ("needs libmemcached-tools (memccat, memccp, memcrm, memcstat) and python3-pymemcache",)

# Addresses of the hull's, the proxy's and a client's NIC.
HULL, PROXY, CLIENT = "127.0.0.21", "127.0.0.22", "127.0.0.23"


class Service:
    """A hull with its worker, and a proxy, each a process of its own."""

    def __init__(self, room, *options):
        self.room = room
        self.setup, self.port = room.port(), room.port()
        hull = [ADVERB, "redn", "serve", "--address", HULL, "--port", str(self.setup), "--calls-port", "0",
                "--memory", "4MB", "--keys", "1000", "--socket", room.path("socket"), *options]
        self.hull = room.spawn("hull", hull)
        self.worker = int(room.wait_output(self.hull, r"worker (\d+)\nset-up at .*\n").group(1))
        proxy = [ADVERB, "redn", "proxy", "--address", PROXY, "--server", f"{HULL}:{self.setup}",
                 "--memcached", f"127.0.0.1:{self.port}"]
        self.proxy = room.spawn("proxy", proxy)
        room.wait_output(self.proxy, "memcached's protocol at")

    @property
    def server(self):
        return f"--servers=127.0.0.1:{self.port}"

    def tool(self, label, *argv, status=0):
        """Runs one of libmemcached's programs; returns what it printed."""
        proc = self.room.spawn(label, [argv[0], self.server, *argv[1:]])
        found = self.room.wait_exit(proc)
        if found != status:
            raise Fail(f"{argv[0]} ended with {found}, not {status}")
        return proc.output()

    def kill_worker(self):
        """Kills the worker, and waits until the hull has heard of it."""
        os.kill(self.worker, signal.SIGKILL)
        self.room.wait_output(self.hull, f"worker {self.worker} has ended")

    def client(self):
        if importlib.util.find_spec("pymemcache") is None:
            raise Skip("python3-pymemcache is not installed")
        from pymemcache.client.base import Client

        return Client(("127.0.0.1", self.port), timeout=10)


def tools(room):
    require("memccat", "memccp", "memcrm", "memcstat")
    service = Service(room)
    with open(room.path("greeting"), "w", encoding="ascii") as f:
        f.write("hello from a file\n")
    service.tool("set", "memccp", room.path("greeting"))
    require_text(service.tool("get", "memccat", "greeting"), "^hello from a file$", "memccat")
    service.kill_worker()
    require_text(service.tool("get-dead", "memccat", "greeting"), "^hello from a file$", "memccat without a worker")
    require_text(service.tool("stat", "memcstat"), r"worker_answers: 0", "memcstat")


def remove(room):
    require("memccat", "memccp", "memcrm")
    service = Service(room)
    with open(room.path("gone"), "w", encoding="ascii") as f:
        f.write("soon")
    service.tool("set", "memccp", room.path("gone"))
    service.tool("remove", "memcrm", "gone")
    if "soon" in service.tool("get", "memccat", "gone", status=1):
        raise Fail("a key that was removed is there")


def pymemcache(room):
    service = Service(room)
    client = service.client()
    values = {f"key{n}": os.urandom(n * n) for n in range(100)}
    for key, value in values.items():
        if not client.set(key, value, noreply=False):
            raise Fail(f"{key} is not stored")
    check(client.get_many(list(values)), values, "get_many")
    check(client.get("key7"), values["key7"], "get")
    check(client.get("nobody's"), None, "get of what is not there")
    check(client.add("key7", b"x", noreply=False), False, "add of what is there")
    check(client.replace("key7", b"other", noreply=False), True, "replace")
    check(client.get("key7"), b"other", "get of what was replaced")
    value, version = client.gets("key7")
    check(client.cas("key7", b"third", version, noreply=False), True, "cas")
    check(client.cas("key7", b"fourth", version, noreply=False), False, "cas with an old version")
    check(client.get("key7"), b"third", "get of what cas stored")
    check(client.delete("key7", noreply=False), True, "delete")
    check(client.get("key7"), None, "get of what was deleted")
    check(client.set("brief", b"x", expire=-1, noreply=False), True, "set of what has ended already")
    check(client.get("brief"), None, "get of what has ended")
    stats = client.stats()
    if int(stats[b"proxy_gets"]) < 100 or int(stats[b"cmd_get"]) > 2:
        raise Fail(f"gets were not made by the chain: {stats}")


def check(found, expected, what):
    if found != expected:
        raise Fail(f"{what}: {found!r}, not {expected!r}")


def without_worker(room):
    """Gets while the worker is stopped, dead, and there again; sets fail with a reason, and work afterwards."""
    from_pid = re.compile(r"worker (\d+) serves")
    service = Service(room, "--respawn", "2s")
    client = service.client()
    from pymemcache.exceptions import MemcacheServerError

    def refused():
        try:
            client.set("key", b"lost", noreply=False)
        except MemcacheServerError:
            return
        raise Fail("a set succeeded without a worker")

    client.set("key", b"value", noreply=False)
    os.kill(service.worker, signal.SIGSTOP)
    await_silence(lambda pid, _: pid == service.worker)
    for _ in range(500):
        check(client.get("key"), b"value", "get while the worker is stopped")
    refused()
    os.kill(service.worker, signal.SIGCONT)
    # What nobody waits for any more is not done when it goes on.
    client.set("other", b"x", noreply=False)
    check(client.get("key"), b"value", "get after it went on")
    client.set("key", b"second", noreply=False)
    check(client.get("key"), b"second", "get after it was set")
    service.kill_worker()
    # At once: gets may take a busy host longer than its successor does.
    refused()
    for _ in range(500):
        check(client.get("key"), b"second", "get while the worker is dead")
    room.wait_output(service.hull, from_pid.pattern)
    check(client.get("key"), b"second", "get from the table that was kept")
    client.set("key", b"third", noreply=False)
    check(client.get("key"), b"third", "get of what its successor stored")


def hull_gone(room):
    """A proxy without a hull says so and ends, instead of answering from nothing."""
    service = Service(room)
    service.hull.kill()
    if room.wait_exit(service.proxy) == 0:
        raise Fail("the proxy ended well")
    require_text(service.proxy.output(), "the hull has ended", "the proxy")


def raw(room):
    """What the protocol allows that no client library sends."""
    import socket

    service = Service(room)
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as s:
        f = s.makefile("rwb")

        def asks(text, answer):
            f.write(text)
            f.flush()
            for line in answer.splitlines(keepends=True):
                check(f.readline(), line, repr(text))

        asks(b"set a 5 0 3\r\nabc\r\nset b 6 0 2 noreply\r\nde\r\nget a b c\r\n",
             b"STORED\r\nVALUE a 5 3\r\nabc\r\nVALUE b 6 2\r\nde\r\nEND\r\n")
        asks(b"set a 0 0 3\r\nabcdef\r\nget a\r\n", b"CLIENT_ERROR bad data chunk\r\nVALUE a 5 3\r\nabc\r\nEND\r\n")
        asks(b"append a 0 0 3\r\nxyz\r\n", b"SERVER_ERROR append is not supported\r\n")
        asks(b"incr a 1\r\n", b"SERVER_ERROR incr is not supported\r\n")
        asks(b"frobnicate\r\n", b"ERROR\r\n")
        asks(b"set a 0 0 100000\r\n" + b"x" * 100000 + b"\r\n", b"SERVER_ERROR object too large for cache\r\n")
        asks(b"get " + b"k" * 251 + b"\r\n", b"CLIENT_ERROR bad command line format\r\n")
        big = b"y" * 65528
        asks(b"set big 0 0 65528\r\n" + big + b"\r\n", b"STORED\r\n")
        asks(b"get big\r\n", b"VALUE big 0 65528\r\n" + big + b"\r\nEND\r\n")
        asks(b"flush_all\r\nget a big\r\n", b"OK\r\nEND\r\n")
        asks(b"quit\r\n", b"")
        check(f.read(), b"", "after quit")


def in_c():
    return [compile_c("redn_get", libraries=("ibverbs",))]


def in_python():
    if importlib.util.find_spec("pyverbs") is None:
        raise Skip("python3-pyverbs is not installed (scripts/setup.sh installs it)")
    return ["/usr/bin/python3", os.path.join(HERE, "redn_get.py")]


def verbs(program, options=()):
    """A client in plain verbs, which knows the exchange from docs/redn.md only."""

    def run(room):
        service = Service(room)
        client = service.client()
        for n in range(20):
            client.set(f"key{n}", b"value %d" % n, noreply=False)
        argv = [*program(), HULL, str(service.setup), CLIENT, *(f"key{n}" for n in range(20)), "nobody"]
        expected = "".join(f"key{n} value {n}\n" for n in range(20)) + "nobody -\n"
        for label in ("alive", "dead"):
            proc = room.adverb(label, argv, address=CLIENT, options=options)
            room.expect_success(proc)
            if not proc.output().endswith(expected):
                raise Fail(f"the client with its worker {label} got something else")
            if label == "alive":
                service.kill_worker()

    return run


def cases():
    yield Case("memcached/verbs", verbs(in_c))
    yield Case("memcached/pyverbs", verbs(in_python))
    yield Case("memcached/verbs-loss", verbs(in_c, ("--path", "udp", "--loss", "0.02", "--seed", "5")))
    yield Case("memcached/tools", tools)
    yield Case("memcached/remove", remove)
    yield Case("memcached/pymemcache", pymemcache)
    yield Case("memcached/without-worker", without_worker, timeout=60)
    yield Case("memcached/hull-gone", hull_gone)
    yield Case("memcached/raw", raw)
