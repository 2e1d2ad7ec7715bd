#!/usr/bin/env python3
"""Installs the packages of target/packages where nothing else is, and runs what is in them.

    tests/packages/run.py                 what `make test` has time for
    tests/packages/run.py --long          Ray, Dask and all notebooks too
    tests/packages/run.py -k deb          cases whose name contains the text
    tests/packages/run.py --list

Python's packages come from the registry that pip is set to, Debian's from apt; a case that cannot have them is skipped
and says so. Each case prints one line; the last one is `N passed, N failed, N skipped`.
"""

import argparse
import glob
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import zipfile

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(REPO, "target")))
PACKAGES = os.environ.get("ADVERB_PACKAGES", os.path.join(TARGET, "packages"))
WORK = os.path.join(TARGET, "packages-test")
# What the package's tests need of the registry; what engines and notebooks need is got by --long alone.
SHORT = ["pyarrow", "pandas", "polars", "pytest", "pytest-xdist", "distributed", "perfetto"]
LONG = ["ray", "nbclient", "ipykernel", "matplotlib", "auditwheel"]
# Debian's packages that a chroot needs for a pingpong; none of them is adverb's.
CHROOT = ["libc6", "libgcc-s1", "ibverbs-utils", "libibverbs1", "libnl-3-200", "libnl-route-3-200"]


class Skip(Exception):
    """The case cannot run here; its text says why."""


def sh(*words, seconds=300, status=0, **more):
    """What a command prints, its standard error included; it must end with this status."""
    words = [str(word) for word in words]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, **more
    )
    assert done.returncode == status, f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def package(ending):
    """The package with that ending; a wheel for another machine, or for musl, may lie beside this one's."""
    ending = f"_{platform.machine()}.whl" if ending == ".whl" else ending
    names = os.listdir(PACKAGES) if os.path.isdir(PACKAGES) else []
    found = [name for name in names if name.endswith(ending) and ("-musllinux" in name) == ending.startswith("musllinux")]
    assert len(found) == 1, f"{PACKAGES} has {found}: run `make packages`"
    return os.path.join(PACKAGES, found[0])


def fresh(name):
    path = os.path.join(WORK, name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def venv(name, wanted=(), bare=False):
    """A virtual environment with these packages and, unless it is bare, the wheel. One that has the packages already is used
    again."""
    path = os.path.join(WORK, name)
    python, mark = os.path.join(path, "bin", "python"), os.path.join(path, "has")
    has = f"{sys.version} {' '.join(wanted)}"
    if not os.path.isfile(mark) or read(mark) != has:
        shutil.rmtree(path, ignore_errors=True)
        sh(sys.executable, "-m", "venv", path)
        if wanted:
            try:
                sh(python, "-m", "pip", "install", "--quiet", *wanted, seconds=600)
            except (AssertionError, subprocess.TimeoutExpired) as e:
                raise Skip(f"pip cannot install {' '.join(wanted)}: {str(e).strip().splitlines()[-1]}") from e
        with open(mark, "w", encoding="utf-8") as f:
            f.write(has)
    if not bare:
        sh(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", package(".whl"))
    return path


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def pingpong(*before):
    """A pingpong through a command in front of both programs; what the client printed."""
    address = f"127.{64 + os.getpid() % 128}.{os.getpid() >> 8 & 255}.7"
    port = str(20000 + os.getpid() % 10000)
    line = [*before, "run", "--address", address, "--", "ibv_rc_pingpong", "-g", "0", "-p", port]
    server = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        await_listener(server, int(port), 30)
        said = sh(*line, address, seconds=60)
        assert server.wait(30) == 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
    assert "1000 iters" in said and "adverb0 at " + address in said, said
    return said


def listening(port):
    rows = [line.split() for table in ("tcp", "tcp6") for line in read(f"/proc/net/{table}").splitlines()[1:]]
    return any(row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def await_listener(server, port, seconds):
    """Waits until this process's port is one that somebody listens on."""
    deadline = time.monotonic() + seconds
    while not listening(port):
        assert server.poll() is None, server.communicate()[0]
        assert time.monotonic() < deadline, "the server does not listen"
        time.sleep(0.01)


def symbols(path):
    """The rows of a file's dynamic symbols, as readelf prints them: of each the kind, the binding, where it is defined or
    `UND`, and the name with its version."""
    rows = [line.split() for line in sh("readelf", "--dyn-syms", "-W", path).splitlines()]
    return [(row[3], row[4], row[6], row[7]) for row in rows if len(row) > 7 and row[0].endswith(":")]


# Loads both libraries as programs and plugins do, each seen by nobody else, and uses one device by both.
BOTH_NAMES = """
import ctypes, os
cm, verbs = (ctypes.CDLL(name, os.RTLD_LOCAL | os.RTLD_NOW) for name in ORDER)
if ORDER[0] == "libibverbs.so.1":
    cm, verbs = verbs, cm
P = ctypes.c_void_p
for call in (verbs.ibv_get_device_list, verbs.ibv_open_device, verbs.ibv_alloc_pd, cm.rdma_get_devices,
             cm.rdma_create_event_channel):
    call.restype = P
count = ctypes.c_int()
devices = ctypes.cast(P(verbs.ibv_get_device_list(ctypes.byref(count))), ctypes.POINTER(P))
assert count.value == 1, count
own = verbs.ibv_open_device(P(devices[0]))
assert own, "the device opens by the one"
opened = ctypes.cast(P(cm.rdma_get_devices(ctypes.byref(count))), ctypes.POINTER(P))
assert opened and count.value == 1, "the device opens by the other, beside it"
# A context begins with its device.
theirs, = [opened[i] for i in range(count.value)]
assert P.from_address(theirs).value == P.from_address(own).value == devices[0], "one device"
assert verbs.ibv_alloc_pd(P(theirs)), "the one's calls take the other's context"
assert cm.rdma_create_event_channel()
inodes = {line.split()[4] for line in open("/proc/self/maps") if "/libibverbs.so.1" in line}
assert len(inodes) == 1, inodes
print("one NIC")
"""


def both_names(command, **more):
    """libibverbs.so.1 and librdmacm.so.1, whichever comes first, are one NIC; a program that is linked with both too."""
    address = f"127.{64 + os.getpid() % 128}.{os.getpid() >> 8 & 255}.8"
    for order in (("librdmacm.so.1", "libibverbs.so.1"), ("libibverbs.so.1", "librdmacm.so.1")):
        script = f"ORDER = {order!r}\n{BOTH_NAMES}"
        said = sh(command, "run", "--address", address, "--", sys.executable, "-c", script, seconds=60, **more)
        assert said.endswith("one NIC\n"), said
    if not shutil.which("rping"):
        raise Skip("rping is not there: install rdmacm-utils")
    line = [command, "run", "--address", address, "--", "rping", "-a", address, "-C", "5", "-v"]
    server = subprocess.Popen([*line, "-s"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    try:
        # It listens on no port of the kernel's: a client that comes early is kept until it listens.
        deadline = time.monotonic() + 60
        while True:
            client = subprocess.run([*line, "-c"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    timeout=60, check=False, **more)
            if client.returncode == 0:
                break
            assert server.poll() is None and time.monotonic() < deadline, client.stdout
        assert client.stdout.count("ping data: rdma-ping-") == 5, client.stdout
        server.wait(60)
    finally:
        server.kill()
        server.wait()


def wheel_both_names():
    """A wheel holds no links: the second name is a library of its own there, which leads to the first."""
    both_names(os.path.join(venv("bare"), "bin", "adverb"))


def deb_both_names():
    """As the Debian package has them, in a folder."""
    folder = fresh("deb-names")
    sh("dpkg-deb", "-x", package(".deb"), folder)
    both_names(os.path.join(folder, "usr/bin/adverb"))


def build_both_names():
    """As the crates' build and `make install` have them: the second name is a link."""
    assert os.path.islink(os.path.join(TARGET, "release/lib/librdmacm.so.1"))
    both_names(os.path.join(TARGET, "release", "adverb"))


# -- the wheel -----------------------------------------------------------------------------------------------------


def wheel_bare():
    """Nothing but the wheel: the command, the library, and a word about what simulations need."""
    where = venv("bare")
    command, python = os.path.join(where, "bin", "adverb"), os.path.join(where, "bin", "python")
    assert sh(command, "--version") == sh(python, "-m", "adverb", "--version")
    if not shutil.which("ibv_rc_pingpong"):
        raise Skip("ibv_rc_pingpong is not there: install ibverbs-utils")
    pingpong(command)
    pingpong(python, "-m", "adverb")
    said = sh(python, "-c", "import adverb; adverb.simulate({})", status=1)
    assert "pip install 'adverb[arrow]'" in said, said
    files = sh(python, "-m", "pip", "show", "--files", "adverb")
    for name in ("libibverbs.so.1", "librdmacm.so.1", "mlx5dv/libmlx5.so.1"):
        assert f"adverb/bin/lib/{name}" in files, files
    sh(python, "-m", "pip", "uninstall", "--quiet", "--yes", "adverb")
    left = [folder for folder, _, _ in os.walk(where) if os.path.basename(folder) == "adverb"]
    assert not os.path.exists(command) and not left, left


def wheel_says_what_it_needs():
    """Its tag is what its files need of glibc, its record what they are; it is built again to the same bytes."""
    path = package(".whl")
    major, minor = map(int, re.search(r"manylinux_(\d+)_(\d+)_", path).groups())
    folder = fresh("unpacked")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["adverb/bin/adverb"] & 0o111 and not modes["adverb/__init__.py"] & 0o111
    versions = set()
    for name in ("adverb", "lib/libibverbs.so.1", "lib/mlx5dv/libmlx5.so.1"):
        said = sh("objdump", "-T", os.path.join(folder, "adverb/bin", name))
        versions |= {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", said)}
    assert max(versions) == (major, minor), (max(versions), path)
    with open(path, "rb") as f:
        before = hashlib.sha256(f.read()).hexdigest()
    sh(sys.executable, os.path.join(REPO, "scripts", "packages.py"))
    with open(package(".whl"), "rb") as f:
        assert hashlib.sha256(f.read()).hexdigest() == before, "two builds differ"


def wheel_auditwheel():
    """auditwheel, which PyPI goes by, finds the same."""
    where = venv("python-long", SHORT + LONG)
    said = sh(os.path.join(where, "bin", "auditwheel"), "show", package(".whl"))
    tag = re.search(r"manylinux_\d+_\d+_\w+?(?=\.whl)", package(".whl")).group(0)
    assert f'"{tag}"' in said.replace("\n", " "), said


# -- what is in it ---------------------------------------------------------------------------------------------------


def pytest_in(where, *words):
    """The package's own tests, in an environment; how many passed, failed and were skipped."""
    python = os.path.join(where, "bin", "python")
    line = [python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--durations=5", *words]
    done = subprocess.run(
        line, cwd=os.path.join(REPO, "python", "tests"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )
    print(done.stdout)
    last = done.stdout.strip().splitlines()[-1]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    assert done.returncode == 0 and counts.get("passed"), last
    if counts.get("skipped"):
        reasons = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
        expected = ("could not import 'ray'", "chromium is not there")
        assert all(any(word in why for word in expected) for why in reasons) or not shutil.which("ibv_rc_pingpong"), reasons


def python_tests():
    """Simulations, sweeps by processes and Dask, the lab, the plugin."""
    pytest_in(venv("python", SHORT))


def python_tests_long():
    """The same with Ray."""
    pytest_in(venv("python-long", SHORT + LONG), "test_sweep.py")


def notebook(name):
    """Runs a notebook of docs/notebooks whole; its own assertions fail it."""

    def run():
        where = venv("python-long", SHORT + LONG)
        script = (
            "import sys, nbformat, nbclient\n"
            "book = nbformat.read(sys.argv[1], 4)\n"
            "nbclient.NotebookClient(book, timeout=900, kernel_name='python3').execute()\n"
            "images = [o for c in book.cells for o in c.get('outputs', []) if 'image/png' in o.get('data', {})]\n"
            "assert images, 'no figure was drawn'\n"
            "print(len(images), 'figures')\n"
        )
        path = os.path.join(REPO, "docs", "notebooks", name)
        # The kernel's specification of the environment, and no other one's.
        env = {**os.environ, "JUPYTER_PATH": os.path.join(where, "share", "jupyter"), "PYTHONDONTWRITEBYTECODE": "1"}
        sh(os.path.join(where, "bin", "python"), "-c", script, path, seconds=900, env=env, cwd=fresh("notebook"))

    return run


# -- the Debian package ------------------------------------------------------------------------------------------------


def deb_contents():
    """What belongs into a package is there, as its sums say; man and bash take it."""
    listed = sh("dpkg-deb", "--contents", package(".deb"))
    assert not re.search(r"^\S+ (?!root/root)", listed, re.M), "owners other than root"
    for name in ("usr/bin/adverb", "usr/lib/adverb/libibverbs.so.1", "usr/include/adverb/xchannel.h",
                 "usr/share/man/man1/adverb-run.1.gz",
                 "usr/share/bash-completion/completions/adverb", "usr/share/doc/adverb/copyright"):
        assert f"./{name}\n" in listed, name
    folder = fresh("deb")
    sh("dpkg-deb", "-x", package(".deb"), folder)
    sums = subprocess.run(["dpkg-deb", "--ctrl-tarfile", package(".deb")], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-xf", "-", "-C", folder, "./md5sums"], input=sums, check=True)
    sh("md5sum", "--quiet", "-c", "md5sums", cwd=folder)
    if shutil.which("man"):
        page = os.path.join(folder, "usr/share/man/man1/adverb-run.1.gz")
        shown = sh("man", "-l", page, env={**os.environ, "MANWIDTH": "100", "MANROFFOPT": "-c"})
        assert "--loss" in shown and "SYNOPSIS" in shown, shown[:2000]
    script = os.path.join(folder, "usr/share/bash-completion/completions/adverb")
    asked = f"source {script}; COMP_WORDS=(adverb sw); COMP_CWORD=1; _adverb adverb sw adverb; echo ${{COMPREPLY[*]}}"
    assert sorted(sh("bash", "-c", asked).split()) == ["swarm", "switch"]


def deb_installed():
    """dpkg installs it into a root that has what it depends on, and nothing of this system; programs run there."""
    if os.geteuid() != 0:
        raise Skip("chroot needs root")
    root = fresh("root")
    state = os.path.join(root, "var/lib/dpkg")
    os.makedirs(os.path.join(state, "info"))
    os.makedirs(os.path.join(state, "updates"))
    open(os.path.join(state, "status"), "w").close()
    install = ["dpkg", f"--root={root}", "--force-not-root", "--force-bad-path", "-i", package(".deb")]
    refused = sh(*install, status=1)
    assert "depends on libc6" in refused, refused
    shutil.rmtree(root)
    os.makedirs(os.path.join(state, "info"))
    os.makedirs(os.path.join(state, "updates"))
    have(root, CHROOT)
    sh(*install)
    # The command finds its library by its own path, which it asks /proc for.
    script = 'mount --bind /proc "$0/proc" && exec chroot "$0" "$@"'
    inside = ["unshare", "--mount", "sh", "-c", script, root, "/usr/bin/adverb"]
    assert "adverb0" in sh(*inside, "devices", "--address", "127.0.0.1")
    pingpong(*inside)
    sh("dpkg", f"--root={root}", "--force-not-root", "--force-bad-path", "-P", "adverb")
    left = [os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(root, "usr")) for name in names]
    assert not [name for name in left if "adverb" in name], left


def have(root, names):
    """Puts Debian's packages into a root, and into its list of what is installed. Their scripts are not run: they are for
    a system, and this is none."""
    store = os.path.join(WORK, "debs")
    os.makedirs(store, exist_ok=True)
    if len([name for name in os.listdir(store) if name.endswith(".deb")]) < len(names):
        try:
            sh("apt-get", "download", *names, cwd=store)
        except AssertionError as e:
            raise Skip(f"apt-get cannot download {' '.join(names)}: {str(e).strip().splitlines()[-1]}") from e
    with open(os.path.join(root, "var/lib/dpkg/status"), "w", encoding="utf-8") as status:
        for name in sorted(os.listdir(store)):
            path = os.path.join(store, name)
            sh("dpkg-deb", "-x", path, root)
            fields = sh("dpkg-deb", "-f", path).rstrip().split("\n")
            status.write("\n".join([fields[0], "Status: install ok installed", *fields[1:]]) + "\n\n")
    for folder in ("tmp", "dev/shm", "proc", "sys"):
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    os.chmod(os.path.join(root, "dev/shm"), 0o1777)


# -- where packages go --------------------------------------------------------------------------------------------------


def action(ending):
    """The steps of the action, one by one as a runner runs them, in a directory that holds the package and nothing else;
    then a step of the job, which finds the command."""

    def run():
        try:
            import yaml
        except ImportError:
            raise Skip("yaml is not there: install python3-yaml") from None
        told = yaml.safe_load(read(os.path.join(REPO, "action.yml")))
        assert told["runs"]["using"] == "composite" and told["inputs"]["package"]["required"] is True
        bare = fresh("action" + ending)
        job, temp = os.path.join(bare, "job"), os.path.join(bare, "temp")
        os.makedirs(job)
        os.makedirs(temp)
        name = os.path.basename(package(ending))
        shutil.copy(package(ending), os.path.join(job, name))

        def steps(given):
            """What the steps put out; each has the path as it was left by those before."""
            path, outputs = "/usr/bin:/bin", {}
            for step in told["runs"]["steps"]:
                assert step["shell"] == "bash" and "${{" not in step["run"], "what a user gives goes by the environment"
                files = {name: os.path.join(bare, name) for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}
                for file in files.values():
                    open(file, "w").close()
                values = {"inputs.package": given, "runner.temp": temp}
                env = {key: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text)
                       for key, text in step.get("env", {}).items()}
                line = ["/bin/bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
                done = subprocess.run(
                    line, cwd=job, env={"PATH": path, "HOME": bare, **files, **env}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
                )
                print(done.stdout, end="")
                if done.returncode:
                    return done.stdout, None, None
                outputs |= {f"steps.{step.get('id')}.outputs.{key}": value for key, value in
                            (row.split("=", 1) for row in read(files["GITHUB_OUTPUT"]).splitlines())}
                path = ":".join([*reversed(read(files["GITHUB_PATH"]).splitlines()), path])
            return done.stdout, path, outputs

        said, path, _ = steps("adverb.zip")
        assert path is None and "::error::package: 'adverb.zip' is neither" in said, said
        said, path, outputs = steps(name)
        assert path and "adverb0" in said, said
        out = {key: outputs[value["value"].strip("${ }")] for key, value in told["outputs"].items()}
        assert out["version"].startswith("adverb ") and os.access(out["command"], os.X_OK), out
        assert shutil.which("adverb", path=path) == out["command"], path
        if not shutil.which("ibv_rc_pingpong"):
            raise Skip("ibv_rc_pingpong is not there: install ibverbs-utils")
        pingpong(out["command"])

    return run


def container_text():
    """What the file of the image says fits what there is: one package, programs that the command runs, no root."""
    lines = read(os.path.join(REPO, "Containerfile")).replace("\\\n", " ").splitlines()
    rows = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    words = [word for word, _ in rows]
    assert words == ["FROM", "COPY", "RUN", "USER", "ENTRYPOINT", "CMD"], words
    said = dict(rows)
    pattern = os.path.join(REPO, said["COPY"].split()[0])
    assert glob.glob(pattern) == [os.path.join(REPO, os.path.relpath(package(".deb"), REPO))], pattern
    assert said["RUN"].count("/tmp/adverb_*.deb") == 2 and "rm -rf" in said["RUN"]
    assert said["ENTRYPOINT"] == '["adverb"]' and said["USER"] != "root"
    assert said["CMD"] == '["devices"]' and "devices" in sh(os.path.join(TARGET, "release", "adverb"), "--help")


def container_built():
    """The image is built and runs, where that takes nothing from elsewhere but Debian's packages."""
    tools = [tool for tool in ("podman", "docker") if shutil.which(tool)]
    if not tools:
        raise Skip("neither podman nor docker is there")
    tool = tools[0]
    if subprocess.run([tool, "info"], capture_output=True, timeout=60, check=False).returncode:
        raise Skip(f"{tool} reaches no daemon, or may not run")
    base = re.search(r"^FROM (\S+)", read(os.path.join(REPO, "Containerfile")), re.M)[1]
    if subprocess.run([tool, "image", "inspect", base], capture_output=True, timeout=60, check=False).returncode:
        raise Skip(f"{tool} does not have {base}, which a test does not fetch")
    sh(tool, "build", "-t", "adverb-test", "-f", os.path.join(REPO, "Containerfile"), REPO, seconds=900)
    try:
        run = [tool, "run", "--rm", "--network", "none", "--shm-size", "256m", "adverb-test"]
        assert "adverb0" in sh(*run, "devices", "--address", "127.0.0.1", seconds=120)
        assert "adverb0" in sh(*run, "run", "--address", "127.0.0.1", "--", "ibv_devices", seconds=120)
    finally:
        sh(tool, "rmi", "-f", "adverb-test")


CASES = [
    # Name, function, of --long alone.
    ("wheel/bare", wheel_bare, False),
    ("wheel/says-what-it-needs", wheel_says_what_it_needs, False),
    ("wheel/both-names", wheel_both_names, False),
    ("wheel/auditwheel", wheel_auditwheel, True),
    ("python/tests", python_tests, False),
    ("python/tests-ray", python_tests_long, True),
    ("notebooks/irn-figure-1", notebook("irn-figure-1.ipynb"), True),
    ("notebooks/1rma-figure-12", notebook("1rma-figure-12.ipynb"), True),
    ("deb/contents", deb_contents, False),
    ("deb/installed", deb_installed, False),
    ("deb/both-names", deb_both_names, False),
    ("action/wheel", action(".whl"), False),
    ("action/deb", action(".deb"), False),
    ("container/text", container_text, False),
    ("container/built", container_built, False),
    ("build/both-names", build_both_names, False),
]


def main(cases):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", dest="patterns", action="append", default=[], metavar="TEXT")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    passed = failed = skipped = 0
    for name, run, is_long in cases:
        named = any(text in name for text in chosen.patterns)
        if not named and (chosen.patterns or (is_long and not chosen.long)):
            continue
        if chosen.list:
            print(name)
            continue
        begun = time.monotonic()
        try:
            run()
            passed += 1
            print(f"ok   {name}  {time.monotonic() - begun:.1f} s", flush=True)
        except Skip as e:
            skipped += 1
            print(f"skip {name}: {e}", flush=True)
        except Exception as e:
            failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"FAIL {name}: {str(e).splitlines()[0] if str(e) else type(e).__name__}", flush=True)
    if not chosen.list:
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(CASES))
