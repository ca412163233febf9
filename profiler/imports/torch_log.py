"""Traces of PyTorch's profiler, an event at a time, and logs of the operators of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gemmill.profiler.imports.problems import Collector, Imported, LeftOut, extent, whole
from gemmill.profiler.imports.torch_ops import BALANCED, LEAVES, UNREAD, Tensor, problem

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[\s,]*")
_USUAL, _LARGEST = 1 << 16, 1 << 22
"""Characters of an event: of most, and of any that is read."""
_OUTPUTS: Mapping[str, int] = {"_scaled_mm": 6, "_grouped_mm": 4}
"""Which argument is the dtype of the output."""
_OPERATOR = re.compile(r"Operator: aten\.(\w+)\.\w+\s*$")
_COUNTED = re.compile(r"cnt: (\d{1,18}), \((.*)\)\s*$")
_TENSOR = re.compile(r"T\(\[([\d, ]*)\], (\w+)(?:, stride=\(([\d, ]*)\))?\)")
_LOG_TYPES = {"b8": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"}


def looks_like_trace(text: str) -> bool:
    """Whether a JSON text is a trace: of a mapping with events, or a list of them as older versions wrote."""
    return _EVENTS.search(text, 0) is not None or (text.lstrip()[:1] == "[" and '"ph"' in text[:4096])


def read_trace(path: Path, text: str) -> Imported:
    """Problems of the products that a trace has, by how often they ran."""
    into = Collector(path, "a trace of PyTorch's profiler")
    for line, event in _events(into, text):
        name = event.get("name")
        if event.get("cat") not in ("cpu_op", "Operator") or not isinstance(name, str):
            continue
        operator = name.removeprefix("aten::")
        if operator in UNREAD:
            into.note(line, f"aten::{operator} is not read")
        if operator not in LEAVES or operator == name:
            continue
        with into.at(line):
            args = event.get("args")
            args = args if isinstance(args, dict) else {}
            tensors = _tensors(args)
            concrete, index = args.get("Concrete Inputs"), _OUTPUTS.get(operator)
            output = concrete[index] if isinstance(concrete, list) and index and index < len(concrete) else ""
            into.add(problem(operator, tensors, output if isinstance(output, str) else ""), line)
            if operator == "_grouped_mm":
                into.note(line, BALANCED)
    return into.result()


def _events(into: Collector, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Events with their lines: each is decoded and dropped, since a trace as one value takes gigabytes."""
    found = _EVENTS.search(text)
    place = found.end() if found else text.index("[") + 1
    decoder, line, last = json.JSONDecoder(), 1, 0
    while True:
        spaces = _SPACE.match(text, place)
        place = spaces.end() if spaces else place
        line, last = line + text.count("\n", last, place), place
        if text.startswith("]", place):
            return
        for most in (_USUAL, _LARGEST):
            try:
                event, length = decoder.raw_decode(text[place : place + most])
                break
            except RecursionError:
                raise into.error(line, "an event nests too deeply") from None
            except ValueError:
                if most == _LARGEST or len(text) - place <= most:
                    raise into.error(line, "the trace is cut short or damaged here; record it anew") from None
        place += length
        if isinstance(event, dict):
            yield line, event


def _tensors(args: Mapping[str, object]) -> list[Tensor | None]:
    dims = args.get("Input Dims", args.get("Input dims"))
    types, strides = args.get("Input type"), args.get("Input Strides")
    if not isinstance(dims, list) or not isinstance(types, list) or len(types) < len(dims):
        raise LeftOut("products without dims; record the trace with record_shapes=True")
    steps = strides if isinstance(strides, list) and len(strides) >= len(dims) else [None] * len(dims)
    found: list[Tensor | None] = []
    for each, type_, step in zip(dims, types, steps, strict=False):
        numbers, stepped = _numbers(each), _numbers(step)
        is_tensor = numbers is not None and isinstance(type_, str) and type_ not in ("", "Scalar", "ScalarList")
        known = stepped if stepped is not None and numbers is not None and len(stepped) == len(numbers) else None
        found.append(Tensor(numbers or (), str(type_), known) if is_tensor else None)
    return found


def _numbers(value: object) -> tuple[int, ...] | None:
    """Dims or strides; None for what is neither, such as those of a list of tensors."""
    if not isinstance(value, list):
        return None
    numbers = [whole(number) for number in value]
    return tuple(number for number in numbers if number is not None) if None not in numbers else None


def looks_like_operators(text: str) -> bool:
    """Whether a text is a log of operators, with how often each ran."""
    return "Operator: aten." in text and "cnt: " in text


def read_operators(path: Path, lines: list[str]) -> Imported:
    """Problems of a log of operators, as TorchBench's are. Strides are written where a tensor is not contiguous."""
    into = Collector(path, "a log of PyTorch's operators")
    operator = ""
    for number, line in enumerate(lines, 1):
        if line.startswith("Operator:"):
            found = _OPERATOR.match(line)
            operator = found[1] if found else ""
        elif operator in LEAVES and line.startswith("cnt:"):
            if (counted := _COUNTED.match(line)) is None:
                raise into.error(number, "no `cnt: 1, ((T([..], f16), ..), {})`; remove or complete the line")
            with into.at(number):
                tensors = [_logged(*found.groups()) for found in _TENSOR.finditer(counted[2])]
                into.add(problem(operator, tensors), number, extent("cnt", counted[1]))
                if operator == "_grouped_mm":
                    into.note(number, BALANCED)
    return into.result()


def _logged(dims: str, type_: str, strides: str | None) -> Tensor:
    extents = tuple(extent("a dim", text) for text in dims.split(",") if text.strip())
    steps = [1]
    for each in extents[:0:-1]:
        steps.insert(0, steps[0] * each)
    given = tuple(extent("a stride", text) for text in (strides or "").split(",") if text.strip())
    return Tensor(extents, _LOG_TYPES.get(type_, type_), given if len(given) == len(extents) else tuple(steps))
