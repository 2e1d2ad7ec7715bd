"""Valkey over RDMA: its server with the module for it, and the client that it tests the module with, both built from
Debian's source package. The client pings, sets keys, has the server save them (which forks), and gets and compares them."""

import glob
import os
import re
import shutil
import subprocess

from archive import download, paths
from harness import WORK, Case, Fail, Skip, read_counters, require, require_text
from suite_rdmacm import ROUTES, TCP, alive, listens

# The first of Debian's releases that has it.
RELEASE = "trixie"
THREADS, KEYS = 2, 2000
BUILT = ("src/valkey-server", "src/valkey-rdma.so", "tests/rdma/rdma-test")


def built():
    """The folder of what was built, once."""
    require("make", "cc", "tar", "apt-get")
    for header in ("/usr/include/rdma/rdma_cma.h", "/usr/include/infiniband/verbs.h"):
        if not os.path.exists(header):
            raise Skip(f"{header} is not installed (scripts/setup.sh installs librdmacm-dev and libibverbs-dev)")
    folder = os.path.join(WORK, "valkey")
    source = os.path.join(folder, "source")
    if all(os.access(os.path.join(source, name), os.X_OK) for name in BUILT):
        return source
    sources = paths(os.path.join(folder, "tar"))
    if not sources:
        sources = download(RELEASE, ["valkey"], os.path.join(folder, "tar"), source=True)
    (archive,) = (path for path in sources if ".orig.tar." in path)
    shutil.rmtree(source, ignore_errors=True)
    os.makedirs(source)
    make("tar", "-xf", archive, "-C", source, "--strip-components=1")
    # jemalloc's configure alone, and linking as -O3 has it, take a minute each.
    make("make", "-s", f"-j{os.cpu_count()}", "-C", os.path.join(source, "src"), "MALLOC=libc", "BUILD_RDMA=module",
         "USE_SYSTEMD=no", "OPTIMIZATION=-O1", "valkey-server", "valkey-rdma.so")
    make("make", "-s", "-C", os.path.join(source, "tests/rdma"))
    return source


def make(*argv):
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if done.returncode:
        raise Fail(f"{' '.join(argv[:4])} failed:\n{done.stdout[-2000:]}")


def tested(route):
    def run(room):
        source = built()
        port, folder, options = room.port(), room.path("shared"), ROUTES[route].get("options", ())
        env = {"ADVERB": f"directory={folder}"}
        own = {side: ("--counters", room.path(side + ".counters"), *options) for side in ("server", "client")}
        argv = [os.path.join(source, "src/valkey-server"), "--port", "0", "--appendonly", "no", "--dir", room.dir,
                "--loadmodule", os.path.join(source, "src/valkey-rdma.so"), "--rdma-bind", "127.0.0.1", "--rdma-port",
                str(port)]
        server = room.adverb("server", argv, options=own["server"], env=env)
        room.wait_until("listener", lambda: alive(server) and listens(folder, "127.0.0.1", TCP, port))
        argv = [os.path.join(source, "tests/rdma/rdma-test"), "-h", "127.0.0.1", "-p", str(port), "-t", str(THREADS),
                "-M", str(KEYS), "-m", str(KEYS // 2)]
        client = room.adverb("client", argv, options=own["client"], env=env)
        room.expect_success(client)
        said = client.output()
        for what in ("PING/PONG", r"SET \d+ KVs", r"GET \d+ KVs"):
            done = re.findall(rf"thread\[\d+\] {what} \[OK\]$", said, re.M)
            if len(done) != THREADS:
                raise Fail(f"rdma-test: {len(done)} of {THREADS} threads print {what}")
        require_text(said, r"BGSAVE \[OK\]$", "rdma-test")
        require_text(said, r"^Valkey Over RDMA test \[OK\]$", "rdma-test")
        room.wait_until("dump", lambda: glob.glob(room.path("dump.rdb")))
        counted = read_counters(room.path("client.counters"))
        if counted["payload_requested"] < THREADS * KEYS or not counted["cm_established"]:
            raise Fail(f"{counted['payload_requested']} bytes went by the device")
        room.note(f"{counted['requests_done']} requests, {counted['payload_requested'] >> 10} KB to the server")

    return run


def cases():
    # Building takes minutes.
    for route in ("shm", "udp", "irn"):
        yield Case(f"programs/valkey-{route}", tested(route), timeout=900, long=True)
