"""Kernel names: every config has exactly one, and a name parses back to exactly that config.

``sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear`` reads: arch, A, B (dtype, major,
alignment), accumulator, C, D, tile, cluster, schedule, stages, raster and swizzle, splits of K, epilogue. What is
unusual is appended to its part: block scales of an operand (``e4m3k16s1x128``), promotion (``f32p4``), batching
(``m8grouped``), the decomposition of K (``k4split``). An epilogue other than ``linear`` is spelled out, with capital
letters for what is no letter or digit (``xdEreluPaccQ``). Names are C identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gemmill.library.config.domains import are_valid
from gemmill.library.config.fields import Value, config_of, parts_of
from gemmill.library.config.model import GemmConfig, InputOperand, OutputOperand, made_of
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.encoding import decode, encode
from gemmill.library.errors import ConfigError, ExpressionError

_INT = "([1-9][0-9]{0,17})"
_DTYPE = f"({'|'.join(DTYPES)})"
_AB = f"{_DTYPE}(k|mn|any){_INT}(?:s([0-9x]+z?))?"
_CD = f"{_DTYPE}(n|m|any){_INT}"

_PARTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("arch", "([a-z][a-z0-9]*)", ("arch",), "sm90a"),
    ("A", _AB, ("a.dtype", "a.major", "a.align", "a.scale"), "bf16k16"),
    ("B", _AB, ("b.dtype", "b.major", "b.align", "b.scale"), "bf16k16"),
    ("accumulator", f"{_DTYPE}(?:p{_INT})?", ("accumulator", "promote"), "f32"),
    ("C", f"(?:none|{_CD})", ("c.dtype", "c.major", "c.align"), "none or bf16n16"),
    ("D", _CD, ("d.dtype", "d.major", "d.align"), "bf16n16"),
    ("tile", f"{_INT}x{_INT}x{_INT}", ("tile.m", "tile.n", "tile.k"), "128x256x64"),
    ("cluster", f"{_INT}x{_INT}", ("cluster.m", "cluster.n"), "2x1"),
    ("schedule", "([a-z]+)", ("schedule",), "cooperative"),
    ("stages", f"s{_INT}", ("stages",), "s4"),
    (
        "scheduler",
        f"(m|n){_INT}([a-z]+)?",
        ("scheduler.raster", "scheduler.swizzle", "scheduler.batching"),
        "m8",
    ),
    ("splits", f"k{_INT}([a-z]+)?", ("scheduler.splits", "scheduler.decomposition"), "k1"),
    ("epilogue", "(linear|x[a-zA-Z0-9]+)", ("epilogue",), "linear"),
)
"""For each part of a name: what it is, its pattern, the fields in the pattern's groups, an example."""

_UNSAID: dict[str, Value] = {
    "promote": 0,
    "c.align": 0,
    "scheduler.batching": "strided",
    "scheduler.decomposition": "tiles",
}
"""Values of what a name leaves out; ``none`` for the other fields."""


def kernel_name(config: GemmConfig) -> str:
    """The name of a config."""
    tile, cluster, scheduler = config.tile, config.cluster, config.scheduler
    return "_".join(
        (
            config.arch,
            _operand(config.a),
            _operand(config.b),
            config.accumulator + (f"p{config.promote}" if config.promote else ""),
            _operand(config.c),
            _operand(config.d),
            f"{tile.m}x{tile.n}x{tile.k}",
            f"{cluster.m}x{cluster.n}",
            config.schedule,
            f"s{config.stages}",
            f"{scheduler.raster}{scheduler.swizzle}{_unless(scheduler.batching, 'strided')}",
            f"k{scheduler.splits}{_unless(scheduler.decomposition, 'tiles')}",
            encode(config.epilogue),
        )
    )


def parse_name(name: str) -> GemmConfig:
    """The config that has this name. The config may break a legality rule.

    Raises:
        ConfigError: the name is not one that :func:`kernel_name` makes; the message names the part.
    """
    try:
        parts = _parts(name)
        arguments: dict[str, Any] = {}
        for first, end in _PIECES:
            if (piece := _piece(first, *parts[first:end])) is None:
                return _refused(parts)
            arguments |= piece
        return GemmConfig(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{name!r} is not a kernel name: {error}") from None


def formats(name: str) -> tuple[Value, Value, Value]:
    """Arch and the types of A and B that a kernel name says, of which no more is read. ConfigError as for
    :func:`parse_name`."""
    try:
        return _formats(*_parts(name)[:3])
    except ConfigError as error:
        raise ConfigError(f"{name!r} is not a kernel name: {error}") from None


def _parts(name: str) -> list[str]:
    parts = name.split("_")
    if len(parts) != len(_PARTS):
        raise ConfigError(
            f"it has {len(parts)} parts between underscores; a name has {len(_PARTS)}: "
            + ", ".join(what for what, *_ in _PARTS)
        )
    return parts


_PIECES = ((0, 6), (6, 7), (7, 8), (8, 9), (9, 10), (10, 12), (12, 13))
"""Parts of a name that :func:`_piece` reads together: of those of formats, a set of kernels has few."""


@lru_cache(4096)
def _piece(first: int, *parts: str) -> dict[str, Any] | None:
    """Arguments of :class:`GemmConfig` that parts of a name say, from the one at a place on; None where they are not
    valid. Kernels have most pieces of their names in common."""
    fields = _fields(first, parts)
    return made_of(parts_of(fields)) if are_valid(fields) else None


@lru_cache(4096)
def _formats(arch: str, a: str, b: str) -> tuple[Value, Value, Value]:
    fields = _fields(0, (arch, a, b))
    return fields["arch"], fields["a.dtype"], fields["b.dtype"]


def _refused(parts: Sequence[str]) -> GemmConfig:
    """Has pydantic say what is wrong with the fields of a name."""
    from pydantic import ValidationError

    try:
        return config_of(_fields(0, parts))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))} is {e['input']!r}: {e['msg']}" for e in error.errors())
        raise ConfigError(faults) from None


def _fields(first: int, parts: Sequence[str]) -> dict[str, Value]:
    """The fields that parts of a name say, from the one at a place on."""
    fields: dict[str, Value] = {}
    for place, part in enumerate(parts, first):
        fields |= _fields_of_part(place, part)
    return fields


def _fields_of_part(place: int, part: str) -> dict[str, Value]:
    what, pattern, names, example = _PARTS[place]
    match = re.fullmatch(pattern, part)
    if match is None:
        raise ConfigError(f"{part!r} is no {what}, which looks like {example}")
    if names == ("epilogue",):
        try:
            return {"epilogue": decode(part)}
        except ExpressionError as error:
            raise ConfigError(f"its epilogue {part!r}: {error}") from None
    said = dict(zip(names, match.groups(), strict=True))
    for field, text in said.items():
        if text is not None and text == _UNSAID.get(field):
            raise ConfigError(f"{part!r} spells out {text!r}, which names leave out")
    return {
        field: _UNSAID.get(field, "none") if text is None else int(text) if text.isdecimal() else text
        for field, text in said.items()
    }


def _operand(operand: InputOperand | OutputOperand | None) -> str:
    if operand is None:
        return "none"
    scale = f"s{operand.scale}" if isinstance(operand, InputOperand) and operand.scale != "none" else ""
    return f"{operand.dtype}{operand.major}{operand.align}{scale}"


def _unless(word: str, usual: str) -> str:
    return "" if word == usual else word
