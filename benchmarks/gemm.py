"""Sweep the kernels of sets over suites of shapes: the fastest and the selected kernel relative to cuBLAS and cuBLASLt.

Writes records (JSON Lines) to a file in the working directory, or in the folder of ``--out``. `gemmill report` draws
them, and `gemmill records pack` adds them to other records. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/results.md with the commands of docs/performance/reproduce.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PLAIN = (
    "a.major == 'k' and b.major == 'k' and c.dtype == 'none' and "
    "scheduler.batching == 'strided' and epilogue == 'linear'"
)
"""The layout of the comparison: A and B K-major, D N-major. Kernels with an M-major D solve the transposed problem."""
FORMATS = {
    **{
        name: f"a.dtype == '{name}' and b.dtype == '{name}' and accumulator == 'f32' and d.dtype == '{d}'"
        for name, d in (("bf16", "bf16"), ("f16", "f16"), ("tf32", "f32"), ("f32", "f32"))
    },
    "bf16-f32": "a.dtype == 'bf16' and b.dtype == 'bf16' and accumulator == 'f32' and d.dtype == 'f32'",
    "f16-f16": "a.dtype == 'f16' and b.dtype == 'f16' and accumulator == 'f16' and d.dtype == 'f16'",
    "f64": "a.dtype == 'f64' and b.dtype == 'f64' and accumulator == 'f64' and d.dtype == 'f64'",
    "int8": "a.dtype == 's8' and b.dtype == 's8' and d.dtype == 's32'",
    **{
        name: f"a.dtype == 'e4m3' and b.dtype == 'e4m3' and accumulator == 'f32' and d.dtype == 'bf16' and {how}"
        for name, how in (
            ("fp8", "promote == 0"),
            ("fp8-promoted", "promote == 4 and a.scale == 'none'"),
            ("fp8-scaled", "a.scale == '1x128' and b.scale == '128x128'"),
        )
    },
}
"""Filters for the types of operands and D, by name."""


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from gemmill.library.errors import ManifestError, RecordError
    from gemmill.profiler.baselines.baseline import BASELINES, absent
    from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites

    parser = _parser()
    arguments = parser.parse_args()
    if unknown := set(arguments.baselines or ()) - set(BASELINES):
        parser.error(f"unknown baseline {', '.join(sorted(unknown))}; expected {', '.join(BASELINES)}")
    lacking = absent() if arguments.baselines else {}
    if missing := [name for name in arguments.baselines or () if name in lacking]:
        parser.error(f"cannot compare with {missing[0]}: {lacking[missing[0]]}")
    try:
        sets = [_manifests(named) for named in arguments.manifest]
        suites = [load_shapes(shipped_suites().get(name, Path(name))) for name in arguments.shapes]
    except (ManifestError, RecordError) as error:
        parser.error(str(error))
    if nameless := [first.name for first, *_ in sets if (arguments.formats or first.name) not in FORMATS]:
        parser.error(f"the manifest {nameless[0]} has no default formats; pass --formats")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # print a summary also if the run is interrupted
    try:
        for kernels in sets:
            measure(kernels, suites, arguments)
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    from benchmarks.common import parser_of

    from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS

    parser = parser_of(__doc__, DEFAULT_OPTIONS.final_rounds)
    parser.add_argument(
        "--manifest", nargs="+", default=["bf16"], help="files or built-in manifests (bf16); bf16+mma: both as one set"
    )
    parser.add_argument("--shapes", nargs="+", default=["large"], help="built-in shape suites or files (large)")
    parser.add_argument("--formats", choices=FORMATS, help="types of the operands; default: by each manifest's name")
    parser.add_argument("--where", default=PLAIN, help="additional filter of the kernels: %(default)s")
    parser.add_argument(
        "--finalists", type=int, default=DEFAULT_OPTIONS.finalists, help="kernels in the final stage (%(default)s)"
    )
    parser.add_argument(
        "--likely", type=int, metavar="N", help="measure only the N kernels that the selector ranks first"
    )
    parser.add_argument("--baselines", nargs="+", help="baselines to compare with (default: all)")
    parser.add_argument("--gpus", action="store_true", help="use all GPUs, with one problem per GPU at a time")
    parser.add_argument(
        "--budget", type=float, help="seconds for each manifest, in the selector's order (default: no limit)"
    )
    return parser


def _manifests(named: str) -> list[Any]:
    """The manifests of one set: a file, or built-in manifests joined by ``+``."""
    from gemmill.library.manifest.load import load_manifest, shipped_manifest

    if Path(named).is_file():
        return [load_manifest(Path(named))]
    return [load_manifest(shipped_manifest(name)) for name in named.split("+")]


def measure(sets: Sequence[Any], suites: Sequence[Any], arguments: argparse.Namespace) -> None:
    """Measure the kernels of several manifests as one set, on suites of shapes, and print a summary, also if the run is
    interrupted. The first manifest determines the default formats."""
    from gemmill.library.config.names import kernel_name
    from gemmill.library.records import read_records
    from gemmill.profiler.baselines.baseline import BASELINES
    from gemmill.profiler.measure.messages import Options
    from gemmill.profiler.sweep.measuring import LocalGpus, local_gpus
    from gemmill.profiler.sweep.sweep import Listener, Scope, sweep
    from gemmill.profiler.sweep.units import likely_alone, units
    from gemmill.runtime.host_gpu import detect
    from gemmill.runtime.select.selector import Selector
    from gemmill.runtime.storage.store import Store

    shapes = [*dict.fromkeys(shape for suite in suites for shape in suite.shapes)]
    name = "+".join(suite.name for suite in suites)
    manifest, formats = "+".join(kernels.name for kernels in sets), arguments.formats or sets[0].name
    where = f"({FORMATS[formats]}) and ({arguments.where})"
    configs = [config for kernels in sets for config in kernels.expand(where=where)]
    records = arguments.out / f"{formats}-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    selector = Selector({kernel_name(config): config for config in configs}, detect())
    asked = [unit for unit in units(configs, shapes) if unit.problem.d_major == "n"]
    if arguments.likely is not None:
        asked = [likely_alone(unit, selector, arguments.likely) for unit in asked]
    print(f"{len(configs)} {formats} kernels of {manifest}, {len(shapes)} shapes of {name}", flush=True)
    try:
        sweep(
            asked,
            records,
            store=Store(None),
            options=Options(finalists=arguments.finalists, final_rounds=arguments.rounds),
            scope=Scope(
                arguments.baselines or tuple(BASELINES), _selected(selector), arguments.budget, arguments.commit
            ),
            workers=LocalGpus(local_gpus(None)) if arguments.gpus else None,
            listener=Listener(measured=_show, left_out=print),
        )
    finally:
        if records.exists() and records.stat().st_size:
            print(*_summary([*read_records(records)], len(asked)), f"records: {records}", sep="\n", flush=True)


def _selected(selector: Any) -> Callable[[Any], dict[str, Any]]:
    """A function that returns the kernel selected for a problem, with the built-in model and measurements."""
    from gemmill.library.errors import UnsupportedProblemError

    def selected(problem: Any) -> dict[str, Any]:
        try:
            return {"selected": selector.select(problem, objective="burst").kernel}
        except UnsupportedProblemError as error:
            print(error, flush=True)
            return {}

    return selected


def _chosen(found: Any) -> Any:
    """The final measurement of the selected kernel; None if it was not a finalist."""
    return next((m for m in found.finalists.values() if "selected" in m.chosen), None)


def _show(_: Any, measurements: Sequence[Any]) -> None:
    """Print the figures of a problem, for finalists and baselines, which were timed in the same rounds."""
    from gemmill.profiler.analysis.figures import figures

    (found,) = figures(measurements)
    timed = {**found.baselines, "fastest": found.best, "selected": _chosen(found)}
    rates = "  ".join(f"{name} {m.tflops:.1f}" for name, m in timed.items() if m is not None)
    print(f"{found.run.problem.extents:20} TFLOP/s: {rates}  {found.best and found.best.sliced}", flush=True)


def _summary(measurements: Sequence[Any], asked: int) -> Iterator[str]:
    """Lines of a summary of records."""
    from gemmill.profiler.analysis.figures import figures, geometric_mean
    from gemmill.profiler.baselines.baseline import BASELINES

    first, found = measurements[0], figures(measurements)
    yield f"{first.gpu}, driver {first.driver}, CUDA {first.cuda}, commit {first.commit}"
    reached = [x for f in found if (m := _chosen(f)) and (x := f.reached([m.sliced]))]
    if reached:
        mean = geometric_mean(reached)
        yield f"geometric means over {len(reached)} of {asked} problems: selected / fastest {mean:.3f}"
    for name in BASELINES:
        best = [x for f in found if (x := f.over(f.best, name))]
        if selected := [x for f in found if (x := f.over(_chosen(f), name))]:
            means = f"fastest {geometric_mean(best):.3f}, selected {geometric_mean(selected):.3f}"
            yield f"relative to {name}, {len(best)} problems: {means}; selected, worst problem {min(selected):.3f}"
    failed = [m for m in measurements if m.stage == "failed" and m.kernel not in BASELINES]
    yield f"{len(failed)} of {len(measurements)} measurements failed"
    yield from sorted({f"  {m.says[:200]}" for m in failed})[:5]
