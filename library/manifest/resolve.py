"""From the schema to grids and predicates: defaults filled in, choices multiplied out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gemmill.library.config.fields import Fields, Value
from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.library.legality.resources import TMA_ALIGN
from gemmill.library.legality.rules import EPILOGUE_C
from gemmill.library.manifest.expression import Expression
from gemmill.library.manifest.grid import Axis, Grid, Predicate
from gemmill.library.manifest.kernelset import Preset, member
from gemmill.library.manifest.schema import ClusterSpec, OutputSpec, PresetSpec, SchedulerSpec, SetSpec, Spec

MAX_CANDIDATES = 10**8
"""Most candidates of one set."""

BASE = SetSpec(
    arch=("sm90a",),
    promote=(0,),
    c=("none",),
    cluster=(ClusterSpec(m=(1,), n=(1,)),),
    stages=("auto",),
    scheduler=(
        SchedulerSpec(raster=("m",), swizzle=(1,), splits=(1,), decomposition=("tiles",), batching=("strided",)),
    ),
    epilogue=("linear",),
)
"""What a set falls back to where it and its manifest's defaults say nothing."""

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "a": ("dtype", "major", "align", "scale"),
    "b": ("dtype", "major", "align", "scale"),
    "c": ("dtype", "major", "align"),
    "d": ("dtype", "major", "align"),
    "tile": ("m", "n", "k"),
    "cluster": ("m", "n"),
    "scheduler": ("raster", "swizzle", "splits", "decomposition", "batching"),
}
"""Leaves of the parts that are mappings."""

_LEAF_DEFAULTS: Mapping[str, tuple[Value, ...]] = {"align": (TMA_ALIGN,), "scale": ("none",)}
"""What leaves of operands are where neither a set nor the defaults give them."""

_NO_C: tuple[Value, ...] = ("none", "none", 0)


def merged(specific: SetSpec, general: SetSpec) -> SetSpec:
    """``specific``, and what it leaves open from ``general``, leaf by leaf."""
    parts = {}
    for name in SetSpec.model_fields:
        own, other = getattr(specific, name), getattr(general, name)
        parts[name] = other if own is None else own if other is None else _filled(own, other)
    return specific.model_copy(update=parts)


def _filled(own: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    def fill(item: Any, default: Any) -> Any:
        if not isinstance(item, Spec) or not isinstance(default, Spec):
            return item
        leaves = type(item).model_fields
        return item.model_copy(update={leaf: getattr(default, leaf) for leaf in leaves if getattr(item, leaf) is None})

    return tuple(dict.fromkeys(fill(item, default) for item in own for default in other))


def missing(spec: SetSpec) -> list[str]:
    """The fields that a merged set gives no value."""
    names = []
    for name in SetSpec.model_fields:
        parts = getattr(spec, name)
        if name in _GROUPS:
            for leaf in _GROUPS[name]:
                open_leaf = parts is None or any(isinstance(p, Spec) and getattr(p, leaf) is None for p in parts)
                if open_leaf and leaf not in _LEAF_DEFAULTS:
                    names.append(f"{name}.{leaf}")
        elif parts is None:
            names.append(name)
    return names


def contradiction(spec: SetSpec) -> str | None:
    """What is wrong with a merged set that writes out the linear epilogue otherwise than one of its C has it."""
    for text, c in itertools.product(spec.epilogue or (), spec.c or ()):
        if says := _misread(text, "none" if c == "none" else "same"):
            change = "add c, drop beta * c" if c == "none" else "drop c, write + beta * c"
            return f"{says}; {change}, or write {LINEAR}, which adds beta * C where there is a C"
    return None


def _misread(text: str, c_dtype: Value) -> str | None:
    """What is wrong with the linear epilogue as it is written out; a config says ``linear`` and cannot tell."""
    return EPILOGUE_C.says({"epilogue": text, "c.dtype": c_dtype}) if canonical(text) == LINEAR else None


def candidates(spec: SetSpec) -> int:
    """How many candidates a merged set without missing fields has."""
    return math.prod(
        sum(math.prod(map(len, _choices(name, part))) for part in parts) if name in _GROUPS else len(parts)
        for name in SetSpec.model_fields
        if (parts := getattr(spec, name))
    )


def grids(spec: SetSpec) -> Iterator[Grid]:
    """The grids of a merged set: one for each run of numbers in ``stages``, and one for ``auto``."""
    for _, stages in itertools.groupby(spec.stages or (), key=lambda value: value == "auto"):
        yield Grid(tuple(_axes(spec.model_copy(update={"stages": tuple(stages)}))))


def _axes(spec: SetSpec) -> Iterator[Axis]:
    for name in SetSpec.model_fields:
        parts = getattr(spec, name)
        if name == "c":
            continue  # an axis together with D, since C may be as D
        if name == "d":
            values = [(*(d if c == "same" else c), *d) for d in _values("d", parts) for c in _c_values(spec.c or ())]
            leaves = tuple(f"{operand}.{leaf}" for operand in "cd" for leaf in _GROUPS["d"])
            yield Axis(leaves, tuple(dict.fromkeys(values)))
        elif name in _GROUPS:
            yield Axis(tuple(f"{name}.{leaf}" for leaf in _GROUPS[name]), tuple(dict.fromkeys(_values(name, parts))))
        elif name == "epilogue":
            yield Axis((name,), tuple((text,) for text in dict.fromkeys(map(canonical, parts))))
        else:
            yield Axis((name,), tuple((value,) for value in parts))


def _values(group: str, parts: tuple[Spec, ...]) -> Iterator[tuple[Value, ...]]:
    for part in parts:
        yield from itertools.product(*_choices(group, part))


def _c_values(parts: tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        yield from _values("c", (part,)) if isinstance(part, OutputSpec) else [_NO_C if part == "none" else "same"]


def _choices(group: str, part: Any) -> list[tuple[Value, ...]]:
    """The choices for each leaf of one part; of the words ``none`` and ``same``, one choice."""
    if not isinstance(part, Spec):
        return [(part,)]
    return [getattr(part, leaf) or _LEAF_DEFAULTS.get(leaf, ()) for leaf in _GROUPS[group]]


def filters(where: tuple[Expression, ...] | None) -> tuple[Predicate, ...]:
    """A ``where`` as predicates."""
    return tuple(term.check for term in where or ())


def preset(spec: PresetSpec) -> Preset:
    """A preset as predicates."""
    return Preset(spec.description, filters(spec.where), tuple(matching(part) for part in spec.match or ()))


def matching(spec: SetSpec) -> tuple[Predicate, ...]:
    """What a config fulfils to have, in every part that ``spec`` gives, one of the values given."""
    found = []
    for name in SetSpec.model_fields:
        parts = getattr(spec, name)
        if parts is None:
            continue
        if name in _GROUPS:
            found.append(_any_part(name, parts))
        elif name == "epilogue":
            found.append(_any_epilogue(parts))
        else:
            found.append(member((name,), tuple((value,) for value in parts)))
    return tuple(found)


def _any_epilogue(texts: tuple[str, ...]) -> Predicate:
    """Whether a config has one of these epilogues, and C as it is written."""
    return lambda f: any(canonical(x) == f["epilogue"] and not _misread(x, f["c.dtype"]) for x in texts)


def _any_part(group: str, parts: tuple[Any, ...]) -> Predicate:
    names = tuple(f"{group}.{leaf}" for leaf in _GROUPS[group])
    like_d = tuple(f"d.{leaf}" for leaf in _GROUPS[group]) if "same" in parts else ()

    def fits(part: Any, fields: Fields) -> bool:
        if part == "none":
            return fields["c.dtype"] == "none"
        if part == "same":
            return all(fields[c] == fields[d] for c, d in zip(names, like_d, strict=True))
        given = ((f"{group}.{leaf}", getattr(part, leaf)) for leaf in _GROUPS[group])
        return all(values is None or fields[name] in values for name, values in given)

    return lambda fields: any(fits(part, fields) for part in parts)
