"""Programs of other releases of Debian, in roots that hold what they need and nothing of this system: `adverb run` is
called in there as it was built here; where that asks for a newer glibc, as scripts/portable.sh built it."""

import os
import re
import shutil

from archive import ask, download, paths
from harness import ADVERB, TARGET, WORK, Case, Fail, Skip, read_counters, require, require_text
from suite_rdmacm import TCP, alive, listens

# The releases, and the name that the package with librdmacm has there.
RELEASES = {"bullseye": "librdmacm1", "bookworm": "librdmacm1", "trixie": "librdmacm1t64", "sid": "librdmacm1t64"}
PACKAGES = ("libc6", "libgcc-s1", "libnl-3-200", "libnl-route-3-200", "libibverbs1", "ibverbs-providers",
            "ibverbs-utils", "rdmacm-utils")
# The build for older systems.
PORTABLE = os.path.join(os.path.abspath(TARGET), "portable", "x86_64")
TIMES = 3
# What a root has of this system: it is mounted there.
MOUNTS = 'for m in /proc /sys /dev "$2" "$3"; do mount --rbind "$m" "$1$m"; done; root=$1; shift 3; exec chroot "$root" "$@"'


def root_of(release):
    """A root with them, and their version of rdma-core."""
    require("apt-get", "dpkg-deb", "unshare", "chroot")
    if os.geteuid():
        raise Skip("chroot needs root")
    folder = os.path.join(WORK, "releases", release)
    wanted = [*PACKAGES, RELEASES[release]]
    debs = paths(os.path.join(folder, "debs"))
    if len(debs) != len(wanted):
        debs = download(release, wanted, os.path.join(folder, "debs"))
    root = os.path.join(folder, "root")
    shutil.rmtree(root, ignore_errors=True)
    for deb in debs:
        ask("dpkg-deb", "-x", deb, root)
    # Where libraries have moved below /usr, the old names are links of a package that is not taken.
    for name in ("lib", "lib64"):
        if not os.path.lexists(os.path.join(root, name)):
            os.symlink("usr/" + name, os.path.join(root, name))
    (of_verbs,) = (deb for deb in debs if os.path.basename(deb).startswith("libibverbs1_"))
    return root, ask("dpkg-deb", "-f", of_verbs, "Version").strip()


def version(text):
    return tuple(int(part) for part in text.split("."))


def asks_for_newer(root, built):
    """Whether a build asks for a newer glibc than the release has."""
    with open(os.path.join(root, "lib/x86_64-linux-gnu/libc.so.6"), "rb") as f:
        has = max(version(found.decode()) for found in re.findall(rb"\bGLIBC_(2\.\d+)\b", f.read()))
    files = [os.path.join(built, name) for name in ("adverb", "lib/libibverbs.so.1", "lib/libadverb_facade.so")]
    return any(version(found) > has for path in files for found in re.findall(r"\bGLIBC_(2\.\d+)\b", ask("objdump", "-T", path)))


class Inside:
    """Programs in a release's root, each with the command."""

    def __init__(self, room, release):
        self.room = room
        self.root, self.version = root_of(release)
        self.built = os.path.dirname(os.path.abspath(ADVERB))
        if asks_for_newer(self.root, self.built):
            if not os.path.exists(os.path.join(PORTABLE, "adverb")):
                raise Skip("what was built asks for a newer glibc, and scripts/portable.sh was not run")
            self.built = PORTABLE
            if asks_for_newer(self.root, self.built):
                raise Fail(f"{PORTABLE} asks for a newer glibc than the release has")
            room.note("as scripts/portable.sh built it")
        for folder in ("/proc", "/sys", "/dev", self.built, room.dir):
            os.makedirs(self.root + folder, exist_ok=True)

    def run(self, label, *argv):
        counters = self.room.path(label + ".counters")
        env = {"ADVERB": f"directory={self.room.path('shared')}"}
        command = [os.path.join(self.built, "adverb"), "run", "--address", "127.0.0.1", "--counters", counters, "--"]
        return self.room.spawn(label, ["unshare", "--mount", "sh", "-ec", MOUNTS, "sh", self.root, self.built, self.room.dir,
                                       *command, *argv], env=env)

    def expect(self, *procs):
        """Both have ended well, and requests went by the NIC."""
        self.room.all_succeed(*procs)
        for proc in procs:
            if not read_counters(self.room.path(proc.label + ".counters"))["requests_done"]:
                raise Fail(f"{proc.label} made no request of the NIC")


def pingpongs(release):
    def run(room):
        inside = Inside(room, release)
        for nth in range(TIMES):
            port = room.port()
            server = inside.run(f"server{nth}", "ibv_rc_pingpong", "-g", "0", "-c", "-p", str(port))
            room.wait_listening(server, port)
            client = inside.run(f"client{nth}", "ibv_rc_pingpong", "-g", "0", "-c", "-p", str(port), "127.0.0.1")
            inside.expect(server, client)
            require_text(client.output(), r"^1000 iters in ", "ibv_rc_pingpong")
        room.note(f"rdma-core {inside.version}, {TIMES} times")

    return run


def pings(release):
    def run(room):
        inside = Inside(room, release)
        for nth in range(TIMES):
            port = room.port()
            argv = ("rping", "-a", "127.0.0.1", "-p", str(port), "-C", "20", "-V", "-v")
            server = inside.run(f"server{nth}", *argv, "-s")
            room.wait_until("listener", lambda server=server, port=port: alive(server)
                            and listens(room.path("shared"), "127.0.0.1", TCP, port))
            client = inside.run(f"client{nth}", *argv, "-c")
            inside.expect(server, client)
            if client.output().count("ping data: rdma-ping-") != 20:
                raise Fail("rping did not print 20 pings")
        room.note(f"rdma-core {inside.version}, {TIMES} times")

    return run


def cases():
    for release in RELEASES:
        yield Case(f"releases/{release}-pingpong", pingpongs(release), timeout=180, long=True)
        yield Case(f"releases/{release}-rping", pings(release), timeout=180, long=True)
