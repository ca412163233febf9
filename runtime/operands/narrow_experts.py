"""Checks the weights of a layer of experts that are narrower than its tokens, their scales and zero points."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gemmill.library.config.scales import dtype_of_groups
from gemmill.library.dtypes import DTYPES, DTypeName, default_output
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.epilogues.tree import Epilogue
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.wording import one_of
from gemmill.runtime.operands.matrices import sizes_of_groups
from gemmill.runtime.operands.tensors import TensorView, unpacked

OF_GROUPS: Mapping[str, str] = {"w1_scale": "w1", "w1_zero": "w1", "w2_scale": "w2", "w2_zero": "w2"}
"""Scales and zero points of groups of elements along K, by keyword, and the weights that they are of."""
ZEROS = tuple(name for name in OF_GROUPS if name.endswith("zero"))


def elements_of(tensors: Mapping[str, TensorView], dtype: DTypeName) -> dict[str, TensorView]:
    """Return the tensors of a layer with ``w1`` and ``w2``, which hold bytes, as elements of a narrow dtype.

    Raises:
        OperandError: they do not hold bytes, or rows of bytes are not contiguous.
    """
    found = dict(tensors)
    for name in ("w1", "w2"):
        weights = tensors[name]
        if DTYPES[dtype].bits > 8 or DTYPES[weights.dtype].bits != 8 or not weights.shape:
            raise OperandError(
                f"{name} is {weights.dtype} {weights.shape} and w_dtype is {dtype}; w_dtype says what bytes hold: pass "
                "w1 and w2 as int8 or uint8, or leave out w_dtype"
            )
        if DTYPES[dtype].bits < 8 and weights.shape[-1] > 1 and weights.strides[-1] != 1:
            raise OperandError(
                f"{name} has strides {weights.strides}; two {dtype} of a row share a byte, so its rows must be "
                f"contiguous: pass {name}.contiguous()"
            )
        found[name] = unpacked(name, weights, dtype, 0)
    return found


def dtype_of_rows(weights: str, of_x: DTypeName) -> DTypeName:
    """Return the dtype of the rows that weights multiply: ``w1`` tokens, ``w2`` what the first product writes."""
    return of_x if weights == "w1" else default_output(of_x)


def _sizes_of_groups(weights: str, dtype: DTypeName, of_x: DTypeName) -> tuple[int, ...]:
    """Return how many elements of ``w1`` or ``w2`` can share a scale, the most first."""
    return (MX_BLOCK,) if dtype == "e2m1" else sizes_of_groups(dtype_of_rows(weights, of_x))


def shapes_of_groups(
    dtype: DTypeName, of_x: DTypeName, given: Mapping[str, Sequence[int]], w1: Sequence[int], w2: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that scales and zero points must have, by keyword, for weights of these shapes.

    Args:
        dtype: Dtype of the weights.
        of_x: Dtype of the tokens.
        given: Shapes of those that are passed. The scales say how many elements share one: the largest size that fits.
        w1: Shape of ``w1``, (experts, sums, H).
        w2: Shape of ``w2``, (experts, H, F).
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (experts, rows, k) in (("w1", w1), ("w2", w2)):
        counts = [-(-k // size) for size in _sizes_of_groups(name, dtype, of_x)]
        scale = given.get(f"{name}_scale", ())
        count = next((count for count in counts if len(scale) == 3 and scale[1] == count), counts[0])
        shapes |= dict.fromkeys((f"{name}_scale", f"{name}_zero"), (experts, count, rows))
    return shapes


def advice_on_groups(name: str, dtype: DTypeName, of_x: DTypeName, given: Sequence[int], wanted: Sequence[int]) -> str:
    """Return what to change about the shape of scales or zero points of weights."""
    if [*given[:1], *given[:0:-1]] == [*wanted] and len(given) == 3:
        return f": pass {name}.mT.contiguous()"
    sizes = one_of(tuple(map(str, _sizes_of_groups(OF_GROUPS[name], dtype, of_x))))
    return f", one for each row of {OF_GROUPS[name]} and group of {sizes} along its rows"


def check_scales_of_tokens(of_x: DTypeName, given: Collection[str]) -> None:
    """Raise OperandError for scales that tokens of a dtype must not have, or lack, beside narrow weights, by the
    keywords that are ``given``."""
    if of_x != "e4m3" and "x_scale" in given:
        raise OperandError("x_scale is passed, and the weights are narrower than x, which has no scales: leave it out")
    if of_x == "e4m3" and "x_scale" not in given:
        raise OperandError("x_scale is missing, and x is e4m3: pass a scale for each token, f32 (tokens, 1)")
    if of_x == "e4m3" and "w1_scale" not in given:
        raise OperandError("w1_scale is missing, and x is e4m3: pass the f32 scales of groups of 128")
    if of_x == "e4m3" and "w1_zero" in given:
        raise OperandError("w1_zero is passed, and x is e4m3, beside which w1 has no zero points: leave it out")


def check_presence(dtype: DTypeName, given: Collection[str]) -> None:
    """Raise OperandError for scales and zero points that narrow weights of a dtype must not have, or lack, by the
    keywords that are ``given``."""
    for scale in ("w1_scale", "w2_scale") if dtype == "e2m1" else ():
        if scale not in given:
            raise OperandError(f"{scale} is missing: pass the ue8m0 scales of e2m1 weights")
    for zero in ZEROS:
        if zero in given and dtype == "e2m1":
            raise OperandError(f"{zero} is passed, and w_dtype is {dtype}, which has no zero points: leave it out")
        if zero in given and (scale := zero.replace("zero", "scale")) not in given:
            raise OperandError(f"{zero} is passed without {scale}: pass both")


def check_narrow(tensors: Mapping[str, TensorView], activation: Epilogue) -> None:
    """Raise OperandError for narrow weights that kernels cannot read, and for a gate that they do not have."""
    x, w1 = tensors["x"], tensors["w1"]
    check_presence(w1.dtype, tensors)
    if not activation.has_transpose:
        raise OperandError(
            f"w1 is {w1.dtype}, and kernels compute its products transposed, with no gate but gate8 and up8; the "
            f"activation is `{activation}`: use these, with the rows of w1, its scales and zero points in the order of "
            "gemmill.interleaved"
        )
    for name in ("w1", "w2"):
        unit = TMA_ALIGN * 8 // DTYPES[w1.dtype].bits
        if (k := tensors[name].shape[2]) % unit:
            letter = "H" if name == "w1" else "F"
            raise OperandError(
                f"{letter} is {k}; for {w1.dtype} weights it must be a multiple of {unit}: pad with zeros"
            )
        if tensors[name].strides[2] != 1 and 0 not in tensors[name].shape:
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its rows must be contiguous: pass {name}.contiguous()"
            )
    if "x_scale" in tensors and tensors["x_scale"].dtype != "f32":
        raise OperandError(f"x_scale is {tensors['x_scale'].dtype}; it must be f32: convert x_scale first")
    for name in OF_GROUPS:
        if (groups := tensors.get(name)) is None:
            continue
        if w1.dtype == "e2m1" and groups.dtype != "ue8m0":
            raise OperandError(f"{name} is {groups.dtype}; it must be ue8m0: pass {name}.view(torch.float8_e8m0fnu)")
        of_rows = dtype_of_rows(OF_GROUPS[name], x.dtype)
        wanted = dtype_of_groups(w1.dtype, of_rows)
        if w1.dtype != "e2m1" and groups.dtype != wanted:
            why = ", as x is" if wanted == x.dtype else f" beside {of_rows}"
            raise OperandError(f"{name} is {groups.dtype}; it must be {wanted}{why}: convert {name} first")
        if groups.strides[2] != 1 and groups.shape[2] > 1:
            raise OperandError(
                f"{name} has strides {groups.strides}; it must be contiguous along the rows of {OF_GROUPS[name]}: pass "
                f"{name}.contiguous()"
            )
