"""The selector: which kernel a problem goes to, and why. It prefers measurements and otherwise asks the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from gemmill.library.arch import Gpu
from gemmill.library.config import GemmConfig
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.names import kernel_name
from gemmill.library.problem import GemmProblem
from gemmill.library.rules import legal, verdicts
from gemmill.runtime.decisions import Decision
from gemmill.runtime.model import BOUNDS, Columns, Estimate, estimate

RUNNERS_UP = 4
"""Most runners-up that a choice names."""
_CACHED = 4096
"""Problems whose choice is remembered."""

_FORMATS = (
    *("a_dtype", "a_major", "a_scale", "b_dtype", "b_major", "b_scale", "accumulator", "promote"),
    *("c_dtype", "c_major", "d_dtype", "d_major", "batching", "epilogue"),
)
_ALIGNS = ("a_align", "b_align", "c_align", "d_align")
Format = tuple[str | int | None, ...]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that a problem goes to."""

    name: str
    """Kernel name."""
    config: GemmConfig
    reason: str
    """Why it won, in a sentence."""
    predicted_us: float
    """Time to expect, in microseconds: measured or modelled, as ``source`` says."""
    runners_up: tuple[tuple[str, float], ...]
    """The next best kernels and their times in microseconds."""
    source: Literal["measured", "model"]
    """What the choice rests on."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Kernels with equal operand formats."""

    names: tuple[str, ...]
    configs: tuple[GemmConfig, ...]
    aligns: Integers
    """Alignments in bytes of A, B, C and D that each kernel asks for."""
    columns: Columns


class Selector:
    """Chooses among a fixed set of kernels on one GPU.

    Args:
        configs: the kernels by name.
        gpu: the GPU's figures.
        decisions: measured times; those of other GPUs and of kernels that are not here are passed over.
    """

    def __init__(self, configs: Mapping[str, GemmConfig], gpu: Gpu, decisions: Iterable[Decision] = ()) -> None:
        self.gpu = gpu
        self.configs = configs
        """The kernels by name."""
        members: dict[Format, list[str]] = defaultdict(list)
        for name in sorted(configs):
            if configs[name].target.capability == gpu.capability:
                members[_format(configs[name])].append(name)
        self._groups = {key: _group(names, configs) for key, names in members.items()}
        self._measured: dict[GemmProblem, dict[str, Decision]] = defaultdict(dict)
        for decision in decisions:
            if decision.kernel in configs and decision.gpu.startswith(gpu.name):
                self._measured[decision.problem][decision.kernel] = decision
        self.select = lru_cache(_CACHED)(self._select)
        """The kernel for a problem; see :meth:`_select`."""

    def _select(self, problem: GemmProblem) -> Choice:
        """The kernel for a problem.

        Raises:
            UnsupportedProblemError: no kernel serves it; names the constraint and the nearest kernel.
        """
        if measured := self._measured.get(problem):
            return self._by_measurement([*measured.values()])
        group = self._group_of(problem)
        offered = np.array([getattr(problem, field) for field in _ALIGNS])
        serving = np.flatnonzero((group.aligns <= offered).all(axis=1))
        if serving.size == 0:
            raise self._unsupported(problem)
        return self._by_model(group, serving, problem)

    def _group_of(self, problem: GemmProblem) -> _Group:
        """The kernels of a problem's formats: those declared with its epilogue, or else the linear ones with theirs
        replaced by it, as far as rules allow."""
        key = tuple(getattr(problem, field) for field in _FORMATS)
        if (group := self._groups.get(key)) is not None:
            return group
        plain = replace(problem, epilogue=LINEAR)
        linear = self._groups.get(tuple(getattr(plain, field) for field in _FORMATS))
        if linear is None or problem.epilogue == LINEAR:
            raise self._unsupported(plain)
        configs = [config.model_copy(update={"epilogue": problem.epilogue}) for config in linear.configs]
        own = {kernel_name(config): config for config in configs if legal(config)}
        if not own:
            refusal = verdicts(configs[0])[0]
            raise UnsupportedProblemError(f"no kernel serves {problem}: {len(configs)} have its formats, but {refusal}")
        group = self._groups[key] = _group(sorted(own), own)  # several threads at once would find the same
        return group

    def _by_measurement(self, decisions: Sequence[Decision]) -> Choice:
        decisions = [decision for decision in decisions if decision.final] or decisions
        times = sorted((decision.us, decision.kernel) for decision in decisions)
        (us, best), *others = times
        reason = f"fastest of {len(times)} kernels measured for this problem on {self.gpu.name}: {us:.1f} us"
        return Choice(
            best, self.configs[best], reason, us, tuple((name, us) for us, name in others[:RUNNERS_UP]), "measured"
        )

    def _by_model(self, group: _Group, serving: Integers, problem: GemmProblem) -> Choice:
        if min(problem.m, problem.n, problem.batch) == 0:
            best = int(serving[0])
            return Choice(group.names[best], group.configs[best], "there is nothing to compute", 0.0, (), "model")
        figures = estimate(group.columns, problem, self.gpu)
        # A stable sort: of equal predictions the first name wins, everywhere.
        order = serving[np.argsort(figures.us[serving], kind="stable")]
        best = int(order[0])
        return Choice(
            group.names[best],
            group.configs[best],
            _reason(group.configs[best], figures, best, problem, self.gpu),
            float(figures.us[best]),
            tuple((group.names[i], float(figures.us[i])) for i in order[1 : 1 + RUNNERS_UP]),
            "model",
        )

    def _unsupported(self, problem: GemmProblem) -> UnsupportedProblemError:
        """The error that names what the nearest kernel wants otherwise."""
        if not self._groups:
            target = ".".join(map(str, self.gpu.capability))
            return UnsupportedProblemError(
                f"none of {len(self.configs)} kernels is made for {self.gpu.name} (compute capability {target})"
            )
        wanting = {
            name: faults(config, problem)
            for group in self._groups.values()
            for name, config in zip(group.names, group.configs, strict=True)
        }
        nearest = min(wanting, key=lambda name: (len(wanting[name]), name))
        needs = " and ".join(wanting[nearest])
        if "alignment" in needs:
            needs += ": pad the contiguous extents, or copy the operands into aligned memory"
        return UnsupportedProblemError(
            f"no kernel serves {problem}: the nearest of {len(wanting)}, {nearest}, needs {needs}"
        )


def _format(config: GemmConfig) -> Format:
    """What a problem must have equal, in the order of ``_FORMATS``."""
    a, b, c, d = config.a, config.b, config.c, config.d
    return (
        a.dtype,
        a.major,
        a.scale,
        b.dtype,
        b.major,
        b.scale,
        config.accumulator,
        config.promote,
        c.dtype if c else None,
        c.major if c else None,
        d.dtype,
        d.major,
        config.scheduler.batching,
        config.epilogue,
    )


def _aligns(config: GemmConfig) -> tuple[int, ...]:
    """The alignments that a problem must at least have, in the order of ``_ALIGNS``."""
    return config.a.align, config.b.align, config.c.align if config.c else 0, config.d.align


def _group(names: list[str], configs: Mapping[str, GemmConfig]) -> _Group:
    members = tuple(configs[name] for name in names)
    return _Group(tuple(names), members, np.array([_aligns(config) for config in members]), Columns.of(members))


def faults(config: GemmConfig, problem: GemmProblem) -> list[str]:
    """What a kernel needs and a problem lacks, in words; empty where the kernel serves the problem."""
    found = []
    for field, wanted in zip(_FORMATS, _format(config), strict=True):
        if (given := getattr(problem, field)) != wanted:
            found.append(f"{_words(field)} {wanted or 'none'} (it has {given or 'none'})")
    for field, align in zip(_ALIGNS, _aligns(config), strict=True):
        if (given := getattr(problem, field)) < align:
            found.append(f"{_words(field)} of at least {align} bytes (it has {given})")
    return found


def _words(field: str) -> str:
    """``a_major`` as ``A's major``."""
    operand, _, property_ = field.partition("_")
    return f"{operand.upper()}'s {'alignment' if property_ == 'align' else property_}" if property_ else field


def _reason(config: GemmConfig, figures: Estimate, index: int, problem: GemmProblem, gpu: Gpu) -> str:
    us = float(figures.us[index])
    tiles, waves = int(figures.tiles[index]), int(figures.waves[index])
    return (
        f"{tiles} tile{'s'[: tiles > 1]} of {config.tile.m}x{config.tile.n} in clusters of "
        f"{config.cluster.m}x{config.cluster.n} take {waves} wave{'s'[: waves > 1]} on {gpu.sms} SMs "
        f"({figures.utilisation[index]:.0%} of them useful), bound by {BOUNDS[int(figures.bound[index])]}: "
        f"{us:.1f} us, {problem.flops / us / 1e6:.0f} TFLOP/s by the model"
    )
