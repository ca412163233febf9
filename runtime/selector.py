"""The selector: which kernel a problem goes to, and why. It prefers measurements and otherwise asks the model."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from gemmill.library.arch import Gpu
from gemmill.library.config import GemmConfig
from gemmill.library.epilogues.parse import LINEAR, serves, unstaged
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.fields import fields_of
from gemmill.library.footprint import auto_stages
from gemmill.library.names import kernel_name
from gemmill.library.problem import GemmProblem
from gemmill.library.rules import legal, verdicts
from gemmill.runtime.decisions import Decision
from gemmill.runtime.model import BOUNDS, Columns, Estimate, estimate

RUNNERS_UP = 4
"""Most runners-up that a choice names."""
TYPICAL_ROWS = (1, 16, 128, 1024, 8192)
"""Rows, M, that a batch-invariant choice is made for: from one token to a long prompt."""
_CACHED = 4096
"""Problems whose choice is remembered."""

_FORMATS = (
    *("a_dtype", "a_major", "a_scale", "b_dtype", "b_major", "b_scale", "accumulator", "promote"),
    *("c_dtype", "c_major", "d_dtype", "d_major", "batching", "epilogue"),
)
_ALIGNS = ("a_align", "b_align", "c_align", "d_align")
_SUMMED_IN_F16 = frozenset(("f16", "e4m3", "e5m2"))
"""Types of A and B whose sums tensor cores can keep in f16."""
Rows = Literal["m", "n"]
"""The extent of a problem that is the caller's M: ``n`` where the problem is the transpose of the call."""
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
    swapped: bool = False
    """Whether the kernel is to run the transposed problem, D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel that may be the best for a problem."""

    name: str
    """Kernel name."""
    swapped: bool
    """As :attr:`Choice.swapped`."""
    us: float
    """Microseconds to expect."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Kernels with equal operand formats."""

    names: tuple[str, ...]
    configs: tuple[GemmConfig, ...]
    aligns: Integers
    """Alignments in bytes of A, B, C and D that each kernel asks for."""
    columns: Columns

    def serving(self, problem: GemmProblem, sm_count: int | None) -> Integers:
        """Indices of the kernels whose alignments a problem meets, and which stay within some SMs."""
        offered = np.array([getattr(problem, field) for field in _ALIGNS])
        serves = (self.aligns <= offered).all(axis=1)
        if sm_count is not None:
            columns = self.columns
            serves &= (columns.cluster_m * columns.cluster_n * columns.cluster_k <= sm_count) & ~columns.split
        return np.flatnonzero(serves)


@dataclass(frozen=True, slots=True)
class _Offer:
    """The kernels of a group that serve a problem, as it is or transposed."""

    group: _Group
    serving: Integers
    problem: GemmProblem
    """As the kernels would see it."""
    swapped: bool


@dataclass(frozen=True, slots=True)
class _Rated:
    """One kernel of an offer, and what the model says of all of them."""

    us: float
    offer: _Offer
    figures: Estimate
    index: int

    @property
    def name(self) -> str:
        return self.offer.group.names[self.index]


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
        self._fused: dict[Format, _Group] = {}
        """Linear kernels with the epilogues of problems, as they are asked for."""
        self._measured: dict[GemmProblem, dict[str, Decision]] = defaultdict(dict)
        for decision in decisions:
            if decision.kernel in configs and decision.gpu.startswith(gpu.name):
                self._measured[decision.problem][decision.kernel] = decision
        self.select = lru_cache(_CACHED)(self._select)
        """The kernel for a problem; see :meth:`_select`."""
        self._ranked_for_all = lru_cache(_CACHED)(self._rank_for_all)

    def _select(self, problem: GemmProblem, sm_count: int | None = None, invariant_to: Rows | None = None) -> Choice:
        """The kernel for a problem, on at most ``sm_count`` SMs. Measured times are of all SMs, and only count there.

        ``invariant_to`` names the extent, the caller's M, that the kernel must not depend on; nor does it on the batch.

        Raises:
            UnsupportedProblemError: no kernel serves it; names the constraint and the nearest kernel.
        """
        sm_count = self._bound(sm_count)
        if sm_count is None and invariant_to is None and (measured := self._measured.get(problem)):
            return self._by_measurement([*measured.values()])
        offers = self._offered(problem, sm_count)
        if min(problem.m, problem.n, problem.batch) == 0:
            offer, index = offers[0], int(offers[0].serving[0])
            name, config = offer.group.names[index], offer.group.configs[index]
            return Choice(name, config, "there is nothing to compute", 0.0, (), "model", offer.swapped)
        if invariant_to is not None:
            return self._for_all(problem, offers, sm_count, invariant_to)
        return self._by_model(offers, self._gpu_of(sm_count))

    def candidates(self, problem: GemmProblem, count: int, sm_count: int | None = None) -> list[Candidate]:
        """The best kernels for a problem whose D is not empty, at most ``count``, the best first: those measured, then
        by the model.

        Raises:
            UnsupportedProblemError: no kernel serves it.
        """
        sm_count = self._bound(sm_count)
        found: dict[str, Candidate] = {}
        if sm_count is None:
            for decision in sorted(_comparable([*self._measured.get(problem, {}).values()]), key=lambda d: d.us):
                swapped = needs_swap(self.configs[decision.kernel], problem) is True
                found[decision.kernel] = Candidate(decision.kernel, swapped, decision.us)
        for rated in _ranked(self._offered(problem, sm_count), self._gpu_of(sm_count), count):
            found.setdefault(rated.name, Candidate(rated.name, rated.offer.swapped, rated.us))
        return [*found.values()][:count]

    def _bound(self, sm_count: int | None) -> int | None:
        """A number of SMs, or None where it is no bound."""
        return None if sm_count is None or sm_count >= self.gpu.sms else sm_count

    def _gpu_of(self, sm_count: int | None) -> Gpu:
        """The GPU, as if it had but so many SMs."""
        if sm_count is None:
            return self.gpu
        return replace(self.gpu, sms=sm_count, clusters_of_4=min(self.gpu.clusters_of_4, sm_count // 4))

    def _offered(self, problem: GemmProblem, sm_count: int | None) -> list[_Offer]:
        """Offers for a problem; UnsupportedProblemError where there are none."""
        offers = self._all_offers(problem, sm_count)
        if not offers:
            raise self._unsupported(problem)
        return offers

    def times(self, problem: GemmProblem) -> dict[str, float]:
        """Microseconds of the kernels that serve a problem: of those measured on it if there are any, or else what the
        model says of all; none where no kernel does."""
        if measured := self._measured.get(problem):
            return {decision.kernel: decision.us for decision in _comparable([*measured.values()])}
        found: dict[str, float] = {}
        for offer in self._all_offers(problem, None):
            us = estimate(offer.group.columns, offer.problem, self.gpu).us
            for i in offer.serving.tolist():
                name = offer.group.names[i]
                found[name] = min(float(us[i]), found.get(name, float("inf")))
        return found

    def _offers(self, problem: GemmProblem, sm_count: int | None, swapped: bool) -> Iterator[_Offer]:
        """Groups with kernels for a problem: those of its formats first, then those that take any majors."""
        for key in _served_by(problem):
            group = self._group_at(key, problem.epilogue)
            if group is not None and (serving := group.serving(problem, sm_count)).size:
                yield _Offer(group, serving, problem, swapped)

    def _offers_either_way(self, problem: GemmProblem, sm_count: int | None) -> list[_Offer]:
        """Offers for a problem, and for its transpose where that is the same."""
        offers = [*self._offers(problem, sm_count, swapped=False)]
        if problem.can_transpose:
            offers += self._offers(problem.transposed, sm_count, swapped=True)
        return offers

    def _all_offers(self, problem: GemmProblem, sm_count: int | None) -> list[_Offer]:
        """Offers of what sums as asked or, where nothing does, more precisely."""
        return self._offers_either_way(problem, sm_count) or self._more_precise(problem, sm_count)

    def _more_precise(self, problem: GemmProblem, sm_count: int | None) -> list[_Offer]:
        """Where nothing sums as asked: kernels that keep more of the sums. FMAs in f32 have nothing to promote."""
        offers = []
        if problem.accumulator == "f16" and {problem.a_dtype, problem.b_dtype} <= _SUMMED_IN_F16:
            offers += self._offers_either_way(replace(problem, accumulator="f32"), sm_count)
        if problem.promote:
            for offer in self._offers(replace(problem, promote=0), sm_count, swapped=False):
                exact = [i for i in offer.serving.tolist() if offer.group.configs[i].family == "simt"]
                if exact:
                    offers.append(replace(offer, serving=np.array(exact)))
        return offers

    def _group_at(self, key: Format, epilogue: str) -> _Group | None:
        """The kernels of a format: those declared with its epilogue, or else, for the epilogue of a problem, the linear
        ones with it in place of theirs, as far as rules allow."""
        group = self._groups.get(key)
        if group is not None or key[-1] != epilogue:
            return group
        if key not in self._fused and (linear := self._groups.get((*key[:-1], LINEAR))) is not None:
            configs = filter(None, (with_epilogue(config, epilogue) for config in linear.configs))
            if own := {kernel_name(config): config for config in configs}:
                self._fused[key] = _group(sorted(own), own)  # several threads at once would find the same
        return self._fused.get(key)

    def _by_measurement(self, decisions: Sequence[Decision]) -> Choice:
        times = sorted((decision.us, decision.kernel) for decision in _comparable(decisions))
        (us, best), *others = times
        config, problem = self.configs[best], decisions[0].problem
        swapped = needs_swap(config, problem) is True
        reason = f"fastest of {len(times)} kernels measured for this problem on {self.gpu.name}: {us:.1f} us"
        runners_up = tuple((name, us) for us, name in others[:RUNNERS_UP])
        return Choice(best, config, reason + in_words(swapped), us, runners_up, "measured", swapped)

    def _by_model(self, offers: Sequence[_Offer], gpu: Gpu) -> Choice:
        best, *others = _ranked(offers, gpu, 1 + RUNNERS_UP)
        return _choice(best, gpu, others)

    def _for_all(self, problem: GemmProblem, offers: Sequence[_Offer], sm_count: int | None, rows: Rows) -> Choice:
        """The kernel for problems that differ in M and batch alone, with its time for this one."""
        ranked = self._ranked_for_all(_with_rows(problem, rows, 1), sm_count, rows)
        gpu = self._gpu_of(sm_count)
        apart = {which for which, _ in ranked}
        figures = {which: estimate(offers[which].group.columns, offers[which].problem, gpu) for which in apart}
        rated = [_Rated(float(figures[which].us[i]), offers[which], figures[which], i) for which, i in ranked]
        why = (
            "batch-invariant: of the kernels in which one block sums all of K, the one with the least geometric mean "
            f"of times over M = {', '.join(map(str, TYPICAL_ROWS))}; here "
        )
        return _choice(rated[0], gpu, rated[1:], why)

    def _rank_for_all(self, alike: GemmProblem, sm_count: int | None, rows: Rows) -> tuple[tuple[int, int], ...]:
        """The best kernels whatever M and batch: which offer, and which of its kernels.

        In the order of the geometric mean of their times over :data:`TYPICAL_ROWS`. Kernels that share K between blocks
        stand back: stream-K shares it as M has it, and the workspaces of the others grow with M.
        """
        gpu = self._gpu_of(sm_count)
        means: list[npt.NDArray[np.float64]] = []
        for m in TYPICAL_ROWS:
            offers = self._offered(_with_rows(alike, rows, m), sm_count)  # the same but for their problem
            logs = [np.log(estimate(offer.group.columns, offer.problem, gpu).us) for offer in offers]
            means = [mean + log for mean, log in zip(means, logs, strict=True)] if means else logs
        ranked = [
            (float(means[which][i]), which, int(i))
            for which, offer in enumerate(offers)
            for i in offer.serving
            if sums_in_one_block(offer.group.configs[i])
        ]
        if not ranked:
            raise UnsupportedProblemError(
                f"no kernel serves {alike} whatever M: all {sum(offer.serving.size for offer in offers)} that would "
                "share K between blocks (docs/kernels.md); leave out batch_invariant"
            )
        best: dict[str, tuple[int, int]] = {}
        for _, which, i in sorted(ranked):
            best.setdefault(offers[which].group.names[i], (which, i))
        return tuple(best.values())[: 1 + RUNNERS_UP]

    def _unsupported(self, problem: GemmProblem) -> UnsupportedProblemError:
        """The error that names what the nearest kernel wants otherwise."""
        if not self._groups:
            target = ".".join(map(str, self.gpu.capability))
            return UnsupportedProblemError(
                f"none of {len(self.configs)} kernels is made for {self.gpu.name} (compute capability {target})"
            )
        plain = replace(problem, epilogue=LINEAR)
        wanting = {name: faults(config, plain) for name, config in self.configs.items()}
        nearest = min(wanting, key=lambda name: (len(wanting[name]), name))
        changed = self.configs[nearest].model_copy(update={"epilogue": problem.epilogue})
        if not wanting[nearest] and (refusals := verdicts(changed)):
            return UnsupportedProblemError(f"no kernel serves {problem}: {nearest} would, but {refusals[0]}")
        needs = " and ".join(wanting[nearest])
        if "alignment" in needs:
            needs += ": pad the contiguous extents, or copy the operands into aligned memory"
        return UnsupportedProblemError(
            f"no kernel serves {problem}: the nearest of {len(wanting)}, {nearest}, needs {needs}"
        )


def _ranked(offers: Sequence[_Offer], gpu: Gpu, count: int) -> list[_Rated]:
    """The fastest kernels by the model, each once."""
    figures = [estimate(offer.group.columns, offer.problem, gpu) for offer in offers]
    # Of equal predictions the first wins, everywhere: the problem as it is, exact formats, then names, in order.
    ranked = sorted(
        (float(figure.us[i]), which, int(i))
        for which, (offer, figure) in enumerate(zip(offers, figures, strict=True))
        for i in offer.serving[np.argsort(figure.us[offer.serving], kind="stable")[: 2 * count]]
    )
    found: dict[str, _Rated] = {}
    for us, which, i in ranked:
        rated = _Rated(us, offers[which], figures[which], i)
        found.setdefault(rated.name, rated)
    return [*found.values()][:count]


def _choice(best: _Rated, gpu: Gpu, others: Sequence[_Rated], why: str = "") -> Choice:
    """A choice by the model; ``why`` begins its reason."""
    offer, config = best.offer, best.offer.group.configs[best.index]
    reason = why + _reason(config, best.figures, best.index, offer.problem, gpu) + in_words(offer.swapped)
    runners_up = tuple((other.name, other.us) for other in others)
    return Choice(best.name, config, reason, best.us, runners_up, "model", offer.swapped)


def _with_rows(problem: GemmProblem, rows: Rows, m: int) -> GemmProblem:
    """One matrix of a problem, of so many of the caller's rows."""
    return replace(problem, batch=1, m=m) if rows == "m" else replace(problem, batch=1, n=m)


def sums_in_one_block(config: GemmConfig) -> bool:
    """Whether one block sums all of K of an element, so that the order depends on nothing but K."""
    return config.scheduler.decomposition == "tiles"


def _comparable(decisions: Sequence[Decision]) -> Sequence[Decision]:
    """Of measurements of one problem those at length if there are any: brief ones were at other clocks."""
    return [decision for decision in decisions if decision.final] or decisions


def with_epilogue(config: GemmConfig, epilogue: str) -> GemmConfig | None:
    """A linear kernel with an epilogue in place of its own, and with as many stages as then still fit; None where rules
    refuse it. Matrices that TMA cannot move for it are read and written at any strides."""
    for text in dict.fromkeys((epilogue, unstaged(epilogue))):
        changed = config.model_copy(update={"epilogue": text})
        if not legal(changed) and (stages := auto_stages(fields_of(changed))) < config.stages:
            changed = changed.model_copy(update={"stages": stages})
        if legal(changed):
            return changed
    return None


def _served_by(problem: GemmProblem) -> Iterator[Format]:
    """The formats of kernels that serve a problem: its own, and those that read an operand whatever its majorness."""
    choices = []
    for field in _FORMATS:
        value = getattr(problem, field)
        others = ("any",) if field.endswith("_major") else (unstaged(value),) if field == "epilogue" else ()
        choices.append(dict.fromkeys((value, *(others if value else ()))))
    return itertools.product(*choices)


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
        given = getattr(problem, field)
        if given != wanted and not (wanted == "any" and given) and not (field == "epilogue" and serves(wanted, given)):
            found.append(f"{_words(field)} {wanted or 'none'} (it has {given or 'none'})")
    for field, align in zip(_ALIGNS, _aligns(config), strict=True):
        if (given := getattr(problem, field)) < align:
            found.append(f"{_words(field)} of at least {align} bytes (it has {given})")
    return found


def needs_swap(config: GemmConfig, problem: GemmProblem) -> bool | None:
    """Whether a kernel serves a problem only transposed; None where it does not serve it at all."""
    if not faults(config, problem):
        return False
    return True if problem.can_transpose and not faults(config, problem.transposed) else None


def in_words(swapped: bool) -> str:
    """What a reason adds for a kernel that runs the transposed problem."""
    return "; it runs D^T = B^T A^T, with A and B swapped" if swapped else ""


def _words(field: str) -> str:
    """``a_major`` as ``A's major``."""
    operand, _, property_ = field.partition("_")
    return f"{operand.upper()}'s {'alignment' if property_ == 'align' else property_}" if property_ else field


def _reason(config: GemmConfig, figures: Estimate, index: int, problem: GemmProblem, gpu: Gpu) -> str:
    us = float(figures.us[index])
    tiles, waves = int(figures.tiles[index]), int(figures.waves[index])
    clusters = f"in clusters of {config.cluster.m}x{config.cluster.n}"
    if config.scheduler.decomposition == "cluster":
        clusters = f"in clusters of {config.scheduler.splits} blocks that share K"
    return (
        f"{tiles} tile{'s'[: tiles > 1]} of {config.tile.m}x{config.tile.n} {clusters} take "
        f"{waves} wave{'s'[: waves > 1]} on {gpu.sms} SMs ({figures.utilisation[index]:.0%} of them useful), bound by "
        f"{BOUNDS[int(figures.bound[index])]}: {us:.1f} us, {problem.flops / us / 1e6:.0f} TFLOP/s by the model"
    )
