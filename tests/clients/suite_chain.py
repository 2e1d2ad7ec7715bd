"""`adverb chain` through the process of a switch that steers: what the switch did must have happened, and each value that was
put is in its chain once, whatever becomes of frames and of the switch."""

import signal

from harness import ADVERB, Case, Fail, require_text
from suite_switch import AWAY_S, LOSS, SERVER, Switch, replays_the_same

STEERS = f'[[program]]\nkind = "steer"\nserver = "{SERVER}"\nentry = 128\nkeys = 64\n'
STEERED = ("steered_cas", "steered_reads")
SHOWN = (*STEERED, "tails_learned", "held")
BENCHES, CLIENTS, KEYS = 2, 4, 2
# Frames of a bench that has connected, and then some.
UNDER_WAY = 500


def chain(room, switch, label, words, address):
    """Starts `adverb chain` at an address behind the switch."""
    return room.spawn(label, [ADVERB, "chain", *words, "--via", "sw0", "--address", address], env=switch.env)


def address_of(bench):
    return f"10.9.0.{2 + bench}"


def benches(room, switch, seconds, during=None):
    """A home and two processes with several clients each on the same keys; `during` happens. All puts that were acknowledged
    must be in the chains, and nothing else but what is in doubt: puts whose connection failed."""
    at = ["--at", f"127.0.0.1:{room.port()}"]
    home = chain(room, switch, "home", ["serve", *at, "--keys", "16"], SERVER)
    room.wait_output(home, "^16 keys ready")
    load = ["bench", *at, "--time", f"{seconds}s", "--clients", str(CLIENTS), "--keys", str(KEYS)]
    procs = [chain(room, switch, f"bench{i}", load, address_of(i)) for i in range(BENCHES)]
    if during:
        during(procs)
    room.all_succeed(*procs)
    counters = switch.show()["counters"]
    puts = sum(int(require_text(proc.output(), r"^(\d+) puts: ", proc.label).group(1)) for proc in procs)
    doubts = [require_text(proc.output(), r"(\d+) connections failed with (\d+) puts in doubt$", proc.label) for proc in procs]
    failed, doubt = (sum(int(found.group(at)) for found in doubts) for at in (1, 2))
    audit = chain(room, switch, "audit", ["audit", *at], "10.9.0.9")
    room.expect_success(audit)
    found = int(require_text(audit.output(), r"^16 keys, (\d+) values put$", "the audit").group(1))
    if not puts <= found <= puts + doubt or not puts:
        raise Fail(f"{puts} puts were acknowledged, {doubt} are in doubt, and {found} values are in the chains")
    counted = ", ".join(f"{name} {counters[name]}" for name in (*SHOWN, "chains_passed", "repeated"))
    room.note(f"puts {puts} in doubt {doubt} found {found} failed {failed}; {counted}")
    for name in SHOWN:
        if not counters[name]:
            raise Fail(f"{name} is 0: nothing was shown")
    for name in ("drop_parse", "drop_source"):
        if counters[name]:
            raise Fail(f"{name} is {counters[name]}")
    return home


def steers(text):
    return lambda room: benches(room, Switch(room, text), 2)


def killed(room):
    """SIGKILL of the switch under load: another one, which knows nothing, learns the ends of the chains anew."""
    switch = Switch(room, STEERS, recorded=True)

    def steered(shown):
        return all(shown["counters"][name] for name in STEERED)

    def all_under_way():
        # One bench has work steered while another, on a busy machine, has yet to find the switch, which it also asks for
        # what it has counted: it would not find it while there is none.
        shown = switch.show()
        frames = {port["address"]: port["rx_frames"] for port in shown["ports"]}
        return all(frames.get(address_of(i), 0) >= UNDER_WAY for i in range(BENCHES)) and steered(shown)

    def during(procs):
        room.wait_until("steered requests of each bench", all_under_way)
        if any(proc.popen.poll() is not None for proc in procs):
            raise Fail("a bench has ended before the switch was killed: nothing was shown")
        switch.proc.kill(signal.SIGKILL)
        room.wait_exit(switch.proc)
        begun = room.remaining()
        room.wait_until("time without a switch", lambda: begun - room.remaining() >= AWAY_S)
        switch.start()
        room.wait_until("steered requests after the restart", lambda: steered(switch.show()))

    home = benches(room, switch, 6, during)
    home.kill(signal.SIGTERM)
    room.expect_success(home)
    switch.proc.kill(signal.SIGTERM)
    room.expect_success(switch.proc)
    replays_the_same(room, switch, 2, STEERED)


def unused(room):
    """A switch that steers for somebody else: the bench says so, and fails."""
    switch = Switch(room, STEERS.replace("entry = 128", "entry = 256"))
    at = ["--at", f"127.0.0.1:{room.port()}"]
    home = chain(room, switch, "home", ["serve", *at, "--keys", "16"], SERVER)
    room.wait_output(home, "^16 keys ready")
    load = chain(room, switch, "bench", ["bench", *at, "--time", "300ms", "--clients", "2"], "10.9.0.2")
    if room.wait_exit(load) == 0:
        raise Fail("nothing was steered, and the bench succeeds")
    require_text(load.output(), "the switch has steer, and steered nothing", load.label)


def cases():
    yield Case("switch/steer", steers(STEERS), 60)
    yield Case("switch/steer-loss", steers(STEERS + "hold-us = 200000\n" + LOSS), 90)
    yield Case("switch/steer-killed", killed, 90)
    yield Case("switch/steer-unused", unused, 60)
