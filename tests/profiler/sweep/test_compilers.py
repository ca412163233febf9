"""Kernels compiled by a dask cluster whose processes, all of them real, die and hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import distributed
import psutil
import pytest
from tests.cases.dask_cluster import DaskCluster, dask_cluster
from tests.profiler.sweep.test_sweep import PLAIN

from gemmill.library.errors import DeviceError
from gemmill.profiler.sweep import compilers
from gemmill.profiler.sweep.cluster import Cluster
from gemmill.profiler.sweep.compilers import ClusterCompilers
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.storage.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
KERNELS = [replace(PLAIN[0], stages=stages) for stages in (2, 3, 4)]


def worker_of(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def compiler_of(pid: int) -> psutil.Process:
    """The process that compiles for a dask worker, once it is there."""
    while True:
        for child in psutil.Process(pid).children(recursive=True):
            if "gemmill.runtime.compile.compile_worker" in " ".join(child.cmdline()):
                return child


@contextmanager
def struck(
    cluster: DaskCluster, number: signal.Signals, times: int, victim: Callable[[int], psutil.Process] = worker_of
) -> Iterator[list[str]]:
    """While the block runs, the next workers with a job, or what compiles for them, get a signal; their addresses."""
    found: list[str] = []
    done = threading.Event()
    with distributed.Client(cluster.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        pids = client.run(os.getpid)

        def strike() -> None:
            while not done.is_set() and len(found) < times:
                for address in [address for address, jobs in client.processing().items() if jobs]:
                    if address not in found:
                        found.append(address)
                        victim(pids[address]).send_signal(number)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            yield found
        finally:
            done.set()
            thread.join()


def wait_for(pool: ClusterCompilers, workers: int) -> None:
    deadline = time.monotonic() + 60
    while len(pool._alive()) != workers:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaskCluster]:
    monkeypatch.setattr(compilers, "SILENT_SECONDS", 4.0)
    with dask_cluster(tmp_path) as cluster:
        yield cluster


def test_what_is_lost_goes_elsewhere_once_more_and_then_fails(cluster: DaskCluster, tmp_path: Path) -> None:
    with ClusterCompilers(cluster.address) as pool:
        with pytest.raises(DeviceError, match=f"no worker of the dask scheduler at {cluster.address} compiles"):
            pool.compile(KERNELS[0], 60)
        for options in [(), (), (), ("--resources", "GPU=1")]:
            cluster.worker("--no-nanny", *options)
        wait_for(pool, 3)

        with struck(cluster, signal.SIGSTOP, 1, compiler_of) as victims:
            assert pool.compile(KERNELS[0], 15).artifact is not None
        assert len(victims) == 1

        with struck(cluster, signal.SIGSTOP, 1) as victims:
            assert pool.compile(KERNELS[1], 60).artifact is not None
        wait_for(pool, 2)  # nothing more is given to the one that hangs
        for worker in cluster.workers:
            psutil.Process(worker.pid).resume()
        wait_for(pool, 3)

        with struck(cluster, signal.SIGKILL, 9) as victims:
            lost = pool.compile(KERNELS[2], 60)
        one, other = victims
        assert lost.lost
        told = f"{one}: the worker died or was stopped; then {other}: the worker died or was stopped"
        assert str(lost.error) == f"{lost.name}: failed on two workers of the cluster: {told}"
        assert pool.compile(KERNELS[2], 60).artifact is not None

    # A sweep's kernels are compiled by what is left: one worker, and one with a GPU, which does not.
    done: list[Outcome] = []
    with Cluster(cluster.address) as sweep:
        store = Store(tmp_path / "sweep")
        asked = [*KERNELS, replace(KERNELS[0], stages=50)]
        outcomes = sweep.compile_many(asked, jobs=None, store=store, on_done=done.append)
    assert [outcome.artifact is None for outcome in outcomes] == [False, False, False, True]
    assert sorted(map(id, done)) == sorted(map(id, outcomes))
    assert len(store.list()) == 3
    assert not (tmp_path / "store-3").exists()


def test_the_only_worker_comes_back_and_has_the_kernel_once_more(cluster: DaskCluster) -> None:
    with ClusterCompilers(cluster.address) as pool:
        cluster.worker()
        wait_for(pool, 1)
        with struck(cluster, signal.SIGKILL, 1) as victims:
            assert pool.compile(KERNELS[0], 60).artifact is not None
        assert len(victims) == 1
