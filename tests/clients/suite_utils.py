"""The ibverbs-utils programs, as Debian ships them: device listings and the five pingpongs."""

import re

from harness import Case, Fail, require, require_text

PINGPONGS = ("rc", "uc", "ud", "srq", "xsrq")
# How the two processes reach one another.
ROUTES = {
    "one-address": {},
    "udp": {"options": ("--path", "udp")},
    "two-addresses": {"client_address": "127.0.0.2"},
}
RC_VARIANTS = {
    "events": ["-e"],
    "validate": ["-c"],
    "timestamps": ["-t"],
    "new-send": ["-N"],
    "all-options": ["-e", "-c", "-N"],
}
SIZES = (1, 2, 1023, 1024, 1025, 4096, 65536, 1 << 20)


def pingpong(kind, *extra, iterations=100):
    argv = [f"ibv_{kind}_pingpong", "-g", "0", *map(str, extra)]
    return argv if kind == "xsrq" else [*argv, "-n", str(iterations)]


def pingpong_case(kind, route, extra=(), iterations=100):
    def run(room):
        require(f"ibv_{kind}_pingpong")
        server, client = room.both_succeed(pingpong(kind, *extra, iterations=iterations), **ROUTES[route])
        # Both sides say how many bytes they exchanged; xsrq says how many clients it served.
        said = server.output() + client.output()
        if kind == "xsrq":
            return
        if len(re.findall(r"^\d+ bytes in [\d.]+ seconds", said, re.M)) != 2:
            raise Fail("not both sides printed their result")
        if "invalid data" in said:
            raise Fail("a side received invalid data")

    return run


def devices(room):
    require("ibv_devices")
    require_text(room.alone(["ibv_devices"]), r"^\s*adverb0\s+[0-9a-f]{16}", "ibv_devices")


def devinfo(room):
    require("ibv_devinfo")
    text = room.alone(["ibv_devinfo", "-v"])
    for pattern in (
        r"hca_id:\s+adverb0",
        r"state:\s+PORT_ACTIVE",
        r"link_layer:\s+Ethernet",
        r"GID\[\s*0\]:\s+::ffff:127\.0\.0\.1, RoCE v2",
        r"atomic_cap:\s+ATOMIC_(HCA|GLOB)",
        r"active_mtu:\s+4096",
    ):
        require_text(text, pattern, "ibv_devinfo -v")


def devinfo_ipv6(room):
    require("ibv_devinfo")
    require_text(room.alone(["ibv_devinfo", "-v"], address="::1"), r"GID\[\s*0\]:\s+::1, RoCE v2", "ibv_devinfo -v")


def pingpong_ipv6(room):
    require("ibv_rc_pingpong")
    room.both_succeed(pingpong("rc", "-c"), server_address="::1", client_address="::1",
                      host="127.0.0.1", options=("--path", "udp"))


def cases():
    yield Case("utils/devices", devices)
    yield Case("utils/devinfo", devinfo)
    yield Case("utils/devinfo-ipv6", devinfo_ipv6)
    for route in ROUTES:
        for kind in PINGPONGS:
            yield Case(f"utils/{kind}-{route}", pingpong_case(kind, route))
        for variant, extra in RC_VARIANTS.items():
            yield Case(f"utils/rc-{variant}-{route}", pingpong_case("rc", route, extra))
        for size in SIZES:
            yield Case(f"utils/rc-{size}B-{route}", pingpong_case("rc", route, ("-c", "-s", size), iterations=20))
        for kind in ("uc", "ud", "srq", "xsrq"):
            yield Case(f"utils/{kind}-events-{route}", pingpong_case(kind, route, ("-e",)))
        yield Case(f"utils/rc-mtu4096-{route}", pingpong_case("rc", route, ("-c", "-m", 4096, "-s", 100000)))
    yield Case("utils/rc-ipv6-udp", pingpong_ipv6)
