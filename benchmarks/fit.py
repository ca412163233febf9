"""Fit the residual model, trees that correct the analytic model (``runtime/select/cost/residual.py``), to records of
sweeps, and judge it; and tell which kernels were the fastest at the shapes of the suites
(``runtime/select/measured.py``).

They are judged on what they were not fitted to: problems are held out by K, a fold of all its values at a time, so that
no weight matrix is on both sides. Selected over best, geometric mean and 5th percentile over problems, and the best of
the first eight, for the analytic model alone and with trees. Then all problems are fitted, and both files are written,
the figures in that of the trees. Needs CatBoost (``pip install '.[fit]'``), and no GPU.

Trees of a GPU with few records learn from those of its kin as well (``--gpu``), which weigh less; they are judged, and
the tables made, by its own alone.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FOLDS = 10
KIN = 1 / 16
"""What a problem of another GPU weighs."""
SHARPNESS = 5.0
"""How much less a kernel weighs the slower it is: those that are e^(1/5) times as slow as the best weigh 1/e."""
DEPTH = 6
"""Levels of a tree."""
ROUNDING = 0.002
"""Most that numbers as they are written may change a logarithm of time."""
SUITES = (
    *("h200", "llm", "deepseek", "uneven", "heads", "batched", "decimal"),
    *("input-gradients", "weight-gradients"),
)
"""Whose shapes ship with what was measured of them."""
SETS = ("bf16", "f16", "fp8", "int8", "tf32")
"""Whose kernels."""
CHANGED = {"stream": datetime(2026, 11, 22, 12, tzinfo=UTC)}
"""Since when kernels of a decomposition share K as they do: earlier measurements do not count."""
CUT = datetime(2026, 11, 23, tzinfo=UTC)
"""Since when boxes end with the operands. Of the kernels that this changes earlier measurements do not count for the
trees; for the tables they do, where the first few hardly changed."""
WIDER = datetime(2026, 11, 26, 3, 15, tzinfo=UTC)
"""Since when D has wider subtiles than divide it, where that leaves far fewer. The same holds of those kernels."""
FETCHED = datetime(2026, 11, 23, 15, 50, tzinfo=UTC)
"""Since when L2 fetches operands by one line or two (``fetched_bytes`` in runtime/launch/plan.py). Of problems that
this changes and that have been measured since, earlier measurements do not count."""
BEYOND = 1 / 16
"""Rows of a tile, and of the others of its cluster, that may lie beyond A and B for a kernel to count as unchanged; of
the rows of A and B in a tile."""
RECENT = 4
"""Runs of a problem, at most, that tell which kernels were the fastest there."""
FASTEST = 5
"""How many kernels of a problem: what a choice names, its runners-up among them."""
SETTINGS: dict[str, Any] = {
    "loss_function": "RMSE",
    "iterations": 400,
    "depth": DEPTH,
    "learning_rate": 0.2,
    "l2_leaf_reg": 1,
    "border_count": 254,
    "random_seed": 0,
    "allow_writing_files": False,
    "verbose": False,
}
"""Of CatBoost."""


@dataclass(frozen=True)
class Rows:
    """The kernels of a problem."""

    problem: Any
    names: tuple[str, ...]
    features: Any
    """(kernels, features), in the order of ``model.FEATURES``."""
    analytic: Any
    """Logarithms of the analytic model's times; so the measured ones."""
    measured: Any
    best: float
    """Least measured time at length, logarithm."""
    gpu: str
    """Name of its row."""

    @property
    def weights(self) -> Any:
        """Of each kernel, in all 1."""
        weights = np.exp(-SHARPNESS * (self.measured - self.measured.min()))
        return weights / weights.sum()


def main() -> None:
    """Read, judge, fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", help="records of sweeps, each of one GPU, or medians (.json)")
    parser.add_argument("--gpu", help="where they are of several: whose files to write, by its name in library/arch.py")
    arguments = parser.parse_args()

    from gemmill.library.records import read_records
    from gemmill.runtime.select import gpus, measured
    from gemmill.runtime.select.cost import model, residual

    files: list[list[Any]] = [
        [m for m in (read_medians(path) if path.suffix == ".json" else read_records(path)) if counts(m)]
        for path in arguments.records
    ]
    by_gpu = {name: up_to_date(own) for name, own in of_gpus(files).items()}
    gpu = arguments.gpu or next(iter(by_gpu), "")
    if gpu not in by_gpu or (len(by_gpu) > 1 and not arguments.gpu):
        parser.error(f"name one GPU with --gpu; the records are of: {', '.join(sorted(by_gpu)) or 'none'}")
    # File by file: times of several runs do not compare.
    rows = [
        row
        for name, own in by_gpu.items()
        for measurements in own
        for row in read_rows(filter(runs_as_measured, measurements), gpus.figures(name))
    ]
    folds = judge(rows, gpu)
    for types, figures in folds.items():
        print(
            f"{types:12}{figures['problems']:>6} problems"
            + "".join(f"{key:>16}: {', '.join(f'{x:.4f}' for x in figures[key])}" for key in ("analytic", "fitted"))
        )
    booster = fit(rows, gpu)
    content = {
        "fitted to": [path.name for path in arguments.records],
        "held out by K: problems, once for each run; selected / best, its 5th percentile, best of 8 / best": folds,
        "features": list(model.FEATURES),
        "trees": as_trees(booster),
    }
    asked = np.concatenate([r.features for r in rows]).astype(np.float64)
    apart = np.abs(residual.ResidualModel.of(content)(asked.T) - booster.predict(asked)).max()
    if apart > ROUNDING:
        sys.exit(f"the trees as they would be written are up to {apart:.2g} from what was fitted: round less")
    write(gpu, "trees", residual.VERSION, content)
    write(gpu, "measured", measured.VERSION, fastest(by_gpu[gpu]))


def write(gpu: str, what: str, version: int, content: dict[str, Any]) -> None:
    """Write a file that ships for a GPU."""
    from gemmill.library.files import publish
    from gemmill.runtime.select.shipped import path_of

    path = path_of(gpu, what)
    text = json.dumps({"version": version, "gpu": gpu} | content, indent=1)
    publish(path, [compact(text).encode(), b"\n"])
    print(f"{path}: {path.stat().st_size:,} bytes")


@dataclass(frozen=True)
class Median:
    """Of a measurement what is needed here."""

    problem: Any
    kernel: str
    us: float
    gpu: str
    time: datetime | None
    """None where the file does not tell."""
    digest: str = ""
    stage: str = "final"


def read_medians(path: Path) -> Iterator[Median]:
    """The times of a file that has the medians of sweeps of one type (bf16 unless it names another) and nothing else,
    K-major operands and n-major D in bf16."""
    from gemmill.library.problem import GemmProblem

    content = json.loads(path.read_text())
    run = list(content["runs"].values())[-1]
    operand: tuple[Any, Any] = content.get("dtype", "bf16"), "k"
    time = datetime.fromisoformat(content["time"]) if "time" in content else None
    for shape, times in run.items():
        m, n, k = map(int, shape.split("x"))
        problem = GemmProblem.packed((m, n, k, 1), operand, operand, "f32", None, ("bf16", "n"))
        for kernel, us in zip(content["kernels"], times, strict=True):
            if us is not None:
                yield Median(problem, kernel, us, content["gpu"], time)


def counts(measurement: Any) -> bool:
    """Whether the kernel is still what was measured."""
    from gemmill.library.config.names import parse_name
    from gemmill.profiler.baselines.baseline import BASELINES

    if measurement.kernel in BASELINES:
        return True
    since = CHANGED.get(parse_name(measurement.kernel).scheduler.decomposition)
    return since is None or is_since(measurement, since)


def is_since(measurement: Any, change: datetime) -> bool:
    """Whether it was made since a change; what tells no time was not."""
    return measurement.time is not None and measurement.time >= change


def of_gpus(files: Iterable[Sequence[Any]]) -> dict[str, list[Sequence[Any]]]:
    """Files by the GPU that they are of: by the name of its row."""
    from gemmill.runtime.select import gpus

    by_gpu: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for measurements in filter(None, files):
        names = {gpus.figures(name).name for name in {m.gpu for m in measurements}}
        if len(names) > 1:
            sys.exit(f"a file has records of several GPUs: {', '.join(sorted(names))}")
        by_gpu[names.pop()].append(measurements)
    return by_gpu


def up_to_date(files: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Files without measurements of problems that have been measured since their operands are fetched otherwise."""
    from gemmill.runtime.launch.descriptors import FEW_ROWS

    def is_changed(p: Any) -> bool:
        return min(p.m, p.n) <= FEW_ROWS or "mn" in (p.a_major, p.b_major)

    again = {m.problem for own in files for m in own if is_since(m, FETCHED) and is_changed(m.problem)}
    return [[m for m in own if is_since(m, FETCHED) or m.problem not in again] for own in files]


def runs_as_measured(measurement: Any) -> bool:
    """Whether the kernel's subtiles of D, and its boxes on this problem (``TmaBox.part``), are about what they were."""
    from gemmill.library.config.names import parse_name
    from gemmill.profiler.baselines.baseline import BASELINES
    from gemmill.runtime.select.kernels.faults import needs_swap

    problem = measurement.problem
    if measurement.kernel in BASELINES:
        return True
    if _has_wider_subtiles(measurement.kernel) and not is_since(measurement, WIDER):
        return False
    if is_since(measurement, CUT):
        return True
    if needs_swap(parse_name(measurement.kernel), problem):
        problem = problem.transposed
    rows, tiles = _cut_tiles(measurement.kernel)
    beyond: int = sum(-getattr(problem, extent) % tile for extent, tile in tiles.items())
    return beyond <= BEYOND * rows


@cache
def _has_wider_subtiles(kernel: str) -> bool:
    """Whether subtiles of D are wider than those that divide it."""
    from gemmill.library.config.fields import fields_of
    from gemmill.library.config.names import parse_name
    from gemmill.library.legality import resources

    config = parse_name(kernel)
    fields = fields_of(config)
    return config.family == "wgmma" and resources.subtile_n(fields) > resources.dividing_n(fields)


@cache
def _cut_tiles(kernel: str) -> tuple[int, dict[str, int]]:
    """The rows of A and B in a tile; and by extent the rows of a cluster's tiles, where boxes end with the operand."""
    from gemmill.emitters.emit import launch_spec
    from gemmill.library.config.names import parse_name

    spec = launch_spec(parse_name(kernel))
    cut = {box.strided for box in spec.boxes if box.part == "tail"}
    rows = zip("mn", spec.tile, spec.cluster, strict=True)
    return sum(spec.tile), {extent: tile * blocks for extent, tile, blocks in rows if extent in cut}


def by_problem(measurements: Iterable[Any]) -> dict[Any, dict[str, Any]]:
    """Measurements by problem and kernel; of a kernel measured again, the last."""
    times: dict[Any, dict[str, Any]] = defaultdict(dict)
    for m in measurements:
        times[m.problem][m.kernel] = m
    return times


def read_rows(measurements: Iterable[Any], gpu: Any) -> list[Rows]:
    """The kernels of each problem that trees are for. Times with copies of operands are none that they correct.

    Brief measurements were at other clocks: they are scaled so that none seems faster than the finalists, of which the
    slowest two may have been pinned.
    """
    from gemmill.library.config.names import parse_name
    from gemmill.profiler.baselines.baseline import BASELINES
    from gemmill.runtime.select.cost import model
    from gemmill.runtime.select.kernels.faults import needs_swap

    times = by_problem(
        m
        for m in measurements
        if m.us is not None and m.kernel not in BASELINES and m.problem.batching == "strided" and not copies(m.problem)
    )
    configs = {name: parse_name(name) for name in {name for own in times.values() for name in own}}
    rows = []
    for problem, own in times.items():
        finalists = sorted(m.us for m in own.values() if m.stage == "final")
        brief = [m.us for m in own.values() if m.stage != "final"]
        if not finalists:
            continue
        scale = max(1.0, finalists[-3:][0] / min(brief)) if brief else 1.0
        parts = []
        for swap_ab in (False, True):
            members = [name for name in own if needs_swap(configs[name], problem) is swap_ab]
            if not members:
                continue
            columns = model.FeatureTable.of([configs[name] for name in members], swap_ab)
            figures, others = model.analytic(columns, problem, gpu)
            found = model.features(columns, figures, others, problem, gpu)
            us = [own[name].us * (1 if own[name].stage == "final" else scale) for name in members]
            keep = columns.fitted
            parts.append(
                (
                    np.array(members)[keep],
                    np.stack([found[name] for name in model.FEATURES], axis=1)[keep],
                    np.log(figures.us[keep]),
                    np.log(us)[keep],
                )
            )
        if not parts:  # the rules have changed, and none serves it any more
            continue
        kernels, asked, analytic, measured = (np.concatenate(column) for column in zip(*parts, strict=True))
        if kernels.size:
            best = math.log(finalists[0])
            rows.append(Rows(problem, tuple(kernels.tolist()), asked, analytic, measured, best, gpu.name))
    return rows


def copies(problem: Any) -> bool:
    """Whether operands are copied into aligned memory, as none is that is aligned as TMA needs it."""
    from gemmill.runtime.launch.tma import ALIGNMENT

    return any(align < ALIGNMENT for align in (problem.a_align, problem.b_align, problem.c_align))


def fastest(files: Iterable[Iterable[Any]]) -> dict[str, Any]:
    """The content of a file of what was measured: of each problem the fastest kernels of the shipped sets.

    They are of those measured at length in the last run that has the problem, in the order of their times over the
    fastest's, the geometric mean of that run and up to three before: one alone may be lucky. Where a run looked at a
    kernel and did not measure it at length, it counts as its slowest that it did. Runs of unknown time are passed over,
    those that did not look at the kernel that was the fastest before and found none as fast, and problems whose
    operands are copied first, where kernels of other sets may be faster.
    """
    from gemmill.library.config.names import kernel_name
    from gemmill.library.manifest.load import load_manifest, shipped_manifest
    from gemmill.profiler.sweep.shapes import load_shapes, shipped_suites
    from gemmill.runtime.select.measured import FORMATS, formats_of

    shipped = shipped_suites()
    suites = {(s.m, s.n, s.k) for suite in SUITES for s in load_shapes(shipped[suite]).shapes}
    names = {kernel_name(config) for own in SETS for config in load_manifest(shipped_manifest(own)).expand()}
    runs: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for measurements in files:
        counted = (m for m in measurements if m.us and m.time and m.kernel in names)
        for problem, own in by_problem(counted).items():
            slowest = max((m.us for m in own.values() if m.stage == "final"), default=None)
            if (problem.m, problem.n, problem.k) in suites and slowest and not copies(problem):
                brief = {name: m.model_copy(update={"us": slowest}) for name, m in own.items() if m.stage != "final"}
                runs[problem].append(own | brief)
    kernels: dict[str, int] = {}
    tables: dict[Any, dict[str, list[float]]] = defaultdict(dict)
    for problem in sorted(runs, key=lambda p: (str(formats_of(p)), p.m, p.n, p.k)):
        telling: list[tuple[dict[str, Any], Any]] = []
        for own in sorted(runs[problem], key=lambda own: max(m.time for m in own.values())):
            first = min((m for m in own.values() if m.stage == "final"), key=lambda m: m.us)
            if not telling or telling[-1][1].kernel in own or first.us <= telling[-1][1].us:
                telling.append((own, first))
        recent = telling[-RECENT:]
        last, first = recent[-1]
        times_over: dict[str, float] = {
            name: geometric_mean(own[name].us / best.us for own, best in recent if name in own)
            for name, m in last.items()
            if m.stage == "final"
        }
        least = first.us / min(times_over.values())
        row = tables[formats_of(problem)][problem.extents] = []
        for name in sorted(times_over, key=lambda name: times_over[name])[:FASTEST]:
            row += [kernels.setdefault(name, len(kernels)), float(f"{least * times_over[name]:.4g}")]
    return {
        "kernels": [*kernels],
        "tables": [
            {"formats": dict(zip(FORMATS, key, strict=True)), "problems": table} for key, table in tables.items()
        ],
    }


def fit(rows: Sequence[Rows], gpu: str) -> Any:
    """A CatBoost model of measured over analytic time, logarithms, for a GPU."""
    import catboost

    # A problem that many runs have weighs more than one that a single run has, but not as many times as much.
    runs = Counter((r.gpu, r.problem) for r in rows)
    shares = [(1 if r.gpu == gpu else KIN) / math.sqrt(runs[r.gpu, r.problem]) for r in rows]
    return catboost.CatBoostRegressor(**SETTINGS).fit(
        np.concatenate([r.features for r in rows]),
        np.concatenate([r.measured - r.analytic for r in rows]),
        sample_weight=np.concatenate([r.weights * share for r, share in zip(rows, shares, strict=True)]) * 1e3,
    )


def judge(rows: Sequence[Rows], gpu: str) -> dict[str, dict[str, Any]]:
    """Figures of a GPU's problems held out, by the type of A and over all."""
    extents = sorted({r.problem.k for r in rows})
    fold = {k: i % FOLDS for i, k in enumerate(extents)}
    shares: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for which in range(min(FOLDS, len(extents))):
        model = fit([r for r in rows if fold[r.problem.k] != which], gpu)
        for r in rows:
            if r.gpu == gpu and fold[r.problem.k] == which:
                found = *reached(r, r.analytic), *reached(r, r.analytic + model.predict(r.features))
                shares[r.problem.a_dtype].append(found)
                shares["all"].append(found)
    result = {}
    for types, own in shares.items():
        columns = np.array(own).T
        result[types] = {"problems": len(own), "analytic": _summary(*columns[:2]), "fitted": _summary(*columns[2:])}
    return result


def _summary(first: Any, of_eight: Any) -> list[float]:
    """Geometric mean and 5th percentile of the first kernel's share, geometric mean of that of the best of eight."""
    return [round(float(x), 4) for x in (geometric_mean(first), np.percentile(first, 5), geometric_mean(of_eight))]


def reached(rows: Rows, predicted: Any) -> tuple[float, float]:
    """Time of the best kernel over that of the one predicted best, and over the best of the first eight."""
    first: dict[str, float] = {}
    for i in np.argsort(predicted, kind="stable"):
        first.setdefault(rows.names[i], float(rows.measured[i]))
        if len(first) == 8:
            break
    best = min(rows.best, float(rows.measured.min()))
    return math.exp(best - next(iter(first.values()))), math.exp(best - min(first.values()))


def as_trees(model: Any) -> list[dict[str, Any]]:
    """The trees as the file has them: CatBoost's, whose last split decides the highest bit of a leaf's number."""
    from gemmill.runtime.select.cost.model import FEATURES

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(path, format="json")
        found = json.loads(path.read_text())
    scale, (bias,) = found["scale_and_bias"]
    result = []
    for tree in found["oblivious_trees"]:
        splits = [[FEATURES[x["float_feature_index"]], x["border"]] for x in reversed(tree["splits"] or ())]
        values = [round(bias / len(found["oblivious_trees"]) + scale * value, 5) for value in tree["leaf_values"]]
        splits = [[FEATURES[0], None]] * (DEPTH - len(splits)) + splits  # to the left, whatever is asked
        result.append({"splits": splits, "values": values + [0.0] * (2**DEPTH - len(values))})
    return result


def compact(text: str) -> str:
    """JSON with lists of numbers and pairs on one line each."""
    import re

    text = re.sub(r"\[\s+(\"[^\"]*\"),\s+([^\s\[\]]+)\s+\]", r"[\1, \2]", text)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
