"""Kernel names: every config has exactly one, and a name parses back to exactly that config.

``sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear``: parts between underscores, each
the tokens of some fields as the table of fields has them (``docs/names.md``). What is unusual is appended to its part:
block scales of an operand (``e4m3k16s1x128``), promotion (``f32p4``), batching (``m8grouped``), the decomposition of K
(``k4cluster``). An epilogue other than ``linear`` is spelled out, with capital letters for what is no letter or digit
(``xdEreluPaccQ``). Names are C identifiers.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from gemmill.library.config.domains import WORDS, are_valid, meant
from gemmill.library.config.edited import is_edited, plain_name
from gemmill.library.config.field import Value
from gemmill.library.config.field_table import NAME_PARTS, TABLE, Row
from gemmill.library.config.fields import config_of, made_of, parts_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import PATTERN, decode, encode
from gemmill.library.errors import ConfigError, ExpressionError, RenamedWarning

ABSENT = "none"
"""The part of a name of an operand that is not there."""
SPLIT_K = "splitk"
"""The part of a name of a split-K kernel, whose number of slices is an argument of the launch."""
_ONE_SLICE = f"k1{SPLIT_K}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a name: what stands between two underscores."""

    name: str
    rows: tuple[Row, ...]
    """The fields whose tokens it joins."""

    @property
    def group(self) -> str:
        """The member of a config that it tells of."""
        return self.rows[0].group

    @property
    def is_optional(self) -> bool:
        """Whether it may be :data:`ABSENT`."""
        return self.rows[0].absent is not None

    @property
    def pattern(self) -> str:
        """The regular expression of it, with a group for each field."""
        tokens = "".join(map(_pattern, self.rows, (*self.rows[1:], None)))
        return f"(?:{ABSENT}|{tokens})" if self.is_optional else tokens

    @property
    def example(self) -> str:
        """It in the name of a usual kernel."""
        usual = "".join(token_of(row, row.example) for row in self.rows)
        return f"{ABSENT} or {usual}" if self.is_optional else usual


def token_of(row: Row, value: Value) -> str:
    """The token of a field in a name."""
    if row.field.unsaid and value == row.default:
        return ""
    return row.field.token.format(encode(str(value)) if row.is_open else value)


def _pattern(row: Row, following: Row | None) -> str:
    """The regular expression of a token. Of the last word of a part it is loose: a wrong one is refused by name."""
    if row.is_open:
        value = PATTERN
    elif row.type is int:
        value = "[1-9][0-9]{0,17}"
    elif following is None:
        value = "[a-z][a-z0-9]*" if row.field.token.startswith("{") else "[a-z0-9]+"
    else:
        value = "|".join(map(str, row.values))
    token = row.field.token.format(f"({value})")
    return f"(?:{token})?" if row.field.unsaid else token


def _grouped() -> Iterator[Part]:
    for name in NAME_PARTS:
        yield Part(name, tuple(row for row in TABLE.values() if row.part == name))


PARTS: tuple[Part, ...] = tuple(_grouped())
"""The parts of a name, in their order."""
_PATTERNS = tuple(part.pattern for part in PARTS)


def kernel_name(config: GemmConfig) -> str:
    """The name of a config."""
    return "_".join([_part_text(place, read(config)) for place, read in _READ])


def _reader(part: Part) -> Callable[[GemmConfig], Any]:
    """What reads the fields of a part of a config; None where it is not there."""
    read = attrgetter(*(row.name for row in part.rows))
    is_there = attrgetter(part.group)
    return (lambda config: None if is_there(config) is None else read(config)) if part.is_optional else read


_READ = tuple((place, _reader(part)) for place, part in enumerate(PARTS))


@lru_cache(4096)
def _part_text(place: int, values: Any) -> str:
    """The part of a name at a place that says these values, or this one."""
    if values is None:
        return ABSENT
    rows = PARTS[place].rows
    text = "".join(map(token_of, rows, values if isinstance(values, tuple) else (values,)))
    return SPLIT_K if text == _ONE_SLICE else text


def is_former(name: str) -> bool:
    """Whether a kernel's name is one of the past: of a kernel which another has replaced, or with its slices of K."""
    return FORMER.search(name) is not None


def present_name(name: str, slices: int | None = None) -> tuple[str, int | None]:
    """A kernel's present name, and the slices of K that are requested, or else those that a former name says, with a
    warning; any other text as it is. ConfigError where the two differ."""
    if (found := FORMER.search(name)) is None:
        return name, slices
    former, number = found[0].strip("_"), int(found[1])
    if slices is not None and number not in (1, slices):
        raise ConfigError(
            f"slices is {slices}, but {name!r} is a former name that says {number}: leave slices out, or write "
            f"{SPLIT_K} in place of {former}"
        )
    warnings.warn(
        f"{former} kernels are replaced by {SPLIT_K} ones, whose slices of K are an argument of the launch (slices=); "
        "the former name is still read",
        RenamedWarning,
        stacklevel=3,
    )
    return f"{name[: found.start()]}_{SPLIT_K}_{name[found.end() :]}", number if number > 1 else slices


_FORMER_WORDS = (*TABLE["scheduler.decomposition"].field.former_words, SPLIT_K)
FORMER = re.compile(rf"_k([0-9]{{1,4}})({'|'.join(_FORMER_WORDS)})_")
"""What stood in names of split-K kernels in place of :data:`SPLIT_K`: the slices of K, and a word."""


@lru_cache(4096)
def parse_name(name: str) -> GemmConfig:
    """The config that has this name, or that replaces the one which a former name was of. The config may break a
    legality rule.

    Raises:
        ConfigError: the name is not one that :func:`kernel_name` makes; the message names the part.
    """
    if is_edited(name):
        raise ConfigError(
            f"{name!r} is an edited kernel, which {plain_name(name)} does not emit: only a registry has it that was "
            "given its page (Registry.add_source) or its pack (gemmill build FILE.cu -o FILE.pack)"
        )
    try:
        parts = _parts(present_name(name)[0])
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
    if len(parts) != len(PARTS):
        raise ConfigError(
            f"it has {len(parts)} parts between underscores; a name has {len(PARTS)}: "
            + ", ".join(part.name for part in PARTS)
        )
    return parts


def _pieces() -> Iterator[tuple[int, int]]:
    """Parts of a name that :func:`_piece` reads together: those that tell of one member of a config, and of formats, of
    which a set of kernels has few, all."""
    whole = next(place for place, part in enumerate(PARTS) if part.group == "d") + 1
    yield 0, whole
    for _, places in itertools.groupby(range(whole, len(PARTS)), key=lambda place: PARTS[place].group):
        first, *rest = places
        yield first, first + len(rest) + 1


_PIECES = tuple(_pieces())


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
        faults = []
        for e in error.errors():
            field = ".".join(map(str, e["loc"]))
            hint = meant(field, str(e["input"]), WORDS.get(field, ())).rstrip(";:?")
            faults.append(f"{field} is {e['input']!r}{hint}: {e['msg']}")
        raise ConfigError("; ".join(faults)) from None


def _fields(first: int, parts: Sequence[str]) -> dict[str, Value]:
    """The fields that parts of a name say, from the one at a place on."""
    fields: dict[str, Value] = {}
    for place, part in enumerate(parts, first):
        fields |= _fields_of_part(place, part)
    return fields


def _fields_of_part(place: int, text: str) -> dict[str, Value]:
    part = PARTS[place]
    match = re.fullmatch(_PATTERNS[place], _ONE_SLICE if text == SPLIT_K else text)
    if match is None or text == _ONE_SLICE:
        raise ConfigError(f"{text!r} is no {part.name}, which looks like {part.example}")
    if part.is_optional and text == ABSENT:
        return {row.name: row.absent for row in part.rows if row.absent is not None}
    return {row.name: _value(row, token, text) for row, token in zip(part.rows, match.groups(), strict=True)}


def _value(row: Row, token: str | None, part: str) -> Value:
    """The value that a token says, None for one that is left out."""
    if token is None:
        assert row.default is not None, f"{row.name} stands in each name"
        return row.default
    if row.field.unsaid and token == str(row.default):
        raise ConfigError(f"{part!r} spells out {token!r}, which names leave out")
    try:
        return decode(token) if row.is_open else row.type(token)
    except ExpressionError as error:
        raise ConfigError(f"its {row.name} {part!r}: {error}") from None
