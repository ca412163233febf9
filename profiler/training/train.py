"""Training: records of sweeps become the model of a GPU, a folder of such files as ship for GPUs that were measured."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmill.library.arch import gpu_called
from gemmill.library.errors import RecordError
from gemmill.library.files import publish
from gemmill.library.problem import Regime
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.training import judge, residual, sustained, tables
from gemmill.profiler.training.decision_trees import decision_trees
from gemmill.profiler.training.rows import rows_of
from gemmill.runtime.select import decision_tree, gpus, measured
from gemmill.runtime.select.cost import residual as residual_model
from gemmill.runtime.select.cost import sustained as sustained_law
from gemmill.runtime.select.models import path_of

Runs = Mapping[tuple[str, str], Sequence[Measurement]]
"""Measurements by the name of a GPU's row and the run."""


def train(
    records: Iterable[Path], gpu: str | None, folder: Path, *, listener: Callable[[str], None] = lambda says: None
) -> str:
    """Fit and judge the residual model of a GPU, rank the fastest kernels, and write both to a folder; where there are
    records of sustained load its law as well, fitted beside the model of that folder or, without other records, of the
    one that ships.

    A model of a GPU with few records learns from those of its kin as well, which weigh less; it is judged, and the
    tables are made, by its own alone.

    Args:
        records: files of measurements.
        gpu: which GPU of the records, by its name or a part of it; None: that of the records.
        folder: made if it is not there; files of other GPUs in it are left alone.
        listener: told of the figures as they come.

    Returns:
        The name of the GPU's row.

    Raises:
        RecordError: a file cannot be read, nothing in them is of the GPU, or CatBoost is missing.
        OSError: the folder cannot be written.
    """
    every = read_runs(records)
    gpu = _row(gpu, every)
    runs = _of_regime("burst", every)
    folder.mkdir(parents=True, exist_ok=True)
    held = _of_regime("sustained", every)
    if not held or any(m.stage == "final" for (name, _), own in runs.items() if name == gpu for m in own):
        _train_bursts(runs, gpu, folder, listener)
    if held:
        _train_sustained(held, gpu, folder, listener)
    return gpu


def _of_regime(regime: Regime, runs: Runs) -> Runs:
    """The measurements of one regime."""
    return {key: own for key, every in runs.items() if (own := [m for m in every if m.regime == regime])}


def _train_sustained(runs: Runs, gpu: str, folder: Path, listener: Callable[[str], None]) -> None:
    """Fit the law of sustained load; RecordError where there are too few records of it."""
    row = gpus.figures(gpu)
    trained = replace(row, model=folder if path_of(gpu, "trees", folder).exists() else None)
    found = sustained.laws(
        [(own, trained) for (name, _), own in runs.items() if name == gpu],
        [(own, gpus.figures(name)) for (name, _), own in runs.items() if name != gpu],
    )
    for dtype, own in found["types"].items():
        listener(f"{dtype} under sustained load: {own['problems']} problems, {own['held out by K']}")
    if not found["types"]:
        raise RecordError(
            f"{gpu}: fewer than {sustained.FEWEST} problems were measured under sustained load, which a law needs; "
            "sweep more shapes with --regime sustained, or leave these records out"
        )
    _write(gpu, folder, "sustained", sustained_law.VERSION, found)


def _train_bursts(runs: Runs, gpu: str, folder: Path, listener: Callable[[str], None]) -> None:
    rows = [row for (name, _), own in runs.items() for row in rows_of(own, gpus.figures(name))]
    if not any(row.gpu == gpu for row in rows):
        raise RecordError(f"{gpu}: no kernel was timed at length on a problem that the model is for; sweep more shapes")
    judged = judge.judge(rows, gpu)
    for types, figures in judged.items():
        means = (f"{key} {', '.join(f'{x:.4f}' for x in figures[key])}" for key in ("analytic", "fitted"))
        listener(f"{types}: {figures['problems']} problems, {'; '.join(means)}")
    booster = residual.fit(rows, gpu)
    origin = {
        "fitted to": list(dict.fromkeys(run for _, run in runs)),
        "held out by K: problems, once for each run; selected / best, its 5th percentile, best of 8 / best": judged,
    }
    _write(gpu, folder, "trees", residual_model.VERSION, origin | residual.content(booster, rows))
    _write(gpu, folder, "measured", measured.VERSION, tables.fastest(own for (g, _), own in runs.items() if g == gpu))


def train_quick(gpu: str, folder: Path, problems: int, jobs: int, listener: Callable[[str], None]) -> None:
    """Train the decision trees of quick selection by the model in a folder, on so many problems of each formats."""
    model = hashlib.sha256(path_of(gpu, "trees", folder).read_bytes()).hexdigest()
    origin = {"version": decision_tree.VERSION, "gpu": gpu, "trained on": model, "problems": problems}
    content = origin | {"tables": decision_trees(gpu, folder, problems, jobs, listener)}
    text = json.dumps(content, separators=(",", ":")).replace('],["', '],\n["')
    publish(path_of(gpu, "quick", folder), [text.encode(), b"\n"])


def read_runs(records: Iterable[Path]) -> Runs:
    """The measurements of files by GPU and run, in order; a file whose measurements name no run is one."""
    runs: dict[tuple[str, str], list[Measurement]] = {}
    for path in records:
        for m in read_records(path):
            runs.setdefault((gpus.figures(m.gpu).name, m.run or path.name.partition(".")[0]), []).append(m)
    return runs


def _row(gpu: str | None, runs: Runs) -> str:
    """The name of the GPU to train for."""
    names = list(dict.fromkeys(name for name, _ in runs))
    if not names:
        raise RecordError("the records have no measurement: run gemmill profile")
    known = ", ".join(names)
    if gpu is None and len(names) == 1:
        return names[0]
    if gpu is None:
        raise RecordError(f"name one GPU with --gpu; the records are of: {known}")
    try:
        return gpu_called(gpu, names)
    except LookupError as error:
        raise RecordError(f"the records have no measurement of --gpu: {error.args[0]}") from None


def _write(gpu: str, folder: Path, what: str, version: int, content: dict[str, Any]) -> None:
    text = json.dumps({"version": version, "gpu": gpu} | content, indent=1)
    publish(path_of(gpu, what, folder), [_compact(text).encode(), b"\n"])


def _compact(text: str) -> str:
    """JSON with lists of numbers and pairs on one line each."""
    text = re.sub(r"\[\s+(\"[^\"]*\"),\s+([^\s\[\]]+)\s+\]", r"[\1, \2]", text)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)
