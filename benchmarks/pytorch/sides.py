"""Time gemmill and PyTorch in turns, and write results line by line."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from benchmarks.pytorch.gpu import joules

import gemmill.torch

Side = Callable[[], AbstractContextManager[Any]]

SIDES: Mapping[str, Side] = {"torch": nullcontext, "ours": lambda: gemmill.torch.enabled()}
"""The context of each side: PyTorch alone, and gemmill enabled."""


class Lines:
    """Writes JSON Lines to a file and to standard output; the file is complete after each line.

    Args:
        path: file to append to; None: only standard output.
        seconds: time limit of the program, from now.
    """

    def __init__(self, path: Path | None, seconds: float) -> None:
        self._path, self._end = path, time.monotonic() + seconds

    def add(self, **row: Any) -> None:
        """Write a row."""
        line = json.dumps(row)
        print(line, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def head(self, **facts: Any) -> None:
        """Write a line with the GPU, versions and other facts."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        self.add(gpu=gpu, torch=str(torch.__version__), python=sys.version.split()[0], **facts)

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    def tried(self, measure: Callable[[], dict[str, Any]], needs: float = 0, **of: Any) -> bool:
        """Run a measurement and write its result, its error, or that the time left is too short.

        Args:
            measure: returns the members of the line.
            needs: minimum number of seconds left to start.
            of: further members of the line.

        Returns:
            Whether the measurement succeeded.
        """
        if self.left < needs:
            self.add(**of, skipped=f"{self.left:.0f} s left; {needs:.0f} s needed")
            return False
        start = time.monotonic()
        try:
            found = measure()
        except Exception as error:  # noqa: BLE001 - every error of a model is a result, and the program continues
            where = traceback.extract_tb(error.__traceback__)[-1]
            says = f"{type(error).__name__}: {error}"[:600]
            self.add(**of, error=says, at=f"{where.filename}:{where.lineno}", took=round(time.monotonic() - start, 1))
            return False
        self.add(**of, **found, took=round(time.monotonic() - start, 1))
        return True


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def spent(call: Callable[[], object], count: int) -> tuple[float, float]:
    """Milliseconds in wall time and joules of a call, from an idle GPU to an idle GPU."""
    synchronize()
    start, before = time.perf_counter(), joules()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - start) * 1000 / count, (joules() - before) / count


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, least: float = 30.0) -> dict[str, Any]:
    """Milliseconds and joules of a call of each side, and gemmill's divided by PyTorch's: medians and quartiles over
    rounds.

    Args:
        calls: a call for each side, which runs in the side's context.
        rounds: number of rounds; each side has a turn in a round, and the first side alternates.
        least: minimum time of a turn in milliseconds, which determines the number of calls.
    """
    counts, samples = {}, {name: [] for name in calls}  # type: dict[str, int], dict[str, list[tuple[float, float]]]
    for name, call in calls.items():
        with SIDES[name]():
            call()
            counts[name] = max(1, round(least / spent(call, 2)[0]))
    count = max(counts.values())
    for number in range(rounds):
        for name in sorted(calls, reverse=number % 2 == 1):
            with SIDES[name]():
                calls[name]()  # the first call in a context may be slower
                samples[name].append(spent(calls[name], count))
    ms, energy = ({name: [x[i] for x in samples[name]] for name in samples} for i in (0, 1))
    return {
        "ms": {name: figures(values) for name, values in ms.items()},
        "ratio": figures(ratios(ms)),
        "joules": {name: figures(values) for name, values in energy.items()},
        "joules_ratio": figures(ratios(energy)),
        "rounds": rounds,
        "calls": count,
    }


def ratios(values: Mapping[str, Sequence[float]]) -> list[float]:
    """gemmill's value divided by PyTorch's, for each round."""
    return [ours / theirs if theirs else 0.0 for ours, theirs in zip(values["ours"], values["torch"], strict=True)]


def figures(values: Sequence[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    if len(values) < 2:
        return [round(median(values), 5)] * 3
    low, middle, high = quantiles(values, method="inclusive")
    return [round(low, 5), round(middle, 5), round(high, 5)]
