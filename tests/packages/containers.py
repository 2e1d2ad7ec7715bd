#!/usr/bin/env python3
"""The image of the Containerfile, on a base that debootstrap makes: two containers by podman, each in a network namespace of
its own, with podman's own filter of system calls, 64 MB of /dev/shm and a user without rights. Images, containers and their
network stay below target/ and go with the case."""

import os
import platform
import re
import shutil
import subprocess
import sys
import time

import run

sys.path.insert(0, os.path.join(run.REPO, "tests", "clients"))
import archive  # noqa: E402
import harness  # noqa: E402

PLACE = os.path.join(run.WORK, "containers")
BASE = os.path.join(PLACE, "base.tar")
IMAGE, NETWORK = "adverb-test", "adverb-test"
# A container may not raise what this machine limits.
LIMITS = ("--ulimit", "nofile=1024:4096", "--ulimit", "nproc=1000:1000", "--shm-size", "64m")
# Beside the usual runtime: Debian 12's crun knows no mixture of both kinds of control groups.
RUNTIMES = ((), ("--runtime", "runc"))
PINGPONG = ("run", "--expect-rdma", "--", "ibv_rc_pingpong", "-g", "0", "-c")
LISTENS_S = 60
# vfs copies layers, and works on any file system.
PODMAN = ("podman", "--log-level", "error", "--storage-driver", "vfs", "--root", os.path.join(PLACE, "storage"),
          "--runroot", os.path.join(PLACE, "run"), "--network-config-dir", os.path.join(PLACE, "networks"))


def podman(*words, runtime=(), **how):
    return run.sh(*PODMAN, *runtime, *words, **how)


def forget():
    """Ends what runs, and takes away all but the base."""
    for words in (("rm", "-fa"), ("network", "rm", "-f", NETWORK)):
        subprocess.run([*PODMAN, *words], capture_output=True, timeout=120, check=False)
    for name in ("storage", "run", "networks"):
        shutil.rmtree(os.path.join(PLACE, name), ignore_errors=True)
    os.makedirs(PLACE, exist_ok=True)


def base():
    """What the image is made from, imported under its name."""
    if not os.path.exists(BASE):
        tree = run.fresh("containers/base")
        try:
            run.sh("debootstrap", "--variant=minbase", "bookworm", tree, archive.address(), seconds=900)
        except (AssertionError, harness.Skip) as e:
            raise run.Skip(f"debootstrap does not make the base: {str(e).strip().splitlines()[-1]}") from e
        run.sh("tar", "-C", tree, "-cf", BASE + ".new", ".")
        os.rename(BASE + ".new", BASE)
        shutil.rmtree(tree)
    name = re.search(r"^FROM (\S+)", run.read(os.path.join(run.REPO, "Containerfile")), re.M)[1]
    podman("import", BASE, f"docker.io/library/{name}")
    return name


def runtime_for(name):
    """The runtime that can start a container here."""
    why = ""
    for runtime in RUNTIMES:
        try:
            podman("run", "--rm", *LIMITS, "--network", "none", name, "true", runtime=runtime)
            return runtime
        except AssertionError as e:
            why = str(e).strip().splitlines()[-1]
    raise run.Skip(f"podman starts no container here: {why}")


def pair():
    """The image is built as its file says; in two of its containers, programs of Debian's reach each other by RDMA."""
    for tool in ("podman", "debootstrap"):
        if not shutil.which(tool):
            raise run.Skip(f"{tool} is not there (apt-get install {tool})")
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        raise run.Skip("debootstrap makes the base as root, on x86-64")
    forget()
    try:
        name = base()
        runtime = runtime_for(name)
        podman("build", "--isolation", "chroot", "--network", "host", "-t", IMAGE, "-f", "Containerfile", ".",
               runtime=runtime, cwd=run.REPO, seconds=900)
        podman("network", "create", NETWORK)
        reach(runtime)
    finally:
        forget()


def reach(runtime):
    """A pingpong between two containers, what arrives compared; neither end may have fallen back."""
    podman("run", "-d", "--name", "server", *LIMITS, "--network", NETWORK, IMAGE, *PINGPONG, runtime=runtime)
    told = "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}} {{.HostConfig.ShmSize}}"
    pid, address, room = podman("inspect", "-f", told, "server").split()
    assert int(room) == 64 << 20, room
    # 2: system calls are filtered. No capability is left.
    status = run.read(f"/proc/{pid}/status")
    assert re.search(r"^Seccomp:\s+2$", status, re.M) and re.search(r"^CapEff:\s+0+$", status, re.M), status
    await_listener(pid)
    said = podman("run", "--rm", *LIMITS, "--network", NETWORK, IMAGE, *PINGPONG, address, runtime=runtime, seconds=120)
    assert podman("wait", "server", seconds=60).strip() == "0", podman("logs", "server")
    assert "1000 iters" in said and f"GID ::ffff:{address}" in said, said


def await_listener(pid):
    """Waits until something listens in a container's network."""
    deadline = time.monotonic() + LISTENS_S
    while not re.search(r" 0A 0", run.read(f"/proc/{pid}/net/tcp") + run.read(f"/proc/{pid}/net/tcp6")):
        assert os.path.exists(f"/proc/{pid}"), podman("logs", "server")
        assert time.monotonic() < deadline, "the server does not listen: " + podman("logs", "server")
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(run.main([("container/two-namespaces", pair, False)]))
