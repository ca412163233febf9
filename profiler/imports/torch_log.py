"""Logs of PyTorch: of the operators of a model, in TorchBench's format, and of Inductor's autotuning."""

from __future__ import annotations

import re

from gemmill.profiler.imports.collector import Collector, Entry, Imported, LeftOut, TextFile, extent
from gemmill.profiler.imports.torch_calls import PARAMETERS, UNKNOWN, Argument, Tensor, add_call, unsupported

_OPERATOR = re.compile(r"Operator: (aten\.\w+)")
_COUNTED = re.compile(r"cnt: (\d{1,18}), \((.*)\)\s*$")
_VALUE = r"T\(\[(?P<dims>[\d, ]*)\], (?P<type>\w+)(?:, stride=\((?P<strides>[\d, ]*)\))?\)|(?P<text>-?[\w.]+)"
_ARGUMENT = re.compile(rf"(?:'?(?P<name>\w+)'?: )?(?:{_VALUE})")
_LOG_TYPES = {"b8": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"}


def read_operators(file: TextFile) -> Imported | None:
    """Problems of a log of operators, which has strides only for tensors that are not contiguous. None for other
    texts."""
    if "Operator: aten." not in file.text or "cnt: " not in file.text:
        return None
    into = Collector(file.path)
    operator = ""
    for number, line in enumerate(file.lines, 1):
        if line.startswith("Operator:"):
            match = _OPERATOR.match(line)
            operator = match[1].removeprefix("aten.") if match else ""
        elif line.startswith("cnt:") and (operator in PARAMETERS or unsupported(f"aten::{operator}")):
            if (call := _COUNTED.match(line)) is None:
                raise into.error(number, "expected `cnt: 1, ((T([..], f16), ..), {})`; complete or remove the line")
            with into.at(number) as entry:
                if operator not in PARAMETERS:
                    raise LeftOut(unsupported(f"aten::{operator}"))
                add_call(entry, operator, _logged(operator, call[2]), extent("cnt", call[1]))
    return into.result()


def _logged(operator: str, text: str) -> list[Argument]:
    """The arguments of a logged call. Those that have their default are not logged."""
    names = PARAMETERS[operator]
    defaults = {"beta": "1", "alpha": "1", "use_fast_accum": "False"}
    named: dict[str, Argument] = {name: defaults.get(name) for name in names}
    for place, match in enumerate(_ARGUMENT.finditer(text)):
        name = match["name"] or (names[place] if place < len(names) else "")
        if name not in names:
            continue
        if match["dims"] is not None:
            named[name] = _tensor(match["dims"], match["type"], match["strides"])
        elif match["text"] != "None":
            named[name] = match["text"]
    return [*named.values()]


def _tensor(dims: str, type_: str, strides: str | None) -> Tensor:
    extents = tuple(extent("a dim", text) for text in dims.split(",") if text.strip())
    steps = [1]
    for size in extents[:0:-1]:
        steps.insert(0, steps[0] * size)
    recorded = tuple(extent("a stride", text) for text in (strides or "").split(",") if text.strip())
    packed = tuple(steps) if extents else ()
    return Tensor(extents, _LOG_TYPES.get(type_, type_), recorded if len(recorded) == len(extents) else packed)


_AUTOTUNE = re.compile(r'[^"]*?\bAUTOTUNE (\w{1,60})\(([\dx, ]*)\)')
"""The beginning of a line; a quote before it would make it part of a JSON text."""
_STRIDES = re.compile(r"strides: (\[.*\])")
_DTYPES = re.compile(r"dtypes: (torch\..*)")
_LINES_AFTER = 3
"""Lines in which strides and dtypes follow; a line of another process can come between."""
_CALLED = {"int_mm": "_int_mm", "scaled_mm": "_scaled_mm", "grouped_mm": "_grouped_mm"}
"""Inductor's names of operators, where they differ."""


def read_autotune(file: TextFile) -> Imported | None:
    """Problems of the products that Inductor timed, each with its operands' dims, and in newer versions their strides
    and types. None for other texts."""
    if "AUTOTUNE " not in file.text:
        return None
    into, lines = Collector(file.path), file.lines
    for number, line in enumerate(lines, 1):
        if (match := _AUTOTUNE.match(line)) is None:
            continue
        operator = _CALLED.get(match[1], match[1])
        with into.at(number) as entry:
            if operator not in PARAMETERS:
                raise LeftOut(f"AUTOTUNE {match[1]} is not supported")
            dims = [
                tuple(extent("a dim", text) for text in size.split("x") if text.strip()) for size in match[2].split(",")
            ]
            following = "\n".join(lines[number : number + _LINES_AFTER]).partition("AUTOTUNE ")[0]
            if typed := _DTYPES.search(following):
                add_call(entry, operator, _timed(operator, dims, typed[1].split(","), following))
            else:
                _add_untyped(entry, operator, dims)
    result = into.result()
    return result if result.problems or result.notes else None


def _timed(operator: str, dims: list[tuple[int, ...]], types: list[str], following: str) -> list[Argument]:
    """The arguments of a product that Inductor timed: tensors alone, without those that the call does not have."""
    if len(types) != len(dims):
        raise LeftOut(f"{len(dims)} operands and {len(types)} dtypes; complete or remove the lines")
    written = _STRIDES.search(following)
    listed = re.findall(r"\[([\d, ]*)\]", written[1]) if written else []
    strides = [tuple(extent("a stride", text) for text in each.split(",") if text.strip()) for each in listed]
    if [*map(len, strides)] != [*map(len, dims)]:
        strides = []
    tensors: list[Argument] = [
        Tensor(shape, types[place].strip(), strides[place] if strides else None) for place, shape in enumerate(dims)
    ]
    rest = PARAMETERS[operator][len(tensors) :]
    return [*tensors, *(None if name in ("bias", "scale_result") else UNKNOWN for name in rest)]


def _add_untyped(entry: Entry, operator: str, dims: list[tuple[int, ...]]) -> None:
    """Add the extents of a product whose types and strides are not logged."""
    named = dict(zip(PARAMETERS[operator], dims, strict=False))
    a, b = named.pop("a", ()), named.pop("b", ())
    if len(a) not in (2, 3) or len(a) != len(b) or a[-1] != b[-2]:
        raise LeftOut(f"AUTOTUNE {operator}: the dims of A and B do not match")
    entry.assume("types and strides are not in the log; assuming those of the manifest, or the defaults")
    for name in named:
        entry.leave_out(
            f"{name} of {operator}: its type and strides are not in the log, which has them since PyTorch 2.8"
        )
    entry.add({"m": a[-2], "n": b[-1], "k": a[-1], **({"batch": a[0]} if len(a) == 3 else {})})
