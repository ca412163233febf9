"""Computes the operators with PyTorch on any device. Sums are float32, float64 for f64 operands, and exact for
integers.

This is for tests and for machines without a GPU (:func:`gemmill.runtime.torch.operators.run_on_cpu`). Arguments are
those of ``matmul`` and ``grouped_matmul``; options that affect only how a kernel computes are ignored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gemmill.library import e2m1
from gemmill.library.dtypes import DTYPES, find_dtype
from gemmill.library.epilogues.evaluation import reduced, values
from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.tree import SCALE, sums_by_name
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.operands.matrices import GROUP_SIZES, SCALE_BLOCK
from gemmill.runtime.operands.tensors import dtype_named
from gemmill.runtime.torch.outputs import Output, of_batch, of_epilogue, of_groups

Matrices = tuple[torch.Tensor, torch.Tensor]


def matmul(a: torch.Tensor, b: torch.Tensor, **keywords: Any) -> list[torch.Tensor]:
    """``alpha * a @ b + beta * c``, with scales and zero points."""
    (d,) = of_batch(a, b, **keywords)
    return [_stored(_linear(_sums(a, b, **keywords), **keywords), d)]


def grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
    **keywords: Any,
) -> list[torch.Tensor]:
    """``alpha * a @ b + beta * c`` for each group; 0 outside of all groups."""
    (d,) = of_groups(a, b, offsets, counts, **keywords)
    rows = keywords.pop("rows", None)
    if "a_scale" in keywords:
        keywords["a_scale"] = gathered_scales(keywords["a_scale"], rows)
    a = gathered(a, b, rows)
    return [_stored(_linear(_grouped_sums(a, b, offsets, counts, **keywords), **keywords), d)]


def epilogue(
    expression: str, a: torch.Tensor, b: torch.Tensor, named: dict[str, Any], **keywords: Any
) -> list[torch.Tensor]:
    """Apply an expression to the sums. Returns D, then the further outputs."""
    parsed = read_epilogue(expression)
    wanted = of_epilogue(expression, a, b, named, **keywords)
    mainloop: dict[str, Any] = {x: named[x] for x in ("a_zero", "b_zero") if x in named}
    in_expression = {x.name for x in parsed.operands}
    scales = {x: y for x in SCALES if isinstance(y := named.get(x), torch.Tensor) and x not in in_expression}
    blocks = have_blocks(a, b, scales.get("a_scale"), scales.get("b_scale"))
    if mainloop or blocks or "a_dtype" in keywords or "b_dtype" in keywords:
        mainloop |= scales
    if "offsets" in named or "counts" in named:
        narrow = {"b_dtype": keywords.get("b_dtype"), **mainloop}
        narrow["a_scale"] = gathered_scales(narrow.get("a_scale"), named.get("rows"))
        of_rows = gathered(a, b, named.get("rows"))
        sums = _grouped_sums(of_rows, b, named.get("offsets"), named.get("counts"), **narrow)
    else:
        sums = _sums(a, b, **keywords, **mainloop)
    sums = sums.double()
    for name in SCALES:
        if name in named and name not in in_expression and name not in mainloop:
            sums = sums * torch.as_tensor(named[name]).double()
    inputs = sums_by_name(parsed, sums)
    like = next(iter(inputs.values()))
    spread = Spread(like, named.get("offsets") if b.dim() == 3 else None)
    inputs |= {name: spread("scalar", named.get(name, 1.0)) for name in ("alpha", "beta")}
    inputs |= {x.name: spread(x.kind, _as_vector(x.name, x.kind, named[x.name])) for x in parsed.operands}
    if "c" in named:
        inputs["c"] = named["c"].double()
    assigned = values(parsed, inputs, torch, partial(like.new_full, ()))
    written = {
        x.name: assigned[x.name] if x.role == SCALE else reduced(x, assigned[x.name].expand(like.shape), torch)
        for x in parsed.assignments
    }
    names = ("d", *(x.name for x in parsed.outputs))
    return [_stored(written[name].broadcast_to(x.shape), x) for name, x in zip(names, wanted, strict=True)]


def _as_vector(name: str, kind: str, x: Any) -> Any:
    """A scale of rows (..., M, 1) or of columns (..., 1, N) without the extent of 1; other operands as they are."""
    axis = {"row": -1, "column": -2}.get(kind, 0)
    return x.squeeze(axis) if axis and name in SCALES and isinstance(x, torch.Tensor) and x.dim() > 1 else x


AXES = {"row": (-1,), "batch": (-1, -1), "matrix": (), "scalar": ()}
"""For each kind of operand, the axes of D that it lacks. Columns are not here: they lack axis -2 if they have a
batch."""


class Spread:
    """Reshapes operands so that they broadcast to D. For groups of rows at ``offsets``, which share one D, an operand
    with a value for each group is expanded to a value for each row."""

    def __init__(self, like: torch.Tensor, offsets: torch.Tensor | None) -> None:
        self.like = like
        self.group = None if offsets is None else groups_of_rows(offsets, like.shape[0])
        """The group of each row; None without groups of rows."""

    def is_of_groups(self, kind: str, x: torch.Tensor) -> bool:
        """Whether an operand has a value for each group of rows."""
        return self.group is not None and (kind == "batch" or (kind == "column" and x.dim() > 1))

    def __call__(self, kind: str, x: Any) -> Any:
        """Reshape an operand (a tensor or a number) of a kind."""
        if not isinstance(x, torch.Tensor):
            return self.like.new_full((), x)
        wide = x.to(self.like.dtype)
        if self.is_of_groups(kind, x):
            wide = wide.index_select(0, self.group)
            return wide[:, None] if kind == "batch" else wide
        if kind == "scalar":
            return wide.reshape(())
        for at in AXES.get(kind, (-2,) if x.dim() > 1 else ()):
            wide = wide.unsqueeze(at)
        return wide


def groups_of_rows(offsets: torch.Tensor, rows: Any) -> torch.Tensor:
    """The group of each row; the last group for rows after all groups."""
    row_numbers = torch.arange(rows, device=offsets.device)
    return torch.searchsorted(offsets.long(), row_numbers, right=True).clamp(max=offsets.shape[0] - 1)


def _linear(
    sums: torch.Tensor, c: torch.Tensor | None = None, alpha: float = 1.0, beta: float | None = None, **_: Any
) -> torch.Tensor:
    is_whole = not (sums.is_floating_point() or sums.is_complex())
    if alpha != 1.0:
        sums = alpha * sums.float() if is_whole else alpha * sums
    if c is None or beta == 0:
        return sums
    return sums + (1.0 if beta is None else beta) * c.to(torch.float32 if is_whole else sums.dtype)


def _sums(a: torch.Tensor, b: torch.Tensor, **keywords: Any) -> torch.Tensor:
    """``a @ b`` with scales and zero points applied."""
    a, b, a_scale, b_scale = dequantised(a, b, **keywords)
    if a_scale is not None and b_scale is not None and have_blocks(a, b, a_scale, b_scale):
        a = a.float() * _spread(a_scale, -1, SCALE_BLOCK, a.shape[-1])
        along_k = _spread(b_scale, -2, SCALE_BLOCK, b.shape[-2])
        b = b.float() * _spread(along_k, -1, SCALE_BLOCK, b.shape[-1])
        a_scale = b_scale = None
    sums = _multiplied(a, b)
    for scale in (a_scale, b_scale):
        if scale is not None:
            exact = scale.to(torch.promote_types(scale.dtype, torch.float32))
            sums = sums * (exact.reshape(()) if scale.numel() == 1 else exact)
    return sums


def dequantised(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    a_zero: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
    a_dtype: str | None = None,
    b_dtype: str | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """A and B unpacked, and the scales that are not applied yet. Scales of groups are multiplied into the narrow
    operand, which then has the other's dtype."""
    if a_dtype and find_dtype(a_dtype) == "e2m1":
        return _scaled_e2m1("a", a, a_scale, -1, b.dtype), b, None, b_scale
    if b_dtype and find_dtype(b_dtype) == "e2m1":
        return a, _scaled_e2m1("b", b.mT, b_scale, -2, a.dtype).mT, a_scale, None
    if a_dtype and b.dtype == torch.float8_e4m3fn:
        b = b.float()  # kernels scale sums in f32
    if b_dtype and a.dtype == torch.float8_e4m3fn:
        a = a.float()
    a = _unpacked(a.mT, a_dtype, b.shape[-2]).mT if a_dtype else a
    b = _unpacked(b, b_dtype, a.shape[-1]) if b_dtype else b
    if a.dtype.itemsize < b.dtype.itemsize and _has_groups(a_scale, a_zero, a.mT, b.dtype):
        a, a_scale = _scaled_groups(a.mT, _turned(a_scale), _turned(a_zero), b.dtype).mT, None
    elif b.dtype.itemsize < a.dtype.itemsize and _has_groups(b_scale, b_zero, b, a.dtype):
        b, b_scale = _scaled_groups(b, b_scale, b_zero, a.dtype), None
    return a, b, a_scale, b_scale


def _multiplied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` in the dtype of the sums: int32, float64, float32 or a complex one."""
    if a.is_complex() or b.is_complex():
        return torch.matmul(a, b)
    if not (a.is_floating_point() or b.is_floating_point()):
        return torch.matmul(a.long(), b.long()).int()
    dtype = torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32
    return torch.matmul(a.to(dtype), b.to(dtype))


def gathered(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """The rows of A in the order of an index, or its columns for groups along K; entries outside of A count as the last
    of them, as in kernels."""
    axis = 3 - b.dim()
    return a if rows is None else a.index_select(axis, inside(rows, a.shape[axis]))


def gathered_scales(scale: torch.Tensor | None, rows: torch.Tensor | None) -> torch.Tensor | None:
    """Scales of blocks of A's rows in the order of an index."""
    return scale if scale is None or rows is None else scale.index_select(0, inside(rows, scale.shape[0]))


def inside(rows: torch.Tensor, extent: int) -> torch.Tensor:
    """An index whose entries are all below ``extent``."""
    return torch.where((rows < 0) | (rows >= extent), extent - 1, rows)


def _grouped_sums(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None,
    counts: torch.Tensor | None,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    b_zero: torch.Tensor | None = None,
    b_dtype: str | None = None,
    **_: Any,
) -> torch.Tensor:
    (d,) = of_groups(a, b, offsets, counts, b_dtype=b_dtype)
    sums = a.new_zeros(d.shape, dtype=_multiplied(a[..., :0, :0], a[..., :0, :0].mT).dtype)
    ends = (counts if offsets is None else offsets).tolist()  # type: ignore[union-attr]
    for group, (start, end) in enumerate(zip((0, *ends), ends, strict=False)):
        scale, zero = (x if x is None or x.dim() < 3 else x[group] for x in (b_scale, b_zero))
        of_b = {"b_scale": scale, "b_zero": zero, "b_dtype": b_dtype}
        if offsets is None:
            scale_of_rows = None if a_scale is None else a_scale[group, :end]
            sums[group, :end] = _sums(a[group, :end], b[group], a_scale=scale_of_rows, **of_b)
        elif b.dim() == 3:
            scale_of_rows = None if a_scale is None else a_scale[start:end]
            sums[start:end] = _sums(a[start:end], b[group], a_scale=scale_of_rows, **of_b)
        else:
            sums[group] = _multiplied(a[:, start:end], b[start:end])
    return sums


def _has_groups(scale: torch.Tensor | None, zero: torch.Tensor | None, narrow: torch.Tensor, wide: torch.dtype) -> bool:
    """Whether a scale, (K / group, N) or its transpose, belongs to groups along K of a narrow (K, N)."""
    if scale is None or scale.dim() < 2 or (zero is None and scale.dtype != wide):
        return False
    sizes = {-(-narrow.shape[-2] // size) for size in GROUP_SIZES}
    return {*scale.shape[-2:]} in [{size, narrow.shape[-1]} for size in sizes]


def _scaled_groups(
    narrow: torch.Tensor, scale: torch.Tensor | None, zero: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """``(narrow - zero) * scale`` of groups along K, the second last extent, rounded after each step."""
    assert scale is not None
    k = narrow.shape[-2]
    size = next(size for size in GROUP_SIZES if -(-k // size) == scale.shape[-2])
    wide = narrow.to(dtype)
    if zero is not None:
        wide = wide - _spread(zero, -2, size, k)
    return wide * _spread(scale, -2, size, k)


def _scaled_e2m1(
    name: str, packed: torch.Tensor, scale: torch.Tensor | None, k_axis: int, dtype: torch.dtype
) -> torch.Tensor:
    """e2m1 weights (..., N, K) times their scales, from bytes (..., N, K / 2). ``k_axis`` is that of the scales."""
    if scale is None:
        raise OperandError(f"{name} is e2m1, and {name}_scale is missing: pass a scale for each 32 elements along K")
    codes = e2m1.from_fragment_order(packed.int(), torch).long()
    values = torch.tensor(e2m1.VALUES, dtype=dtype, device=packed.device)[codes]
    factors = scale.to(dtype) if k_axis == -1 else scale.to(dtype).mT
    return values * _spread(factors, -1, e2m1.MX_BLOCK, values.shape[-1])


def have_blocks(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor | None, b_scale: torch.Tensor | None) -> bool:
    """Whether the scales of operands of equal width are scales of 1 x 128 and 128 x 128 blocks."""
    if a_scale is None or b_scale is None or a.dtype.itemsize != b.dtype.itemsize:
        return False
    blocks = -(-a.shape[-1] // SCALE_BLOCK)
    rows, columns = (a.shape[-2], blocks), (blocks, -(-b.shape[-1] // SCALE_BLOCK))
    return (tuple(a_scale.shape[-2:]), tuple(b_scale.shape[-2:])) == (rows, columns)


def _spread(scales: torch.Tensor, axis: int, size: int, extent: int) -> torch.Tensor:
    """Repeat scales along an axis, to one for each element."""
    return scales.repeat_interleave(size, dim=axis).narrow(axis, 0, extent)


def _turned(scale: torch.Tensor | None) -> torch.Tensor | None:
    return None if scale is None else scale.mT


def _unpacked(packed: torch.Tensor, dtype: str, k: int) -> torch.Tensor:
    """Unpack the bytes of (..., K, N). Two 4-bit elements along K share a byte, the even one in the low half."""
    held = DTYPES[dtype_named(dtype, "dtype")]
    if held.bits == 8:
        return packed.view(getattr(torch, held.torch))
    low, high = packed & 15, (packed.view(torch.uint8) >> 4).view(packed.dtype)
    both = torch.stack((low, high), dim=-2).flatten(-3, -2)
    if held.name == "s4":
        both = torch.where(both.to(torch.int8) > 7, both.to(torch.int8) - 16, both.to(torch.int8))
    return both.narrow(-2, 0, k)


def _stored(value: torch.Tensor, d: Output) -> torch.Tensor:
    """Convert sums to D: packed, rounded to its dtype, and saturated if D has 8 bits."""
    if d.dtype.itemsize == 1:
        limits = torch.finfo(d.dtype) if d.dtype.is_floating_point else torch.iinfo(d.dtype)
        value = (value if d.dtype.is_floating_point else value.round()).clamp(limits.min, limits.max)
    elif not (d.dtype.is_floating_point or d.dtype.is_complex) and value.is_floating_point():
        value = value.round()
    stored = torch.empty(d.shape, dtype=d.dtype, device=value.device)
    return stored.copy_(value)
