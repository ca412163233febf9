"""run, profile: how fast the kernels for problems are."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.dsl import ClusterShape, InWordsOfTheDsl, TileShape, kernels_of
from gemmill.cli.options import (
    Jobs,
    Json,
    Manifest,
    Manifests,
    Preset,
    Problems,
    Records,
    Sizes,
    StorePath,
    Where,
    asked_suite,
    kernel,
    kernel_set,
    manifest_path,
    served,
)
from gemmill.cli.output import Status
from gemmill.cli.problem_options import takes_problem
from gemmill.library.arch import Gpu
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.launched import compiled
from gemmill.library.errors import ProblemError, UnsupportedProblemError
from gemmill.library.input.group_sizes import BALANCED, checked_sizes
from gemmill.library.problem import GemmProblem, Regime, upconverts_a
from gemmill.library.records import Measurement
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.measure.messages import Options, Unit
from gemmill.profiler.sweep.cluster import Cluster
from gemmill.profiler.sweep.measuring import GpuPool, LocalGpus, local_gpus
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS, Listener, Scope, sweep
from gemmill.profiler.sweep.units import refuse_nested, units
from gemmill.runtime.gpus import detect
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.deciders.model import with_number
from gemmill.runtime.select.kernels.faults import faults, needs_swap
from gemmill.runtime.storage.store import Store

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _duration(text: str) -> float:
    """Seconds of a duration such as 90s."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh])", text)
    if not match or not float(match[1]):
        raise typer.BadParameter(f"{text!r} is not a time such as 90s, 10m or 1.5h")
    return float(match[1]) * _SECONDS[match[2]]


Budget = Annotated[
    float | None,
    typer.Option(parser=_duration, metavar="TIME", help="Time to measure for, such as 10m; compilation not counted."),
]
Top = Annotated[int, typer.Option(min=1, max=5, metavar="N", help="Show N kernels, the best first; at most 5.")]


@app.command(cls=InWordsOfTheDsl)
@takes_problem
def run(
    problem: GemmProblem,
    kernel_: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="KERNEL",
            help="Run this kernel, not the selected one.",
            autocompletion=completion.kernels,
        ),
    ] = None,
    tile: TileShape = None,
    cluster: ClusterShape = None,
    manifest: Manifests = [],  # noqa: B006
    records: Records = [],  # noqa: B006
    top: Top = 1,
    sizes: Sizes = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
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
    said = _checked_sizes(problem, sizes)
    refuse_nested(problem)
    if cluster and not tile:
        raise typer.BadParameter("--cluster is of a --tile, and none is given")
    if kernel_ is not None:
        if manifest or records or tile or top != 1:
            raise typer.BadParameter("--kernel names the kernel: leave out --manifest, --records, --tile and --top")
        configs = [kernel(kernel_)]
        if (swap_ab := needs_swap(configs[0], problem)) is None:
            wrong = faults(configs[0], problem)
            raise UnsupportedProblemError(f"{kernel_name(configs[0])} does not fit: it needs {' and '.join(wrong)}")
        configs = [with_number(configs[0], problem, swap_ab, detect())]
    else:
        if tile and (manifest or records):
            raise typer.BadParameter("--tile says which kernels there are: leave out --manifest and --records")
        chosen = Registry([kernels_of(problem, tile, cluster or (1, 1))]) if tile else registry(manifest, [], records)
        configs = [parse_name(name) for name in best(chosen.select(problem), top)]
    problem = problem.with_narrow_a
    if upconverts_a(problem.b_dtype, problem.a_dtype):
        problem = problem.transposed  # the same work: operands are made with narrow weights as A
    unit = Unit(problem, tuple(configs), sizes=said)
    with tempfile.TemporaryDirectory() as folder:
        found = measure([unit], Path(folder) / "records.jsonl", store=Store(store))
    if not found:
        raise UnsupportedProblemError(f"nothing was measured of {problem}")
    report_measurements(found, as_json)


def _checked_sizes(problem: GemmProblem, said: str | None) -> str:
    try:
        return checked_sizes(problem, said)
    except ProblemError as error:
        raise typer.BadParameter(f"--sizes: {error}") from None


@app.command()
def profile(
    manifest: Manifest,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A shape suite: a file, or the name of one that ships.",
            autocompletion=completion.suites,
        ),
    ] = None,
    problem: Problems = [],  # noqa: B006 (typer copies it)
    records: Annotated[
        Path, typer.Option(metavar="FILE", dir_okay=False, help="Append measurements to this file.")
    ] = Path("records.jsonl"),
    preset: Preset = None,
    where: Where = None,
    budget: Budget = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Time every kernel at length, not only the best of a brief look.")
    ] = False,
    regime: Annotated[
        Regime, typer.Option(help="How the GPU is kept at work: `sustained`, each kernel alone, held by its power.")
    ] = "burst",
    gpus: Annotated[
        str | None, typer.Option(metavar="N|all", help="GPUs of this machine to measure on; default: 1.")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Measure on the GPUs of this dask cluster's workers.")
    ] = None,
    sizes: Sizes = None,
    jobs: Jobs = None,
    store: StorePath = None,
    as_json: Json = False,
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
    if (suite := asked_suite(shapes, problem)) is None:
        raise typer.BadParameter("nothing to measure: --shapes FILE or --problem TEXT says what is multiplied")
    configs = [*kernel_set(manifest).expand(preset, where)]
    sized = dict.fromkeys(_sized(shape, sizes) for shape in served(configs, suite))
    chosen = units(configs, sized, varies=True)
    if exhaustive and budget is not None:
        raise typer.BadParameter("--exhaustive takes as long as it takes; leave out --budget")
    options = Options(finalists=None if exhaustive else DEFAULT_OPTIONS.finalists, regime=regime)
    workers = _workers(gpus, scheduler)
    measured = {config for unit in chosen for config in unit.configs}
    if others := {*configs} - measured - {*map(compiled, measured)}:
        output.complain(f"{len(others)} kernels are not measured: no shape has their formats, groups or expression")
    found = measure(chosen, records, store=Store(store), jobs=jobs, options=options, budget=budget, workers=workers)
    report_measurements(found, as_json)


def _sized(shape: Shape, sizes: str | None) -> Shape:
    """A shape with the sizes of groups that an option says, where they would be balanced."""
    if sizes is None or shape.sizes != BALANCED:
        return shape
    return replace(shape, sizes=_checked_sizes(shape.problem, sizes))


def _workers(gpus: str | None, scheduler: str | None) -> GpuPool:
    """Who measures."""
    if scheduler is not None:
        if not scheduler:
            raise typer.BadParameter("--scheduler is empty; it takes the address of a dask scheduler")
        if gpus is not None:
            raise typer.BadParameter("--gpus is of this machine, and --scheduler has the GPUs of others: give one")
        return Cluster(scheduler)
    if gpus is not None and gpus != "all" and not (gpus.isdecimal() and len(gpus) < 5 and int(gpus)):
        raise typer.BadParameter(f"--gpus {gpus}: neither all nor a number of at least 1")
    return LocalGpus(local_gpus(None if gpus == "all" else int(gpus)) if gpus not in (None, "1") else ())


def measure(
    chosen: Sequence[Unit],
    records: Path,
    *,
    store: Store,
    jobs: int | None = None,
    options: Options = DEFAULT_OPTIONS,
    budget: float | None = None,
    workers: GpuPool | None = None,
) -> list[Measurement]:
    """Verify and time kernels with progress bars: :func:`gemmill.profiler.sweep.sweep.sweep`."""
    untried: list[int] = []
    left_out: list[str] = []
    kernels = {config for unit in chosen for config in unit.configs}
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
            store=store,
            jobs=jobs,
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


def registry(
    manifests: Sequence[str],
    packs: Sequence[Path],
    records: Sequence[Path],
    gpu: Gpu | None = None,
    model: Path | None = None,
) -> Registry:
    """A registry over what the options name; without any manifest or pack, over the manifests that ship."""
    paths = [manifest_path(manifest) for manifest in manifests] if manifests else None
    return Registry(manifests=paths, packs=packs, gpu=gpu, records=records, model=model)


def best(choice: Choice, top: int) -> list[str]:
    """Names of the best kernels for a problem."""
    return [choice.name, *(name for name, _ in choice.runners_up)][:top]


def report_measurements(found: Iterable[Measurement], as_json: bool = False) -> None:
    """Print measurements, and exit with 1 if a kernel failed."""
    found = list(found)
    if as_json:
        output.print_json("measurements", [measurement.model_dump(mode="json") for measurement in found])
    else:
        _print(found)
    if any(measurement.stage == "failed" and measurement.kernel not in BASELINES for measurement in found):
        raise typer.Exit(Status.WRONG)


def _print(found: Sequence[Measurement]) -> None:
    """A table for each GPU; the ratio to cuBLAS of those alone that were timed beside it."""
    columns = ("problem", "kernel", ">us", "quartiles", ">rounds", ">TFLOP/s", ">x cuBLAS", ">error/bound", "")
    for gpu, regime in dict.fromkeys((m.gpu, m.regime) for m in found):
        rows = [_row(m) for m in found if (m.gpu, m.regime) == (gpu, regime)]
        output.print_table(columns, rows, title=f"{gpu}: medians over rounds, regime {regime}")
    if any(m.stage == "screen" for m in found):
        output.complain(
            "kernels without a ratio had a brief look alone, not beside cuBLAS: their times rank them, no more"
        )


def _row(m: Measurement) -> tuple[str, ...]:
    def number(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    ratio = "" if m.kernel in BASELINES or m.stage != "final" else number(m.ratio, 2)
    return (
        str(m.problem),
        m.kernel,
        number(m.us, 1),
        spread(m),
        str(m.samples or ""),
        number(m.tflops, 0),
        ratio,
        number(m.error, 2),
        m.says,
    )


def spread(m: Measurement | None) -> str:
    """The quartiles of a time, as in ``93.1 to 93.6``; nothing where they were not kept."""
    return "" if m is None or m.low_us is None or m.high_us is None else f"{m.low_us:.1f} to {m.high_us:.1f}"
