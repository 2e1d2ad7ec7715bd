"""Whether RDMA happened, and what processes did: `adverb run --expect-rdma`, `--expect-bytes`, `--summary`, `--metrics`
and `adverb top`, over programs that use the device, that do not, and that end in every way there is."""

import collections
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.error
import urllib.request

from harness import ADVERB, Case, Fail, Skip, compile_c, require, require_text
from perfetto_trace import Trace
from suite_run import compile_static

NO_RDMA = 120
EXPECT = ("--expect-rdma",)
ITERATIONS = 300
SIZE = 4096
PINGPONG = ["ibv_rc_pingpong", "-g", "0", "-n", str(ITERATIONS), "-s", str(SIZE)]
UCX = ["ucx_perftest", "-t", "tag_lat", "-n", "300", "-s", "4096"]


def ends(room, proc, status, pattern=None):
    """The process ends so, and says what matches; without a pattern, nothing of RDMA that did not happen."""
    found = room.wait_exit(proc)
    if found != status:
        raise Fail(f"{proc.label} ended with {found}, not {status}")
    if pattern is None:
        if "RDMA happened" in proc.output():
            raise Fail(f"{proc.label} did RDMA, and was told otherwise")
    else:
        require_text(proc.output(), pattern, proc.label)


def does(argv, env=None, options=()):
    """Both sides do RDMA, each by itself: the passive one, too."""

    def case(room):
        require(argv[0])
        server, client = room.pair(argv, argv, options=(*options, *EXPECT), env=env)
        ends(room, client, 0)
        ends(room, server, 0)

    return case


def stateless(room):
    """One side keeps nothing of the connection; requests of either are counted."""
    require("ibv_rc_pingpong")
    server, client = room.pair(PINGPONG, PINGPONG, server_options=("--transport", "star-server", "--summary", *EXPECT),
                               client_options=("--transport", "star-client", "--summary", *EXPECT))
    for proc in (server, client):
        ends(room, proc, 0)
        require_text(proc.output(), rf"^total\s+1\s+{ITERATIONS}\s+{ITERATIONS * SIZE}\s", proc.label)


def children(room):
    """The shell does nothing, its children do all of it, one of them beside the shell."""
    require("ibv_rc_pingpong")
    port = str(room.port())
    both = " ".join(PINGPONG + ["-p", port])
    script = f"{both} & until {both} 127.0.0.1; do kill -0 $! || exit 9; done; wait $!"
    proc = room.adverb("shell", ["sh", "-c", script], options=("--expect-bytes", str(ITERATIONS * SIZE), "--summary"))
    ends(room, proc, 0)
    require_text(proc.output(), rf"^total\s+\d+\s+{2 * ITERATIONS}\s", "the summary")


def traced(room, options=(), argv=PINGPONG):
    """Both ends as children of one traced run; the trace, and that nothing but it is left."""
    require(argv[0])
    port, path = str(room.port()), room.path("run.perfetto")
    both = " ".join([*argv, "-p", port])
    script = f"{both} & until {both} 127.0.0.1; do kill -0 $! || exit 9; done; wait $!"
    proc = room.adverb("shell", ["sh", "-c", script], options=("--perfetto", path, "--summary", *options))
    ends(room, proc, 0)
    left = [name for name in os.listdir(room.dir) if name.startswith("run.perfetto.")]
    if left:
        raise Fail(f"notes are left: {left}")
    return Trace(path), proc


def perfetto(room):
    """Each request is a slice, each packet a flow from the process that gave it to the one that took it."""
    trace, proc = traced(room)
    processes = [name for name in trace.tracks.values() if len(name) == 1]
    working = {name[0] for name, what, *_ in trace.slices}
    if len(working) != 2 or not all(re.fullmatch(r"ibv_rc_pingpong \d+ at 127\.0\.0\.1", name) for name in working):
        raise Fail(f"processes {processes}, with requests {working}")
    names = collections.Counter(what for _, what, *_ in trace.slices)
    if names != {f"Send {SIZE} B": 2 * ITERATIONS}:
        raise Fail(f"requests {names}, not {2 * ITERATIONS} SENDs that ended well")
    total = require_text(proc.output(), r"^total\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+)\s+(\d+)\s", "the summary")
    sent, taken = int(total.group(1)), int(total.group(2))
    if (trace.instants["sends"], trace.instants["takes"]) != (sent, taken) or sent < 2 * ITERATIONS:
        raise Fail(f"packets {trace.instants}, not {sent} sent and {taken} received")
    if trace.flows.keys() != trace.ended.keys() or len(trace.flows) != taken:
        raise Fail(f"{len(trace.flows)} flows begin, {len(trace.ended)} end, of {taken} packets taken")
    for name in ("window", "unacknowledged", "requests"):
        values = [v for track, each in trace.samples.items() for v in each if track[-1] == name]
        if not values or max(values) < 1:
            raise Fail(f"counters of {name}: {values[:5]}")
    if any(each[-1] for track, each in trace.samples.items() if track[-1] == "requests"):
        raise Fail("requests are left that have not ended")
    room.note(f"{len(trace.slices)} requests, {len(trace.flows)} packets")


def perfetto_lossy(room):
    """What is lost has no end, and what is sent again has one of its own."""
    trace, _ = traced(room, ("--loss", "0.03", "--seed", "7"))
    if len(trace.slices) != 2 * ITERATIONS or not trace.instants["sends"] > trace.instants["takes"] >= len(trace.ended):
        raise Fail(f"{len(trace.slices)} requests, packets {trace.instants}, {len(trace.ended)} flows")
    room.note(f"{trace.instants['sends'] - len(trace.ended)} packets have no end")


def perfetto_killed(room):
    """A process that is killed is in the trace; its last requests have not ended."""
    path = room.path("run.perfetto")
    _, client = bandwidth(room, "", ("--perfetto", path, "--metrics", "0"))
    url = room.wait_output(client, r"metrics at (http://\S+)").group(1)
    room.wait_until("payload", lambda: sample(scrape(url)[1], "payload_requested_total") > 1 << 24)
    os.kill(child_of(room, client), signal.SIGKILL)
    if room.wait_exit(client) != -signal.SIGKILL:
        raise Fail(f"it ended with {client.popen.returncode}")
    trace = Trace(path)
    if len(trace.slices) < 100 or not trace.flows.keys() >= trace.ended.keys():
        raise Fail(f"{len(trace.slices)} requests, {len(trace.flows)} flows")


def perfetto_refused(room):
    """Where the trace cannot be written, the program does not run."""
    for path, why in ((room.path("none/trace"), "name a file in a directory that exists"), (room.dir, "directory")):
        proc = room.adverb("refused", ["sh", "-c", "echo it ran"], options=("--perfetto", path))
        if room.wait_exit(proc) == 0 or "it ran" in proc.output():
            raise Fail(f"--perfetto {path} was taken")
        require_text(proc.output(), rf"^adverb: --perfetto .*{why}", proc.label)
    proc = room.adverb("idle", ["true"], options=("--perfetto", room.path("idle")))
    ends(room, proc, 0, r"no process opened the device; the trace is empty")


def loops(room):
    """A program whose queue pairs are connected to each other moves nothing to anybody."""
    require("cc")
    proc = room.adverb("forker", [compile_c("forker"), "parent"], options=EXPECT)
    ends(room, proc, NO_RDMA, r"^adverb: no RDMA happened: 2 queue pairs were made, and none was connected to another")


def falls_back(room):
    require("ucx_perftest")
    env = {"UCX_TLS": "tcp", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    for proc in room.pair(UCX, UCX, options=EXPECT, env=env):
        ends(room, proc, NO_RDMA, r"^adverb: no RDMA happened: ")


def libfabric_tcp(room):
    require("fi_pingpong")
    port = room.port()
    argv = ["fi_pingpong", "-p", "tcp", "-e", "rdm", "-I", "10"]
    server = room.adverb("server", [*argv, "-B", str(port)], options=EXPECT)
    room.wait_listening(server, port)
    client = room.adverb("client", [*argv, "-P", str(port), "127.0.0.1"], options=EXPECT)
    for proc in (client, server):
        ends(room, proc, NO_RDMA, r"^adverb: no RDMA happened: ")


def static(room):
    """By itself it is refused before it runs; what a shell starts is not seen, and so does not count."""
    binary = compile_static(room)
    ends(room, room.adverb("alone", [binary], options=EXPECT), 126, "statically linked")
    proc = room.adverb("shell", ["sh", "-c", binary], options=EXPECT)
    ends(room, proc, NO_RDMA, r"^adverb: no RDMA happened: no process opened the device")


def opened_only(room):
    require("ibv_devinfo")
    ends(room, room.adverb("devinfo", ["ibv_devinfo"], options=EXPECT), NO_RDMA,
         r"^adverb: no RDMA happened: 1 process opened the device, and none made a queue pair$")


def nobody_came(room):
    """A program that is ended by a signal keeps that, and is told all the same."""
    require("ibv_rc_pingpong")
    port = room.port()
    proc = room.adverb("server", [*PINGPONG, "-p", str(port)], options=EXPECT)
    room.wait_listening(proc, port)
    os.kill(proc.pid, signal.SIGTERM)
    ends(room, proc, -signal.SIGTERM, r"^adverb: no RDMA happened: 1 queue pair was made, and none was connected")


def all_failed(room):
    """Nothing that the server sends arrives: the client's requests fail, and what hides that is told."""
    require("ibv_rc_pingpong")
    port = room.port()
    server = room.adverb("server", [*PINGPONG, "-p", str(port)], options=("--loss", "1", *EXPECT))
    room.wait_listening(server, port)
    client = room.adverb("client", ["sh", "-c", " ".join([*PINGPONG, "-p", str(port), "127.0.0.1"]) + " || true"],
                         options=EXPECT)
    ends(room, client, NO_RDMA, r"no request moved payload: [1-9]\d* failed or were flushed")


def bytes_exactly(room):
    """What is expected is compared to the byte."""
    require("ibv_rc_pingpong")
    server, client = room.pair(PINGPONG, PINGPONG, server_options=("--expect-bytes", str(ITERATIONS * SIZE)),
                               client_options=("--expect-bytes", str(ITERATIONS * SIZE + 1)))
    ends(room, server, 0)
    ends(room, client, NO_RDMA, rf"too little RDMA happened: {ITERATIONS * SIZE} bytes of payload moved, of "
                                rf"{ITERATIONS * SIZE + 1} expected")


def lossy(room):
    """What is sent twice counts once, and is told beside it."""
    require("ibv_rc_pingpong")
    paths = [room.path(f"{side}.json") for side in ("server", "client")]
    for proc in room.pair(PINGPONG, PINGPONG, server_options=("--loss", "0.02", "--seed", "7", f"--summary={paths[0]}"),
                          client_options=("--loss", "0.02", "--seed", "8", f"--summary={paths[1]}")):
        room.expect_success(proc)
    resent = 0
    for path in paths:
        with open(path) as f:
            told = json.load(f)
        total = told["total"]
        if (total["requests_done"], told["payload_moved"]) != (ITERATIONS, ITERATIONS * SIZE):
            raise Fail(f"{total['requests_done']} requests, {told['payload_moved']} bytes")
        if [one["command"] for one in told["processes"]] != ["ibv_rc_pingpong"]:
            raise Fail(f"{told['processes']}")
        resent += total["retransmitted_packets"]
    if resent == 0:
        raise Fail("nothing was sent twice: this case proves nothing")
    room.note(f"{resent} packets sent twice")


def nested(room):
    """A run within a run is counted by both."""
    require("ibv_rc_pingpong")
    port = room.port()
    server = room.adverb("server", [*PINGPONG, "-p", str(port)])
    room.wait_listening(server, port)
    inner = [ADVERB, "run", "--expect-rdma", "--", *PINGPONG, "-p", str(port), "127.0.0.1"]
    client = room.adverb("client", inner, options=("--expect-bytes", str(ITERATIONS * SIZE)))
    ends(room, client, 0)
    room.expect_success(server)


def bandwidth(room, label, options):
    """A pair that goes on until it is ended. The client's run is given the options."""
    require("ib_write_bw")
    argv = ["ib_write_bw", "-D", "100", "-s", "65536", "-d", "adverb0", "-x", "0"]
    port = room.port()
    server = room.adverb(label + "server", [*argv, "-p", str(port)])
    room.wait_listening(server, port)
    return server, room.adverb(label + "client", [*argv, "-p", str(port), "127.0.0.1"], options=options)


def child_of(room, proc):
    """The program's own process, once `adverb run` has become its parent."""

    def found():
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    name, rest = f.read().rsplit(")", 1)
            except OSError:
                continue
            if rest.split()[1] == str(proc.pid) and not name.endswith("(adverb"):
                return int(pid)
        return None

    return room.wait_until(f"child of {proc.label}", found)


def scrape(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def sample(text, name):
    return sum(int(value) for value in re.findall(rf"(?m)^adverb_{name}\{{[^}}]*\}} (\d+)$", text))


def killed(room):
    """A program that is killed has told what it did; its end is its parent's."""
    _, client = bandwidth(room, "", ("--summary", "--metrics", "0"))
    url = room.wait_output(client, r"metrics at (http://\S+)").group(1)
    room.wait_until("payload", lambda: sample(scrape(url)[1], "payload_requested_total") > 1 << 20)
    os.kill(child_of(room, client), signal.SIGKILL)
    if room.wait_exit(client) != -signal.SIGKILL:
        raise Fail(f"it ended with {client.popen.returncode}")
    row = require_text(client.output(), r"^total\s+1\s+(\d+)\s+(\d+)\s", "the summary")
    if int(row.group(2)) < 1 << 20:
        raise Fail(f"{row.group(2)} bytes are told")


def metrics(room):
    """A scraper of Prometheus's own reads them, twice while a program runs; other requests are refused."""
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
    except ImportError:
        raise Skip("prometheus_client is not there (pip install prometheus_client)") from None
    _, client = bandwidth(room, "", ("--metrics", "0"))
    url = room.wait_output(client, r"metrics at (http://\S+)").group(1)

    def requested():
        kind, text = scrape(url)
        if not kind.startswith("application/openmetrics-text; version=1.0.0"):
            raise Fail(f"it is {kind}")
        families = {family.name: family for family in parse(text)}
        if families.get("adverb_payload_requested") is None:
            return 0
        found = families["adverb_payload_requested"]
        if found.type != "counter" or {s.labels["command"] for s in found.samples} - {"ib_write_bw"}:
            raise Fail(f"{found}")
        return sum(s.value for s in found.samples)

    first = room.wait_until("payload", requested)
    room.wait_until("more payload", lambda: requested() > first)
    pairs = sample(scrape(url)[1], "queue_pairs")
    if pairs != 1:
        raise Fail(f"{pairs} queue pairs")
    for path, method, status in (("/", "GET", 404), ("/metrics", "POST", 405), ("/" + "x" * 9000, "GET", 400)):
        try:
            urllib.request.urlopen(urllib.request.Request(url.replace("/metrics", path), method=method), timeout=10)
        except urllib.error.HTTPError as error:
            if error.code != status:
                raise Fail(f"{method} {path[:20]}: {error.code}") from None
        else:
            raise Fail(f"{method} {path[:20]} was answered")
    room.note(f"{len(list(parse(scrape(url)[1])))} families")


def shown(text, command):
    """Rows of `adverb top` for a command: queue pairs, bytes sent and received each second."""
    return [tuple(map(int, row)) for row in re.findall(
        rf"(?m)^\d+\s+{command}\s+\S+\s+(\d+)\s+(\d+)\s+(\d+)\s", text)]


def top_once(room):
    """Also of processes that nobody asked to be counted; a process that is stopped is marked."""
    server, client = bandwidth(room, "", ())

    def both():
        found = subprocess.run([ADVERB, "top", "--once", "--interval", "100ms"], stdout=subprocess.PIPE, text=True, check=True)
        rows = shown(found.stdout, "ib_write_bw")
        return sorted(row[1] for row in rows)[-1:] > [1 << 20] and sorted(row[2] for row in rows)[-1] > 1 << 20 and rows

    rows = room.wait_until("rates", both)
    os.kill(client.pid, signal.SIGSTOP)
    found = subprocess.run([ADVERB, "top", "--once", "--interval", "50ms"], stdout=subprocess.PIPE, text=True, check=True)
    require_text(found.stdout, rf"^{client.pid}\*\s", "adverb top")
    os.kill(client.pid, signal.SIGKILL)
    room.wait_exit(client)
    found = subprocess.run([ADVERB, "top", "--once", "--interval", "10ms"], stdout=subprocess.PIPE, text=True, check=True)
    if re.search(rf"(?m)^{client.pid}\b", found.stdout):
        raise Fail("a dead process is shown")
    room.note(f"{max(row[1] for row in rows) >> 20} MB/s")


class Screen:
    """A program under a terminal of its own, as its session's leader."""

    def __init__(self, room, argv, env=None):
        self.room = room
        self.text = ""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(room.dir)
            os.execvpe(argv[0], argv, {**os.environ, "TERM": "xterm", "PS1": "$ ", **(env or {})})
        self.pid = pid
        room.cleanups.append(self.end)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self):
        ready, _, _ = select.select([self.fd], [], [], 0.01)
        if ready:
            try:
                got = os.read(self.fd, 65536)
            except OSError:
                got = b""
            self.text += got.decode(errors="replace")

    def until(self, pattern):
        """Waits for what it shows next, and forgets what came before."""

        def printed():
            self.read()
            return re.search(pattern, self.text, re.M)

        try:
            found = self.room.wait_until(f"/{pattern}/ at the terminal", printed)
        except Fail as why:
            raise Fail(f"{why}; it shows {self.text[-800:]!r}") from None
        self.text = self.text[found.end():]
        return found

    def ended(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.pid = None
        self.read()
        return (os.waitstatus_to_exitcode(status),) if pid else None

    def end(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def top_terminal(room):
    """Drawn again and again, to the terminal's size; q ends it, and the terminal is as before."""
    bandwidth(room, "", ())
    screen = Screen(room, [ADVERB, "top", "--interval", "50ms"])
    screen.size(24, 120)
    screen.until(r"ib_write_bw\s+127\.0\.0\.1\s+1\s+\d+")
    screen.size(2, 30)
    screen.until(r"\d+ more: the terminal has 2 r")
    screen.type("x")
    screen.size(24, 120)
    screen.until(r"ib_write_bw\s+127\.0\.0\.1\s+1\s+[1-9]\d+")
    before = termios.tcgetattr(screen.fd)[3]
    screen.type("q")
    screen.until(re.escape("\x1b[?25h\x1b[?1049l"))
    if room.wait_until("end", screen.ended) != (0,):
        raise Fail("it did not end well")
    if before & termios.ICANON:
        raise Fail("keys did not come one by one")


# Counts its SIGTERMs and SIGUSR1s, and tells on SIGUSR2; it stops and goes on as others do.
COUNTER = r"""
import os, signal, sys
seen = {}
def count(number, frame): seen[number] = seen.get(number, 0) + 1
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP): signal.signal(number, count)
def tell(number, frame):
    print("seen", *(f"{signal.Signals(n).name}={seen[n]}" for n in sorted(seen)), flush=True); seen.clear()
signal.signal(signal.SIGUSR2, tell)
print("ready", os.getpid(), flush=True)
while True: signal.pause()
"""


def counted_signals(room):
    """Each signal comes once, whether it was sent to the process alone or to its group."""
    proc = room.adverb("counter", [sys.executable, "-c", COUNTER], options=("--summary",))
    pid = int(room.wait_output(proc, r"^ready (\d+)").group(1))
    sent = 0
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT) * 3:
        for send in (os.kill, os.killpg):
            send(proc.pid, number)
            sent += 1
            told = len(re.findall("^seen", proc.output(), re.M))
            # The signal has arrived when the parent has taken it, and the program has nothing pending.
            room.wait_until("delivery", lambda: idle(proc.pid) and idle(pid))
            os.kill(pid, signal.SIGUSR2)
            room.wait_until("an answer", lambda: len(re.findall("^seen", proc.output(), re.M)) > told)
            last = re.findall("^seen.*$", proc.output(), re.M)[-1]
            if last != f"seen {signal.Signals(number).name}=1":
                raise Fail(f"{signal.Signals(number).name} by {send.__name__}: {last}")
    os.kill(proc.pid, signal.SIGKILL)
    room.wait_exit(proc)
    room.wait_until("death of the program", lambda: not os.path.exists(f"/proc/{pid}/stat") or state(pid) == "Z")
    room.note(f"{sent} signals")


def state(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(") ", 1)[1][0]


def idle(pid):
    """Nothing is pending, and it sleeps."""
    with open(f"/proc/{pid}/status") as f:
        text = f.read()
    pending = [int(word, 16) for word in re.findall(r"(?m)^(?:SigPnd|ShdPnd):\s*(\w+)", text)]
    return not any(pending) and state(pid) == "S"


def endings(room):
    """Exit status and death by a signal are the program's own."""
    for script, status in (("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -SEGV $$", -11), ("kill -TERM $$", -15),
                           ("kill -INT $$", -2), ("kill -PIPE $$", -13)):
        proc = room.adverb("sh" + str(status), ["sh", "-c", script], options=("--summary",))
        if room.wait_exit(proc) != status:
            raise Fail(f"{script}: {proc.popen.returncode}")


def pipes(room):
    """Who reads the program's output sees its end when the program closes it, and not when it ends."""
    argv = [ADVERB, "run", "--address", "127.0.0.1", "--summary", "--", "sh", "-c", "echo last; exec >&- <&-; sleep 20"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               bufsize=0, start_new_session=True)

    def end():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()

    room.cleanups.append(end)
    if process.stdout.read() != b"last\n" or process.poll() is not None:
        raise Fail("its output did not end before it")
    room.wait_until("a pipe without a reader", lambda: broken(process.stdin))


def broken(pipe):
    try:
        os.write(pipe.fileno(), b"x")
    except BrokenPipeError:
        return True
    return False


def job_control(room):
    """In an interactive shell: ^C ends it, ^Z stops it and bg and fg let it go on, and the terminal is the program's."""
    require("bash")
    run = f"{ADVERB} run --address 127.0.0.1 --summary -- "
    shell = Screen(room, ["bash", "--norc", "--noprofile", "-i"])
    shell.until(r"\$ $")
    shell.type(f"{run} sh -c 'echo st''arted; exec sleep 100'\n")
    shell.until("started")
    shell.type("\x03")
    shell.until(r"\$ $")
    shell.type("echo status=$?\n")
    shell.until(r"status=130")
    shell.type(f"{run} sh -c 'echo be''gun; read line; echo got $line; exit 5'\n")
    shell.until("begun")
    shell.type("\x1a")
    shell.until(r"Stopped")
    shell.type("jobs -l; bg\n")
    shell.until(r"(?s)Stopped.*\$ ")
    # In the background it wants to read the terminal, and is stopped by that.
    shell.type("while [ -z \"$(jobs -s)\" ]; do :; done; echo it st''ands\n")
    shell.until("it stands")
    shell.type("fg\n")
    shell.until(r"adverb run")
    shell.type("hello\n")
    shell.until("got hello")
    shell.until(r"\$ $")
    shell.type("echo status=$?\n")
    shell.until(r"status=5")


def cases():
    ucx = {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": "adverb0:1", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    write = ["ib_write_bw", "-n", "200", "-s", "4096", "-d", "adverb0", "-x", "0"]
    return [
        Case("observe/does-rc-pingpong", does(PINGPONG)),
        Case("observe/does-ud-pingpong", does(["ibv_ud_pingpong", "-g", "0"])),
        Case("observe/does-uc-pingpong", does(["ibv_uc_pingpong", "-g", "0"])),
        Case("observe/does-ib_write_bw", does(write)),
        Case("observe/does-ib_read_bw", does(["ib_read_bw", *write[1:]])),
        Case("observe/does-ucx", does(UCX, ucx)),
        Case("observe/does-irn-lossy", does(write, options=("--transport", "irn", "--loss", "0.01", "--seed", "7")), timeout=60),
        Case("observe/does-udp", does(PINGPONG, options=("--path", "udp"))),
        Case("observe/does-star", stateless),
        Case("observe/does-star-conflict", does(write, options=("--transport", "star-client"))),
        Case("observe/does-children", children),
        Case("observe/does-nested", nested),
        Case("observe/not-ucx-tcp", falls_back),
        Case("observe/not-libfabric-tcp", libfabric_tcp),
        Case("observe/not-static", static),
        Case("observe/not-opened-only", opened_only),
        Case("observe/not-loops", loops),
        Case("observe/not-nobody-came", nobody_came),
        Case("observe/not-all-failed", all_failed, timeout=60),
        Case("observe/bytes-exactly", bytes_exactly),
        Case("observe/summary-lossy", lossy, timeout=60),
        Case("observe/summary-killed", killed),
        Case("observe/metrics", metrics),
        Case("observe/perfetto", perfetto, timeout=60),
        Case("observe/perfetto-lossy", perfetto_lossy, timeout=60),
        Case("observe/perfetto-killed", perfetto_killed, timeout=60),
        Case("observe/perfetto-refused", perfetto_refused),
        Case("observe/top-once", top_once),
        Case("observe/top-terminal", top_terminal),
        Case("observe/run-endings", endings),
        Case("observe/run-signals", counted_signals),
        Case("observe/run-pipes", pipes),
        Case("observe/run-job-control", job_control),
    ]
