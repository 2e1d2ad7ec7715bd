"""Programs that use RDMA for something, over rdma_cm or by UCX, as Debian ships them: fio, qperf, mckey, libfabric's
pingpong, UCX's example of a server, MPI of two makes. None of them can fall back to something else: what they carried is
counted by the NIC."""

import os
import re
import shutil
import subprocess
import time

from harness import HERE, WORK, Case, Fail, Skip, read_counters, require, require_text
from suite_facade import TLS
from suite_netns import HOSTS, Wire
from suite_rdmacm import LOSS, alive, expect_counters, listens, start

NOTES = (
    "fio's verb=send wants a receiver that has posted enough: fio passes 0 as rnr_retry_count",
    "nor are qperf's datagrams: it makes an address handle without a GRH, which no RoCE device takes",
    "fi_pingpong over verbs;ofi_rxm may end, after all its rows, with a flushed request, or its server may wait for ever: "
    "where its last completion and its peer's disconnection both came while it had no processor, libfabric may hear of the "
    "latter first, and destroys the queue pair, which drops completions that have not been polled, as mlx5's driver does. "
    "Such ends are said in the case's line, and it runs once more, three times at most",
)
MEGABYTE = 1 << 20
SERVER_WAITS_S = 20
# What both sides of fi_pingpong print of 50 messages of 4 KB.
ROWS = r"^4k\s+50\s+=50\s"
UCX_SERVER = "/usr/share/doc/libucx-dev/examples/ucp_client_server.c"


def fio_sides(room, verb, receives=1, forked=False, **how):
    """16 requests of 64 KB, four of them under way at a time; the server posts so many receives, which only `send` wants."""
    common = ["fio", "--ioengine=rdma", "--port={port}", "--bs=64k", "--size=1m", *([] if forked else ["--thread"])]
    return start(room, [*common, "--name=server", "--readwrite=read", f"--iodepth={receives}"],
                 [*common, "--name=client", "--hostname={server}", f"--verb={verb}", "--readwrite=write", "--iodepth=4"],
                 **how)


def fio(verb, **how):
    """Which side gets the bytes depends on the verb. fio forks for each job, unless it is to take threads, and its children
    write no counters: they end by _exit. For `send` a receive for each message is there before the first comes: fio's
    client waits for half a second, so that its server may post them."""

    def run(room):
        server, client = fio_sides(room, verb, **how)
        room.all_succeed(server, client)
        require_text(client.output(), r"WRITE: .*io=1024KiB", "fio")
        if how.get("forked"):
            return
        expect_counters(room, how.get("faulty", False))
        gets = read_counters(room.path("client.counters" if verb == "read" else "server.counters"))
        if gets["rx_bytes"] < MEGABYTE or gets["error_completions"]:
            raise Fail(f"{gets['rx_bytes']} bytes came, {gets['error_completions']} errors")

    return run


def fio_without_receives(room):
    """One receive for four messages under way, and no RNR retry, since fio accepts with rnr_retry_count 0: the first one that
    finds none fails (IBTA 9.7.5.2.8), on any adapter. fio says so, and then waits for ever, on both sides. A receiver that
    is quick enough is no error either."""
    server, client = fio_sides(room, "send", options=("--trace",))

    room.wait_until("end of fio's client",
                    lambda: client.popen.poll() is not None or "cq completion status" in client.output())
    if client.popen.poll() is not None:
        room.all_succeed(server, client)
        room.note("the receiver was quick enough each time")
        return
    said = client.output()
    require_text(said, r"^fio: cq completion status 13\(RNR retry counter exceeded\)", "fio")
    require_text(said, r"^adverb: qp .* completed with RnrRetryExceeded: the responder had no receive posted", "--trace")
    if re.findall(r"cq completion status (\d+)", said)[0] != "13":
        raise Fail("another request failed before the one that found no receive")
    room.note("status 13 at the first message that found no receive; fio waits then, and is ended")


def qperf(room):
    """Each test is a child of the server's, which opens the device and tells its port before it listens on it."""
    require("qperf")
    port = str(room.port())
    counters = room.path("client.counters")
    server = room.adverb("server", ["qperf", "-lp", port])
    room.wait_listening(server, int(port))
    tests = ["rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_compare_swap_mr"]
    for test in tests:
        client = room.adverb("client-" + test, ["qperf", "127.0.0.1", "-lp", port, "-cm", "1", "-t", "1", test],
                             options=("--counters", counters))
        room.expect_success(client)
        require_text(client.output(), rf"^{test}:\n\s+(latency|bw|send_bw|msg_rate|mr)\s+=", "qperf")
        if not read_counters(counters).get("cm_established"):
            raise Fail(f"{test}: no connection by rdma_cm was counted")


def mckey(room):
    """A message of each of ten sends to a group comes."""
    require("mckey", "stdbuf")
    argv = ["stdbuf", "-oL", "mckey", "-m", "239.6.6.6", "-b", "127.0.0.1", "-C", "10"]
    receiver = room.adverb("receiver", argv, options=("--counters", room.path("receiver.counters")))
    room.wait_output(receiver, r"^mckey: joined dgid")
    sender = room.adverb("sender", [*argv, "-s"])
    room.all_succeed(receiver, sender)
    for proc in (receiver, sender):
        require_text(proc.output(), r"^test complete\nreturn status 0", proc.label)
    if read_counters(room.path("receiver.counters"))["completions"] < 10:
        raise Fail("not ten messages came")


def libfabric(provider, endpoint, options=(), more=()):
    """Two hosts: libfabric leaves loopback interfaces out."""
    argv = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "50", "-c", *more]
    manages = provider == "verbs;ofi_rxm"

    def once(room, wire, paths):
        """Whether it came to a good end. libfabric's message layer may lose a server's last message: it lets go of the
        connection before it has looked at what came, if the host lets both come at once."""
        server = room.adverb("server", argv, HOSTS[0], (*options, "--counters", paths[0]), wire.names[0])
        room.wait_listening(server, 47592)
        client = room.adverb("client", [*argv, HOSTS[0]], HOSTS[1], (*options, "--counters", paths[1]), wire.names[1])
        status = room.wait_exit(client)
        require_text(client.output(), ROWS, "fi_pingpong")
        gone = time.monotonic()
        room.wait_until("end of the server", lambda: server.popen.poll() is not None
                        or (manages and status == 0 and time.monotonic() - gone > SERVER_WAITS_S))
        if server.popen.poll() is None:
            room.note(f"the server waited {SERVER_WAITS_S} s for a client that had ended well; once more")
            server.kill()
            return False
        require_text(server.output(), ROWS, "fi_pingpong")
        flushed = [proc for proc in (server, client) if manages and "Work Request Flushed Error" in proc.output()]
        for proc in flushed:
            room.note(f"the {proc.label}'s last request was flushed when its peer had gone; once more")
        for proc in (server, client):
            if proc not in flushed:
                room.expect_success(proc)
        return not flushed

    def run(room):
        require("fi_pingpong")
        wire = Wire(room, 4200)
        paths = [room.path(side + ".counters") for side in ("server", "client")]
        if not any(once(room, wire, paths) for _ in range(3)):
            raise Fail("none of three runs came to a good end on both sides")
        counted = [read_counters(path) for path in paths]
        if any(values["rx_bytes"] < 50 * 4096 for values in counted):
            raise Fail("the messages did not go by the device")
        if options and not sum(values["retransmitted_packets"] for values in counted):
            raise Fail("nothing was sent again under loss")

    return run


def fi_info(room):
    """What libfabric makes of the device."""
    require("fi_info")
    wire = Wire(room, 4200)
    text = room.alone(["fi_info", "-p", "verbs"], address=HOSTS[0], netns=wire.names[0])
    for provider in ("verbs", "verbs;ofi_rxm", "verbs;ofi_rxd"):
        require_text(text, rf"^provider: {provider}\n(?:.*\n)*?\s+domain: adverb0", "fi_info")


def ucx_server(api, way):
    """UCX's own example: the connection by rdma_cm, its data by rc_verbs."""

    def run(room):
        require("cc", "stdbuf")
        if not os.path.exists(UCX_SERVER):
            raise Skip("libucx-dev is not installed (scripts/setup.sh installs it)")
        binary = os.path.join(WORK, "bin", "ucp_client_server")
        build(["cc", "-O1", "-o", binary, UCX_SERVER, "-lucp", "-lucs"], binary)
        port, folder = room.port(), room.path("shared")
        env = {"UCX_TLS": TLS["rc_verbs"], "UCX_NET_DEVICES": "adverb0:1", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm",
               "ADVERB": f"directory={folder}"}
        argv = ["stdbuf", "-oL", binary, "-c", api, "-p", str(port)]
        options = ("--facade", way, "--counters")
        server = room.adverb("server", [*argv, "-l", "127.0.0.1"], options=(*options, room.path("s.counters")), env=env)
        room.wait_until("listener", lambda: alive(server) and listens(folder, "127.0.0.1", 0x0106, port))
        client = room.adverb("client", [*argv, "-a", "127.0.0.1"], options=(*options, room.path("c.counters")), env=env)
        room.expect_success(client)
        # The server serves for ever.
        room.wait_output(server, r"^ABCDEFGHIJKLMNO\.")
        counted = read_counters(room.path("c.counters"))
        if not counted["cm_established"] or counted["rx_bytes"] == 0:
            raise Fail("the client's connection is not by rdma_cm")

    return run


def build(argv, binary):
    """Compiles a program whose sources others keep, once."""
    if os.path.exists(binary):
        return
    os.makedirs(os.path.dirname(binary), exist_ok=True)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Fail(f"{' '.join(argv)}:\n{done.stderr}")


# How each make of MPI is built, started, and told to use nothing but UCX.
MPI = {
    "openmpi": ("mpicc.openmpi", ["mpirun.openmpi", "--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx",
                                  "--mca", "btl", "^openib"]),
    "mpich": ("mpicc.mpich", ["mpirun.mpich"]),
}


def mpi(make, ranks, transport, options=()):
    """Ping-pong, put, accumulate, all-to-all: each byte is checked by the program."""
    compiler, launcher = MPI[make]

    def run(room):
        require(compiler, launcher[0])
        binary, path = os.path.join(WORK, "bin", "mpi-" + make), room.path("rank.counters")
        source = os.path.join(HERE, "mpi.c")
        if os.path.exists(binary) and os.path.getmtime(binary) < os.path.getmtime(source):
            os.remove(binary)
        build([shutil.which(compiler), "-O1", "-Wall", "-Wextra", "-Werror", "-o", binary, source], binary)
        env = {"UCX_TLS": TLS[transport] + ",self", "UCX_NET_DEVICES": "adverb0:1", "UCX_WARN_UNUSED_ENV_VARS": "n",
               "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        text = room.alone([*launcher, "-n", str(ranks), binary], options=("--counters", path, *options), env=env)
        require_text(text, rf"^{ranks} ranks moved \d+ bytes, all right", "the program")
        # The ranks write one file; the last one's stays.
        counted = read_counters(path)
        if not counted["rx_bytes"] or counted["error_completions"]:
            raise Fail(f"{counted['rx_bytes']} bytes came to a rank, {counted['error_completions']} errors")

    return run


def cases():
    for verb in ("write", "read"):
        yield Case(f"programs/fio-{verb}", fio(verb), timeout=60)
        yield Case(f"programs/fio-{verb}-forked", fio(verb, forked=True), timeout=60, long=verb == "read")
    yield Case("programs/fio-send", fio("send", receives=16), timeout=60)
    yield Case("programs/fio-send-udp", fio("send", receives=16, options=("--path", "udp")), timeout=60, long=True)
    yield Case("programs/fio-send-without-receives", fio_without_receives, timeout=60)
    lossy = fio("write", options=("--path", "udp", *LOSS), faulty=True)
    yield Case("programs/fio-write-lossy", lossy, timeout=60, long=True)
    yield Case("programs/qperf", qperf, timeout=90)
    yield Case("programs/mckey", mckey, timeout=60)
    yield Case("programs/fi_info", fi_info, timeout=60)
    for provider, endpoint in (("verbs;ofi_rxm", "rdm"), ("verbs;ofi_rxd", "rdm"), ("verbs", "msg"), ("verbs", "dgram")):
        name = provider.replace(";", "-") + ("" if endpoint == "rdm" else "-" + endpoint)
        yield Case(f"programs/fi_pingpong-{name}", libfabric(provider, endpoint), timeout=120)
    yield Case("programs/fi_pingpong-verbs-ofi_rxm-lossy", libfabric("verbs;ofi_rxm", "rdm", LOSS, ("-S", "4096")),
               timeout=150, long=True)
    for api in ("stream", "tag", "am"):
        yield Case(f"programs/ucx-rdmacm-{api}", ucx_server(api, "auto"), timeout=60, long=api != "tag")
    yield Case("programs/ucx-rdmacm-preload", ucx_server("tag", "preload"), timeout=60, long=True)
    for make in MPI:
        yield Case(f"programs/{make}", mpi(make, 2, "rc_verbs"), timeout=120)
        yield Case(f"programs/{make}-ud", mpi(make, 2, "ud_verbs"), timeout=120, long=True)
        yield Case(f"programs/{make}-8-ranks", mpi(make, 8, "rc_verbs"), timeout=240, long=True)
    yield Case("programs/mpich-lossy", mpi("mpich", 2, "rc_verbs", ("--path", "udp", *LOSS)), timeout=120, long=True)
