"""`adverb` itself: what it prints, what it refuses, and how a program gets its settings with and without it."""

import json
import os
import re
import signal
import subprocess

from harness import ADVERB, TARGET, Case, Fail, compile_c, read_counters, require, require_text
from suite_utils import pingpong

LIBRARY_DIRECTORY = os.environ.get("ADVERB_LIB", os.path.join(TARGET, "release", "lib"))


def refused(room, status, pattern, *argv, env=None):
    """adverb ends with this status and one line that matches."""
    proc = room.spawn("refused", [ADVERB, *argv], env=env)
    found = room.wait_exit(proc)
    if found != status:
        raise Fail(f"exit status {found}, not {status}")
    text = proc.output().strip()
    require_text(text, pattern, "the refusal")
    if len(text.split("\n")) != 1:
        raise Fail("the refusal is more than one line")


def device_line(room):
    text = room.alone(["true"], options=("--loss", "0.01", "--seed", "7"))
    require_text(text, r"^adverb: adverb0 at 127\.0\.0\.1 \(lo, MTU 4096\), RoCEv2, GID 0 ::ffff:127\.0\.0\.1; "
                       r"loss 0\.01, seed 7$", "adverb run")


def exit_status(room):
    for status in (0, 3, 255):
        proc = room.adverb(f"exit{status}", ["sh", "-c", f"exit {status}"])
        if room.wait_exit(proc) != status:
            raise Fail(f"sh's status {status} came out as {proc.popen.returncode}")


def signals(room):
    proc = room.adverb("sleeper", ["sh", "-c", "echo started; exec sleep 100"])
    room.wait_output(proc, "^started")
    os.kill(proc.pid, signal.SIGTERM)
    if room.wait_exit(proc) not in (-signal.SIGTERM, 128 + signal.SIGTERM):
        raise Fail(f"SIGTERM came out as {proc.popen.returncode}")


def compile_static(room):
    """A program that no library can be put into."""
    require("cc")
    source, binary = room.path("static.c"), room.path("static")
    with open(source, "w") as f:
        f.write("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", binary, source], check=True)
    return binary


def static_program(room):
    binary = compile_static(room)
    refused(room, 126, "statically linked", "run", "--address", "127.0.0.1", "--", binary)


def missing_program(room):
    refused(room, 127, "no-such-program: no such command", "run", "--address", "127.0.0.1", "--", "no-such-program")


def missing_library(room):
    refused(room, 1, "ADVERB_LIB=/nowhere", "run", "--", "true", env={"ADVERB_LIB": "/nowhere"})


def foreign_address(room):
    # TEST-NET-1 (RFC 5737): nobody's.
    refused(room, 1, r"192\.0\.2\.1", "run", "--address", "192.0.2.1", "--", "true")


def environment_alone(room):
    """The library reads ADVERB by itself: a program started without `adverb run` gets the same NIC."""
    require("ibv_devinfo")
    proc = room.spawn("alone", ["ibv_devinfo", "-v"],
                      env={"LD_LIBRARY_PATH": LIBRARY_DIRECTORY, "ADVERB": "address=127.0.0.1"})
    room.expect_success(proc)
    require_text(proc.output(), r"GID\[\s*0\]:\s+::ffff:127\.0\.0\.1, RoCE v2", "ibv_devinfo")


def bad_environment(room):
    """A setting that cannot be read is never passed over in silence."""
    require("ibv_devinfo")
    proc = room.spawn("alone", ["ibv_devinfo"],
                      env={"LD_LIBRARY_PATH": LIBRARY_DIRECTORY, "ADVERB": "address=127.0.0.1,loss=lots"})
    room.wait_exit(proc)
    require_text(proc.output(), r"loss.*lots", "the library's complaint")


def devices(room):
    proc = room.spawn("devices", [ADVERB, "devices", "--address", "127.0.0.1"])
    room.expect_success(proc)
    for pattern in ("adverb0", "active", "4096", r"::ffff:127\.0\.0\.1"):
        require_text(proc.output(), pattern, "adverb devices")


def devices_json(room):
    proc = room.spawn("devices", [ADVERB, "devices", "--address", "127.0.0.1", "--json"])
    room.expect_success(proc)
    device = json.loads(proc.output())[0]
    if device["name"] != "adverb0" or device["gids"][0] != "::ffff:127.0.0.1" or device["active_mtu"] != 4096:
        raise Fail(f"not the device: {device}")


def nested(room):
    """Programs that the program starts have the NIC as well."""
    require("ibv_devices")
    require_text(room.alone(["sh", "-c", "ibv_devices"]), "adverb0", "ibv_devices under sh")


def counters(room):
    require("ibv_rc_pingpong")
    path = room.path("client.counters")
    room.both_succeed(pingpong("rc"), server_options=(), client_options=("--counters", path))
    with open(path) as f:
        text = f.read()
    for name in ("tx_packets", "rx_packets", "completions"):
        value = int(require_text(text, rf"^{name}\W+(\d+)", "the counters").group(1))
        if value < 100:
            raise Fail(f"{name} is {value} after 100 exchanges")
    if re.search(r"^timeouts\W+[1-9]", text, re.M):
        raise Fail("a run without loss had a timeout")


def later_calls(room):
    """Calls that came after the system's library, and the private nodes of all versions that device libraries ask for."""
    text = room.alone([compile_c("later", later=True)])
    require_text(text, r"^a buffer of \d+ bytes: written across$", "a buffer of the library's")
    require_text(text, r"^7 private nodes answer$", "the nodes")


# Python ignores SIGPIPE, and a program that it becomes would inherit that.
BECOME = {
    "full": "fd = os.open('/dev/full', os.O_WRONLY)",
    "closed": "r, fd = os.pipe(); os.close(r)",
}


def unwritable(room):
    """What the library has to say under --trace goes to a full disk, or to a pipe that nobody reads any more: the
    program does not notice."""
    require("ibv_rc_pingpong")
    for name, opened in BECOME.items():
        script = (f"import os, signal, sys; {opened}; os.dup2(fd, 2); os.close(fd); "
                  "signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])")
        # Each side says how its queue pair recovers.
        argv = ["python3", "-c", script, *pingpong("rc")]
        for proc in room.both_succeed(argv, options=("--trace", "--transport", "irn"), label=name + "-"):
            require_text(proc.output(), r"^\d+ bytes in [\d.]+ seconds", "the program's own output")


# Room for both rings at less than their size; for the table of processes only.
SCARCE = {"smaller": "900k", "none": "100k"}


def scarce_memory(room):
    """A small /dev/shm, as containers have it: smaller rings, or none and UDP instead, which is said once."""
    require("ibv_rc_pingpong", "unshare", "nsenter")
    for name, size in SCARCE.items():
        mount = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && echo mounted; exec sleep 1000"
        holder = room.spawn(name + "-holder", ["unshare", "-m", "sh", "-c", mount])
        room.wait_output(holder, "^mounted")
        argv = ["nsenter", "-t", str(holder.pid), "-m", *pingpong("rc", "-s", 4000)]
        counters = {side: room.path(f"{name}-{side}.counters") for side in ("server", "client")}
        procs = room.both_succeed(argv, server_options=("--counters", counters["server"]),
                                  client_options=("--counters", counters["client"]), label=name + "-")
        for proc, path in zip(procs, counters.values()):
            values = read_counters(path)
            said = proc.output().count("for shared memory to another process")
            if name == "smaller" and (values["rings_unmade"] or values["udp_tx_frames"] or said):
                raise Fail(f"{proc.label} did not make do with a smaller ring: {values}")
            if name == "none" and (not values["rings_unmade"] or values["udp_tx_frames"] < 100 or said != 1):
                raise Fail(f"{proc.label} did not take UDP, or said so {said} times: {values}")
        holder.kill()


def cases():
    for run in (device_line, exit_status, signals, static_program, missing_program, missing_library, foreign_address,
                environment_alone, bad_environment, devices, devices_json, nested, counters, later_calls, unwritable,
                scarce_memory):
        yield Case("run/" + run.__name__.replace("_", "-"), run)
