"""Translates calls of PyTorch's ``aten`` operators into calls of gemmill, or gives the reason for a fallback.

:data:`ROWS` has a row for each operator. A :class:`Call` names tensors instead of holding them, so one :class:`Call` is
valid for all calls with the same signature; each call looks up its own tensors by these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from gemmill.library.bits import ANY
from gemmill.library.dtypes import FP8
from gemmill.runtime.operands.call_keywords import IEEE
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.outputs import torch_dtype
from gemmill.runtime.torch.takeover.blocks import Setting


def overload(name: str) -> Any:
    """The ``aten`` overload of this name, such as ``mm.out``; a name without a dot means the default overload."""
    packet, _, form = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), form or "default")


Arguments = Mapping[str, Any]
"""Arguments of an operator call, by their names in the operator's schema."""


class Unserved(Exception):
    """This call falls back to PyTorch. With ``always``, so do all later calls with the same signature."""

    def __init__(self, reason: str, always: bool = True, sums: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        """A few words; ``stats()`` counts fallbacks by this text."""
        self.always = always
        self.sums = sums
        """Whether PyTorch sums products in this call. It does not if an operand is empty, or if it raises an error."""


class Call(NamedTuple):
    """The call of ``matmul`` or ``grouped_matmul`` that replaces a call of an ``aten`` operator."""

    tensors: dict[str, str]
    """For each operand of gemmill, the name of the operator's argument that holds it."""
    values: dict[str, Any]
    """The keywords of gemmill that are not tensors."""
    shape: tuple[int, ...]
    """Shape of D."""
    dtype: torch.dtype
    """Dtype of D."""
    strides: tuple[int, ...]
    """Strides in elements of D, if gemmill allocates it."""
    out: str | None = None
    """Name of the operator's argument that D is written to; None if gemmill allocates D."""
    grouped: bool = False
    """True for ``grouped_matmul``."""


class Row(NamedTuple):
    """An ``aten`` operator that gemmill overrides: the names of its arguments, and how to translate a call."""

    a: str
    b: str
    read: Callable[[Row, Arguments, Setting], Call]
    """Translates a call, given the setting that holds, or raises :class:`Unserved`."""
    c: str = ""
    out: str = ""
    rank: int = 2
    """Number of dimensions of A and B; ``_grouped_mm`` ignores it."""


def tf32_is_allowed() -> bool:
    """Whether the program allows PyTorch to multiply float32 matrices in tf32, by either of PyTorch's two settings."""
    return bool(_float32_precision("cuda", "matmul") == "tf32")


def f32_precision(setting: Setting) -> str | None:
    """The precision of float32 products: that of the setting, else ``tf32`` if the program allows it. Otherwise
    ``ieee`` if ``bits`` must hold, and else None: PyTorch computes them faster, but does not promise their bits."""
    if setting.f32 is not None:
        return setting.f32
    if tf32_is_allowed():
        return "tf32"
    return None if setting.bits == ANY else IEEE


_float32_precision = torch._C._get_fp32_precision_getter


def flops(row: Row, arguments: Arguments) -> int:
    """Floating-point operations of a call, by the same formula whether it runs on gemmill or falls back."""
    a, b = arguments[row.a], arguments[row.b]
    if 0 in (a.dim(), b.dim()):
        return 0
    of_one = 8 if a.is_complex() else 2
    if a.dim() == 3 and b.dim() == 2:  # groups along N
        return int(of_one * a.shape[-2] * b.numel())
    return int(of_one * a.numel() * b.shape[-1])


def _dense(row: Row, arguments: Arguments, setting: Setting) -> Call:
    """Translate ``mm``, ``addmm``, ``bmm`` and ``baddbmm``, in all their overloads."""
    a, b, out = arguments[row.a], arguments[row.b], arguments.get(row.out)
    values = _of_dtype(a, b, setting)
    shape = _d_shape(a, b, row.rank)
    dtype = arguments.get("out_dtype", a.dtype)
    if out is not None and (out.dtype is not dtype or out.shape != shape):
        raise Unserved("out has another dtype or shape than D")
    call = Call({"a": row.a, "b": row.b}, values, shape, dtype, _packed(shape), row.out or None)
    if row.c:
        return _with_c(row, arguments, call)
    return call._replace(values={**values, "symmetric": True}) if _is_transpose(a, b) else call


def _is_transpose(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether B is the transpose of A in the same memory, of a type with kernels for a symmetric D."""
    views = [(x.data_ptr(), *x.shape, *x.stride()) for x in (a, b.mT)]
    return a.dtype.itemsize == 2 and views[0] == views[1]


def _with_c(row: Row, arguments: Arguments, call: Call) -> Call:
    """The call with its C: a matrix of D's shape, or a vector along N, which becomes an operand of the epilogue."""
    c, alpha, beta = arguments[row.c], _number(arguments, "alpha"), _number(arguments, "beta")
    factors = {} if alpha == beta == 1 else {"alpha": alpha, "beta": beta}
    if beta == 0:
        return call._replace(values={**call.values, "alpha": alpha})
    repeats = all(extent == 1 or step == 0 for extent, step in zip(c.shape[:-1], c.stride(), strict=False))
    is_vector = c.shape[-1:] == call.shape[-1:] and repeats
    if (c.shape == call.shape and 0 not in c.stride()) or (is_vector and c.is_complex()):
        return call._replace(tensors={**call.tensors, "c": row.c}, values={**call.values, **factors})
    if is_vector:
        text = "d = alpha * acc + beta * bias[n]" if factors else "d = acc + bias[n]"
        values = {**call.values, **factors, "epilogue": text}
        return call._replace(tensors={**call.tensors, "bias": row.c}, values=values)
    raise Unserved("C is neither a matrix like D nor a vector along N")


def _scaled(row: Row, arguments: Arguments, setting: Setting) -> Call:
    """Translate ``_scaled_mm`` of e4m3 and e5m2. Scales are one value each, one for each row and column, or one for
    each block of 1 x 128 of A and 128 x 128 of B."""
    a, b, out, bias = arguments[row.a], arguments[row.b], arguments.get(row.out), arguments.get("bias")
    dtype = (a.dtype if out is None else out.dtype) if arguments.get("out_dtype") is None else arguments["out_dtype"]
    if not {a.dtype, b.dtype} <= {*map(torch_dtype, FP8)}:
        raise Unserved(f"scaled products of {_name(a)} and {_name(b)} are not supported")
    if arguments.get("scale_result") is not None:
        raise Unserved("scale_result is not supported")
    shape = _d_shape(a, b, row.rank)
    if a.stride(1) != 1 or b.stride(0) != 1 or (out is not None and (out.shape != shape or out.dtype is not dtype)):
        raise Unserved("layout of a scaled product is not supported")
    of_a, of_b = arguments["scale_a"], arguments["scale_b"]
    (m, k), n = a.shape, b.shape[1]
    blocks = -(-k // SCALE_BLOCK)
    forms = [((m, 1), (1, n)), ((m, blocks), (blocks, -(-n // SCALE_BLOCK)))]
    one_each = of_a.numel() == of_b.numel() == 1
    if not (one_each or (tuple(of_a.shape), tuple(of_b.shape)) in forms) or {of_a.dtype, of_b.dtype} != {torch.float32}:
        raise Unserved("shape or dtype of the scales is not supported")
    values: dict[str, Any] = {"fast_accumulation": bool(arguments.get("use_fast_accum", False)), **_promised(setting)}
    tensors = {"a": row.a, "b": row.b, "a_scale": "scale_a", "b_scale": "scale_b"}
    if bias is not None:
        tensors["bias"], values["epilogue"] = "bias", "d = acc + bias[n]"
    return Call(tensors, values, shape, dtype, _packed(shape), row.out or None)


def _grouped(row: Row, arguments: Arguments, setting: Setting) -> Call:
    """Translate ``_grouped_mm``: groups of rows, groups along K, or a batch."""
    a, b, offsets = arguments[row.a], arguments[row.b], arguments.get("offs")
    dtype = arguments.get("out_dtype") or a.dtype
    values = _of_dtype(a, b, setting)
    if arguments.get("bias") is not None:
        raise Unserved("a bias of a grouped product is not supported")
    ranks = a.dim(), b.dim()
    if not {*ranks} <= {2, 3} or a.shape[-1] != b.shape[-2] or (offsets is None) != (ranks == (3, 3)):
        raise _mismatch()
    if offsets is not None and offsets.dim() != 1:
        raise _mismatch()
    if 0 in (*a.shape, *b.shape):
        raise _empty()
    if ranks == (3, 2):  # the transpose is groups of rows with a column-major D, which no kernel writes
        raise Unserved("groups along N are not supported")
    shape: tuple[int, ...] = (a.shape[-2], b.shape[-1])
    if offsets is None:
        shape = _d_shape(a, b, 3)
    elif ranks == (2, 2):
        shape = (offsets.shape[0], *shape)
    # As PyTorch does, pad the rows of D to a multiple of 16 bytes.
    width = -(-shape[-1] * dtype.itemsize // 16) * 16 // dtype.itemsize
    strides = (width, 1) if len(shape) == 2 else (shape[-2] * width, width, 1)
    call = Call({"a": row.a, "b": row.b}, values, shape, dtype, strides)
    if offsets is None:
        return call
    return call._replace(tensors={**call.tensors, "offsets": "offs"}, grouped=True)


def _of_dtype(a: torch.Tensor, b: torch.Tensor, setting: Setting) -> dict[str, Any]:
    """The options that the operands' dtype and a setting require; raises :class:`Unserved` for unsupported dtypes.

    PyTorch computes float64 faster, but does not promise the bits of its sums.
    """
    if a.dtype is not b.dtype:
        raise Unserved("A and B have different dtypes")
    promised = _promised(setting)
    if a.dtype in (torch.float32, torch.complex64):
        precision = f32_precision(setting)
        if precision is None or (a.is_complex() and not (promised or setting.f32)):
            raise Unserved(f"{_name(a)} without {'' if a.is_complex() else 'tf32 or '}f32=")
        return promised if precision == IEEE else {"precision": precision, **promised}
    if a.dtype in (torch.bfloat16, torch.float16) or (promised and a.dtype in (torch.float64, torch.complex128)):
        return promised
    raise Unserved(f"{_name(a)} is not supported")


def _promised(setting: Setting) -> dict[str, Any]:
    return {} if setting.bits == ANY else {"bits": setting.bits}


def _d_shape(a: torch.Tensor, b: torch.Tensor, rank: int) -> tuple[int, ...]:
    if {a.dim(), b.dim()} != {rank} or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise _mismatch()
    if 0 in (*a.shape, *b.shape):
        raise _empty()
    return (*a.shape[:-1], b.shape[-1])


def _mismatch() -> Unserved:
    return Unserved("shapes do not match", sums=False)  # PyTorch raises its own error


def _empty() -> Unserved:
    return Unserved("an operand is empty", sums=False)


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _number(arguments: Arguments, name: str) -> float:
    value = arguments.get(name, 1)
    if isinstance(value, complex):
        raise Unserved("alpha or beta is complex")
    return float(value)


def _name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


ROWS: Mapping[str, Row] = {
    "mm": Row("self", "mat2", _dense),
    "mm.out": Row("self", "mat2", _dense, out="out"),
    "mm.dtype": Row("self", "mat2", _dense),
    "mm.dtype_out": Row("self", "mat2", _dense, out="out"),
    "addmm": Row("mat1", "mat2", _dense, "self"),
    "addmm.out": Row("mat1", "mat2", _dense, "self", "out"),
    "addmm_": Row("mat1", "mat2", _dense, "self", "self"),
    "addmm.dtype": Row("mat1", "mat2", _dense, "self"),
    "addmm.dtype_out": Row("mat1", "mat2", _dense, "self", "out"),
    "bmm": Row("self", "mat2", _dense, rank=3),
    "bmm.out": Row("self", "mat2", _dense, out="out", rank=3),
    "bmm.dtype": Row("self", "mat2", _dense, rank=3),
    "bmm.dtype_out": Row("self", "mat2", _dense, out="out", rank=3),
    "baddbmm": Row("batch1", "batch2", _dense, "self", rank=3),
    "baddbmm.out": Row("batch1", "batch2", _dense, "self", "out", rank=3),
    "baddbmm_": Row("batch1", "batch2", _dense, "self", "self", rank=3),
    "baddbmm.dtype": Row("batch1", "batch2", _dense, "self", rank=3),
    "baddbmm.dtype_out": Row("batch1", "batch2", _dense, "self", "out", rank=3),
    "_scaled_mm": Row("self", "mat2", _scaled, "bias"),
    "_scaled_mm.out": Row("self", "mat2", _scaled, "bias", "out"),
    "_grouped_mm": Row("self", "mat2", _grouped, "bias"),
}
"""By operator. PyTorch computes ``linear``, ``matmul`` and all their gradients with these operators."""

_ADVICE_FOR_VECTORS = "it multiplies a vector: pass a matrix of one column, x[:, None]"
_ADVICE_FOR_VERSIONS = "gemmill computes torch._scaled_mm and torch._grouped_mm"
_ADVICE_FOR_WEIGHTS = "convert the layer to gemmill.torch.Linear"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("addmv", "addmv.out", "addmv_", "dot", "vdot"), _ADVICE_FOR_VECTORS),
        **dict.fromkeys(("_addmm_activation", "_addmm_activation.out"), "call torch.addmm, then the activation"),
        "_foreach_mm": "call torch.mm for each pair",
        **dict.fromkeys(
            ("_scaled_grouped_mm", "_scaled_mm_v2", "_scaled_mm_v2.out", "_scaled_grouped_mm_v2"), _ADVICE_FOR_VERSIONS
        ),
        **dict.fromkeys(("_weight_int4pack_mm", "_weight_int8pack_mm", "_mixed_dtypes_linear"), _ADVICE_FOR_WEIGHTS),
    }
)
"""Products that PyTorch always computes, and what to do where ``bits`` must hold. PyTorch computes ``mv`` by
``addmv``."""
