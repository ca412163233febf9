"""Sweeps over several GPUs: real dask clusters and real processes, in which nothing but the GPU is made up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import dask
import distributed  # before any test sets one of its options, which dask forgets otherwise with its defaults
import psutil
import pytest
from tests.cases.dask_cluster import DaskCluster, client_settings, dask_cluster, own_certificate
from tests.profiler.sweep.test_sweep import PLAIN

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import DeviceError
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.measure.messages import Options
from gemmill.profiler.sweep import cluster as profiler_cluster
from gemmill.profiler.sweep.cluster import Cluster
from gemmill.profiler.sweep.measuring import GpuPool, LocalGpus, MeasuringProcess, local_gpus
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import SILENT, Listener, Scope, Shares, sweep
from gemmill.profiler.sweep.units import problem_of, units
from gemmill.runtime import driver
from gemmill.runtime.storage.store import Store

pytestmark = pytest.mark.slow

FAULTY, SOUND = PLAIN[:2], PLAIN[2:4]
CRASHES, HANGS = map(kernel_name, FAULTY)
SHAPES = [Shape(256 * i, 64, 64) for i in range(1, 7)]  # so many rows that none is measured transposed
KILLS_ONCE, KILLS_ALWAYS = 1024, 1280
"""Rows of the problems that kill the dask worker."""

BODY = f"""
import os, pickle, signal, time
from pathlib import Path
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.profiler.measure.graph_timing import Timing
from gemmill.profiler.measure.messages import Machine, Outcome, Report, Running
from gemmill.runtime.storage.artifact import Artifact

def serve(parent):
    def send(message):
        parent.send(pickle.dumps(message))

    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    parent.end_with()
    parent.receive()
    absent = {{"cublaslt": "it is not here"}}
    send(Machine(gpu.split(":")[0], gpu, gpu, str(os.getpid()), "1", absent=absent))
    while True:
        unit = pickle.loads(parent.receive())
        names = unit.kernels
        for kernel in names:
            send(Running(kernel))
            assert Artifact.from_bytes(unit.artifacts[kernel.name]).name == kernel.name
            if kernel.name == {CRASHES!r}:
                os.kill(os.getpid(), signal.SIGKILL)
            if kernel.name == {HANGS!r}:
                time.sleep(600)
        if "DEATHS" in os.environ and "cublaslt-tuned" in unit.baselines:
            send(Running(SlicedKernel("cublaslt-tuned")))
            with open(os.environ["DEATHS"], "a") as deaths:
                deaths.write("died\\n")
            os.kill(os.getpid(), signal.SIGKILL)
        send(Running(None))
        m = unit.problem.m
        if "FATAL" in os.environ and m in ({KILLS_ONCE}, {KILLS_ALWAYS}):
            victim = Path(os.environ["FATAL"]) / str(m)
            if m == {KILLS_ALWAYS} or not victim.exists():
                victim.write_text(str(os.getpid()))
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(600)
        timings = [Timing(float(m + index), 1.0, 2.0, 3) for index in range(len(names))]
        outcomes = (Outcome(name, "final", timing, True) for name, timing in zip(names, timings))
        send(Report(tuple(outcomes), None))
"""


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Options], MeasuringProcess]:
    """A process that measures on a made-up GPU, whose first kernel crashes and whose second hangs."""
    (tmp_path / "made_up_gpu.py").write_text(BODY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return partial(MeasuringProcess, silence_seconds=5, module="made_up_gpu")


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., list[Measurement]]:
    def run(
        workers: GpuPool,
        configs: Sequence[GemmConfig] = SOUND,
        records: str = "records.jsonl",
        listener: Listener = SILENT,
    ) -> list[Measurement]:
        return sweep(
            units(configs, SHAPES), tmp_path / records, scope=Scope(commit=""), workers=workers, listener=listener
        )

    return run


def table(measurements: Sequence[Measurement]) -> dict[tuple[int, str], tuple[str, float | None]]:
    found: dict[tuple[int, str], tuple[str, float | None]] = {
        (m.problem.m, m.kernel): (m.stage, m.us) for m in measurements
    }
    assert len(found) == len(measurements)
    return found


def processes_end(*pids: int) -> bool:
    deadline = time.monotonic() + 60
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.heavy
def test_one_gpu_and_two_give_the_same_table(
    process: Callable[[Options], MeasuringProcess], swept: Callable[..., list[Measurement]]
) -> None:
    one = swept(LocalGpus(["A:0"], process=process), PLAIN[:4], "one.jsonl")
    said: list[str] = []
    two = swept(LocalGpus(["A:0", "A:1"], process=process), PLAIN[:4], "two.jsonl", Listener(left_out=said.append))
    assert said == ["not compared with cublaslt: it is not here"]
    assert {m.driver for m in two} == {"A:0", "A:1"}
    assert one[0].problem.m == SHAPES[0].m
    assert two[0].problem.m in (SHAPES[-1].m, SHAPES[-2].m)  # what takes longest comes first
    assert table(one) == table(two)
    assert len(two) == len(SHAPES) * 4
    assert {m.kernel for m in two if m.stage == "failed"} == {CRASHES, HANGS}
    assert {m.says.rpartition(": ")[2] for m in two if m.kernel == CRASHES} == {"the measuring process died (SIGKILL)"}
    assert {m.says.rpartition(": ")[2] for m in two if m.kernel == HANGS} == {"it hangs"}


@pytest.mark.heavy
def test_a_baseline_that_crashes_is_not_run_again(
    process: Callable[[Options], MeasuringProcess],
    swept: Callable[..., list[Measurement]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEATHS", str(tmp_path / "deaths"))
    found = swept(LocalGpus(["A:0"], process=process))
    assert (tmp_path / "deaths").read_text() == "died\n"
    assert {m.kernel for m in found if m.stage == "failed"} == {"cublaslt-tuned"}
    assert sum(m.stage == "final" for m in found) == len(SHAPES) * len(SOUND)


@pytest.mark.heavy
def test_kernels_for_other_gpus_are_told_of_and_not_even_compiled(
    process: Callable[[Options], MeasuringProcess], swept: Callable[..., list[Measurement]]
) -> None:
    foreign = [config for config in load_manifest(shipped_manifest("mma")).expand() if config.arch == "sm80"][:3]
    said: list[str] = []
    found = swept(LocalGpus(["A:0"], process=process), [*SOUND, *foreign], listener=Listener(left_out=said.append))
    assert {m.kernel for m in found} == {kernel_name(config) for config in SOUND}
    assert said[0] == "skipped 3 kernels for sm80, which A does not support"


@pytest.mark.heavy
def test_a_dask_worker_that_dies_has_its_unit_measured_again_but_not_for_ever(
    process: Callable[[Options], MeasuringProcess],
    swept: Callable[..., list[Measurement]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FATAL", str(tmp_path))
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "1")
    with dask_cluster(tmp_path) as cluster:
        for gpu in ("A:0", "A:1"):
            cluster.worker("--resources", "GPU=1", CUDA_VISIBLE_DEVICES=gpu)
        with distributed.Client(cluster.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(2)
        found = swept(Cluster(cluster.address, process=process))
    assert len(table(found)) == len(SHAPES) * len(SOUND)
    failed = {m.problem.m: m.says for m in found if m.stage == "failed"}
    assert list(failed) == [KILLS_ALWAYS]
    assert failed[KILLS_ALWAYS].startswith("2 dask workers died while they measured only ")
    # What ran on the GPU ends with its dask worker, though it hangs.
    assert processes_end(*(int((tmp_path / str(m)).read_text()) for m in (KILLS_ONCE, KILLS_ALWAYS)))


def test_a_broken_off_sweep_goes_on_where_it_was(
    process: Callable[[Options], MeasuringProcess], swept: Callable[..., list[Measurement]], tmp_path: Path
) -> None:
    class BreakOff(Exception):
        pass

    def measured(problem: GemmProblem, measurements: Sequence[Measurement]) -> None:
        if len(list(read_records(tmp_path / "records.jsonl"))) == 3 * len(SOUND):
            raise BreakOff

    with pytest.raises(BreakOff):
        swept(LocalGpus(["A:0", "A:1"], process=process), listener=Listener(measured=measured))
    before = list(read_records(tmp_path / "records.jsonl"))
    rest = swept(LocalGpus(["A:0", "A:1"], process=process))
    assert len(before) == 3 * len(SOUND)
    assert len(table([*before, *rest])) == len(SHAPES) * len(SOUND)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path) as found:
        yield found


@pytest.mark.heavy
def test_workers_of_a_scheduler_measure_and_are_left_as_they_were_and_missed_when_they_go(
    process: Callable[[Options], MeasuringProcess],
    swept: Callable[..., list[Measurement]],
    cluster: DaskCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = cluster.address
    with pytest.raises(DeviceError, match=f"dask worker {address} --nthreads 1 --resources GPU=1"):
        swept(Cluster(address, process=process))
    workers = [cluster.worker("--resources", "GPU=1", CUDA_VISIBLE_DEVICES=gpu) for gpu in ("A:0", "A:1")]
    with distributed.Client(address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        client.wait_for_workers(2)
    found = swept(Cluster(address, process=process))
    assert {m.driver for m in found} == {"A:0", "A:1"}
    assert len(table(found)) == len(SHAPES) * len(SOUND)
    assert processes_end(*{int(m.cuda) for m in found})
    assert [worker.poll() for worker in workers] == [None, None]

    def leave(problem: GemmProblem, measurements: Sequence[Measurement]) -> None:
        while workers:
            worker = psutil.Process(workers.pop().pid)
            family = [worker, *worker.children(recursive=True)]
            for member in family:
                member.kill()
            psutil.wait_procs(family)

    monkeypatch.setattr(profiler_cluster, "POLL_SECONDS", 1.0)
    with pytest.raises(DeviceError, match="all dask workers are gone"):
        swept(Cluster(address, process=process), records="others.jsonl", listener=Listener(measured=leave))


def test_gpus_of_two_models_are_refused(
    process: Callable[[Options], MeasuringProcess], swept: Callable[..., list[Measurement]], tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=r"one model of GPU.* A:0 has A and gemmill \S+; B:1 has B and"):
        swept(LocalGpus(["A:0", "B:1"], process))
    assert not (tmp_path / "records.jsonl").exists()


def test_without_dask_or_a_scheduler_it_is_said_what_to_do(
    swept: Callable[..., list[Measurement]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError, match=r"at tcp://127.0.0.1:1 does not use TLS.*--tls-ca-file"):
        swept(Cluster("tcp://127.0.0.1:1"))
    nowhere = "tls://127.0.0.1:1"
    with pytest.raises(DeviceError, match="DASK_DISTRIBUTED__COMM__TLS__CA_FILE is not set"):
        swept(Cluster(nowhere))
    with own_certificate() as (_, environ), dask.config.set(client_settings(environ)):
        says = r"invalid address 'tls://127.0.0.1'; expected tls://host:8786: missing port"
        with pytest.raises(DeviceError, match=says):
            swept(Cluster("tls://127.0.0.1"))
        key = Path(environ["DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY"])
        key.write_text("no key")
        with pytest.raises(DeviceError, match=f"in PEM .*TLS__CLIENT__KEY={key}"):
            swept(Cluster(nowhere))
        key.unlink()
        with pytest.raises(DeviceError, match=f"TLS__CLIENT__KEY: '{key}': No such file"):
            swept(Cluster(nowhere))
    with (
        own_certificate() as (_, environ),
        dask.config.set(client_settings(environ) | {"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(DeviceError, match=f"no dask scheduler answers at {nowhere}"),
    ):
        swept(Cluster(nowhere))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(DeviceError, match=r"pip install .*'distributed.*gemmill's extra 'cluster'"):
        swept(Cluster(nowhere))


def test_a_budget_is_shared_evenly_by_problems_at_work_at_once() -> None:
    problems = [problem_of(PLAIN[0], shape) for shape in SHAPES]
    shares = Shares(6e6, 4)  # seconds: those that pass here do not show
    first = [shares.take(problem, 6 - i) for i, problem in enumerate(problems[:4])]
    assert first == pytest.approx([4e6] * 4, rel=1e-4)
    shares.give_back(problems[0])
    # One of four is free at once: of 24 million GPU seconds 12 are taken, and two problems are left.
    assert shares.take(problems[4], 2) == pytest.approx(6e6, rel=1e-4)
    assert (Shares(0, 4).take(problems[0], 6) or 0) <= 0
    assert Shares(None, 4).take(problems[0], 6) is None


@pytest.mark.gpu
def test_all_gpus_measure_what_one_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if driver.device_count() < 2:
        pytest.skip("one GPU")
    options = Options(screen_rounds=2, finalists=2, final_rounds=3)
    shapes = [Shape(512 * i, 768, 256) for i in range(1, 9)]
    store = Store(tmp_path / "store")
    gpus = local_gpus(None)
    chosen = units(PLAIN[:4], shapes)
    one, all_ = (
        sweep(chosen, tmp_path / f"{len(own)}.jsonl", store=store, options=options, workers=LocalGpus(own))
        for own in (gpus[:1], gpus)
    )
    assert {(m.problem, m.kernel): m.verified for m in all_} == {(m.problem, m.kernel): m.verified for m in one}
    assert len(all_) == len(one)
    assert sweep(chosen, tmp_path / "1.jsonl", store=store, options=options) == []
