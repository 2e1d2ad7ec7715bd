"""Unmodified programs on hosts of their own, network namespaces, that a switch connects. Either each host is on a cable of
it: frames, ARP and TCP of both cross its process, and no program knows of it. Or they come to it from another host, by its
address and token, and what RDMA has to say goes in that connection. Needs root, to make the namespaces."""

import json
import os
import shutil
import signal
import subprocess
import tempfile

from harness import ADVERB, Case, Fail, Skip, require, require_text
from suite_netns import HOSTS as WIRED, Wire, ip, make_namespaces
from suite_perftest import LOSSY_TIMEOUT, expect_results, program
from suite_switch import CAS, CLIENT, CONVERTED, ECN, LOSS, SERVER, Switch, atomics, expect_counted
from suite_utils import PINGPONGS, pingpong

HOSTS = ("10.99.1.1", "10.99.1.2")
PORT = '[[port]]\naddress = "{}"\ninterface = "port{}"\n'
MTU = 1500


class Wired:
    """Two hosts and a switch in three namespaces, gone when the room closes."""

    def __init__(self, room, text):
        *self.hosts, middle = make_namespaces(room, "abs")
        for n, (name, host) in enumerate(zip(self.hosts, HOSTS)):
            ip("link", "add", "veth0", "netns", name, "mtu", str(MTU), "type", "veth",
               "peer", "name", f"port{n}", "netns", middle)
            # A veth would carry several frames as one, which no wire does.
            ip("-n", name, "link", "set", "veth0", "gso_max_segs", "1")
            ip("-n", name, "addr", "add", host + "/24", "dev", "veth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "veth0", "up")
            ip("-n", middle, "link", "set", f"port{n}", "up")
        self.switch = Switch(room, "".join(PORT.format(host, n) for n, host in enumerate(HOSTS)) + text, netns=middle)

    def ends(self, **how):
        """What a pair needs to know to have its server at the first host and its client at the second."""
        return {"server_netns": self.hosts[0], "client_netns": self.hosts[1],
                "server_address": HOSTS[0], "client_address": HOSTS[1], **how}


def pair_case(name, argv, text="", rows=1, timeout=60, options=(), frames=20, then=None):

    def run(room):
        require(argv[0])
        wired = Wired(room, text)
        server, client = room.both_succeed(argv, **wired.ends(options=options))
        if rows:
            expect_results(client, rows)
        if "invalid data" in server.output() + client.output():
            raise Fail("a side received invalid data")
        shown, counters = wired.switch.show(), wired.switch.counters()
        if counters["rx_frames"] < frames:
            raise Fail(f"{counters['rx_frames']} frames came to the switch, not {frames}")
        for port in shown["ports"]:
            if port["cable"]["drop_unsegmented"] or port["cable"]["drop_queue_full"]:
                raise Fail(f"the cable lost frames: {port['cable']}")
        if then:
            then(counters)

    return Case(f"switch/netns-{name}", run, timeout)


class Far:
    """Two hosts on a wire. One has the switch, to which processes of both come over TCP, and programs' TCP goes past it."""

    def __init__(self, room, text=""):
        self.room = room
        self.wire = Wire(room, MTU)
        self.place = f"{WIRED[0]}:{room.port()}"
        self.token = room.path("token")
        with open(os.open(self.token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write("b3f1" * 16)
        listen = f'listen = "{self.place}"\ntoken = "{self.token}"\n'
        self.switch = Switch(room, listen + text, netns=self.wire.names[0])

    def options(self, token=None):
        return ("--via", self.place, "--via-token", token or self.token)

    def ends(self):
        server, client = self.wire.names
        return {"server_netns": server, "client_netns": client, "server_address": SERVER, "client_address": CLIENT,
                "host": WIRED[0], "env": self.switch.env, "options": self.options()}


def far_case(name, argv, text="", rows=1, timeout=60, counted=("tx_frames",)):

    def run(room):
        require(argv[0])
        far = Far(room, text)
        server, client = room.both_succeed(argv, **far.ends())
        if rows:
            expect_results(client, rows)
        if "invalid data" in server.output() + client.output():
            raise Fail("a side received invalid data")
        expect_counted(far.switch.counters(), *counted)

    return Case(f"switch/hosts-{name}", run, timeout)


def strangers(room):
    """Who has another token, or none, is refused in words; so is who wants an address of another host."""
    require("ibv_devinfo", "ib_send_bw")
    far = Far(room)
    here, there = far.wire.names
    wrong = room.path("wrong")
    with open(os.open(wrong, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write("c3f1" * 16)
    for options, said in [
        (far.options(wrong), "this switch has another token"),
        (("--via", far.place), "a switch of another host asks for its token"),
        (far.options("/dev/null"), "the token's file must be this user's"),
    ]:
        proc = room.adverb("stranger", ["ibv_devinfo"], address=CLIENT, options=options, netns=there, env=far.switch.env)
        room.wait_exit(proc)
        require_text(proc.output(), said, "the stranger")
    port = room.port()
    how = {"address": SERVER, "options": far.options(), "env": far.switch.env}
    first = room.adverb("first", [*program("send", "bw"), "-p", str(port)], netns=here, **how)
    room.wait_listening(first, port)
    second = room.adverb("second", ["ibv_devinfo"], netns=there, **how)
    room.wait_exit(second)
    require_text(second.output(), f"port 0 has the address {SERVER} for processes of another host", "the second host")


def killed(room):
    """The switch is killed and started again: processes of both hosts find it, and a validated pingpong goes on."""
    require("ibv_rc_pingpong")
    far = Far(room)
    argv = pingpong("rc", "-c", "-s", 8192, iterations=8000)
    server, client = room.pair(argv, argv, **far.ends())
    for _ in range(3):
        room.wait_until("frames", lambda: far.switch.show()["counters"]["tx_frames"] > 100)
        if client.popen.poll() is not None:
            raise Fail("the pair has ended before the switch was killed: nothing was shown")
        far.switch.proc.kill(signal.SIGKILL)
        room.wait_exit(far.switch.proc)
        far.switch.start()
    room.all_succeed(server, client)
    if "invalid data" in server.output() + client.output():
        raise Fail("a side received invalid data")
    far.switch.counters()


# A client's first tries may find nobody. The lossy pair takes leave of each other by TCP; a pingpong does not, and who
# loses the last acknowledgement of a peer that has ended fails by its retries, as it does between adapters.
LAB = """
cd "$0"
pair() {
    far=$1; shift
    nsenter --net=/run/netns/h1 "$ADVERB_BIN" run -- "$@" & server=$!
    until nsenter --net=/run/netns/h$far "$ADVERB_BIN" run -- "$@" 10.9.0.1 >client$far 2>&1
    do kill -0 $server || { cat client$far; exit 1; }; done
    cat client$far
    wait $server || exit 2
}
pair 2 ibv_rc_pingpong -g 0 -c -n 300
pair 3 ib_send_lat -F -n 300 -s 8192 -u 13
"$ADVERB_BIN" switch show --json >shown
exit 7
"""
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def namespaces():
    """This host's, by name."""
    return set(subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split())


def lab(room):
    """Three hosts of `adverb switch lab`, made by a user who is not root, and a lossy port; the command's status comes
    through, and nothing is left behind."""
    require("ibv_rc_pingpong", "ib_send_lat", "unshare", "nsenter", "setpriv", "ip")
    folder = tempfile.mkdtemp(prefix="adverb-lab-", dir="/dev/shm")
    room.cleanups.append(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.chmod(folder, 0o777)
    prefix = NOBODY if os.geteuid() == 0 else ()
    for what, argv in {"has no namespaces of its own here": ["unshare", "--user", "--map-root-user", "--net", "--mount", "true"],
                       "cannot reach this build's programs": ["test", "-x", ADVERB]}.items():
        if subprocess.run([*prefix, *argv], capture_output=True, check=False).returncode != 0:
            raise Skip(f"a user who is not root {what}")
    before = namespaces()
    file = os.path.join(folder, "lossy.toml")
    with open(file, "w") as f:
        f.write('[[port]]\naddress = "10.9.0.3"\nfaults = { loss = 0.02, seed = 7, direction = "tx" }\n')
    proc = room.spawn("lab", [*prefix, ADVERB, "switch", "lab", "--hosts", "3", file, "--", "sh", "-c", LAB, folder],
                      env={"ADVERB_BIN": ADVERB})
    room.wait_exit(proc)
    if proc.popen.returncode != 7:
        raise Fail(f"the command's status is 7, the lab's {proc.popen.returncode}")
    require_text(proc.output(), "300 iters in", "the pair without loss")
    expect_results(proc, 1)
    if "invalid data" in proc.output():
        raise Fail("a side received invalid data")
    with open(os.path.join(folder, "shown")) as f:
        shown = json.load(f)
    lost = [port["tx_faults"]["lost"] for port in shown["ports"]]
    if len(lost) != 3 or lost[:2] != [0, 0] or not lost[2]:
        raise Fail(f"ports lost {lost} frames")
    room.note(f"rx_frames {shown['counters']['rx_frames']}, lost {lost}")
    left = namespaces() - before
    if {"h1", "h2", "h3"} & left:
        raise Fail(f"namespaces are left: {left}")


def cases():
    yield Case("switch/lab", lab, 60)
    for kind in ("rc", "ud"):
        yield far_case(f"pingpong-{kind}", pingpong(kind, *(("-c",) if kind == "rc" else ())), rows=0)
    yield far_case("write-bw", program("write", "bw"))
    yield far_case("loss-write-bw", program("write", "bw", size=4096) + LOSSY_TIMEOUT, LOSS, timeout=120)
    yield far_case("atomic-bw-cas", atomics("bw"), CAS, counted=CONVERTED)
    yield Case("switch/hosts-strangers", strangers)
    yield Case("switch/hosts-killed", killed, 120)
    for operation in ("send", "write", "read", "atomic"):
        yield pair_case(f"{operation}-bw", program(operation, "bw"), frames=400)
    for kind in PINGPONGS:
        extra = ("-c",) if kind == "rc" else ()
        yield pair_case(f"pingpong-{kind}", pingpong(kind, *extra), rows=0)
    argv = program("write", "bw", size=4096) + LOSSY_TIMEOUT
    yield pair_case("loss-write-bw", argv, LOSS, timeout=120)
    yield pair_case("ecn-write-bw-dcqcn", program("write", "bw"), ECN, options=("--congestion", "dcqcn"),
                    then=lambda counters: expect_counted(counters, "ecn_marked"))
