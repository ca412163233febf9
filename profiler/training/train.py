"""Train the model of a GPU on the records of sweeps, and write it to a file in the format of the built-in models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmill.library.arch import gpu_name
from gemmill.library.errors import RecordError
from gemmill.library.files import publish
from gemmill.library.problem import Regime
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.training import judge, network, sustained, tables
from gemmill.profiler.training.rows import PAUSED, by_clock, merged, rows_of
from gemmill.runtime.select import gpus
from gemmill.runtime.select.model_file import VERSION, GpuModel, content_of, model_of, path_of

_FITTED_TO = "fitted to"
_HELD_OUT = "held out by K: problems, once for each run; selected / best, its 5th percentile, best of 8 / best"
Runs = Mapping[tuple[str, str], Sequence[Measurement]]
"""Measurements by the full name of a GPU and the run."""


def train(
    records: Iterable[Path], gpu: str | None, folder: Path, *, listener: Callable[[str], None] = lambda says: None
) -> str:
    """Fit and evaluate the model of a GPU, rank the fastest kernels, and write the result to a file in a folder.

    With records of sustained load, the energy term is fitted, too. If the records lack bursts or sustained load, the
    model keeps this part of the file in the folder or, without a file, of the built-in model. Records of other GPUs are
    also used for training, with less weight, but not for the evaluation and the tables.

    Args:
        records: files of measurements.
        gpu: GPU of the records, by its name; None: the only GPU of the records.
        folder: created if missing; the files of other GPUs in it are not changed.
        listener: called with lines of figures.

    Returns:
        The full name of the GPU.

    Raises:
        RecordError: a file cannot be read, or has no usable measurement of the GPU.
        DeviceError: there is no GPU of this name.
        OSError: the folder cannot be written.
    """
    runs = read_runs(records)
    gpu = _gpu_name(gpu, runs)
    bursts, sustained = _of_regime("burst", runs), _of_regime("sustained", runs)
    folder.mkdir(parents=True, exist_ok=True)
    previous = content_of(gpu, folder if path_of(gpu, folder).exists() else None) or {"energy": {}}
    content = {"version": VERSION, "gpu": gpu}
    if not sustained or any(
        m.stage == "final" for (name, _), measured in bursts.items() if name == gpu for m in measured
    ):
        content |= _of_bursts(bursts, gpu, listener)
    elif "network" in previous:
        content |= {key: previous[key] for key in (_FITTED_TO, _HELD_OUT, "network", "measured")}
    else:
        raise RecordError(f"{gpu}: all records have the regime sustained; a model also needs records of bursts")
    learnt = GpuModel.of(content | {"energy": {}})
    content["energy"] = _of_sustained(sustained, gpu, learnt, listener) if sustained else previous["energy"]
    text = json.dumps(content | {"measured": content.pop("measured")}, indent=1)
    publish(path_of(gpu, folder), [_compact(text).encode(), b"\n"])
    return gpu


def _of_regime(regime: Regime, runs: Runs) -> Runs:
    """The measurements of one regime."""
    return {key: measured for key, every in runs.items() if (measured := [m for m in every if m.regime == regime])}


def _of_bursts(runs: Runs, gpu: str, listener: Callable[[str], None]) -> dict[str, Any]:
    """Fit the network; returns it with its evaluation and the tables.

    If the GPU has records at full clock, those at lower clocks are used like records of other GPUs.
    """
    rates, own = gpus.figures(gpu), {run: measured for (name, run), measured in runs.items() if name == gpu}
    others = [row for (name, _), m in runs.items() if name != gpu for row in rows_of(m, gpus.figures(name))]
    if any(m.method >= PAUSED for measured in own.values() for m in measured):
        for run, measured in own.items():
            own[run], lower = by_clock(measured, rates)
            others += (replace(row, gpu=f"{gpu} at lower clocks") for row in rows_of(lower, rates))
    rows = [row for measured in own.values() for row in rows_of(measured, rates)]
    if not rows:
        raise RecordError(f"{gpu}: no finalists on problems that the model supports; profile more shapes")
    rows += others
    judged = judge.judge(rows, gpu)
    for types, figures in judged.items():
        means = (f"{key} {', '.join(f'{x:.4f}' for x in figures[key])}" for key in ("analytic", "fitted"))
        listener(f"{types}: {figures['problems']} problems, {'; '.join(means)}")
    return {
        _FITTED_TO: list(dict.fromkeys(run for _, run in runs)),
        _HELD_OUT: judged,
        "network": network.content(network.fit(merged(rows), gpu)),
        "measured": tables.fastest(own.values()),
    }


def _of_sustained(runs: Runs, gpu: str, learnt: GpuModel, listener: Callable[[str], None]) -> dict[str, Any]:
    """Coefficients of the energy term by type; RecordError if there are too few records of sustained load."""
    row = gpus.figures(gpu)
    others = ((measured, gpus.figures(name)) for (name, _), measured in runs.items() if name != gpu)
    by_type = sustained.energies(
        [(measured, row, learnt) for (name, _), measured in runs.items() if name == gpu],
        [(measured, other, model_of(other.name)) for measured, other in others],
    )
    for dtype, coefficients in by_type.items():
        listener(
            f"{dtype} under sustained load: {coefficients['problems']} problems, {coefficients[sustained.HELD_OUT]}"
        )
    if not by_type:
        raise RecordError(
            f"{gpu}: fewer than {sustained.FEWEST} problems were measured under sustained load, too few for the energy "
            "term; profile more shapes with --regime sustained, or remove these records"
        )
    return by_type


def read_runs(records: Iterable[Path]) -> Runs:
    """The measurements of files by GPU and run, in order. Measurements without a run use the name of the file."""
    runs: dict[tuple[str, str], list[Measurement]] = {}
    for path in records:
        for m in read_records(path):
            runs.setdefault((gpus.figures(m.gpu).name, m.run or path.name.partition(".")[0]), []).append(m)
    return runs


def _gpu_name(gpu: str | None, runs: Runs) -> str:
    """The full name of the GPU to train for."""
    names = list(dict.fromkeys(name for name, _ in runs))
    if not names:
        raise RecordError("the records have no measurements; run gemmill profile")
    listed = ", ".join(names)
    if gpu is None and len(names) == 1:
        return names[0]
    if gpu is None:
        raise RecordError(f"the records have several GPUs ({listed}); choose one with --gpu")
    if (name := gpu_name(gpu, names)) not in names:
        raise RecordError(f"the records have no measurements of {name}, only of {listed}; choose one of these")
    return name


def _compact(text: str) -> str:
    """JSON text with lists of numbers, and pairs, on one line each."""
    text = re.sub(r"\[\s+(\"[^\"]*\"),\s+([^\s\[\]]+)\s+\]", r"[\1, \2]", text)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()), text)
