"""`adverb.simulate`: a scenario, run in a process of its own, to Arrow tables."""

import contextlib
import os
import tempfile

from . import _tables, _toml
from ._command import Failed, call

FILES = ("flows", "slowdowns", "ports", "queues")
TABLES = (*FILES, "summary")


class Simulation:
    """What a simulation gave: `flows`, `slowdowns`, `ports`, `queues` and `summary`, each a pyarrow.Table, and `text`,
    what `adverb sim` prints. Whoever takes Arrow data by its C stream takes the flows of it as it is: `polars.DataFrame(it)`,
    `pandas.DataFrame.from_arrow(it)`, `pyarrow.table(it)`.
    """

    def __init__(self, tables, text):
        self.text = text
        self.tables = tables
        self.flows = tables["flows"]
        self.slowdowns = tables["slowdowns"]
        self.ports = tables["ports"]
        self.queues = tables["queues"]
        self.summary = tables["summary"]

    def to_parquet(self, folder):
        """Writes each table into a folder, as NAME.parquet; the paths by name."""
        return _tables.to_parquet(self.tables, folder)

    @property
    def trace(self):
        """The hash of all that happened: equal for equal runs, on every machine."""
        return self.summary["trace"][0].as_py()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.flows.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self):
        return self.flows.schema.__arrow_c_schema__()

    def __repr__(self):
        return f"<adverb.Simulation of {self.flows.num_rows} flows, trace {self.trace}>\n{self.text}"


def simulate(scenario, *, seed=None, set=None):
    """Runs a scenario: a path, the text of one, or a dict of the same shape (docs/scenarios.md).

    `seed` decides every random choice; without it the scenario's own counts. `set` sets keys otherwise, such as
    {"switch.buffer": "60KB"}. What is wrong with any of it is a `Failed` with the command's words.
    """
    _tables.arrow()
    with ready(scenario, set) as path, tempfile.TemporaryDirectory(prefix="adverb-") as out:
        words = ["sim", path, "--quiet", "--out", out]
        if seed is not None:
            words += ["--seed", seed]
        text = call(*words)
        tables = {name: _tables.simulated(os.path.join(out, f"{name}.csv")) for name in FILES}
        return Simulation({**tables, "summary": _tables.summary(tables, text)}, text)


def portable(scenario):
    """A scenario as it may be given to another process: an absolute path, or a text."""
    if isinstance(scenario, dict):
        return _toml.document(scenario)
    if isinstance(scenario, str) and "\n" in scenario:
        return scenario
    if isinstance(scenario, (str, os.PathLike)):
        return os.path.abspath(scenario)
    raise TypeError(f"a scenario is a path, a text or a dict, no {type(scenario).__name__}")


@contextlib.contextmanager
def ready(scenario, keys):
    """The path of a scenario, which is written to a file where it is none, or where keys are set otherwise."""
    scenario = portable(scenario)
    if "\n" not in scenario and not keys:
        yield scenario
        return
    with tempfile.TemporaryDirectory(prefix="adverb-") as folder:
        path = os.path.join(folder, "scenario.toml")
        if "\n" not in scenario:
            beside, name = os.path.split(scenario)
            path = os.path.join(folder, name)
            try:
                with open(scenario, encoding="utf-8") as f:
                    scenario = f.read()
            except OSError as e:
                raise Failed(f"{scenario}: {e.strerror}; name a file that can be read", 1) from e
            # A scenario names files beside itself.
            for other in os.listdir(beside):
                if other != name:
                    os.symlink(os.path.join(beside, other), os.path.join(folder, other))
        with open(path, "w", encoding="utf-8") as f:
            f.write(_toml.changed(scenario, keys) if keys else scenario)
        yield path
