"""The best kernel of a set against cuBLAS and cuBLASLt, and the selected kernel against the best, in one run.

Appends the records (JSON Lines) to a file in the working directory, unless ``--out`` names a folder; `gemmill records
pack` adds them to others. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/results.md, by the commands of docs/performance/reproduce.md.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmill.runtime.select.selector import Selector

ROOT = Path(__file__).resolve().parents[1]
PLAIN = (
    "a.major == 'k' and b.major == 'k' and c.dtype == 'none' and "
    "scheduler.batching == 'strided' and epilogue == 'linear'"
)
"""The layout of the comparison: A and B K-major, D n-major. Kernels with an m-major D solve the transposed problem."""
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
"""Types of the operands and of D, as filters, by name."""
CHOOSERS = ("selected", "quick", "heuristics")
"""Who names a kernel: the selector, the same at once, nvMatmulHeuristics."""
COMPARED = ("best", "selected", "quick")
"""What is set beside cuBLAS."""


def main() -> None:
    """Measure, write and print."""
    from gemmill.profiler.sweep.sweep import DEFAULT_OPTIONS as DEFAULT

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the summaries, a list, instead of tables")
    parser.add_argument(
        "--manifest", nargs="+", default=["bf16"], help="files, or shipped manifests (bf16); bf16+mma: both as one set"
    )
    parser.add_argument("--shapes", nargs="+", default=["large"], help="shipped shape suites, or files (large)")
    parser.add_argument("--preset", help="preset of the manifests")
    parser.add_argument("--formats", choices=FORMATS, help="types of the operands; default: by each manifest's name")
    parser.add_argument("--where", default=PLAIN, help="further filter of the kernels: %(default)s")
    parser.add_argument("--commit", help="commit that the records name; default: the repository's")
    parser.add_argument("--store", type=Path, help="store of compiled kernels; default: the user's")
    for name, default in (("finalists", DEFAULT.finalists), ("rounds", DEFAULT.final_rounds)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{name} of the second stage (%(default)s)")
    parser.add_argument(
        "--likely", type=int, metavar="N", help="the N kernels that the selector ranks first for each problem alone"
    )
    parser.add_argument("--baselines", nargs="+", help="compare with these alone (default: with all)")
    parser.add_argument("--gpus", action="store_true", help="on all GPUs here, each a problem at a time")
    parser.add_argument(
        "--budget", type=float, help="seconds to measure each manifest for, in the selector's order (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the records (the working directory)")
    arguments = parser.parse_args()

    from gemmill.library.errors import ManifestError, RecordError
    from gemmill.profiler.baselines.baseline import BASELINES, absent
    from gemmill.profiler.sweep.shapes import load_shapes, shipped_suites

    if unknown := set(arguments.baselines or ()) - set(BASELINES):
        parser.error(f"no baseline is called {', '.join(sorted(unknown))}; there are {', '.join(BASELINES)}")
    if arguments.likely is not None and arguments.likely < 1:
        parser.error(f"--likely is {arguments.likely}; it is at least 1, or left out for all of the set")
    lacking = absent() if arguments.baselines else {}
    if missing := [name for name in arguments.baselines or () if name in lacking]:
        parser.error(f"cannot compare with {missing[0]}: {lacking[missing[0]]}")
    try:
        sets = [_manifests(named) for named in arguments.manifest]
        suites = [load_shapes(shipped_suites().get(name, Path(name))) for name in arguments.shapes]
    except (ManifestError, RecordError) as error:
        parser.error(str(error))
    if nameless := [first.name for first, *_ in sets if (arguments.formats or first.name) not in FORMATS]:
        parser.error(f"no formats are known for manifest {nameless[0]}; pass --formats")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends a run early, it has a summary
    try:
        summaries = [measured(kernels, suites, arguments) for kernels in sets]
    except KeyboardInterrupt:
        sys.exit(130)
    if arguments.json:
        print(json.dumps(summaries, indent=2))
    elif len(summaries) > 1:
        for summary in summaries:
            print(f"\n{summary['manifest']}:", *_told(summary), sep="\n  ")


def _manifests(named: str) -> list[Any]:
    """What is measured as one set: a file, or shipped manifests, joined by ``+``."""
    from gemmill.library.manifest.load import load_manifest, shipped_manifest

    if Path(named).is_file():
        return [load_manifest(Path(named))]
    return [load_manifest(shipped_manifest(name)) for name in named.split("+")]


def measured(sets: Sequence[Any], suites: Sequence[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the kernels of sets, as one that has the first's name, at suites of shapes and return what the records
    come to, also of a run that is cut short."""
    from gemmill.library.config.names import kernel_name
    from gemmill.library.records import read_records
    from gemmill.profiler.baselines.baseline import BASELINES
    from gemmill.profiler.measure.messages import Options
    from gemmill.profiler.sweep.cluster import Cluster, local_gpus
    from gemmill.profiler.sweep.sweep import sweep
    from gemmill.profiler.sweep.units import likely_alone, units
    from gemmill.runtime.gpus import detect
    from gemmill.runtime.select.selector import Selector
    from gemmill.runtime.storage.store import Store

    shapes = [*dict.fromkeys(shape for suite in suites for shape in suite.shapes)]
    name = "+".join(suite.name for suite in suites)
    manifest, formats = "+".join(kernels.name for kernels in sets), arguments.formats or sets[0].name
    where = f"({FORMATS[formats]}) and ({arguments.where})"
    configs = [config for kernels in sets for config in kernels.expand(preset=arguments.preset, where=where)]
    records = arguments.out / f"{formats}-{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"
    selector = Selector({kernel_name(config): config for config in configs}, detect())
    asked = [unit for unit in units(configs, shapes) if unit.problem.d_major == "n"]
    which = f"{len(configs)}"
    if arguments.likely is not None:
        asked = [likely_alone(unit, selector, arguments.likely) for unit in asked]
        which = f"for each problem {arguments.likely} likely ones of {len(configs)}"
    if not arguments.json:
        print(f"{which} {formats} kernels of {manifest}, {len(shapes)} shapes of {name}; TFLOP/s")
        print(HEAD, flush=True)
    try:
        sweep(
            asked,
            records,
            store=Store(arguments.store),
            options=Options(finalists=arguments.finalists, final_rounds=arguments.rounds),
            commit=arguments.commit,
            workers=Cluster(gpus=local_gpus(None)) if arguments.gpus else None,
            budget=arguments.budget,
            baselines=arguments.baselines or tuple(BASELINES),
            pinned=_choosers(selector),
            listener=_listener(arguments.json),
        )
    finally:
        if records.exists() and records.stat().st_size:
            summary = {"manifest": manifest, "formats": formats, "shapes": name, "asked": len(asked)}
            summary["likely"] = arguments.likely
            summary |= _summary([*read_records(records)])
            if not arguments.json:
                print(*_told(summary), f"records: {records}", sep="\n", flush=True)
    return summary


def _choosers(selector: Selector) -> Callable[[Any], dict[str, Any]]:
    """What gives the kernels that are taken for a problem, by who of :data:`CHOOSERS` takes them: by what ships, which
    is measurements, and a model that was fitted to them."""
    from gemmill.library.errors import UnsupportedProblemError
    from gemmill.profiler.baselines import heuristics

    if why := heuristics.missing():
        note(f"not compared with nvMatmulHeuristics: {why}")

    def selected(problem: Any, quick: bool) -> str | None:
        try:
            return selector.select(problem, quick=quick, objective="burst").name
        except UnsupportedProblemError as error:
            note(str(error))
            return None

    def choices(problem: Any) -> dict[str, Any]:
        picked = None if why else heuristics.heuristic_pick(selector.configs, problem, selector.gpu.name)
        chosen = selected(problem, False), selected(problem, True), picked
        return {who: selector.configs[name] for who, name in zip(CHOOSERS, chosen, strict=True) if name}

    return choices


def _listener(as_json: bool) -> Any:
    from gemmill.profiler.analysis.figures import figures
    from gemmill.profiler.sweep.sweep import Listener

    def report(_: Any, measurements: Sequence[Any]) -> None:
        (found,) = figures(measurements)
        print(_row(found), flush=True)

    return Listener(left_out=note) if as_json else Listener(measured=report, left_out=note)


def note(text: str) -> None:
    """Tell of something beside the results."""
    print(text, file=sys.stderr, flush=True)


def _told(summary: dict[str, Any]) -> Iterator[str]:
    """What a summary comes to, line by line."""
    problems = summary["problems"]
    yield f"{summary['gpu']}, driver {summary['driver']}, CUDA {summary['cuda']}, commit {summary['commit']}"
    least, most = summary["rounds"]
    yield f"medians of {least} to {most} rounds, regime {summary['regime']}; fewer where the time ended"
    yield f"geometric means of {len(problems)} of {summary['asked']} problems; over a baseline: of those that it has"
    if summary["likely"] is not None:
        yield f"best: of the {summary['likely']} kernels that the selector ranks first, and of those that are chosen"
    for name in CHOOSERS:
        yield f"{name} over best: {summary[f'{name}_over_best'] or math.nan:.3f}"
    for name in rivals():
        if not (compared := [row for row in problems if row[f"{name}_us"]]):
            continue
        ratios = [row[f"selected_over_{name}"] for row in compared]
        least = min(ratios) if None not in ratios else math.nan
        means = (f"{what} {summary[f'{what}_over_{name}'] or math.nan:.3f}" for what in COMPARED)
        yield f"over {name}, which has {len(compared)}: {', '.join(means)}; the least selected {least:.3f}"
    yield f"{summary['failed']} of {summary['measurements']} measurements failed"
    for says, count in summary["says"].items():
        yield f"  {count} x {says}"


def rivals() -> dict[str, tuple[str, ...]]:
    """Names that figures use, and the baselines that they stand for: those of PyTorch's cuBLAS are one."""
    from gemmill.profiler.baselines.baseline import BASELINES, THROUGH_TORCH

    others = (name for name in BASELINES if name not in THROUGH_TORCH)
    return {"cublas": THROUGH_TORCH, **{name.replace("-", "_"): (name,) for name in others}}


HEAD = (
    f"{'problem':20}{'cuBLAS':>8}{'Lt':>8}{'tuned':>8}{'best':>8}{'ratio':>7}{'selected':>10}{'of best':>9}  "
    "best kernel"
)


def _row(found: Any) -> str:
    figures = _figures(found)

    # The formats are the same in every row: what is left of a name tells the kernels apart.
    short = re.sub(r"^.*_(?=\d+x\d+x\d+_)", "", figures["best"] or "none is right")
    columns = (
        ("cublas_tflops", ">8.1f"),
        ("cublaslt_tflops", ">8.1f"),
        ("cublaslt_tuned_tflops", ">8.1f"),
        ("best_tflops", ">8.1f"),
        ("best_over_cublas", ">7.3f"),
        ("selected_tflops", ">10.1f"),
        ("selected_over_best", ">9.3f"),
    )
    cells = [format(math.nan if figures[key] is None else figures[key], form) for key, form in columns]
    return f"{figures['problem']:20}{''.join(cells)}  {short}"


def _figures(found: Any) -> dict[str, Any]:
    """The figures of one problem. Only finalists count: they and the baselines were timed side by side."""
    from gemmill.profiler.analysis.figures import formats

    problem = found.run.problem
    best = found.best
    chosen = {who: next((m for m in found.finalists.values() if who in m.chosen), None) for who in CHOOSERS}
    named = {"best": best, **chosen}
    over: dict[str, Any] = {}
    for name, own in chosen.items():
        over[name] = own and own.kernel
        over[f"{name}_us"] = own and own.us
        over[f"{name}_over_best"] = found.reached([own.kernel]) if own else None
    for name, stands_for in rivals().items():
        own = next((own for own in stands_for if own in found.baselines), "")
        rival = found.baselines.get(own)
        over[f"{name}_us"] = rival and rival.us
        over[f"{name}_tflops"] = rival and rival.tflops
        for what in COMPARED:
            over[f"{what}_over_{name}"] = found.over(named[what], own)
    return {
        "problem": problem.extents,
        "formats": formats(problem),
        "baseline": found.baseline and found.baseline.kernel,
        "best": best and best.kernel,
        "best_us": best and best.us,
        "best_low_us": best and best.low_us,
        "best_high_us": best and best.high_us,
        "rounds": best and best.samples,
        "best_tflops": best and best.tflops,
        "selected_tflops": chosen["selected"] and chosen["selected"].tflops,
        **over,
        "sm_mhz": best and best.sm_mhz,
        "watts": best and best.watts,
        "throttle": list(best.throttle) if best else [],
    }


def _summary(measurements: Sequence[Any]) -> dict[str, Any]:
    from gemmill.profiler.analysis.figures import figures
    from gemmill.profiler.baselines.baseline import BASELINES

    rows = [_figures(found) for found in figures(measurements)]
    first = measurements[0]
    rounds = [m.samples for m in measurements if m.stage == "final"] or [0]
    means = {f"{name}_over_best": _mean(rows, f"{name}_over_best") for name in CHOOSERS}
    for name in rivals():  # cuBLAS lacks some problems, int8 with few rows among them
        compared = [row for row in rows if row[f"{name}_us"]]
        means |= {f"{what}_over_{name}": _mean(compared, f"{what}_over_{name}") for what in COMPARED}
    return {
        **{key: getattr(first, key) for key in ("gpu", "driver", "cuda", "torch", "gemmill", "commit", "method")},
        "time": first.time.isoformat(),
        "baseline": next((row["baseline"] for row in rows if row["baseline"]), None),
        "with_baseline": sum(row["baseline"] is not None for row in rows),
        "rounds": [min(rounds), max(rounds)],
        "regime": first.regime,
        **means,
        "measurements": len(measurements),
        "failed": sum(m.stage == "failed" for m in measurements if m.kernel not in BASELINES),
        "says": dict(Counter(m.says[:200] for m in measurements if m.stage == "failed").most_common(5)),
        "problems": rows,
    }


def _mean(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """Geometric mean; None if a problem lacks the figure: a mean of the rest would flatter."""
    from gemmill.profiler.analysis.figures import geometric_mean

    values = [row[key] for row in rows]
    return None if None in values else geometric_mean(values)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
