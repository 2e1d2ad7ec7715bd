"""What scripts/portable.sh has built for musl, in roots that hold Debian's musl and nothing else of a system: the oldest 1.2
that the archive has, and the newest. rdma-core's programs are built there from its source, against musl's headers, which come
with the linker. tests/packages/portable.py runs these cases."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile

import run
from run import REPO, TARGET, Skip, package, sh

sys.path.insert(0, os.path.join(REPO, "tests", "clients"))
import archive  # noqa: E402
import harness  # noqa: E402

BUILT = os.path.join(TARGET, "portable", "x86_64-musl")
NATIVE = ("adverb", "lib/libibverbs.so.1", "lib/libadverb_facade.so", "lib/mlx5dv/libmlx5.so.1", "lib/nolinks/librdmacm.so.1")
SONAME = "libc.musl-x86_64.so.1"
# Of musl 1.2.2 and of 1.2.6 on 2026-11-29. Before 1.2.2 no distribution had 1.2 but in testing.
OLDEST, NEWEST = RELEASES = ("bullseye", "sid")
COMMAND = "/opt/adverb/bin/adverb"
TIMES = 3
# The root is a mount of its own, as a system's is: what changes how mounts spread (`--facade namespace`) needs that.
INSIDE = """mount --bind "$1" "$1"
for m in /proc /sys /dev; do mount --rbind "$m" "$1$m"; done
root=$1; shift; exec chroot "$root" "$@"
"""

# Prints a file's first bytes, by two names of one call; musl 1.2.4 and later have the second for older programs alone.
SHOWN = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
extern int open64(const char *, int, ...);
int main(int argc, char **argv)
{
	int (*const calls[])(const char *, int, ...) = {open, open64};
	for (int i = 0; i < 2; i++) {
		char text[64];
		int fd = calls[i](argv[argc - 1], O_RDONLY);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
		if (n < 0)
			perror(i ? "open64" : "open");
		else
			printf("%s: %.*s\n", i ? "open64" : "open", (int)n, text);
	}
	return 0;
}
"""
OLD_NAME = "int open64(const char *path, int flags, ...) { return -1; }"
# A copy of the library that knows no device, and a program that is linked to it.
COPY = "void **ibv_get_device_list(int *count) { static void *none; *count = 0; return &none; }"
COUNTS = r"""
#include <stdio.h>
void **ibv_get_device_list(int *);
int main(void)
{
	int count = -1;
	ibv_get_device_list(&count);
	return printf("adapters %d\n", count) < 0;
}
"""
COPIED = "libibverbs-0a1b2c3d.so.1"
# What rdma-core's CMake finds out of the compiler.
CONFIG = "#define HAVE_STATEMENT_EXPR 1\n#define HAVE_TYPEOF 1\n#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1\n"


def work(*parts):
    return os.path.join(run.WORK, "musl", *parts)


def got(function, *args, **more):
    """What comes from elsewhere; the case is skipped where it does not."""
    try:
        return function(*args, **more)
    except harness.Skip as e:
        raise Skip(str(e)) from e


def files(release):
    """Debian's musl of a release, unpacked; where its library is."""
    folder = work(release)
    root = os.path.join(folder, "files")
    if not os.path.isdir(root):
        (deb,) = got(archive.download, release, ["musl"], os.path.join(folder, "debs"))
        got(archive.ask, "dpkg-deb", "-x", deb, root + ".new")
        os.rename(root + ".new", root)
    # What is below /usr in later ones has a link there.
    if not os.path.lexists(os.path.join(root, "lib")):
        os.symlink("usr/lib", os.path.join(root, "lib"))
    return root, os.path.join(root, "lib/x86_64-linux-musl/libc.so")


def source():
    """rdma-core's source, with its headers where programs look for them."""
    folder = work("rdma-core")
    if not os.path.isdir(folder):
        (tar,) = got(archive.download, NEWEST, ["rdma-core"], work("tar"), source=True)
        shutil.rmtree(folder + ".new", ignore_errors=True)
        with tarfile.open(tar) as packed:
            packed.extractall(folder + ".new", filter="data")
        (top,) = os.listdir(folder + ".new")
        top = os.path.join(folder + ".new", top)
        for name, parts in (("infiniband", ("libibverbs", "librdmacm", "providers/mlx5", "kernel-headers/rdma")),
                            ("rdma", ("librdmacm", "kernel-headers/rdma"))):
            where = os.path.join(top, "include", name)
            os.makedirs(where)
            for part in parts:
                for header in os.listdir(os.path.join(top, part)):
                    if header.endswith(".h"):
                        shutil.copy(os.path.join(top, part, header), where)
        with open(os.path.join(top, "include/config.h"), "w", encoding="utf-8") as f:
            f.write(CONFIG)
        os.rename(top, folder)
        os.rmdir(folder + ".new")
    return folder


def compiled(name, *words, text=None):
    """A program or library for musl of that name, by the compiler that built the command."""
    path = work("programs", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if text:
        words = (path + ".c", *words)
        with open(path + ".c", "w", encoding="utf-8") as f:
            f.write(text)
    caches = {name: work("zig-cache") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    sh(os.path.join(BUILT, "tools/cc"), "-O1", "-w", "-o", path, *words, env={**os.environ, **caches})
    return path


def clients():
    """rdma-core's own programs."""
    top = source()
    where = [os.path.join(top, "include"), top]
    headers = [f"-I{path}" for path in where]
    verbs, manager = (os.path.join(BUILT, "lib", name) for name in ("libibverbs.so.1", "nolinks/librdmacm.so.1"))
    pingpong = [os.path.join(top, "libibverbs/examples", name) for name in ("rc_pingpong.c", "pingpong.c")]
    rping = [os.path.join(top, "librdmacm/examples", name) for name in ("rping.c", "common.c")]
    return [compiled("ibv_rc_pingpong", *headers, *pingpong, verbs), compiled("rping", *headers, *rping, manager, verbs)]


class Root:
    """A root of a musl system: its loader, what the wheel holds, and these programs."""

    def __init__(self, release, *programs):
        for tool in ("unshare", "chroot"):
            if not shutil.which(tool):
                raise Skip(f"{tool} is not there")
        system, _ = files(release)
        self.root = work(release, "root")
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(system, self.root, symlinks=True)
        for folder in ("proc", "sys", "dev", "tmp", "usr/bin"):
            os.makedirs(os.path.join(self.root, folder), exist_ok=True)
        with zipfile.ZipFile(wheel()) as packed:
            packed.extractall(os.path.join(self.root, "opt"))
        os.chmod(self.root + COMMAND, 0o755)
        for program in programs:
            shutil.copy(program, os.path.join(self.root, "usr/bin"))
        libraries = [name for _, _, names in os.walk(self.root) for name in names if name.startswith("libc.so")]
        assert libraries == ["libc.so"], f"{self.root} has another C library: {libraries}"
        self.address = f"127.{64 + os.getpid() % 128}.{os.getpid() >> 8 & 255}.9"

    def line(self, *words):
        user = ["--user", "--map-root-user"] if os.geteuid() else []
        return ["unshare", *user, "--mount", "sh", "-ec", INSIDE, "sh", self.root, *words]

    def adverb(self, *words, options=()):
        return self.line(COMMAND, "run", "--address", self.address, *options, "--", *words)

    def start(self, line):
        return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wheel():
    return package("musllinux_1_2_x86_64.whl")


def undefined(path):
    """The names that a file must be given."""
    return {name.partition("@")[0] for _, binding, where, name in run.symbols(path) if where == "UND" and binding != "WEAK"}


def defined(path):
    return {name.partition("@")[0] for _, _, where, name in run.symbols(path) if where != "UND"}


def old_enough():
    """Nothing is needed but musl, and no name that 1.2.2 does not have; and the wheel is named for that."""
    _, libc = files(OLDEST)
    has = defined(libc) | defined(os.path.join(BUILT, "lib/libibverbs.so.1"))
    assert "open" in has and "preadv2" not in has, "this is no musl 1.2.2"
    names = set()
    for name in NATIVE:
        path = os.path.join(BUILT, name)
        needed = set(re.findall(r"\(NEEDED\)\s+Shared library: \[(\S+)\]", sh("readelf", "-dW", path)))
        assert needed <= {SONAME, "libibverbs.so.1"}, (name, needed)
        names |= undefined(path)
    assert len(names) > 100, names
    assert not names - has, sorted(names - has)
    assert sh("readelf", "-lW", os.path.join(BUILT, "adverb")).count("interpreter: /lib/ld-musl-x86_64.so.1") == 1
    with zipfile.ZipFile(wheel()) as packed:
        said = packed.read(f"{re.match('adverb-[^-]+', os.path.basename(wheel()))[0]}.dist-info/WHEEL").decode()
    assert "Tag: py3-none-musllinux_1_2_x86_64\n" in said, said


def pip_takes_it():
    """pip chooses the wheel for a system of musl 1.2, and none for one of 1.1."""
    folder = run.fresh("musl-pip")
    for version, status in (("1_2", 0), ("1_1", 1)):
        sh(sys.executable, "-m", "pip", "download", "--no-index", "--no-deps", "--only-binary", ":all:", "--find-links",
           run.PACKAGES, "--platform", f"musllinux_{version}_x86_64", "--dest", os.path.join(folder, version), "adverb",
           status=status)
    assert os.listdir(os.path.join(folder, "1_2")) == [os.path.basename(wheel())]


def command(release):
    """The command says what it is, and gives the hash that `make build`'s gives for the same seeds."""

    def check():
        root = Root(release)
        here = os.path.join(TARGET, "release", "adverb")
        assert sh(*root.line(COMMAND, "--version")) == sh(here, "--version")
        swarm = ("swarm", "--seeds", "20", "--hash")
        assert sh(*root.line(COMMAND, *swarm), seconds=600) == sh(here, *swarm, seconds=600)

    return check


def pingpong(release):
    """rdma-core's pingpong, what arrives compared: through shared memory, and through UDP, which counters tell apart."""

    def check():
        root = Root(release, *clients())
        port = str(20000 + os.getpid() % 10000)
        for options, way in (((), "shm"), (("--path", "udp"), "udp")):
            counters = ("--counters", "/tmp/client")
            words = ("ibv_rc_pingpong", "-g", "0", "-c", "-p", port)
            for _ in range(TIMES):
                server = root.start(root.adverb(*words, options=("--expect-rdma", *options)))
                try:
                    run.await_listener(server, int(port), 60)
                    said = sh(*root.adverb(*words, root.address, options=("--expect-rdma", *counters, *options)), seconds=60)
                    assert server.wait(60) == 0, server.communicate()[0]
                finally:
                    server.kill()
                    server.communicate()
                assert "1000 iters" in said, said
                counted = harness.read_counters(os.path.join(root.root, "tmp/client"))
                other = "udp" if way == "shm" else "shm"
                assert counted[f"{way}_tx_frames"] >= 1000 > counted[f"{other}_tx_frames"], counted

    return check


def rping(release):
    """rdma-core's program of rdma_cm, with the second library as a wheel has it."""

    def check():
        root = Root(release, *clients())
        for _ in range(TIMES):
            words = ("rping", "-a", root.address, "-C", "20", "-V", "-v")
            server = root.start(root.adverb(*words, "-s", options=("--expect-rdma",)))
            try:
                # It listens on no port of the kernel's: a client that comes too early is refused.
                deadline = time.monotonic() + 60
                while True:
                    client = subprocess.run(root.adverb(*words, "-c", options=("--expect-rdma",)), timeout=60, check=False,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    if client.returncode == 0:
                        break
                    assert server.poll() is None and time.monotonic() < deadline, client.stdout
                assert client.stdout.count("ping data: rdma-ping-") == 20, client.stdout
                server.communicate(timeout=60)
            finally:
                server.kill()
                server.communicate()

    return check


def facade(release):
    """The device in sysfs by a preloaded library, to programs that were built for this musl and for older ones."""

    def check():
        # Another name for musl, so that the linker takes it beside the usual one.
        older = compiled("older.so", "-shared", "-nostdlib", "-Wl,-soname,libc.so", text=OLD_NAME)
        program = compiled("shown", older, text=SHOWN)
        assert "open64" in undefined(program)
        path = "/sys/class/infiniband/adverb0/ports/1/state"
        for how in ("preload", "namespace"):
            said = sh(*Root(release, program).adverb("shown", path, options=("--facade", how)))
            assert "open: 4: ACTIVE\n" in said and "open64: 4: ACTIVE\n" in said, said

    return check


def mlx5dv():
    """Direct verbs: the program that tests/clients has for them."""
    program = os.path.join(REPO, "tests/clients/direct.c")
    libraries = (os.path.join(BUILT, "lib", name) for name in ("mlx5dv/libmlx5.so.1", "libibverbs.so.1"))
    direct = compiled("direct", "-D_GNU_SOURCE", f"-I{os.path.join(source(), 'include')}", program, *libraries)
    root = Root(NEWEST, direct)
    for part in ("chain", "raw", "refuse"):
        said = sh(*root.adverb("direct", part, options=("--mlx5dv",)))
        assert said.splitlines()[-1] == "OK", said


def copies():
    """A copy of the library that a program is linked to gives way to adverb's; the control is without."""
    copy = compiled(COPIED, "-shared", f"-Wl,-soname,{COPIED}", text=COPY)
    program = compiled("counts", copy, "-Wl,-rpath,$ORIGIN", text=COUNTS)
    for how, count in (("preload", 1), ("namespace", 1), ("off", 0)):
        root = Root(NEWEST, program, copy)
        said = sh(*root.adverb("counts", options=("--facade", how)))
        assert f"{COPIED} is a copy of libibverbs.so.1" in said and f"adapters {count}\n" in said, said


def refuses():
    """A program of the other C library is refused in words, both ways."""
    root = Root(NEWEST, *clients(), "/bin/true")
    said = sh(*root.adverb("true"), status=126)
    assert "/usr/bin/true: linked to glibc, and cannot load adverb's library, which is linked to musl" in said, said
    here = os.path.join(TARGET, "release", "adverb")
    said = sh(here, "run", "--address", "127.0.0.1", "--", os.path.join(root.root, "usr/bin/ibv_rc_pingpong"), status=126)
    assert "linked to musl, and cannot load adverb's library, which is linked to glibc" in said, said


CASES = [
    ("musl-old-enough", old_enough),
    ("musl-pip", pip_takes_it),
    *[(f"musl-{name}-{release}", case(release)) for release in RELEASES
      for name, case in (("command", command), ("pingpong", pingpong), ("rping", rping), ("facade", facade))],
    ("musl-mlx5dv", mlx5dv),
    ("musl-copies", copies),
    ("musl-refuses", refuses),
]
