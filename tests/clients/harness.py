"""What every client suite stands on: cases, processes under `adverb run`, ports, waiting, results.

A case is a function of one Room. The room starts processes, each in a process group of its own, writes what they
print to files, waits for events (a listening port, an exit, a line of output) with a deadline, and kills whatever
is left when the case ends. Nothing here sleeps for a fixed time in place of an event.
"""

import fnmatch
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(REPO, "target"))
ADVERB = os.environ.get("ADVERB_BIN", os.path.join(TARGET, "release", "adverb"))
HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.join(TARGET, "clients")
INCLUDE = os.path.join(REPO, "crates", "verbs", "include")
LIBRARIES = os.environ.get("ADVERB_LIB") or os.path.join(os.path.dirname(ADVERB), "lib")
POLL_S = 0.005
SILENCING = (signal.SIGSTOP, signal.SIGKILL)
SILENCE_S = 20
LISTEN = "0A"


class Skip(Exception):
    """The case cannot run here; its text says why."""


class Fail(Exception):
    """The case ran and was wrong; its text says how."""


class Case:
    """One test: a name `suite/case`, a function of a Room, the seconds it may take; `long` where only `make test-long`
    has the time for it."""

    # Beside a load everything may take longer.
    time_scale = 1

    def __init__(self, name, run, timeout=30, long=False):
        self.name = name
        self.run = run
        self.long = long
        self.seconds = timeout

    @property
    def timeout(self):
        return self.seconds * Case.time_scale


class Proc:
    """A process started by a room, with what it prints in a file."""

    def __init__(self, popen, label, argv, log):
        self.popen = popen
        self.label = label
        self.argv = argv
        self.log = log

    @property
    def pid(self):
        return self.popen.pid

    def output(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def kill(self, signum=signal.SIGKILL):
        """Signals the whole process group, unless its leader has ended: then its number may be another's by now.
        What stops or kills is waited for."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signum)
            if signum in SILENCING:
                await_silence(lambda _, fields: int(fields[2]) == self.popen.pid)


def await_silence(which):
    """Waits until every thread of the processes that `which` picks by number and the fields of their `stat` is stopped
    or dead. A signal is pending until a thread that it was given to has a processor: until then the others go on."""
    end = time.monotonic() + SILENCE_S
    while runs := running(which):
        if time.monotonic() > end:
            raise Fail(f"process {runs} still runs {SILENCE_S} s after it was stopped or killed")
        time.sleep(POLL_S)


def running(which):
    """One of those processes of which a thread is neither stopped nor dead, or None."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if which(int(pid), stat_of(f"/proc/{pid}/stat")) and any(
                stat_of(f"/proc/{pid}/task/{task}/stat")[0] not in "TtZX" for task in os.listdir(f"/proc/{pid}/task")
            ):
                return pid
        except OSError:
            # It has gone.
            continue
    return None


def stat_of(path):
    """The fields of a `stat` after the name: state, parent, process group, ..."""
    with open(path) as f:
        return f.read().rpartition(")")[2].split()


def tail(text, lines=60):
    rows = text.rstrip().split("\n")
    return "\n".join(rows[-lines:])


class Room:
    """The processes, files and ports of one running case."""

    next_port = 21000 + (os.getpid() % 64) * 100

    def __init__(self, case):
        self.case = case
        self.deadline = time.monotonic() + case.timeout
        self.procs = []
        self.cleanups = []
        self.notes = []
        self.dir = os.path.join(WORK, re.sub(r"[^A-Za-z0-9.+-]+", "_", case.name))
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)

    # -- starting ------------------------------------------------------------------------------------------

    def port(self):
        """A TCP port below the ephemeral range that nobody here listens on."""
        while True:
            Room.next_port += 1
            if Room.next_port >= 32000:
                Room.next_port = 21000
            with socket.socket() as s:
                try:
                    s.bind(("0.0.0.0", Room.next_port))
                    return Room.next_port
                except OSError:
                    continue

    def note(self, text):
        """Says something in the line of a case that passes: what it has counted."""
        self.notes.append(text)

    def path(self, name):
        return os.path.join(self.dir, name)

    def spawn(self, label, argv, env=None, stdin=None):
        """Starts argv as it is, in its own process group and with the room as its working directory."""
        log = self.path(label + ".log")
        with open(log, "wb") as out:
            popen = subprocess.Popen(
                argv,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=stdin or subprocess.DEVNULL,
                cwd=self.dir,
                env=dict(os.environ, **(env or {})),
                start_new_session=True,
            )
        proc = Proc(popen, label, argv, log)
        self.procs.append(proc)
        return proc

    def adverb(self, label, argv, address="127.0.0.1", options=(), netns=None, env=None, stdin=None, command=ADVERB):
        """Starts argv under `adverb run`, of another build if `command` says so."""
        prefix = ["ip", "netns", "exec", netns] if netns else []
        full = prefix + [command, "run", "--address", address, *options, "--", *argv]
        return self.spawn(label, full, env=env, stdin=stdin)

    # -- waiting -------------------------------------------------------------------------------------------

    def remaining(self):
        return self.deadline - time.monotonic()

    def wait_until(self, what, ready):
        """Polls ready() until it is true or the case's time is over; returns what it returned."""
        while True:
            value = ready()
            if value:
                return value
            if self.remaining() <= 0:
                raise Fail(f"no {what} within the case's {self.case.timeout} s")
            time.sleep(POLL_S)

    def wait_listening(self, proc, port):
        """Waits until a socket of the process's network namespace listens on the port. It does not connect:
        the pingpongs accept once only."""

        def listening():
            if proc.popen.poll() is not None:
                raise Fail(f"{proc.label} exited with {proc.popen.returncode} before it listened on port {port}")
            return listens(proc.pid, port)

        self.wait_until(f"listener on port {port}", listening)

    def wait_output(self, proc, pattern):
        """Waits until what the process printed matches the pattern; returns the match."""

        def printed():
            found = re.search(pattern, proc.output(), re.M)
            if not found and proc.popen.poll() is not None:
                found = re.search(pattern, proc.output(), re.M)
                if not found:
                    raise Fail(f"{proc.label} exited with {proc.popen.returncode} without printing /{pattern}/")
            return found

        return self.wait_until(f"/{pattern}/ from {proc.label}", printed)

    def wait_exit(self, proc):
        """Waits for the process; returns its status, negative for a signal."""
        left = self.remaining()
        try:
            return proc.popen.wait(timeout=max(left, 0.001))
        except subprocess.TimeoutExpired:
            raise Fail(f"{proc.label} (pid {proc.pid}) did not end within the case's {self.case.timeout} s") from None

    def expect_success(self, *procs):
        for proc in procs:
            status = self.wait_exit(proc)
            if status != 0:
                raise Fail(f"{proc.label} exited with {status}")

    # -- the shapes that most cases have --------------------------------------------------------------------

    def alone(self, argv, **how):
        """Runs one program under adverb to its successful end; returns what it printed."""
        proc = self.adverb("alone", argv, **how)
        self.expect_success(proc)
        return proc.output()

    def pair(self, server, client, server_address="127.0.0.1", client_address="127.0.0.1", options=(),
             server_options=None, client_options=None, server_netns=None, client_netns=None, port=None, env=None,
             host=None, label=""):
        """Starts a server (its port appended with -p), waits until it listens, starts the client towards it
        (towards `host`, where the first words go over another address than the device's). Returns both, running."""
        port = port or self.port()
        s = self.adverb(label + "server", [*server, "-p", str(port)], address=server_address,
                        options=options if server_options is None else server_options, netns=server_netns, env=env)
        self.wait_listening(s, port)
        c = self.adverb(label + "client", [*client, "-p", str(port), host or server_address], address=client_address,
                        options=options if client_options is None else client_options, netns=client_netns, env=env)
        return s, c

    def both_succeed(self, server, client=None, **how):
        """A pair that must end well on both sides. Returns both."""
        s, c = self.pair(server, client or server, **how)
        self.all_succeed(s, c)
        return s, c

    def all_succeed(self, *procs, excuse=None):
        """Waits until all have ended well; fails as soon as one has ended badly, unless `excuse(proc)` says that this
        end is the program's own."""

        def ended():
            states = [p.popen.poll() for p in procs]
            for proc, state in zip(procs, states):
                if state not in (None, 0) and not (excuse and excuse(proc)):
                    raise Fail(f"{proc.label} exited with {state}")
            return None not in states

        self.wait_until("end of " + " and ".join(p.label for p in procs), ended)

    # -- ending --------------------------------------------------------------------------------------------

    def close(self):
        for proc in self.procs:
            proc.kill()
        for proc in self.procs:
            proc.popen.wait()
        for undo in reversed(self.cleanups):
            undo()

    def report(self):
        """Both sides' output, for a failure."""
        parts = []
        for proc in self.procs:
            state = proc.popen.poll()
            state = "running" if state is None else f"exit {state}"
            parts.append(f"  --- {proc.label} ({state}): {' '.join(proc.argv)}\n{indent(tail(proc.output()))}")
        return "\n".join(parts)


def indent(text):
    return "\n".join("  | " + row for row in text.split("\n"))


def listens(pid, port):
    """Whether a TCP socket listens on the port in the network namespace of pid."""
    wanted = f"{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as f:
                rows = f.read().split("\n")[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if len(fields) > 3 and fields[3] == LISTEN and fields[1].rsplit(":", 1)[1] == wanted:
                return True
    return False


def require(*programs):
    """Skips the case when a program that it runs is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            raise Skip(f"{program} is not installed (scripts/setup.sh installs it)")


def require_text(text, pattern, what):
    found = re.search(pattern, text, re.M)
    if not found:
        raise Fail(f"{what}: nothing matches /{pattern}/ in what was printed")
    return found


def read_counters(path):
    """A counters file: one `name value` per line."""
    values = {}
    with open(path) as f:
        for row in f:
            fields = row.replace("=", " ").split()
            if len(fields) >= 2 and fields[-1].isdigit():
                values[fields[0].rstrip(":")] = int(fields[-1])
    return values


def compile_c(name, libraries=("ibverbs", "pthread"), own=(), later=False):
    """Compiles tests/clients/<name>.c against the system's verbs headers, once; returns the binary. `own` names
    headers of adverb's that it includes: then it is linked with adverb's libraries, as is one that wants `later` calls
    than the system's library has."""
    require("cc")
    if not os.path.exists("/usr/include/infiniband/verbs.h"):
        raise Skip("infiniband/verbs.h is not installed (scripts/setup.sh installs libibverbs-dev)")
    source = os.path.join(HERE, name + ".c")
    headers = [os.path.join(INCLUDE, "adverb", header) for header in own]
    headers += [os.path.join(HERE, name) for name in os.listdir(HERE) if name.endswith(".h")]
    binary = os.path.join(WORK, "bin", name)
    newest = max(os.path.getmtime(path) for path in (source, *headers))
    if not os.path.exists(binary) or os.path.getmtime(binary) < newest:
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        argv = ["cc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", binary, source]
        if own or later:
            argv += ["-I" + INCLUDE, "-I" + os.path.join(INCLUDE, "adverb", "compat")]
            argv += ["-L" + LIBRARIES, "-l:libibverbs.so.1"]
        argv += ["-l" + library for library in libraries]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Fail(f"cc failed on {source}:\n{done.stderr}")
    return binary


def chosen(cases, patterns, without=()):
    """The cases whose names contain, or match as a glob, any of the patterns, or all if there are none; and none of
    `without`."""

    def among(case, patterns):
        return any(p in case.name or fnmatch.fnmatch(case.name, p) for p in patterns)

    return [c for c in cases if (not patterns or among(c, patterns)) and not among(c, without)]


def run_case(case):
    """Runs one case; returns (outcome, seconds, text)."""
    start = time.monotonic()
    try:
        room = Room(case)
    except OSError as e:
        return "FAIL", 0.0, f"cannot make the case's directory: {e}"
    try:
        case.run(room)
        outcome, text = "ok", "; ".join(room.notes)
    except Skip as e:
        outcome, text = "skip", str(e)
    except Fail as e:
        outcome, text = "FAIL", f"{e}\n{room.report()}"
    except Exception:  # a broken case is a failed case, with its trace
        outcome, text = "FAIL", f"{traceback.format_exc()}\n{room.report()}"
    finally:
        room.close()
    return outcome, time.monotonic() - start, text


def run_cases(cases, out=sys.stdout, before_each=lambda: None):
    """Runs the cases one after the other, a line each; returns the counts (passed, failed, skipped)."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    failed = []
    for case in cases:
        before_each()
        outcome, seconds, text = run_case(case)
        counts[outcome] += 1
        note = f": {text}" if text and outcome != "FAIL" else ""
        print(f"{outcome:4} {case.name} ({seconds:.2f} s){note}", file=out, flush=True)
        if outcome == "FAIL":
            failed.append(case.name)
            print(indent(text), file=out, flush=True)
    if failed:
        print("failed: " + " ".join(failed), file=out)
    return counts["ok"], counts["FAIL"], counts["skip"]
