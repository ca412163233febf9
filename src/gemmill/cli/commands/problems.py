"""run, profile: how fast the kernels for problems are."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.dsl import ClusterShape, DslCommand, TileShape, kernels_of
from gemmill.cli.options import (
    CompileOptions,
    KernelFilter,
    Manifest,
    Manifests,
    Records,
    RegistryOptions,
    Sizes,
    StorePath,
    SuiteOptions,
    kernel,
    measurable,
    served_shapes,
)
from gemmill.cli.output import Status
from gemmill.cli.problem_options import ProblemOptions
from gemmill.library.config.names import kernel_name, present_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ProblemError, UnsupportedProblemError
from gemmill.library.input.group_sizes import BALANCED, checked_sizes
from gemmill.library.problem import GemmProblem, Regime
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.measure.messages import Options, Unit
from gemmill.profiler.sweep.cluster import Cluster
from gemmill.profiler.sweep.measuring import GpuPool, LocalGpus, local_gpus
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS, Listener, Scope, sweep
from gemmill.profiler.sweep.units import units
from gemmill.runtime.host_gpu import detect
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.selector import named_launch
from gemmill.runtime.storage.store import Store

_SECONDS = {"s": 1, "m": 60, "h": 3600}
Top = Annotated[int, typer.Option(min=1, max=5, metavar="N", help="Show N kernels, the best first; at most 5.")]


def _duration(text: str) -> float:
    """Seconds of a duration such as 90s."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text)
    if not match or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is not a time such as 90s, 10m or 1.5h")
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True)
class KernelChoice:
    """The kernels that a problem runs on: one by name, the best with a tile, or the selected ones."""

    name: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="KERNEL",
            help="Run this kernel, not the selected one.",
            autocompletion=completion.kernels,
        ),
    ] = None
    slices: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Slices of K of a split-K --kernel; by default the model's number."),
    ] = None
    tile: TileShape = None
    cluster: ClusterShape = None
    manifest: Manifests = field(default_factory=list)
    records: Records = field(default_factory=list)
    top: Top = 1

    def kernels(self, problem: GemmProblem) -> list[SlicedKernel]:
        """The kernels for a problem, the best first."""
        if self.cluster and not self.tile:
            raise typer.BadParameter("--cluster is of a --tile, and none is given")
        if self.name is not None:
            if self.manifest or self.records or self.tile or self.top != 1:
                raise typer.BadParameter("--kernel names the kernel: leave out --manifest, --records, --tile and --top")
            name, requested_slices = present_name(self.name, self.slices)
            config = kernel(name)
            slices, _ = named_launch(config, requested_slices, problem, detect())
            return [SlicedKernel(kernel_name(config), slices)]
        if self.slices is not None:
            raise typer.BadParameter("--slices is of a split-K --kernel, and none is named")
        if self.tile and (self.manifest or self.records):
            raise typer.BadParameter("--tile says which kernels there are: leave out --manifest and --records")
        if self.tile:
            registry = Registry([kernels_of(problem, self.tile, self.cluster or (1, 1))])
        else:
            registry = RegistryOptions(self.manifest, records=self.records).registry()
        choice = registry.select(problem)
        return [choice.kernel, *(kernel for kernel, _ in choice.runners_up)][: self.top]


@app.command(cls=DslCommand)
def run(options: ProblemOptions, choice: KernelChoice, sizes: Sizes = None, store: StorePath = None) -> None:
    """Run one problem on the GPU: verify the result against float64 and time it beside what else multiplies here.

    Operands are random, those of an expression and of scales too, and aligned as the problem says; the operands of one
    launch are not in the L2 cache when the next one starts. Groups have the sizes of --sizes, and the rate counts what
    is really multiplied. Needs a Hopper GPU and PyTorch. Exits with 1 if a result is wrong.

    The options of CuTe DSL's Hopper example are taken as it spells them: --tile_shape_mnk, --cluster_shape_mn,
    --a_dtype, --acc_dtype, --a_major and so on; its C is what is written, D here.

    \b
    Examples:
      gemmill run --mnkl 4096,4096,4096,1 --a-dtype bf16 --a-major k --b-major k
      gemmill run --mnkl 8192,8192,8192 --tile 128,256,64 --cluster 2,1
      gemmill run --mnkl 4096,4096,4096,1 --top 5
      gemmill run --mnkl 1000,3000,1024 --kernel my_kernel.yaml --json
      gemmill run --mnkl 4096,4096,4096 --epilogue "d = gelu(acc + bias.bf16[n])"
      gemmill run --problem "8192x4096x7168 e4m3 tn grouped=64 a_scale=1x128 b_scale=128x128" --sizes zipf:1.1
    """
    problem = options.single()
    group_sizes = _checked_sizes(problem, sizes)
    unit = Unit(measurable(problem), tuple(choice.kernels(problem)), sizes=group_sizes)
    with tempfile.TemporaryDirectory() as folder:
        found = measure([unit], Path(folder) / "records.jsonl", CompileOptions(store=store))
    if not found:
        raise UnsupportedProblemError(f"nothing was measured of {problem}")
    report_measurements(found)


def _checked_sizes(problem: GemmProblem, said: str | None) -> str:
    try:
        return checked_sizes(problem, said)
    except ProblemError as error:
        raise typer.BadParameter(f"--sizes: {error}") from None


@dataclass(frozen=True)
class TimingOptions:
    """For how long, how, and on groups of which sizes kernels are timed."""

    budget: Annotated[
        float | None,
        typer.Option(
            parser=_duration, metavar="TIME", help="Time to measure for, such as 10m; compilation not counted."
        ),
    ] = None
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Time every kernel at length, not only the best of a brief look.")
    ] = False
    regime: Annotated[
        Regime, typer.Option(help="How the GPU is kept at work: `sustained`, each kernel alone, held by its power.")
    ] = "burst"
    sizes: Sizes = None

    def options(self) -> Options:
        """What those who measure take."""
        if self.exhaustive and self.budget is not None:
            raise typer.BadParameter("--exhaustive takes as long as it takes; leave out --budget")
        return Options(finalists=None if self.exhaustive else DEFAULT_OPTIONS.finalists, regime=self.regime)

    def sized(self, shape: Shape) -> Shape:
        """A shape with the sizes of groups that are given, where they would be balanced."""
        if self.sizes is None or shape.sizes != BALANCED:
            return shape
        return replace(shape, sizes=_checked_sizes(shape.problem, self.sizes))


@dataclass(frozen=True)
class GpuOptions:
    """The GPUs that measure."""

    gpus: Annotated[
        str | None, typer.Option(metavar="N|all", help="GPUs of this machine to measure on; default: 1.")
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Measure on the GPUs of this dask cluster's workers.")
    ] = None

    def workers(self) -> GpuPool:
        """The processes that measure."""
        if self.scheduler is not None:
            if not self.scheduler:
                raise typer.BadParameter("--scheduler is empty; it takes the address of a dask scheduler")
            if self.gpus is not None:
                raise typer.BadParameter("--gpus is of this machine, and --scheduler has the GPUs of others: give one")
            return Cluster(self.scheduler)
        gpus = self.gpus
        if gpus is not None and gpus != "all" and not (gpus.isdecimal() and len(gpus) < 5 and int(gpus)):
            raise typer.BadParameter(f"--gpus {gpus}: neither all nor a number of at least 1")
        return LocalGpus(local_gpus(None if gpus == "all" else int(gpus)) if gpus not in (None, "1") else ())


@app.command()
def profile(
    manifest: Manifest,
    problems: SuiteOptions,
    kernels: KernelFilter,
    timing: TimingOptions,
    gpus: GpuOptions,
    compiling: CompileOptions,
    records: Annotated[
        Path, typer.Option(metavar="FILE", dir_okay=False, help="Append measurements to this file.")
    ] = Path("records.jsonl"),
) -> None:
    """Verify and time every kernel of a manifest on every shape of a suite, and append the measurements to a file.

    Kernels without an expression are measured with that of a shape too. Kernels for groups or arrays are measured on
    shapes that say so; --sizes is of the groups that the file leaves balanced.
    What the file holds for this GPU already is not measured again, so an interrupted sweep goes on where it stopped.
    With --budget, each shape gets its share of that time: kernels are tried in the selector's order (what ships as
    measured, then by its model), the slower half drops out again and again, and what there was no time for is left for
    the next sweep.
    With --regime sustained the best of a brief look run for a while each, on the problems that the power limit holds:
    at that speed a program runs that multiplies for seconds.
    The selector prefers these measurements to its model: gemmill select --records FILE, Registry(records=[FILE]).
    Several GPUs measure a shape each at a time; they must be of one model.
    --scheduler needs gemmill's extra cluster. Workers of other machines are started for each GPU, one with every i, as

    \b
      CUDA_VISIBLE_DEVICES=i dask worker ADDRESS --nthreads 1 --resources GPU=1

    and with certificates, as its scheduler. Workers without a GPU compile; where there are none, this machine does.
    Needs a Hopper GPU and PyTorch. Exits with 1 if any kernel failed.

    \b
    Examples:
      gemmill profile bf16 --shapes large
      gemmill profile bf16 --shapes large --budget 10m --gpus all
      gemmill profile bf16 --shapes large --scheduler tls://10.0.0.1:8786
      gemmill profile bf16 --shapes large --regime sustained
      gemmill profile bf16 --shapes moe
      gemmill profile bf16 --problem "8192x4096x7168 bf16 tn grouped=64" --sizes zipf:1.1
      gemmill profile projections.yaml --preset quick --shapes my_shapes.yaml --records records.jsonl
    """
    if (suite := problems.suite()) is None:
        raise typer.BadParameter("nothing to measure: --shapes FILE or --problem TEXT says what is multiplied")
    configs = kernels.configs(manifest)
    chosen = units(configs, dict.fromkeys(map(timing.sized, served_shapes(configs, suite))), varies=True)
    options, workers = timing.options(), gpus.workers()
    if others := {*map(kernel_name, configs)} - {kernel.name for unit in chosen for kernel in unit.kernels}:
        output.complain(f"{len(others)} kernels are not measured: no shape has their formats, groups or expression")
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
            f"no time was left for {sum(untried)} measurements on {len(untried)} problems; another sweep goes on there"
        )
    return found


def report_measurements(found: Sequence[Measurement]) -> None:
    """Print measurements, and exit with 1 if a kernel failed."""
    rows = [measurement.model_dump(mode="json") for measurement in found]
    output.print_result("measurements", rows, lambda: _print(found))
    if any(measurement.stage == "failed" and measurement.kernel not in BASELINES for measurement in found):
        raise typer.Exit(Status.WRONG)


def _print(found: Sequence[Measurement]) -> None:
    """A table for each GPU; the ratio to cuBLAS of those alone that were timed beside it."""
    columns = ("problem", *table_columns("cuBLAS"))
    for gpu, regime in dict.fromkeys((m.gpu, m.regime) for m in found):
        rows = [
            (
                m.problem,
                *table_row(m, output.number(m.ratio if m.kernel not in BASELINES and m.stage == "final" else None, 2)),
            )
            for m in found
            if (m.gpu, m.regime) == (gpu, regime)
        ]
        output.print_table(columns, rows, title=f"{gpu}: medians over rounds, regime {regime}")
    if any(m.stage == "screen" for m in found):
        output.complain(
            "kernels without a ratio had a brief look alone, not beside cuBLAS: their times rank them, no more"
        )


def table_row(m: Measurement, ratio: str) -> tuple[str, ...]:
    """The cells of a kernel that was measured, from its name on."""
    figures = output.number(m.us, 1), spread(m), str(m.samples or ""), output.number(m.tflops, 0)
    return str(m.sliced), *figures, ratio, output.number(m.error, 2), m.says


def table_columns(beside: str) -> tuple[str, ...]:
    """The columns of :func:`table_row`, whose ratio is to something."""
    return "kernel", ">us", "quartiles", ">rounds", ">TFLOP/s", f">x {beside}", ">error/bound", ""


def spread(m: Measurement | None) -> str:
    """The quartiles of a time, as in ``93.1 to 93.6``; nothing where they were not kept."""
    return "" if m is None or m.low_us is None or m.high_us is None else f"{m.low_us:.1f} to {m.high_us:.1f}"
