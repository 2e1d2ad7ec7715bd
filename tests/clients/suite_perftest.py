"""The perftest programs, as Debian ships them, in every combination that they accept."""

import re

from harness import Case, Fail, require

NOTES = (
    "under loss only RC and XRC run: perftest counts every message of UC and UD and waits for ever for a lost one",
    "perftest times the processor before each row: latencies of all sizes take ten seconds, so they are long but for one",
    "an iteration count stays below perftest's receive depth of 512, so UC and UD lose nothing at the receiver",
)

# Operation -> the services it accepts besides RC.
SERVICES = {
    "send": ("RC", "UC", "UD", "XRC"),
    "write": ("RC", "UC", "XRC"),
    "read": ("RC", "XRC"),
    "atomic": ("RC", "XRC"),
}
SIZE = {"bw": 65536, "lat": 64}
# -u 13 is 4.096 us * 2^13, about 34 ms: half of what perftest takes by itself, and with its seven retries long enough
# for a peer that waits for a processor on a machine with more to do than this.
LOSS = ("--loss", "0.01", "--seed", "7")
LOSSY_TIMEOUT = ["-u", "13"]


def program(operation, kind, service="RC", extra=(), size=None, iterations=200):
    argv = [f"ib_{operation}_{kind}", "-F", "-c", service]
    if "-a" not in extra:
        argv += ["-n", str(iterations)]
        if operation != "atomic":
            argv += ["-s", str(size if size is not None else 1024 if service == "UD" else SIZE[kind])]
    return [*argv, *map(str, extra)]


def result_rows(text):
    """The rows of numbers that perftest prints under its header."""
    # On a busy host it may complain, in the middle of a line, that it cannot tell the processor's frequency.
    return re.findall(r"^ \d+[ \t]+\d+(?:[ \t]+[\d.infa-]+)+[ \t]*(?:Correlation coefficient .*)?$", text, re.M)


def expect_results(client, rows):
    found = len(result_rows(client.output()))
    if found < rows:
        raise Fail(f"the client printed {found} rows of results, not {rows}")


def is_long(name):
    """Of the latencies of all sizes one is enough for `make test`: the bandwidths go through the same sizes."""
    return name.endswith("-lat-rc-all-sizes") and name != "send-lat-rc-all-sizes"


def case(name, argv, rows=1, timeout=60, **how):
    def run(room):
        require(argv[0])
        _, client = room.both_succeed(argv, **how)
        expect_results(client, rows)

    return Case(f"perftest/{name}", run, timeout, is_long(name))


def combinations():
    """(name, argv, rows of results, valid under loss)."""
    for operation, services in SERVICES.items():
        for kind in ("bw", "lat"):
            for service in services:
                reliable = service in ("RC", "XRC")
                name = f"{operation}-{kind}-{service.lower()}"
                yield name, program(operation, kind, service), 1, reliable
                yield f"{name}-old-post-send", program(operation, kind, service, ["--use_old_post_send"]), 1, reliable
                if operation != "write":
                    yield f"{name}-events", program(operation, kind, service, ["-e"]), 1, reliable
                if kind == "bw":
                    yield f"{name}-bidirectional", program(operation, kind, service, ["-b"]), 1, reliable
                    if service != "XRC":
                        yield f"{name}-4-qps", program(operation, kind, service, ["-q", 4], iterations=50), 1, reliable
            if operation != "atomic":
                # 23 sizes, 2 B to 8 MB.
                yield f"{operation}-{kind}-rc-all-sizes", [*program(operation, kind, "RC", ["-a"]), "-n", "5"], 23, True
    for kind in ("bw", "lat"):
        for service in ("RC", "UD"):
            name = f"send-{kind}-{service.lower()}-srq"
            yield name, program("send", kind, service, ["--use-srq"]), 1, service == "RC"
    yield "write-bw-rc-post-list", program("write", "bw", "RC", ["-l", 8], iterations=256), 1, True
    yield "write-bw-rc-cq-mod-1", program("write", "bw", "RC", ["-Q", 1]), 1, True
    yield "write-lat-rc-inline", program("write", "lat", "RC", ["-I", 64]), 1, True
    yield "send-lat-rc-inline", program("send", "lat", "RC", ["-I", 64]), 1, True
    yield "atomic-bw-rc-cas", program("atomic", "bw", "RC", ["-A", "CMP_AND_SWAP"]), 1, True
    yield "atomic-lat-rc-cas", program("atomic", "lat", "RC", ["-A", "CMP_AND_SWAP"]), 1, True
    yield "read-bw-rc-1-outstanding", program("read", "bw", "RC", ["-o", 1]), 1, True


def cases():
    for name, argv, rows, reliable in combinations():
        yield case(name, argv, rows)
        if reliable:
            yield case(f"loss-{name}", argv + LOSSY_TIMEOUT, rows, timeout=120, options=LOSS)
    for operation in SERVICES:
        yield case(f"udp-{operation}-bw-rc", program(operation, "bw"), options=("--path", "udp"))
        yield case(f"udp-{operation}-lat-rc", program(operation, "lat"), options=("--path", "udp"))
