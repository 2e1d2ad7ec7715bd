"""Published experiments, and one's own, from Python: `adverb lab` to Arrow tables."""

import os
import tempfile

from . import _command, _tables, _toml


class Outcome:
    """What an experiment gave. `runs` has a row for each series, point and seed; `tables` has it and what else was
    written (tail, timeline); `svg` is the plot, which notebooks show; `text` the report with its verdicts. `passed` is
    False if a bound that is claimed does not hold.
    """

    def __init__(self, name, tables, svg, text, passed):
        self.name = name
        self.tables = tables
        self.svg = svg
        self.text = text
        self.passed = passed

    @property
    def runs(self):
        """Every run, as a pyarrow.Table."""
        return self.tables["runs"]

    def to_parquet(self, folder):
        """Writes each table into a folder, as NAME.parquet; the paths by name."""
        return _tables.to_parquet(self.tables, folder)

    def __arrow_c_stream__(self, requested_schema=None):
        return self.runs.__arrow_c_stream__(requested_schema)

    def _repr_svg_(self):
        return self.svg

    def __repr__(self):
        return self.text


def names():
    """The names of the published experiments."""
    lines = _command.call("lab", "list").splitlines()
    # Others are what a paper's bounds say, in numbers.
    return [line.split()[0] for line in lines if line.startswith("  ") and "/" in line.split()[0]]


def run(experiment, *, scale="quick", seeds=None, first_seed=1, set=None, jobs=None):
    """Runs one experiment: a name, such as irn/fig1, or the path of one's own (docs/lab.md).

    `set` sets keys of the scenario otherwise; a list of values is points along the x axis.
    """
    _tables.arrow()
    words = ["lab", "run", experiment, "--quiet", "--scale", scale, "--first-seed", first_seed]
    words += ["--seeds", seeds] if seeds is not None else []
    words += ["--jobs", jobs] if jobs is not None else []
    for key, value in (set or {}).items():
        words += ["--set", f"{key}={_toml.option(value if isinstance(value, (list, tuple)) else [value])}"]
    with tempfile.TemporaryDirectory(prefix="adverb-") as out:
        text, passed = _ended([*words, "--out", out])
        folders = [at for at, _, files in os.walk(out) if any(name.endswith(".csv") for name in files)]
        if len(folders) != 1:
            found = ", ".join(sorted(os.path.relpath(at, out) for at in folders))
            raise ValueError(f"{experiment}: one experiment is needed, not {found}")
        files = sorted(os.listdir(folders[0]))
        tables = {
            name.removesuffix(".csv"): _tables.measured(os.path.join(folders[0], name))
            for name in files
            if name.endswith(".csv")
        }
        svg = None
        if "plot.svg" in files:
            with open(os.path.join(folders[0], "plot.svg"), encoding="utf-8") as f:
                svg = f.read()
        return Outcome(os.path.relpath(folders[0], out), tables, svg, text, passed)


def _ended(words):
    """What the command printed, and whether all bounds held. Bounds that do not hold are a result."""
    try:
        return _command.call(*words), True
    except _command.Failed as e:
        if e.printed and "a bound that is claimed does not hold" in str(e):
            return e.printed, False
        raise
