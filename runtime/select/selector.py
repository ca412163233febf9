"""The selector: which kernel a problem goes to, and why. It prefers measurements and otherwise asks the model, or for
quick selection a decision tree that stands in for it.

Rules are imported where they are asked, so that a program whose problems its kernels serve as they are starts faster.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gemmill.library.arch import Gpu
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTYPES, DTypeName, with_alike
from gemmill.library.epilogues.parse import LINEAR, canonical, is_gated, serves, unstaged
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.legality.resources import TMA_ALIGN
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.runtime.select.cost.model import FeatureTable, estimate
from gemmill.runtime.select.cost.roofline import BOUNDS, Estimate
from gemmill.runtime.select.decision_tree import LARGEST_EXTENT, Tree, trees_of
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.select.measured import Measured, formats_of, measured

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Integers

RUNNERS_UP = 4
"""Most runners-up that a choice names."""
TYPICAL_ROWS = (1, 16, 128, 1024, 8192)
"""Rows, M, that a batch-invariant choice is made for: from one token to a long prompt."""
_CACHED = 4096
"""Problems whose choice is remembered."""

Rows = Literal["m", "n"]
"""The extent of a problem that is the caller's M: ``n`` where the problem is the transpose of the call."""
Format = tuple[str | int | None, ...]

_FORMATS = (
    *("a_dtype", "a_major", "a_scale", "b_dtype", "b_major", "b_scale", "accumulator", "promote"),
    *("c_dtype", "c_major", "d_dtype", "d_major", "batching", "epilogue"),
)
_A, _B = _FORMATS.index("a_dtype"), _FORMATS.index("b_dtype")
_OUTPUTS = slice(_FORMATS.index("c_dtype"), _FORMATS.index("d_major") + 1)
_EPILOGUE = _FORMATS.index("epilogue")
_formats: Callable[[GemmProblem], Format] = attrgetter(*_FORMATS)
"""The formats of a problem."""
_EXTENTS = ("m", "n", "k", "batch")
_ALIGNS = ("a_align", "b_align", "c_align", "d_align")
_PREFERRED: frozenset[FamilyName] = frozenset(("wgmma", "gemv"))
"""Families that are asked alone where all operands are aligned and one of them serves: the others are slower then."""
_SUMMED_IN_F16 = frozenset(("f16", "e4m3", "e5m2"))
"""Types of A and B whose sums tensor cores can keep in f16."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel that a problem goes to."""

    name: str
    """Kernel name."""
    config: GemmConfig
    reason: str
    """Why it won, in a sentence; and which operands are copied into aligned memory before it."""
    predicted_us: float
    """Time to expect, in microseconds: measured or modelled, as ``source`` says. NaN of a quick selection."""
    runners_up: tuple[tuple[str, float], ...]
    """The next best kernels and their times in microseconds; none of a quick selection."""
    source: Literal["measured", "model", "quick"]
    """What the choice rests on."""
    swap_ab: bool = False
    """Whether the kernel is to run the transposed problem, D^T = B^T A^T: see :attr:`GemmProblem.transposed`."""

    @property
    def swapped(self) -> bool:
        """The earlier name of :attr:`swap_ab`."""
        return _renamed(self)


class Candidate(NamedTuple):
    """A kernel that may be the best for a problem."""

    name: str
    """Kernel name."""
    swap_ab: bool
    """As :attr:`Choice.swap_ab`."""
    us: float
    """Microseconds to expect."""

    @property
    def swapped(self) -> bool:
        """The earlier name of :attr:`swap_ab`."""
        return _renamed(self)


def _renamed(found: Choice | Candidate) -> bool:
    warnings.warn(f"{type(found).__name__}.swapped is called swap_ab", DeprecationWarning, stacklevel=3)
    return found.swap_ab


class _Group(NamedTuple):
    """Kernels that serve the same problem formats, some of them the transposed problem: each is here once or twice."""

    names: tuple[str, ...]
    configs: tuple[GemmConfig, ...]
    aligns: Integers
    """Alignments in bytes of A, B, C and D that a problem must have for each kernel."""
    columns: FeatureTable

    @classmethod
    def of(cls, configs: Mapping[str, GemmConfig], swap_ab: bool = False) -> _Group:
        """Kernels by name, for problems as they are or transposed, where A and B change places."""
        order = [1, 0, 2, 3] if swap_ab else [0, 1, 2, 3]
        aligns = np.array([config.least_aligns() for config in configs.values()])[:, order]
        return cls(tuple(configs), tuple(configs.values()), aligns, FeatureTable.of([*configs.values()], swap_ab))

    @classmethod
    def joined(cls, groups: Sequence[_Group]) -> _Group:
        """The kernels of several groups, in order."""
        return cls(
            tuple(itertools.chain.from_iterable(group.names for group in groups)),
            tuple(itertools.chain.from_iterable(group.configs for group in groups)),
            np.concatenate([group.aligns for group in groups]),
            FeatureTable.joined([group.columns for group in groups]),
        )

    def serving(self, problem: GemmProblem, sm_count: int | None) -> Integers:
        """Indices of the kernels whose alignments a problem meets, and which stay within some SMs: copies do not."""
        if sm_count is None and _is_aligned(problem):  # no kernel wants more
            return np.arange(len(self.names))
        offered = (problem.a_align, problem.b_align, problem.c_align, problem.d_align)
        serves = (self.aligns <= offered).all(axis=1)
        if sm_count is not None:
            serves &= ~self.columns.realigned(problem).any(axis=0)
            serves &= (self.columns.tiling.ctas <= sm_count) & ~self.columns.has_second_kernel
        return np.flatnonzero(serves)

    def best(self, order: Iterable[int], count: int) -> list[int]:
        """The first few kernels, each once."""
        found: dict[str, int] = {}
        for i in order:
            found.setdefault(self.names[i], i)
        return [*found.values()][:count]


class _QuickChoices(NamedTuple):
    """The quick selections for problems of some formats."""

    tree: Tree
    choices: dict[int, Choice | None]
    """By the index of a kernel of the tree, as they are asked for; None for one that is not here."""
    gated: bool
    """Whether N must be even."""


class Selector:
    """Chooses among a fixed set of kernels on one GPU.

    Args:
        configs: the kernels by name.
        gpu: the GPU's figures.
        decisions: measured times; those of other GPUs and of kernels that are not here are passed over. Problems
            without any have those that ship (runtime/select/measured.py).
        varies: whether kernels of the set may also be taken with the epilogue of a problem, and with other types,
            which some kernel of it has, be it for other majors: C and D as asked, A and B in place of types alike.
            Whoever asks must be able to compile them.
    """

    def __init__(
        self,
        configs: Mapping[str, GemmConfig],
        gpu: Gpu,
        decisions: Iterable[Decision] = (),
        *,
        varies: bool = False,
    ) -> None:
        self.gpu = gpu
        self.configs = configs
        """The kernels by name."""
        members: dict[Format, list[str]] = defaultdict(list)
        for name in sorted(configs):
            if configs[name].target.capability == gpu.capability:
                members[_format(configs[name])].append(name)
        self._members = {key: {name: configs[name] for name in names} for key, names in members.items()}
        self._varies = varies
        self._types = {_types(key) for key in members} if varies else set()
        """Those that kernels may be taken with."""
        self._varied: dict[Format, Mapping[str, GemmConfig]] = {}
        """Kernels with the types and epilogues of problems, as they are asked for."""
        self._groups: dict[tuple[Format, bool, bool], _Group | None] = {}
        """Kernels for the formats of problems, as they are asked for; see :meth:`_groups_for`."""
        self._measured: dict[GemmProblem, dict[str, Decision]] = defaultdict(dict)
        for decision in decisions:
            if decision.kernel in configs and figures(decision.gpu).name == gpu.name:
                self._measured[decision.problem][decision.kernel] = decision
        self._quick_choices: dict[tuple[Any, ...], _QuickChoices | None] = {}
        """By all of a problem but its extents."""
        self.select = lru_cache(_CACHED)(self._select)
        """The kernel for a problem; see :meth:`_select`."""
        self._ranked_for_all = lru_cache(_CACHED)(self._rank_for_all)

    def _select(
        self,
        problem: GemmProblem,
        sm_count: int | None = None,
        invariant_to: Rows | None = None,
        quick: bool = False,
    ) -> Choice:
        """The kernel for a problem, on at most ``sm_count`` SMs. Measured times are of all SMs, and only count there.

        ``invariant_to`` names the extent, the caller's M, that the kernel must not depend on; nor does it on the batch.
        ``quick`` has a tree decide where there is one for a problem without either, in place of the model.

        Raises:
            UnsupportedProblemError: no kernel serves it; names the constraint and the nearest kernel.
        """
        sm_count = self._bound(sm_count)
        if sm_count is None and invariant_to is None:
            if times := self.measured_on(problem):
                return self._by_measurement(problem, times)
            if quick and (choice := self._choose_by_tree(problem)) is not None:
                return choice
        group, serving = self._serving(problem, sm_count)
        if min(problem.m, problem.n, problem.batch) == 0:
            name, config, swap_ab = (
                group.names[serving[0]],
                group.configs[serving[0]],
                group.columns.swap_ab[serving[0]],
            )
            return Choice(name, config, "there is nothing to compute", 0.0, (), "model", bool(swap_ab))
        if invariant_to is not None:
            return self._for_all(problem, group, sm_count, invariant_to)
        gpu = self._gpu_of(sm_count)
        figures = estimate(group.columns, problem, gpu, serving)
        return _choice(group, _fastest(group, serving, figures, 1 + RUNNERS_UP), figures, problem, gpu)

    def candidates(self, problem: GemmProblem, count: int, sm_count: int | None = None) -> list[Candidate]:
        """The best kernels for a problem whose D is not empty, at most ``count``, the best first: those measured, then
        by the model.

        Raises:
            UnsupportedProblemError: no kernel serves it.
        """
        sm_count = self._bound(sm_count)
        found: dict[str, Candidate] = {}
        if sm_count is None:
            for us, name in self.measured_on(problem):
                found[name] = Candidate(name, runs_transposed(self._config(name), problem), us)
        group, serving = self._serving(problem, sm_count)
        figures = estimate(group.columns, problem, self._gpu_of(sm_count), serving)
        for i in _fastest(group, serving, figures, count):
            name, swap_ab = group.names[i], bool(group.columns.swap_ab[i])
            found.setdefault(name, Candidate(name, swap_ab, float(figures.us[i])))
        return [*found.values()][:count]

    def measured_on(self, problem: GemmProblem) -> list[tuple[float, str]]:
        """Microseconds measured on a problem, and kernels, the fastest first: those given or, where there are none,
        those that ship, for its types or for types alike. The latter are of a few kernels each, and say nothing where
        the fastest of them is not here."""
        if self._measured and (own := self._measured.get(problem)):
            return sorted((decision.us, decision.kernel) for decision in _comparable([*own.values()]))
        if (tables := measured(self.gpu.name)) is None:
            return []
        if not (shipped := tables.times(problem)):
            return self._times_alike(tables, problem)
        if shipped[0][1] not in self.configs:
            return []
        return [(us, name) for us, name in shipped if name in self.configs]

    def _times_alike(self, tables: Measured, problem: GemmProblem) -> list[tuple[float, str]]:
        """What ships of the problem with types alike and a D as wide, of the same kernels with the types asked for."""
        others = _measured_alike(self.gpu.name, problem.a_dtype, problem.b_dtype, problem.d_dtype)
        if not others or _types(_formats(problem)) not in self._types:
            return []
        for a, b, d in others:
            other = replace(problem, a_dtype=a, b_dtype=b, d_dtype=d)
            shipped = tables.times(other)
            if not shipped or shipped[0][1] not in self.configs:
                continue
            found = []
            for us, name in shipped:
                if (config := self.configs.get(name)) is not None:
                    p = problem.transposed if runs_transposed(config, other) else problem
                    changed = with_types(config, p.a_dtype, p.b_dtype, p.c_dtype, p.c_major, p.d_dtype)
                    found += [(us, name) for name in _named([changed])]
            return found
        return []

    def _config(self, name: str) -> GemmConfig:
        """The kernel of a name, which may be none of those given."""
        return self.configs.get(name) or parse_name(name)

    def _bound(self, sm_count: int | None) -> int | None:
        """A number of SMs, or None where it is no bound."""
        if sm_count is not None and (type(sm_count) is not int or sm_count < 1):
            raise UnsupportedProblemError(f"sm_count is {sm_count!r}; it must be an integer of at least 1")
        return None if sm_count is None or sm_count >= self.gpu.sms else sm_count

    def _gpu_of(self, sm_count: int | None) -> Gpu:
        """The GPU, as if it had but so many SMs."""
        if sm_count is None:
            return self.gpu
        of_4, of_8 = min(self.gpu.clusters_of_4, sm_count // 4), min(self.gpu.clusters_of_8, sm_count // 8)
        return replace(self.gpu, sms=sm_count, clusters_of_4=of_4, clusters_of_8=of_8)

    def _serving(self, problem: GemmProblem, sm_count: int | None) -> tuple[_Group, Integers]:
        """Kernels for the formats of a problem, and which of them serve it; UnsupportedProblemError where none does."""
        if (found := self._found(problem, sm_count)) is None:
            raise self._unsupported(problem, sm_count)
        return found

    def _found(self, problem: GemmProblem, sm_count: int | None) -> tuple[_Group, Integers] | None:
        """The same, or None: of what sums as asked or, where nothing does, more precisely."""
        for extent in _EXTENTS:
            if not 0 <= (value := getattr(problem, extent)) <= MAX_EXTENT:
                raise UnsupportedProblemError(f"{extent} is {value}; it must be from 0 to {MAX_EXTENT:,}")
        if problem.n % 2 and is_gated(problem.epilogue):
            raise UnsupportedProblemError(f"n is {problem.n}; an epilogue of pairs of columns needs an even one")
        for group in self._groups_for(problem):
            if (serving := group.serving(problem, sm_count)).size:
                return group, serving
        return None

    def times(self, problem: GemmProblem) -> dict[str, float]:
        """Microseconds that the model says of the kernels that serve a problem; none where no kernel does."""
        found: dict[str, float] = {}
        if served := self._found(problem, None):
            group, serving = served
            us = estimate(group.columns, problem, self.gpu, serving).us
            for i in serving.tolist():
                found[group.names[i]] = min(float(us[i]), found.get(group.names[i], float("inf")))
        return found

    def _groups_for(self, problem: GemmProblem) -> Iterator[_Group]:
        """Kernels for problems of the same formats, group by group: the first that serves one is asked. Those that sum
        as asked, then those that keep more of the sums; of each, where all operands are aligned, those of
        :data:`_PREFERRED` before all."""
        formats = _formats(problem)
        families = (True, False) if _is_aligned(problem) else (False,)
        for precise, preferred in itertools.product((False, True), families):
            key = formats, precise, preferred
            if key not in self._groups:  # several threads at once would make the same
                _check_formats(problem)
                made = self._more_precise(problem, preferred) if precise else self._either_way(problem, preferred)
                self._groups[key] = _Group.joined(made) if made else None
            if (group := self._groups[key]) is not None:
                yield group

    def _either_way(self, problem: GemmProblem, preferred: bool) -> list[_Group]:
        """The kernels for a problem, and for its transpose where that is the same; of :data:`_PREFERRED` or of all
        families."""
        groups = [_Group.of(configs) for configs in self._members_for(problem, preferred)]
        if problem.can_transpose:
            groups += (_Group.of(configs, swap_ab=True) for configs in self._members_for(problem.transposed, preferred))
        return groups

    def _more_precise(self, problem: GemmProblem, preferred: bool) -> list[_Group]:
        """Kernels that keep more of the sums than is asked for. FMAs in f32 have nothing to promote."""
        groups = []
        if problem.accumulator == "f16" and {problem.a_dtype, problem.b_dtype} <= _SUMMED_IN_F16:
            groups += self._either_way(replace(problem, accumulator="f32"), preferred)
        if problem.promote:
            for configs in self._members_for(replace(problem, promote=0), preferred):
                if exact := {name: config for name, config in configs.items() if config.family == "simt"}:
                    groups.append(_Group.of(exact))
        return groups

    def _members_for(self, problem: GemmProblem, preferred: bool) -> Iterator[Mapping[str, GemmConfig]]:
        """Kernels for the formats of a problem, of :data:`_PREFERRED` or of all families: those of just these formats
        first, then those that take any majors."""
        for formats in _served_by(problem):
            members = self._members_of(formats, problem.epilogue)
            if preferred:
                members = {name: config for name, config in members.items() if config.family in _PREFERRED}
            if members:
                yield members

    def _members_of(self, formats: Format, epilogue: str) -> Mapping[str, GemmConfig]:
        """The kernels of some formats: for the epilogue of a problem those declared with it, or else, where kernels may
        vary, the linear ones with it in place of theirs, as far as rules allow."""
        declared = self._members.get(formats, {})
        if not self._varies or formats[_EPILOGUE] != epilogue or (declared and epilogue != LINEAR):
            return declared
        if formats not in self._varied:
            if epilogue == LINEAR:
                found = {**declared, **self._with_types_of(formats)} if _types(formats) in self._types else declared
            else:
                linear = self._members_of((*formats[:_EPILOGUE], LINEAR), LINEAR)
                found = _named(with_epilogue(config, epilogue) for config in linear.values())
            self._varied[formats] = {name: found[name] for name in sorted(found)}
        return self._varied[formats]

    def _with_types_of(self, formats: Format) -> Mapping[str, GemmConfig]:
        """The kernels without C for some majors, of those types that most of them have, with the types of some formats
        in place of theirs: any of D, of A and B their own or one alike."""
        a_dtype: Any = formats[_A]
        b_dtype: Any = formats[_B]
        c_dtype, c_major, d_dtype, d_major = formats[_OUTPUTS]
        behind = formats[_OUTPUTS.stop :]
        alike = (
            self._members.get(
                (a, *formats[_A + 1 : _B], b, *formats[_B + 1 : _OUTPUTS.start], None, None, d, d_major, *behind), {}
            )
            for a, b, d in itertools.product(with_alike(a_dtype), with_alike(b_dtype), DTYPES)
        )
        most = max(alike, key=len)
        if d_major == "any" or most is self._members.get(formats):
            return {}
        return _named(with_types(config, a_dtype, b_dtype, c_dtype, c_major, d_dtype) for config in most.values())

    def _choose_by_tree(self, problem: GemmProblem) -> Choice | None:
        """What a tree names; None where there is none for the formats of a problem, or for its extents, or where the
        kernel is not here."""
        m, n, k = problem.m, problem.n, problem.k
        if not (0 < m <= LARGEST_EXTENT and 0 < n <= LARGEST_EXTENT and 0 < k <= LARGEST_EXTENT):
            return None
        key = formats_of(problem)
        if (found := self._quick_choices.get(key)) is None and key not in self._quick_choices:
            found = self._quick_choices[key] = self._tree_for(problem)
        if found is None or (found.gated and n % 2):
            return None
        kernel = found.tree.kernel(m, n, k, self.gpu.sms)
        if kernel not in found.choices:
            found.choices[kernel] = self._named_by(found.tree, kernel, problem)
        return found.choices[kernel]

    def _tree_for(self, problem: GemmProblem) -> _QuickChoices | None:
        """The tree that was trained for the formats of a problem without its epilogue."""
        table = trees_of(self.gpu.name).get(formats_of(replace(problem, epilogue=LINEAR)))
        return None if table is None else _QuickChoices(Tree.of(table), {}, is_gated(problem.epilogue))

    def _named_by(self, tree: Tree, kernel: int, problem: GemmProblem) -> Choice | None:
        """The choice of a kernel of a tree, with the types and the epilogue of a problem; None where it is not here."""
        name, swap_ab = tree.kernels[kernel]
        if swap_ab and not problem.can_transpose:
            return None
        p = problem.transposed if swap_ab else problem
        config: GemmConfig | None = with_types(parse_name(name), p.a_dtype, p.b_dtype, p.c_dtype, p.c_major, p.d_dtype)
        if config is not None and p.epilogue != LINEAR:
            config = with_epilogue(config, p.epilogue)
        if config is None:
            return None
        own = kernel_name(config)
        if own not in self.configs and not (self._varies and name in self.configs):
            return None
        reason = f"the decision tree that stands in for the model of {self.gpu.name} names it"
        return Choice(own, config, reason + in_words(config, problem, swap_ab), nan, (), "quick", swap_ab)

    def _by_measurement(self, problem: GemmProblem, times: Sequence[tuple[float, str]]) -> Choice:
        (us, best), *others = times
        config = self._config(best)
        swap_ab = runs_transposed(config, problem)
        types = "" if best in self.configs else " with types alike"
        reason = f"fastest of {len(times)} kernels measured for this problem{types} on {self.gpu.name}: {us:.1f} us"
        runners_up = tuple((name, us) for us, name in others[:RUNNERS_UP])
        return Choice(best, config, reason + in_words(config, problem, swap_ab), us, runners_up, "measured", swap_ab)

    def _for_all(self, problem: GemmProblem, group: _Group, sm_count: int | None, rows: Rows) -> Choice:
        """The kernel for problems that differ in M and batch alone, with its time for this one."""
        ranked = self._ranked_for_all(_with_rows(problem, rows, 1), sm_count, rows)
        gpu = self._gpu_of(sm_count)
        why = (
            "batch-invariant: of the kernels in which one block sums all of K, the one with the least geometric mean "
            f"of times over M = {', '.join(map(str, TYPICAL_ROWS))}; here "
        )
        return _choice(group, ranked, estimate(group.columns, problem, gpu, np.array(ranked)), problem, gpu, why)

    def _rank_for_all(self, alike: GemmProblem, sm_count: int | None, rows: Rows) -> list[int]:
        """The best kernels whatever M and batch, as indices.

        In the order of the geometric mean of their times over :data:`TYPICAL_ROWS`. Kernels that share K between blocks
        stand back: stream-K shares it as M has it, and the workspaces of the others grow with M.
        """
        gpu = self._gpu_of(sm_count)
        group, serving = self._serving(alike, sm_count)
        problems = [_with_rows(alike, rows, m) for m in TYPICAL_ROWS]
        means = np.sum([np.log(estimate(group.columns, problem, gpu, serving).us) for problem in problems], axis=0)
        ranked = sorted((float(means[i]), i) for i in serving.tolist() if sums_in_one_block(group.configs[i]))
        if not ranked:
            raise UnsupportedProblemError(
                f"no kernel serves {alike} whatever M: all {serving.size} that would share K between blocks "
                "(docs/kernels.md); leave out batch_invariant"
            )
        return group.best((i for _, i in ranked), 1 + RUNNERS_UP)

    def _unsupported(self, problem: GemmProblem, sm_count: int | None) -> UnsupportedProblemError:
        """The error that names what the nearest kernel wants otherwise."""
        from gemmill.library.legality.rules import verdicts

        if not self._members:
            target = ".".join(map(str, self.gpu.capability))
            return UnsupportedProblemError(
                f"none of {len(self.configs)} kernels is made for {self.gpu.name} (compute capability {target})"
            )
        if sm_count is not None and (found := self._found(problem, None)):
            group, serving = found
            return UnsupportedProblemError(
                f"no kernel serves {problem} on {sm_count} SMs: those that serve it are in clusters of at least "
                f"{group.columns.tiling.ctas[serving].min():.0f} blocks, or reduce in a second kernel or copy operands "
                "first, which keeps to no bound; raise sm_count or leave it out"
            )
        plain = replace(problem, epilogue=LINEAR)
        wanting = {name: faults(config, plain) for name, config in self.configs.items()}
        nearest = min(wanting, key=lambda name: (len(wanting[name]), name))
        if not wanting[nearest]:
            if refusals := verdicts(replace(self.configs[nearest], epilogue=problem.epilogue)):
                return UnsupportedProblemError(f"no kernel serves {problem}: {nearest} would, but {refusals[0]}")
            return UnsupportedProblemError(
                f"no kernel serves {problem}: {nearest} would with this epilogue in place of its own, but the kernels "
                "here run as they are; name a manifest besides the packs, or pack kernels with this epilogue"
            )
        needs = " and ".join(wanting[nearest])
        if "alignment" in needs:
            needs += ": pad the contiguous extents, or copy the operands into aligned memory"
        return UnsupportedProblemError(
            f"no kernel serves {problem}: the nearest of {len(wanting)}, {nearest}, needs {needs}"
        )


def _is_aligned(problem: GemmProblem) -> bool:
    """Whether all operands are aligned as TMA wants them."""
    return min(problem.a_align, problem.b_align, problem.c_align, problem.d_align) >= TMA_ALIGN


def _check_formats(problem: GemmProblem) -> None:
    """Refuse what no kernel could have, and what a kernel's name would spell otherwise."""
    for field in ("a_dtype", "b_dtype", "accumulator", "d_dtype"):
        if (value := getattr(problem, field)) not in DTYPES:
            raise UnsupportedProblemError(f"{field} is {value!r}; it must be one of {', '.join(DTYPES)}")
    if (problem.c_dtype is None) != (problem.c_major is None) or problem.c_dtype not in (None, *DTYPES):
        c = f"c_dtype is {problem.c_dtype!r} and c_major {problem.c_major!r}"
        raise UnsupportedProblemError(f"{c}; C has a type and a major, or there is none and both are None")
    if (text := canonical(problem.epilogue)) != problem.epilogue:
        raise UnsupportedProblemError(f"the epilogue is {problem.epilogue!r}; problems have its one spelling, {text!r}")


def _fastest(group: _Group, serving: Integers, figures: Estimate, count: int) -> list[int]:
    """The fastest of some kernels by the model, each once, as indices.

    Of equal predictions the first wins, everywhere: the problem as it is, exact formats, then names, in order.
    """
    return group.best(serving[np.argsort(figures.us[serving], kind="stable")[: 2 * count]].tolist(), count)


def _choice(
    group: _Group, ranked: Sequence[int], figures: Estimate, problem: GemmProblem, gpu: Gpu, why: str = ""
) -> Choice:
    """A choice by the model of the first of some kernels, the others its runners-up; ``why`` begins its reason."""
    best, *others = ranked
    config, swap_ab = group.configs[best], bool(group.columns.swap_ab[best])
    reason = why + _reason(config, figures, best, problem, gpu) + in_words(config, problem, swap_ab)
    runners_up = tuple((group.names[i], float(figures.us[i])) for i in others)
    return Choice(group.names[best], config, reason, float(figures.us[best]), runners_up, "model", swap_ab)


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
    """A linear kernel with an epilogue in place of its own; None where rules refuse it.

    Matrices that TMA cannot move for it are read and written at any strides. Stages are as :func:`_refitted` says.
    """
    for text in dict.fromkeys((epilogue, unstaged(epilogue))):
        if changed := _refitted(config, replace(config, epilogue=text)):
            return changed
    return None


def with_types(
    config: GemmConfig, a_dtype: Any, b_dtype: Any, c_dtype: Any, c_major: Any, d_dtype: Any
) -> GemmConfig | None:
    """A kernel with other types of A, B and D and another C, None for none; None where rules refuse it.

    C is aligned as D is. Stages are as :func:`_refitted` says.
    """
    a, b = replace(config.a, dtype=a_dtype), replace(config.b, dtype=b_dtype)
    d = replace(config.d, dtype=d_dtype)
    c = None if c_dtype is None else replace(d, dtype=c_dtype, major=c_major)
    return _refitted(config, replace(config, a=a, b=b, c=c, d=d))


def _refitted(config: GemmConfig, changed: GemmConfig) -> GemmConfig | None:
    """A changed kernel that has no more stages than ``stages: auto`` then gives, unless it was deeper than that before
    and still fits; None where rules refuse it."""
    from gemmill.library.legality.footprint import auto_stages
    from gemmill.library.legality.rules import legal

    if (stages := auto_stages(fields_of(changed))) < config.stages:
        deeper = config.stages > auto_stages(fields_of(config))
        if not (deeper and legal(changed)):
            changed = replace(changed, stages=stages)
    return changed if legal(changed) else None


def _named(configs: Iterable[GemmConfig | None]) -> dict[str, GemmConfig]:
    """Those that there are, by name."""
    return {kernel_name(config): config for config in configs if config is not None}


def _served_by(problem: GemmProblem) -> Iterator[Format]:
    """The formats of kernels that serve a problem: its own, and those that read an operand whatever its majorness."""
    choices = []
    for field in _FORMATS:
        value = getattr(problem, field)
        others = ("any",) if field.endswith("_major") else (unstaged(value),) if field == "epilogue" else ()
        choices.append(dict.fromkeys((value, *(others if value else ()))))
    return itertools.product(*choices)


@lru_cache
def _measured_alike(gpu: str, a: DTypeName, b: DTypeName, d: DTypeName) -> Sequence[tuple[Any, Any, Any]]:
    """Types like some of A and B, and of a D as wide, of which something ships that was measured on a GPU."""
    if (tables := measured(gpu)) is None or not {a, b, d} <= DTYPES.keys():
        return []
    outputs = [name for name, dtype in DTYPES.items() if dtype.bits == DTYPES[d].bits]
    alike = itertools.product(with_alike(a), with_alike(b), outputs)
    return [types for types in alike if types != (a, b, d) and types in tables.types]


def _types(formats: Format) -> Format:
    """Formats without majors."""
    return tuple(value for field, value in zip(_FORMATS, formats, strict=True) if not field.endswith("_major"))


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


def faults(config: GemmConfig, problem: GemmProblem) -> list[str]:
    """What a kernel needs and a problem lacks, in words; empty where the kernel serves the problem."""
    found = []
    for field, wanted in zip(_FORMATS, _format(config), strict=True):
        given = getattr(problem, field)
        if given != wanted and not (wanted == "any" and given) and not (field == "epilogue" and serves(wanted, given)):
            found.append(f"{_words(field)} {_value(wanted)} (it has {_value(given)})")
    for field, align in zip(_ALIGNS, config.least_aligns(), strict=True):
        if (given := getattr(problem, field)) < align:
            found.append(f"{_words(field)} of at least {align} bytes (it has {given})")
    return found


def needs_swap(config: GemmConfig, problem: GemmProblem) -> bool | None:
    """Whether a kernel serves a problem only transposed; None where it does not serve it at all."""
    if not faults(config, problem):
        return False
    return True if problem.can_transpose and not faults(config, problem.transposed) else None


def runs_transposed(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether a kernel that was measured on a problem, and keeps enough of the sums, ran its transpose: D's major says
    so, but of kernels for any."""
    major = config.d.major
    return needs_swap(config, problem) is True if major == "any" else major != problem.d_major


def realigned(config: GemmConfig, problem: GemmProblem) -> tuple[str, ...]:
    """Which of ``a``, ``b`` and ``c`` of a problem are copied into aligned memory before a kernel that runs it as it
    is; ``problem.transposed`` for one that runs the transpose."""
    operands = zip("abc", (config.a, config.b, config.c), strict=True)
    return tuple(x for x, operand in operands if operand and getattr(problem, f"{x}_align") < operand.align)


def in_words(config: GemmConfig, problem: GemmProblem, swap_ab: bool) -> str:
    """What a reason adds for a kernel that runs the transposed problem, or copies of operands."""
    words = "; it runs D^T = B^T A^T, with A and B swapped" if swap_ab else ""
    if _is_aligned(problem):
        return words
    names, problem = ("BAC", problem.transposed) if swap_ab else ("ABC", problem)
    if found := sorted(names["abc".index(x)] for x in realigned(config, problem)):
        words += f"; {' and '.join(found)}, which TMA cannot move, {'is' if len(found) == 1 else 'are'} copied first"
    return words


def _value(value: str | int | None) -> str:
    return "none" if value is None else str(value)


def _words(field: str) -> str:
    """``a_major`` as ``A's major``."""
    operand, _, property_ = field.partition("_")
    return f"{operand.upper()}'s {'alignment' if property_ == 'align' else property_}" if property_ else field


def _reason(config: GemmConfig, figures: Estimate, index: int, problem: GemmProblem, gpu: Gpu) -> str:
    us, scheduler = float(figures.us[index]), config.scheduler
    parts = scheduler.splits if scheduler.decomposition in ("split", "fused") else 1
    tiles, waves = int(figures.tiles[index]) // parts, int(figures.waves[index])
    clusters = f"in clusters of {config.cluster.m}x{config.cluster.n}"
    if scheduler.decomposition == "cluster":
        clusters = f"in clusters of {scheduler.splits} blocks that share K"
    elif parts > 1:
        clusters = f"in {parts} parts of K each, {clusters}"
    bound = BOUNDS[int(figures.bound[index])]
    if config.family == "simt" and bound == BOUNDS[0]:
        bound = "multiply-adds"
    return (
        f"{tiles} tile{'s'[: tiles > 1]} of {config.tile.m}x{config.tile.n} {clusters} take "
        f"{waves} wave{'s'[: waves > 1]} on {gpu.sms} SMs ({figures.utilisation[index]:.0%} of them useful), bound by "
        f"{bound}: {us:.1f} us, {problem.flops / us / 1e6:.0f} TFLOP/s by the model"
    )
