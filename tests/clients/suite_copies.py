"""Programs that bring a copy of libibverbs along, as wheels of Python do, by a name of its own, and Conda's packages, by
the common one: Debian's library found by where the program stands, in the place of which `adverb run` puts adverb's."""

import os
import shutil
import subprocess
import sys

from harness import HERE, Case, Fail, Skip, read_counters, require, require_text
from suite_rdmacm import channel_closed_under_it, expect_counters, start, who_counts

COMMON, MANAGER = "libibverbs.so.1", "librdmacm.so.1"
SYSTEM = "/usr/lib/x86_64-linux-gnu/"
HASHED = "libibverbs-0a1b2c3d.so.1.14.44.0"
WAYS = ("namespace", "preload")
IS_COPY = r"^adverb: .*/{} is a copy of lib(?:ibverbs|rdmacm)\.so\.1"
REPLACED = IS_COPY + ": adverb's takes its place there too$"


def do(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Fail(f"{' '.join(argv)}: {done.stderr.strip()}")


def make_copy(folder, name, of=COMMON):
    """Debian's library in a folder, by a name that auditwheel would give it, or its own."""
    require("patchelf")
    if not os.path.exists(SYSTEM + of):
        raise Skip(f"{SYSTEM}{of} is not installed (scripts/setup.sh installs it)")
    os.makedirs(folder, exist_ok=True)
    copy = os.path.join(folder, name)
    shutil.copy(os.path.realpath(SYSTEM + of), copy)
    do("patchelf", "--set-soname", name, copy)
    return copy


def make_program(room, stock):
    """A stock program that finds copies beside it before all else."""
    require(stock)
    for name in (COMMON, MANAGER):
        make_copy(room.path("libs"), name, name)
    program = room.path(stock)
    shutil.copy(shutil.which(stock), program)
    do("patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/libs", program)
    return program


def pingpong(way):
    def run(room):
        argv = [make_program(room, "ibv_rc_pingpong"), "-g", "0", "-c", "-n", "200"]
        sides = ("server", "client")
        counters = {side: room.path(side + ".counters") for side in sides}
        options = {side: ("--facade", way, "--counters", path) for side, path in counters.items()}
        procs = room.pair(argv, argv, server_options=options["server"], client_options=options["client"])
        room.all_succeed(*procs)
        for side, proc in zip(sides, procs):
            require_text(proc.output(), REPLACED.format("libs/" + COMMON), "adverb run")
            if read_counters(counters[side])["tx_packets"] < 200:
                raise Fail(f"the {side} did not send 200 packets")

    return run


def rping(way):
    """Both libraries are copies; the process has one NIC all the same."""

    def run(room):
        argv = [make_program(room, "rping"), "-a", "{server}", "-p", "{port}", "-V", "-C", "50"]
        sides = start(room, [*argv, "-s"], [*argv, "-c", "-v"], options=("--facade", way))
        room.all_succeed(*sides, excuse=channel_closed_under_it)
        for proc in sides:
            for name in (COMMON, MANAGER):
                require_text(proc.output(), REPLACED.format("libs/" + name), "adverb run")
        require_text(sides[1].output(), "ping data: rdma-ping-49", "rping")
        expect_counters(room, False, who_counts(sides))

    return run


def without(room):
    """The control: where the copy stays it is said, and the program finds no device."""
    program = make_program(room, "ibv_rc_pingpong")
    proc = room.adverb("alone", [program, "-g", "0"], options=("--facade", "off"))
    if room.wait_exit(proc) == 0:
        raise Fail("the copy found a device: the other cases prove nothing")
    require_text(proc.output(), IS_COPY.format("libs/" + COMMON) + r", and stays \(--facade off\)$", "adverb run")
    require_text(proc.output(), r"^(No IB devices found|Failed to get IB devices list)", "ibv_rc_pingpong")


def make_package(room):
    """A virtual environment with a package whose native part is linked to a copy in the package's own folder of
    libraries. Returns its interpreter and the part."""
    require("cc")
    root = room.path("venv")
    do(sys.executable, "-m", "venv", "--without-pip", root)
    packages = os.path.join(root, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    copy = make_copy(os.path.join(packages, "thing.libs"), HASHED)
    part = os.path.join(packages, "thing", "native.so")
    os.mkdir(os.path.dirname(part))
    do("cc", "-shared", "-fPIC", "-o", part, os.path.join(HERE, "wheel.c"), copy,
       "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../thing.libs")
    return os.path.join(root, "bin", "python3"), part


def package(way):
    """A package of Python loads its part, and with it the copy, long after the program began: from the environment's
    interpreter, and from a shell that finds it in its path."""

    def run(room):
        python, part = make_package(room)
        ask = f"import ctypes; print('adapters', ctypes.CDLL({part!r}).adapters())"
        text = room.alone([python, "-c", ask], options=("--facade", way))
        require_text(text, REPLACED.format("thing.libs/" + HASHED), "adverb run")
        require_text(text, "^adapters 1$", "the package")
        path = os.path.dirname(python) + ":" + os.environ["PATH"]
        proc = room.adverb("shell", ["sh", "-c", f'python3 -c "{ask}"'], options=("--facade", way), env={"PATH": path})
        room.expect_success(proc)
        require_text(proc.output(), "^adapters 1$", "the package")
        # The control, and that the file is as it was for everybody else.
        plain = room.spawn("plain", [python, "-c", ask])
        room.expect_success(plain)
        require_text(plain.output(), "^adapters (0|-1)$", "the package without adverb")

    return run


def cases():
    for way in WAYS:
        yield Case(f"copies/pingpong-{way}", pingpong(way), timeout=60)
        yield Case(f"copies/rping-{way}", rping(way), timeout=60)
        yield Case(f"copies/package-{way}", package(way), timeout=60)
    yield Case("copies/without", without, timeout=60)
