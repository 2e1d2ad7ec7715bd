"""The pytest plugin, in pytest runs of its own: RDMA that happens, and RDMA that does not."""

import shutil

import pytest

pingpong = pytest.mark.skipif(not shutil.which("ibv_rc_pingpong"), reason="ibv_rc_pingpong is not there: ibverbs-utils")

PAIR = """
import pytest

def pair(nic, *program, **more):
    port = nic.port()
    argv = [*(program or ("ibv_rc_pingpong", "-g", 0)), "-p", port]
    server = nic.start(*argv)
    server.listens(port)
    client = nic.run(*argv, nic.address, **more)
    server.wait()
    return client
"""


def ran(pytester, text, *options, **expected):
    pytester.makepyfile(PAIR + text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    result.assert_outcomes(**expected)
    return result.stdout.str()


@pingpong
@pytest.mark.skipif(not shutil.which("ib_write_bw"), reason="ib_write_bw is not there: perftest")
def test_programs_exchange_and_counters_say_so(pytester):
    ran(pytester, """
def test_pair(adverb_nic):
    client = pair(adverb_nic)
    assert "1000 iters" in client.output and adverb_nic.address.startswith("127.")
    counters = adverb_nic.counters
    assert counters["completions"] == 4000 and counters["tx_bytes"] == counters["rx_bytes"] == 2 * 4096 * 1000
    assert counters["retransmitted_packets"] == 0

@pytest.mark.adverb(loss=0.02, seed=7)
class TestLoss:
    @pytest.mark.adverb(transport="irn")
    def test_recovered(self, adverb_nic):
        # Its sides take leave by TCP: a pingpong fails where the last acknowledgement of one that has ended is lost.
        client = pair(adverb_nic, "ib_write_bw", "-F", "-s", 8192, "-n", 300, trace=True)
        assert "recovers by IRN" in client.output
        assert adverb_nic.counters["fault_rx_lost"] > 0 < adverb_nic.counters["retransmitted_packets"]
""", passed=2)


@pingpong
def test_side_by_side(pytester):
    pytest.importorskip("xdist")
    ran(pytester, """
@pytest.mark.parametrize("n", range(4))
def test_pair(adverb_nic, n):
    pair(adverb_nic)
""", "-n", "2", passed=4)


@pingpong
def test_a_test_without_rdma_fails(pytester):
    said = ran(pytester, """
def test_nothing(adverb_nic):
    pass

def test_another_program(adverb_nic):
    adverb_nic.run("true")

def test_opened_only(adverb_nic):
    assert "adverb0" in adverb_nic.run("ibv_devinfo").output

def test_nobody_came(adverb_nic):
    port = adverb_nic.port()
    adverb_nic.start("ibv_rc_pingpong", "-g", 0, "-p", port).listens(port)

def test_by_tcp(adverb_nic):
    import socket, sys
    port = adverb_nic.port()
    text = f"import socket; s = socket.create_server(('', {port})); s.accept()[0].sendall(b'payload')"
    server = adverb_nic.start(sys.executable, "-c", text)
    server.listens(port)
    assert socket.create_connection((adverb_nic.address, port)).recv(100) == b"payload"
    server.wait()

def test_all_requests_failed(adverb_nic):
    port = adverb_nic.port()
    server = adverb_nic.start("ibv_rc_pingpong", "-g", 0, "-p", port, loss=1.0)
    server.listens(port)
    assert adverb_nic.run("ibv_rc_pingpong", "-g", 0, "-p", port, adverb_nic.address, check=False).process.poll() != 0

@pytest.mark.adverb(expect_rdma=False)
def test_none_wanted(adverb_nic):
    adverb_nic.run("ibv_devinfo")
""", passed=1, failed=6)
    # Each as a line of its own; pytest's summary has them whole or cut, as the environment says (CI set or not).
    lines = [line for line in said.splitlines() if line.startswith("no RDMA happened: 0 requests completed well")]
    assert len(lines) == 6 and sum("1 of the programs' processes opened" in line for line in lines) == 2


@pingpong
def test_what_goes_wrong_is_said(pytester):
    said = ran(pytester, """
def test_status(adverb_nic):
    adverb_nic.run("sh", "-c", "echo words; exit 3")

def test_ended_early(adverb_nic):
    adverb_nic.start("true").listens(1)

def test_hangs(adverb_nic):
    adverb_nic.run("sleep", 1000, timeout=0.2)

@pytest.mark.adverb(losses=1)
def test_unknown(adverb_nic):
    pass

def test_refused(adverb_nic):
    adverb_nic.run("true", loss=2)
""", failed=4, errors=1)
    for part in ("ended with status 3", "words", "ended before it did listen", "did not end within 0.2 s", "losses: adverb's NIC",
                 "from 0 to 1"):
        assert part in said, part
