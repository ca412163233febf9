"""Calls of PyTorch's operators that compute a product, and the problems that gemmill has for them.

The runtime itself reads the operands (runtime/api/read.py), so that a problem is exactly the one for which
``gemmill.torch`` selects a kernel when it takes over the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from gemmill.library.dtypes import DTYPES, DTypeName, default_output, find_dtype
from gemmill.library.errors import OperandError, ProblemError
from gemmill.library.problem import GemmProblem
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import Entry, Fields, LeftOut, shown
from gemmill.runtime.api.read import read_call
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.operands.tensors import TensorView

_ADDED = ("c", "a", "b", "beta", "alpha")
PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "bmm", "_int_mm"), ("a", "b")),
        **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_"), _ADDED),
        "_scaled_mm": ("a", "b", "a_scale", "b_scale", "bias", "scale_result", "out_dtype", "use_fast_accum"),
        "_grouped_mm": ("a", "b", "offsets", "bias", "out_dtype"),
    }
)
"""The parameters of the operators that are read; linear, matmul and einsum call one of these."""
_READ_INSIDE = (
    *("matmul", "linear", "mv", "einsum", "bilinear", "matmul_backward", "linear_backward"),
    *("linalg_matmul", "chain_matmul", "addbmm", "addbmm_"),
)
"""Operators that call one that is read."""
_PRODUCT = re.compile(r"(?:^|_)[a-z0-9]*?(?:gemm|mm|mv|matmul|linear)(?:_|$)")
_SCALAR_TYPES = {str(t.aten): t.name for t in DTYPES.values() if t.aten is not None}
"""Dtypes by their numbers in traces."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor among the arguments of a call."""

    dims: tuple[int, ...]
    type: str
    strides: tuple[int, ...] | None
    """None if the strides are not recorded."""


Argument = Tensor | str | None
"""A tensor, the text of another argument, or None for an argument that is None."""
UNKNOWN = "?"
"""The text of an argument that is not recorded."""


class Reading(NamedTuple):
    """The problem of a call, and notes on it."""

    fields: Fields
    left_out: tuple[str, ...]
    assumed: tuple[str, ...]


def unsupported(operator: str) -> str:
    """Why an operator such as ``aten::_scaled_mm_v2`` is not read; empty for those that are, and for others than
    products."""
    space, _, name = operator.rpartition("::")
    if name in PARAMETERS or name in _READ_INSIDE or not _PRODUCT.search(name):
        return ""
    if space == "aten":
        return f"{operator} is not supported"
    return f"{operator} is not read; only PyTorch's own operators are" if space else ""


def add_call(entry: Entry, operator: str, arguments: Sequence[Argument], count: int = 1) -> None:
    """Add the problem of a call of one of :data:`PARAMETERS`, with its notes; LeftOut if gemmill has none."""
    reading = _read(operator, tuple(arguments))
    entry.add(reading.fields, count)
    for why in reading.left_out:
        entry.leave_out(why)
    for why in reading.assumed:
        entry.assume(why)


@lru_cache(4096)
def _read(operator: str, arguments: tuple[Argument, ...]) -> Reading:
    call = _Call(operator, _named(operator, arguments))
    keywords = call.keywords()
    try:
        problem = read_call(keywords).problem
    except (OperandError, ProblemError) as error:
        raise LeftOut(str(error).partition("\n")[0]) from None
    return Reading(call.fields(problem), tuple(call.left_out), tuple(call.assumed))


def _named(operator: str, arguments: tuple[Argument, ...]) -> dict[str, Argument]:
    """The arguments by name; ``out`` is the last one of overloads that have it, ``out_dtype`` the one after B."""
    names = [*PARAMETERS[operator]]
    out: dict[str, Argument] = {}
    if len(arguments) > len(names) and isinstance(arguments[-1], Tensor):
        out, arguments = {"out": arguments[-1]}, arguments[:-1]
    if len(arguments) > len(names) and "out_dtype" not in names:
        names.insert(names.index("b") + 1, "out_dtype")
    return dict(zip(names, arguments, strict=False)) | out


class _Call:
    """One call while it is read: its arguments by name, and notes."""

    def __init__(self, operator: str, arguments: Mapping[str, Argument]) -> None:
        self.operator, self.arguments = operator, arguments
        self.left_out: list[str] = []
        self.assumed: list[str] = []
        self.d_is_known = True
        for name in ("a", "b"):
            tensor = arguments.get(name)
            if not isinstance(tensor, Tensor) or not tensor.dims:
                raise LeftOut(f"the dims of {name.upper()} are not recorded")
            if 0 in tensor.dims:
                raise LeftOut(f"{name.upper()} is empty; the extents of a problem must be at least 1")

    def keywords(self) -> dict[str, Any]:
        """The arguments of gemmill's call."""
        a, b = self.view("a"), self.view("b")
        vector = self.operator.startswith("addmv")
        ranks = {"bmm": (3, 3), "baddbmm": (3, 3), "baddbmm_": (3, 3)}.get(self.operator, (2, 1 if vector else 2))
        shapes = f"the dims of A {shown(str([*a.shape]))} and B {shown(str([*b.shape]))}"
        if self.operator == "_grouped_mm":
            return self._grouped(a, b, shapes)
        if (
            (len(a.shape), len(b.shape)) != ranks
            or a.shape[-1] != b.shape[-1 if vector else -2]
            or (ranks == (3, 3) and a.shape[0] != b.shape[0])
        ):
            raise LeftOut(f"{shapes} do not match")
        shape = a.shape[:-1] if vector else (*a.shape[:-1], b.shape[-1])
        keywords: dict[str, Any] = {"a": a, "b": b, "out": self._out(shape, self._type_of_d(a))}
        if "c" in PARAMETERS[self.operator]:
            keywords |= self._added(shape)
        if self.operator == "_scaled_mm":
            keywords |= self._scaled(a, b)
        if "f32" in (a.dtype, b.dtype):
            self.assumed.append("whether TF32 is allowed is not recorded; assuming that f32 stays f32")
        return keywords

    def view(self, name: str) -> TensorView:
        """A tensor as the runtime sees it, contiguous if its strides are not recorded, and aligned to 16 bytes."""
        tensor = self.arguments[name]
        assert isinstance(tensor, Tensor)
        strides = _packed(tensor.dims) if tensor.strides is None else tensor.strides
        if name in ("a", "b", "c") and not _has_contiguous_extent(tensor.dims, strides):
            self.left_out.append(
                f"the strides of {name.upper()}, which is contiguous along neither extent: PyTorch copies it"
            )
            strides = _packed(tensor.dims)
        return TensorView(0, tensor.dims, strides, dtype(tensor.type, name.upper() if len(name) == 1 else name), 0)

    def text(self, name: str) -> str | None:
        """An argument that is no tensor; None if it is None."""
        value = self.arguments.get(name, UNKNOWN)
        return value if isinstance(value, str) else None

    def number(self, name: str) -> float:
        """A factor; 1 if it is not recorded."""
        text = self.text(name)
        try:
            return float(text or "")
        except ValueError:
            self.assumed.append(f"{name} of {self.operator} is not recorded; assuming 1")
            return 1.0

    def _type_of_d(self, a: TensorView) -> DTypeName:
        if self.operator == "_int_mm":
            return "s32"
        text = self.text("out_dtype") if "out_dtype" in self.arguments or self.operator == "_scaled_mm" else None
        if text and (name := _SCALAR_TYPES.get(text) or find_dtype(text)):
            return name
        if text is not None:
            self.d_is_known = False
            self.assumed.append(
                f"the type of D of {self.operator} is not recorded; assuming that of the manifest, or the default"
            )
        return a.dtype if text is None else default_output(a.dtype)

    def _out(self, shape: tuple[int, ...], type_of_d: DTypeName) -> TensorView:
        """D, which PyTorch allocates without padding unless the call has it."""
        given = self.arguments.get("c" if self.operator.endswith("_") else "out")
        strides = given.strides if isinstance(given, Tensor) and given.dims == shape else None
        return TensorView(0, shape, strides or _packed(shape), type_of_d, 0)

    def _added(self, shape: tuple[int, ...]) -> dict[str, Any]:
        """C, or a bias along N, which becomes an operand of the epilogue."""
        alpha, beta = self.number("alpha"), self.number("beta")
        if beta == 0:
            return {"alpha": alpha}
        c = self.view("c") if isinstance(self.arguments.get("c"), Tensor) else None
        if c is None:
            raise LeftOut("the dims of the added matrix are not recorded")
        factors = {} if alpha == beta == 1 else {"alpha": alpha, "beta": beta}
        if c.shape == shape and 0 not in c.strides:
            return {"c": c, **factors}
        repeats = all(extent == 1 or step == 0 for extent, step in zip(c.shape[:-1], c.strides, strict=False))
        if c.shape[-1:] == shape[-1:] and repeats and len(shape) > 1:
            bias = TensorView(0, c.shape[-1:], c.strides[-1:], c.dtype, 0)
            text = "d = alpha * acc + beta * bias[n]" if factors else "d = acc + bias[n]"
            return {"bias": bias, "epilogue": text, **factors}
        raise LeftOut(f"the added matrix is {shown(str([*c.shape]))}; it must be M x N, or a row of N")

    def _scaled(self, a: TensorView, b: TensorView) -> dict[str, Any]:
        """Scales of operands, rows and columns, or blocks, and a bias."""
        if isinstance(self.arguments.get("scale_result"), Tensor):
            self.left_out.append("scale_result of _scaled_mm: a problem cannot scale D by a further tensor")
        fast = self.text("use_fast_accum")
        if fast not in ("True", "False"):
            self.assumed.append("use_fast_accum of _scaled_mm is not recorded; assuming False")
        keywords: dict[str, Any] = {"fast_accumulation": fast == "True"}
        if isinstance(self.arguments.get("bias"), Tensor):
            keywords |= {"bias": self.view("bias"), "epilogue": "d = acc + bias[n]"}
        scales = {name: x for name in ("a_scale", "b_scale") if isinstance(x := self.arguments.get(name), Tensor)}
        if len(scales) < 2:
            self.left_out.append("the scales of _scaled_mm: their dims are not recorded")
            return keywords
        (m, k), n = a.shape, b.shape[1]
        blocks = -(-k // SCALE_BLOCK)
        of_a, of_b = (scale.dims for scale in scales.values())
        forms = (((m, 1), (1, n)), ((m, blocks), (blocks, -(-n // SCALE_BLOCK))), ((m, blocks), (blocks, n)))
        for scale in scales.values():
            if find_dtype(scale.type) != "f32":
                raise LeftOut(f"scales of the type {shown(scale.type)} are not supported; scales must be float32")
        if (of_a, of_b) not in forms and not all(set(dims) <= {1} for dims in (of_a, of_b)):
            raise LeftOut(
                f"scales of {shown(str([*of_a]))} and {shown(str([*of_b]))} are not supported; use one scale, one for "
                "each row and column, 1x128 or 128x128"
            )
        return keywords | {name: self.view(name) for name in scales}

    def _grouped(self, a: TensorView, b: TensorView, shapes: str) -> dict[str, Any]:
        """Groups along M (A of two dims, B of three) or along K (two and two), or a batch."""
        ranks = len(a.shape), len(b.shape)
        if ranks not in ((2, 3), (2, 2), (3, 3)) or a.shape[-1] != b.shape[-2]:
            raise LeftOut(f"{shapes} are not supported; only groups along M and K and batches are")
        if isinstance(self.arguments.get("bias"), Tensor):
            self.left_out.append("the bias of _grouped_mm: each group has its own")
        offsets = self.arguments.get("offsets")
        groups = (
            b.shape[0] if len(b.shape) == 3 else offsets.dims[0] if isinstance(offsets, Tensor) and offsets.dims else 0
        )
        if not groups:
            raise LeftOut("the number of groups along K is not recorded")
        rows, columns = a.shape[-2], b.shape[-1]
        d = self._type_of_d(a)
        width = -(-columns * DTYPES[d].bytes // 16) * 16 // DTYPES[d].bytes  # PyTorch pads the rows of D
        if ranks == (2, 3):
            out = TensorView(0, (rows, columns), (width, 1), d, 0)
        else:
            out = TensorView(0, (groups, rows, columns), (rows * width, width, 1), d, 0)
        if ranks == (3, 3):
            return {"a": a, "b": b, "out": out}
        self.assumed.append("the sizes of groups are not recorded; assuming equal sizes")
        return {"a": a, "b": b, "out": out, "offsets": TensorView(0, (groups,), (1,), "s32", 0)}

    def fields(self, problem: GemmProblem) -> Fields:
        """The keywords of a problem without those that are not recorded."""
        fields: dict[str, int | str] = {
            **problem.to_dict(),
            "a": problem.a_dtype,
            "b": problem.b_dtype,
            "d": problem.d_dtype,
            "a_major": problem.a_major,
            "b_major": problem.b_major,
            "d_major": problem.d_major,
            **({"c_major": problem.c_major} if problem.c_major else {}),
        }
        for name in ("a", "b"):
            tensor = self.arguments[name]
            if isinstance(tensor, Tensor) and tensor.strides is None:
                for word in (f"{name}_major", f"{name}_align"):
                    fields.pop(word, None)
        if not self.d_is_known:
            del fields["d"]
        return fields


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * max(extent, 1))
    return tuple(strides[: len(shape)]) if shape else ()


def _has_contiguous_extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the rows or the columns of a matrix are contiguous."""
    return len(shape) < 2 or 1 in shape[-2:] or 1 in strides[-2:]
