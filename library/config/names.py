"""Kernel names: every config has exactly one, and a name parses back to exactly that config.

``sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear`` consists of parts separated by
underscores. Each part holds the tokens of some fields (``docs/names.md``). Values other than the default are appended
to a part: block scales of an operand (``e4m3k16s1x128``), two-level accumulation (``f32p4``), batching (``m8grouped``),
the decomposition of K (``k4cluster``). An epilogue other than ``linear`` is spelled out, with capital letters in place
of punctuation (``xdEreluPaccQ``). Names are C identifiers.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from gemmill.library.config.domains import WORDS, are_valid, meant
from gemmill.library.config.edited import is_edited, plain_name
from gemmill.library.config.field import Value
from gemmill.library.config.field_table import NAME_PARTS, TABLE, Row
from gemmill.library.config.fields import config_of, made_of, parts_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.decompositions.decomposition import DECOMPOSITIONS
from gemmill.library.epilogues.parse import PATTERN, decode, encode
from gemmill.library.errors import ConfigError, ExpressionError, RenamedWarning

ABSENT = "none"
"""The part of a name for an absent C."""
SPLIT_K = "splitk"
"""The part of the name of a split-K kernel. The number of slices is an argument of the launch, not part of the name."""
_UNNUMBERED: dict[str, str] = {f"k1{word}": word for word, how in DECOMPOSITIONS.items() if how.has_slices}
"""The parts of the names of kernels for which the launch sets the number of slices, by what their fields spell."""
_NUMBERED = {word: text for text, word in _UNNUMBERED.items()}


class Part(NamedTuple):
    """A part of a name: the text between two underscores."""

    name: str
    rows: tuple[Row, ...]
    """The fields whose tokens it contains."""

    @property
    def group(self) -> str:
        """The member of a config that it describes."""
        return self.rows[0].group

    @property
    def is_optional(self) -> bool:
        """Whether it can be :data:`ABSENT`."""
        return self.rows[0].absent is not None

    @property
    def pattern(self) -> str:
        """Its regular expression, with a group for each field."""
        tokens = "".join(map(_pattern, self.rows, (*self.rows[1:], None)))
        return f"(?:{ABSENT}|{tokens})" if self.is_optional else tokens

    @property
    def example(self) -> str:
        """An example from the name of a typical kernel."""
        tokens = "".join(token_of(row, row.example) for row in self.rows)
        return f"{ABSENT} or {tokens}" if self.is_optional else tokens


def token_of(row: Row, value: Value) -> str:
    """The token of a field in a name."""
    if row.field.unsaid and value == row.default:
        return ""
    return row.field.token.format(encode(str(value)) if row.is_open else value)


def _pattern(row: Row, following: Row | None) -> str:
    """The regular expression of a token. It is loose for the last word of a part, so that an error can name the
    word."""
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
"""The parts of a name, in order."""
_PATTERNS = tuple(part.pattern for part in PARTS)


def kernel_name(config: GemmConfig) -> str:
    """The name of a config."""
    return "_".join([_part_text(place, read(config)) for place, read in _READ])


def _reader(part: Part) -> Callable[[GemmConfig], Any]:
    """A function that reads the fields of a part from a config; it returns None if the part is absent."""
    read = attrgetter(*(row.name for row in part.rows))
    is_there = attrgetter(part.group)
    return (lambda config: None if is_there(config) is None else read(config)) if part.is_optional else read


_READ = tuple((place, _reader(part)) for place, part in enumerate(PARTS))


@lru_cache(4096)
def _part_text(place: int, values: Any) -> str:
    """The part of a name at index ``place`` for these values, or this one."""
    if values is None:
        return ABSENT
    rows = PARTS[place].rows
    text = "".join(map(token_of, rows, values if isinstance(values, tuple) else (values,)))
    return _UNNUMBERED.get(text, text)


def is_former(name: str) -> bool:
    """Whether a kernel's name is a former one, which contains a number of slices of K."""
    return FORMER.search(name) is not None


def present_name(name: str, slices: int | None = None) -> tuple[str, int | None]:
    """The present name of a kernel and the slices of K: ``slices``, or those that a former name contains.

    A former name gives a warning; any other text is returned unchanged. ConfigError if the two numbers differ.
    """
    if (match := FORMER.search(name)) is None:
        return name, slices
    former, number = match[0].strip("_"), int(match[1])
    if slices is not None and number not in (1, slices):
        raise ConfigError(
            f"slices is {slices}, but the former name {name!r} contains {number}: omit slices, or write {SPLIT_K} "
            f"instead of {former}"
        )
    warnings.warn(
        f"{former} kernels are replaced by {SPLIT_K} kernels, which take the number of slices as an argument "
        "(slices=); the former name is still accepted",
        RenamedWarning,
        stacklevel=3,
    )
    return f"{name[: match.start()]}_{SPLIT_K}_{name[match.end() :]}", number if number > 1 else slices


_FORMER_WORDS = (*TABLE["scheduler.decomposition"].field.former_words, SPLIT_K)
FORMER = re.compile(rf"_k([0-9]{{1,4}})({'|'.join(_FORMER_WORDS)})_")
"""The text in former names of split-K kernels in place of :data:`SPLIT_K`: the slices of K and a word."""


@lru_cache(4096)
def parse_name(name: str) -> GemmConfig:
    """The config with this name; for a former name, the config that replaces it. It can break a legality rule.

    Raises:
        ConfigError: the name is not one that :func:`kernel_name` produces; the message names the invalid part.
    """
    if is_edited(name):
        raise ConfigError(
            f"{name!r} is an edited kernel, which gemmill cannot generate from {plain_name(name)}: add its source to "
            "the registry (Registry.add_source), or a pack that has it (gemmill build FILE.cu -o FILE.pack)"
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
    """The arch and the types of A and B of a kernel name; the rest is not parsed. ConfigError as for
    :func:`parse_name`."""
    try:
        return _formats(*_parts(name)[:3])
    except ConfigError as error:
        raise ConfigError(f"{name!r} is not a kernel name: {error}") from None


def _parts(name: str) -> list[str]:
    parts = name.split("_")
    if len(parts) != len(PARTS):
        raise ConfigError(
            f"it has {len(parts)} parts separated by underscores; a kernel name has {len(PARTS)}: "
            + ", ".join(part.name for part in PARTS)
        )
    return parts


def _pieces() -> Iterator[tuple[int, int]]:
    """Index ranges of the parts that :func:`_piece` reads together: the parts of one member of a config, and all parts
    of the operand formats, of which a kernel set has few combinations."""
    whole = next(place for place, part in enumerate(PARTS) if part.group == "d") + 1
    yield 0, whole
    for _, places in itertools.groupby(range(whole, len(PARTS)), key=lambda place: PARTS[place].group):
        first, *rest = places
        yield first, first + len(rest) + 1


_PIECES = tuple(_pieces())


@lru_cache(4096)
def _piece(first: int, *parts: str) -> dict[str, Any] | None:
    """Arguments of :class:`GemmConfig` from parts of a name that start at index ``first``; None if they are invalid.

    Cached, because kernels share most pieces of their names.
    """
    fields = _fields(first, parts)
    return made_of(parts_of(fields)) if are_valid(fields) else None


@lru_cache(4096)
def _formats(arch: str, a: str, b: str) -> tuple[Value, Value, Value]:
    fields = _fields(0, (arch, a, b))
    return fields["arch"], fields["a.dtype"], fields["b.dtype"]


def _refused(parts: Sequence[str]) -> GemmConfig:
    """Raise a ConfigError with pydantic's description of the invalid fields of a name."""
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
    """The fields from parts of a name that start at index ``first``."""
    fields: dict[str, Value] = {}
    for place, part in enumerate(parts, first):
        fields |= _fields_of_part(place, part)
    return fields


def _fields_of_part(place: int, text: str) -> dict[str, Value]:
    part = PARTS[place]
    match = re.fullmatch(_PATTERNS[place], _NUMBERED.get(text, text))
    if match is None or text in _UNNUMBERED:
        raise ConfigError(f"{part.name} is {text!r}; it must look like {part.example}")
    if part.is_optional and text == ABSENT:
        return {row.name: row.absent for row in part.rows if row.absent is not None}
    return {row.name: _value(row, token, text) for row, token in zip(part.rows, match.groups(), strict=True)}


def _value(row: Row, token: str | None, part: str) -> Value:
    """The value of a token; the default if ``token`` is None."""
    if token is None:
        assert row.default is not None, f"every name contains {row.name}"
        return row.default
    if row.field.unsaid and token == str(row.default):
        raise ConfigError(f"{part!r} contains the default {token!r}, which names must omit")
    try:
        return decode(token) if row.is_open else row.type(token)
    except ExpressionError as error:
        raise ConfigError(f"{row.name} {part!r}: {error}") from None
