"""Peers of rdma_cm that vanish when the connection is up: killed, stopped, or behind a link that is cut. What each side is told
of it must be, word for word, what two rxe's in two guests are told; but for a process of adverb's that is killed, for which
nobody speaks: a kernel takes leave of its processes' peers, and sends one DREQ."""

import signal

import lab
from harness import Case, Fail
from sides import LAB, SECOND, adverb, rxe, wait_cm_listening_in_guest, watched
from suite_cable import Guests
from suite_cm import SPACES, begin_other_server, connect, told
from suite_rdmacm import TCP, UDP, alive, listens

SERVER, CLIENT = 0, 1
SIDES = ("--serve", "--to")
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# A DREQ is repeated for 66 s or 98 s.
LONG_S = 400
# What two rxe's were told, by scenario.
REFERENCES = {}


class Stage:
    """A running server and client of connect.c, and the link between them."""

    def __init__(self, room, scenario, label):
        self.room, self.scenario, self.label = room, scenario, label
        self.port = room.port()
        self.procs = []

    def argv(self, side, host):
        """connect.c's words. `{mark}` is the file that lets the side go on."""
        options = [word.format(mark=self.mark_of(side)) for word in self.scenario.options[side]]
        words = {"host": host, "port": self.port}
        return [word.format(**words) for word in connect(SIDES[side], self.guests[side] is None, options)]

    def mark_of(self, side):
        name = f"mark-{self.label}-{self.port}-{side}"
        return self.room.path(name) if self.guests[side] is None else "/tmp/" + name

    def start(self, side, host):
        argv, label = self.argv(side, host), self.label + ("server", "client")[side]
        guest = self.guests[side]
        if guest is None:
            # A folder of its own, so that nothing is found there that another case left.
            self.folder = self.room.path("shared")
            proc = adverb(self.room, label, argv, env={"ADVERB": f"directory={self.folder}"})
        else:
            proc = rxe(self.room, label, argv, guest)
        self.procs.append(proc)
        return proc

    def await_up(self):
        """Both have the connection and all first messages."""
        for side in (SERVER, CLIENT):
            self.room.wait_output(self.procs[side], "^messages: ")

    def go_on(self, side):
        """Lets a side that waits for its file go on."""
        path, guest = self.mark_of(side), self.guests[side]
        if guest is None:
            with open(path, "w"):
                pass
        else:
            self.room.cleanups.append(lambda: guest.in_guest(f"rm -f {path}"))
            guest.in_guest(f"touch {path}")

    def signal(self, side, name):
        guest = self.guests[side]
        if guest is None:
            self.procs[side].kill(getattr(signal, "SIG" + name))
        else:
            guest.in_guest(f"killall -{name} connect")

    def ends_well(self, side):
        self.room.expect_success(self.procs[side])

    def is_killed(self, side):
        status = self.room.wait_exit(self.procs[side])
        if status not in KILLED:
            raise Fail(f"{self.procs[side].label} was to be killed, and exited with {status}")

    def still_waits(self, side):
        """A side that has been told nothing runs still."""
        alive(self.procs[side])

    def told(self):
        return [told(proc) for proc in self.procs]


class BetweenGuests(Stage):
    """Two rxe's in two guests, with a switch between them: the link is cut when the switch is killed."""

    def __init__(self, room, scenario):
        super().__init__(room, scenario, "reference-")
        self.guests = (LAB, SECOND)
        self.link = Guests(room, "")
        server = self.start(SERVER, lab.CABLE_GUEST)
        wait_cm_listening_in_guest(room, server, self.port, SPACES[scenario.space])
        self.start(CLIENT, lab.CABLE_GUEST)

    def cut(self):
        self.link.switch.proc.kill()

    def mend(self):
        self.link.switch.start()
        self.room.wait_until("machines on their cables",
                             lambda: all(port["cable"]["plugged"] for port in self.link.ports()))


class WithAdverb(Stage):
    """One of them is adverb: the link is cut where the host drops all packets."""

    def __init__(self, room, scenario, client_is_adverb):
        super().__init__(room, scenario, "")
        self.guests = (LAB, None) if client_is_adverb else (None, LAB)
        host = lab.GUEST if client_is_adverb else lab.HOST
        server = self.start(SERVER, host)
        if client_is_adverb:
            wait_cm_listening_in_guest(room, server, self.port, SPACES[scenario.space])
        else:
            room.wait_until("listener", lambda: alive(server) and listens(self.folder, host, scenario.space, self.port))
        self.start(CLIENT, host)

    def cut(self):
        self.room.cleanups.append(LAB.lose_none)
        LAB.lose_every(1)

    def mend(self):
        LAB.lose_none()


# -- the scenarios ---------------------------------------------------------------------------------------------------


class Scenario:
    """The options of both sides, and what happens when the connection is up."""

    def __init__(self, server, client, then, space=TCP):
        more = ["--datagrams"] if space == UDP else []
        self.options = ([*server, *more], [*client, *more])
        self.then = then
        self.space = space


def killed(side):
    """A side is killed, and the other one waits for all that it is told."""

    def then(stage):
        stage.go_on(side)
        stage.is_killed(side)
        stage.ends_well(1 - side)

    return then


def killed_silently(side):
    """A side is killed, and the other one, which is not told, sends to it and ends the connection."""

    def then(stage):
        stage.go_on(side)
        stage.is_killed(side)
        stage.still_waits(1 - side)
        stage.go_on(1 - side)
        stage.ends_well(1 - side)

    return then


def cut(side):
    """The link is cut, and a side ends the connection. The other one is told nothing of it."""

    def then(stage):
        stage.cut()
        stage.go_on(side)
        stage.ends_well(side)
        stage.still_waits(1 - side)

    return then


def cut_and_killed(side):
    """A side dies behind a cut link, and the other one ends the connection when the link is mended."""

    def then(stage):
        stage.cut()
        stage.go_on(side)
        stage.is_killed(side)
        stage.mend()
        stage.go_on(1 - side)
        stage.ends_well(1 - side)

    return then


def stopped(side):
    """A side is stopped, and the other one ends the connection."""

    def then(stage):
        stage.signal(side, "STOP")
        stage.go_on(1 - side)
        stage.ends_well(1 - side)
        stage.signal(side, "CONT")
        stage.ends_well(side)

    return then


FIRST = ["--sends", "3"], ["--receives", "3"]
LATER = ["--until", "{mark}"]
LEAVES = [*LATER, "--leave", "--timewait"]
SENDS_LATE = [*LATER, "--late", "1", "--leave", "--timewait"]
DIES = [*LATER, "--kill"]
# Few of those that take 65 s and 98 s of the kernel's time.
SCENARIOS = {
    "client-killed": Scenario([*FIRST[1], "--timewait"], [*FIRST[0], *DIES], killed(CLIENT)),
    "server-killed": Scenario([*FIRST[0], *DIES], [*FIRST[1], "--timewait"], killed(SERVER)),
    "client-killed-cut": Scenario([*FIRST[1], *LEAVES], [*FIRST[0], *DIES], cut_and_killed(CLIENT)),
    "server-killed-cut": Scenario([*FIRST[0], *DIES], [*FIRST[1], *LEAVES], cut_and_killed(SERVER)),
    "server-leaves-cut": Scenario([*FIRST[0], *LEAVES], FIRST[1], cut(SERVER)),
    "client-sends-into-cut": Scenario(FIRST[1], [*FIRST[0], *SENDS_LATE], cut(CLIENT)),
    "server-stopped": Scenario(FIRST[0], [*FIRST[1], *LEAVES], stopped(SERVER)),
    "datagrams-server-killed": Scenario([*FIRST[1], *DIES], [*FIRST[0], *LATER, "--late", "2"], killed_silently(SERVER),
                                        space=UDP),
}
# Where adverb is the side that is killed.
BY_ADVERB = {
    "client-killed": Scenario([*FIRST[1], *SENDS_LATE], [*FIRST[0], *DIES], killed_silently(CLIENT)),
    "server-killed": Scenario([*FIRST[0], *DIES], [*FIRST[1], *SENDS_LATE], killed_silently(SERVER)),
}
# What is said then behind the first messages, where nobody is left at adverb's address, and where another process is.
ALONE = ["late message: status 12", "DISCONNECTED -110", "TIMEWAIT_EXIT 0", "end"]
BESIDE = ["late message: status 12", "DISCONNECTED 0", "TIMEWAIT_EXIT 0", "end"]


def play(stage):
    stage.await_up()
    stage.scenario.then(stage)
    return stage.told()


def same(name, scenario, client_is_adverb):
    def run(room):
        if name not in REFERENCES:
            REFERENCES[name] = play(BetweenGuests(room, scenario))
        stage = WithAdverb(room, scenario, client_is_adverb)
        for proc, said, wanted in zip(stage.procs, play(stage), REFERENCES[name]):
            if said != wanted:
                raise Fail(f"{proc.label} was told\n  " + "\n  ".join(said) + "\nand rxe is told\n  " + "\n  ".join(wanted))

    return run


def nobody_speaks_for_it(scenario, client_is_adverb, wanted):
    def run(room):
        if wanted is BESIDE:
            begin_other_server(room)
        stage = WithAdverb(room, scenario, client_is_adverb)
        said = play(stage)[SERVER if client_is_adverb else CLIENT]
        if said[-len(wanted):] != wanted:
            raise Fail("rxe was told\n  " + "\n  ".join(said) + "\nand not at last\n  " + "\n  ".join(wanted))

    return run


def cases():
    def case(name, client_is_adverb, run):
        word = "to-rxe" if client_is_adverb else "from-rxe"
        return Case(f"interop/rdmacm-vanish-{name}/{word}", watched(run), LONG_S, long=True)

    for name, scenario in SCENARIOS.items():
        for client_is_adverb in (True, False):
            if name.startswith(("client-killed", "server-killed")) and name.startswith("client") == client_is_adverb:
                continue
            yield case(name, client_is_adverb, same(name, scenario, client_is_adverb))
    for name, scenario in BY_ADVERB.items():
        client_is_adverb = name.startswith("client")
        for suffix, wanted in (("", ALONE), ("-beside-another", BESIDE)):
            yield case(name + suffix, client_is_adverb, nobody_speaks_for_it(scenario, client_is_adverb, wanted))


def large_cases():
    return ()
