"""Group the problems of a report into those whose figures may be averaged: same GPU, similar formats, all timed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError
from gemmill.library.legality.rules import verdicts
from gemmill.profiler.analysis.figures import Figures, Run, formats
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.runtime.select import gpus
from gemmill.runtime.select.choice import RUNNERS_UP
from gemmill.runtime.select.selector import Selector

CHOICES = 1 + RUNNERS_UP
"""Number of kernels that a selector returns for a problem, which is the maximum k of the regret curve."""


class Choices:
    """The choices of the selector's model among the measured kernels, without use of the measurements."""

    def __init__(self, found: Sequence[Figures]) -> None:
        configs: dict[str, dict[str, GemmConfig]] = defaultdict(dict)
        self._measured: dict[str, set[SlicedKernel]] = defaultdict(set)
        self.unknown: set[str] = set()
        """Names of measured kernels that the current version does not support."""
        for figures in found:
            for kernel in (*figures.finalists, *figures.screened):
                self._measured[figures.run.gpu].add(kernel)
                config = present_config(kernel.name)
                if config is None:
                    self.unknown.add(kernel.name)
                else:
                    configs[figures.run.gpu][kernel.name] = config
        self._selectors = {gpu: Selector(by_name, gpus.figures(gpu)) for gpu, by_name in configs.items()}
        self._known: dict[Run, tuple[SlicedKernel, ...]] = {}

    def of(self, figures: Figures) -> tuple[SlicedKernel, ...]:
        """Kernels for the problem of a run, the best first; none if no kernel supports it."""
        if figures.run not in self._known:
            selector = self._selectors.get(figures.run.gpu)
            times = selector.times(figures.run.problem) if selector else {}
            measured = self._measured[figures.run.gpu] & times.keys()
            self._known[figures.run] = tuple(sorted(measured, key=lambda kernel: (times[kernel], kernel))[:CHOICES])
        return self._known[figures.run]


@cache
def present_config(name: str) -> GemmConfig | None:
    """The config of a kernel name; None if the name is invalid, or the rules forbid the config."""
    try:
        config = parse_name(name)
    except ConfigError:
        return None
    return None if verdicts(config) else config


def baselines(found: Sequence[Figures]) -> list[str]:
    """Names of the baselines of all runs."""
    return [name for name in BASELINES if any(name in figures.baselines for figures in found)]


class Compared(NamedTuple):
    """Speeds relative to a baseline, over the same problems; ``selected`` and ``part`` are empty without finalists."""

    best: list[float]
    """Speeds of the fastest kernels."""
    selected: list[float]
    """Speeds of the selected kernels."""
    part: list[float]
    """Speeds of the selected kernels relative to the fastest kernels."""


class Group(NamedTuple):
    """Problems of one GPU and of similar formats, whose ratios may be averaged."""

    label: str
    found: list[Figures]

    def chosen(self, choices: Choices) -> list[Figures]:
        """The problems whose selected kernel was a finalist."""
        return [f for f in self.found if f.best and next(iter(choices.of(f)), None) in f.finalists]

    def compared(self, choices: Choices, baseline: str) -> Compared:
        """The fastest and the selected kernel relative to a baseline, over the problems that have all three; if there
        are none, over the problems that have the fastest kernel and the baseline."""
        with_selected = [f for f in self.chosen(choices) if baseline in f.baselines]
        figures = with_selected or [f for f in self.found if f.best and baseline in f.baselines]
        best = [ratio for f in figures if (ratio := f.over(f.best, baseline)) is not None]
        first = [(f, f.finalists[choices.of(f)[0]]) for f in with_selected]
        selected = [ratio for f, m in first if (ratio := f.over(m, baseline)) is not None]
        return Compared(best, selected, [f.reached([m.sliced]) or 0.0 for f, m in first])


def grouped(found: Sequence[Figures]) -> list[Group]:
    """Groups in the order of the runs. The number of groups of a grouped GEMM is ignored. Labels contain the GPU if
    there are several."""
    groups: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    for figures in found:
        like = re.sub(r"\b(grouped|masked|kgrouped|array)=\d+", r"\1", formats(figures.run.problem, figures.run.sizes))
        groups[figures.run.gpu, like].append(figures)
    several = len({gpu for gpu, _ in groups}) > 1
    return [Group(f"{gpu}, {like}" if several else like, members) for (gpu, like), members in groups.items()]
