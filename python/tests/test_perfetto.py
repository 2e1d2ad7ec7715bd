"""The traces of `adverb sim` and `adverb replay --perfetto`, read by Perfetto's own schema."""

import collections

import adverb
import pytest

schema = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

SCENARIO = """
sample = "5us"
[topology]
kind = "star"
hosts = 4
rate = "100G"
[switch]
buffer = "{buffer}"
[transport]
mtu = 1024
congestion = "dctcp"
ecn = true
{transport}
[switch.ecn]
kmin = "10KB"
kmax = "10KB"
pmax = 1.0
{more}
[workload]
kind = "poisson"
load = 0.9
flows = 60
sizes = "fixed 20KB"
"""
LOSS = "[[faults.link]]\nloss = 0.01\nduplicate = 0.01\n"


def traced(folder, buffer="400KB", transport="", more=""):
    """The messages of a scenario's trace, and what the command says of it."""
    scenario, path = folder / "star.toml", folder / "trace.perfetto"
    scenario.write_text(SCENARIO.format(buffer=buffer, transport=transport, more=more))
    said = adverb.lab._command.call("sim", scenario, "--quiet", "--perfetto", path)
    return read(path), said


def read(path):
    trace = schema.Trace()
    assert trace.ParseFromString(path.read_bytes()) == path.stat().st_size
    # Not a field that the schema does not know: what is read is all there is.
    assert trace.ByteSize() == path.stat().st_size
    return trace


def counts(said):
    """The numbers of the command's line, by the word behind each."""
    line = next(line for line in said.splitlines() if line.startswith("perfetto"))
    words = line.replace(",", " ").replace("(", " ").replace(")", " ").split()
    return {word: int(n) for n, word in zip(words, words[1:]) if n.isdigit()}


def tracks(trace):
    """Names of tracks from the root on, and which of them are counters."""
    found = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}

    def name(track):
        above = name(found[track.parent_uuid]) if track.HasField("parent_uuid") else ()
        return (*above, track.name)

    assert len(found) == sum(p.HasField("track_descriptor") for p in trace.packet), "an id for each"
    return {uuid: name(track) for uuid, track in found.items()}, {u for u, t in found.items() if t.HasField("counter")}


def check(trace, said, count=4):
    """Time goes on, slices are nested, flows begin before they end, once each; what was counted is there."""
    event = schema.TrackEvent
    names, counters = tracks(trace)
    packets = [p for p in trace.packet if p.HasField("track_event")]
    assert all(p.trusted_packet_sequence_id for p in trace.packet)
    times = [p.timestamp for p in packets]
    assert times == sorted(times) and times[-1] > 0
    open_slices, flows, ended, seen = collections.defaultdict(list), {}, set(), collections.Counter()
    for p in packets:
        e = p.track_event
        assert e.track_uuid in names, "every event has a track"
        assert (e.type == event.TYPE_COUNTER) == (e.track_uuid in counters)
        if e.type == event.TYPE_SLICE_BEGIN:
            assert e.name
            open_slices[e.track_uuid].append((e.name, p.timestamp))
            seen["slices"] += 1
        elif e.type == event.TYPE_SLICE_END:
            assert open_slices[e.track_uuid].pop()[1] <= p.timestamp
        elif e.type == event.TYPE_INSTANT:
            seen[e.name.split()[0]] += 1
        for id in e.flow_ids:
            assert id not in flows, "a packet leaves once"
            flows[id] = p.timestamp
        for id in e.terminating_flow_ids:
            assert flows[id] <= p.timestamp and id not in ended
            ended.add(id)
    assert not any(open_slices.values())
    said = counts(said)
    hosts = [name for name in names.values() if len(name) == 1 and name[0].startswith("host ")]
    pairs = [name for name in names.values() if len(name) == 2 and name[1].startswith("qp ")]
    assert len(hosts) == said["hosts"] == count and len([n for n in pairs if "(" not in n[1]]) == said["queue"]
    assert (seen["slices"], seen["sends"], seen["takes"], seen["loses"]) == (
        said["slices"], said["packets"], said["taken"], said["lost"],
    )
    assert sum(p.track_event.type == event.TYPE_COUNTER for p in packets) == said["samples"] > 0
    return names, flows, ended, seen


def test_a_trace_is_what_perfetto_reads(tmp_path):
    trace, said = traced(tmp_path)
    names, flows, ended, seen = check(trace, said)
    # 60 messages, each at either end; no packet is lost, and each one comes.
    assert seen["slices"] == 120 and len(flows) == len(ended) == seen["takes"] > 60 * 20 and not seen["loses"]
    assert {"window", "rate", "queue"} <= {name[-1] for name in names.values()}


def test_lost_and_doubled_packets_end_their_flows_once(tmp_path):
    trace, said = traced(tmp_path, more=LOSS)
    _, flows, ended, seen = check(trace, said)
    assert seen["loses"] > 0 and seen["takes"] + seen["loses"] > len(ended) > 60 * 20
    assert len(flows) - len(ended) < 20, "what is still under way at the end"


def test_messages_of_a_shared_queue_pair_do_not_cross(tmp_path):
    trace, said = traced(tmp_path, transport="share-qp = true")
    names, *_ = check(trace, said)
    assert any("(2)" in name[-1] for name in names.values()), "some wait behind others"


@pytest.mark.parametrize("seed, hosts", [(7, 16), (11, 16)])
def test_a_replay_is_traced(tmp_path, seed, hosts):
    path = tmp_path / "replay.perfetto"
    said = adverb.lab._command.call("replay", str(seed), "--limit", "0", "--perfetto", path)
    trace = read(path)
    names, flows, ended, seen = check(trace, said, hosts)
    # Nobody gave up in these seeds: each request is one slice, which ended well.
    assert f"nothing wrong; {seen['slices']} requests completed" in said
    begun = [p.track_event.name for p in trace.packet if p.track_event.type == schema.TrackEvent.TYPE_SLICE_BEGIN]
    assert not any("," in name for name in begun), "no request is left, or failed"
    assert 0 < len(ended) <= len(flows) == seen["sends"]
    assert {"window", "unacknowledged", "requests"} <= {name[-1] for name in names.values()}


@pytest.mark.parametrize("wrong", ["late", "open", "twice", "from nowhere", "uncounted"])
def test_a_trace_that_is_wrong_is_found(tmp_path, wrong):
    trace, said = traced(tmp_path)
    events = [n for n, p in enumerate(trace.packet) if p.HasField("track_event")]
    with_type = lambda kind: [n for n in events if trace.packet[n].track_event.type == kind]
    if wrong == "late":
        trace.packet[events[5]].timestamp = trace.packet[events[-1]].timestamp + 1
    elif wrong == "open":
        del trace.packet[with_type(schema.TrackEvent.TYPE_SLICE_END)[0]]
    elif wrong == "uncounted":
        del trace.packet[with_type(schema.TrackEvent.TYPE_COUNTER)[0]]
    else:
        ends = [n for n in events if trace.packet[n].track_event.terminating_flow_ids]
        ids = [trace.packet[n].track_event.terminating_flow_ids for n in ends[-2:]]
        ids[1][0] = ids[0][0] if wrong == "twice" else 1 << 40
    with pytest.raises((AssertionError, KeyError)):
        check(trace, said)


def test_refusals(tmp_path):
    path = tmp_path / "rma.toml"
    path.write_text("""
[topology]
kind = "star"
hosts = 2
rate = "100G"
[transport]
kind = "1rma"
[workload]
kind = "poisson"
load = 0.5
flows = 5
sizes = "fixed 1KB"
""")
    with pytest.raises(adverb.Failed, match="1RMA"):
        adverb.lab._command.call("sim", path, "--perfetto", tmp_path / "t")
    with pytest.raises(adverb.Failed, match="--1rma has none"):
        adverb.lab._command.call("replay", "7", "--1rma", "--perfetto", tmp_path / "t")
    path = tmp_path / "plain.toml"
    path.write_text(SCENARIO.format(buffer="400KB", transport="", more=""))
    with pytest.raises(adverb.Failed, match="goes with one seed"):
        adverb.lab._command.call("sim", path, "--seeds", "2", "--perfetto", tmp_path / "t")
    with pytest.raises(adverb.Failed, match="--perfetto"):
        adverb.lab._command.call("sim", path, "--quiet", "--perfetto", tmp_path / "none" / "t")
