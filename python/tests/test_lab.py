"""Experiments as Arrow tables, with their plot and verdicts."""

import adverb
import pyarrow.parquet
import pytest


def test_names():
    names = adverb.lab.names()
    assert "irn/fig1" in names and "onerma/fig12" in names and len(set(names)) == len(names) > 30


def test_an_experiment_of_ones_own(tmp_path):
    adverb.lab._command.call("lab", "new", tmp_path / "mine")
    got = adverb.lab.run(tmp_path / "mine" / "first", seeds=2, first_seed=7)
    # Two seeds leave wide intervals: whether its bound holds says nothing.
    assert got.name == "mine/first"
    assert set(got.runs["seed"].to_pylist()) == {7, 8} and got.runs["trace"].type == "string"
    read = pyarrow.parquet.read_table(got.to_parquet(tmp_path / "out")["runs"])
    assert adverb.digest(read) == adverb.digest(got.runs)
    assert got.svg.lstrip().startswith("<svg") and got._repr_svg_() == got.svg and "hold" in got.text
    swept = adverb.lab.run(tmp_path / "mine", seeds=1, set={"switch.buffer": ["60KB", "120KB"], "workload.flows": 50})
    assert set(swept.runs["x"].to_pylist()) == {1, 2}


def test_a_bound_that_does_not_hold_is_a_result(tmp_path):
    adverb.lab._command.call("lab", "new", tmp_path / "mine")
    path = tmp_path / "mine" / "first" / "experiment.toml"
    path.write_text(path.read_text() + '\n[[bound]]\nratio = "{}"\nmin = 1e9\n'.format(first_series(path)))
    got = adverb.lab.run(path, seeds=3)
    assert not got.passed and "FAILS" in got.text and got.runs.num_rows > 0


def first_series(path):
    return next(line.split('"')[1] for line in path.read_text().splitlines() if line.startswith("name ="))


def test_refusals(tmp_path):
    with pytest.raises(adverb.Failed, match="irn/fig99"):
        adverb.lab.run("irn/fig99")
    with pytest.raises(adverb.Failed):
        adverb.lab.run(tmp_path)
