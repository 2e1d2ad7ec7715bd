"""Words and a lock of one rxe device that programs of another change, or of adverb's NIC, with a switch between them that
forwards or decides: what tests/clients/words.c does, as a lock service does it. Their target grants the right to WRITE, which
an atomic needs that the switch has decided (perftest's does not), and no more is under way than the switch remembers. Values
must be right whatever the switch does; where it decides and nothing is lost, it must decide most of what passes."""

import lab
from harness import Case, Fail, compile_c, require_text
from sides import LAB, SECOND, rxe, wait_listening_in_guest
from suite_cable import Cable, Guests
from suite_switch import (CAS, CONVERTED, LOSS, PATIENT, SERVER, await_share, decided_and_passed, expect_counted, once_each)

# Clients that count words up, each with so many atomics under way: what an end may have at most (IBTA 9.7.5.1.1), and what
# the switch remembers of a queue pair. Beside them, who takes the lock.
COUNTERS, LOCKERS, UNDER_WAY = 2, 2, 16
# The share of atomics that the switch decides in the steady state, and of how many in a row.
STEADY, ATOMICS = 0.90, 5000
# What must have come about at least, of each kind: changes of words, and times that the lock was held.
LEAST_CHANGES, LEAST_HELD = 1000, 20
# And so many atomics that the server decides, after it has refused a key.
LEAST_SINCE = 500
FIXED_S, LOSSY_S = 4, 8
# Clients that are told to end when enough is seen.
UNTIL_TOLD_S = 600
GUEST_FOUND = "/tmp/found{}"


class Words:
    """A running target, its clients and the files of what those found."""

    def __init__(self, room, target, clients, lockers, guest=None):
        self.room, self.target, self.clients, self.lockers = room, target, clients, lockers
        # The guest that the clients run in, if they do in one.
        self.guest = guest

    @property
    def procs(self):
        return [self.target, *self.clients, *self.lockers]

    def tell_to_end(self):
        if self.guest:
            self.guest.in_guest("killall -TERM words")
        else:
            for proc in (*self.clients, *self.lockers):
                proc.kill(15)

    def judge(self, lossy):
        """Waits for the end of all and compares what they say. A lock that two held at once loses one of the numbers that it
        guards, or is found with another's name by who lets go of it, which ends that one with an error."""
        room = self.room
        room.all_succeed(*self.procs)
        found = []
        for i in range(COUNTERS):
            found.append(room.path(f"found{i}"))
            if self.guest:
                path = GUEST_FOUND.format(i)
                with open(found[-1], "w") as f:
                    f.write(self.guest.in_guest(f"cat {path} && rm {path}"))
        if once_each(room, self.target, self.clients, found) and not lossy:
            raise Fail("a queue pair failed, although nothing was lost")
        changes = 0
        for path in found:
            with open(path) as f:
                changes += sum(1 for _ in f)
        each = [int(require_text(proc.output(), r"^held (\d+) busy \d+$", proc.label).group(1)) for proc in self.lockers]
        guarded, last = require_text(self.target.output(), r"^guarded (\d+) lock ([0-9a-f]+)$", "the target").groups()
        if sum(each) != int(guarded) or last != "0":
            raise Fail(f"the lock was held {each} times, what it guards counted {guarded}, and in the end it is {last}")
        if changes < LEAST_CHANGES or min(each, default=LEAST_HELD) < LEAST_HELD:
            raise Fail(f"{changes} changes, and the lock was held {each} times: little was shown")
        if each:
            room.note(f"lock held {sum(each)} times by {len(each)}")


def argv_of(binary, port, of, seconds, host=None, lockers=LOCKERS):
    """words.c's words: of the target, or of a client, `of` being its number; locks come behind counters."""
    base = ["-p", str(port), "-o", str(UNDER_WAY)]
    if host is None:
        return [binary, "target", str(COUNTERS + lockers), *base]
    if of >= COUNTERS:
        return [binary, "locker", str(seconds), *base, host]
    return [binary, "client", str(seconds), GUEST_FOUND.format(of), *base, host]


def in_guests(room, text, seconds, lockers=LOCKERS, grants=()):
    """Target and clients in two guests."""
    guests, port = Guests(room, text), room.port()

    def on(address):
        return ["-d", lab.CABLE_RXE, "-x", guests.gids[address]]

    target = rxe(room, "target", [*argv_of("words", port, None, 0, lockers=lockers), *on(lab.CABLE_GUEST), *grants])
    wait_listening_in_guest(room, target, port)
    procs = []
    for of in range(COUNTERS + lockers):
        argv = argv_of("words", port, of, seconds, lab.CABLE_GUEST)
        procs.append(rxe(room, f"client{of}", [*argv[:-1], *on(lab.CABLE_SECOND), argv[-1]], SECOND))
    return guests.switch, Words(room, target, procs[:COUNTERS], procs[COUNTERS:], SECOND)


def on_a_cable(room, text, seconds, target_is_rxe):
    """One of the two in the guest, the other one adverb's."""
    binary, cable, port = compile_c("words"), Cable(room, text), room.port()
    rxe_device = ["-d", lab.CABLE_RXE, "-x", cable.gid]
    procs = []
    if target_is_rxe:
        target = rxe(room, "target", [*argv_of("words", port, None, 0), *rxe_device])
        wait_listening_in_guest(room, target, port)
    else:
        target = cable.adverb("target", argv_of(binary, port, None, 0))
        room.wait_listening(target, port)
    for of in range(COUNTERS + LOCKERS):
        if target_is_rxe:
            argv = argv_of(binary, port, of, seconds, lab.WORDS_GUEST)
            if of < COUNTERS:
                argv[3] = room.path(f"found{of}")
            procs.append(cable.adverb(f"client{of}", argv))
        else:
            argv = argv_of("words", port, of, seconds, lab.WORDS_HOST)
            procs.append(rxe(room, f"client{of}", [*argv[:-1], *rxe_device, argv[-1]]))
    return cable.switch, Words(room, target, procs[:COUNTERS], procs[COUNTERS:], None if target_is_rxe else LAB)


def steady(start, text):
    """Runs until the switch has decided the wanted share of so many atomics in a row."""

    def run(room):
        switch, words = start(room, text, UNTIL_TOLD_S)
        await_share(room, switch, words.procs, STEADY, ATOMICS)
        words.tell_to_end()
        words.judge(lossy=False)
        note_all(room, switch)

    return run


def timed(start, text, seconds, lossy=False):
    def run(room):
        switch, words = start(room, text, seconds)
        words.judge(lossy)
        counters = note_all(room, switch)
        if text.endswith(PATIENT):
            expect_counted(counters, *CONVERTED)

    return run


def without_the_right(text):
    """A target that grants atomics and no WRITEs: the first atomic that the switch decides is refused and ends its queue pair;
    the switch says so, and decides no more. What was under way is in doubt, and every word right within that."""

    def run(room):
        switch, words = in_guests(room, text, FIXED_S, lockers=0, grants=["-a"])
        room.wait_until("refused key", lambda: switch.show()["counters"]["keys_refused"])
        before = decided_and_passed(switch.show()["counters"])
        words.judge(lossy=True)
        counters = switch.counters()
        after = decided_and_passed(counters)
        room.note(f"keys_refused {counters['keys_refused']}, {before[0]} converted before, {after[0] - before[0]} since")
        if counters["keys_refused"] != 1 or after[0] != before[0] or after[1] - before[1] < LEAST_SINCE:
            raise Fail(f"converted and left to the server: {before} when the key was refused, {after} in the end")

    return run


def note_all(room, switch):
    counters = switch.counters()
    converted, passed = decided_and_passed(counters)
    if converted:
        room.note(f"of all {100 * converted / (converted + passed):.1f}% converted")
    return counters


def cases():
    decides = CAS.replace(SERVER, lab.CABLE_GUEST) + PATIENT
    # The first case's time has to suffice for a guest to boot.
    yield Case("interop/rxe-to-rxe-words-forward", timed(in_guests, "", FIXED_S), 180)
    yield Case("interop/rxe-to-rxe-words-cas", steady(in_guests, decides), 180)
    yield Case("interop/rxe-to-rxe-words-cas-loss", timed(in_guests, LOSS + decides, LOSSY_S, lossy=True), 180)
    yield Case("interop/rxe-to-rxe-words-no-right-to-write", without_the_right(decides), 180)
    for word, to_rxe, text in (("to-rxe", True, decides), ("from-rxe", False, CAS + PATIENT)):

        def start(room, text, seconds, to_rxe=to_rxe):
            return on_a_cable(room, text, seconds, to_rxe)

        yield Case(f"interop/cable-words-cas/{word}", steady(start, text), 120)


def large_cases():
    return ()
