"""StaR between unmodified programs, with either side stateless: every case says what its queue pairs have become, and fails
where plain RC was used though StaR carries the queue pair; loss; hosts on a wire; peers that do not know it; what it
excludes; connections that change their roles on command while a program calls over them."""

import re
import signal
import time

from harness import ADVERB, Case, Fail, compile_c, read_counters, require, require_text
from suite_faults import CONFIGURED_S, GRACE_S
from suite_irn import UDP, pingpong
from suite_netns import MTUS, Wire
from suite_perftest import LOSSY_TIMEOUT, combinations, expect_results, program
from suite_utils import RC_VARIANTS, SIZES

SERVER, CLIENT = ("--transport", "star-server"), ("--transport", "star-client")
# By who is stateless.
ROLES = {"server": (SERVER, CLIENT), "client": (CLIENT, SERVER)}
STATELESS, STATEFUL = "StaR, stateless", "StaR, stateful"
LOSS = ("--loss", "0.01", "--seed", "7")
# A first request waits 20 ms for a peer's word. One without a processor for so long gets plain RC, as it should: the case is
# tried again.
LIFETIME_S = 0.02  # of a packet for the stateless side
SILENT, TRIES = "the peer did not answer whether it knows StaR", 6


def became(proc):
    """What the queue pairs of a process have become, by its trace."""
    return re.findall(r"^adverb: qp \S+ is ([^\n:]+)", proc.output(), re.M)


def expect_roles(room, server, client, stateless, carried=True):
    """With `carried` both became StaR's. Else the server is left as it is, and the client with it, which asks in vain where
    its own queue pair has nothing that StaR excludes: only the receiving side of perftest has a shared receive queue."""
    for proc, is_stateless in ((server, stateless == "server"), (client, stateless == "client")):
        roles = became(proc)
        wanted = [{"unchanged"}] if not carried else [{STATELESS if is_stateless else STATEFUL}]
        if not carried and proc is client:
            wanted.append({"plain RC"})
        if not roles or set(roles) not in wanted:
            raise Fail(f"the {proc.label}'s queue pairs became {roles or 'nothing'}, not {wanted}")
    for side, roles in (("server", became(server)), ("client", became(client))):
        values = read_counters(room.path(side + ".counters"))
        plain = "plain RC" in roles
        if bool(values["star_agreed"]) != carried or bool(values["star_fell_back"]) != plain or values["star_role_conflicts"]:
            raise Fail(f"the {side}'s NIC counts {values['star_agreed']} agreed, {values['star_fell_back']} plain")


def pair_case(name, argv, stateless, options=(), rows=1, timeout=60, carried=True, mtu=None, look=None, server_extra=(), **how):
    """With `mtu` the two are hosts of their own, on a wire with such frames. `look` is given the room and both processes."""
    def run(room):
        require(argv[0])
        ends = Wire(room, mtu).ends() if mtu else {}
        chosen = {}
        for side, role in zip(("server", "client"), ROLES[stateless]):
            extra = server_extra if side == "server" else ()
            chosen[side + "_options"] = (*role, "--trace", *options, *extra, "--counters", room.path(side + ".counters"))
        server, client = room.both_succeed(argv, **chosen, **ends, **how)
        for again in range(TRIES - 1):
            if not carried or not any(SILENT in proc.output() for proc in (server, client)):
                break
            room.note(f"a side heard nothing for 20 ms, try {again + 2}")
            server, client = room.both_succeed(argv, **chosen, **ends, **how)
        if rows:
            expect_results(client, rows)
        expect_roles(room, server, client, stateless, carried)
        if look:
            look(room, server, client)

    return Case(f"star/{name}", run, timeout)


def matrix():
    for stateless in ROLES:
        for name, argv, rows, reliable in combinations():
            # 23 sizes up to 8 MB take half a minute each: the pingpongs have sizes of their own.
            if not reliable or "all-sizes" in name:
                continue
            carried = "-xrc" not in name and "-srq" not in name
            yield pair_case(f"{name}-{stateless}", argv, stateless, rows=rows, timeout=120, carried=carried)
        for operation in ("send", "write", "read", "atomic"):
            for kind in ("bw", "lat"):
                argv = program(operation, kind)
                yield pair_case(f"udp-{operation}-{kind}-{stateless}", argv, stateless, UDP, timeout=120)
                lossy = program(operation, kind, iterations=30) + LOSSY_TIMEOUT
                yield pair_case(f"udp-{operation}-{kind}-faulty-{stateless}", lossy, stateless, (*UDP, *LOSS), timeout=120)


def pingpongs():
    for stateless in ROLES:
        for way, options in (("one-address", ()), ("udp", UDP)):
            for variant, extra in RC_VARIANTS.items():
                yield pair_case(f"pingpong-{variant}-{way}-{stateless}", pingpong("rc", *extra), stateless, options, rows=0)
            for kind in ("srq", "uc", "ud"):
                argv = pingpong(kind)
                yield pair_case(f"pingpong-{kind}-{way}-{stateless}", argv, stateless, options, rows=0, carried=False)
        for size in SIZES:
            argv = pingpong("rc", "-c", "-s", size, iterations=20)
            yield pair_case(f"pingpong-{size}B-{stateless}", argv, stateless, UDP, rows=0)


def on_a_wire():
    for stateless in ROLES:
        for mtu, path in MTUS.items():
            argv = pingpong("rc", "-m", path, "-c", "-s", 100000, iterations=20)
            yield pair_case(f"netns-{mtu}-pingpong-{stateless}", argv, stateless, rows=0, mtu=mtu)
            for operation in ("write", "read"):
                yield pair_case(f"netns-{mtu}-{operation}-bw-{stateless}", program(operation, "bw"), stateless, mtu=mtu)


def by_address(room, procs, stateless, operation, kind):
    """What the stateless side has posted was named by address, and read from no queue; both sides have warned."""
    for proc in procs:
        require_text(proc.output(), "^adverb: star_trust=carried: addresses and local keys .* leave this host", proc.label)
    # A client that keeps the state writes and reads regions, by their own keys. In write's latency both sides write.
    expected = operation == "send" or stateless == "client" or (operation, kind) == ("write", "lat")
    other = "client" if stateless == "server" else "server"
    own, theirs = (read_counters(room.path(side + ".counters")) for side in (stateless, other))
    if bool(own["star_carried"]) != expected or own["star_host_bytes"]:
        raise Fail(f"{own['star_carried']} packets by address, {own['star_host_bytes']} bytes of queues read")
    if theirs["star_carried"]:
        raise Fail(f"the stateful side has executed {theirs['star_carried']} packets by address")
    room.note(f"{own['star_carried']} of {own['star_executed']} packets by address")


def carried_cases():
    trust = ("--star-trust", "carried")
    for stateless in ROLES:
        for way, options in (("one-address", ()), ("udp", UDP)):
            for operation in ("send", "write", "read"):
                for kind in ("bw", "lat"):
                    def look(room, *procs, what=(stateless, operation, kind)):
                        by_address(room, procs, *what)

                    yield pair_case(f"carried-{operation}-{kind}-{way}-{stateless}", program(operation, kind), stateless,
                                    (*options, *trust), timeout=120, look=look)
        yield pair_case(f"carried-send-bw-faulty-{stateless}", program("send", "bw", iterations=30) + LOSSY_TIMEOUT, stateless,
                        (*UDP, *LOSS, *trust), timeout=120,
                        look=lambda room, *procs, stateless=stateless: by_address(room, procs, stateless, "send", "bw"))


def only_one_carries(stateless):
    """Where one side only wants addresses to travel, none does."""
    def look(room, server, client):
        for side in ("server", "client"):
            values = read_counters(room.path(side + ".counters"))
            if values["star_carried"]:
                raise Fail(f"the {side} has executed {values['star_carried']} packets by address")

    return pair_case(f"carried-by-one-{stateless}", program("send", "bw"), stateless, timeout=120, look=look,
                     server_extra=("--star-trust", "carried"))


def plain(name, server_options, client_options, words):
    """Without a peer that suits, plain RC carries the same programs, and the trace says why."""

    def run(room):
        require("ib_send_bw")
        argv = program("send", "bw")
        options = {"server_options": ("--trace", *server_options), "client_options": ("--trace", *client_options)}
        procs = room.both_succeed(argv, **options)
        expect_results(procs[1], 1)
        for proc, offers in zip(procs, (server_options, client_options)):
            roles = became(proc)
            if bool(roles) != ("star" in str(offers)) or any(role != "plain RC" for role in roles):
                raise Fail(f"the {proc.label}'s queue pairs became {roles}")
        said = "".join(proc.output() for proc in procs)
        if not re.search(words, said):
            raise Fail(f"nobody says {words}")

    return Case(f"star/{name}", run)


# A role by the name that the command knows it by: what its side becomes in words, and the other side's role.
TO = {"rc": ("plain RC", "rc"), "server": (STATELESS, "client"), "client": (STATEFUL, "server")}


def changed(proc):
    """What a process's queue pair has been changed to, one after the other, by its trace."""
    return re.findall(r"^adverb: qp \S+ is (.+) from now on: ", proc.output(), re.M)


def tell(room, label, pid, *options):
    """Runs `adverb star switch`; its status and what it said."""
    proc = room.spawn(label, [ADVERB, "star", "switch", "--pid", str(pid), *options])
    status = room.wait_exit(proc)
    return status, proc.output()


def told(room, procs, number, asked, role):
    """Has one side change, and waits until it is the other's too and calls have gone on."""
    there, here = procs[1 - asked], procs[asked]
    before = changed(there)
    status, said = tell(room, f"switch-{number}", here.pid, "--to", role)
    given_up = status == 1 and "the change of its StaR role came to nothing" in said
    if given_up:
        # A peer without a processor for that long: whoever asked asks again.
        status, said = tell(room, f"switch-{number}-again", here.pid, "--to", role)
    # It may have come to something after all: then it is so already.
    words = "from now on: asked for here" + ("|already" if given_up else "")
    if status != 0 or not re.fullmatch(rf"qp 0x[0-9a-f]+ is {TO[role][0]} (?:{words})\n", said):
        raise Fail(f"switch {number} of {here.label} to {role} ends with {status}: {said}")
    mirrored = TO[TO[role][1]][0]
    room.wait_until(f"{there.label} that is {mirrored}", lambda: (given_up or len(changed(there)) > len(before))
                    and changed(there)[-1] == mirrored)
    calls = len(re.findall("^at ", procs[1].output(), re.M))

    def goes_on():
        for proc in procs:
            if proc.popen.poll() is not None:
                raise Fail(f"{proc.label} ended with {proc.popen.returncode} after switch {number}, to {role}")
        # The first line after the switch may be of calls before it.
        return len(re.findall("^at ", procs[1].output(), re.M)) >= calls + 2

    room.wait_until("calls that go on", goes_on)
    return given_up


def switching(rounds, timeout, long):
    """RC, StaR, the roles swapped, RC again, under loss and calls that go on."""

    def run(room):
        options = {}
        for side in ("server", "client"):
            counted = ("--counters", room.path(side + ".counters"))
            options[side + "_options"] = ("--transport", "star", "--trace", *UDP, *LOSS, *counted)
        procs = room.pair([compile_c("calls")], [compile_c("calls")], client_address="127.0.0.2", **options)
        room.wait_output(procs[1], "^at 0$")
        number, given_up = 0, 0
        for turn in range(rounds):
            for role in ("server", "client", "rc") if turn % 4 < 2 else ("client", "server", "rc"):
                given_up += told(room, procs, number, turn % 2, role)
                number += 1
        if given_up > rounds / 10:
            raise Fail(f"{given_up} of {number} changes came to nothing at first")
        procs[1].kill(signal.SIGUSR1)
        room.all_succeed(*procs)
        answered = require_text(procs[0].output(), r"^answered (\d+), added (\d+)$", "the server").groups()
        called = require_text(procs[1].output(), r"^called (\d+), added (\d+)$", "the client").groups()
        if called != answered:
            raise Fail(f"calls and additions {called}, answered {answered}")
        for proc in procs:
            values = read_counters(room.path(proc.label + ".counters"))
            # To the other role it goes through plain RC.
            off = abs(len(changed(proc)) - 4 * rounds)
            if off > given_up or values["star_switch_given_up"] > given_up or not values["star_switches_said"]:
                raise Fail(f"{proc.label} changed {len(changed(proc))} times, gave {values['star_switch_given_up']} up")
            if not values["fault_tx_lost"]:
                raise Fail(f"nothing of {proc.label}'s was lost")
        room.note(f"{number} commands, {given_up} of them twice, {called[0]} calls")

    return Case(f"star/switch-{rounds}-times", run, timeout, long)


def changed_why(proc):
    return re.findall(r"^adverb: qp \S+ is (.+ from now on: .+)$", proc.output(), re.M)


def by_policy(rounds):
    """Nobody tells anybody: connections come to the server's NIC and go, and with them StaR on the one that is called over."""

    def run(room):
        policy = ("--transport", "star", "--star-threshold", "4", "--star-hold", "300ms", "--trace")
        options = {f"{side}_options": (*policy, *UDP, "--counters", room.path(side + ".counters"))
                   for side in ("server", "client")}
        procs = room.pair([compile_c("calls")], [compile_c("calls")], client_address="127.0.0.2", **options)
        room.wait_output(procs[1], "^at 0$")
        expected = ([], [])
        for number in range(2 * rounds):
            many = number % 2 == 0
            expected[0].append(f"{STATELESS} from now on: this side has more connections" if many
                               else "plain RC from now on: by the number of connections")
            expected[1].append(f"{STATEFUL} from now on: the peer has more connections" if many
                               else "plain RC from now on: by the number of connections")
            procs[0].kill(signal.SIGUSR2)
            for proc, words in zip(procs, expected):
                room.wait_until(f"{proc.label}: {words[-1]}", lambda: len(changed_why(proc)) >= len(words))
            room.wait_until("calls that go on", goes_on(procs[1]))
        procs[1].kill(signal.SIGUSR1)
        room.all_succeed(*procs)
        answered = require_text(procs[0].output(), r"^answered (\d+), added (\d+)$", "the server").groups()
        called = require_text(procs[1].output(), r"^called (\d+), added (\d+)$", "the client").groups()
        if called != answered:
            raise Fail(f"calls and additions {called}, answered {answered}")
        for proc, words in zip(procs, expected):
            said, values = changed_why(proc), read_counters(room.path(proc.label + ".counters"))
            to = ("star_to_rc", "star_to_stateless", "star_to_stateful")
            counted = [values[name] for name in to]
            wanted = [rounds, *([rounds, 0] if proc is procs[0] else [0, rounds])]
            if counted != wanted:
                raise Fail(f"{proc.label} counts {counted} changes to RC, stateless and stateful, not {wanted}")
            if said != words:
                raise Fail(f"{proc.label} changed: {said}, not {words}")
        room.note(f"{2 * rounds} changes, {called[0]} calls")

    return Case(f"star/switch-by-policy", run, 120)


def swapped_by_policy(room):
    """The server has more connections than the client, then the client than the server, then as at first: each time the side
    with more becomes stateless, from the other role through plain RC, and calls go on."""
    policy = ("--transport", "star", "--star-threshold", "4", "--star-hold", "300ms", "--trace")
    options = {f"{side}_options": (*policy, *UDP, "--counters", room.path(side + ".counters"))
               for side in ("server", "client")}
    procs = room.pair([compile_c("calls")], [compile_c("calls")], client_address="127.0.0.2", **options)
    room.wait_output(procs[1], "^at 0$")
    for fuller, grows in ((0, 0), (1, 1), (0, 1)):
        procs[grows].kill(signal.SIGUSR2)
        for proc, side in ((procs[fuller], STATELESS), (procs[1 - fuller], STATEFUL)):
            room.wait_until(f"{proc.label} that is {side}", lambda: (changed(proc) or [""])[-1] == side)
        room.wait_until("calls that go on", goes_on(procs[1]))
    procs[1].kill(signal.SIGUSR1)
    room.all_succeed(*procs)
    answered = require_text(procs[0].output(), r"^answered (\d+), added (\d+)$", "the server").groups()
    called = require_text(procs[1].output(), r"^called (\d+), added (\d+)$", "the client").groups()
    if called != answered:
        raise Fail(f"calls and additions {called}, answered {answered}")
    for proc, wanted in zip(procs, ([2, 2, 1], [2, 1, 2])):
        values = read_counters(room.path(proc.label + ".counters"))
        counted = [values[name] for name in ("star_to_rc", "star_to_stateless", "star_to_stateful")]
        if counted != wanted:
            raise Fail(f"{proc.label} counts {counted} changes to RC, stateless and stateful, not {wanted}: {changed_why(proc)}")
    room.note(f"2 swaps, {called[0]} calls")


def goes_on(proc):
    """Whether a caller has made calls from now on."""
    count = lambda: len(re.findall("^at ", proc.output(), re.M))  # noqa: E731
    before = count()
    return lambda: count() >= before + 2


def switch_refused(room):
    """The command says what is wrong: no process, none of StaR's, no connection, no such queue pair."""
    quiet = room.spawn("quiet", ["sleep", "1000"])
    star = ("--transport", "star", "--trace")
    procs = room.pair([compile_c("calls")], [compile_c("calls")], server_options=star, client_options=star)
    room.wait_output(procs[1], "^at 0$")
    for label, pid, options, words in (
        ("no-process", 2**31 - 1, (), "there is no such process"),
        ("no-nic", quiet.pid, (), "it has opened no NIC of adverb's with --transport star"),
        ("no-queue-pair", procs[0].pid, ("--qp", "0x1"), "no such queue pair connected"),
    ):
        status, said = tell(room, label, pid, "--to", "server", *options)
        if status != 1 or words not in said:
            raise Fail(f"{label} ends with {status}: {said}")
    status, said = tell(room, "already", procs[0].pid, "--to", "rc")
    if status != 0 or "is plain RC already" not in said:
        raise Fail(f"who is plain RC ends with {status}: {said}")
    number = require_text(said, "^qp (0x[0-9a-f]+) ", "the queue pair").group(1)
    status, said = tell(room, "one", procs[0].pid, "--to", "server", "--qp", number)
    if status != 0 or said != f"qp {number} is {STATELESS} from now on: asked for here\n":
        raise Fail(f"one queue pair ends with {status}: {said}")
    procs[1].kill(signal.SIGUSR1)
    room.all_succeed(*procs)


class Hub:
    """A process that answers several callers, each a process with an address, and a transport, of its own: to one it is
    stateless, to another stateful, to a third one plain RC."""

    ADDRESS = "127.0.0.1"

    def __init__(self, room, peers, options):
        self.room = room
        port = room.port()
        binary = compile_c("calls")
        self.proc = room.adverb("hub", [binary, "-n", str(len(peers)), "-p", str(port)], address=self.ADDRESS, options=(
            "--transport", "star", "--trace", *options, "--counters", room.path("hub.counters")))
        room.wait_listening(self.proc, port)
        self.peers = {}
        for number, (name, transport) in enumerate(peers):
            counted = ("--counters", room.path(name + ".counters"))
            self.peers[name] = room.adverb(name, [binary, "-p", str(port), self.ADDRESS], address=f"127.0.0.{number + 2}",
                                           options=(*transport, "--trace", *options, *counted))
        for number, name in enumerate(self.peers):
            room.wait_output(self.peers[name], "^at 0$")
        words = r"^connection (\d+) is of 127.0.0."
        self.sides = {name: require_text(self.proc.output(), f"{words}{number + 2}$", "the hub").group(1)
                      for number, name in enumerate(self.peers)}

    def go_on(self, calls, names):
        """Waits until each of these has been answered so many calls more."""
        count = lambda name: len(re.findall("^at ", self.peers[name].output(), re.M))  # noqa: E731
        before = {name: count(name) for name in names}

        def done():
            for name in (*names, "hub"):
                proc = self.proc if name == "hub" else self.peers[name]
                if proc.popen.poll() is not None:
                    raise Fail(f"{name} ended with {proc.popen.returncode} while it was to go on")
            return all(count(name) > before[name] + calls // 100 for name in names)

        self.room.wait_until("calls that go on", done)

    def end(self, names):
        """These end well, and both sides of each have counted the same."""
        for name in names:
            self.peers[name].kill(signal.SIGUSR1)
        self.room.all_succeed(self.proc, *(self.peers[name] for name in names))
        for name in names:
            words = r"(\d+), added (\d+)$"
            called = require_text(self.peers[name].output(), "^called " + words, name).groups()
            answered = require_text(self.proc.output(), rf"^connection {self.sides[name]} answered {words}", "the hub").groups()
            if called != answered:
                raise Fail(f"{name} has made {called} calls and additions, {answered} were answered")
            self.room.note(f"{name} {called[0]} calls")
        return read_counters(self.room.path("hub.counters"))

    def heard_all(self):
        """Whether nobody waited 20 ms in vain for a word of StaR."""
        plain = ("only", "plain")
        return not any(SILENT in proc.output() for name, proc in self.peers.items() if name not in plain) \
            and len(re.findall(SILENT, self.proc.output())) <= len(set(self.peers) & set(plain))


def a_hub(room, peers, options):
    """One whose peers have all the stacks that they ask for: a host without a processor for 20 ms has another attempt."""
    for again in range(TRIES):
        hub = Hub(room, peers, options)
        if hub.heard_all() or again == TRIES - 1:
            return hub
        room.note(f"a side heard nothing for 20 ms, try {again + 2}")
        for proc in (hub.proc, *hub.peers.values()):
            proc.kill()
            room.wait_exit(proc)


def all_stacks(options):
    """One process, one NIC, all three stacks at once, and traffic on all of them (III-E1)."""

    def run(room):
        hub = a_hub(room, (("stateless", CLIENT), ("stateful", SERVER), ("plain", ())), options)
        hub.go_on(500, list(hub.peers))
        roles = sorted(became(hub.proc))
        if roles != sorted((STATELESS, STATEFUL, "plain RC")):
            raise Fail(f"the process's queue pairs became {roles}")
        values = hub.end(list(hub.peers))
        if (values["star_agreed"], values["star_fell_back"]) != (2, 1):
            raise Fail(f"{values['star_agreed']} agreed, {values['star_fell_back']} became plain RC, not 2 and 1")
        # The stateless half has executed for one peer, and the stateful half has been told of another's requests.
        theirs = {name: read_counters(room.path(name + ".counters")) for name in hub.peers}
        for side, counted in ((values, "star_executed"), (values, "star_work_sent"), (theirs["stateful"], "star_executed")):
            if not side[counted]:
                raise Fail(f"{counted} is 0")
        if theirs["plain"]["star_hellos_sent"] or theirs["plain"]["star_executed"]:
            raise Fail("a process that does not know StaR has said something of it")
        lost = sum(side["fault_tx_lost"] for side in (values, *theirs.values()))
        if LOSS[0] in options and not lost:
            raise Fail("nothing was lost")
        room.note(f"{lost} packets lost")

    return run


def paused(room, loss="0.02"):
    """A client that is stopped for longer than its packets live, again and again, and continued each time before anybody's
    patience ends: it goes on, and what it had under way comes too late and changes nothing. On a busy host it may be this
    that has no processor, and continues the client too late: a connection that ends of that is tried again."""
    for again in range(TRIES):
        hub = a_hub(room, (("paused", CLIENT), ("other", CLIENT), ("plain", ())), (*UDP, "--loss", loss, "--seed", "7"))
        longest = 0
        try:
            for _ in range(10):
                begun = time.monotonic()
                hub.peers["paused"].kill(signal.SIGSTOP)
                end = begun + 5 * LIFETIME_S
                room.wait_until("time that passes for a stopped client", lambda: time.monotonic() >= end)
                hub.peers["paused"].kill(signal.SIGCONT)
                longest = max(longest, time.monotonic() - begun)
                hub.go_on(100, ["paused", "other"])
            break
        except Fail:
            if longest < CONFIGURED_S / 2 or again == TRIES - 1:
                raise
            room.note(f"a pause took {longest:.2f} s, try {again + 2}")
            for proc in (hub.proc, *hub.peers.values()):
                proc.kill()
                room.wait_exit(proc)
    values = hub.end(list(hub.peers))
    if not values["star_drop_expired"]:
        raise Fail("no packet came too late")
    room.note(f"{values['star_drop_expired']} packets too late")


def silenced(signum, role):
    """A peer that is killed, or stopped for longer than all timeouts: its connection fails in time and says why, the others go
    on, and if it goes on later it hears that it has failed."""

    def run(room):
        hub = a_hub(room, (("silent", role), ("stateless", CLIENT), ("stateful", SERVER), ("plain", ())), UDP)
        others = [name for name in hub.peers if name != "silent"]
        hub.go_on(100, list(hub.peers))
        begun = time.monotonic()
        hub.peers["silent"].kill(signum)
        # Who only waits for requests waits for ever, as with RC.
        hub.proc.kill(signal.SIGHUP)
        number = hub.sides["silent"]
        room.wait_output(hub.proc, rf"^connection {number} ended with transport retry counter exceeded$")
        took = time.monotonic() - begun
        if took > (CONFIGURED_S + GRACE_S) * Case.time_scale:
            raise Fail(f"the error came after {took:.2f} s; the timeouts come to {CONFIGURED_S:.2f} s")
        word = "has ended" if signum == signal.SIGKILL else "is stopped"
        room.wait_output(hub.proc, rf"completed with TransportRetryExceeded: .*{word}")
        hub.go_on(300, others)
        hub.peers["silent"].kill(signal.SIGHUP)
        hub.peers["silent"].kill(signal.SIGCONT)
        status = room.wait_exit(hub.peers["silent"])
        if signum == signal.SIGSTOP:
            if status != 2:
                raise Fail(f"the client that was stopped ends with {status}")
            require_text(hub.peers["silent"].output(), r"^request 0x\w+ ended with ", "the client that was stopped")
            require_text(hub.peers["silent"].output(), r"^adverb: .*completed with \w+: ", "its trace")
        hub.go_on(300, others)
        values = hub.end(others)
        if values["star_agreed"] != 3:
            raise Fail(f"{values['star_agreed']} connections agreed, not 3")

    return run


def cases():
    yield Case("star/all-stacks-at-once", all_stacks(UDP), 60)
    yield Case("star/all-stacks-at-once-faulty", all_stacks((*UDP, *LOSS)), 120)
    yield Case("star/paused-client", paused, 120)
    yield Case("star/paused-client-lossy", lambda room: paused(room, "0.05"), 120, long=True)
    for name, role in (("client", CLIENT), ("server", SERVER)):
        yield Case(f"star/stopped-{name}", silenced(signal.SIGSTOP, role), 60)
        yield Case(f"star/killed-{name}", silenced(signal.SIGKILL, role), 60)
    yield switching(20, 120, False)
    yield switching(100, 600, True)
    yield by_policy(2)
    yield Case("star/switch-swapped-by-policy", swapped_by_policy, 120)
    yield Case("star/switch-refused", switch_refused)
    unknown = "the peer sent a request of plain RC|" + SILENT
    for name, role in (("server", SERVER), ("client", CLIENT)):
        yield plain(f"only-the-server-is-{name}", role, (), unknown)
        yield plain(f"only-the-client-is-{name}", (), role, unknown)
        yield plain(f"both-are-{name}", role, role, "both sides want the same role of StaR|" + unknown)
        yield plain(f"{name}-and-irn", role, ("--transport", "irn"), unknown)
    few = "neither side has more connections than its StaR threshold|" + unknown
    yield plain("auto-with-few-connections", ("--transport", "star"), ("--transport", "star"), few)
    yield from pingpongs()
    yield from matrix()
    yield from on_a_wire()
    yield from carried_cases()
    yield from map(only_one_carries, ROLES)
