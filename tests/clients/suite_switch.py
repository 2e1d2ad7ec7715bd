"""Unmodified programs through the process of a switch, whose addresses no interface has and which needs no root: what it
forwards, marks, trims and decides, loss on its ports, and its end by SIGKILL under load. Every case says what the switch
counted. What a case is about must have happened: atomics that the switch decided, packets that it marked."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile

from harness import ADVERB, Case, Fail, compile_c, read_counters, require, require_text
from suite_perftest import LOSSY_TIMEOUT, expect_results, program
from suite_utils import PINGPONGS, pingpong

SERVER, CLIENT = "10.9.0.1", "10.9.0.2"
VIA = ("--via", "sw0")
DECIDES = f'[[program]]\nkind = "cas_to_write"\nserver = "{SERVER}"\n'
# A word is the server's for a packet's life after the switch has first heard of it. These programs send eight times at most,
# 67 ms apart.
CAS = DECIDES + "life-us = 700000\n"
ECN = '[[program]]\nkind = "ecn"\nevery = 20\n'
LOSS = "[faults]\nloss = 0.01\nseed = 7\n"
# Whoever waits for a word whose last change was lost waits until that is sent again.
PATIENT = "hold-us = 200000\n"
CONVERTED = ("cas_granted", "cas_refused", "fetch_added")
STATED = (*CONVERTED, "held", "atomics_passed", "de_coalesced")
ATOMICS = {"fetch-add": "FETCH_AND_ADD", "cas": "CMP_AND_SWAP"}
# Times that a switch is killed under load, in make test and in make test-long, and how long it is away each time.
KILLS, MANY_KILLS = 3, 100
AWAY_S, LOADED_S = 0.1, 0.3


class Switch:
    """A switch's process, in a folder of its own: what runs on this host otherwise does not see it."""

    def __init__(self, room, text="", netns=None):
        self.room = room
        self.prefix = ["ip", "netns", "exec", netns] if netns else []
        self.folder = tempfile.mkdtemp(prefix="adverb-switch-", dir="/dev/shm")
        room.cleanups.append(lambda: shutil.rmtree(self.folder, ignore_errors=True))
        self.env = {"ADVERB": f"directory={self.folder}"}
        self.file = room.path("switch.toml")
        with open(self.file, "w") as f:
            f.write(text)
        self.lives = 0
        self.start()

    def start(self):
        self.lives += 1
        self.proc = self.room.spawn(f"switch{self.lives}", [*self.prefix, ADVERB, "switch", "run", self.file], env=self.env)
        self.room.wait_output(self.proc, "^ports: ")

    def ask(self, *words):
        """What `adverb switch` prints."""
        argv = [ADVERB, "switch", *words]
        done = subprocess.run(argv, env=dict(os.environ, **self.env), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fail(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout

    def show(self):
        return json.loads(self.ask("show", "--json"))

    def ends(self, options=(), **how):
        """What a pair needs to know to have this switch between its ends. Its first words go over TCP, past it."""
        return {"server_address": SERVER, "client_address": CLIENT, "host": "127.0.0.1", "env": self.env,
                "options": (*VIA, *options), **how}

    def counters(self):
        """What it has counted, said in the case's line, too. No frame may have come under a false address, or have had
        nowhere to go while the programs ran."""
        counters = self.show()["counters"]
        self.say(counters)
        for name in ("drop_parse", "drop_source"):
            if counters[name]:
                raise Fail(f"{name} is {counters[name]}")
        return counters

    def say(self, counters):
        names = ("rx_frames", "ecn_marked", "trimmed", *STATED)
        always = ("rx_frames", *STATED) if any(counters[name] for name in STATED) else ("rx_frames",)
        self.room.note(", ".join(f"{name} {counters[name]}" for name in names if counters[name] or name in always))


def expect_counted(counters, *names):
    if not any(counters[name] for name in names):
        raise Fail(f"none of {', '.join(names)} was counted: nothing was shown")


def pair_case(name, argv, text="", rows=1, timeout=60, options=(), frames=20, then=None):
    """A pair that must end well. `frames` is what must have come to the switch at least; `then` looks at its counters."""

    def run(room):
        require(argv[0])
        switch = Switch(room, text)
        ends = switch.ends(options)
        for side in ("server", "client"):
            ends[side + "_options"] = (*ends["options"], "--counters", room.path(side + ".counters"))
        server, client = room.both_succeed(argv, **ends)
        if rows:
            expect_results(client, rows)
        if "invalid data" in server.output() + client.output():
            raise Fail("a side received invalid data")
        counters = switch.counters()
        if counters["rx_frames"] < frames or not counters["tx_frames"]:
            raise Fail(f"{counters['rx_frames']} frames came to the switch, not {frames}: the pair went past it")
        if then:
            then(room, counters)

    return Case(f"switch/{name}", run, timeout)


def forwarded():
    for operation in ("send", "write", "read", "atomic"):
        for kind in ("bw", "lat"):
            yield pair_case(f"forward-{operation}-{kind}", program(operation, kind), frames=400)
    yield pair_case("forward-send-bw-ud", program("send", "bw", "UD"), frames=200)
    yield pair_case("forward-write-bw-uc", program("write", "bw", "UC"), frames=200)
    yield pair_case("forward-write-bw-4-qps", program("write", "bw", "RC", ["-q", 4], iterations=50), frames=400)
    yield pair_case("forward-send-bw-bidirectional", program("send", "bw", "RC", ["-b"]), frames=400)
    for kind in PINGPONGS:
        extra = ("-c",) if kind == "rc" else ()
        yield pair_case(f"forward-pingpong-{kind}", pingpong(kind, *extra), rows=0)


def lossy():
    for operation in ("send", "write", "read", "atomic"):
        for kind in ("bw", "lat"):
            argv = program(operation, kind, size=4096) + LOSSY_TIMEOUT
            yield pair_case(f"loss-{operation}-{kind}", argv, LOSS, timeout=120)


def marked():
    def notified(room, counters):
        expect_counted(counters, "ecn_marked")
        receiver, sender = (read_counters(room.path(side + ".counters")) for side in ("server", "client"))
        marks = receiver["ecn_marked"] + sender["ecn_marked"]
        if not 0 < marks <= counters["ecn_marked"] or not sender["cnp_handled"]:
            raise Fail(f"{counters['ecn_marked']} marks of the switch, {marks} at the two ends, and "
                       f"{sender['cnp_handled']} cuts of the sender's rate")

    def unmarked(_room, counters):
        if counters["ecn_marked"]:
            raise Fail("packets were marked that are not ECN-capable")

    dcqcn = ("--congestion", "dcqcn")
    yield pair_case("ecn-write-bw-dcqcn", program("write", "bw"), ECN, options=dcqcn, then=notified)
    yield pair_case("ecn-send-bw-dcqcn", program("send", "bw"), ECN, options=dcqcn, then=notified)
    yield pair_case("ecn-write-bw-without-control", program("write", "bw"), ECN, then=unmarked)
    trim = '[[program]]\nkind = "trim"\nevery = 50\n'
    argv = program("write", "bw") + LOSSY_TIMEOUT
    yield pair_case("trim-write-bw", argv, trim, then=lambda _room, counters: expect_counted(counters, "trimmed"))


def converted(_room, counters):
    expect_counted(counters, *CONVERTED)
    expect_counted(counters, "answered")


def atomics(kind, operation="FETCH_AND_ADD", seconds=2, extra=()):
    return [f"ib_atomic_{kind}", "-F", "-A", operation, "-D", str(seconds), *map(str, extra)]


def decided():
    """Atomics that the switch decides. What it may not convert, the first ones of a word, passes."""
    for name, operation in ATOMICS.items():
        for kind in ("bw", "lat"):
            yield pair_case(f"cas-{name}-{kind}", atomics(kind, operation), CAS, frames=2000, then=converted)
        argv = atomics("bw", operation, 3, LOSSY_TIMEOUT)
        yield pair_case(f"cas-{name}-bw-loss", argv, LOSS + CAS, timeout=120, then=converted)
    yield pair_case("cas-fetch-add-bw-4-qps", atomics("bw", extra=["-q", 4]), CAS, then=converted)
    yield pair_case("cas-fetch-add-bw-usual-life", atomics("bw", seconds=3), DECIDES, then=converted)
    for operation in ("send", "write", "read"):
        yield pair_case(f"cas-untouched-{operation}-bw", program(operation, "bw"), DECIDES, frames=400)
    yield pair_case("cas-and-ecn", atomics("bw"), ECN + CAS, then=converted)


def words(room, switch, clients, seconds, during=None):
    """Several clients count up two words of a server, and `during` happens. What each word is at the end must be what
    clients know to have done and at most what they have in doubt, and no two of them may have found the same value."""
    binary = compile_c("words")
    port = room.port()
    how = {"options": (*VIA, "--trace"), "env": switch.env}
    target = room.adverb("target", [binary, "target", str(clients), "-p", str(port)], address=SERVER, **how)
    room.wait_listening(target, port)
    found = [room.path(f"found{i}") for i in range(clients)]
    procs = [room.adverb(f"client{i}", [binary, "client", str(seconds), path, "-p", str(port), "127.0.0.1"],
                         address=f"10.9.0.{2 + i}", **how) for i, path in enumerate(found)]
    if during:
        during(procs)
    room.all_succeed(target, *procs)
    in_doubt = 0
    for name in ("added", "swapped"):
        end = int(require_text(target.output(), rf"^{name} (\d+)$", "the target").group(1))
        values = []
        for path in found:
            with open(path) as f:
                values += [int(row.split()[1]) for row in f if row.startswith(name + " ")]
        doubts = [require_text(p.output(), rf"^{name} (\d+) in doubt (\d+)$", p.label).groups() for p in procs]
        known, doubt = (sum(int(pair[at]) for pair in doubts) for at in (0, 1))
        if len(values) != known or len(set(values)) != known:
            raise Fail(f"{name}: {known} changes found {len(set(values))} different values")
        if not known or any(value >= end for value in values):
            raise Fail(f"{name}: {known} changes, and one of them found {max(values, default=0)} where the word ended as {end}")
        if not known <= end <= known + doubt:
            raise Fail(f"{name}: the word is {end} after {known} changes with {doubt} in doubt")
        room.note(f"{name} {known} in doubt {doubt} word {end}")
        in_doubt += doubt
    lives = [int(require_text(p.output(), r"lives (\d+)$", p.label).group(1)) for p in procs]
    room.note(f"lives {sum(lives)}")
    return in_doubt


def counted(text, seconds, clients=3):
    """Each change of a word happens once. Without loss no queue pair fails; with it one may, when the last change of a word
    that others want has been lost again and again, and then says what is in doubt."""

    def run(room):
        switch = Switch(room, text)
        if words(room, switch, clients, seconds) and LOSS not in text:
            raise Fail("a queue pair failed, although nothing was lost")
        counters = switch.counters()
        if CAS in text:
            converted(room, counters)

    return run


def killed_case(name, text, kills, clients=3):
    """SIGKILL of the switch under load, again and again: it comes back after a moment with nothing of what it knew. Each
    change of a word happens once, or its queue pair says that it is in doubt."""

    def run(room):
        switch = Switch(room, text)

        def during(procs):
            for _ in range(kills):
                wait_for_work(room, switch, text, procs)
                switch.proc.kill(signal.SIGKILL)
                room.wait_exit(switch.proc)
                begun = room.remaining()
                room.wait_until("time without a switch", lambda at=begun: at - room.remaining() >= AWAY_S)
                switch.start()
            wait_for_work(room, switch, text, procs)
            for proc in procs:
                proc.kill(signal.SIGTERM)

        words(room, switch, clients, room.case.seconds, during)
        room.note(f"killed {kills} times")
        switch.counters()

    return Case(f"switch/killed-{name}", run, 60 + 10 * kills, long=kills == MANY_KILLS)


def wait_for_work(room, switch, text, procs):
    """Waits until this life of the switch has carried load for a while, and decided some of it."""
    begun = room.remaining()
    names = CONVERTED if CAS in text else ("tx_frames",)

    def worked():
        if begun - room.remaining() < LOADED_S:
            return False
        if any(proc.popen.poll() is not None for proc in procs):
            raise Fail("a client has ended before the switch was killed for the last time: nothing was shown")
        counters = switch.show()["counters"]
        if any(counters[name] for name in names):
            switch.say(counters)
            return True
        return False

    room.wait_until("work of the switch", worked)


def validated_restart(room):
    """A validated pingpong bears the switch's end without an error."""
    require("ibv_rc_pingpong")
    switch = Switch(room)
    argv = pingpong("rc", "-c", "-s", 8192, iterations=4000)
    server, client = room.pair(argv, argv, **switch.ends())
    for _ in range(3):
        room.wait_until("frames", lambda: switch.show()["counters"]["tx_frames"] > 100)
        if client.popen.poll() is not None:
            raise Fail("the pair has ended before the switch was killed: nothing was shown")
        switch.proc.kill(signal.SIGKILL)
        room.wait_exit(switch.proc)
        switch.start()
    room.all_succeed(server, client)
    if "invalid data" in server.output() + client.output():
        raise Fail("a side received invalid data")
    switch.counters()


def claimed(room):
    """An address that a process of another folder has is refused in words; one that has ended gives it back."""
    require("ibv_devinfo", "ib_send_bw")
    switch = Switch(room)
    path = os.path.join(switch.folder, "sw0.switch")
    port = room.port()
    first = room.adverb("first", [*program("send", "bw"), "-p", str(port)], address=SERVER, options=VIA, env=switch.env)
    room.wait_listening(first, port)
    other = tempfile.mkdtemp(prefix="adverb-switch-", dir="/dev/shm")
    room.cleanups.append(lambda: shutil.rmtree(other, ignore_errors=True))
    how = {"address": SERVER, "options": ("--via", path), "env": {"ADVERB": f"directory={other}"}}
    second = room.adverb("second", ["ibv_devinfo", "-v"], **how)
    room.wait_exit(second)
    said = f"does not give {re.escape(SERVER)}: port 0 has the address {re.escape(SERVER)} for processes of another"
    require_text(second.output(), said, "the second process")
    first.kill()
    room.wait_exit(first)
    third = room.adverb("third", ["ibv_devinfo", "-v"], **how)
    room.expect_success(third)
    require_text(third.output(), rf"GID\[\s*0\]:\s+::ffff:{re.escape(SERVER)}, RoCE v2", "the third process")


def asked(room):
    """`show`, `trace` and `set` of a switch that carries stock programs."""
    require("ib_atomic_bw")
    switch = Switch(room, ECN + CAS)
    room.both_succeed(atomics("bw"), **switch.ends())
    trace = switch.ask("trace", "--last", "5000")
    require_text(trace, r"FETCH_ADD|FetchAdd|added", "adverb switch trace")
    shown = switch.ask("show")
    require_text(shown, r"cas_to_write", "adverb switch show")
    switch.ask("set", "ecn", "--every", "7")
    programs = switch.show()["programs"]
    if programs[0] != {"kind": "ecn", "above": None, "every": 7}:
        raise Fail(f"the program was not set: {programs}")
    switch.counters()


def no_switch(room):
    """Without a switch of that name nothing runs, least of all past it."""
    require("ibv_devinfo")
    proc = room.adverb("alone", ["ibv_devinfo", "-v"], address=SERVER, options=("--via", "nobody"))
    room.wait_exit(proc)
    require_text(proc.output(), "the switch nobody cannot be reached for 10.9.0.1", "the process")


def several_processes(room):
    """Four pairs at once between two addresses: each frame finds the process of its queue pair."""
    require("ibv_rc_pingpong")
    switch = Switch(room)
    argv = pingpong("rc", "-c", iterations=200)
    pairs = [room.pair(argv, argv, label=f"pair{i}-", **switch.ends()) for i in range(4)]
    room.all_succeed(*[proc for pair in pairs for proc in pair])
    if any("invalid data" in proc.output() for pair in pairs for proc in pair):
        raise Fail("a side received invalid data")
    switch.counters()


def cases():
    yield from forwarded()
    yield from lossy()
    yield from marked()
    yield from decided()
    yield Case("switch/several-processes", several_processes)
    yield Case("switch/claimed", claimed)
    yield Case("switch/asked", asked)
    yield Case("switch/no-switch", no_switch)
    yield Case("switch/words-forward", counted("", 1))
    yield Case("switch/words-cas", counted(CAS, 3))
    yield Case("switch/words-cas-loss", counted(LOSS + CAS + PATIENT, 4), 60)
    yield Case("switch/killed-pingpong", validated_restart, 60)
    yield killed_case("forward", "", KILLS)
    yield killed_case("cas", CAS, KILLS)
    yield killed_case("cas-often", CAS, MANY_KILLS)
