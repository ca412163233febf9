"""Conversion of a validated manifest to grids and predicates, with defaults filled in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from gemmill.library.config.field import Value
from gemmill.library.config.field_table import GROUPS, PARTS, TABLE, Row
from gemmill.library.config.fields import READERS, ConfigView
from gemmill.library.config.model import GemmConfig
from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.library.legality.rules import epilogue_c
from gemmill.library.manifest.expression import Expression
from gemmill.library.manifest.grid import Axis, Grid, Predicate
from gemmill.library.manifest.kernelset import Preset, member
from gemmill.library.manifest.schema import PART_MODELS, Choices, PresetSpec, SetSpec

MAX_CANDIDATES = 10**8
"""Most candidates of one set."""
MAX_VALUES = 10**5
"""Most combinations of values of the fields of one part of a set, before and after defaults are filled in."""


class TooManyError(ValueError):
    """A part of a set has more than :data:`MAX_VALUES` combinations of values."""


def _base(group: str) -> tuple[Any, ...] | None:
    """The default choice for a member of a config; None if the manifest must give one."""
    rows = GROUPS[group]
    if rows[0].absent is not None:
        return (rows[0].absent,)
    if rows[0].leaf:
        return (PART_MODELS[group](),) if all(map(_defaults, rows)) else None
    return _defaults(rows[0]) or None


def _defaults(row: Row) -> tuple[Value, ...]:
    """The default choices for a field; empty if the manifest must give a value."""
    return ("auto",) if row.field.auto else () if row.default is None else (row.default,)


BASE = SetSpec(**{group: _base(group) for group in GROUPS})
"""The defaults for members that neither a set nor its manifest's defaults give. Leaves have their own defaults."""

_NEEDED = tuple(row for row in TABLE.values() if not _defaults(row))
_NAMES = {group: tuple(row.name for row in rows) for group, rows in GROUPS.items()}
_MOST = f"the limit is {MAX_VALUES:,} combinations"
_NO_C = tuple(row.absent for row in GROUPS["c"])


def merged(specific: SetSpec, general: SetSpec) -> SetSpec:
    """``specific`` with missing leaves filled in from ``general``; TooManyError if there are too many combinations."""
    parts = {}
    for name in GROUPS:
        choices, defaults = specific[name], general[name]
        if choices and defaults and len(choices) * len(defaults) > MAX_VALUES:
            raise TooManyError(f"{name} has {len(choices):,} choices and {len(defaults):,} defaults; {_MOST}")
        parts[name] = defaults if choices is None else choices if defaults is None else _filled(choices, defaults)
    return specific.model_copy(update=parts)


def _filled(choices: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    def fill(item: Any, default: Any) -> Any:
        if not isinstance(item, Choices) or not isinstance(default, Choices):
            return item
        open_leaves = [leaf for leaf in type(item).model_fields if item[leaf] is None]
        leaf_defaults = {leaf: values for leaf in open_leaves if (values := default[leaf]) is not None}
        return item.model_copy(update=leaf_defaults) if leaf_defaults else item

    return tuple(dict.fromkeys(fill(item, default) for item in choices for default in defaults))


def missing(spec: SetSpec) -> list[str]:
    """The required fields without a value in a merged set."""
    return [row.name for row in _NEEDED if _is_open(spec[row.group], row.leaf)]


def _is_open(parts: tuple[Any, ...] | None, leaf: str) -> bool:
    return parts is None or any(leaf and isinstance(part, Choices) and part[leaf] is None for part in parts)


def contradiction(spec: SetSpec) -> str | None:
    """Why an explicit linear epilogue of a merged set does not match one of its choices of C; None if all match."""
    for text, c in itertools.product(spec["epilogue"] or (), spec["c"] or ()):
        if reason := _misread(text, "none" if c == "none" else "same"):
            change = "add c, remove beta * c" if c == "none" else "remove c, add + beta * c"
            return f"{reason}; {change}, or write {LINEAR}, which adds beta * C if there is a C"
    return None


def _misread(text: str, c_dtype: Value) -> str | None:
    """Why an explicit linear epilogue does not match C. A config only has ``linear`` and cannot show the difference."""
    return epilogue_c.finding(ConfigView({"epilogue": text, "c.dtype": c_dtype})) if canonical(text) == LINEAR else None


def crowded(spec: SetSpec) -> str:
    """The message for a merged set with too many candidates or combinations; empty if there are not too many."""
    counts = {name: _count(name, spec[name] or ()) for name in GROUPS}
    if (number := math.prod(counts.values())) > MAX_CANDIDATES:
        return f"the set has {number:,} candidates; the limit is {MAX_CANDIDATES:,}"
    together = {**counts, "c with d": counts["c"] * counts["d"], "epilogue with c": counts["epilogue"] * counts["c"]}
    return next((f"{name} has {count:,} values; {_MOST}" for name, count in together.items() if count > MAX_VALUES), "")


def _count(group: str, parts: tuple[Any, ...]) -> int:
    return sum(math.prod(map(len, _choices(group, part))) for part in parts) if group in PARTS else len(parts)


def grids(spec: SetSpec) -> Iterator[Grid]:
    """The grids of a merged set: one for each run of numbers in ``stages``, and one for each ``auto``."""
    for _, stages in itertools.groupby(spec["stages"] or (), key=lambda value: value == "auto"):
        yield Grid(tuple(_axes(spec, tuple(stages))))


def _axes(spec: SetSpec, stages: tuple[Value, ...]) -> Iterator[Axis]:
    for name in GROUPS:
        parts: tuple[Any, ...] = stages if name == "stages" else spec[name] or ()
        if name == "c":
            continue  # shares an axis with D, since C can be the same as D
        if name == "d":
            values = [(*(d if c == "same" else c), *d) for d in _values("d", parts) for c in _c_values(spec["c"] or ())]
            yield Axis((*_NAMES["c"], *_NAMES["d"]), tuple(dict.fromkeys(values)))
        elif name in PARTS:
            yield Axis(_NAMES[name], tuple(dict.fromkeys(_values(name, parts))))
        elif name == "epilogue":
            yield Axis((name,), tuple((text,) for text in dict.fromkeys(map(canonical, parts))))
        else:
            yield Axis((name,), tuple((value,) for value in parts))


def _values(group: str, parts: tuple[Choices, ...]) -> Iterator[tuple[Value, ...]]:
    for part in parts:
        yield from itertools.product(*_choices(group, part))


def _c_values(parts: tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        yield from _values("c", (part,)) if isinstance(part, Choices) else [_NO_C if part == "none" else "same"]


def _choices(group: str, part: Any) -> list[tuple[Value, ...]]:
    """The choices for each leaf of a part; a single choice for the words ``none`` and ``same``."""
    if not isinstance(part, Choices):
        return [(part,)]
    return [part[row.leaf] or _defaults(row) for row in GROUPS[group]]


def filters(where: tuple[Expression, ...] | None) -> tuple[Predicate, ...]:
    """A ``where`` as predicates."""
    return tuple(term.check for term in where or ())


def preset(spec: PresetSpec) -> Preset:
    """A preset as predicates."""
    return Preset(spec.description, filters(spec.where), tuple(matching(part) for part in spec.match or ()))


def matching(spec: SetSpec) -> tuple[Predicate, ...]:
    """Predicates that a config meets if, in every part that ``spec`` gives, it has one of the given values."""
    predicates = []
    for name in GROUPS:
        parts = spec[name]
        if parts is None:
            continue
        if name in PARTS:
            predicates.append(_any_part(name, parts))
        elif name == "epilogue":
            predicates.append(_any_epilogue(parts))
        else:
            predicates.append(member((name,), tuple((value,) for value in parts)))
    return tuple(predicates)


def _any_epilogue(texts: tuple[str, ...]) -> Predicate:
    """The predicate that a config has one of these epilogues, and a C if the text of the epilogue reads one."""
    c_dtype = READERS["c.dtype"]
    return lambda config: any(canonical(x) == config.epilogue and not _misread(x, c_dtype(config)) for x in texts)


def _any_part(group: str, parts: tuple[Any, ...]) -> Predicate:
    names, like_d = _NAMES[group], _NAMES["d"] if "same" in parts else ()

    def fits(part: Any, config: GemmConfig) -> bool:
        if part == "none":
            return config.c is None
        if part == "same":
            return all(READERS[c](config) == READERS[d](config) for c, d in zip(names, like_d, strict=True))
        allowed_values = ((READERS[row.name], part[row.leaf]) for row in GROUPS[group])
        return all(values is None or read(config) in values for read, values in allowed_values)

    return lambda config: any(fits(part, config) for part in parts)
