"""Makes what the lab's guest boots: Debian's kernel, and an initial file system with rdma_rxe, rdma_cm, the pingpongs,
perftest, rdma_cm's programs and the lab's own. Nothing is installed for the guest: its kernel package is only unpacked.

The result stays in the temporary directory, under a name that says what went into it, and is made anew when any of
that changes.
"""

import fcntl
import hashlib
import lzma
import os
import platform
import re
import shutil
import stat
import struct
import subprocess
import tempfile

from harness import HERE as CLIENTS
from harness import Skip

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = os.path.join(HERE, "guest")
CACHE = os.path.join(tempfile.gettempdir(), "adverb-rxe-lab")
KERNEL_PACKAGE = "linux-image-amd64"
FETCH_S = 240
# What the guest needs of the kernel; what these depend on comes along. crc32_generic is asked for by name only when
# rxe starts, by a kernel that would call modprobe.
MODULES = ("virtio_pci", "virtio_net", "virtio_rng", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm")
# Programs of the guest, by the Debian package that has them.
PROGRAMS = {
    "ibverbs-utils": ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"),
    "perftest": tuple(f"ib_{operation}_{kind}" for operation in ("send", "write", "read", "atomic") for kind in ("bw", "lat")),
    "rdmacm-utils": ("rping", "ucmatose", "udaddy", "mckey", "cmtime", "rdma_client", "rdma_server", "rdma_xclient",
                     "rdma_xserver", "rstream", "riostream", "rcopy", "udpong"),
    "qperf": ("qperf",),
    "iproute2": ("rdma",),
}
# Programs of tests/clients that the guest has too.
FROM_CLIENTS = ("redn_get", "stores_chain", "words")
BUSYBOX = "/bin/busybox"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
PROVIDER_LIST = "/etc/libibverbs.d/rxe.driver"
# Loaded by name at run time, so that no program's list of libraries tells.
LOADED_LATER = ("/usr/lib/x86_64-linux-gnu/libgcc_s.so.1", "/lib/x86_64-linux-gnu/libgcc_s.so.1")
# The kernel's own boot protocol: where a bzImage says how its compressed payload lies (version 2.08 and later).
SETUP_SECTORS_AT, PAYLOAD_AT = 0x1F1, 0x248
SECTOR = 512


class Image:
    """The files of a finished image."""

    def __init__(self, folder):
        self.kernel = os.path.join(folder, "kernel")
        self.initial = os.path.join(folder, "initial.cpio")
        # The verbs exerciser, for the host's side of a case: the same binary as the guest's.
        self.exercise = os.path.join(folder, "exercise")
        # The same of the program that connects by rdma_cm.
        self.connect = os.path.join(folder, "connect")
        # Which of QEMU's accelerators booted it.
        self.accelerator = os.path.join(folder, "accelerator")


def image(addresses, words_address, cable_address, agent_port):
    """The image, made if need be; `addresses` are of IPv4 and IPv6. Skip says why it cannot be."""
    if platform.machine() != "x86_64":
        raise Skip(f"the guest is an x86-64 machine, and this is {platform.machine()}")
    host_files = programs()
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place = {"@GUEST@": addresses[4], "@GUEST6@": addresses[6], "@WORDS@": words_address,
                 "@CABLE@": cable_address, "@AGENT_PORT@": str(agent_port)}
        folder = os.path.join(CACHE, digest(place, host_files))
        if not os.path.isdir(folder):
            for name in os.listdir(CACHE):
                if name != "lock":
                    remove(os.path.join(CACHE, name))
            make(folder, place, host_files)
    return Image(folder)


def remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def programs():
    """The host's files that the guest gets as they are. Skip names the first package that is missing."""
    found = []
    for package, names in PROGRAMS.items():
        for name in names:
            path = shutil.which(name)
            if path is None:
                raise Skip(f"{name} is not installed ({package}; scripts/setup.sh test installs it)")
            found.append(path)
    for path, package in ((BUSYBOX, "busybox-static"), (PROVIDER_LIST, "ibverbs-providers")):
        if not os.path.exists(path):
            raise Skip(f"{path} is not installed ({package}; scripts/setup.sh test installs it)")
        found.append(path)
    return found


def run(argv, **how):
    """Runs a command of the build; Skip says what it said when it failed."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=FETCH_S, **how)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Skip(f"the guest's image cannot be made: {e}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip() or "no word").split("\n")[-1]
        raise Skip(f"the guest's image cannot be made: {argv[0]}: {said}")
    return done.stdout


def kernel_version():
    """The version that Debian's kernel package stands for today."""
    listed = run(["apt-cache", "depends", "--important", KERNEL_PACKAGE])
    named = re.search(r"linux-image-(\d\S*-amd64)", listed)
    if not named:
        raise Skip(f"apt knows no {KERNEL_PACKAGE}")
    return named.group(1)


def digest(place, host_files):
    said = hashlib.sha256(str(sorted(place.items())).encode())
    sources = [os.path.join(PARTS, name) for name in sorted(os.listdir(PARTS))]
    sources += [os.path.join(CLIENTS, name) for name in ("client.h", "stores.h", *(name + ".c" for name in FROM_CLIENTS))]
    for path in [__file__, *sources]:
        with open(path, "rb") as f:
            said.update(f.read())
    for path in host_files:
        about = os.stat(path)
        said.update(f"{path} {about.st_size} {int(about.st_mtime)}".encode())
    return said.hexdigest()[:16]


def make(folder, place, host_files):
    """Makes the image beside its place and moves it there whole."""
    work = folder + ".new"
    os.makedirs(work)
    try:
        version = fetch_kernel(work)
    except Skip:
        # Lists of packages that are missing or old name a kernel that is no longer kept.
        run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "update"])
        version = fetch_kernel(work)
    with open(os.path.join(work, f"deb/boot/vmlinuz-{version}"), "rb") as f:
        write(os.path.join(work, "kernel"), bootable(f.read()))
    compile_program(work, "agent", ["-static"])
    compile_program(work, "exercise", [f"-I{CLIENTS}", "-libverbs"])
    compile_program(work, "connect", ["-lrdmacm", "-libverbs"])
    for name in FROM_CLIENTS:
        compile_program(work, name, ["-libverbs"], CLIENTS)
    tree = Tree()
    order = add_modules(tree, os.path.join(work, "deb", "lib", "modules", version))
    tree.file("modules/order", "".join(f"{name}\n" for name in order).encode())
    with open(os.path.join(PARTS, "init")) as f:
        init = f.read()
    for mark, value in place.items():
        init = init.replace(mark, value)
    tree.file("init", init.encode(), executable=True)
    add_programs(tree, work, host_files)
    write(os.path.join(work, "initial.cpio"), tree.packed())
    shutil.rmtree(os.path.join(work, "deb"))
    os.rename(work, folder)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def fetch_kernel(work):
    """Unpacks Debian's kernel package into work/deb; returns its version."""
    version = kernel_version()
    run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", f"linux-image-{version}"], cwd=work)
    archives = [name for name in os.listdir(work) if name.endswith(".deb")]
    if len(archives) != 1:
        raise Skip(f"the guest's image cannot be made: apt-get fetched {archives or 'nothing'}")
    archive = os.path.join(work, archives[0])
    run(["dpkg-deb", "-x", archive, os.path.join(work, "deb")])
    os.remove(archive)
    return version


def bootable(bz_image):
    """The kernel as QEMU starts it at once: its payload unpacked, which an emulated guest would take long for. A payload
    that is not packed with xz stays as it is, and the guest unpacks it."""
    sectors = bz_image[SETUP_SECTORS_AT] or 4
    offset, length = struct.unpack_from("<II", bz_image, PAYLOAD_AT)
    start = (sectors + 1) * SECTOR + offset
    payload = bz_image[start : start + length]
    if not payload.startswith(b"\xfd7zXZ\0"):
        return bz_image
    # Four bytes with the unpacked length follow the stream.
    unpacked = lzma.LZMADecompressor().decompress(payload)
    return unpacked if unpacked.startswith(b"\x7fELF") else bz_image


def compile_program(work, name, options, folder=PARTS):
    source = os.path.join(folder, name + ".c")
    run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", os.path.join(work, name), source, *options])


def add_modules(tree, folder):
    """Puts the modules into the tree, and returns their names in an order in which each comes after what it needs."""
    files = {}
    for at, _, names in os.walk(os.path.join(folder, "kernel")):
        for name in names:
            if name.endswith((".ko", ".ko.xz")):
                files[name.split(".")[0].replace("-", "_")] = os.path.join(at, name)
    built_in = set()
    with open(os.path.join(folder, "modules.builtin")) as f:
        for row in f:
            built_in.add(os.path.basename(row.strip()).removesuffix(".ko").replace("-", "_"))
    order, loaded = [], set()

    def add(name):
        if name in loaded or name in built_in:
            return
        loaded.add(name)
        if name not in files:
            raise Skip(f"the guest's image cannot be made: the kernel has no module {name}")
        with open(files[name], "rb") as f:
            module = f.read()
        if files[name].endswith(".xz"):
            module = lzma.decompress(module)
        needs = re.search(rb"\0depends=([^\0]*)\0", module)
        for need in needs.group(1).decode().replace("-", "_").split(",") if needs else ():
            if need:
                add(need)
        order.append(name + ".ko")
        tree.file(f"modules/{name}.ko", module)

    for name in MODULES:
        add(name)
    return order


def add_programs(tree, work, host_files):
    """Puts the programs, the libraries they load, and busybox under its applets' names into the tree."""
    own = [os.path.join(work, name) for name in ("agent", "exercise", "connect", *FROM_CLIENTS)]
    provider = [os.path.join(PROVIDERS, n) for n in sorted(os.listdir(PROVIDERS)) if n.startswith("librxe-")]
    if not provider:
        raise Skip("the guest's image cannot be made: ibverbs-providers has no rxe provider")
    libraries = set(filter(os.path.exists, LOADED_LATER))
    for path in [*host_files, *own, *provider]:
        for library in loaded_libraries(path):
            libraries.add(library)
    for path in [p for p in host_files if p not in (BUSYBOX, PROVIDER_LIST)] + own:
        tree.copy(path, "usr/bin/" + os.path.basename(path))
    for path in libraries:
        tree.copy(path, path.lstrip("/").replace("usr/lib", "lib", 1))
    for path in provider:
        tree.copy(path, "lib/x86_64-linux-gnu/libibverbs/" + os.path.basename(path))
    tree.link("usr/lib", "../lib")
    tree.copy(PROVIDER_LIST, PROVIDER_LIST.lstrip("/"))
    tree.copy(BUSYBOX, "bin/busybox")
    for applet in run([BUSYBOX, "--list"]).split():
        if applet != "busybox":
            tree.link("bin/" + applet, "busybox")
    tree.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    for folder in ("proc", "sys", "dev", "tmp", "run"):
        tree.folder(folder)


def loaded_libraries(path):
    """The files that the dynamic linker loads for a program; none for a static one."""
    done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
    return re.findall(r"(/\S+\.so\S*)", done.stdout) if done.returncode == 0 else []


class Tree:
    """A file system as the kernel unpacks it at its start: a cpio archive in the `newc` format."""

    def __init__(self):
        self.entries = {}

    def folder(self, path):
        if path and path not in self.entries:
            self.folder(os.path.dirname(path))
            self.entries[path] = (stat.S_IFDIR | 0o755, b"")

    def file(self, path, data, executable=False):
        self.folder(os.path.dirname(path))
        self.entries[path] = (stat.S_IFREG | (0o755 if executable else 0o644), data)

    def link(self, path, to):
        self.folder(os.path.dirname(path))
        self.entries[path] = (stat.S_IFLNK | 0o777, to.encode())

    def copy(self, source, path):
        with open(source, "rb") as f:
            self.file(path, f.read(), executable=True)

    def packed(self):
        rows = [(path, mode, data) for path, (mode, data) in self.entries.items()] + [("TRAILER!!!", 0, b"")]
        out = bytearray()
        for inode, (path, mode, data) in enumerate(rows, start=1):
            name = path.encode() + b"\0"
            # inode, mode, owner, group, links, time, length, device (2), node (2), length of the name, checksum
            fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
            out += b"070701" + b"".join(b"%08x" % field for field in fields)
            for part in (name, data):
                out += part
                out += bytes(-len(out) % 4)
        return bytes(out)
