"""C programs that order work requests by work requests: adverb/xchannel.h, and what stands on it."""

from harness import Case, Fail, compile_c, require_text

HEADERS = ("xchannel.h",)

# Both ways between two processes: shared memory on one address, UDP between two.
PATHS = {
    "shm": {},
    "udp": {"client_address": "127.0.0.2", "options": ("--path", "udp")},
}


def chain(part):
    def run(room):
        require_text(room.alone([compile_c("chain", own=HEADERS), part]), "^OK$", f"chain {part}")

    return run


def get(room, how):
    binary = compile_c("chain_get", own=HEADERS)
    server, client = room.both_succeed([binary, "server"], [binary, "client"], **how)
    require_text(server.output(), "^server answered$", "the server")
    require_text(client.output(), r"^client got 11 values, missed 5$", "the client")


def direct(part):
    def run(room):
        binary = compile_c("direct", libraries=("ibverbs", "mlx5"))
        require_text(room.alone([binary, part], options=("--mlx5dv",)), "^OK$", f"direct {part}")

    return run


def exp(part):
    def run(room):
        binary = compile_c("exp", own=("xchannel.h", "verbs_exp.h"))
        require_text(room.alone([binary, part]), "^OK$", f"exp {part}")

    return run


def rate(part):
    def run(room):
        require_text(room.alone([compile_c("rate", own=HEADERS), part]), "^OK$", f"rate {part}")

    return run


def direct_unasked(room):
    """Without `--mlx5dv` a program sees no direct verbs."""
    proc = room.adverb("alone", [compile_c("direct", libraries=("ibverbs", "mlx5")), "chain"])
    if room.wait_exit(proc) != 2:
        raise Fail("a program that was not to have direct verbs has them")
    require_text(proc.output(), "^no direct verbs", "the program")


def cases():
    for part in ("order", "if", "stale", "count", "refuse", "endless"):
        yield Case("xchannel/" + part, chain(part))
    for part in ("chain", "raw", "refuse"):
        yield Case("xchannel/direct-" + part, direct(part))
    yield Case("xchannel/direct-unasked", direct_unasked)
    for part in ("frames", "loop", "refuse"):
        yield Case("xchannel/rate-" + part, rate(part))
    for part in ("task", "count", "recv", "masked", "refuse"):
        yield Case("xchannel/exp-" + part, exp(part))
    for name, how in PATHS.items():
        yield Case("xchannel/get-" + name, lambda room, how=how: get(room, how))
