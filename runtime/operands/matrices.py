"""Reads strided tensors as batches of matrices, and these as A, B, C or D of a kernel.

It finds which extent is contiguous, the strides of the others, and the alignment of all of them. Scales of blocks and
of groups along K are read likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from gemmill.library.arch import TMA_MAX_STRIDE
from gemmill.library.config.scales import BLOCK_SCALES, MX_SCALE, dtype_of_groups
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.errors import OperandError
from gemmill.library.problem import MAX_EXTENT, is_mixed
from gemmill.library.wording import one_of
from gemmill.runtime.operands.tensors import TensorView

if TYPE_CHECKING:
    from gemmill.runtime.operands.complex_products import RealForm


class Operand(NamedTuple):
    """A, B, C or D in memory: matrices at one batch stride."""

    name: str
    """The caller's name for it."""
    ptr: int
    """Address of the first element."""
    dtype: DTypeName
    major: str
    """The contiguous extent by its name in configs: ``k`` or ``mn`` for A and B, ``n`` or ``m`` for C and D. ``any``:
    no extent is contiguous, or the stride of the other extent is not a positive number of elements."""
    stride: int
    """Elements between neighbours along the other extent. Without meaning where that extent is 0 or 1, or for
    ``any``."""
    batch_stride: int
    """Elements between matrices; 0 where the whole batch shares one. For a nested batch, the greatest common divisor of
    its strides."""
    align: int
    """Largest power of two up to 16 that divides the address and all strides, in bytes."""
    row_stride: int = 0
    """Elements between neighbouring rows (A is M x K, B is K x N, C and D are M x N); 0 where there is only one row."""
    column_stride: int = 0
    """Elements between neighbouring columns; 0 where there is only one column."""
    batch_steps: tuple[int, ...] = ()
    """For a nested batch: the stride of each extent, in multiples of ``batch_stride``."""
    components: int = 1
    """Components of each matrix of split f32, which follow one another; 1 for other operands."""
    component_stride: int = 0
    """Elements between components."""
    real_form: RealForm | None = None
    """For a complex operand that a kernel first writes in a real form: how. All else describes that form, except the
    address."""
    magnitudes: int | None = None
    """Bytes from its address to the magnitudes by which its rows or columns are scaled; None for operands that are not
    scaled before they are split."""

    def places(self, batch: int, nested: tuple[int, ...]) -> int:
        """Return how many places ``batch_stride`` apart the matrices of a batch span; some places may hold no
        matrix."""
        if nested:
            return 1 + sum((extent - 1) * step for extent, step in zip(nested, self.batch_steps, strict=True))
        return batch if self.batch_stride else 1

    def outermost(self, batch: int, nested: tuple[int, ...]) -> tuple[int, int]:
        """Return how many matrices TMA sees, and the elements between them: the components of all matrices of split
        f32, else the :meth:`places`."""
        places = self.places(batch, nested)
        if self.components == 1:
            return places, self.batch_stride
        return places * self.components, self.component_stride

    @property
    def transposed(self) -> Operand:
        """The operand with rows and columns exchanged. The majors of A and B are named relative to K, so they stay."""
        major = {"n": "m", "m": "n"}.get(self.major, self.major)
        return self._replace(major=major, row_stride=self.column_stride, column_stride=self.row_stride)


class Matrices(NamedTuple):
    """A tensor as a batch of matrices, rows x columns; strides in elements."""

    name: str
    tensor: TensorView
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    batch_strides: tuple[int, ...] = ()
    """Strides along the extents of the batch: one, or several for a nested batch."""

    @property
    def batch_stride(self) -> int:
        """Elements between the matrices of a batch with one stride; 0 where they share one."""
        return self.batch_strides[0] if self.batch_strides else 0


FourMatrices = tuple[Matrices, Matrices, Matrices | None, Matrices]
"""A, B, C and D."""


def matrices(
    name: str, tensor: TensorView, batch: tuple[int, ...], rows: int, columns: int, row_axis: bool, column_axis: bool
) -> Matrices:
    """Read a tensor as matrices; the flags say which matrix axes it has."""
    axes = row_axis + column_axis
    outer = len(tensor.shape) - axes
    matrix_strides = tensor.strides[outer:]
    outer_strides = broadcast(name, tensor.shape[:outer], tensor.strides[:outer], batch)
    return Matrices(
        name,
        tensor,
        rows,
        columns,
        row_stride=matrix_strides[0] if row_axis else 0,
        column_stride=matrix_strides[-1] if column_axis else 0,
        batch_strides=outer_strides,
    )


def merge(batch: tuple[int, ...], operands: Sequence[Matrices | None]) -> tuple[tuple[int, ...], Any]:
    """Merge the extents of a batch into the fewest that fit all operands; return them and the operands with a stride
    for each."""
    if not batch:
        return batch, tuple(operands)
    extents, strides = _joined_extents(batch, [x.batch_strides for x in operands if x is not None])
    merged = iter(strides)
    return extents, tuple(x and x._replace(batch_strides=next(merged)) for x in operands)


def one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the one stride at which elements along several extents follow one another; None where there is none."""
    extents, (merged,) = _joined_extents(shape, [strides])
    return None if len(extents) > 1 else merged[0] if merged else 0


def _joined_extents(
    shape: Sequence[int], tensor_strides: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the fewest extents that fit all the given strides, and the strides for them. Neighbouring extents along
    which all tensors are contiguous become one; extents of 1 disappear."""
    extents: list[int] = []
    strides: list[list[int]] = [[] for _ in tensor_strides]
    for i, extent in enumerate(shape):
        if extent == 1:
            continue
        joins = extents and all(
            merged[-1] == extent * steps[i] for merged, steps in zip(strides, tensor_strides, strict=True)
        )
        if joins or 0 in shape:
            extents[-1:] = [extents[-1] * extent if extents else extent]
            for merged, steps in zip(strides, tensor_strides, strict=True):
                merged[-1:] = [steps[i]]
        else:
            extents.append(extent)
            for merged, steps in zip(strides, tensor_strides, strict=True):
                merged.append(steps[i])
    return tuple(extents), [tuple(merged) for merged in strides]


def broadcast(
    name: str, own_shape: tuple[int, ...], strides: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the strides of a tensor broadcast to a shape: 0 along the extents that it does not have."""
    missing = len(shape) - len(own_shape)
    if missing < 0 or any(e not in (1, f) for e, f in zip(own_shape, shape[missing:], strict=True)):
        raise OperandError(f"{name} has shape {own_shape}, which does not broadcast to {shape}")
    steps = zip(own_shape, shape[missing:], strides, strict=True)
    return (0,) * missing + tuple([0 if e != f else step for e, f, step in steps])


def collapse(name: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the one stride of several batch extents.

    Raises:
        OperandError: the extents have several strides.
    """
    if (stride := one_stride(shape, strides)) is None:
        raise OperandError(
            f"{name}: batch extents {tuple(shape)} with strides {tuple(strides)} (0: broadcast) must "
            f"collapse to one stride: pass {name}.expand(...).contiguous(), or loop over the outer extents"
        )
    return stride


def stacks(matrices: Matrices) -> bool:
    """Whether the rows of the whole batch lie at one stride and are contiguous along one extent."""
    x = matrices
    if x.rows > 1:
        return x.batch_stride != 0 and x.batch_stride == x.rows * x.row_stride
    return x.batch_stride == 1 or (x.batch_stride != 0 and (x.columns == 1 or x.column_stride == 1))


def stacked(matrices: Matrices, rows: int) -> Matrices:
    """Return the whole batch as one matrix."""
    step = matrices.batch_stride if matrices.rows == 1 else matrices.row_stride
    return matrices._replace(rows=rows, row_stride=step, batch_strides=())


def operand(x: Matrices, batch: tuple[int, ...], columns_contiguous: str, rows_contiguous: str, first: str) -> Operand:
    """Find the contiguous extent of an operand: where both could be, the better aligned, and on a tie ``first``."""
    strides = x.batch_strides
    tensor, bits = x.tensor, DTYPES[x.tensor.dtype].bits
    if 0 in (x.rows, x.columns, *batch):
        # A kernel reads nothing here: it runs no K tile, or does not run.
        return Operand(x.name, tensor.ptr, tensor.dtype, first, 128 // bits, 0, 16)
    # The batch has one stride; a nested batch has multiples of it along each extent.
    steps: tuple[int, ...] = ()
    batch_stride = x.batch_stride if batch != (1,) else 0
    if len(strides) > 1:
        batch_stride = gcd(*strides)
        steps = tuple(stride // (batch_stride or 1) for stride in strides)
    last = sum((extent - 1) * step for extent, step in zip(batch, steps, strict=True)) if steps else 0
    # An operand whose strides are too long for TMA counts as one without a contiguous extent.
    movable = not strides or (
        all(0 <= stride * bits < 8 * TMA_MAX_STRIDE for stride in (*strides, batch_stride)) and last <= MAX_EXTENT
    )
    element_strides = x.row_stride if x.rows > 1 else 0, x.column_stride if x.columns > 1 else 0

    def described(major: str, *others: int) -> Operand:
        aligned = tensor.ptr | 16
        for step in (*others, batch_stride):
            aligned |= step * bits // 8
        stride = others[0] if len(others) == 1 else 0
        at = x.name, tensor.ptr, tensor.dtype
        return Operand(*at, major, stride, batch_stride, aligned & -aligned, *element_strides, steps)

    layouts = []
    for major, inner, inner_stride, outer, stride in (
        (columns_contiguous, x.columns, x.column_stride, x.rows, x.row_stride),
        (rows_contiguous, x.rows, x.row_stride, x.columns, x.column_stride),
    ):
        regular = outer == 1 or 0 < stride * bits < 8 * TMA_MAX_STRIDE
        if (inner == 1 or inner_stride == 1) and regular and movable:
            layouts.append(described(major, stride if outer > 1 else 0))
    if not layouts:
        return described("any", *element_strides)
    return max(layouts, key=lambda layout: (layout.align, layout.major == first))


def refuse_overlap(x: Matrices, batch: tuple[int, ...]) -> None:
    """Raise OperandError where elements of an output share an address: several CTAs would write them."""
    extents = ((x.rows, x.row_stride), (x.columns, x.column_stride), *zip(batch, x.batch_strides, strict=True))
    if 0 in (x.rows, x.columns, *batch):
        return
    reach = 0
    for stride, extent in sorted((abs(stride), extent) for extent, stride in extents if extent > 1):
        if stride <= reach:
            raise OperandError(
                f"{x.name} has strides {x.tensor.strides} for shape {x.tensor.shape}, so its elements overlap: pass "
                "memory with a place for each element"
            )
        reach += (extent - 1) * stride


GROUP_SIZES = (128, 64, 32)
"""Elements of a narrow operand along K that may share a scale."""


SCALE_BLOCK = 128
"""Elements along K, and columns of B, that share a scale."""


class Scale(NamedTuple):
    """Block scales of A or B in memory; strides in elements."""

    name: str
    """The caller's name for them."""
    ptr: int
    """Address of the first scale."""
    stride: int
    """From a row of A, or a block of columns of B, to the next."""
    k_stride: int
    """From a block of K to the next."""
    batch_stride: int
    """From a matrix to the next; 0 where the whole batch shares its scales."""
    dtype: DTypeName
    """A key of :data:`BLOCK_SCALES`."""


class GroupScales(NamedTuple):
    """Scales and zero points of groups of the narrow operand."""

    name: str
    scaling: Any
    scale: Operand | None = None
    zero: Operand | None = None


def block_shapes(a: TensorView, b: TensorView) -> dict[str, tuple[int, ...]]:
    """Return the last two extents of block scales."""
    m, n, k = a.shape[-2] if len(a.shape) > 1 else 1, b.shape[-1] if len(b.shape) > 1 else 1, a.shape[-1]
    blocks = -(-k // SCALE_BLOCK)
    return {"a_scale": (m, blocks), "b_scale": (blocks, -(-n // SCALE_BLOCK))}


def has_groups(name: str, tensors: Mapping[str, TensorView]) -> bool:
    """Whether a call has scales of groups along K for its narrow operand, ``a`` or ``b``: scales with the dtype of the
    wider operand (f32 beside e4m3), scales with zero points, or any of e2m1."""
    scale, shape = tensors.get(f"{name}_scale"), tensors[name].shape
    if f"{name}_zero" in tensors or scale is None or len(shape) < 2 or tensors[name].dtype == "e2m1":
        return scale is not None or f"{name}_zero" in tensors
    wide = tensors["b" if name == "a" else "a"].dtype
    rows, k = (shape[-2], shape[-1]) if name == "a" else (shape[-1], shape[-2])
    held = tensors[name].dtype
    return (
        scale.dtype == dtype_of_groups(held, wide)
        and _group_size(name, scale, rows, k, sizes_of_groups(wide)) is not None
    )


def refuse_four_bits(tensors: Mapping[str, TensorView]) -> None:
    """Raise OperandError for 4-bit weights that no kernel multiplies by activations of at most 8 bits."""
    a, b = tensors["a"].dtype, tensors["b"].dtype
    bits = sorted((DTYPES[a].bits, DTYPES[b].bits))
    if bits[0] == 4 and bits[1] <= 8 and not is_mixed(a, b):
        raise OperandError(
            f"a is {a} and b is {b}; beside 8-bit activations, kernels multiply only s4 weights by e4m3: pass these, "
            "or activations of bf16 or f16"
        )


def sizes_of_groups(wide: DTypeName) -> tuple[int, ...]:
    """Return how many integers can share a scale beside a wider operand."""
    return (SCALE_BLOCK,) if wide == "e4m3" else GROUP_SIZES


def _group_size(name: str, scale: TensorView, rows: int, k: int, sizes: tuple[int, ...] = GROUP_SIZES) -> int | None:
    """Return how many elements of ``a`` or ``b`` along K share a scale; None where the shape of the scales does not
    fit."""
    if len(scale.shape) < 2:
        return None
    along, across = scale.shape[-2:][:: -1 if name == "a" else 1]
    size = next((size for size in sizes if -(-k // size) == along), None)
    return size if across == rows else None


def block_scales(
    tensors: Mapping[str, TensorView],
    extents: tuple[int, int, int],
    batch_a: tuple[int, ...],
    batch_b: tuple[int, ...],
) -> tuple[Scale, Scale] | None:
    """Read the block scales of A and B, which must have one dtype; None where neither has any. ``extents`` are M, N and
    K."""
    m, n, k = extents
    a_scale, b_scale = tensors.get("a_scale"), tensors.get("b_scale")
    if a_scale is not None and b_scale is not None:
        if a_scale.dtype != b_scale.dtype and a_scale.dtype in BLOCK_SCALES and b_scale.dtype in BLOCK_SCALES:
            narrow = "b" if b_scale.dtype != "f32" else "a"
            raise OperandError(
                f"a_scale is {a_scale.dtype} and b_scale is {b_scale.dtype}; block scales must have the same dtype: "
                f"pass {narrow}_scale.float()"
            )
        blocks = -(-k // SCALE_BLOCK)
        return (
            _scale("a_scale", a_scale, batch_a, (m, blocks), k_axis=1),
            _scale("b_scale", b_scale, batch_b, (blocks, -(-n // SCALE_BLOCK)), k_axis=0),
        )
    if a_scale is not b_scale:
        present, absent = ("b", "a") if a_scale is None else ("a", "b")
        raise OperandError(
            f"{present}_scale is passed without {absent}_scale; block scales need both: pass {absent}_scale"
        )
    return None


def _scale(name: str, tensor: TensorView, batch: tuple[int, ...], shape: tuple[int, int], k_axis: int) -> Scale:
    """Read block scales; ``shape`` is what their last two extents must be."""
    if tensor.dtype not in BLOCK_SCALES:
        raise OperandError(
            f"{name} is {tensor.dtype}; block scales must be {one_of(tuple(BLOCK_SCALES))}: pass {name}.float()"
        )
    if tensor.shape[-2:] != shape:
        raise OperandError(
            f"{name} has shape {tensor.shape}; its last extents must be {shape}, one scale for each block"
        )
    batch_stride = collapse(name, batch, broadcast(name, tensor.shape[:-2], tensor.strides[:-2], batch))
    strides = tensor.strides[-2:]
    return Scale(name, tensor.ptr, strides[1 - k_axis], strides[k_axis], batch_stride, tensor.dtype)


def stacked_scales(a_scale: Scale, b_scale: Scale, m: int) -> tuple[Scale, Scale] | None:
    """Return the scales of a batch as those of one matrix with M rows for each matrix of the batch; None where their
    strides do not allow it."""
    step = a_scale.batch_stride if m == 1 else a_scale.stride
    if b_scale.batch_stride or not a_scale.batch_stride or a_scale.batch_stride != m * step:
        return None
    return a_scale._replace(stride=step, batch_stride=0), b_scale


def group_scales(
    narrow: Matrices, wide: TensorView, tensors: Mapping[str, TensorView], batch: tuple[int, ...]
) -> GroupScales:
    """Read the scales and zero points of the narrow operand."""
    name, other = (narrow.name, "b") if narrow.name == "a" else (narrow.name, "a")
    rows, k = (narrow.rows, narrow.columns) if name == "a" else (narrow.columns, narrow.rows)
    for kind in ("scale", "zero"):
        if f"{other}_{kind}" in tensors:
            raise OperandError(
                f"{other} is {wide.dtype}, the wider operand; only {name} can have a {kind} for groups along K: leave "
                f"out {other}_{kind}"
            )
    scale, zero = tensors.get(f"{name}_scale"), tensors.get(f"{name}_zero")
    held = narrow.tensor.dtype
    is_mx = held == "e2m1"
    sizes = (MX_BLOCK,) if is_mx else sizes_of_groups(wide.dtype)
    dtype = dtype_of_groups(held, wide.dtype)
    if wide.dtype == "e4m3" and (scale is None or zero is not None):
        fault = f"{name}_zero is passed" if zero is not None else f"{name}_scale is missing"
        raise OperandError(
            f"{fault}; {held} beside {wide.dtype} needs an f32 scale for each {SCALE_BLOCK} elements along K, and has "
            "no zero points"
        )
    if zero is not None and (is_mx or scale is None):
        why = f"{name} is {held}, which has no zero points: leave out {name}_zero"
        raise OperandError(why if is_mx else f"{name}_zero is passed without {name}_scale: pass both")
    if scale is None:
        if not is_mx:
            return GroupScales(name, "none")
        raise OperandError(
            f"{name} is {held}, and {name}_scale is missing: pass a ue8m0 scale for each {MX_BLOCK} elements along K"
        )
    size = _group_size(name, scale, rows, k, sizes)
    if size is None:
        allowed_shapes = " or ".join(
            str((rows, g) if name == "a" else (g, rows)) for g in (-(-k // size) for size in sizes)
        )
        raise OperandError(
            f"{name}_scale has shape {scale.shape}; its last extents must be {allowed_shapes}: one scale for each "
            f"{'row' if name == 'a' else 'column'} and group of {', '.join(map(str, sizes))} along K = {k}"
        )
    for kind, tensor in (("scale", scale), ("zero", zero)):
        if tensor is not None and (tensor.dtype != dtype or tensor.shape != scale.shape):
            of_wide = f": pass {name}_scale.float()" if dtype == "f32" else f", with the dtype of {other}"
            as_what = f": pass {name}_scale.view(torch.float8_e8m0fnu)" if is_mx else of_wide
            raise OperandError(
                f"{name}_{kind} is {tensor.dtype} {tensor.shape}; it must be {dtype} {scale.shape}{as_what}"
            )
    operands = [
        None if tensor is None else _group_operand(f"{name}_{kind}", tensor, narrow, rows, batch)
        for kind, tensor in (("scale", scale), ("zero", zero))
    ]
    return GroupScales(name, MX_SCALE if is_mx else f"1x{size}" + ("z" if zero else ""), *operands)


def _group_operand(argument: str, tensor: TensorView, narrow: Matrices, rows: int, batch: tuple[int, ...]) -> Operand:
    """Read scales or zero points of the narrow operand; ``rows`` is its extent that is not K."""
    name = narrow.name
    batch_stride = collapse(argument, batch, broadcast(argument, tensor.shape[:-2], tensor.strides[:-2], batch))
    along_rows, along_k = tensor.strides[-2:][:: 1 if name == "a" else -1]
    if batch != (1,) and bool(batch_stride) != bool(narrow.batch_stride):
        raise OperandError(
            f"{argument} has shape {tensor.shape} and {name} has shape {narrow.tensor.shape}; both must be "
            f"shared by the batch, or neither: pass {argument}.expand(...).contiguous()"
        )
    if rows > 1 and along_rows != 1:
        raise OperandError(
            f"{argument} has strides {tensor.strides}; it must be contiguous along "
            f"{'M: pass the transpose of (K / group, M)' if name == 'a' else 'N: pass a contiguous (K / group, N)'}"
        )
    return Operand(argument, tensor.ptr, tensor.dtype, "m", along_k, batch_stride, 16)


def one_matrix(
    abcd: FourMatrices, scales: tuple[Scale, Scale] | None, m: int, batch: int
) -> tuple[FourMatrices, tuple[Scale, Scale] | None] | None:
    """Return a batch as one matrix, with M rows of A, C and D for each matrix of the batch, and its scales.

    None where the batch has several B, or where the strides of A, C, D or the scales do not allow it.
    """
    a, b, c, d = abcd
    rows, of_rows = m * batch, scales and stacked_scales(*scales, m)
    fits = 1 < batch <= MAX_EXTENT // max(m, 1) and b.batch_stride == 0
    if not fits or not all(stacks(x) for x in (a, c, d) if x is not None) or (scales is not None and of_rows is None):
        return None
    return (stacked(a, rows), b, None if c is None else stacked(c, rows), stacked(d, rows)), of_rows
