"""Simulations as Arrow tables: types, seeds, keys, refusals, and who takes them."""

import pathlib
import subprocess
import sys

import adverb
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest


def test_tables_have_what_the_command_writes(star):
    got = adverb.simulate(star, seed=5)
    assert got.flows.num_rows == 60 and got.ports.num_rows == 8 and got.queues.num_rows > 0
    types = {field.name: str(field.type) for field in got.flows.schema}
    assert types["flow"] == "int64" and types["slowdown"] == "double" and types["failed"] == "int64"
    row = got.summary.to_pylist()[0]
    assert row["seed"] == 5 and row["flows"] == 60 and row["drops"] > 0 and row["retransmissions"] > 0
    assert f"trace             {got.trace}" in got.text and len(got.trace) == 16
    mean = sum(got.flows["slowdown"].to_pylist()) / 60
    assert row["slowdown_avg"] == pytest.approx(mean, abs=1e-3)


def test_a_seed_repeats_a_run_and_another_one_does_not(star):
    one, again, other = (adverb.simulate(star, seed=seed) for seed in (5, 5, 6))
    assert adverb.digest(one.flows) == adverb.digest(again.flows) != adverb.digest(other.flows)
    assert one.trace == again.trace != other.trace


def test_path_text_and_dict_are_one_scenario(star, tmp_path):
    text = '[topology]\nkind = "star"\nhosts = 4\nrate = "100G"\n[switch]\nbuffer = "40KB"\n[transport]\nmtu = 1024\n'
    text += '[workload]\nkind = "poisson"\nload = 0.9\nflows = 60\nsizes = "fixed 20KB"\n'
    path = tmp_path / "star.toml"
    path.write_text(text)
    traces = {adverb.simulate(scenario, seed=3).trace for scenario in (star, text, path, str(path))}
    assert len(traces) == 1
    set_ = adverb.simulate(path, seed=3, set={"switch.buffer": "80KB", "workload.flows": 61})
    assert set_.flows.num_rows == 61 and set_.trace not in traces


def test_tables_as_parquet_are_the_same(star, tmp_path):
    got = adverb.simulate(star, seed=5)
    paths = got.to_parquet(tmp_path / "out")
    assert set(paths) == {"flows", "slowdowns", "ports", "queues", "summary"}
    for name, path in paths.items():
        read = pyarrow.parquet.read_table(path)
        assert read.num_rows > 0 and adverb.digest(read) == adverb.digest(getattr(got, name)), name
    assert pandas.read_parquet(paths["slowdowns"])["workload_name"].tolist() == ["poisson"]


def test_pandas_and_polars_take_them_as_they_are(star):
    got = adverb.simulate(star, seed=5)
    by_polars = polars.DataFrame(got)
    assert by_polars.shape == (60, 13) and by_polars["slowdown"].mean() > 1
    by_pandas = pandas.DataFrame.from_arrow(got) if hasattr(pandas.DataFrame, "from_arrow") else got.flows.to_pandas()
    assert by_pandas.shape == (60, 13) and by_pandas["slowdown"].mean() == pytest.approx(by_polars["slowdown"].mean())
    assert pyarrow.table(got).equals(got.flows)


def test_what_did_not_happen_is_null(star):
    star["end"] = "30us"
    got = adverb.simulate(star, seed=5)
    ended = got.summary["flows"][0].as_py()
    assert 0 < ended < 60 and got.flows["fct_ns"].null_count == 60 - ended


def test_refusals_are_the_commands_own_words(star, tmp_path):
    with pytest.raises(adverb.Failed, match="no-such.toml") as refused:
        adverb.simulate(tmp_path / "no-such.toml")
    assert refused.value.status == 1
    star["switch"]["bufer"] = "40KB"
    with pytest.raises(adverb.Failed, match="scenario.toml:2: .*bufer"):
        adverb.simulate(star)
    with pytest.raises(adverb.Failed, match="unknown field `lod`"):
        adverb.simulate(pathlib.Path(__file__).parent / "star.toml", set={"workload.lod": 1})
    for wrong in (5, None, b"[topology]\n"):
        with pytest.raises(TypeError, match="a path, a text or a dict"):
            adverb.simulate(wrong)
    with pytest.raises(TypeError, match="no object"):
        adverb.simulate({"seed": object()})


def test_values_are_written_as_toml_reads_them():
    tomllib = pytest.importorskip("tomllib")
    from adverb import _toml

    table = {
        "a": 1, "b": -0.5, "c": 1e22, "d": True, "e": 'a "word"\\ \n\t\x7f\u00e9', "f": [1, [2.0, "x"]], "g": {"h i": {"j": []}},
        "k": float("inf"), "": "empty",
    }
    assert tomllib.loads(_toml.document(table)) == table


def test_the_module_is_the_command():
    said = subprocess.run([sys.executable, "-m", "adverb", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"adverb {adverb.__version__}\n"
    ended = subprocess.run([sys.executable, "-m", "adverb", "run", "--address", "127.0.0.1", "--", "sh", "-c", "exit 42"])
    assert ended.returncode == 42
