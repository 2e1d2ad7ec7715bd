"""`adverb.sweep`: a scenario over values of keys and seeds, by local processes, a Dask cluster or Ray.

Each run depends on scenario, keys and seed alone. So engines may run them where and as often as they like, and a run
whose worker dies is simply run again; the rows come in the order of keys and seeds.
"""

import concurrent.futures
import itertools
import os

from . import _tables
from ._simulate import TABLES, portable, simulate

# Workers that die under one run before its sweep fails, where the engine lets one say so.
DEATHS = 3


def sweep(scenario, keys=None, seeds=1, executor="local", *, table="summary", workers=None):
    """Runs a scenario for every combination of values and every seed: one table, with a column for each key.

    `keys` is {"switch.buffer": ["60KB", "240KB"], ..}; `seeds` a number of seeds from 1 on, or the seeds themselves.
    `table` says which of a simulation's tables is wanted: summary (one row for each run), flows, ports or queues.
    `executor` is "local" (processes of this host, `workers` of them, by default one for each processor), a
    concurrent.futures.Executor, a Dask client, or "ray" (or the module).
    """
    if table not in TABLES:
        raise ValueError(f"table={table!r}: one of {', '.join(TABLES)}")
    seeds = list(range(1, seeds + 1)) if isinstance(seeds, int) else [int(seed) for seed in seeds]
    keys = {key: list(values) for key, values in (keys or {}).items()}
    if not seeds or not all(keys.values()):
        raise ValueError("a sweep needs a seed, and a value for each key")
    columns = {key: column(key, values) for key, values in keys.items()}
    scenario = portable(scenario)
    # What each run has of each key: its place among the values.
    places = list(itertools.product(*(range(len(values)) for values in keys.values())))
    runs = [(dict(zip(keys, at)), seed) for at in places for seed in seeds]
    tasks = [
        (scenario, {key: keys[key][n] for key, n in at.items()}, seed, table)
        for at, seed in runs
    ]
    results = engine(executor, workers)(tasks)
    return joined(columns, runs, results, table)


def point(scenario, keys, seed, table):
    """One run. Engines call it in their workers, by name."""
    return getattr(simulate(scenario, seed=seed, set=keys), table)


def column(key, values):
    """The values of a key as an Arrow array: of one type."""
    pa = _tables.arrow()
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as e:
        raise ValueError(f"{key}: values of one type are needed: {e}") from e


def joined(columns, runs, results, table):
    """All runs' rows under one another, each with its keys and its seed in front."""
    pa = _tables.arrow()
    parts = []
    for (at, seed), part in zip(runs, results, strict=True):
        front = {key: columns[key].take(pa.array([n] * part.num_rows, pa.int64())) for key, n in at.items()}
        if table != "summary":
            front["seed"] = pa.array([seed] * part.num_rows, pa.int64())
        names = [*front, *part.column_names]
        parts.append(pa.table([*front.values(), *part.columns], names=names))
    return pa.concat_tables(parts).combine_chunks()


def engine(executor, workers):
    """What runs a list of tasks and returns their results in order."""
    if executor == "local":
        return lambda tasks: local(tasks, workers)
    if workers is not None:
        raise ValueError(f"workers={workers}: is of the local executor; others have what they were made with")
    if executor == "ray" or getattr(executor, "__name__", None) == "ray":
        return by_ray
    if isinstance(executor, concurrent.futures.Executor):
        return lambda tasks: submitted(executor, tasks)
    if type(executor).__module__.partition(".")[0] == "distributed":
        return lambda tasks: by_dask(executor, tasks)
    raise TypeError(f"executor={executor!r}: \"local\", a concurrent.futures.Executor, a Dask client, or \"ray\"")


def local(tasks, workers):
    """Every run is a process; threads wait for them, and begin one anew that was killed (`_command.call`)."""
    workers = workers or len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="adverb") as pool:
        return submitted(pool, tasks)


def submitted(executor, tasks):
    """By any executor of concurrent.futures."""
    futures = [executor.submit(point, *task) for task in tasks]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def by_dask(client, tasks):
    """By a Dask cluster, whose scheduler gives a dead worker's runs to others."""
    futures = [client.submit(point, *task, pure=False) for task in tasks]
    try:
        return client.gather(futures)
    finally:
        client.cancel(futures)


def by_ray(tasks):
    """By Ray, which runs anew what a dead worker had."""
    import ray

    run = ray.remote(num_cpus=1, max_retries=DEATHS)(point)
    # Larger inputs lie in the store once.
    return ray.get([run.remote(*task) for task in tasks])
