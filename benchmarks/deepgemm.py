"""gemmill compared with DeepGEMM (the library ``deep_gemm``), in bursts and under sustained load.

Dense GEMMs use the fifteen shapes of DeepGEMM's figures. Grouped GEMMs (rows at offsets), masked grouped GEMMs (groups
of fixed capacity) and groups along K (gradients of weights) use those of its tests. Types are bf16, and e4m3 with block
scaling (A 1 x 128, B 128 x 128); D is bf16. Groups along K are bf16 only; both libraries add their product to an f32 D.
Both libraries read the same operands, rotating over sets of them, and the program compares their results. gemmill
selects a kernel with the regime as the objective. DeepGEMM selects its own, without programmatic dependent launch,
which is its default. For masked groups, both get the average number of rows (``expected_rows``, ``expected_m``). Groups
at offsets have multiples of 128 rows, or of 128 along K, as DeepGEMM requires. Each library gets the scales in its
native layout.

A burst is a CUDA graph of a millisecond, in interleaved rounds. Under sustained load, each library runs alone for a
turn, of which the second half is timed. The program prints DeepGEMM's time divided by gemmill's, with quartiles over
rounds or turns; results are written as JSON. Needs an NVIDIA GPU, PyTorch and deep_gemm.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

OURS, THEIRS = "gemmill", "DeepGEMM"
REGIMES = ("burst", "sustained")
BOTH = ("bf16", "e4m3-scaled")
DENSE = (
    *((4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 2048), (8192, 1024, 8192), (16384, 16384, 1024)),
    *((4096, 7168, 2048), (128, 8192, 8192), (16, 8192, 8192), (7168, 2112, 7168), (4096, 14336, 4096)),
    *((1024, 1024, 1024), (4096, 7168, 16384), (4096, 2112, 7168), (128, 7168, 16384), (64, 2112, 7168)),
)
"""M, N and K."""
GRADIENTS = ((4096, 7168), (7168, 2048))
"""M and N of the gradient of each group's weights."""
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))
"""N and K of each group."""
CAPACITY = 4096
"""Capacity of a masked group in rows."""
ALIGNED = 128
"""The rows, or the K, of DeepGEMM's groups at offsets must be a multiple of this."""
COMPILING = 8
"""Number of processes in which DeepGEMM compiles its kernels, into its cache on disk, before the timing."""


class Kind(NamedTuple):
    """The GEMMs that one function of DeepGEMM supports."""

    function: str
    """Name of the function, with a placeholder for the type."""
    batching: Any
    types: tuple[str, ...]
    shapes: tuple[tuple[int, int, int, int], ...]
    """Groups, average rows per group, N and K; for groups along K: groups, average K of a group, M and N."""


KINDS = {
    "bf16": Kind("{}_gemm_nt", "strided", ("bf16",), tuple((1, *shape) for shape in DENSE)),
    "fp8": Kind("{}_gemm_nt", "strided", ("e4m3-scaled",), tuple((1, *shape) for shape in DENSE)),
    "grouped": Kind(
        *("m_grouped_{}_gemm_nt_contiguous", "grouped", BOTH),
        tuple((*groups, *weight) for groups, weight in product(((4, 8192), (8, 4096)), WEIGHTS)),
    ),
    "masked": Kind(
        *("m_grouped_{}_gemm_nt_masked", "masked", BOTH),
        tuple((*groups, *weight) for groups, weight in product(((32, 192), (6, 1024), (32, 20), (6, 20)), WEIGHTS)),
    ),
    "kgrouped": Kind(
        *("k_grouped_{}_gemm_tn_contiguous", "kgrouped", ("bf16",)),
        tuple((*groups, *matrix) for groups, matrix in product(((4, 8192), (8, 4096), (16, 2048)), GRADIENTS)),
    ),
}


class Case(NamedTuple):
    """A GEMM that both libraries compute."""

    kind: str
    dtype: str
    problem: Any
    sizes: tuple[int, ...]
    """Rows of its groups, or K for groups along K; empty for a dense GEMM."""
    average: int
    """Average size of a group."""

    @property
    def accumulates(self) -> bool:
        """Whether the product is added to D."""
        return self.problem.c_dtype is not None

    def __str__(self) -> str:
        unit = "along K" if self.problem.batching == "kgrouped" else "rows"
        return f"{self.problem}, {self.average} {unit} each" if self.sizes else str(self.problem)


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="(all)")
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=REGIMES, help="(both)")
    parser.add_argument("--problems", type=int, help="number of problems of each kind (all)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each library under sustained load (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn (%(default)s)")
    arguments = parser.parse_args()

    library = deep_gemm()
    from gemmill.runtime.registry import Registry

    told = {"deep_gemm": library.__version__, "programmatic_dependent_launch": library.get_pdl()}
    record = Record("deepgemm", arguments, turns=arguments.turns, seconds=arguments.seconds, **told)
    registry = Registry()
    cases = [case for kind in arguments.kinds for case in cases_of(kind)[: arguments.problems]]
    compile_first(cases, arguments.regimes, registry)
    rows = []
    for case in cases:
        for row in measure(case, registry, arguments, record.telemetry):
            rows.append(row)
            record.add(row)
            show(row)
    summarise(rows)
    print(f"records: {record.path}")


def deep_gemm() -> Any:
    """The module ``deep_gemm``; exits with an error if it is not installed."""
    try:
        return import_module("deep_gemm")
    except (ImportError, AssertionError) as error:  # AssertionError: it does not find the CUDA toolkit
        sys.exit(
            f"cannot import deep_gemm ({error}); build https://github.com/deepseek-ai/DeepGEMM (docs/performance uses "
            "commit 54e2261) for this Python and PyTorch, with nvcc, and add it to PYTHONPATH"
        )


def cases_of(kind: str) -> list[Case]:
    """All cases of a kind."""
    from benchmarks.common import problem_of

    _, batching, types, shapes = KINDS[kind]
    found = []
    for (groups, average, x, y), dtype in product(shapes, types):
        if batching == "strided":
            found.append(Case(kind, dtype, problem_of(dtype, average, x, y), (), average))
            continue
        step, draw = 1 if batching == "masked" else ALIGNED, random.Random(f"{groups} {average} {x} {y}")
        sizes = tuple(-(-int(average * draw.uniform(0.7, 1.3)) // step) * step for _ in range(groups))
        match batching:
            case "kgrouped":
                problem = problem_of(dtype, x, y, sum(sizes), "mn", "mn")
                problem = problem.but(d_dtype="f32", c_dtype="f32", c_major="n")
            case "masked":
                problem = problem_of(dtype, CAPACITY, x, y).but(expected_rows=average)
            case _:
                problem = problem_of(dtype, sum(sizes), x, y)
        found.append(Case(kind, dtype, problem.but(batch=groups, batching=batching), sizes, average))
    return found


def compile_first(cases: Sequence[Case], regimes: Sequence[str], registry: Any) -> None:
    """Compile the kernels of both libraries in parallel. Errors occur again in the measurement, which reports them."""
    from gemmill.library.errors import UnsupportedProblemError

    names = set()
    for case, regime in product(cases, regimes):
        with suppress(UnsupportedProblemError):
            names.add(registry.select(case.problem, objective=regime).name)
    registry.warm([*names])
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(COMPILING, len(cases)), mp_context=spawn) as pool:
        for future in [pool.submit(compile_theirs, case) for case in cases]:
            if (error := future.exception()) is not None:
                print(f"{THEIRS} failed to compile ahead of time: {error}", file=sys.stderr)


def compile_theirs(case: Case) -> None:
    """Launch DeepGEMM's kernel once, in a separate process, since a process compiles one kernel at a time."""
    import torch

    from gemmill.profiler.measure.operands import make_operands

    try:
        theirs(case, make_operands(case.problem, 0, sets=1, sizes=case.sizes or None)[0])()
        torch.cuda.synchronize()
    finally:
        torch.cuda.empty_cache()  # free the memory for other processes


def theirs(case: Case, operands: Any) -> Callable[[], object]:
    """DeepGEMM's launch on a set of operands.

    A is (M, K) and B is (N, K), for each group if grouped. The scales of A are contiguous along M, those of B along K.
    """
    import torch

    library, kind, x = deep_gemm(), KINDS[case.kind], operands
    if kind.batching == "kgrouped":  # A is (K, M) and B is (K, N); it adds to D in place
        sizes = torch.tensor(case.sizes, dtype=torch.int32, device=x.d.device)
        launch = getattr(library, kind.function.format(case.dtype))
        return partial(launch, x.a.mT, x.b, x.d, [*case.sizes], sizes, x.d)
    a, b = x.a, x.b.mT
    if x.a_scale is not None:
        a, b = (a, library.get_mn_major_tma_aligned_tensor(x.a_scale)), (b, x.b_scale.mT.contiguous())
    launch = partial(getattr(library, kind.function.format("bf16" if x.a_scale is None else "fp8")), a, b, x.d)
    if kind.batching == "grouped":  # the group of each row
        numbers, sizes = (torch.tensor(y, device=x.d.device) for y in (range(len(case.sizes)), case.sizes))
        return partial(launch, numbers.repeat_interleave(sizes).int())
    return partial(launch, x.groups["counts"], case.average) if kind.batching == "masked" else launch


def measure(case: Case, registry: Any, arguments: argparse.Namespace, telemetry: Any) -> Iterator[dict[str, Any]]:
    """A row for each regime; after an error, the row contains the error instead of times."""
    from gemmill.library.errors import GemmillError

    measured = Measured(case, registry)
    for regime in arguments.regimes:
        row = {"kind": case.kind, "dtype": case.dtype, "problem": str(case), "sizes": case.sizes, "regime": regime}
        try:
            row |= measured.run(regime, arguments, telemetry)
        except (GemmillError, RuntimeError, AssertionError, TypeError) as error:
            row |= {"failed": measured.doing, "error": f"{type(error).__name__}: {error}"}
        yield row


class Measured:
    """Measures a case, with the same operands for all regimes.

    Args:
        case: the GEMM.
        registry: the kernels of gemmill.
    """

    def __init__(self, case: Case, registry: Any) -> None:
        self.doing = "operands"
        """The current step, which an error is attributed to."""
        self._case, self._registry = case, registry
        self._operands: list[Any] = []

    def run(self, regime: str, arguments: argparse.Namespace, telemetry: Any) -> dict[str, Any]:
        """The selected kernel, times of a launch by round or turn, and DeepGEMM's time divided by gemmill's."""
        import torch
        from benchmarks.common import ratios

        from gemmill.profiler.measure.graph_timing import launches_per_replay
        from gemmill.profiler.measure.operands import make_operands

        case, problem = self._case, self._case.problem
        if not self._operands:
            torch.cuda.empty_cache()  # free the operands of the previous case
            self._operands = make_operands(problem, 0, sizes=case.sizes or None)
        at_work = problem.but(m=case.average) if problem.batching == "masked" else problem
        count, stream = launches_per_replay(at_work, len(self._operands)), torch.cuda.Stream()
        self.doing = OURS
        plans = self._plans(regime)
        graphs = {OURS: self._graph(plans, count, stream)}
        ours = self._result()
        self.doing = THEIRS
        graphs[THEIRS] = self._graph([theirs(case, x) for x in self._operands], count, stream)
        self.doing = "comparison"
        self._check(ours)
        self.doing = "timing"
        us, state = timed(graphs, count, regime, arguments, telemetry)
        ratio = ratios(us[THEIRS], us[OURS])
        return {"kernel": plans[0].choice.name, "ratio": ratio, "us": us, "launches": count} | state

    def _plans(self, regime: Any) -> list[Any]:
        """gemmill's launches, one for each operand set."""
        import gemmill
        from gemmill.profiler.measure.operands import plan_options

        return [
            gemmill.plan(
                *(x.a, x.b),
                c=x.d if self._case.accumulates else None,
                out=x.d,
                objective=regime,
                registry=self._registry,
                **plan_options(self._case.problem, x),
            )
            for x in self._operands
        ]

    def _graph(self, launches: Sequence[Callable[[], object]], count: int, stream: Any) -> Any:
        """Capture launches on a poisoned result, or on zeros to add to, in a graph, and run it once."""
        from benchmarks.common import in_turn

        from gemmill.profiler.measure.graph_timing import capture

        self._operands[0].d.fill_(0 if self._case.accumulates else float("nan"))
        return capture(in_turn(launches), len(self._operands), count, stream)

    def _result(self) -> Any:
        """A copy of the valid rows of D in the first operand set."""
        import torch

        d, groups = self._operands[0].d, self._operands[0].groups
        if self._case.problem.batching == "masked":  # other rows are not written
            return d[torch.arange(d.shape[1], device=d.device) < groups["counts"][:, None]]
        return d.clone()

    def _check(self, ours: Any) -> None:
        from benchmarks.common import check

        check(f"{OURS}'s D compared with {THEIRS}'s", ours, self._result().float())


def timed(
    graphs: dict[str, Any], count: int, regime: str, arguments: argparse.Namespace, telemetry: Any
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Microseconds of a launch in each round, or in each turn with watts and clocks."""
    from gemmill.profiler.measure.graph_timing import time_rounds
    from gemmill.profiler.measure.sustained_load import time_turns

    if regime == "burst":
        time_rounds(graphs, count, 2)  # lets the clocks settle
        return time_rounds(graphs, count, arguments.rounds), {}
    found = time_turns(graphs, count, arguments.seconds, arguments.turns, telemetry, frozenset(graphs))
    state = {"watts": {x: own.watts for x, (_, own) in found.items()}}
    state["mhz"] = {x: own.sm_mhz for x, (_, own) in found.items()}
    return {x: us for x, (us, _) in found.items()}, state


def show(row: dict[str, Any]) -> None:
    """Print the result of a problem, or its error."""
    what = f"{row['kind']:8} {row['problem']:74} {row['regime']:9}"
    if "error" in row:
        print(f"{what} {row['failed']} failed: {row['error'].splitlines()[0]}", flush=True)
        return
    ours, others = (statistics.median(row["us"][name]) for name in (OURS, THEIRS))
    ratio, low, high = row["ratio"]
    figures = f"{OURS} {ours:8.1f} us  {THEIRS} {others:8.1f} us  {ratio:.3f} ({low:.3f} to {high:.3f})"
    print(f"{what} {figures}  {row['kernel']}", flush=True)


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Print the geometric mean of each kind, type and regime, and how many problems are slower beyond quartiles."""
    for kind, dtype, regime in dict.fromkeys((row["kind"], row["dtype"], row["regime"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["dtype"], row["regime"]) == (kind, dtype, regime)]
        found = [row["ratio"] for row in own if "ratio" in row]
        mean = f"{statistics.geometric_mean([middle for middle, _, _ in found]):.4f}" if found else "none"
        behind = sum(high < 1 for _, _, high in found)
        told = f"{behind} slower with an upper quartile below 1, {len(own) - len(found)} failed"
        what = f"geometric mean relative to {THEIRS} {mean}"
        print(f"{kind} {dtype}, {regime}, {len(found)} of {len(own)} problems: {what}, {told}")
