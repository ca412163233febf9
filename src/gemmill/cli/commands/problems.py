"""profile: verify and time the kernels of manifests on the GPU; tables of measurements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.kernel_sets import KernelSets, of_bits, warn_unsupported
from gemmill.cli.options import (
    Bits,
    CompileOptions,
    Sizes,
    SuiteOptions,
    output_file,
)
from gemmill.cli.output import Status, UsageError, usage
from gemmill.library.bits import ANY
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import DeviceError, ProblemError
from gemmill.library.input.group_sizes import BALANCED, checked_sizes
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.records import Measurement
from gemmill.profiler.analysis.measured import rows
from gemmill.profiler.analysis.roofline import reached
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.measure.messages import Options, Unit
from gemmill.profiler.sweep.cluster import Cluster
from gemmill.profiler.sweep.measuring import GpuPool, LocalGpus, local_gpus
from gemmill.profiler.sweep.scheduler import refuse_open
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS, Listener, Scope, sweep
from gemmill.runtime.storage.store import Store

_SECONDS = {"s": 1, "m": 60, "h": 3600}
TimedRegime = Annotated[
    Regime,
    typer.Option(
        help="`burst`: short launches at full clock. `sustained`: each kernel runs alone until the power limit "
        "throttles it."
    ),
]


def _duration(text: str) -> float:
    """The seconds of a duration such as 90s or 10m."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text)
    if not match or not float(match[1]):
        raise typer.BadParameter(f"{text!r:.80} must be a time such as 90s, 10m or 1.5h")
    return float(match[1]) * _SECONDS[match[2]]


def group_sizes(problem: GemmProblem, said: str | None) -> str:
    """The sizes of the groups of a problem, from --sizes or a suite; None: balanced ones."""
    try:
        return checked_sizes(problem, said)
    except ProblemError as error:
        raise UsageError(f"--{error}") from None


@dataclass(frozen=True)
class TimingOptions:
    """How long and in which regime kernels are timed, and the sizes of groups."""

    budget: Annotated[
        float | None,
        typer.Option(parser=_duration, metavar="TIME", help="Total time to measure, such as 10m, without compilation."),
    ] = None
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Time every kernel in all rounds, not only the best of a first short pass."),
    ] = False
    regime: TimedRegime = "burst"
    sizes: Sizes = None

    def options(self) -> Options:
        """The options of the measuring processes."""
        if self.exhaustive and self.budget is not None:
            raise UsageError("--exhaustive has no time limit; omit --budget")
        return Options(finalists=None if self.exhaustive else DEFAULT_OPTIONS.finalists, regime=self.regime)

    def sized(self, shape: Shape) -> Shape:
        """A shape with the group sizes of --sizes, unless the shape has its own."""
        if self.sizes is None or shape.sizes != BALANCED:
            return shape
        return replace(shape, sizes=group_sizes(shape.problem, self.sizes))


@dataclass(frozen=True)
class GpuOptions:
    """The GPUs to measure on."""

    gpus: Annotated[
        str | None, typer.Option(metavar="N|all", help="Number of GPUs of this machine to measure on. Default: 1.")
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Measure on the GPUs of the workers of this Dask scheduler.")
    ] = None

    def workers(self) -> GpuPool:
        """The pool of measuring processes."""
        if self.scheduler is not None:
            if not self.scheduler:
                raise UsageError("--scheduler is empty; pass the address of a Dask scheduler")
            if self.gpus is not None:
                raise UsageError("both --gpus and --scheduler are given; pass only one")
            with usage(DeviceError):
                refuse_open(self.scheduler)
            return Cluster(self.scheduler)
        gpus = self.gpus
        if gpus is not None and gpus != "all" and not (gpus.isdecimal() and len(gpus) < 5 and int(gpus)):
            raise UsageError(f"--gpus is {gpus!r}; it must be all, or a number from 1 to 9999")
        return LocalGpus(local_gpus(None if gpus == "all" else int(gpus)) if gpus not in (None, "1") else ())


@app.command()
def profile(
    kernels: KernelSets,
    problems: SuiteOptions,
    timing: TimingOptions,
    gpus: GpuOptions,
    compiling: CompileOptions,
    bits: Bits = ANY,
    records: Annotated[Path, output_file("Records file to append measurements to.", "FILE", "--records")] = Path(
        "records.jsonl"
    ),
) -> None:
    """Verify and time kernels on the problems of a suite.

    profile runs every kernel of the manifests, or without MANIFEST of all shipped ones, on every problem that it
    supports, and appends the measurements to a records file. A shape without formats is measured in every format of
    MANIFEST, or without MANIFEST in the default formats. Measurements that the file already has for this GPU are not
    repeated, so a second call continues an interrupted sweep. Needs a Hopper GPU and PyTorch. Exits with 1 if a kernel
    fails.

    To use the measurements, pass `gemmill select --records FILE` or `gemmill.Registry(records=[FILE])`. The selector
    prefers them to its model.

    With --bits, profile measures only kernels with the arithmetic that this requires of the problem.

    A kernel without an epilogue expression is also measured with the expression of a problem. --sizes applies to
    groups whose sizes the suite does not set.

    With --budget, each problem gets an equal share of the time. profile tries the kernels in the order of the selector,
    and drops the slower half of them repeatedly. The next sweep measures what did not fit.

    With --regime sustained, profile measures only problems on which the GPU reaches its power limit. The best kernels
    of a first short pass each run alone at that limit.

    Several GPUs measure different problems at the same time; they must be of one model. --scheduler needs the extra
    `cluster`. Start one worker per GPU i on the other machines, with the same TLS options as the scheduler:

    \b
      CUDA_VISIBLE_DEVICES=i dask worker ADDRESS --nthreads 1 --resources GPU=1

    Workers without a GPU compile; if there are none, this machine compiles.

    \b
    Examples:
      gemmill profile bf16 --shapes large
      gemmill profile bf16 --shapes large --budget 10m --gpus all
      gemmill profile bf16 --shapes large --scheduler tls://10.0.0.1:8786
      gemmill profile bf16 --shapes large --regime sustained
      gemmill profile --shapes trace.json
      gemmill profile bf16 --shapes moe
      gemmill profile bf16 --shapes heads --bits invariant
      gemmill profile bf16 --problem "8192x4096x7168 bf16 tn grouped=64" --sizes zipf:1.1
      gemmill profile projections.yaml --preset quick --shapes my_shapes.yaml --records records.jsonl
    """
    if (suite := problems.suite()) is None:
        raise UsageError("no problem is given; pass --shapes FILE or --problem TEXT")
    chosen, missing = kernels.units_of([*dict.fromkeys(map(timing.sized, suite.shapes))])
    if missing:
        warn_unsupported(missing, suite, kernels)
    chosen = of_bits(chosen, bits, kernels)
    options, workers = timing.options(), gpus.workers()
    names = map(kernel_name, kernels.declared) if kernels.manifest else ()
    if others := {*names} - {kernel.name for unit in chosen for kernel in unit.kernels}:
        they = "formats, groups or expression" if bits == ANY else "formats, groups, expression or arithmetic"
        output.complain(f"left out {len(others)} kernels, because no problem has their {they}")
    found = measure(chosen, records, compiling, options=options, budget=timing.budget, workers=workers)
    report_measurements(found)


def measure(
    chosen: Sequence[Unit],
    records: Path,
    compiling: CompileOptions,
    *,
    options: Options = DEFAULT_OPTIONS,
    budget: float | None = None,
    workers: GpuPool | None = None,
) -> list[Measurement]:
    """Verify and time kernels with progress bars: :func:`gemmill.profiler.sweep.sweep.sweep`."""
    untried: list[int] = []
    left_out: list[str] = []
    kernels = {kernel.name for unit in chosen for kernel in unit.kernels}
    with output.progress(compiling=len(kernels), measuring=len(chosen)) as step:
        listener = Listener(
            lambda outcome: step("compiling"),
            lambda problem, rows: step("measuring"),
            lambda problem, kernels: untried.append(kernels),
            left_out.append,
        )
        found = sweep(
            chosen,
            records,
            store=Store(compiling.store),
            jobs=compiling.jobs,
            options=options,
            scope=Scope(budget=budget),
            workers=workers,
            listener=listener,
        )
    for says in left_out:
        output.complain(says)
    if untried:
        output.complain(
            f"--budget left no time for {sum(untried)} measurements on {len(untried)} problems; run the command again"
        )
    return found


def report_measurements(found: Sequence[Measurement]) -> None:
    """Print measurements, and exit with 1 if a kernel failed."""
    output.print_result("measurements", rows(found), lambda: _print(found))
    if any(measurement.stage == "failed" and measurement.kernel not in BASELINES for measurement in found):
        raise typer.Exit(Status.WRONG)


def _print(found: Sequence[Measurement]) -> None:
    """Print a table per GPU and regime. Only kernels timed in the same rounds as cuBLAS have a ratio to it."""
    columns = ("problem", *table_columns("cuBLAS"))
    for gpu, regime in dict.fromkeys((m.gpu, m.regime) for m in found):
        cells = [
            (
                m.problem,
                *table_row(m, output.number(m.ratio if m.kernel not in BASELINES and m.stage == "final" else None, 2)),
            )
            for m in found
            if (m.gpu, m.regime) == (gpu, regime)
        ]
        output.print_table(columns, cells, title=f"{gpu}: medians over rounds, regime {regime}")
    if any(m.stage == "screen" for m in found):
        output.complain(
            "kernels without a ratio were timed only in the first short pass, without cuBLAS; use their times only for "
            "ranking"
        )


def table_row(m: Measurement, ratio: str) -> tuple[str, ...]:
    """The cells of a measured kernel, from its name on."""
    fraction = reached(m).fraction
    of_roof = "" if fraction is None else f"{fraction:.0%}"
    figures = output.number(m.us, 1), spread(m), str(m.samples or ""), output.number(m.tflops, 0), of_roof
    return str(m.sliced), m.arithmetic or "", *figures, ratio, output.number(m.error, 2), m.says


def table_columns(beside: str) -> tuple[str, ...]:
    """The columns of :func:`table_row`; its ratio is the speed relative to ``beside``."""
    return (
        "kernel",
        "arithmetic",
        ">us",
        "quartiles",
        ">rounds",
        ">TFLOP/s",
        ">of roof",
        f">x {beside}",
        ">error/bound",
        "",
    )


def spread(m: Measurement | None) -> str:
    """The quartiles of a time in microseconds, such as ``93.1-93.6``; empty if they were not recorded."""
    return "" if m is None or m.low_us is None or m.high_us is None else f"{m.low_us:.1f}-{m.high_us:.1f}"
