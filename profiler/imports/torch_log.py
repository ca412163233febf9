"""PyTorch's matrix products: from traces of its profiler, and from logs of the operators of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gemmill.library.dtypes import DTYPES
from gemmill.profiler.imports.blas import dtype, epilogue
from gemmill.profiler.imports.collector import Collector, Fields, Imported, LeftOut, TextFile, extent, shown, whole

LEAVES = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_int_mm")
"""Operators that compute a product; linear, matmul and einsum call one of these."""
UNREAD = ("_scaled_grouped_mm", "_addmm_activation", "addbmm")
"""Operators that compute a product but are not supported."""
_SCALAR_TYPES = {str(t.aten): t.name for t in DTYPES.values() if t.aten is not None}
"""Dtypes by their numbers in traces."""
BALANCED = "the sizes of groups are not recorded; assuming equal sizes"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand in a trace."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] | None
    """None if the strides are not recorded."""


def problem(name: str, tensors: Sequence[Tensor | None], output: str = "") -> Fields:
    """The problem of a call of one of :data:`LEAVES`.

    Args:
        name: the operator, without ``aten::``.
        tensors: its arguments in order; None for arguments other than tensors.
        output: number of the output dtype, if recorded.
    """
    adds = name in ("addmm", "baddbmm")
    a, b = _tensor(tensors, int(adds), "A"), _tensor(tensors, 1 + adds, "B")
    fields = _grouped(a, b) if name == "_grouped_mm" else _plain(a, b, 3 if name in ("bmm", "baddbmm") else 2)
    fields |= {"a": dtype(a.type, "A"), "b": dtype(b.type, "B"), "d_major": "n"} | _majors(a, b)
    if output in _SCALAR_TYPES:
        fields["d"] = _SCALAR_TYPES[output]
    elif name == "_int_mm":
        fields["d"] = "s32"
    elif name not in ("_scaled_mm", "_grouped_mm"):
        fields["d"] = fields["a"]
    if adds:
        fields |= _added(_tensor(tensors, 0, "the added matrix"), int(fields["m"]), int(fields["n"]))
    if name == "_scaled_mm":
        fields |= _scales(tensors, fields)
    return fields


def _tensor(tensors: Sequence[Tensor | None], index: int, name: str) -> Tensor:
    tensor = tensors[index] if index < len(tensors) else None
    if tensor is None or not tensor.dims:
        raise LeftOut(f"the dims of {name} are not recorded")
    return tensor


def _plain(a: Tensor, b: Tensor, rank: int) -> dict[str, int | str]:
    if len(a.dims) != rank or len(b.dims) != rank or a.dims[-1] != b.dims[-2] or a.dims[:-2] != b.dims[:-2]:
        raise LeftOut(f"the dims of A {shown(str([*a.dims]))} and B {shown(str([*b.dims]))} do not match")
    fields: dict[str, int | str] = {"m": a.dims[-2], "n": b.dims[-1], "k": a.dims[-1]}
    return fields | {"batch": a.dims[0]} if rank == 3 else fields


def _grouped(a: Tensor, b: Tensor) -> dict[str, int | str]:
    """Groups along M (A of two dims, B of three); groups along K are not supported, since their number is not
    recorded."""
    if len(a.dims) == 2 and len(b.dims) == 3 and a.dims[1] == b.dims[1]:
        return {"m": a.dims[0], "n": b.dims[2], "k": a.dims[1], "batching": "grouped", "groups": b.dims[0]}
    if len(a.dims) == len(b.dims) == 3:
        return _plain(a, b, 3)
    raise LeftOut(
        f"groups of A {shown(str([*a.dims]))} and B {shown(str([*b.dims]))} are not supported; only those along M are"
    )


def _majors(a: Tensor, b: Tensor) -> dict[str, int | str]:
    """The majorness of A and B, if strides are recorded. PyTorch copies operands that are not contiguous."""
    majors: dict[str, int | str] = {}
    if a.strides is not None:
        majors["a_major"] = "mn" if _is_transposed(a) else "k"
    if b.strides is not None:
        majors["b_major"] = "k" if _is_transposed(b) else "mn"
    return majors


def _is_transposed(tensor: Tensor) -> bool:
    """Whether a matrix is contiguous along its columns instead of its rows."""
    rows, columns = tensor.dims[-2:]
    if tensor.strides is None or len(tensor.strides) < 2:
        return False
    down, along = tensor.strides[-2:]
    return down == 1 and (along != 1 or columns == 1 < rows)


def _added(tensor: Tensor, m: int, n: int) -> dict[str, int | str]:
    """C, or a bias of N elements that is added to each row."""
    name = dtype(tensor.type, "the added matrix")
    if tensor.dims in ((n,), (1, n)):
        text = epilogue("", name)
        return {"epilogue": text} if text else {}
    if tensor.dims[-2:] != (m, n):
        raise LeftOut(f"the added matrix is {shown(str([*tensor.dims]))}; it must be M x N, or a row of N")
    return {"c": name, "c_major": "m" if _is_transposed(tensor) else "n"}


def _scales(tensors: Sequence[Tensor | None], fields: Fields) -> dict[str, int | str]:
    """Block scales, recognized by their extents. Scales per tensor or per row are applied to the accumulators, and are
    not part of the problem."""
    scales = [tensor for tensor in tensors[2:4] if tensor is not None]
    if len(scales) != 2:
        return {}
    (of_a, of_b), (m, n, k) = scales, (int(fields[key]) for key in "mnk")
    if "e8m0" in of_a.type.lower() or "float8" in of_a.type.lower():
        raise LeftOut(f"scales of the type {shown(of_a.type)} are not supported; block scales must be float32")
    if any(len(scale.dims) == 0 or scale.dims in ((1,), (1, 1)) for scale in scales):
        return {}
    if (of_a.dims, of_b.dims) == ((m, 1), (1, n)):
        return {}
    blocks = -(-k // 128)
    if of_a.dims == (m, blocks) and of_b.dims in ((blocks, -(-n // 128)), (blocks, n)):
        return {"a_scale": "1x128", "b_scale": "1x128" if of_b.dims[1] == n else "128x128"}
    raise LeftOut(
        f"scales of {shown(str([*of_a.dims]))} and {shown(str([*of_b.dims]))} are not supported; use 1x128 or 128x128"
    )


_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[\s,]*")
_USUAL, _LARGEST = 1 << 16, 1 << 22
"""Length of an event in characters: of usual ones, and the maximum."""
_OUTPUTS: Mapping[str, int] = {"_scaled_mm": 6, "_grouped_mm": 4}
"""Index of the argument with the output dtype."""
_OPERATOR = re.compile(r"Operator: aten\.(\w+)\.\w+\s*$")
_COUNTED = re.compile(r"cnt: (\d{1,18}), \((.*)\)\s*$")
_TENSOR = re.compile(r"T\(\[([\d, ]*)\], (\w+)(?:, stride=\(([\d, ]*)\))?\)")
_LOG_TYPES = {"b8": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64"}


def read_trace(file: TextFile) -> Imported | None:
    """Problems of the products in a trace, with their counts; None for other texts.

    A trace is a mapping with events, or a list of events in older versions."""
    text = file.text
    if _EVENTS.search(text) is None and not (text.lstrip()[:1] == "[" and '"ph"' in text[:4096]):
        return None
    into = Collector(file.path, "a trace of PyTorch's profiler")
    for line, event in _events(into, text):
        name = event.get("name")
        if event.get("cat") not in ("cpu_op", "Operator") or not isinstance(name, str):
            continue
        operator = name.removeprefix("aten::")
        if operator in UNREAD:
            into.note(line, f"aten::{operator} is not supported")
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


def _tensors(args: Mapping[str, object]) -> list[Tensor | None]:
    dims = args.get("Input Dims", args.get("Input dims"))
    types, strides = args.get("Input type"), args.get("Input Strides")
    if not isinstance(dims, list) or not isinstance(types, list) or len(types) < len(dims):
        raise LeftOut("the dims of products are not recorded; record the trace with record_shapes=True")
    steps = strides if isinstance(strides, list) and len(strides) >= len(dims) else [None] * len(dims)
    tensors: list[Tensor | None] = []
    for shape, type_, step in zip(dims, types, steps, strict=False):
        numbers, stepped = _numbers(shape), _numbers(step)
        is_tensor = numbers is not None and isinstance(type_, str) and type_ not in ("", "Scalar", "ScalarList")
        tensor_strides = (
            stepped if stepped is not None and numbers is not None and len(stepped) == len(numbers) else None
        )
        tensors.append(Tensor(numbers or (), str(type_), tensor_strides) if is_tensor else None)
    return tensors


def _numbers(value: object) -> tuple[int, ...] | None:
    """Dims or strides; None for other values, such as those of a list of tensors."""
    if not isinstance(value, list):
        return None
    numbers = [whole(number) for number in value]
    return tuple(number for number in numbers if number is not None) if None not in numbers else None


def read_operators(file: TextFile) -> Imported | None:
    """Problems of a log of operators, in the format of TorchBench, which has strides only for tensors that are not
    contiguous. None for other texts."""
    if "Operator: aten." not in file.text or "cnt: " not in file.text:
        return None
    into = Collector(file.path, "a log of PyTorch's operators")
    operator = ""
    for number, line in enumerate(file.lines, 1):
        if line.startswith("Operator:"):
            match = _OPERATOR.match(line)
            operator = match[1] if match else ""
        elif operator in LEAVES and line.startswith("cnt:"):
            if (call := _COUNTED.match(line)) is None:
                raise into.error(number, "expected `cnt: 1, ((T([..], f16), ..), {})`; complete or remove the line")
            with into.at(number):
                tensors = [_logged(*match.groups()) for match in _TENSOR.finditer(call[2])]
                into.add(problem(operator, tensors), number, extent("cnt", call[1]))
                if operator == "_grouped_mm":
                    into.note(number, BALANCED)
    return into.result()


def _logged(dims: str, type_: str, strides: str | None) -> Tensor:
    extents = tuple(extent("a dim", text) for text in dims.split(",") if text.strip())
    steps = [1]
    for size in extents[:0:-1]:
        steps.insert(0, steps[0] * size)
    recorded = tuple(extent("a stride", text) for text in (strides or "").split(",") if text.strip())
    return Tensor(extents, _LOG_TYPES.get(type_, type_), recorded if len(recorded) == len(extents) else tuple(steps))
