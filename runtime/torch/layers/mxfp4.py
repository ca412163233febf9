"""MXFP4 weights: e2m1 numbers with a power of two for every 32 along K, read from checkpoints or quantised."""

from __future__ import annotations

from typing import Any

import torch

from gemmill.library import e2m1
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.errors import OperandError
from gemmill.runtime.torch.layers.nibbles import packed_pairs, unpacked_pairs

_SCALES = {getattr(torch, {"bf16": "bfloat16", "f16": "float16"}[name]): x for name, x in e2m1.SCALES.items()}
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between each magnitude and the next; a tie goes to the one whose code is even."""
_LARGEST_EXPONENT = 2
"""Exponent of the largest number, 6 = 1.5 * 2^2."""
_BIAS = 127
"""What ue8m0 bytes add to exponents."""
SCALE_DTYPES = (torch.uint8, torch.float8_e8m0fnu)
"""Dtypes in which checkpoints hold scales."""
_CHUNK = 1 << 24
"""Numbers that are converted at a time, since unpacked ones take eight times the memory."""


def mxfp4(
    blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16, name: str = "mxfp4"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read MXFP4 weights of a checkpoint, for one matrix or a batch of experts.

    The result is verified: it gives the checkpoint's bits again.

    Args:
        blocks: uint8 (..., N, K / 32, 16), as in gpt-oss, or (..., N, K / 2): two numbers in a byte along K, the even
            one in the low half.
        scales: uint8 or float8_e8m0fnu (..., N, K / 32): exponents of two, plus 127.
        dtype: dtype of activations: bfloat16 (default) or float16.
        name: name of the weights in errors.

    Returns:
        For ``matmul(x, weight.mT, b_dtype="e2m1", b_scale=scale)``: ``weight``, uint8 (..., N, K / 2), with numbers in
        the order in which kernels read them, and ``scale``, float8_e8m0fnu (..., K / 32, N).

    Raises:
        OperandError: shapes or dtypes do not fit, or ``dtype`` does not hold all products of a scale and numbers.
    """
    for tensor, what, dtypes in ((blocks, "blocks", (torch.uint8,)), (scales, "scales", SCALE_DTYPES)):
        if tensor.dtype not in dtypes:
            raise OperandError(f"{name}: {what} has dtype {tensor.dtype}; it must be {' or '.join(map(str, dtypes))}")
    flat = blocks.flatten(-2) if blocks.ndim == scales.ndim + 1 else blocks
    count = scales.shape[-1] if scales.ndim else 0
    if scales.ndim < 2 or flat.shape != (*scales.shape[:-1], count * MX_BLOCK // 2):
        raise OperandError(
            f"{name}: blocks has shape {tuple(blocks.shape)} and scales {tuple(scales.shape)}; they must be "
            f"(..., N, K / {MX_BLOCK}, {MX_BLOCK // 2}) and (..., N, K / {MX_BLOCK})"
        )
    check_scales(name, scales := scales.view(torch.uint8), dtype)
    weight = torch.empty_like(flat, memory_format=torch.contiguous_format)
    for held, kept in _chunks(flat, weight):
        kept.copy_(_in_fragment_order(unpacked_pairs(held).int()))
        _verify(name, packed_pairs(from_fragment_order(kept)), held)
    scale = scales.mT.contiguous()
    _verify(name, scale.mT, scales)
    return weight, scale.view(torch.float8_e8m0fnu)


def quantised_mxfp4(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise weights (..., N, K) to what :func:`mxfp4` returns, for activations of a dtype.

    A scale is the largest power of two not above the largest magnitude, divided by 4; numbers round to nearest, and
    those above 6 become 6 (OCP Microscaling Formats 1.0, section 6.3).

    Raises:
        OperandError: K is not a multiple of 32, or a weight is not finite or too large for the scales of kernels.
    """
    k = weight.shape[-1]
    if k % MX_BLOCK:
        raise OperandError(f"K is {k}; for mxfp4 it must be a multiple of {MX_BLOCK}: pad K, or use another format")
    least, greatest = _SCALES[dtype]
    packed = weight.new_empty((*weight.shape[:-1], k // 2), dtype=torch.uint8)
    exponents = weight.new_empty((*weight.shape[:-1], k // MX_BLOCK), dtype=torch.int32)
    for values, numbers, powers in _chunks(weight, packed, exponents):
        values_of = values.float().unflatten(-1, (-1, MX_BLOCK))
        largest = values_of.abs().amax(-1)
        powers.copy_((torch.frexp(largest).exponent - 1 - _LARGEST_EXPONENT + _BIAS).clamp(min=least))
        scale = powers.clamp(max=greatest).to(torch.uint8).view(torch.float8_e8m0fnu).float()  # ldexp may round
        numbers.copy_(_in_fragment_order(_rounded(values_of / scale[..., None]).flatten(-2)))
    if not weight.is_meta and bool((exponents > greatest).any() | ~weight.isfinite().all()):
        most = 2.0 ** (greatest - _BIAS + _LARGEST_EXPONENT + 1)
        raise OperandError(
            f"a weight has magnitude {float(weight.abs().max()):.6g}; for mxfp4 with {dtype} activations it must be "
            f"below {most:g}: use another format"
        )
    return packed, exponents.to(torch.uint8).mT.contiguous().view(torch.float8_e8m0fnu)


def wide_mxfp4(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the float32 weights (..., N, K) of :func:`mxfp4`, exactly."""
    values = torch.tensor(e2m1.VALUES, device=weight.device)[from_fragment_order(weight).long()]
    return values * scale.mT.float().repeat_interleave(MX_BLOCK, -1)


def from_fragment_order(weight: torch.Tensor) -> torch.Tensor:
    """Return the codes (..., K) of bytes (..., K / 2) in fragment order, as int32."""
    codes: torch.Tensor = e2m1.from_fragment_order(weight.int(), torch)
    return codes


def check_scales(name: str, scales: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise OperandError if products of a scale (bytes) and numbers are not all values of the dtype of activations."""
    if dtype not in _SCALES:
        raise OperandError(f"{name}: activations are {dtype}; beside MXFP4 they must be bfloat16 or float16")
    least, greatest = _SCALES[dtype]
    wrong = ((scales < least) | (scales > greatest)).nonzero()
    if len(wrong):
        place = tuple(wrong[0].tolist())
        found = int(scales[place])
        what = "NaN" if found == 2 * _BIAS + 1 else f"2^{found - _BIAS}"
        raise OperandError(
            f"{name}: the scale at {place} is {found} ({what}), the first of {len(wrong)} out of range; with {dtype} "
            f"activations it must be {least} to {greatest} (2^{least - _BIAS} to 2^{greatest - _BIAS}): use bfloat16, "
            "or scale the weights of the layer before you quantise them"
        )


def _in_fragment_order(codes: torch.Tensor) -> torch.Tensor:
    return e2m1.in_fragment_order(codes, torch)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """The codes of the e2m1 numbers nearest to values."""
    magnitude = x.abs()
    codes = torch.signbit(x).int() << 3
    for i, middle in enumerate(_MIDDLES):
        codes += magnitude > middle if i % 2 == 0 else magnitude >= middle
    return codes


def _chunks(*tensors: torch.Tensor) -> Any:
    """The same rows of several tensors (..., N, x), a few at a time."""
    rows = [x.reshape(-1, x.shape[-1]) for x in tensors]
    step = max(1, _CHUNK // max(1, rows[0].shape[-1]))
    return zip(*(x.split(step) for x in rows), strict=True)


def _verify(name: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise OperandError if what was read is not what the checkpoint has."""
    if not torch.equal(found, wanted):
        raise OperandError(f"{name}: reading it back does not give the checkpoint's bits")
