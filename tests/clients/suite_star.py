"""StaR between unmodified programs, with either side stateless: every case says what its queue pairs have become, and fails
where plain RC was used though StaR carries the queue pair; loss; peers that do not know it; what it excludes."""

import re

from harness import Case, Fail, read_counters, require
from suite_irn import UDP, pingpong
from suite_perftest import LOSSY_TIMEOUT, combinations, expect_results, program
from suite_utils import RC_VARIANTS, SIZES

SERVER, CLIENT = ("--transport", "star-server"), ("--transport", "star-client")
# By who is stateless.
ROLES = {"server": (SERVER, CLIENT), "client": (CLIENT, SERVER)}
STATELESS, STATEFUL = "StaR, stateless", "StaR, stateful"
LOSS = ("--loss", "0.01", "--seed", "7")


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


def pair_case(name, argv, stateless, options=(), rows=1, timeout=60, carried=True, **how):
    def run(room):
        require(argv[0])
        chosen = {}
        for side, role in zip(("server", "client"), ROLES[stateless]):
            chosen[side + "_options"] = (*role, "--trace", *options, "--counters", room.path(side + ".counters"))
        server, client = room.both_succeed(argv, **chosen, **how)
        if rows:
            expect_results(client, rows)
        expect_roles(room, server, client, stateless, carried)

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


def cases():
    unknown = "the peer sent a request of plain RC|the peer did not answer whether it knows StaR"
    for name, role in (("server", SERVER), ("client", CLIENT)):
        yield plain(f"only-the-server-is-{name}", role, (), unknown)
        yield plain(f"only-the-client-is-{name}", (), role, unknown)
        yield plain(f"both-are-{name}", role, role, "both sides want the same role of StaR|" + unknown)
        yield plain(f"{name}-and-irn", role, ("--transport", "irn"), unknown)
    few = "neither side has more connections than its StaR threshold|" + unknown
    yield plain("auto-with-few-connections", ("--transport", "star"), ("--transport", "star"), few)
    yield from pingpongs()
    yield from matrix()
