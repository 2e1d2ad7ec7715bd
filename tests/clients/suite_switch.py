"""Unmodified programs through the process of a switch, whose addresses no interface has and which needs no root: what it
forwards, marks, trims and decides, loss on its ports, and its end by SIGKILL under load. Every case says what the switch
counted. What a case is about must have happened: atomics that the switch decided, packets that it marked."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import ADVERB, TARGET, WORK, Case, Fail, Skip, compile_c, read_counters, require, require_text
from suite_perftest import LOSSY_TIMEOUT, expect_results, program
from suite_pyverbs import CLASS_SECONDS, Results, expect_as_plain, prepared
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
# What a busy machine may do to processes is longer than what a network does to packets.
CARRIERS = DECIDES + """mode = "multiplex"
carriers = 4
ring = 8
resend-us = 20000
tries = 10
flight-us = 300000
hold-us = 250000
"""
FEW_LOST = "[faults]\nloss = 0.002\nseed = 7\n"
CARRIED = ("moved", "de_coalesced", "ring_full", "resent")
CONVERTED = ("cas_granted", "cas_refused", "fetch_added")
STATED = (*CONVERTED, "held", "atomics_passed", "de_coalesced")
ATOMICS = {"fetch-add": "FETCH_AND_ADD", "cas": "CMP_AND_SWAP"}
# Of rdma-core v44's 14 tests of atomics those that end well on any machine, and the least that these send.
PYVERBS_OK, PYVERBS_FRAMES = 9, 1000
# Times that a switch is killed under load, in make test and in make test-long, and how long it is away each time.
KILLS, MANY_KILLS = 3, 100
# What each client of words.c has under way.
DEPTH = 8
AWAY_S, LOADED_S = 0.1, 0.3
# How long a switch may take to say what it knows, and to end, where a case has failed.
AWAIT_S = 10
# The share of atomics that the switch decides once it knows their word.
STEADY = 0.99


class Switch:
    """A switch's process, in a folder of its own: what runs on this host otherwise does not see it."""

    def __init__(self, room, text="", netns=None, recorded=False, command=None):
        self.room = room
        self.command = command
        self.tape = room.path("switch.tape")
        self.options = ["--record", self.tape] if recorded else []
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
        command = self.command or [ADVERB, "switch", "run", *self.options, self.file]
        self.proc = self.room.spawn(f"switch{self.lives}", [*self.prefix, *command], env=self.env)
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


def pyverbs(name, text, options, *marks):
    """rdma-core's Python tests of atomics. Both ends are of one process, whose frames to itself go to the switch by this
    path. Each must end as it does without a switch, and `marks` must have been counted."""

    def run(room):
        top, tests, plain = prepared()
        tests = [test for test in tests if "atomic" in test]
        switch = Switch(room, text)
        options_all = (*VIA, "--path", "udp", *options)
        results = Results(top, tests, options_all, address=SERVER, env=switch.env)
        results.run(f"switch-{name}", tests, CLASS_SECONDS)
        ok = expect_as_plain(results, plain, f"through {name}")
        counters = switch.counters()
        room.note(f"{ok} of {len(tests)} ok")
        if ok < PYVERBS_OK or counters["tx_frames"] < PYVERBS_FRAMES:
            raise Fail(f"{ok} tests were ok, and {counters['tx_frames']} frames left the switch")
        if marks:
            expect_counted(counters, *marks)

    return Case(f"switch/pyverbs-{name}", run, 600)


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


def steady(argv, text, atomics_in_all=2000):
    """Once a word is the switch's, at least 99% of the atomics for it are converted: of so many in a row, while the pair runs.
    A process that has no processor for a while makes the word the server's again, for a second, and on a busy host that comes
    again and again: the best of what is seen says what the switch does, and it is looked at until that suffices."""

    def run(room):
        require(argv[0])
        switch = Switch(room, text)
        await_share(room, switch, room.pair(argv, argv, **switch.ends()), STEADY, atomics_in_all)
        switch.counters()

    return run


def await_share(room, switch, procs, wanted, atomics_in_all):
    """Waits until of so many atomics in a row that share has been converted, while the programs run; the best is noted."""
    last, best = None, 0.0

    def converts():
        nonlocal last, best
        for proc in procs:
            if proc.popen.poll() is not None:
                raise Fail(f"{proc.label} exited with {proc.popen.returncode}; at best {100 * best:.2f}% were converted")
        now = decided_and_passed(switch.show()["counters"])
        if last is None and now[0]:
            last = now
        if last is None or sum(now) - sum(last) < atomics_in_all:
            return False
        best = max(best, (now[0] - last[0]) / (sum(now) - sum(last)))
        last = now
        return best >= wanted

    try:
        room.wait_until("steady state", converts)
    except Fail as why:
        raise Fail(f"{why}: at best {100 * best:.2f}% of the atomics were converted") from None
    room.note(f"converted: {100 * best:.2f}%")


def decided_and_passed(counters):
    """Atomics that the switch has decided, and those that it has left to the server."""
    return sum(counters[name] for name in CONVERTED), counters["atomics_passed"]


def words(room, switch, clients, seconds, during=None, count=2, more=(), dead=()):
    """Several clients count up words of a server, and `during` happens. What each word is at the end must be what clients know
    to have done and at most what they have in doubt, and no two of them may have found the same value. Those of the numbers
    `dead` are killed on the way: they have as much in doubt as they may have under way, and what they had not written down."""
    binary = compile_c("words")
    port = room.port()
    more = ["-p", str(port), "-w", str(count), *more]
    how = {"options": (*VIA, "--trace"), "env": switch.env}
    target = room.adverb("target", [binary, "target", str(clients), *more], address=SERVER, **how)
    room.wait_listening(target, port)
    found = [room.path(f"found{i}") for i in range(clients)]
    procs = [room.adverb(f"client{i}", [binary, "client", str(seconds), path, *more, "127.0.0.1"],
                         address=f"10.9.0.{2 + i}", **how) for i, path in enumerate(found)]
    if during:
        during(procs)
    living = [proc for i, proc in enumerate(procs) if i not in dead]
    room.all_succeed(target, *living)
    return once_each(room, target, living, found, count, len(dead))


def once_each(room, target, living, found, count=2, dead=0):
    """Compares what a target of words.c says in the end with what its clients, and the files of what they found, say. Returns
    how many changes are in doubt."""
    rows = []
    for path in found:
        with open(path) as f:
            rows += [row.split() for row in f if row.endswith("\n")]
    totals = [0, 0, 0]
    for word in range(count):
        name = f"{('added', 'swapped')[word % 2]}{word}"
        end = int(require_text(target.output(), rf"^{name} (\d+)$", "the target").group(1))
        values = [int(value) for of, value in rows if of == name]
        doubts = [require_text(p.output(), rf"^{name} (\d+) in doubt (\d+)$", p.label).groups() for p in living]
        known, doubt = (sum(int(pair[at]) for pair in doubts) for at in (0, 1))
        doubt += (DEPTH + 1) * dead
        if len(set(values)) != len(values) or (len(values) < known if dead else len(values) != known):
            raise Fail(f"{name}: {known} changes found {len(set(values))} different values of {len(values)}")
        if not known or any(value >= end for value in values):
            raise Fail(f"{name}: {known} changes, and one of them found {max(values, default=0)} where the word ended as {end}")
        if not len(values) <= end <= len(values) + doubt:
            raise Fail(f"{name}: the word is {end} after {len(values)} changes with {doubt} in doubt")
        totals = [before + now for before, now in zip(totals, (len(values), doubt, end))]
    room.note("changes {} in doubt {} words {}".format(*totals))
    lives = [int(require_text(p.output(), r"lives (\d+)$", p.label).group(1)) for p in living]
    room.note(f"lives {sum(lives)}")
    return totals[1]


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


def replays_the_same(room, switch, lives, names):
    """The recording of a switch's lives, fed to a switch without sockets and clock, gives the same packets out, registers and
    counters, and in so many lives these were counted; with one byte altered it does not."""
    replay = [ADVERB, "switch", "replay", switch.tape]
    done = subprocess.run(replay, capture_output=True, text=True, check=False)
    said = done.stdout
    if done.returncode or "the same" not in said or len(re.findall("^life ", said, re.M)) != switch.lives:
        raise Fail(f"{' '.join(replay)}: {said}{done.stderr}")
    each = [line.split(", ") for line in re.findall(r"^  (rx_frames .*)$", said, re.M)]
    counted_all = [all(any(pair.startswith(f"{name} ") for pair in pairs) for name in names) for pairs in each]
    if sum(counted_all) < lives:
        raise Fail(f"{sum(counted_all)} of {switch.lives} lives counted each of {', '.join(names)}: {said}")
    room.note("replayed " + re.search(r"the same \d+ packets", said).group())
    with open(switch.tape, "r+b") as f:
        f.seek(os.path.getsize(switch.tape) // 2)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1]))
    done = subprocess.run(replay, capture_output=True, text=True, check=False)
    if done.returncode != 1 or "DIFFERS" not in done.stdout:
        raise Fail(f"with one byte altered: {done.stdout}{done.stderr}")


def recorded(room):
    """All that two lives of a switch are given and give, with eight clients and loss on their ports."""
    switch = Switch(room, LOSS + CAS + PATIENT, recorded=True)
    names = (*CONVERTED, "answered", "held", "repeated")

    def worked():
        counters = switch.show()["counters"]
        return all(counters[name] for name in names) and counters["fetch_added"] >= 300

    def during(procs):
        room.wait_until("decided atomics", worked)
        switch.proc.kill(signal.SIGKILL)
        room.wait_exit(switch.proc)
        switch.start()
        room.wait_until("decided atomics after the restart", worked)
        for proc in procs:
            proc.kill(signal.SIGTERM)

    words(room, switch, 8, room.case.seconds, during)
    switch.counters()
    switch.proc.kill(signal.SIGTERM)
    room.expect_success(switch.proc)
    replays_the_same(room, switch, 2, names)


@contextlib.contextmanager
def kept(room, switch):
    """Where what is done within fails, all that there is to look at is kept, at a path that is named: what the switch says of
    itself, its recording, and what each process has said."""
    try:
        yield
    except Fail as why:
        folder = os.path.join(WORK, "kept", f"{os.path.basename(room.dir)}-{time.time_ns() // 1000000}")
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        for name, words in (("trace.txt", ("trace",)), ("show.json", ("show", "--json"))):
            with open(room.path(name), "w") as f:
                try:
                    subprocess.run([ADVERB, "switch", *words], env=dict(os.environ, **switch.env), stdout=f,
                                   stderr=subprocess.STDOUT, check=False, timeout=AWAIT_S)
                except subprocess.TimeoutExpired:
                    f.write(f"the switch has said nothing for {AWAIT_S} s\n")
        # A recording is whole when its switch has ended.
        switch.proc.kill(signal.SIGTERM)
        try:
            switch.proc.popen.wait(timeout=AWAIT_S)
        except subprocess.TimeoutExpired:
            room.note("the switch did not end; its recording may lack its last moment")
        shutil.copytree(room.dir, folder)
        raise Fail(f"{why}\nkept in {folder}: {', '.join(sorted(os.listdir(folder)))}") from None


def reloaded(room):
    """A switch that is given other files under load: programs that stay know their words, and go on when they are told
    something else; a bad file changes nothing. No queue pair fails of it."""
    if reload_under_load(room, "connections = 2000\n", "^programs: cas_to_write changed$"):
        raise Fail("a queue pair failed, although the program stayed that could answer it")


def reloaded_anew(room):
    """The same, and in the end a program cannot stay, as its table is to be smaller: another one begins. Who has lost an
    answer then that only the first one could give fails (docs/switch.md), and goes on with a new queue pair."""
    reload_under_load(room, "connections = 512\n", "^programs: cas_to_write new, cas_to_write gone$")


def reload_under_load(room, keys, said):
    """Gives a switch other files under load, and in the end one whose program has these keys, of which that is said. Words come
    out right, and the recording has it all. Returns how many changes are in doubt."""
    switch = Switch(room, CAS + PATIENT, recorded=True)
    changes = 0

    def decided(procs, more):
        before = switch.show()["counters"]["fetch_added"]

        def are():
            ended = [proc.label for proc in procs if proc.popen.poll() is not None]
            if ended:
                raise Fail(f"{', '.join(ended)} ended before the switch had decided {more} atomics")
            return switch.show()["counters"]["fetch_added"] >= before + more

        room.wait_until("decided atomics", are)

    def take(text, said):
        nonlocal changes
        with open(switch.file, "w") as f:
            f.write(text)
        require_text(switch.ask("reload"), said, "reload")
        changes += 1

    def during(procs):
        decided(procs, 200)
        for _ in range(5):
            take(ECN + CAS + PATIENT, "^programs: ecn new, cas_to_write kept$")
            decided(procs, 50)
            take(CAS + PATIENT + f'[[port]]\naddress = "{SERVER}"\nfaults = {{ loss = 0.01 }}\n',
                 f"^programs: cas_to_write kept, ecn gone\nports: {SERVER} has other faults or another capture$")
            decided(procs, 50)
        take(CAS + PATIENT + keys, said)
        try:
            take("[[program]]\nkind = 'sort'\n", "")
            raise Fail("a file with a mistake was taken")
        except Fail as refused:
            if "sort" not in str(refused):
                raise
        decided(procs, 100)
        for proc in procs:
            proc.kill(signal.SIGTERM)

    with kept(room, switch):
        doubt = words(room, switch, 4, room.case.seconds, during)
        switch.counters()
        room.note(f"{changes} files taken")
        switch.proc.kill(signal.SIGTERM)
        room.expect_success(switch.proc)
    replays_the_same(room, switch, 1, CONVERTED[:1])
    return doubt


def carried(room):
    """64 clients whose atomics travel on four of their connections: rings that fill, acknowledgements for several clients,
    sequence numbers that wrap, loss; one of the four is killed, then the switch, which is started again. It must not take a
    connection whose numbers were shifted for another: such ones fail, and their clients go on with new ones."""
    clients, first, dead = 64, 0xFFFFE0, []
    # 0.5 s, eight times: 64 clients have to be alone with a word once each, on a busy machine, and the switch takes its time to
    # give up a connection.
    more = ("-s", hex(first), "-t", "17")
    switch = Switch(room, FEW_LOST + CARRIERS, recorded=True)

    def wait_for(what, ready):
        def is_ready():
            shown = switch.show()
            return ready(shown["counters"], shown["programs"][0]["carriers"]) and shown

        return room.wait_until(what, is_ready)

    def works(counters, carriers):
        used = all(counters[name] for name in (*CONVERTED, *CARRIED))
        return used and len(carriers) >= 4 and all(carrier["psn"] < first for carrier in carriers[:4])

    def during(procs):
        shown = wait_for("use of the carriers", works)
        note_carried(room, shown)
        unlucky = shown["programs"][0]["carriers"][0]["client"]
        dead.append(int(unlucky.rsplit(".", 1)[1]) - 2)
        procs[dead[0]].kill(signal.SIGKILL)
        wait_for("end of the killed client's port", lambda *_: unlucky not in [p["address"] for p in switch.show()["ports"]])
        moved = switch.show()["counters"]["moved"]
        shown = wait_for("work after that", lambda counters, _: counters["moved"] > moved + 100)
        note_carried(room, shown)
        switch.proc.kill(signal.SIGKILL)
        room.wait_exit(switch.proc)
        switch.start()
        again = ("drop_shifted", "moved", "de_coalesced")
        shown = wait_for("work after the restart", lambda counters, _: all(counters[name] for name in again))
        room.note(f"drop_shifted {shown['counters']['drop_shifted']}")
        note_carried(room, shown)
        for i, proc in enumerate(procs):
            if i not in dead:
                proc.kill(signal.SIGTERM)

    words(room, switch, clients, room.case.seconds, during, count=8, more=more, dead=dead)
    switch.proc.kill(signal.SIGTERM)
    room.expect_success(switch.proc)
    replays_the_same(room, switch, 2, ("moved", "de_coalesced"))


def note_carried(room, shown):
    counters = shown["counters"]
    room.note(", ".join(f"{name} {counters[name]}" for name in (*CONVERTED, *CARRIED, "shifted")))


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
    argv = pingpong("rc", "-c", "-s", 8192, iterations=8000)
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


def tree(room):
    """A tree's home and its clients' processes behind a switch that decides the atomics of its locks. One of them is killed
    under load: what it had locked passes on, and every key is there. Keys are drawn evenly, since words that are asked for
    without a pause stay the server's (docs/switch.md, Limits)."""
    keys = 2000
    switch = Switch(room, CAS)
    env = dict(switch.env, ADVERB_TREE=f"127.0.0.1:{room.port()}")

    def start(name, address, *words):
        return room.spawn(name, [ADVERB, "tree", *words, *VIA, "--address", address], env=env)

    def bench(name, address, workload, time):
        load = ("--workload", workload, "--exponent", "0", "--clients", "3", "--time", time)
        return start(name, address, "bench", *load)

    home = start("home", SERVER, "serve", "--keys", str(keys), "--fanout", "8", "--lease", "300ms")
    room.wait_output(home, f"^tree of {keys} keys ready")
    dead = bench("dead", "10.9.0.3", "write-only", "60s")
    changed = bench("changed", CLIENT, "a", "2s")
    granted = switch.show()["counters"]["cas_granted"]
    room.wait_until("decided atomics", lambda: switch.show()["counters"]["cas_granted"] > granted + 100)
    if dead.popen.poll() is not None:
        raise Fail("the client has ended before it was killed: nothing was shown")
    dead.kill(signal.SIGKILL)
    room.expect_success(changed)
    require_text(changed.output(), r"switch sw0: [1-9]\d* atomics converted", "adverb tree bench")
    grown = bench("grown", CLIENT, "d", "2s")
    room.expect_success(grown)
    require_text(grown.output(), r"pages: [1-9]\d* splits", "adverb tree bench")
    scan = start("scan", CLIENT, "scan", "0", "--to", str(keys), "--limit", "5000")
    room.expect_success(scan)
    found = [int(line.split()[0]) for line in scan.output().splitlines()]
    if found != list(range(keys)):
        raise Fail(f"a scan has found {len(found)} of {keys} keys: {found}")
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


def own_sequencer(room):
    """A switch with a program of a crate outside the workspace, run by that crate's own command."""
    binary = os.path.join(TARGET, "debug", "own-switch")
    if not os.path.exists(binary):
        raise Skip("examples/own-switch is not built (make test STEP=examples builds it)")
    switch = Switch(room, command=[binary, SERVER, room.path("epochs")])
    for length in ("-t 16", "-t 1"):
        ends = switch.ends()
        _, client = room.both_succeed(atomics("bw", extra=length.split()), **ends, label=length[3:])
        expect_results(client, 1)
    counts = switch.show()["programs"][0]["counts"]
    room.note(", ".join(f"{name} {count}" for name, count in counts.items() if count))
    if counts["answered"] < 2000 or counts["numbers"] < counts["answered"] or not counts["answered_by_server"]:
        raise Fail("the switch did not answer")


def cases():
    yield from forwarded()
    yield from lossy()
    yield from marked()
    yield from decided()
    yield pyverbs("forward", "", ())
    yield pyverbs("ecn", ECN, ("--congestion", "dcqcn"), "ecn_marked")
    yield Case("switch/several-processes", several_processes)
    yield Case("switch/claimed", claimed)
    yield Case("switch/asked", asked)
    yield Case("switch/no-switch", no_switch)
    yield Case("switch/words-forward", counted("", 1))
    yield Case("switch/words-cas", counted(CAS, 3))
    yield Case("switch/words-cas-loss", counted(LOSS + CAS + PATIENT, 4), 60)
    # The pair runs for longer than the case may take, and is ended when enough is seen.
    for name, operation in ATOMICS.items():
        yield Case(f"switch/steady-{name}", steady(atomics("bw", operation, 600), CAS), 90)
    yield Case("switch/steady-fetch-add-4-qps", steady(atomics("bw", seconds=600, extra=["-q", 4]), CAS), 90)
    yield Case("switch/own-sequencer", own_sequencer, 60)
    yield Case("switch/reloaded", reloaded, 90)
    yield Case("switch/reloaded-anew", reloaded_anew, 90)
    # Words that are hot all the time stay the server's, and then a bench fails by right: too often for each change.
    yield Case("switch/tree", tree, 120, long=True)
    yield Case("switch/recorded", recorded, 90)
    yield Case("switch/carriers", carried, 120)
    yield Case("switch/killed-pingpong", validated_restart, 120)
    yield killed_case("forward", "", KILLS)
    yield killed_case("cas", CAS, KILLS)
    yield killed_case("cas-often", CAS, MANY_KILLS)
