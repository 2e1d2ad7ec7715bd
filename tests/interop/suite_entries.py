"""The calls of a store of chained entries (tests/clients/stores_chain.c): between two rxe's, and between rxe and adverb, each
the store and the client. All ends must say the same, but for address handles over what happened to be in memory: Linux
asks for the way to an address when the handle is made, adverb when a datagram leaves."""

import lab
from harness import Case, Fail, compile_c
from sides import LAB, both_ways, rxe, start, wait_listening_in_guest

LIMIT_S = 40
# A fourth address of the guest: the program takes GID index 3, and rxe has one for each address.
FOURTH = "10.77.0.12"
INDEX = "3"
GIDS = {"ADVERB": "gids=4"}
HANDLE = "a GRH of bytes "


def fourth_gid(room):
    """Gives rxe a GID of index 3 for the time of a case."""
    link = f"{FOURTH}/24 dev {lab.GUEST_LINK}"
    LAB.in_guest(f"ip addr add {link}")
    room.cleanups.append(lambda: LAB.in_guest(f"ip addr del {link}"))
    file = f"{lab.GUEST_GIDS.format('rxe0')}/{INDEX}"
    room.wait_until("a fourth GID", lambda: LAB.in_guest(f"cat {file} 2>/dev/null || true").strip().strip("0:"))


def argv(is_adverb, port, host=None):
    return [compile_c("stores_chain") if is_adverb else "stores_chain", "0", "-p", str(port), *([host] if host else [])]


def say_the_same(room, server, client):
    """Both ends say what all do; what the client says of handles is noted."""
    room.all_succeed(server, client)
    rows = [[row for row in end.output().split("\n") if row and not row.startswith("adverb:")] for end in (server, client)]
    told = [[row for row in end if not row.startswith(HANDLE)] for end in rows]
    if told != [["OK"], ["200 entries chained", "OK"]]:
        raise Fail(f"{told}")
    room.note("; ".join(row.removeprefix(HANDLE) for row in rows[1] if row.startswith(HANDLE)))


def two_rxes(room):
    fourth_gid(room)
    port = room.port()
    server = rxe(room, "server", argv(False, port))
    wait_listening_in_guest(room, server, port)
    say_the_same(room, server, rxe(room, "client", argv(False, port, lab.WORDS_GUEST)))


def rxe_and_adverb(room, client_is_adverb):
    fourth_gid(room)
    ends = start(room, client_is_adverb, argv, argv, env=GIDS)
    say_the_same(room, ends.server, ends.client)


def cases():
    yield Case("interop/entries/rxe-to-rxe", two_rxes, LIMIT_S)
    yield from both_ways("entries", rxe_and_adverb, LIMIT_S, least=400, also=(FOURTH,))


def large_cases():
    return ()
