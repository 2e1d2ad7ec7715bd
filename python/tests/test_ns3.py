"""Files of HPCC's ns-3 simulator as scenarios."""

import tomllib

import adverb
import pytest

# Two racks of two hosts under two spines; switches have ids among the hosts', one link loses packets.
TOPOLOGY = """8 4 8
0 3 6 7
1 0 25Gbps 1000ns 0
2 0 25Gbps 1000ns 0.000000
4 3 25Gbps 0.001ms 0
5 3 25Gbps 1us 0.01
0 6 100Gbps 2000ns 0
0 7 100Gbps 2000ns 0
3 6 100Gbps 2000ns 0
3 7 100Gbps 2000ns 0

"""
# The count is of flows that are read.
FLOWS = """3
1 4 3 100 20000 2
2 5 3 100 2000000 2.000002
4 1 3 101 1000 2.0000015
5 1 3 100 999 2

First line: the number of flows
"""


@pytest.fixture
def files(tmp_path):
    def write(topology=TOPOLOGY, flows=FLOWS):
        (tmp_path / "topology.txt").write_text(topology)
        (tmp_path / "flow.txt").write_text(flows)
        return tmp_path / "topology.txt", tmp_path / "flow.txt"

    return write


def test_a_topology_and_its_flows_run(files):
    scenario = adverb.from_ns3(*files())
    assert scenario["faults"] == {"link": [{"links": [6, 7], "loss": 0.01}]}
    assert tomllib.loads(adverb.document(scenario)) == scenario, "what adverb sim reads"
    scenario |= {"transport": {"mtu": 1024, "timeout": 8, "retry-forever": True}}
    got = adverb.simulate(scenario, seed=3)
    rows = got.flows.select(["src", "dst", "bytes", "start_ns", "failed"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (0, 2, 20_000, 0, 0), (1, 3, 2_000_000, 2000, 0), (2, 0, 1000, 1500, 0),
    ]
    # 1,000 bytes over 25, 100, 100 and 25 Gb/s, with what is around them, and 6 us of cables.
    (short,) = (row["ideal_ns"] for row in got.flows.to_pylist() if row["bytes"] == 1000)
    assert 6000 + 800 < short < 6000 + 950, short
    names = got.ports["from_to"].to_pylist()
    assert len(names) == 16 and names[0] == "host 0 -> switch 0" and names[15] == "switch 3 -> switch 1"
    lost = dict(zip(names, got.ports["lost"].to_pylist()))
    assert lost["switch 1 -> host 3"] > 0 and sum(lost.values()) == lost["switch 1 -> host 3"] + lost["host 3 -> switch 1"]


@pytest.mark.parametrize("old, new, why", [
    ("8 4 8", "8 4 9", r"topology.txt:10: the file ends where link 8 of 9"),
    ("8 4 8", "8 4", r"topology.txt:1: .* 3 words are needed, not 2"),
    ("0 3 6 7", "0 3 6 8", r"topology.txt:2: the switches' ids"),
    ("0 3 6 7", "0 3 6 6", r"topology.txt:2: the switches' ids"),
    ("1 0 25Gbps", "9 0 25Gbps", r"topology.txt:3: there is no such node; there are 8"),
    ("1 0 25Gbps", "1 0 25", r"topology.txt:3: 25 1000ns: a rate such as"),
    ("1us 0.01", "1us 1.5", r"topology.txt:6: 1.5: an error rate"),
    ("1us 0.01", "1us nan", r"topology.txt:6: nan: an error rate"),
    ("3\n1 4", "5\n1 4", r"flow.txt:7: whole numbers are needed"),
    ("3\n1 4", "0\n1 4", r"flow.txt:1: there are no flows"),
    ("1 4 3", "1 3 3", r"flow.txt:2: node 3 is no host"),
    ("1 4 3", "1 1 3", r"flow.txt:2: a flow goes to another host"),
    ("100 20000 2", "100 -5 2", r"flow.txt:2: a number is below 0"),
    ("100 20000 2", "100 0 2", r"flow.txt:2: 0 bytes"),
    ("100 20000 2", "100 20000 soon", r"flow.txt:2: soon: a start"),
    ("2 5 3 100", "2 5 4 100", r"flow.txt:3: priority group 4 beside others"),
    ("2 5 3 100", "2 5 x 100", r"flow.txt:3: whole numbers are needed"),
])
def test_what_is_wrong_is_named_with_its_line(files, old, new, why):
    assert (TOPOLOGY + FLOWS).count(old) == 1, "the case changes one place"
    with pytest.raises(ValueError, match=why):
        adverb.from_ns3(*files(TOPOLOGY.replace(old, new), FLOWS.replace(old, new)))
