"""Files of htsim as scenarios."""

import tomllib

import adverb
import pytest

# Three tiers: 16 hosts in 4 pods, twice as fast at the top, two to one above the first tier.
TOPOLOGY = """# a small fat tree
Nodes 16
Tiers 3
Podsize 4

Tier 0
Downlink_speed_Gbps 100
Radix_Up 1
Radix_Down 2
Oversubscribed 2
Downlink_Latency_ns 500
Switch_Latency_ns 250

Tier 1
Downlink_speed_Gbps 100
Radix_Up 1
Radix_Down 2
Downlink_Latency_ns 1000
Switch_Latency_ns 250

Tier 2
Downlink_speed_Gbps 200
Radix_Down 4
Downlink_Latency_ns 2000
Switch_Latency_ns 250
"""
MATRIX = """Nodes 16
Connections 3
# the first begins a little later
0->1 id 1 start 1500 size 1000
0->15 id 2 start 0.0 size 200000
5->4 start 2000000 size 50000
"""
LEAF_SPINE = """Nodes 8
Tiers 2
Podsize 8
Tier 0
Downlink_speed_Gbps 100
Radix_Down 4
Radix_Up 4
Downlink_Latency_ns 1000
Tier 1
Downlink_speed_Gbps 100
Radix_Down 4
Bundle 2
Downlink_Latency_ns 1000
"""


@pytest.fixture
def files(tmp_path):
    def write(topology=TOPOLOGY, matrix=MATRIX):
        (tmp_path / "tree.topo").write_text(topology)
        (tmp_path / "some.cm").write_text(matrix)
        return tmp_path / "tree.topo", tmp_path / "some.cm"

    return write


def test_a_tree_and_its_connections_run(files):
    scenario = adverb.from_htsim(*files())
    assert tomllib.loads(adverb.document(scenario)) == scenario, "what adverb sim reads"
    cables = [(cable["from"], cable["to"], cable["rate"], cable["delay"]) for cable in scenario["topology"]["cables"]]
    # 16 of hosts, 8 first switches with one link up, 4 second ones with one.
    assert (len(cables), scenario["topology"]["switches"]) == (28, 13)
    assert cables[3] == ("host 3", "switch 1", "100G", "500ns")
    assert cables[16:18] == [("switch 0", "switch 8", "100G", "1000ns"), ("switch 1", "switch 8", "100G", "1000ns")]
    assert cables[27] == ("switch 11", "switch 12", "200G", "2000ns")
    got = adverb.simulate(scenario | {"transport": {"mtu": 4096}}, seed=1)
    rows = got.flows.select(["src", "dst", "bytes", "start_ns", "failed"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 1, 1000, 1.5, 0), (0, 15, 200_000, 0, 0), (5, 4, 50_000, 2000, 0),
    ]
    near, far, _ = (row["fct_ns"] for row in got.flows.to_pylist())
    # Two links of 500 ns and one switch; and the way over the top and back, with five.
    assert 1000 + 250 < near and 2 * 3500 + 5 * 250 < far, (near, far)


def test_two_tiers_have_bundles(files):
    matrix = "Nodes 8\nConnections 8\n" + "".join(f"{n}->{(n + 4) % 8} start 0 size 100000\n" for n in range(8))
    scenario = adverb.from_htsim(*files(LEAF_SPINE, matrix))
    pairs = [(cable["from"], cable["to"]) for cable in scenario["topology"]["cables"][8:]]
    both = [("switch 0", "switch 2")] * 2 + [("switch 0", "switch 3")] * 2
    assert pairs == both + [("switch 1", above) for _, above in both] and "switch" not in scenario
    got = adverb.simulate(scenario | {"transport": {"mtu": 4096}}, seed=1)
    assert not any(got.flows["failed"].to_pylist()) and len(got.flows) == 8


def test_a_full_tree_is_wired_as_htsim_does(files):
    """The tree of 4-port switches: second switch n of a pod goes up to the tops n and n + 2."""
    full = TOPOLOGY.replace("Radix_Up 1", "Radix_Up 2").replace("Oversubscribed 2\n", "")
    full = full.replace("Gbps 200", "Gbps 100")
    scenario = adverb.from_htsim(*files(full))
    cables = [(cable["from"], cable["to"]) for cable in scenario["topology"]["cables"][16:]]
    pods = [(f"switch {tor}", f"switch {8 + tor // 2 * 2 + n}") for tor in range(8) for n in range(2)]
    tops = [(f"switch {8 + agg}", f"switch {16 + agg % 2 + 2 * n}") for agg in range(8) for n in range(2)]
    assert cables == pods + tops and scenario["topology"]["switches"] == 20


@pytest.mark.parametrize("old, new, why", [
    ("Nodes 16\nTiers", "Tiers", r"tree.topo:\d+: nodes is missing"),
    ("Tiers 3", "Tiers 4", r"4 tiers: fat trees have 2 or 3"),
    ("Tiers 3", "Tiers 2", r"there must be tiers 0 to 1"),
    ("Podsize 4", "Podsize 5", r"nodes by podsize: 16 are not a multiple of 5"),
    ("Podsize 4", "Podsize 4\nColour 3", r"tree.topo:5: Colour: not known here"),
    ("Podsize 4", "Podsize four", r"tree.topo:4: whole numbers are needed"),
    ("Radix_Up 1\nRadix_Down 2\nOver", "Radix_Up 2\nRadix_Down 2\nOver", r"radix_up of tier 0 must be 1"),
    ("Oversubscribed 2", "Oversubscribed 3", r"are not a multiple of"),
    ("Oversubscribed 2", "Queue_Up 90", r"tree.topo:10: Queue_Up: queues of a size for each port"),
    ("Oversubscribed 2", "Radix_Down 2", r"tree.topo:10: Radix_Down stands twice"),
    ("Latency_ns 500\nSwitch_Latency_ns 250", "Latency_ns 500", r"switch_latency_ns differs by tier"),
    ("Tier 2", "Tier 1", r"tier 1: each of 0 to 2 stands once"),
    ("200\nRadix_Down 4", "200\nRadix_Up 2\nRadix_Down 4", r"tier 2: no links go up from the top"),
    ("Connections 3", "Connections 4", r"some.cm:6: Connections is 4, and there are 3"),
    ("Nodes 16\nConn", "Nodes 8\nConn", r"Nodes is 8, and the topology has 16"),
    ("0->1 id", "0->16 id", r"some.cm:4: there is no node 16; there are 16"),
    ("0->1 id", "1->1 id", r"some.cm:4: a connection goes to another host"),
    ("start 1500", "trigger 7", r"some.cm:4: trigger: connections that wait for others"),
    ("start 1500 size", "recv_done_trigger 2 size", r"recv_done_trigger: connections that wait"),
    ("start 1500 size", "size", r"some.cm:4: start is missing"),
    ("start 1500", "start soon", r"some.cm:4: soon: a start is a number of picoseconds"),
    ("size 1000\n", "size\n", r"some.cm:4: size: a value is needed"),
    ("size 1000\n", "size 0\n", r"some.cm:4: 0 bytes"),
    ("size 1000\n", "size 1000 prio 3\n", r"some.cm:5: prio: connections of several priorities"),
    ("5->4 start", "failure switch_type TOR\n5->4 start", r"some.cm:6: a failure"),
])
def test_what_is_wrong_is_named_with_its_line(files, old, new, why):
    assert (TOPOLOGY + MATRIX).count(old) == 1, "the case changes one place"
    with pytest.raises(ValueError, match=why):
        adverb.from_htsim(*files(TOPOLOGY.replace(old, new), MATRIX.replace(old, new)))
