"""PyTorch's matrix products as problems: what ``aten::mm`` and its kin are called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemmill.library.dtypes import DTypeName
from gemmill.profiler.imports.problems import Fields, LeftOut, shown
from gemmill.profiler.imports.words import dtype, epilogue

LEAVES = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_int_mm")
"""Operators that compute a product; linear, matmul and einsum call one of them."""
UNREAD = ("_scaled_grouped_mm", "_addmm_activation", "addbmm")
"""Others that compute one."""
_SCALAR_TYPES: Mapping[str, DTypeName] = {
    "0": "u8",
    "1": "s8",
    "3": "s32",
    "5": "f16",
    "6": "f32",
    "7": "f64",
    "15": "bf16",
    "23": "e5m2",
    "24": "e4m3",
}
"""Dtypes by the numbers that traces have of them (c10/core/ScalarType.h)."""
BALANCED = "the sizes of groups are not recorded; they count as equal"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand as a trace has it."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] | None
    """None where they are not recorded."""


def problem(name: str, tensors: Sequence[Tensor | None], output: str = "") -> Fields:
    """The problem of a call of one of :data:`LEAVES`.

    Args:
        name: the operator, without ``aten::``.
        tensors: its arguments in order; None for what is no tensor.
        output: number of the dtype that was asked for, where it is recorded.
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


def _tensor(tensors: Sequence[Tensor | None], index: int, what: str) -> Tensor:
    tensor = tensors[index] if index < len(tensors) else None
    if tensor is None or not tensor.dims:
        raise LeftOut(f"{what} has no recorded dims")
    return tensor


def _plain(a: Tensor, b: Tensor, rank: int) -> dict[str, int | str]:
    if len(a.dims) != rank or len(b.dims) != rank or a.dims[-1] != b.dims[-2] or a.dims[:-2] != b.dims[:-2]:
        raise LeftOut(f"A {shown(str([*a.dims]))} and B {shown(str([*b.dims]))} do not go together")
    fields: dict[str, int | str] = {"m": a.dims[-2], "n": b.dims[-1], "k": a.dims[-1]}
    return fields | {"batch": a.dims[0]} if rank == 3 else fields


def _grouped(a: Tensor, b: Tensor) -> dict[str, int | str]:
    """Groups along M (A of two dims, B of three) or along K (both of two); how many of the latter is not recorded."""
    if len(a.dims) == 2 and len(b.dims) == 3 and a.dims[1] == b.dims[1]:
        return {"m": a.dims[0], "n": b.dims[2], "k": a.dims[1], "batching": "grouped", "groups": b.dims[0]}
    if len(a.dims) == len(b.dims) == 3:
        return _plain(a, b, 3)
    raise LeftOut(f"groups of A {shown(str([*a.dims]))} and B {shown(str([*b.dims]))}; those along M are read")


def _majors(a: Tensor, b: Tensor) -> dict[str, int | str]:
    """What is contiguous of A and B, where strides are recorded. Of others, PyTorch multiplies contiguous copies."""
    found: dict[str, int | str] = {}
    if a.strides is not None:
        found["a_major"] = "mn" if _is_transposed(a) else "k"
    if b.strides is not None:
        found["b_major"] = "k" if _is_transposed(b) else "mn"
    return found


def _is_transposed(tensor: Tensor) -> bool:
    """Whether elements of a column lie side by side, not those of a row."""
    rows, columns = tensor.dims[-2:]
    if tensor.strides is None or len(tensor.strides) < 2:
        return False
    down, along = tensor.strides[-2:]
    return down == 1 and (along != 1 or columns == 1 < rows)


def _added(tensor: Tensor, m: int, n: int) -> dict[str, int | str]:
    """C, or a bias: a row that is added to every row."""
    name = dtype(tensor.type, "the added matrix")
    if tensor.dims in ((n,), (1, n)):
        text = epilogue("", name)
        return {"epilogue": text} if text else {}
    if tensor.dims[-2:] != (m, n):
        raise LeftOut(f"the added matrix is {shown(str([*tensor.dims]))}, neither M x N nor a row of N")
    return {"c": name, "c_major": "m" if _is_transposed(tensor) else "n"}


def _scales(tensors: Sequence[Tensor | None], fields: Fields) -> dict[str, int | str]:
    """Block scales by how many scales there are; those of a tensor or of rows are applied to the sums, and no field."""
    given = [tensor for tensor in tensors[2:4] if tensor is not None]
    if len(given) != 2:
        return {}
    (of_a, of_b), (m, n, k) = given, (int(fields[key]) for key in "mnk")
    if "e8m0" in of_a.type.lower() or "float8" in of_a.type.lower():
        raise LeftOut(f"scales of the type {shown(of_a.type)}; block scales here are float32")
    if any(len(scale.dims) == 0 or scale.dims in ((1,), (1, 1)) for scale in given):
        return {}
    if (of_a.dims, of_b.dims) == ((m, 1), (1, n)):
        return {}
    blocks = -(-k // 128)
    if of_a.dims == (m, blocks) and of_b.dims in ((blocks, -(-n // 128)), (blocks, n)):
        return {"a_scale": "1x128", "b_scale": "1x128" if of_b.dims[1] == n else "128x128"}
    raise LeftOut(f"scales of {shown(str([*of_a.dims]))} and {shown(str([*of_b.dims]))}; 1x128 and 128x128 are read")
