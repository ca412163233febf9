"""The units of a sweep: the problems of all shapes, each with the kernels that solve it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from gemmill.library.arithmetic import Arithmetic
from gemmill.library.bits import kernels_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.decompositions.sliced_kernel import SLICES, SlicedKernel, in_each_number
from gemmill.library.decompositions.workspace_layout import PARTIAL_BYTES
from gemmill.library.epilogues.parse import LINEAR, has_transpose, parse, spelling
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.input.problem_words import aligns as packed_aligns
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.profiler.measure.messages import Unit
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.runtime.select.cost.energy import HELD, power_us
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.kernels.variations import with_epilogue
from gemmill.runtime.select.selector import Selector

MAX_PARTIAL_BYTES = 1 << 30
"""Maximum size of partial sums; above it, moving them takes longer than the largest products."""
TRANSPOSED_ROWS = 1024
"""Problems with at most this number of rows are also measured transposed, since they may fit the tile's columns better
than its rows."""


def problem_of(config: GemmConfig, shape: Shape) -> GemmProblem:
    """The problem that a kernel solves on packed operands of a shape; K-major and n-major if it supports any majorness.

    For kernels with a narrow A, the shape describes the transposed call, whose narrow operand (weights) is B. The
    number of groups and the expected rows of masked groups are those of the shape.
    """
    a, b, c, d, keywords = config.a, config.b, config.c, config.d, dict(shape.keywords)
    m, n = (shape.n, shape.m) if upconverts_a(a.dtype, b.dtype) else (shape.m, shape.n)
    fields = {
        "m": m,
        "n": n,
        "k": shape.k,
        "batch": keywords.get("groups", shape.batch),
        "a_dtype": a.dtype,
        "a_major": "k" if a.major == "any" else a.major,
        "b_dtype": b.dtype,
        "b_major": "k" if b.major == "any" else b.major,
        "accumulator": config.accumulator,
        "c_dtype": c.dtype if c else None,
        "c_major": ("n" if c.major == "any" else c.major) if c else None,
        "d_dtype": d.dtype,
        "d_major": "n" if d.major == "any" else d.major,
        "a_scale": a.scale,
        "b_scale": b.scale,
        "promote": config.promote,
        "batching": config.scheduler.batching,
        "rows": config.scheduler.rows,
        "symmetry": config.scheduler.symmetry,
        "epilogue": config.epilogue,
        "expected_rows": keywords.get("expected_rows"),
    }
    return GemmProblem.unchecked(
        **fields, **packed_aligns(fields)
    )  # the fields of a config are valid; checking them again for thousands of configs is slow


_SWAPPED = {"a": "b", "b": "a"}
_MEANS = {"acc": "accumulator", "a": "a_dtype", "b": "b_dtype", "c": "c_dtype", "d": "d_dtype"}


def _formats_of(shape: Shape) -> dict[str, Any]:
    """The formats and alignments that a shape specifies, as fields of the problem that a kernel solves.

    Without groups in the shape, the problem has none. ValueError if the narrow operand cannot be transposed.
    """
    if not shape.keywords:
        return {"batching": "strided", "symmetry": "general"}
    problem = shape.problem
    formats = problem.with_narrow_a
    swapped = formats is not problem
    if upconverts_a(formats.b_dtype, formats.a_dtype):
        formats, swapped = formats.transposed, True
    keywords = [word for word, _ in shape.keywords if word not in ("groups", "promote")]
    named = dict.fromkeys(_MEANS.get(word, word) for word in keywords)
    fields = {"batching": None, "rows": None, "symmetry": None, **named}
    names = [_SWAPPED[name[0]] + name[1:] if swapped and name[:2] in ("a_", "b_") else name for name in fields]
    return {name: getattr(formats, name) for name in names}


def _aligns(formats: Mapping[str, Any]) -> dict[str, int]:
    """The alignments among the formats of a shape."""
    return {name: value for name, value in formats.items() if name.endswith("_align")}


def _problems(configs: Iterable[GemmConfig], shape: Shape) -> Iterator[tuple[GemmConfig, GemmProblem]]:
    """The kernels that match the formats of a shape, each with its problem; for few rows, also the kernels that only
    solve the transposed problem."""
    try:
        formats = _formats_of(shape)
    except ValueError:
        return
    aligns = _aligns(formats)

    def matches(problem: GemmProblem) -> bool:
        return all(getattr(problem, name) == value for name, value in formats.items())

    for config in configs:
        problem = problem_of(config, shape).but(**aligns) if aligns else problem_of(config, shape)
        if matches(problem):
            if not aligns or needs_swap(config, problem) is not None:
                yield config, problem
        elif shape.keywords and (swapped := _swapped(config, shape, aligns)) and matches(swapped):
            yield config, swapped


def _swapped(config: GemmConfig, shape: Shape, aligns: Mapping[str, int]) -> GemmProblem | None:
    """The problem of a shape with few rows, if the kernel solves only its transpose; else None."""
    if shape.m > TRANSPOSED_ROWS:
        return None
    turned = problem_of(config, replace(shape, m=shape.n, n=shape.m))
    swapped = turned.transposed.but(**aligns) if turned.can_transpose else None
    return swapped if swapped and needs_swap(config, swapped) else None


def refuse_nested(problem: GemmProblem) -> None:
    """Raise UnsupportedProblemError for a nested batch, since a problem does not contain the strides of operands."""
    if problem.batching == "nested":
        raise UnsupportedProblemError(
            f"{problem}: cannot make operands for a nested batch, whose strides are known only in a call; measure "
            f"batch={problem.batch} with one stride, which uses the same kernels, or time gemmill.plan on your tensors"
        )


def is_plain(config: GemmConfig) -> bool:
    """Whether a kernel has a strided batch, no epilogue expression, and computes all of D."""
    scheduler = config.scheduler
    return (scheduler.batching, scheduler.symmetry, config.epilogue) == ("strided", "general", LINEAR)


def units(configs: Iterable[GemmConfig], shapes: Iterable[Shape], varies: bool = False) -> list[Unit]:
    """The units to measure: the kernels of each shape, grouped by the problem that they solve, in the order of the
    configs.

    Kernels for groups or pointer arrays are used only for shapes with groups or pointer arrays. With ``varies``, a
    kernel without an epilogue expression is also used with the expression of the shape, as in a registry. Split-K
    kernels are measured with each number of slices of the selector. For few rows, the kernels that only solve the
    transposed problem (:attr:`GemmProblem.transposed`) come last.
    """
    by_types = _by_types(configs)
    groups: dict[tuple[GemmProblem, str], list[GemmConfig]] = {}
    for shape in shapes:
        offered = _offered(by_types, shape, varies)
        problems = dict(_problems(offered, shape))
        for config, problem in problems.items():
            groups.setdefault((problem, shape.sizes), []).append(config)
        aligns = _aligns(_formats_of(shape)) if problems else {}
        for config in offered if problems and shape.m <= TRANSPOSED_ROWS else ():
            swapped = _swapped(config, shape, aligns)
            if swapped and problems.get(config) != swapped and (members := groups.get((swapped, shape.sizes))):
                members.append(config)
    return [
        Unit(problem, tuple(k for config in members for k in in_each_number(kernel_name(config), config)), sizes=sizes)
        for (problem, sizes), members in groups.items()
    ]


def unserved(configs: Iterable[GemmConfig], shapes: Iterable[Shape], varies: bool = False) -> list[Shape]:
    """The shapes whose formats no kernel supports; ``varies`` is as for :func:`units`."""
    by_types = _by_types(configs)
    return [shape for shape in shapes if next(_problems(_offered(by_types, shape, varies), shape), None) is None]


_ByTypes = Mapping[frozenset[str], Sequence[GemmConfig]]
"""Kernels by the types of A and B; all of them by no type."""


def _by_types(configs: Iterable[GemmConfig]) -> _ByTypes:
    groups: dict[frozenset[str], list[GemmConfig]] = {frozenset(): []}
    for config in configs:
        groups[frozenset()].append(config)
        groups.setdefault(frozenset((config.a.dtype, config.b.dtype)), []).append(config)
    return groups


def _offered(by_types: _ByTypes, shape: Shape, varies: bool) -> list[GemmConfig]:
    """The kernels for the types of a shape: as declared and, if the shape has an epilogue expression, the linear ones
    with this expression; for few rows, also with the expression of the transposed problem."""
    offered: dict[GemmConfig, None] = {}
    with suppress(ValueError):  # no kernel supports a problem that has no transpose
        formats = _formats_of(shape)
        types = frozenset(formats[name] for name in ("a_dtype", "b_dtype") if name in formats)
        configs = by_types.get(types if {"a_dtype", "b_dtype"} <= formats.keys() else frozenset(), ())
        offered |= dict.fromkeys(configs)
        text = formats.get("epilogue", LINEAR) if varies else LINEAR
        if text != LINEAR:
            texts = {text: None}
            if shape.m <= TRANSPOSED_ROWS and has_transpose(text):
                texts[spelling(transposed(parse(text)))] = None
            offered |= {varied: None for text in texts for config in configs if (varied := _varied(config, text))}
    return [*offered]


@lru_cache(1 << 16)
def _varied(config: GemmConfig, text: str) -> GemmConfig | None:
    """A linear kernel with an expression; None if the rules forbid it, or the kernel has another expression."""
    return with_epilogue(config, text) if config.epilogue == LINEAR else None


def with_arithmetic(unit: Unit, arithmetic: Arithmetic | None) -> Unit:
    """The unit with only the kernels and slices of an arithmetic; None: of any."""
    if arithmetic is None:
        return unit
    names = dict.fromkeys(kernel.name for kernel in unit.kernels)
    kernels = tuple(kernel for name in names for kernel in kernels_of(name, parse_name(name), arithmetic))
    return replace(unit, kernels=kernels, arithmetic=arithmetic)


def likely_first(unit: Unit, selector: Selector, besides: Iterable[SlicedKernel] = ()) -> Unit:
    """The unit with its kernels sorted as the selector ranks them.

    The pinned kernels come first: the selector's choice and those in ``besides``, even if the unit lacks them, for
    example transposed kernels for many rows. Kernels that the selector does not rank come last.
    """
    likely = _ranked(unit, selector, len(SLICES) * len(selector.configs))
    pinned = tuple(dict.fromkeys((*likely[:1], *besides)))
    places = {kernel: place for place, kernel in enumerate(dict.fromkeys((*pinned, *likely)))}
    kernels = dict.fromkeys((*unit.kernels, *pinned))
    ranked = sorted(kernels, key=lambda kernel: places.get(kernel, len(places)))
    return replace(unit, kernels=tuple(ranked), pinned=pinned)


def likely_alone(unit: Unit, selector: Selector, count: int) -> Unit:
    """The unit with only the ``count`` kernels that the selector ranks first, even if the unit lacks them; without
    kernels if none supports the problem."""
    return replace(unit, kernels=tuple(_ranked(unit, selector, count)))


def _ranked(unit: Unit, selector: Selector, count: int) -> list[SlicedKernel]:
    """The ``count`` kernels that the selector ranks first for a burst; none if no kernel supports the problem."""
    try:
        candidates = selector.candidates(unit.problem, count, arithmetic=unit.arithmetic)
        return [candidate.kernel for candidate in candidates]
    except UnsupportedProblemError:
        return []


def power_binds(problem: GemmProblem, selector: Selector) -> bool:
    """Whether the model predicts that the power limit throttles a long run of a problem."""
    times = selector.times(problem)
    return bool(times) and power_us(problem, selector.gpu) > HELD * min(times.values())


def too_large(kernel: SlicedKernel, problem: GemmProblem) -> bool:
    """Whether the partial sums of a split-K kernel exceed :data:`MAX_PARTIAL_BYTES`."""
    partial_bytes = kernel.slices * problem.batch * problem.m * problem.n * PARTIAL_BYTES
    return kernel.slices > 1 and partial_bytes > MAX_PARTIAL_BYTES
