"""Sweeps: what is measured together, what a crash costs, what stands in the way."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_set
from tests.cases.plain import bound

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.config.edited import edited_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.sliced_kernel import SLICES, SlicedKernel, in_each_number
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import DeviceError, RecordError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT, CUBLASLT_TUNED, TRITON, absent
from gemmill.profiler.measure.messages import Options, Unit
from gemmill.profiler.sweep.measuring import MeasuringProcess, measure
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import Listener, Scope, sweep
from gemmill.profiler.sweep.units import (
    is_plain,
    likely_alone,
    likely_first,
    problem_of,
    too_large,
    units,
)
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.select import gpus
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.storage.store import Store

CONFIGS = tuple(shipped_set("bf16").expand())
STRIDED = tuple(filter(is_plain, CONFIGS))
PLAIN = tuple(
    c
    for c in CONFIGS
    if (c.b.major, c.c, c.d.dtype) == ("k", None, "bf16") and c.a.major in ("k", "any") and c.d.major in ("n", "any")
    if is_plain(c)
)
KERNELS = tuple(kernel for config in PLAIN for kernel in in_each_number(kernel_name(config), config))


def packed(rows: int, columns: int, batch: int, row_major: bool, dtype: DTypeName) -> TensorView:
    """What PyTorch would say of a packed tensor of matrices."""
    strides = (rows * columns, columns, 1) if row_major else (rows * columns, 1, rows)
    shape = (batch, rows, columns)
    skip = 1 if batch == 1 else 0
    return TensorView(4096 * DTYPES[dtype].bytes, shape[skip:], strides[skip:], dtype, 0)


@given(
    st.sampled_from(STRIDED),
    st.builds(Shape, *(st.integers(2, 300) for _ in range(3)), st.integers(1, 3)),
)
def test_the_problem_of_a_shape_is_the_one_that_the_api_sees(config: GemmConfig, shape: Shape) -> None:
    m, n, k, batch = shape.m, shape.n, shape.k, shape.batch
    a = packed(m, k, batch, config.a.major != "mn", config.a.dtype)
    b = packed(k, n, batch, config.b.major == "mn", config.b.dtype)
    c = packed(m, n, batch, config.c.major != "m", config.c.dtype) if config.c else None
    d = packed(m, n, batch, config.d.major != "m", config.d.dtype)
    assert problem_of(config, shape) == bound(a, b, d, c, accumulator=config.accumulator).problem


def test_a_row_vector_is_as_aligned_as_its_address() -> None:
    problem = problem_of(PLAIN[0], Shape(1, 8, 24))
    assert (problem.a_align, problem.b_align, problem.d_align) == (16, 16, 16)


def test_kernels_of_equal_formats_are_measured_side_by_side() -> None:
    found = units(CONFIGS, [Shape(2048, 64, 64), Shape(4096, 64, 64)])
    plain = [config for config in CONFIGS if is_plain(config)]
    assert sum(len(unit.kernels) for unit in found) == 2 * sum(
        len(in_each_number(kernel_name(config), config)) for config in plain
    )
    assert len(plain) < len(CONFIGS)
    assert len({unit.problem for unit in found}) == len(found)
    assert found[0].kernels == KERNELS


def test_few_rows_are_measured_transposed_too() -> None:
    (few,) = (u for u in units(CONFIGS, [Shape(5, 640, 64)]) if u.problem == problem_of(PLAIN[0], Shape(5, 640, 64)))
    own = [kernel for kernel in few.kernels if not needs_swap(parse_name(kernel.name), few.problem)]
    assert tuple(own) == KERNELS
    transposed = [parse_name(kernel.name) for kernel in few.kernels[len(own) :]]
    assert transposed
    assert {(c.d.major, c.b.major) for c in transposed} == {("m", "k")}


def test_partial_sums_that_fill_the_memory_are_not_measured() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8_splitk_linear"
    assert not too_large(SlicedKernel(name, 64), GemmProblem(2048, 2048, 8192))
    assert too_large(SlicedKernel(name, 64), GemmProblem(8192, 4096, 8192))
    assert not too_large(KERNELS[0], GemmProblem(16384, 16384, 1024))


def test_nothing_to_profile_is_an_error(tmp_path: Path) -> None:
    for configs, shapes in (((), [Shape(64, 64, 64)]), (PLAIN, [])):
        with pytest.raises(RecordError, match="nothing to profile"):
            sweep(units(configs, shapes), tmp_path / "records.jsonl")


def test_without_a_gpu_nothing_is_compiled_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    store, records = Store(tmp_path / "store"), tmp_path / "records.jsonl"
    with pytest.raises(DeviceError, match="there is no GPU to run kernels on"):
        sweep(units(PLAIN[:1], [Shape(64, 64, 64)]), records, store=store)
    assert store.list() == []
    assert not records.exists()


BODY = """
import os, pickle, signal, time
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.profiler.measure.messages import Fault, Machine, Outcome, Report, Running

def serve(parent):
    def send(message):
        parent.send(pickle.dumps(message))

    parent.end_with()
    parent.receive()
    send(Machine("GPU", "GPU-0", "1", "1", "1"))
    while True:
        unit = pickle.loads(parent.receive())
        names = unit.kernels
        for kernel in names:
            send(Running(kernel))
            if kernel.name in ({first!r}, {edited!r}):
                os.kill(os.getpid(), signal.SIGKILL)
            if kernel.name == {second!r}:
                time.sleep(600)
            if kernel.name == {third!r}:
                send(Fault("CUDA error: an illegal memory access was encountered"))
        for name in unit.baselines:
            send(Running(SlicedKernel(name)))
            if name == "cublaslt-tuned":
                os.kill(os.getpid(), signal.SIGKILL)
        send(Running(None))
        if unit.problem.m == 1:
            send(Fault("CUDA out of memory"))
        outcomes = (Outcome(name, "screen", says=str(unit.seconds)) for name in names)
        send(Report(tuple(outcomes), None))
"""


EDITED = edited_name(kernel_name(PLAIN[3]), "0" * 64)
"""A kernel of an edited page."""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasuringProcess]:
    """A worker in which the first kernel and an edited one crash, the second hangs and the third faults; one baseline
    crashes too."""
    first, second, third = (kernel_name(config) for config in PLAIN[:3])
    (tmp_path / "faulty_body.py").write_text(BODY.format(first=first, second=second, third=third, edited=EDITED))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with MeasuringProcess(Options(), silence_seconds=3, module="faulty_body") as process:
        assert process.start().gpu == "GPU"
        yield process


@pytest.mark.slow
def test_kernels_and_baselines_that_crash_hang_or_fault_cost_their_own_rows(worker: MeasuringProcess) -> None:
    faulty: dict[SlicedKernel, str] = {}
    unit = Unit(problem_of(PLAIN[0], Shape(64, 64, 64)), KERNELS[:5], seconds=60)
    report = measure(worker, unit, faulty)
    outcomes = {outcome.kernel: outcome for outcome in report.outcomes}
    kernels = KERNELS[:5]
    assert [outcomes[kernel].stage for kernel in kernels] == ["failed", "failed", "failed", "screen", "screen"]
    expected = zip(
        (*kernels[:3], SlicedKernel("cublaslt-tuned")),
        ("SIGKILL", "hangs", "illegal memory access", "SIGKILL"),
        strict=True,
    )
    for kernel, says in expected:
        assert outcomes[kernel].stage == "failed"
        assert says in outcomes[kernel].says
    assert float(outcomes[kernels[4]].says) < 57, "what hung took three of the seconds"
    # Later problems go without them, and say so.
    again = measure(worker, replace(unit, problem=problem_of(PLAIN[0], Shape(128, 64, 64))), faulty)
    assert {outcome.kernel: outcome.stage for outcome in again.outcomes} == {
        name: outcome.stage for name, outcome in outcomes.items()
    }


@pytest.mark.slow
def test_an_edited_kernel_that_crashes_does_not_cost_the_one_that_it_was(worker: MeasuringProcess) -> None:
    unit = Unit(problem_of(PLAIN[3], Shape(64, 64, 64)), (KERNELS[3], SlicedKernel(EDITED)), baselines=())
    report = measure(worker, unit, {})
    stages = {outcome.kernel: (outcome.stage, "SIGKILL" in outcome.says) for outcome in report.outcomes}
    assert stages == {SlicedKernel(EDITED): ("failed", True), KERNELS[3]: ("screen", False)}


def test_a_failure_that_is_no_kernels_fails_the_problem_alone(worker: MeasuringProcess) -> None:
    faulty: dict[SlicedKernel, str] = {}
    unit = Unit(problem_of(PLAIN[3], Shape(1, 64, 64)), KERNELS[3:5], baselines=())
    report = measure(worker, unit, faulty)
    assert [(outcome.stage, outcome.says) for outcome in report.outcomes] == [("failed", "CUDA out of memory")] * 2
    assert not faulty
    report = measure(worker, replace(unit, problem=problem_of(PLAIN[3], Shape(2, 64, 64))), faulty)
    assert [outcome.stage for outcome in report.outcomes] == ["screen"] * 2


@pytest.mark.parametrize("shape", [Shape(4096, 4096, 4224), Shape(16, 4096, 512)])
def test_likely_kernels_come_first_and_the_selected_one_is_a_finalist(shape: Shape) -> None:
    selector = Selector({kernel_name(config): config for config in CONFIGS}, DEFAULT_GPU)
    unit = Unit(problem_of(PLAIN[0], shape), KERNELS[::-1])
    found = likely_first(unit, selector)
    assert found.pinned == (selector.select(unit.problem, objective="burst").kernel,)
    assert set(found.kernels) == {*KERNELS, *found.pinned}  # which may run transposed
    times = selector.times(unit.problem)
    expected = [times.get(kernel, math.inf) for kernel in found.kernels]
    assert expected == sorted(expected)


@pytest.mark.parametrize("shape", [Shape(4096, 4096, 4224), Shape(16, 4096, 512)])
def test_the_likely_kernels_alone_are_the_choice_and_its_runners_up(shape: Shape) -> None:
    selector = Selector({kernel_name(config): config for config in CONFIGS}, DEFAULT_GPU)
    unit = Unit(problem_of(PLAIN[0], shape), KERNELS[:2])  # neither of which is likely
    choice = selector.select(unit.problem, objective="burst")
    expected = (choice.kernel, *(kernel for kernel, _ in choice.runners_up[:3]))
    assert likely_alone(unit, selector, 4).kernels == expected


def test_a_problem_that_no_kernel_serves_has_no_selected_one() -> None:
    selector = Selector({kernel_name(config): config for config in PLAIN[:8]}, DEFAULT_GPU)
    unit = Unit(replace(problem_of(PLAIN[0], Shape(100, 72, 32)), a_dtype="f16"), KERNELS[:2])
    assert likely_first(unit, selector).pinned == ()
    assert likely_alone(unit, selector, 4).kernels == ()


@pytest.mark.gpu
def test_a_budget_is_spent_on_the_likely_best_and_the_rest_is_left_for_later(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    records, store = tmp_path / "records.jsonl", Store(tmp_path / "store")
    shapes = [Shape(512, 768, 256), Shape(256, 256, 128)]
    options = Options(screen_rounds=2, finalists=2, final_rounds=3)
    untried: list[tuple[GemmProblem, int]] = []
    listener = Listener(untried=lambda problem, kernels: untried.append((problem, kernels)))

    def budgeted(seconds: float) -> list[Measurement]:
        untried.clear()
        return sweep(
            units(PLAIN[:8], shapes),
            records,
            store=store,
            options=options,
            scope=Scope(budget=seconds),
            listener=listener,
        )

    seconds = 0.02  # which the operands of the first problem take; a busy host may take as long before it starts
    while not (first := budgeted(seconds)):
        seconds *= 2
    problems = [problem_of(PLAIN[0], shape) for shape in shapes]
    assert untried == [(problems[0], 6), (problems[1], 8)]
    assert {m.problem for m in first} == {problems[0]}
    assert [m.stage for m in first if m.kernel not in BASELINES] == ["final"] * 2
    assert {m.kernel: m.stage for m in first}["cublas"] == "final"
    second = [m for m in budgeted(120) if m.kernel not in BASELINES]
    assert untried == []
    assert [m.problem for m in second].count(problems[0]) == 6
    assert [m.problem for m in second].count(problems[1]) == 8
    # Eight: four of them again, for twice as long, then two; and the one that the model takes, wherever it dropped out.
    selector = Selector({kernel_name(config): config for config in PLAIN[:8]}, gpus.figures(second[0].gpu))
    selected = selector.select(problems[1]).name
    halved = {m.kernel: (m.stage, m.samples) for m in second if m.problem == problems[1]}
    assert halved.pop(selected) == ("final", 3)
    assert sorted(halved.values()) in (
        [("final", 3)] * 1 + [("screen", 2)] * 4 + [("screen", 4)] * 2,
        [("final", 3)] * 2 + [("screen", 2)] * 3 + [("screen", 4)] * 2,
        [("final", 3)] * 2 + [("screen", 2)] * 4 + [("screen", 4)] * 1,
    )
    assert budgeted(120) == []


@pytest.mark.gpu
def test_an_exhaustive_sweep_times_every_kernel_at_length(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = Options(screen_rounds=1, finalists=None, final_rounds=3)
    store = Store(tmp_path / "store")
    new = sweep(units(PLAIN[:4], [Shape(256, 256, 128)]), tmp_path / "records.jsonl", store=store, options=options)
    assert [(m.stage, m.samples) for m in new if m.kernel not in BASELINES] == [("final", 3)] * 4


@pytest.mark.gpu
def test_a_kernel_that_is_asked_for_besides_is_a_finalist_where_no_problem_has_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    asked, store = units(PLAIN[:2], [Shape(256, 256, 128)]), Store(tmp_path / "store")
    options = Options(screen_rounds=1, finalists=1, final_rounds=3)
    pinned = {"quick": KERNELS[5]}
    new = sweep(
        asked, tmp_path / "records.jsonl", store=store, options=options, scope=Scope(pinned=lambda problem: pinned)
    )
    asked_for = next(m for m in new if m.kernel == kernel_name(PLAIN[5]))
    assert (asked_for.stage, asked_for.chosen) == ("final", ("quick",))


@pytest.mark.gpu
def test_a_sweep_on_a_gpu_records_every_kernel_beside_cublas_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    records = tmp_path / "records.jsonl"
    shapes = [Shape(512, 768, 256), Shape(256, 256, 128, 2)]
    unserved = replace(problem_of(PLAIN[0], Shape(100, 72, 32)), a_dtype="f16", b_dtype="f16", d_dtype="f16")
    asked = [*units(PLAIN[:4], shapes), Unit(unserved, KERNELS[:4])]
    options = Options(screen_rounds=2, finalists=2, final_rounds=3)
    new = sweep(asked, records, store=Store(tmp_path / "store"), options=options)
    assert [m.kernel for m in read_records(records)] == [m.kernel for m in new]
    selector = Selector({kernel_name(config): config for config in PLAIN[:4]}, gpus.figures(new[0].gpu))
    for shape in shapes:
        rows = {m.kernel: m for m in new if m.problem == problem_of(PLAIN[0], shape)}
        assert set(rows) >= {kernel_name(config) for config in PLAIN[:4]}
        assert rows["cublas"].stage == "final"
        finalists = {m.kernel for m in rows.values() if m.stage == "final" and m.kernel not in BASELINES}
        assert selector.select(rows["cublas"].problem).name in finalists
        assert len(finalists) in (2, 3)
        assert all(m.verified and m.us for m in rows.values())
        assert {m.baseline_us for m in rows.values()} == {rows["cublas"].us}
        others = {CUBLASLT, CUBLASLT_TUNED, *([TRITON] if shape.batch == 1 else [])}
        assert {name for name in rows if name in BASELINES} == {CUBLAS, *others} - absent().keys()
    assert {m.stage for m in new if m.problem == unserved and m.kernel not in BASELINES} == {"failed"}
    again = sweep(asked, records, store=Store(tmp_path / "store"), options=options)
    assert again == [], "nor what none of them serves"


def test_kernels_for_any_number_of_slices_are_measured_with_each_that_is_chosen_among() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x64x64_1x1_cooperative_s8_m8_{}_linear"
    configs = [parse_name(name.format(how)) for how in ("k1stream", "splitk")]
    [unit] = units(configs, [Shape(128, 64, 8192, 1)])
    assert unit.kernels == ((name.format("k1stream"), 1), *((name.format("splitk"), slices) for slices in SLICES))
