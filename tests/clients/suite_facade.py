"""The device in sysfs and /dev: UCX, which looks there before it asks the library, by a mount namespace, by a preloaded
library, and not without either; the folder that `adverb facade` writes; tools that read sysfs only."""

import os
import re
import shutil
import subprocess

from harness import ADVERB, LIBRARIES, Case, Fail, Skip, read_counters, require, require_text

WAYS = {"namespace": "by a mount namespace", "preload": "by a preloaded library"}
TRANSPORTS = ("rc_verbs", "ud_verbs")
# The words of UCX for one of them with what it sets connections up by.
TLS = {"rc_verbs": "rc_v", "ud_verbs": "ud_v"}
# A user of no account, without any right.
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def ucx(transport):
    return {"UCX_TLS": TLS[transport], "UCX_NET_DEVICES": "adverb0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"}


def finds(way):
    def case(room):
        require("ucx_info")
        text = room.alone(["ucx_info", "-d"], options=("--facade", way))
        require_text(text, rf"^adverb: adverb0 shows in sysfs and /dev {WAYS[way]}", "adverb run")
        for transport in TRANSPORTS:
            require_text(text, rf"Transport: {transport}\n#\s+Device: adverb0:1", "ucx_info")

    return case


def without(room):
    """The control: with nothing shown, UCX finds nothing."""
    require("ucx_info")
    text = room.alone(["ucx_info", "-d"], options=("--facade", "off"))
    if "adverb0" in re.sub("(?m)^adverb: .*", "", text):
        raise Fail("UCX found the device without sysfs: the other cases prove nothing")


def perftest(way, transport, *more):
    """ucx_perftest, which checks nothing of what it carries: that frames went by the device is counted."""

    def case(room):
        require("ucx_perftest")
        paths = [room.path(f"{side}.counters") for side in ("server", "client")]
        argv = ["ucx_perftest", "-t", "tag_lat", "-n", "500", "-s", "4096", *more]
        procs = room.pair(argv, argv, server_options=("--facade", way, "--counters", paths[0]),
                          client_options=("--facade", way, "--counters", paths[1]), env=ucx(transport))
        room.all_succeed(*procs)
        require_text(procs[1].output(), r"^Final:\s+500\s", "ucx_perftest")
        for path in paths:
            values = read_counters(path)
            if values["rx_bytes"] < 500 * 4096 or values["error_completions"]:
                raise Fail(f"{path}: {values['rx_bytes']} bytes came, {values['error_completions']} errors")
        room.note(f"{read_counters(paths[0])['rx_packets']} packets")

    return case


def loss(room):
    require("ucx_perftest")
    path = room.path("client.counters")
    argv = ["ucx_perftest", "-t", "ucp_put_lat", "-n", "500", "-s", "4096"]
    procs = room.pair(argv, argv, server_options=("--path", "udp", "--loss", "0.01", "--seed", "3"),
                      client_options=("--path", "udp", "--loss", "0.01", "--seed", "4", "--counters", path),
                      env=ucx("rc_verbs"))
    room.all_succeed(*procs)
    values = read_counters(path)
    if not values["retransmitted_packets"] or not values["udp_tx_frames"]:
        raise Fail("nothing was lost, or nothing went over UDP")
    room.note(f"{values['retransmitted_packets']} packets sent again")


def nobody(room):
    """Without any right, `auto` takes the preloaded library, and `namespace` a user namespace, which it says."""
    require("ucx_info", "setpriv")
    for how, said in (("auto", "by a preloaded library$"), ("namespace", "by a mount namespace in a user namespace")):
        if subprocess.run([*NOBODY, "test", "-r", LIBRARIES], check=False).returncode:
            raise Skip(f"{LIBRARIES} is not for everybody")
        if how == "namespace" and subprocess.run([*NOBODY, "unshare", "-Um", "true"], check=False).returncode:
            raise Skip("a user without rights has no user namespaces here; the preloaded library was tried")
        proc = room.spawn(how, [*NOBODY, ADVERB, "run", "--address", "127.0.0.77", "--facade", how, "--",
                                "sh", "-c", "id -u; ucx_info -d"])
        room.expect_success(proc)
        require_text(proc.output(), said, "adverb run")
        require_text(proc.output(), "^65534$", "id -u")
        require_text(proc.output(), r"Transport: rc_verbs\n#\s+Device: adverb0:1", "ucx_info")


def host_untouched(room):
    """What a run mounts is its own; and it sees the host's /dev, /sys/class and /tmp."""
    listing = room.path("listing")
    script = ("ls -1 /sys/class /dev > " + listing + "; readlink /sys/class/net/lo; test -c /dev/infiniband/uverbs0 && "
              "test -w /dev/infiniband/uverbs0 && echo node; ls -d /tmp/. && mount | grep -c ' /tmp '; "
              "python3 -c 'import os; print(\"terminal\", os.ttyname(os.openpty()[1]))'")
    before = sorted(os.listdir("/sys/class") + os.listdir("/dev"))
    proc = room.adverb("shown", ["sh", "-c", script], options=("--facade", "namespace"))
    room.wait_exit(proc)
    require_text(proc.output(), r"^\.\./\.\./devices/virtual/net/lo$", "/sys/class/net of the run")
    require_text(proc.output(), "^node$", "the node")
    require_text(proc.output(), "^0$", "mounts on /tmp")
    require_text(proc.output(), "^terminal /dev/pts/", "a pseudoterminal")
    with open(listing) as f:
        shown = {row.strip() for row in f}
    missing = [name for name in before if name not in shown]
    if missing:
        raise Fail(f"the run does not see {missing}")
    if sorted(os.listdir("/sys/class") + os.listdir("/dev")) != before or os.path.exists("/dev/infiniband/uverbs0"):
        raise Fail("the host was changed")


def ibstat(way):
    def case(room):
        require("ibstat", "ibstatus")
        text = room.alone(["ibstat"], options=("--facade", way))
        for pattern in (r"^CA 'adverb0'", r"State: Active", r"Link layer: Ethernet", r"Rate: 100"):
            require_text(text, pattern, "ibstat")
        if way == "namespace":
            # A script that lists a folder by the shell.
            text = room.alone(["ibstatus"], options=("--facade", way))
            require_text(text, r"Infiniband device 'adverb0' port 1 status:", "ibstatus")

    return case


def folder(room):
    out = room.path("root")
    argv = [ADVERB, "facade", "--out", out, "--address", "127.0.0.1"]
    room.expect_success(room.spawn("facade", argv))
    with open(os.path.join(out, "sys/class/infiniband/adverb0/ports/1/state")) as f:
        if f.read() != "4: ACTIVE\n":
            raise Fail("the port is not active")
    again = room.spawn("again", argv)
    if room.wait_exit(again) != 1:
        raise Fail("a folder that is there was written into")
    require_text(again.output(), r"^adverb: --out .*root: ", "the refusal")


def missing_library(room):
    """A library that is not there is said, and named, before the program begins."""
    directory = room.path("lib")
    os.mkdir(directory)
    shutil.copy(os.path.join(LIBRARIES, "libibverbs.so.1"), directory)
    done = subprocess.run([ADVERB, "run", "--address", "127.0.0.1", "--facade", "preload", "--", "true"], check=False,
                          env=dict(os.environ, ADVERB_LIB=directory), capture_output=True, text=True)
    if done.returncode != 1:
        raise Fail(f"exit status {done.returncode}")
    require_text(done.stderr, r"no libadverb_facade\.so in .*make build", "the refusal")


def cases():
    for way in WAYS:
        yield Case(f"facade/ucx-info-{way}", finds(way), timeout=60)
        for transport in TRANSPORTS:
            yield Case(f"facade/ucx-{transport}-{way}".replace("_", "-"), perftest(way, transport), timeout=60)
        yield Case(f"facade/ibstat-{way}", ibstat(way), timeout=60)
    for transport in TRANSPORTS:
        # It sleeps until the device says that something has come.
        yield Case(f"facade/ucx-{transport}-events".replace("_", "-"), perftest("auto", transport, "-E", "sleep"), timeout=60)
    for run in (without, loss, nobody, host_untouched, folder, missing_library):
        yield Case("facade/" + run.__name__.replace("_", "-"), run, timeout=60)
