"""Complex operands: the real product that gives D, in whose memory real and imaginary parts alternate.

Where D is contiguous along N, it is a real matrix (M, 2 N). It is the product of A as a real matrix (M, 2 K), in place,
and of B expanded into (2 K, 2 N): the element x + i y becomes (x, y) above (-y, x). That is all four real products of
each complex one. Where D is contiguous along M, A is expanded, and B is (2 K, N). Signs of the expanded operand also
conjugate the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gemmill.emitters.real_forms import LOWER, TURNED, UPPER
from gemmill.library.dtypes import COMPLEX, DTYPES
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN, align_up
from gemmill.runtime.operands.matrices import FourMatrices, Matrices
from gemmill.runtime.operands.tensors import TensorView

PITCH = 128
"""Rows of an expanded operand start at multiples of this many bytes."""
_TAKEN = frozenset({"a", "b", "c", "out"})


@dataclass(frozen=True, slots=True)
class RealForm:
    """A complex operand in place, and the real form in which a kernel writes it (emitters/real_forms.py). Its rows and
    columns are those in memory."""

    part_bytes: int
    matrices: int
    rows: int
    columns: int
    """Elements of a row."""
    matrix_stride: int
    """Bytes from a matrix to the next."""
    row_stride: int
    column_stride: int
    pitch: int
    """Bytes from a row of the new form to the next; there are two for each row."""
    signs: int
    is_paired: bool
    """Whether an element becomes two pairs; otherwise the parts become separate rows."""


class RealProduct(NamedTuple):
    """The real product that gives a complex one."""

    abcd: FourMatrices
    m: int
    n: int
    k: int
    forms: Mapping[str, RealForm]
    """By the name of the operand, ``a`` or ``b``."""


def check_complex(tensors: Mapping[str, TensorView], given: Mapping[str, Any]) -> None:
    """Raise OperandError for a call with complex operands that kernels do not support.

    Args:
        tensors: views of the operands, by name.
        given: all arguments of the call, by name.
    """
    first = next(name for name, x in tensors.items() if x.imaginary)
    element = tensors[first].element
    unsupported = [name for name in ("epilogue", "a_dtype", "b_dtype", "symmetric") if given.get(name)]
    for name in (*(x for x in tensors if x not in _TAKEN), *unsupported):
        raise OperandError(f"{first} is {element}, with which {name} is not supported: leave out {name}")
    for name, x in tensors.items():
        if x.element != element:
            raise OperandError(
                f"{name} is {x.element} and {first} is {element}; all must have one complex dtype: pass "
                f"{name}.to({element})"
            )
        if x.ptr % COMPLEX[element].bytes:
            raise OperandError(
                f"{name} starts at {x.ptr:#x}; {element} must start at a multiple of {COMPLEX[element].bytes} bytes: "
                f"pass {name}.clone()"
            )
        if name in ("c", "out") and x.imaginary < 0:
            raise OperandError(f"{name} is the view of a conjugate; only a and b may be: pass {name}.resolve_conj()")


def real_product(abcd: FourMatrices, extents: tuple[int, int, int], batch: tuple[int, ...]) -> RealProduct:
    """Return the real product for complex matrices with extents M, N and K.

    Raises:
        OperandError: C or D is not contiguous along an extent of D, or the batch has several strides.
    """
    a, b, c, d = abcd
    m, n, k = extents
    if len(batch) > 1:
        raise OperandError(
            f"batch extents {batch} of complex operands must have one stride in each: pass contiguous tensors, or loop "
            "over the outer extents"
        )
    by_columns = next((x for x in (True, False) if all(y is None or _is_contiguous(y, x) for y in (c, d))), None)
    if by_columns is None:
        raise OperandError(
            f"out has strides {d.tensor.strides}{'' if c is None else f' and c {c.tensor.strides}'}; complex out and c "
            "must be contiguous along the same extent of their matrices: pass contiguous tensors"
        )
    one, other = (b, a) if by_columns else (a, b)
    expanded, form = _expanded(one, batch, by_columns, other.tensor.imaginary)
    forms = {one.name: form}
    if _is_contiguous(other, by_columns):
        other = _interleaved(other, by_columns)
    else:  # K becomes the rows in memory: real and imaginary parts in turn
        other, forms[other.name] = _written(other, batch, not by_columns)
    of_c, of_d = None if c is None else _interleaved(c, by_columns), _interleaved(d, by_columns)
    if by_columns:
        return RealProduct((other, expanded, of_c, of_d), m, 2 * n, 2 * k, forms)
    return RealProduct((expanded, other, of_c, of_d), 2 * m, n, 2 * k, forms)


def _is_contiguous(x: Matrices, by_columns: bool) -> bool:
    """Whether the columns, or the rows, of matrices are contiguous elements."""
    return (x.columns <= 1 or x.column_stride == 1) if by_columns else (x.rows <= 1 or x.row_stride == 1)


def _interleaved(x: Matrices, by_columns: bool) -> Matrices:
    """Return complex matrices as real ones in place, with twice the columns, or the rows."""
    rows, columns = (x.rows, 2 * x.columns) if by_columns else (2 * x.rows, x.columns)
    steps = (2 * x.row_stride, 1) if by_columns else (1, 2 * x.column_stride)
    batch_strides = tuple(2 * step for step in x.batch_strides)
    return x._replace(
        rows=rows, columns=columns, row_stride=steps[0], column_stride=steps[1], batch_strides=batch_strides
    )


def _expanded(x: Matrices, batch: tuple[int, ...], is_b: bool, other: int) -> tuple[Matrices, RealForm]:
    """Return the expanded form of A or B, with the contiguous extent that it has; ``other`` is the sign of the
    imaginary parts of the other operand.

    With u + i v of the other operand, the real part of a product is u x - v y, the imaginary part is u y + v x.
    """
    own = x.tensor.imaginary
    k_is_inner = _is_contiguous(x, not is_b) or not _is_contiguous(x, is_b)
    beside_v, beside_u = own * other > 0, own < 0  # whether y is negated there
    upper, lower = (beside_v, beside_u) if k_is_inner else (beside_u, beside_v)
    signs = UPPER * upper | LOWER * lower | TURNED * (other < 0)
    return _written(x, batch, k_is_inner != is_b, signs)


def _written(
    x: Matrices, batch: tuple[int, ...], inner_is_columns: bool, signs: int | None = None
) -> tuple[Matrices, RealForm]:
    """Return the form that a kernel writes, with columns or rows contiguous: pairs with some signs, or, without any,
    parts in separate rows."""
    size, is_paired = DTYPES[x.tensor.dtype].bytes, signs is not None
    extents, steps = (x.rows, x.columns), (x.row_stride, x.column_stride)
    if not inner_is_columns:
        extents, steps = extents[::-1], steps[::-1]
    (rows, columns), (row_stride, column_stride) = extents, (2 * size * step for step in steps)
    width = columns * (1 + is_paired)
    pitch = align_up(max(width, 1) * size, PITCH)
    form = RealForm(
        size,
        batch[0] if x.batch_stride else 1,
        rows,
        columns,
        2 * size * x.batch_stride,
        row_stride,
        column_stride,
        pitch,
        signs or 0,
        is_paired,
    )
    extents, steps = (2 * rows, width), (pitch // size, 1)
    if not inner_is_columns:
        extents, steps = extents[::-1], steps[::-1]
    written = x._replace(
        tensor=replace(x.tensor, ptr=TMA_ALIGN),
        rows=extents[0],
        columns=extents[1],
        row_stride=steps[0],
        column_stride=steps[1],
        batch_strides=tuple(2 * rows * pitch // size if step else 0 for step in x.batch_strides),
    )
    return written, form
