"""The calls that stores on disaggregated memory make: chains of entries (stores_chain.c), locks in the adapter's memory
(stores_locks.c). Their programs have GID index 3 written into them, so the NIC lists its address four times."""

from harness import Case, Fail, compile_c, require_text
from suite_switch import CAS, LOSS, Switch, expect_counted

HEADERS = {"chain": (), "locks": ("xchannel.h", "verbs_exp.h")}
GIDS = "gids=4"
PATHS = {
    "": {},
    "-udp": {"options": ("--path", "udp")},
    "-loss": {"options": ("--path", "udp", "--loss", "0.01", "--seed", "7")},
}
# What the switch must have decided. A word stays the server's for 0.7 s after the switch has first heard of it.
SECONDS = 2
DECIDED = {"chain": ("cas_refused",), "locks": ("fetch_added",)}
# A GID index that is none and no address at all are refused, whatever else lies in a GRH is an address.
HANDLES = "".join(rf"^a GRH of bytes {byte}, index {index}: {what}\n" for byte, index, what in (
    ("0xaa", "0xaa", "Invalid argument"), ("0", "0", "Invalid argument"), ("0x5a", "0x3", "a handle")))
SAID = {"chain": ("", HANDLES + "200 entries chained$"), "locks": ("^32768 locks taken and released$", "")}


def both(room, part, seconds=0, **how):
    server, client = room.both_succeed([compile_c(f"stores_{part}", own=HEADERS[part]), str(seconds)], **how)
    for end, also in zip((server, client), SAID[part]):
        require_text(end.output(), "^OK$", end.label)
        require_text(end.output(), also, end.label)


def alone(part, how):
    return lambda room: both(room, part, env={"ADVERB": GIDS}, **how)


def switched(part, text):
    def run(room):
        switch = Switch(room, text)
        ends = switch.ends()
        ends["env"] = {"ADVERB": f"{switch.env['ADVERB']},{GIDS}"}
        both(room, part, SECONDS, **ends)
        counters = switch.show()["counters"]
        switch.say(counters)
        # The datagram to an address that nobody has.
        if counters["drop_source"] or counters["drop_parse"] > 1:
            raise Fail(f"the switch dropped frames: {counters}")
        for name in DECIDED[part]:
            expect_counted(counters, name)

    return run


def cases():
    for part in SAID:
        for name, how in PATHS.items():
            # A loss costs as much as all else of 64 locks together.
            yield Case(f"stores/{part}{name}", alone(part, how), timeout=120, long=f"{part}{name}" == "locks-loss")
        yield Case(f"stores/{part}-switch", switched(part, CAS), timeout=120)
    yield Case("stores/chain-switch-loss", switched("chain", CAS + LOSS), timeout=120)
