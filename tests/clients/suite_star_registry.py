"""StaR's registry between unmodified programs and the agents of their addresses: what a server has granted passes; what it
has not, or has taken back, does not leave the client's NIC. Agents that are killed, strangers, full tables, dead peers."""

import os
import re
import signal
import subprocess
import time

from captures import tshark
from harness import ADVERB, Case, Fail, compile_c, read_counters, require_text

# Of this suite only, since an address has one agent.
SERVER, CLIENT = "127.0.61.1", "127.0.61.2"
# Long enough for a host with more to do than it can.
PATIENCE_S = 4.0
DATA = "infiniband.bth.opcode == 0xfd || infiniband.bth.opcode == 0xff"


def certificates(room, *holders):
    number = 0
    while os.path.exists(folder := room.path(f"certs{number}")):
        number += 1
    subprocess.run([ADVERB, "certs", "--out", folder, *holders], check=True, capture_output=True)
    return folder


def agent(room, label, address, folder, name, port):
    """An agent that listens."""
    proc = room.spawn(label, [ADVERB, "star", "registry", "--address", address, "--port", str(port),
                              "--patience", f"{PATIENCE_S}s", "--ca", f"{folder}/ca.pem",
                              "--cert", f"{folder}/{name}.pem", "--key", f"{folder}/{name}.key"])
    room.wait_output(proc, "^adverb star registry: the agent of ")
    return proc


class Pair:
    """Both agents, a server, and a client that is told what to do."""

    def __init__(self, room, room_for="on", server_role="star-server", client_role="star-client", agents=None,
                 server_env=None):
        self.room = room
        folder = certificates(room, f"one={SERVER}", f"two={CLIENT}")
        port = room.port()
        self.agents = agents(room, folder, port) if agents else (
            agent(room, "agent-one", SERVER, folder, "one", port), agent(room, "agent-two", CLIENT, folder, "two", port))
        common = ("--trace", "--star-hold", "1ms")
        port = room.port()
        binary = compile_c("grants")
        self.server = room.adverb("server", [binary, "server", "-p", str(port)], address=SERVER, env=server_env, options=(
            *common, "--transport", server_role, "--star-registry", "on", "--counters", room.path("server.counters")))
        room.wait_listening(self.server, port)
        self.client = room.adverb("client", [binary, "client", "-p", str(port), SERVER], address=CLIENT, stdin=subprocess.PIPE,
                                  options=(*common, "--transport", client_role, "--star-registry", str(room_for),
                                           "--pcap", room.path("client.pcap"), "--counters", room.path("client.counters")))
        self.lines = 0

    def does(self, command, expected):
        """Has the client do something, whose answer is expected; how long it took."""
        began = time.monotonic()
        self.client.popen.stdin.write((command + "\n").encode())
        self.client.popen.stdin.flush()
        answers = lambda: [line for line in self.client.output().split("\n")[:-1]  # noqa: E731
                           if not line.startswith("adverb: ")]

        def answered():
            if self.client.popen.poll() is not None and len(answers()) <= self.lines:
                raise Fail(f"the client ended with {self.client.popen.returncode} at `{command}`")
            return len(answers()) > self.lines

        self.room.wait_until(f"answer to `{command}`", answered)
        said = answers()[self.lines]
        self.lines += 1
        if not re.fullmatch(expected, said):
            raise Fail(f"`{command}` ends with `{said}`, not `{expected}`")
        return time.monotonic() - began

    def end(self):
        """Both end well; what the client's NIC has counted: packets that were allowed and refused."""
        self.client.popen.stdin.write(b"quit\n")
        self.client.popen.stdin.close()
        self.room.all_succeed(self.server, self.client)
        values = read_counters(self.room.path("client.counters"))
        return values["star_egress_allowed"], values["star_egress_refused"]

    def left(self):
        """RDs and GDs that the capture at the client has."""
        wanted = ("-Y", f"ip.src == {CLIENT} && ({DATA})", "-T", "fields", "-e", "frame.number")
        return len(tshark(self.room.path("client.pcap"), *wanted))

    def expect_capture_without(self, *values):
        """No frame of the capture has the words that were to be written."""
        with open(self.room.path("client.pcap"), "rb") as f:
            held = f.read()
        for value in values:
            if marked(value) in held:
                raise Fail(f"the capture has the word {value}, whose WRITE was refused")


def marked(value):
    """The word that the client writes for the nth time, as it lies in memory."""
    return (0x5374615220000000 + value).to_bytes(8, "little")


OK, REFUSED = "success", "remote access error"


def finished(room, pair, least, refusals, *never_left):
    """It ends well: so many packets were refused, at the client alone, and these words have not left."""
    allowed, refused = pair.end()
    if allowed < least or refused != refusals:
        raise Fail(f"{allowed} packets were allowed, {refused} refused, not at least {least} and {refusals}")
    if pair.left() != allowed:
        raise Fail(f"the capture has {pair.left()} RDs and GDs, the NIC has allowed {allowed}")
    pair.expect_capture_without(*never_left)
    if read_counters(room.path("server.counters"))["star_nak_region"]:
        raise Fail("the server's NIC has refused what should not have left")
    room.note(f"{allowed} packets allowed, {refused} refused")


def grants(room):
    pair = Pair(room)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    # Before and behind the set-up, by every operation.
    pair.does("register", "registered")
    for command, said in (("write 0", "wrote 1 to 0: "), ("write 1", "wrote 2 to 1: "), ("read 1", "read 1: "),
                          ("send", "sent: "), ("call", "called: ")):
        pair.does(command, said + OK)
    pair.does("dereg 1", "deregistered 1: success")
    pair.does("write 1", "wrote 3 to 1: " + REFUSED)
    pair.does("look 1", "region 1 holds 2")
    # Never granted: a key that the client makes up.
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 4 to 0: " + OK)
    pair.does("write 5", "wrote 5 to 5: " + REFUSED)
    # A connection that was not there when the memory was granted.
    pair.does("connect", "connected")
    pair.does("read 0", "read 0: " + OK)
    pair.does("dereg 0", "deregistered 0: success")
    pair.does("read 0", "read 0: " + REFUSED)
    finished(room, pair, 7, 3, 3, 5)
    require_text(pair.client.output(), "this NIC's registry has no rule for the access", "a reason")


def anew(room):
    """Memory that is registered anew while it is granted: the rule is what the region is."""
    pair = Pair(room)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 1 to 0: " + OK)
    pair.does("narrow 0", "registered 0 anew: success")
    pair.does("read 0", "read 0: " + OK)
    pair.does("write 0", "wrote 2 to 0: " + REFUSED)
    pair.does("look 0", "region 0 holds 1")
    pair.does("connect", "connected")
    pair.does("widen 0", "registered 0 anew: success")
    pair.does("write 0", "wrote 3 to 0: " + OK)
    finished(room, pair, 3, 1, 2)


def windows(room):
    """Windows of both types: rules come with binds, and go with what ends them."""
    pair = Pair(room)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    # Type 1: bound, bound elsewhere, taken off; by whatever connection of the domain.
    pair.does("window 0", "window 1: " + OK)
    pair.does("write 1", "wrote 1 to 1: " + OK)
    pair.does("read 1", "read 1: " + OK)
    pair.does("rebind 1", "bound 1: " + OK)
    pair.does("write 1", "wrote 2 to 1: " + OK)
    pair.does("look 0", "region 0 holds 2")
    pair.does("dereg 0", "deregistered 0: Device or resource busy")
    # What it was bound to is granted all the same.
    pair.does("read 0", "read 0: " + OK)
    pair.does("unbind 1", "bound 1: " + OK)
    pair.does("write 1", "wrote 3 to 1: " + REFUSED)
    pair.does("connect", "connected")
    pair.does("rebind 1", "bound 1: " + OK)
    pair.does("write 1", "wrote 4 to 1: " + OK)
    pair.does("free 1", "ended 1: success")
    pair.does("write 1", "wrote 5 to 1: " + REFUSED)
    # Type 2: ended by the server, by the client, and with its queue pair; each time bound by the next connection.
    for number, (end, said) in enumerate((("invalidate 2", "ended 2: success"), ("revoke 3", "sent: success"))):
        window = 2 + number
        pair.does("connect", "connected")
        pair.does("window2 0", f"window {window}: " + OK)
        pair.does(f"write {window}", f"wrote {6 + 2 * number} to {window}: " + OK)
        pair.does(end, said)
        pair.does(f"write {window}", f"wrote {7 + 2 * number} to {window}: " + REFUSED)
    pair.does("connect", "connected")
    pair.does("window2 0", "window 4: " + OK)
    pair.does("write 4", "wrote 10 to 4: " + OK)
    pair.does("connect", "connected")
    pair.does("write 4", "wrote 11 to 4: " + REFUSED)
    pair.does("look 0", "region 0 holds 4")
    finished(room, pair, 9, 5, 3, 5, 7, 9, 11)


def full_of_windows(room):
    """A registry without room: the bind is not posted, and what ends makes room."""
    pair = Pair(room, room_for=3)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("window 0", "window 1: " + OK)
    pair.does("window2 0", "window 2: Cannot allocate memory")
    pair.does("window 0", "window 3: Cannot allocate memory")
    pair.does("write 1", "wrote 1 to 1: " + OK)
    pair.does("free 1", "ended 1: success")
    pair.does("window2 0", "window 4: " + OK)
    pair.does("write 4", "wrote 2 to 4: " + OK)
    finished(room, pair, 2, 0)


def killed(which):
    """An agent that is killed takes its rules along, at its own side and at the other; new connections are plain RC."""

    def run(room):
        pair = Pair(room)
        pair.does("register", "registered")
        pair.does("connect", "connected")
        pair.does("write 0", "wrote 1 to 0: " + OK)
        pair.agents[which].kill()
        room.wait_exit(pair.agents[which])
        if which == 0:
            room.wait_output(pair.agents[1], "has gone, and its rules with it")
        else:
            room.wait_output(pair.client, "the agent of StaR's registry has gone, and with it all rules")
        pair.does("write 0", "wrote 2 to 0: " + REFUSED)
        pair.does("connect", "connected")
        pair.does("write 0", "wrote 3 to 0: " + OK)
        require_text(pair.server.output(), "is plain RC: the peer's registry of StaR has not taken its rules", "plain RC")
        # Without an agent of its own a server can grant nothing more; without the peer's it needs not.
        pair.does("register", "not registered: Input/output error" if which == 0 else "registered")
        allowed, refused = pair.end()
        # On a busy host packets are sent again that were not lost.
        if allowed < 1 or refused != 1:
            raise Fail(f"{allowed} packets were allowed, {refused} refused")
        pair.expect_capture_without(2)

    return Case(f"star/registry-{('server', 'client')[which]}s-agent-killed", run)


def server_killed(room):
    """What a server has granted ends with its process, while its agent lives, and a child that it has forked."""
    pair = Pair(room, server_env={"GRANTS_CHILD": "1"})
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 1 to 0: " + OK)
    # Itself only: the child goes with the room.
    group = pair.server.pid
    room.cleanups.append(lambda: os.killpg(group, signal.SIGKILL))
    os.kill(pair.server.pid, signal.SIGKILL)
    room.wait_exit(pair.server)
    room.wait_output(pair.agents[0], "has gone, and what it has granted is taken back")
    pair.does("write 0", "wrote 2 to 0: " + REFUSED)
    pair.client.kill(signal.SIGTERM)
    room.wait_exit(pair.client)
    pair.expect_capture_without(2)


def stranger(name, holder, other_ca, words):
    """A server's agent whose certificate is another CA's, or another address's, puts no rule."""

    def agents(room, folder, port):
        theirs = certificates(room, f"one={holder}", f"two={CLIENT}") if other_ca else folder
        if not other_ca:
            theirs = folder = certificates(room, f"one={holder}", f"two={CLIENT}")
        return agent(room, "agent-one", SERVER, theirs, "one", port), agent(room, "agent-two", CLIENT, folder, "two", port)

    def run(room):
        pair = Pair(room, agents=agents)
        pair.does("register", "registered")
        pair.does("connect", "connected")
        # Plain RC, in which the server's NIC itself checks.
        pair.does("write 0", "wrote 1 to 0: " + OK)
        room.wait_output(pair.agents[1], words)
        require_text(pair.server.output(), "is plain RC: the peer's registry of StaR has not taken its rules", "plain RC")
        if pair.end() != (0, 0):
            raise Fail("the registry was asked")

    return Case(f"star/registry-{name}", run)


def full(room):
    """A registry without room: plain RC when a connection is set up, ENOMEM when memory is registered later."""
    pair = Pair(room, room_for=2)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 1 to 0: " + OK)
    pair.does("register", "not registered: Cannot allocate memory")
    pair.does("write 0", "wrote 2 to 0: " + OK)
    # What is taken back makes room.
    pair.does("dereg 0", "deregistered 0: success")
    pair.does("register", "registered")
    pair.does("write 1", "wrote 3 to 1: " + OK)
    before = pair.server.output()
    if "plain RC" in before:
        raise Fail("the first connection is plain RC")
    allowed, refused = pair.end()
    if allowed < 3 or refused:
        raise Fail(f"{allowed} packets were allowed, {refused} refused")


def full_at_first(room):
    pair = Pair(room, room_for=1)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 1 to 0: " + OK)
    require_text(pair.server.output(), "is plain RC: the peer's registry of StaR has not taken its rules", "plain RC")
    if pair.end() != (0, 0):
        raise Fail("the registry was asked")


def dead(room):
    """A peer that does not answer is waited for so long and no longer, by what registers and by what takes back."""
    pair = Pair(room)
    pair.does("register", "registered")
    pair.does("connect", "connected")
    pair.does("write 0", "wrote 1 to 0: " + OK)
    pair.agents[1].kill(signal.SIGSTOP)
    for command, said in (("register", "registered"), ("dereg 0", "deregistered 0: success")):
        took = pair.does(command, said)
        if took > 3 * PATIENCE_S:
            raise Fail(f"`{command}` took {took:.1f} s")
    # The server's NIC checks by itself too.
    pair.does("write 0", "wrote 2 to 0: " + REFUSED)
    pair.does("look 0", "region 0 holds 1")
    pair.agents[1].kill(signal.SIGCONT)
    pair.end()


def without_agent(room):
    proc = room.adverb("alone", [compile_c("grants"), "server", "-p", str(room.port())], address="127.0.61.3",
                       options=("--transport", "star", "--star-registry", "on"))
    if room.wait_exit(proc) == 0 or "start it with `adverb star registry --address 127.0.61.3" not in proc.output():
        raise Fail(f"without an agent: {proc.output()}")
    proc = room.adverb("plain", [compile_c("grants"), "server", "-p", str(room.port())], address="127.0.61.3",
                       options=("--star-registry", "on"))
    if room.wait_exit(proc) == 0 or "is not for a NIC without StaR" not in proc.output():
        raise Fail(f"without StaR: {proc.output()}")


def cases():
    yield Case("star/registry-grants", grants)
    yield Case("star/registry-anew", anew)
    yield Case("star/registry-windows", windows, 60)
    yield Case("star/registry-full-of-windows", full_of_windows)
    yield killed(0)
    yield killed(1)
    yield Case("star/registry-server-killed", server_killed)
    yield stranger("stranger-of-another-ca", SERVER, True, "is refused: .*")
    yield stranger("stranger-of-another-address", "127.0.61.9", False, "is not for the server that it names")
    yield Case("star/registry-full", full)
    yield Case("star/registry-full-at-first", full_at_first)
    yield Case("star/registry-dead-peer", dead)
    yield Case("star/registry-without-agent", without_agent)
