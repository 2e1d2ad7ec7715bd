#!/usr/bin/env python3
"""Packs what was built, into target/packages: a wheel and a Debian package.

    scripts/packages.py [wheel|deb]...

What `make build` left in target/release is packed, or what is in the folder that ADVERB_BUILD names, which scripts/portable.sh
fills. Nothing is compiled here and nothing is fetched. The same build gives the same bytes: times in the packages are those
of the revision, and owners are root.
"""

import base64
import gzip
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tomllib
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
RELEASE = os.environ.get("ADVERB_BUILD", os.path.join(TARGET, "release"))
# Another folder for tests.
OUT = os.environ.get("ADVERB_PACKAGES", os.path.join(TARGET, "packages"))
# What is packed of the build, by its place beside the command.
NATIVE = ("adverb", "lib/libibverbs.so.1", "lib/libadverb_facade.so", "lib/mlx5dv/libmlx5.so.1")
# The verbs library's second name, where an archive holds no links.
FORWARD = "lib/nolinks/librdmacm.so.1"
HEADERS = ("xchannel.h", "verbs_exp.h", "compat/infiniband/verbs_exp.h")
# What PEP 600 lets a wheel of manylinux take from the system, and Debian's packages that have it.
SYSTEM = {
    "libc.so.6": "libc6", "libm.so.6": "libc6", "libpthread.so.0": "libc6", "libdl.so.2": "libc6", "librt.so.1": "libc6",
    "ld-linux-x86-64.so.2": "libc6", "ld-linux-aarch64.so.1": "libc6", "libgcc_s.so.1": "libgcc-s1",
}
# Not of manylinux's list: what a library of the package has beside it.
OWN = {"libibverbs.so.1"}
# musl's name on systems that are musl's; a file that needs it needs nothing else. Of the version in a wheel's name pip compares
# the first two numbers (PEP 656). musl's names have no versions to be read: tests/packages/portable.py looks all up in 1.2.2's.
MUSL = "libc.musl-"
MUSLLINUX = "musllinux_1_2"
MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64")}


def text(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def version():
    return tomllib.loads(text("Cargo.toml"))["workspace"]["package"]["version"]


def revision_time():
    """Seconds of the revision; SOURCE_DATE_EPOCH decides where it is set."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(said)
    asked = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    # A tree without its history: the oldest time that a zip file can have.
    return int(asked.stdout) if asked.returncode == 0 else 315532800


class Build:
    """What is packed, without its debugging information, and what it needs of a system."""

    def __init__(self):
        self.folder = os.path.join(OUT, "native")
        shutil.rmtree(self.folder, ignore_errors=True)
        needed, versions, machines = set(), set(), set()
        for name in (*NATIVE, FORWARD):
            source, path = os.path.join(RELEASE, name), os.path.join(self.folder, name)
            if not os.path.isfile(source):
                sys.exit(f"packages: {source} is not there: run `make build` first")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(source, "rb") as f:
                machine = struct.unpack_from("<H", f.read(20), 18)[0]
            strip(source, path, MACHINES.get(machine, ("", ""))[0])
            os.chmod(path, 0o755)
            needs, wants = dynamic(path)
            needed |= needs
            versions |= wants
            machines.add(machine)
        if len(machines) != 1 or not machines <= MACHINES.keys():
            sys.exit(f"packages: machines {sorted(machines)} of ELF: only x86-64 or aarch64, and all alike")
        self.machine, self.debian = MACHINES[machines.pop()]
        self.is_musl = any(name.startswith(MUSL) for name in needed)
        system = {f"{MUSL}{self.machine}.so.1"} if self.is_musl else SYSTEM.keys()
        if foreign := needed - system - OWN:
            sys.exit(f"packages: the build needs {sorted(foreign)}, which a bare system does not have")
        if self.is_musl:
            self.platform = MUSLLINUX
            return
        self.glibc = max(tuple(map(int, v.split("."))) for v in versions)
        self.platform = "manylinux_" + "_".join(map(str, self.glibc))
        self.depends = sorted({SYSTEM[name] for name in needed - OWN})


def strip(source, path, machine):
    """Copies a file without its debugging information. This system's strip knows its own machine only, and what was built
    for another has none."""
    if machine == platform.machine():
        subprocess.run(["strip", "--strip-unneeded", "-o", path, source], check=True)
        return
    sections = subprocess.run(["readelf", "-SW", source], capture_output=True, text=True, check=True).stdout
    if ".debug_info" in sections:
        sys.exit(f"packages: {source} has debugging information, which is to be left out where it is linked")
    shutil.copyfile(source, path)


def dynamic(path):
    """Libraries that a file needs, and versions of glibc."""
    said = subprocess.run(["readelf", "-dVW", path], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\)\s+Shared library: \[(\S+)\]", said)
    return set(needed), set(re.findall(r"\bName: GLIBC_(2[.\d]+) ", said))


# -- the wheel -----------------------------------------------------------------------------------------------------

EXTRAS = {
    "arrow": ["pyarrow>=14"], "test": ["pytest>=8"], "dask": ["pyarrow>=14", "distributed"], "ray": ["pyarrow>=14", "ray"],
}


def wheel(build):
    """A wheel for any Python from 3.11 on: it has no extension module, so that none of Python's ABIs matters."""
    tag = f"py3-none-{build.platform}_{build.machine}"
    info = f"adverb-{version()}.dist-info"
    extras = "".join(
        f"Provides-Extra: {extra}\n" + "".join(f"Requires-Dist: {one}; extra == '{extra}'\n" for one in wanted)
        for extra, wanted in EXTRAS.items()
    )
    files = {f"adverb/bin/{name}": read(os.path.join(build.folder, name)) for name in NATIVE}
    files["adverb/bin/lib/librdmacm.so.1"] = read(os.path.join(build.folder, FORWARD))
    package = os.path.join(ROOT, "python", "adverb")
    for name in sorted(os.listdir(package)):
        if os.path.isfile(os.path.join(package, name)):
            files[f"adverb/{name}"] = read(os.path.join(package, name))
    files["adverb/VERSION"] = f"{version()}\n".encode()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: adverb\nVersion: {version()}\nSummary: A software RDMA NIC, its simulator and its lab\n"
        f"License: MIT OR Apache-2.0\nRequires-Python: >=3.11\n{extras}Description-Content-Type: text/markdown\n\n"
        + text("docs", "python.md")
    ).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: adverb\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/entry_points.txt"] = (
        b"[console_scripts]\nadverb = adverb.__main__:main\n\n[pytest11]\nadverb = adverb.pytest_plugin\n"
    )
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{info}/{name}"] = read(os.path.join(ROOT, name))
    path = os.path.join(OUT, f"adverb-{version()}-{tag}.whl")
    pack(path, files, f"{info}/RECORD")
    return path


def read(path):
    with open(path, "rb") as f:
        return f.read()


def pack(path, files, record):
    """A zip file with a record of its files, as wheels have it."""
    # Times of a zip file are even seconds without a zone.
    when = subprocess.run(
        ["date", "-u", "-d", f"@{revision_time()}", "+%Y %m %d %H %M %S"], capture_output=True, text=True, check=True
    ).stdout
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        files = {**files, record: ("".join(rows) + f"{record},,\n").encode()}
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, tuple(map(int, when.split())))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.startswith("adverb/bin/") else 0o100644) << 16
            out.writestr(entry, data)


# -- the Debian package --------------------------------------------------------------------------------------------


def deb(build):
    """A package for Debian and its children: where `make install PREFIX=/usr` puts things, and what shell and man know of it."""
    root = os.path.join(OUT, "deb")
    shutil.rmtree(root, ignore_errors=True)

    def put(name, data, mode=0o644):
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        os.chmod(path, mode)

    command = os.path.join(build.folder, "adverb")
    put("usr/bin/adverb", read(command), 0o755)
    for name in NATIVE[1:]:
        put("usr/lib/adverb/" + name.removeprefix("lib/"), read(os.path.join(build.folder, name)))
    # The one library under its other name: a process has one NIC.
    os.symlink("libibverbs.so.1", os.path.join(root, "usr/lib/adverb/librdmacm.so.1"))
    for name in HEADERS:
        put(f"usr/include/adverb/{name}", read(os.path.join(ROOT, "crates/verbs/include/adverb", name)))
    pages = os.path.join(OUT, "man1")
    shutil.rmtree(pages, ignore_errors=True)
    subprocess.run([command, "man", pages], check=True)
    for name in os.listdir(pages):
        put(f"usr/share/man/man1/{name}.gz", gzip.compress(read(os.path.join(pages, name)), mtime=0))
    for shell, name in (
        ("bash", "bash-completion/completions/adverb"), ("zsh", "zsh/vendor-completions/_adverb"),
        ("fish", "fish/vendor_completions.d/adverb.fish"),
    ):
        script = subprocess.run([command, "completions", shell], check=True, capture_output=True).stdout
        put(f"usr/share/{name}", script)
    licences = f"MIT:\n\n{text('LICENSE-MIT')}\nor Apache-2.0:\n\n{text('LICENSE-APACHE')}"
    put("usr/share/doc/adverb/copyright", licences.encode())
    put("usr/share/doc/adverb/changelog.gz", gzip.compress(text("CHANGELOG.md").encode(), mtime=0))
    sums, size = [], 0
    for folder, _, names in os.walk(root):
        for name in names:
            data = read(os.path.join(folder, name))
            size += len(data)
            sums.append(f"{hashlib.md5(data).hexdigest()}  {os.path.relpath(os.path.join(folder, name), root)}\n")
    glibc = ".".join(map(str, build.glibc))
    depends = ", ".join(f"{name} (>= {glibc})" if name == "libc6" else name for name in build.depends)
    put("DEBIAN/md5sums", "".join(sorted(sums)).encode())
    put("DEBIAN/control", (
        f"Package: adverb\nVersion: {version()}\nArchitecture: {build.debian}\nSection: net\nPriority: optional\n"
        f"Maintainer: adverb's developers <adverb@localhost>\nInstalled-Size: {size // 1024}\nDepends: {depends}\n"
        "Suggests: ibverbs-utils, perftest\nDescription: software RDMA NIC, its simulator and its lab\n"
        " adverb run -- ib_write_bw HOST runs unmodified RDMA programs on a machine with no\n"
        " RDMA hardware, no kernel module and no root.\n"
    ).encode())
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)
    path = os.path.join(OUT, f"adverb_{version()}_{build.debian}.deb")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", root, path], check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(revision_time())},
    )
    return path


def main():
    makers = {"wheel": wheel, "deb": deb}
    wanted = sys.argv[1:] or list(makers)
    if unknown := [name for name in wanted if name not in makers]:
        sys.exit(f"packages: {', '.join(unknown)}: there are {', '.join(makers)}")
    os.makedirs(OUT, exist_ok=True)
    build = Build()
    if "deb" in wanted and (build.is_musl or build.machine != platform.machine()):
        # The command itself says what its manual pages are, and Debian's programs are glibc's.
        what = "musl" if build.is_musl else build.machine
        sys.exit(f"packages: no Debian package for {what} here: ask for `scripts/packages.py wheel`")
    kind = build.platform.split("_")[0]
    for old in os.listdir(OUT):
        is_wheel = old.endswith(f"_{build.machine}.whl") and f"-{kind}_" in old
        if is_wheel or (old.endswith(f"_{build.debian}.deb") and not build.is_musl):
            os.unlink(os.path.join(OUT, old))
    for name in wanted:
        if name == "deb" and not shutil.which("dpkg-deb"):
            sys.exit("packages: dpkg-deb is not there: install dpkg, or ask for `scripts/packages.py wheel`")
        path = makers[name](build)
        print(f"{os.path.relpath(path, ROOT)}  {os.path.getsize(path) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
