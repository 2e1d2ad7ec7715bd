"""The command's CSV files as Arrow tables, with the types that their columns have whatever stands in them."""

import hashlib
import json
import math
import os
import re

# Of adverb sim's files; the names are theirs. Columns that are not named here are 64-bit integers.
REALS = {
    "start_ns", "received_ns", "completed_ns", "fct_ns", "ideal_ns", "slowdown", "paused_ns", "time_ns",
    "slowdown_avg", "slowdown_p50", "slowdown_p95", "slowdown_p99",
}
WORDS = {"from_to", "trace", "series", "workload_name"}


def arrow():
    """pyarrow, which simulations need and the command does not."""
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError as e:
        raise ImportError("adverb's tables need pyarrow: pip install 'adverb[arrow]', or pyarrow alone") from e
    return pyarrow


def simulated(path):
    """A file of adverb sim. Empty cells, of what did not happen, are null."""
    pa = arrow()
    with open(path, encoding="utf-8") as f:
        names = f.readline().strip().split(",")
    types = {}
    for name in names:
        types[name] = pa.float64() if name in REALS else pa.string() if name in WORDS else pa.int64()
    return read(path, types)


def summary(tables, text):
    """One row of a run's figures. Of flows and ports they are what the tables say; what no table has is read from what
    the command prints, which names one seed, the packets sent again, and the hash of all that happened.
    """
    pa = arrow()
    flows, ports = tables["flows"].to_pydict(), tables["ports"].to_pydict()
    ended = [n for n, fct in enumerate(flows["fct_ns"]) if fct is not None and not flows["failed"][n]]
    times = sorted(flows["fct_ns"][n] for n in ended)
    at = lambda share: times[max(math.ceil(len(times) * share), 1) - 1] if times else None
    mean = lambda values: math.fsum(values) / len(values) if values else None
    row = {"seed": said(r"^.*, seed (\d+): ", text, int), "flows": len(ended), "failed": sum(flows["failed"])}
    row["unfinished"] = len(flows["flow"]) - len(ended) - row["failed"]
    row["slowdown_avg"] = mean([flows["slowdown"][n] for n in ended])
    row |= {"fct_avg_ns": mean(times), "fct_p99_ns": at(0.99), "fct_p999_ns": at(0.999), "fct_max_ns": at(1.0)}
    row |= {name: sum(ports[name]) for name in ("drops", "lost", "corrupted", "marked", "pauses")}
    row["paused_ns"] = math.fsum(ports["paused_ns"])
    row["retransmissions"] = said(r"^retransmissions +(\d+)$", text, int)
    row["trace"] = said(r"^trace +([0-9a-f]{16})$", text, str)
    reals = {name for name in row if name.endswith(("_ns", "_avg"))}
    kinds = {name: pa.float64() if name in reals else pa.string() if name == "trace" else pa.int64() for name in row}
    return pa.table({name: pa.array([value], kinds[name]) for name, value in row.items()})


def said(pattern, text, kind):
    """What the command's answer has in this place. It is this package's own command: a place that is not there is a bug."""
    found = re.search(pattern, text, re.M)
    assert found, f"no {pattern!r} in the answer:\n{text}"
    return kind(found.group(1))


def measured(path):
    """A file of adverb lab: names and traces are words, the rest are numbers."""
    pa = arrow()
    return read(path, {name: pa.string() for name in WORDS})


def read(path, types):
    """A CSV file of the command."""
    pa = arrow()
    options = pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=False)
    return pa.csv.read_csv(path, convert_options=options)


def to_parquet(tables, folder):
    """Writes each table as FOLDER/NAME.parquet, types and all; the paths by name."""
    arrow()
    import pyarrow.parquet

    os.makedirs(folder, exist_ok=True)
    paths = {name: os.path.join(os.fspath(folder), f"{name}.parquet") for name in tables}
    for name, table in tables.items():
        pyarrow.parquet.write_table(table, paths[name])
    return paths


def digest(table):
    """A hash of a table's names, types and rows, the same however the rows lie in memory."""
    pa = arrow()
    table = pa.table(table)
    words = hashlib.sha256(str([(field.name, str(field.type)) for field in table.schema]).encode())
    for batch in table.to_batches(max_chunksize=65536):
        for row in batch.to_pylist():
            words.update(json.dumps(row, default=str).encode() + b"\n")
    return words.hexdigest()
