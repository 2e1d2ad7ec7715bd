#!/usr/bin/env python3
"""Packs what scripts/portable.sh has built for older systems, for aarch64 and for musl, installs that as run.py does, and runs
it: here, what is for aarch64 under qemu-user in a root of Debian's arm64, and what is for musl as musl.py does.

    tests/packages/portable.py [-k TEXT] [--list]

A build that is not there is skipped, with its reason.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile

import musl
import run
from run import REPO, TARGET, Skip, fresh, package, read, sh, venv

sys.path.insert(0, os.path.join(REPO, "tests", "clients"))
import archive  # noqa: E402
import harness  # noqa: E402

PORTABLE = os.path.join(TARGET, "portable")
GLIBC = (2, 28)
MUSL = "x86_64-musl"
# rdma-core's pingpong for arm64, and what it needs.
RELEASE = "bookworm"
ARM = ("libc6", "libgcc-s1", "libnl-3-200", "libnl-route-3-200", "libibverbs1", "ibverbs-utils")
NATIVE = musl.NATIVE
# What glibc has, of all that files may need.
SYSTEM = {"libc", "libm", "libpthread", "libdl", "librt", "ld-linux-x86-64", "ld-linux-aarch64"}
# How the kernel knows programs for aarch64: the beginning of their files.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# A system's kernel has such rules for each user namespace: nothing of this system is changed. $1 is the root, $2 qemu.
INSIDE = r"""
mount -t binfmt_misc none "$1/rules"
printf '%s' ":aarch64:M::$MAGIC:$MASK:$2:F" > "$1/rules/register"
for m in /proc /sys /dev; do mount --rbind "$m" "$1$m"; done
root=$1; shift 2; exec chroot "$root" "$@"
"""


def packed():
    """All builds' packages, made afresh, where `package` finds those of this machine."""
    shutil.rmtree(run.PACKAGES, ignore_errors=True)
    for arch, kinds in (("x86_64", ()), ("aarch64", ("wheel",)), (MUSL, ("wheel",))):
        if is_built(arch):
            env = {**os.environ, "ADVERB_BUILD": os.path.join(PORTABLE, arch)}
            print(sh(sys.executable, os.path.join(REPO, "scripts/packages.py"), *kinds, env=env), end="")


def is_built(arch):
    return os.path.exists(os.path.join(PORTABLE, arch, "adverb"))


def built(run_case, arch):
    """The case, skipped where the build was not made."""

    def check():
        if not is_built(arch):
            words = arch.replace("-", " ")
            raise Skip(f"{os.path.join(PORTABLE, arch)} is not there: scripts/portable.sh {words} makes it")
        run_case()

    return check


def wheel_of(arch):
    return musl.wheel() if arch == MUSL else package(f"_{arch}.whl")


def old_enough(arch):
    """No file asks for a newer glibc than is said, and nothing but glibc is needed: not libgcc either."""

    def check():
        versions, needed = set(), set()
        for name in NATIVE:
            said = sh("readelf", "-dVW", os.path.join(PORTABLE, arch, name))
            versions |= {tuple(map(int, v.split("."))) for v in re.findall(r"Name: GLIBC_(\d+\.\d+)", said)}
            needed |= set(re.findall(r"\(NEEDED\)\s+Shared library: \[(\S+?)\.so", said))
        assert max(versions) <= GLIBC, max(versions)
        assert needed <= SYSTEM | {"libibverbs"}, needed
        assert "manylinux_{}_{}_".format(*max(versions)) in wheel_of(arch), (max(versions), wheel_of(arch))

    return check


def functions(path):
    """The names that a library exports, with their versions. GNU's linker exports the versions' own names too."""
    return {name for kind, _, where, name in run.symbols(path) if kind == "FUNC" and where != "UND"}


def nodes(path):
    """The versions that a library defines."""
    said = sh("readelf", "-VW", path)
    return set(re.findall(r"Rev: 1  Flags: \S+ +Index: \d+  Cnt: \d+  Name: (\S+)", said))


def same_names(arch):
    """Each library has the names and versions of the one that `make build` links, which crates/verbs/tests/abi.rs compares
    with the system's."""

    def check():
        for name in NATIVE[1:]:
            own, path = os.path.join(TARGET, "release", name), os.path.join(PORTABLE, arch, name)
            assert functions(path) == functions(own), f"{name}: {functions(path) ^ functions(own)}"
            assert nodes(path) == nodes(own), f"{name}: {nodes(path) ^ nodes(own)}"
        verbs = os.path.join(PORTABLE, arch, NATIVE[1])
        assert len(functions(verbs)) > 700 and len(nodes(verbs)) > 30, (len(functions(verbs)), len(nodes(verbs)))

    return check


def auditwheel(arch):
    """auditwheel, which PyPI goes by, takes the wheel for its tag, manylinux_2_28 or an older one. Of musl it knows no names
    of versions: that nothing else is needed is what it says."""

    def check():
        where = venv("auditwheel", ["auditwheel"], bare=True)
        said = " ".join(sh(os.path.join(where, "bin", "auditwheel"), "show", wheel_of(arch)).split())
        if arch == MUSL:
            assert 'consistent with the following platform tag: "musllinux_1_2_x86_64"' in said, said
            return
        found = re.search(r'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_(\w+)"', said)
        assert found and found[3] == arch and tuple(map(int, found.groups()[:2])) <= GLIBC, said

    return check


class Arm:
    """A root of Debian's arm64 with what the wheel for aarch64 holds, where programs run under qemu-user."""

    def __init__(self):
        store = os.path.join(run.WORK, "arm64")
        try:
            emulator, root = os.path.join(store, "qemu"), os.path.join(store, "root")
            if not os.path.exists(emulator):
                (deb,) = archive.download(RELEASE, ["qemu-user-static"], os.path.join(store, "qemu-debs"))
                archive.ask("dpkg-deb", "-x", deb, emulator + ".new")
                os.rename(os.path.join(emulator + ".new", "usr/bin/qemu-aarch64-static"), emulator)
                shutil.rmtree(emulator + ".new")
            debs = archive.paths(os.path.join(store, "debs"))
            if len(debs) != len(ARM):
                debs = archive.download(RELEASE, ARM, os.path.join(store, "debs"), architecture="arm64")
            shutil.rmtree(root, ignore_errors=True)
            for deb in debs:
                archive.ask("dpkg-deb", "-x", deb, root)
        except harness.Skip as e:
            raise Skip(str(e)) from e
        self.root, self.emulator = root, emulator
        for folder in ("proc", "sys", "dev", "rules", "tmp"):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
        with zipfile.ZipFile(wheel_of("aarch64")) as wheel:
            wheel.extractall(os.path.join(root, "opt"))
        self.command = "/opt/adverb/bin/adverb"
        os.chmod(root + self.command, 0o755)
        # A rule of the kernel's for one user namespace: since Linux 6.7.
        line = self.line("/lib/ld-linux-aarch64.so.1", "--version")
        probe = subprocess.run(line, env=ENV, capture_output=True, text=True, check=False)
        if probe.returncode and ("mount" in probe.stderr or "unshare" in probe.stderr):
            raise Skip(f"programs for aarch64 cannot run: {probe.stderr.strip().splitlines()[-1]}")

    def line(self, *words):
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", INSIDE, "sh", self.root, self.emulator, *words]


ENV = {**os.environ, "MAGIC": MAGIC, "MASK": MASK}


def arm_command():
    """The command says what it is, and gives the hash that it gives here for the same seeds."""
    arm = Arm()
    here = os.path.join(PORTABLE, "x86_64", "adverb")
    assert sh(*arm.line(arm.command, "--version"), env=ENV) == sh(here, "--version")
    swarm = ("swarm", "--seeds", "20", "--hash")
    assert sh(*arm.line(arm.command, *swarm), env=ENV, seconds=600) == sh(here, *swarm, seconds=600)


def arm_pingpong():
    """Debian's ibv_rc_pingpong for arm64 under the command, three times, what arrives compared; nothing was made for it."""
    arm = Arm()
    port = str(20000 + os.getpid() % 10000)
    line = arm.line(arm.command, "run", "--address", "127.0.0.1", "--expect-rdma", "--",
                    "ibv_rc_pingpong", "-g", "0", "-c", "-p", port)
    for _ in range(3):
        server = subprocess.Popen(line, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            run.await_listener(server, int(port), 120)
            said = sh(*line, "127.0.0.1", env=ENV, seconds=300)
            assert server.wait(120) == 0, server.communicate()[0]
        finally:
            server.kill()
        assert "1000 iters" in said, said


CASES = [
    *[(f"portable/{arch}-{name}", built(case(arch), arch), False) for arch in ("x86_64", "aarch64")
      for name, case in (("old-enough", old_enough), ("same-names", same_names), ("auditwheel", auditwheel))],
    ("portable/musl-same-names", built(same_names(MUSL), MUSL), False),
    ("portable/musl-auditwheel", built(auditwheel(MUSL), MUSL), False),
    *[(f"portable/{name}", built(case, MUSL), False) for name, case in musl.CASES],
    *[(f"portable/{name}", built(case, "x86_64"), False) for name, case, is_long in run.CASES
      if name.split("/")[0] in ("wheel", "deb", "action") and not is_long],
    ("portable/aarch64-command", built(arm_command, "aarch64"), False),
    ("portable/aarch64-pingpong", built(arm_pingpong, "aarch64"), False),
]


if __name__ == "__main__":
    run.PACKAGES = os.environ["ADVERB_PACKAGES"] = os.path.join(PORTABLE, "packages")
    os.environ["ADVERB_BUILD"] = os.path.join(PORTABLE, "x86_64")
    run.WORK = os.path.join(PORTABLE, "packages-test")
    if "--list" not in sys.argv:
        packed()
    sys.exit(run.main(CASES))
