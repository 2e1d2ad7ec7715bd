"""Sweeps: every engine gives the same table, also when a worker is killed in the middle."""

import concurrent.futures
import os
import threading

import adverb
import pytest
from conftest import kill_one

KEYS = {"switch.buffer": ["20KB", "40KB"], "workload.load": [0.8, 0.9]}


def swept(scenario, executor, **more):
    return adverb.sweep(scenario, KEYS, seeds=2, executor=executor, **more)


def while_killed(scenario, executor, pick, among=None):
    """The sweep with something of it killed while it runs; what was killed."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(swept, scenario, executor)
        killed = kill_one(pick, among)
        assert not future.done(), "it was killed too late to show anything"
        return future.result(timeout=300), killed


@pytest.fixture(scope="module")
def expected():
    """Digests by scenario, so that each engine is compared with one sweep, run by run."""
    return {}


def digest(expected, scenario):
    key = str(scenario)
    if key not in expected:
        runs = [
            adverb.simulate(scenario, seed=seed, set={"switch.buffer": buffer, "workload.load": load}).summary.to_pylist()[0]
            for buffer in KEYS["switch.buffer"] for load in KEYS["workload.load"] for seed in (1, 2)
        ]
        expected[key] = [run["trace"] for run in runs]
        assert len(set(expected[key])) == 8
    return expected[key]


def test_rows_come_in_order_with_their_keys(star, expected):
    table = swept(star, "local")
    assert table.column_names[:3] == ["switch.buffer", "workload.load", "seed"]
    assert table["switch.buffer"].to_pylist() == ["20KB"] * 4 + ["40KB"] * 4
    assert table["workload.load"].to_pylist() == [0.8, 0.8, 0.9, 0.9] * 2 and table["seed"].to_pylist() == [1, 2] * 4
    assert table["trace"].to_pylist() == digest(expected, star)
    flows = swept(star, "local", table="flows", workers=1)
    assert flows.num_rows == 8 * 60 and flows["seed"].to_pylist()[60] == 2


def test_local_processes_with_one_killed(long_star, expected):
    table, _ = while_killed(long_star, "local", "simulation")
    assert table["trace"].to_pylist() == digest(expected, long_star)


def test_a_pool_of_ones_own(star):
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert adverb.digest(swept(star, pool)) == adverb.digest(swept(star, "local"))


def test_dask_with_a_worker_killed(long_star, expected):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        whole = swept(long_star, client)
        workers = set(client.run(os.getpid).values())
        assert len(workers) == 2
        table, killed = while_killed(long_star, client, "worker", workers)
        client.wait_for_workers(2, timeout=60)
        assert killed not in client.run(os.getpid).values()
    assert table["trace"].to_pylist() == digest(expected, long_star)
    assert adverb.digest(table) == adverb.digest(whole)


def test_ray_with_a_worker_killed(long_star, expected):
    # A busy host starts it late; it is read when Ray is loaded.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
    try:
        whole = swept(long_star, "ray")
        table, killed = while_killed(long_star, ray, "worker")
        assert killed != os.getpid()
    finally:
        ray.shutdown()
    assert table["trace"].to_pylist() == digest(expected, long_star)
    assert adverb.digest(table) == adverb.digest(whole)


def test_one_that_is_killed_each_time_is_given_up(long_star):
    # Never ends by itself before it is found.
    long_star["workload"]["flows"] = 500_000
    ended = threading.Event()

    def kill():
        while not ended.is_set():
            try:
                kill_one("simulation", timeout=1)
            except AssertionError:
                continue

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(adverb.Failed, match="SIGKILL, 3 times"):
            adverb.simulate(long_star)
    finally:
        ended.set()
        killer.join()


def test_refusals(star):
    with pytest.raises(adverb.Failed, match="unknown field `lod`"):
        adverb.sweep(star, {"workload.lod": [1]})
    for wrong in ({"keys": {"workload.load": []}}, {"seeds": 0}, {"table": "none"}, {"keys": {"workload.load": [1, "x"]}}):
        with pytest.raises(ValueError):
            adverb.sweep(star, **wrong)
    with pytest.raises(TypeError, match="a Dask client"):
        adverb.sweep(star, executor="threads")
    with pytest.raises(ValueError, match="workers=2"):
        adverb.sweep(star, executor="ray", workers=2)


def test_a_digest_is_of_rows_not_of_memory(star):
    pa = pytest.importorskip("pyarrow")
    flows = adverb.simulate(star, seed=1).flows
    pieces = pa.concat_tables([flows.slice(0, 7), flows.slice(7)])
    assert adverb.digest(pieces) == adverb.digest(flows)
    assert adverb.digest(flows.slice(1)) != adverb.digest(flows)
    assert adverb.digest(flows.rename_columns(["x", *flows.column_names[1:]])) != adverb.digest(flows)
