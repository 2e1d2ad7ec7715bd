"""Bindings to verbs out of Rust's registry: `ibverbs` and `sideway`. A program of ours over each (crates/) sends messages back
and forth over RC; both bindings are generated while they are built, which wants CMake and libclang: their wheels."""

import os
import subprocess

from harness import HERE, WORK, Case, Fail, Skip, read_counters, require, require_text
from suite_rdmacm import ROUTES, start
from suite_wheels import FETCH_S, python_with

BUILD_S = 600
ROUNDS, BYTES = 1000, 4096
# What makes the bindings; in Debian cmake and libclang1 would do.
TOOLS = ("cmake==4.4.5", "libclang==18.1.1")
# How each reaches its peer.
BINDINGS = {"ibverbs": ("shm", "lossy"), "sideway": ("shm", "udp")}


def run_cargo(*argv, env, timeout):
    argv = ["cargo", *argv, "--locked", "--manifest-path", os.path.join(HERE, "crates", "Cargo.toml")]
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, env=env, timeout=timeout)


def built(binding):
    """The program over a binding, built if it is not yet; Skip where the registry, or a tool, cannot be had."""
    require("cargo", "cc", "pkg-config")
    if not os.path.exists("/usr/include/infiniband/verbs.h"):
        raise Skip("infiniband/verbs.h is not installed (scripts/setup.sh installs libibverbs-dev)")
    python = python_with("crates-tools", TOOLS)
    (clang,) = subprocess.run([python, "-c", "import clang; print(*clang.__path__)"], capture_output=True, text=True,
                              check=True).stdout.splitlines()
    headers = subprocess.run(["cc", "-print-file-name=include"], capture_output=True, text=True, check=True).stdout.strip()
    target = os.path.join(WORK, "crates")
    env = {**os.environ, "PATH": os.path.dirname(python) + os.pathsep + os.environ["PATH"], "CARGO_TARGET_DIR": target,
           "LIBCLANG_PATH": os.path.join(clang, "native"), "BINDGEN_EXTRA_CLANG_ARGS": "-isystem " + headers}
    try:
        fetched = run_cargo("fetch", env=env, timeout=FETCH_S)
    except subprocess.TimeoutExpired:
        raise Skip(f"the crates did not come from the registry within {FETCH_S} s") from None
    if fetched.returncode:
        raise Skip(f"the crates did not come from the registry: {fetched.stderr.strip().splitlines()[-1]}")
    made = run_cargo("build", "--offline", "--package", "by-" + binding, env=env, timeout=BUILD_S)
    if made.returncode:
        raise Fail(f"cargo build of {binding} failed:\n{made.stderr[-3000:]}")
    return os.path.join(target, "debug", "by-" + binding)


def pingpong(binding, route):
    def run(room):
        program = built(binding)
        how = ROUTES[route]
        if binding == "sideway":
            server, client = start(room, [program, "{port}"], [program, "{port}", "{server}"], **how)
        else:
            port = room.port()
            options = how.get("options", ())
            server = room.adverb("server", [program, str(port)],
                                 options=("--counters", room.path("server.counters"), *options))
            room.wait_listening(server, port)
            client = room.adverb("client", [program, str(port), "127.0.0.1"],
                                 options=("--counters", room.path("client.counters"), *options))
        room.all_succeed(server, client)
        counted = []
        for proc in (server, client):
            require_text(proc.output(), rf"^{binding}: {ROUNDS} rounds of {BYTES} bytes, all right$", proc.label)
            counted.append(read_counters(room.path(proc.label + ".counters")))
        if any(values["rx_bytes"] < ROUNDS * BYTES for values in counted):
            raise Fail("the bytes did not go by the device")
        resent = sum(values["retransmitted_packets"] for values in counted)
        if how.get("faulty") and not resent:
            raise Fail("nothing was sent again under loss")
        room.note(f"{counted[0]['rx_packets']} packets to the server, {resent} sent again")

    return run


def cases():
    # The first case of each builds, which takes a minute of a processor. A lost message of a connection by rdma_cm costs
    # 2.1 s where nothing is behind it, so that sideway's go without losses.
    for binding, routes in BINDINGS.items():
        for route in routes:
            yield Case(f"crates/{binding}-{route}", pingpong(binding, route), timeout=2 * FETCH_S + BUILD_S + 60, long=True)
