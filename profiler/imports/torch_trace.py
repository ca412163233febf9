"""Traces of PyTorch's profiler, decoded one event at a time."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

from gemmill.profiler.imports.collector import Collector, Imported, LeftOut, TextFile, whole
from gemmill.profiler.imports.torch_calls import PARAMETERS, UNKNOWN, Argument, Tensor, add_call, unsupported

_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[\s,]*")
_USUAL, _LARGEST = 1 << 16, 1 << 22
"""Length of an event in characters: of usual ones, and the maximum."""


def read(file: TextFile) -> Imported | None:
    """Problems of the products in a trace, with their counts; None for other texts.

    A trace is a mapping with events, or a list of events in older versions."""
    text = file.text
    if _EVENTS.search(text) is None and not (text.lstrip()[:1] == "[" and '"ph"' in text[:4096]):
        return None
    into, spans = Collector(file.path), dict[object, tuple[float, float]]()
    for line, event in _events(into, text):
        name, args, thread = event.get("name"), event.get("args"), str(event.get("tid"))
        if event.get("cat") not in ("cpu_op", "Operator") or not isinstance(name, str):
            continue
        operator, span = name.removeprefix("aten::"), _span(event)
        if _is_within(span, spans.get(thread)):
            continue  # a product that another one is made of
        with into.at(line) as entry:
            if operator in PARAMETERS and operator != name:
                spans[thread] = span
                add_call(entry, operator, _arguments(args if isinstance(args, dict) else {}))
            elif why := unsupported(name):
                raise LeftOut(why)
    return into.result()


def _span(event: Mapping[str, object]) -> tuple[float, float]:
    """Start and end of an event."""
    start, length = event.get("ts"), event.get("dur")
    if isinstance(start, int | float) and isinstance(length, int | float):
        return float(start), float(start) + float(length)
    return math.nan, math.nan


def _is_within(span: tuple[float, float], outer: tuple[float, float] | None) -> bool:
    return outer is not None and span != outer and outer[0] <= span[0] and span[1] <= outer[1]


def _events(into: Collector, text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Events with their line numbers, decoded one at a time, since a whole trace would take gigabytes."""
    match = _EVENTS.search(text)
    place = match.end() if match else text.index("[") + 1
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
                raise into.error(line, "the event is nested too deeply; remove it") from None
            except ValueError:
                if most == _LARGEST or len(text) - place <= most:
                    raise into.error(line, "the trace is truncated or damaged here; record it again") from None
        place += length
        if isinstance(event, dict):
            yield line, event


def _arguments(args: Mapping[str, object]) -> list[Argument]:
    """The arguments of an operator."""
    dims = args.get("Input Dims", args.get("Input dims"))
    types, strides, texts = args.get("Input type"), args.get("Input Strides"), args.get("Concrete Inputs")
    if not isinstance(dims, list) or not isinstance(types, list) or len(types) < len(dims):
        raise LeftOut("the dims of products are not recorded; record the trace with record_shapes=True")
    steps = strides if isinstance(strides, list) and len(strides) >= len(dims) else [None] * len(dims)
    values = texts if isinstance(texts, list) and len(texts) >= len(dims) else [UNKNOWN] * len(dims)
    arguments: list[Argument] = []
    for shape, type_, step, value in zip(dims, types, steps, values, strict=False):
        numbers, stepped = _numbers(shape), _numbers(step)
        if type_ == "":
            arguments.append(None)
        elif numbers is None or not isinstance(type_, str) or type_ in ("Scalar", "ScalarList"):
            arguments.append(value if value and isinstance(value, str) else None)
        else:
            has_strides = stepped is not None and len(stepped) == len(numbers)
            arguments.append(Tensor(numbers, type_, stepped if has_strides else None))
    return arguments


def _numbers(value: object) -> tuple[int, ...] | None:
    """Dims or strides; None for other values, such as those of a list of tensors."""
    if not isinstance(value, list):
        return None
    numbers = [whole(number) for number in value]
    return tuple(number for number in numbers if number is not None) if None not in numbers else None
