"""The two sides of a case, either of them client or server: adverb in the lab's namespace, rxe in the guest.

Every case runs under `watched`: the guest's tap is captured from before its first packet until after its last, and
each frame of the capture, adverb's and rxe's, must have a right ICRC.
"""

import ipaddress
import os
import shlex
import shutil
import signal
import time

import icrc
import lab
from captures import expect_sound
from harness import WORK, Case, Fail, read_counters

TIMEOUT_S = 30
IPV6_HEADER = 40
UDP_HEADER = 8
LISTEN_S = 15
# Recordings of cases that failed.
KEPT = os.path.join(WORK, "kept")
KEPT_MAX = 20
# The lab that the cases run in, booted by the runner.
LAB = lab.Lab()
# Booted by the first case that wants it.
SECOND = lab.Lab(lab.SECOND)


class Ends:
    """A running server and client, and which of them is adverb's."""

    def __init__(self, server, client):
        self.server = server
        self.client = client


def adverb(room, label, argv, options=(), env=None):
    counters = room.path(label + ".counters")
    return room.adverb(f"{label}-adverb", argv, address=LAB.host, netns=LAB.netns, env=env,
                       options=("--trace", "--counters", counters, *options))


def rxe(room, label, argv, guest=LAB):
    return room.spawn(f"{label}-rxe", guest.guest_argv("exec " + shlex.join(argv)))


def wait_listening_in_guest(room, server, port):
    """Waits until something in the guest listens on the port. It does not connect: programs accept once only."""
    row = f":{port:04X} [0-9A-F]*:0000 0A"
    await_in_guest(room, server, f"a listener on port {port}", f"cat /proc/net/tcp /proc/net/tcp6 | grep -q '{row}'")


def wait_cm_listening_in_guest(room, server, port, space="TCP"):
    """The same for a port of rdma_cm, in one of its spaces."""
    row = f"state LISTEN ps {space} .* src-addr [^ ]*:{port} "
    await_in_guest(room, server, f"a listener on port {port}", f"rdma resource show cm_id | grep -q '{row}'")


def await_in_guest(room, server, what, shows):
    """Waits until a command in the guest shows what a server does there, as long as the server runs."""
    command = (f"i=0; until {shows}; do i=$((i+1)); [ $i -gt {LISTEN_S * 50} ] && exit 1; usleep 20000; done")
    waiter = room.spawn(server.label + "-listens", LAB.guest_argv(command))

    def shown():
        if server.popen.poll() is not None:
            raise Fail(f"{server.label} exited with {server.popen.returncode} before there was {what}")
        return waiter.popen.poll() is not None

    room.wait_until(f"{what} in the guest", shown)
    if waiter.popen.returncode != 0:
        raise Fail(f"{server.label}: there was not {what} within {LISTEN_S} s")
    # What only waits says nothing of the case.
    room.procs.remove(waiter)


def start(room, client_is_adverb, server, client, label="", options=(), env=None):
    """Starts a server, waits until it listens, starts the client towards it. `server` and `client` make an argv of
    (is_adverb, port, host), with no host for the server. Returns the running ends."""
    port = room.port()
    if client_is_adverb:
        s = rxe(room, label + "server", server(False, port, None))
        wait_listening_in_guest(room, s, port)
        c = adverb(room, label + "client", client(True, port, lab.GUEST), options, env)
    else:
        s = adverb(room, label + "server", server(True, port, None), options, env)
        room.wait_listening(s, port)
        c = rxe(room, label + "client", client(False, port, lab.HOST))
    return Ends(s, c)


def counters_text(room):
    """The NIC's counters that are not zero, for a failure."""
    rows = []
    for name in sorted(os.listdir(room.dir)):
        if name.endswith(".counters"):
            values = read_counters(room.path(name))
            rows.append(name + ": " + " ".join(f"{k}={v}" for k, v in values.items() if v))
    return "\n".join(rows)


class Sent:
    """What a capture holds of an end, by its addresses: frames, those with an IPv4 identification, those without a UDP
    checksum."""

    def __init__(self, path, *sources):
        addresses = [ipaddress.ip_address(source).packed for source in sources]
        self.frames = self.identified = self.unsummed = 0
        for frame in icrc.frames(path):
            found = icrc.roce_datagram(frame)
            if found is None:
                continue
            ip, udp = found
            source_field = ip[8:24] if udp == IPV6_HEADER else ip[12:16]
            if source_field not in addresses:
                continue
            self.frames += 1
            self.identified += udp != IPV6_HEADER and ip[4:6] != b"\0\0"
            self.unsummed += ip[udp + 6 : udp + 8] == b"\0\0"


def opcodes(path, source):
    """Of the RoCE frames of a capture that come from an address: how many have each opcode."""
    found = {}
    for frame in icrc.frames(path):
        datagram = icrc.roce_datagram(frame)
        if datagram is None:
            continue
        ip, udp = datagram
        if (ip[8:24] if udp == IPV6_HEADER else ip[12:16]) == ipaddress.ip_address(source).packed:
            opcode = ip[udp + UDP_HEADER]
            found[opcode] = found.get(opcode, 0) + 1
    return found


def both_sides(room):
    """adverb's process and rxe's of a case that has one of each, by "adverb" and "rxe"."""
    return {word: p for p in room.procs for word in ("adverb", "rxe") if p.label.endswith("-" + word)}


def kept(path, name):
    """A copy of a failed case's recording that no other run of it overwrites; the oldest go."""
    os.makedirs(KEPT, exist_ok=True)
    copy = os.path.join(KEPT, f"{time.time_ns() // 10**9}-{os.getpid()}-{name.replace('/', '_')}.pcap")
    shutil.copyfile(path, copy)
    for old in sorted(os.listdir(KEPT))[:-KEPT_MAX]:
        os.remove(os.path.join(KEPT, old))
    return copy


def watched(run, least=1, one_way=False, mtu=lab.MTU, lose=0, segmented=0, dissect=False, ip=4, look=None, bears=None,
            also=()):
    """A case's function: runs `run` on a way of the MTU over a version of IP, loses about every `lose`-th packet in
    each direction, captures. At least `least` frames must have passed each way (`one_way`:
    one of the ways); at least `segmented` of adverb's must have been cut out of a larger datagram by the kernel.
    `dissect` has tshark read all of them too, and `look` is given the file. The guest's frames come from `also` too. Where
    `run` fails, `bears` is given room and file: it returns None if that was the programs' own race, which is said, and else
    why it was not."""

    def case(room):
        LAB.set_mtu(mtu)
        LAB.ip = ip
        path = room.path("tap.pcap")
        capture = room.spawn("capture", LAB.capture_argv(path))
        room.wait_output(capture, "^capturing")
        if lose:
            room.cleanups.append(LAB.lose_none)
            LAB.lose_every(lose)
        is_borne = False
        try:
            try:
                run(room)
            except Fail as e:
                end(capture)
                why = bears(room, path) if bears else "nothing is borne"
                if why is not None:
                    raise Fail(f"{e}\n{why}") from None
                is_borne = True
                room.note(f"borne: {e}; {kept(path, room.case.name)}")
            end(capture)
            check(room, path)
            if look and not is_borne:
                look(path)
        except Fail as e:
            end(capture)
            copy = kept(path, room.case.name)
            raise Fail(f"{e}\ncapture: {copy}\n{LAB.counted()}\n{counters_text(room)}") from None
        os.remove(path)

    def end(capture):
        """Ends it with all that has passed, though the case's time be over."""
        capture.kill(signal.SIGTERM)
        if capture.popen.wait(timeout=LISTEN_S) != 0:
            raise Fail(f"the capture exited with {capture.popen.returncode}")

    def check(room, path):
        right, wrong = icrc.count(path)
        if wrong:
            raise Fail(f"{wrong} frames with a wrong ICRC, {right} with a right one")
        sent, received = Sent(path, lab.HOSTS[ip]), Sent(path, lab.GUESTS[ip], *also)
        if (max if one_way else min)(sent.frames, received.frames) < least:
            raise Fail(f"{sent.frames} frames from adverb, {received.frames} from rxe, not {least}")
        if sent.frames + received.frames != right:
            raise Fail(f"{right - sent.frames - received.frames} frames came from other addresses")
        if sent.identified < segmented:
            raise Fail(f"the kernel cut {sent.identified} frames out of larger datagrams, not {segmented}: "
                       "nothing was shown")
        # What a socket refuses unless it is told otherwise; were it not so, nothing would be shown.
        if ip == 6 and received.unsummed != received.frames:
            raise Fail(f"rxe set the UDP checksum of {received.frames - received.unsummed} frames")
        if dissect:
            expect_sound(path, least)
        if lose and not any(LAB.lost()):
            raise Fail("no packet was lost: nothing was shown")

    return case


def both_ways(name, run, timeout=TIMEOUT_S, **how):
    """Two cases: adverb as the client of an rxe server, and as the server of an rxe client."""
    for word, client_is_adverb in (("to-rxe", True), ("from-rxe", False)):

        def one(room, client_is_adverb=client_is_adverb):
            run(room, client_is_adverb)

        yield Case(f"interop/{name}/{word}", watched(one, **how), timeout)
