"""The calls of a store of chained entries (tests/clients/stores_chain.c): between two rxe's, and between rxe and adverb, each
the store and the client. All ends must say the same, but for address handles over what happened to be in memory: Linux
asks for the way to an address when the handle is made, adverb when a datagram leaves."""

import lab
from harness import Case, Fail, compile_c, require_text
from sides import LAB, adverb, both_ways, rxe, wait_listening_in_guest, watched

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


def argv(binary, port, host=None):
    return [binary, "0", "-p", str(port), *([host] if host else [])]


def said(room, server, client):
    """What both ends say, without the handles; and those."""
    room.all_succeed(server, client)
    rows = [[row for row in end.output().split("\n") if row and not row.startswith("adverb:")] for end in (server, client)]
    require_text(client.output(), "^200 entries chained$", client.label)
    return ([[row for row in end if not row.startswith(HANDLE)] for end in rows],
            [row.removeprefix(HANDLE) for row in rows[1] if row.startswith(HANDLE)])


def two_rxes(room):
    fourth_gid(room)
    port = room.port()
    server = rxe(room, "server", argv("stores_chain", port))
    wait_listening_in_guest(room, server, port)
    rows, handles = said(room, server, rxe(room, "client", argv("stores_chain", port, lab.WORDS_GUEST)))
    room.note("; ".join(handles))
    return rows


def rxe_and_adverb(room, client_is_adverb):
    binary, port = compile_c("stores_chain"), room.port()
    fourth_gid(room)
    if client_is_adverb:
        server = rxe(room, "server", argv("stores_chain", port))
        wait_listening_in_guest(room, server, port)
        client = adverb(room, "client", argv(binary, port, lab.GUEST), env=GIDS)
    else:
        server = adverb(room, "server", argv(binary, port), env=GIDS)
        room.wait_listening(server, port)
        client = rxe(room, "client", argv("stores_chain", port, lab.HOST))
    rows, handles = said(room, server, client)
    if rows != [["OK"], ["200 entries chained", "OK"]]:
        raise Fail(f"{rows}")
    room.note("; ".join(handles))


def cases():
    yield Case("interop/entries/rxe-to-rxe", two_rxes, LIMIT_S)
    yield from both_ways("entries", rxe_and_adverb, LIMIT_S, least=400, also=(FOURTH,))


def large_cases():
    return ()
