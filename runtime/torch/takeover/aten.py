"""Calls of PyTorch's own operators as calls of ours: a row for each operator, and what we leave to PyTorch, and why.

A call is written down in names, not in tensors: it holds for all calls of one signature, whose tensors are looked up in
it each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from gemmill.library.dtypes import FP8
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.outputs import torch_dtype


def overload(name: str) -> Any:
    """An overload of PyTorch's operators by its name, such as ``mm.out``; without a form, the default."""
    packet, _, form = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), form or "default")


Arguments = Mapping[str, Any]
"""Arguments of a call by the names of its schema."""


class Unserved(Exception):
    """A call that is left to PyTorch, and with ``always`` all others of its signature."""

    def __init__(self, reason: str, always: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        """A few words, that calls are counted under."""
        self.always = always


class Call(NamedTuple):
    """A call of ``matmul`` or ``grouped_matmul`` on the tensors of a call of an operator."""

    tensors: dict[str, str]
    """What each operand of ours is called by the operator."""
    values: dict[str, Any]
    """Keywords that are no tensors."""
    shape: tuple[int, ...]
    """Of D."""
    dtype: torch.dtype
    strides: tuple[int, ...]
    """Of a D to be allocated."""
    out: str | None = None
    """What the operator calls a D that is given."""
    grouped: bool = False


class Row(NamedTuple):
    """An operator that we override."""

    a: str
    b: str
    read: Callable[[Row, Arguments], Call]
    """Writes a call down, or raises :class:`Unserved`."""
    c: str = ""
    out: str = ""
    rank: int = 2
    """Of A and B; of ``_grouped_mm`` either."""


def tf32_is_allowed() -> bool:
    """Whether PyTorch multiplies float32 matrices in tf32, as the program has set it, in either of two ways."""
    return bool(_float32_precision("cuda", "matmul") == "tf32")


_float32_precision = torch._C._get_fp32_precision_getter


def flops(row: Row, arguments: Arguments) -> int:
    """Floating-point operations of a call, the same whether we serve it or not."""
    a, b = arguments[row.a], arguments[row.b]
    if 0 in (a.dim(), b.dim()):
        return 0
    if a.dim() == 3 and b.dim() == 2:  # of groups along N
        return int(2 * a.shape[-2] * b.numel())
    return int(2 * a.numel() * b.shape[-1])


def _dense(row: Row, arguments: Arguments) -> Call:
    """``mm``, ``addmm``, ``bmm``, ``baddbmm``, in all their forms."""
    a, b, out = arguments[row.a], arguments[row.b], arguments.get(row.out)
    values = _of_dtype(a, b)
    shape = _d_shape(a, b, row.rank)
    dtype = arguments.get("out_dtype", a.dtype)
    if out is not None and (out.dtype is not dtype or out.shape != shape):
        raise Unserved("out of another dtype or shape")
    call = Call({"a": row.a, "b": row.b}, values, shape, dtype, _packed(shape), row.out or None)
    return _with_c(row, arguments, call) if row.c else call


def _with_c(row: Row, arguments: Arguments, call: Call) -> Call:
    """A call with its C: a matrix, or a vector along N, which kernels read as part of an epilogue."""
    c, alpha, beta = arguments[row.c], _number(arguments, "alpha"), _number(arguments, "beta")
    factors = {} if alpha == beta == 1 else {"alpha": alpha, "beta": beta}
    if beta == 0:
        return call._replace(values={**call.values, "alpha": alpha})
    if c.shape == call.shape and 0 not in c.stride():
        return call._replace(tensors={**call.tensors, "c": row.c}, values={**call.values, **factors})
    repeats = all(extent == 1 or step == 0 for extent, step in zip(c.shape[:-1], c.stride(), strict=False))
    if c.shape[-1:] == call.shape[-1:] and repeats:
        text = "d = alpha * acc + beta * bias[n]" if factors else "d = acc + bias[n]"
        values = {**call.values, **factors, "epilogue": text}
        return call._replace(tensors={**call.tensors, "bias": row.c}, values=values)
    raise Unserved("C that broadcasts otherwise than along M")


def _scaled(row: Row, arguments: Arguments) -> Call:
    """``_scaled_mm`` of e4m3 and e5m2, with scales of all, of rows and columns, or of 1 x 128 and 128 x 128."""
    a, b, out, bias = arguments[row.a], arguments[row.b], arguments.get(row.out), arguments.get("bias")
    dtype = (a.dtype if out is None else out.dtype) if arguments.get("out_dtype") is None else arguments["out_dtype"]
    if not {a.dtype, b.dtype} <= {*map(torch_dtype, FP8)}:
        raise Unserved(f"scaled products of {_name(a)} and {_name(b)}")
    if arguments.get("scale_result") is not None:
        raise Unserved("scale_result")
    shape = _d_shape(a, b, row.rank)
    if a.stride(1) != 1 or b.stride(0) != 1 or (out is not None and (out.shape != shape or out.dtype is not dtype)):
        raise Unserved("scaled products of other layouts")
    of_a, of_b = arguments["scale_a"], arguments["scale_b"]
    (m, k), n = a.shape, b.shape[1]
    blocks = -(-k // SCALE_BLOCK)
    forms = [((m, 1), (1, n)), ((m, blocks), (blocks, -(-n // SCALE_BLOCK)))]
    one_each = of_a.numel() == of_b.numel() == 1
    if not (one_each or (tuple(of_a.shape), tuple(of_b.shape)) in forms) or {of_a.dtype, of_b.dtype} != {torch.float32}:
        raise Unserved("scales of other forms")
    values: dict[str, Any] = {"fast_accumulation": bool(arguments.get("use_fast_accum", False))}
    tensors = {"a": row.a, "b": row.b, "a_scale": "scale_a", "b_scale": "scale_b"}
    if bias is not None:
        tensors["bias"], values["epilogue"] = "bias", "d = acc + bias[n]"
    return Call(tensors, values, shape, dtype, _packed(shape), row.out or None)


def _grouped(row: Row, arguments: Arguments) -> Call:
    """``_grouped_mm``: groups of rows, groups along K, and a batch."""
    a, b, offsets = arguments[row.a], arguments[row.b], arguments.get("offs")
    dtype = arguments.get("out_dtype") or a.dtype
    values = _of_dtype(a, b)
    if arguments.get("bias") is not None:
        raise Unserved("bias of groups")
    ranks = a.dim(), b.dim()
    if not {*ranks} <= {2, 3} or a.shape[-1] != b.shape[-2] or (offsets is None) != (ranks == (3, 3)):
        raise Unserved("shapes that do not fit")
    if offsets is not None and offsets.dim() != 1:
        raise Unserved("shapes that do not fit")
    if 0 in (*a.shape, *b.shape):
        raise Unserved("empty")
    if ranks == (3, 2):  # groups of rows of the transpose, with a column-major D, which no kernel has
        raise Unserved("groups along N")
    shape: tuple[int, ...] = (a.shape[-2], b.shape[-1])
    if offsets is None:
        shape = _d_shape(a, b, 3)
    elif ranks == (2, 2):
        shape = (offsets.shape[0], *shape)
    # PyTorch pads rows of D to 16 bytes.
    width = -(-shape[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = (width, 1) if len(shape) == 2 else (shape[-2] * width, width, 1)
    call = Call({"a": row.a, "b": row.b}, values, shape, dtype, strides)
    if offsets is None:
        return call
    return call._replace(tensors={**call.tensors, "offsets": "offs"}, grouped=True)


def _of_dtype(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """Options that the dtype of operands asks for."""
    if a.dtype is not b.dtype:
        raise Unserved("operands of several dtypes")
    if a.dtype is torch.float32 and tf32_is_allowed():
        return {"tf32": True}
    if a.dtype not in (torch.bfloat16, torch.float16):
        raise Unserved("float32 in full precision" if a.dtype is torch.float32 else _name(a))
    return {}


def _d_shape(a: torch.Tensor, b: torch.Tensor, rank: int) -> tuple[int, ...]:
    if {a.dim(), b.dim()} != {rank} or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise Unserved("shapes that do not fit")  # of which PyTorch is to complain
    if 0 in (*a.shape, *b.shape):
        raise Unserved("empty")
    return (*a.shape[:-1], b.shape[-1])


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _number(arguments: Arguments, name: str) -> float:
    value = arguments.get(name, 1)
    if isinstance(value, complex):
        raise Unserved("complex factors")
    return float(value)


def _name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


ROWS: Mapping[str, Row] = {
    "mm": Row("self", "mat2", _dense),
    "mm.out": Row("self", "mat2", _dense, out="out"),
    "mm.dtype": Row("self", "mat2", _dense),
    "addmm": Row("mat1", "mat2", _dense, "self"),
    "addmm.out": Row("mat1", "mat2", _dense, "self", "out"),
    "addmm_": Row("mat1", "mat2", _dense, "self", "self"),
    "addmm.dtype": Row("mat1", "mat2", _dense, "self"),
    "bmm": Row("self", "mat2", _dense, rank=3),
    "bmm.out": Row("self", "mat2", _dense, out="out", rank=3),
    "bmm.dtype": Row("self", "mat2", _dense, rank=3),
    "baddbmm": Row("batch1", "batch2", _dense, "self", rank=3),
    "baddbmm.out": Row("batch1", "batch2", _dense, "self", "out", rank=3),
    "baddbmm_": Row("batch1", "batch2", _dense, "self", "self", rank=3),
    "baddbmm.dtype": Row("batch1", "batch2", _dense, "self", rank=3),
    "_scaled_mm": Row("self", "mat2", _scaled, "bias"),
    "_scaled_mm.out": Row("self", "mat2", _scaled, "bias", "out"),
    "_grouped_mm": Row("self", "mat2", _grouped, "bias"),
}
"""By operator. ``linear`` and ``matmul`` are made of these, on every path, and so are their gradients."""
