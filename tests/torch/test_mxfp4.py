"""MXFP4 weights, read from checkpoints and quantised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

import gemmill.torch  # noqa: E402
from gemmill.library.e2m1 import SCALES, VALUES  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.layers import mxfp4 as module  # noqa: E402
from gemmill.runtime.torch.layers.mxfp4 import mxfp4, quantised_mxfp4, wide_mxfp4  # noqa: E402

BF16, F16 = torch.bfloat16, torch.float16


def checkpoint(shape: tuple[int, ...], scales: tuple[int, int]) -> tuple[Any, Any]:
    """Random blocks (..., N, K / 32, 16) and scales (..., N, K / 32)."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator).to(torch.uint8)
    return blocks, torch.randint(scales[0], scales[1] + 1, shape, generator=generator).to(torch.uint8)


@pytest.mark.parametrize("shape", [(40, 3), (3, 40, 3), (2, 3, 16, 1)], ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_weights_are_what_the_format_says(dtype: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 1000)
    blocks, scales = checkpoint(shape, SCALES["f16" if dtype == F16 else "bf16"])
    weight, scale = mxfp4(blocks, scales, dtype)
    assert torch.equal(weight, mxfp4(blocks.flatten(-2), scales.view(torch.float8_e8m0fnu), dtype)[0])
    assert (*weight.shape,) == (*shape[:-1], 16 * shape[-1])
    assert (*scale.shape,) == (*shape[:-2], shape[-1], shape[-2])
    assert weight.is_contiguous()
    assert scale.is_contiguous()
    nibbles = np.stack((blocks.numpy() & 15, blocks.numpy() >> 4), -1).reshape(*shape, 32)
    wanted = np.array(VALUES)[nibbles] * 2.0 ** (scales.numpy().astype(float) - 127)[..., None]
    found = wide_mxfp4(weight, scale)
    assert np.array_equal(found.double().numpy(), wanted.reshape(*shape[:-1], -1))
    assert torch.equal(found.to(dtype).float(), found), "kernels may round nothing"


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("scale", [0, 103, 104, 128, 129, 255])
def test_scales_out_of_range_are_refused(dtype: Any, scale: int) -> None:
    blocks, scales = checkpoint((2, 8, 2), (110, 120))
    scales[1, 3, 1] = scale
    if (0 if dtype == BF16 else 104) <= scale <= 128:
        mxfp4(blocks, scales, dtype)
    else:
        with pytest.raises(OperandError, match=rf"the scale at \(1, 3, 1\) is {scale} .*, the first of 1 out of range"):
            mxfp4(blocks, scales, dtype)


@pytest.mark.parametrize(
    ("blocks", "scales", "dtype", "says"),
    [
        ((2, 8, 2, 16), (2, 2, 8), BF16, r"up: blocks .* scales \(2, 2, 8\); they must be \(..., N, K / 32, 16\)"),
        ((2, 8, 2, 8), (2, 8, 2), BF16, r"blocks has shape \(2, 8, 2, 8\)"),
        ((2, 8, 31), (2, 8, 2), BF16, r"blocks has shape \(2, 8, 31\)"),
        ((16,), (1,), BF16, r"blocks has shape \(16,\)"),
        ((2, 8, 2, 16), (2, 8, 2), torch.float32, "must be bfloat16 or float16"),
    ],
)
def test_other_layouts_are_refused(blocks: Any, scales: Any, dtype: Any, says: str) -> None:
    with pytest.raises(OperandError, match=says):
        mxfp4(torch.zeros(blocks, dtype=torch.uint8), torch.zeros(scales, dtype=torch.uint8), dtype, "up")


def test_blocks_of_another_dtype_are_refused() -> None:
    blocks, scales = checkpoint((8, 1), (100, 100))
    with pytest.raises(OperandError, match=r"blocks has dtype torch.int32; it must be torch.uint8"):
        mxfp4(blocks.int(), scales)


@given(st.sampled_from([BF16, F16]), st.integers(-40, 1), st.integers(0, 99))
def test_numbers_are_the_nearest(dtype: Any, exponent: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(4, 64, generator=generator).clamp(-4, 4) * 2.0**exponent
    weight, scale = quantised_mxfp4(drawn, dtype)
    power = 2.0 ** (scale.view(torch.uint8).mT.double() - 127).repeat_interleave(32, 1)
    grid = torch.tensor(VALUES, dtype=torch.float64)
    nearest = (drawn.double()[..., None] - grid * power[..., None]).abs().amin(-1)
    assert torch.equal((wide_mxfp4(weight, scale).double() - drawn.double()).abs(), nearest)
    largest = drawn.abs().unflatten(1, (-1, 32)).amax(-1)
    fits = largest < 8 * power[:, ::32]
    assert fits.all()
    if dtype == BF16:
        assert (largest >= 4 * power[:, ::32]).all(), "a smaller scale would do"


def test_ties_go_to_even() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 4.0] * 4)
    weight, scale = quantised_mxfp4(torch.stack((middles, -middles)), BF16)
    found = wide_mxfp4(weight, scale)
    assert found[0, :8].tolist() == [0, 1, 1, 2, 2, 4, 4, 4]
    assert torch.equal(found[1], -found[0])


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (torch.full((2, 32), 16.0), "a weight has magnitude 16; for mxfp4 .* it must be below 16"),
        (torch.full((2, 32), torch.inf), "magnitude inf"),
        (torch.full((2, 32), torch.nan), "magnitude nan"),
        (torch.zeros(2, 40), "K is 40; for mxfp4 it must be a multiple of 32"),
    ],
)
def test_weights_that_have_no_such_numbers_are_refused(weight: Any, says: str) -> None:
    with pytest.raises(OperandError, match=says):
        gemmill.torch.Linear.from_linear(_linear(weight), "mxfp4")


def _linear(weight: Any) -> Any:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data.copy_(weight)
    return linear


def test_calls_multiply_by_what_was_read() -> None:
    blocks, scales = checkpoint((48, 4), (120, 128))
    weight, scale = mxfp4(blocks, scales)
    x = torch.randint(-3, 4, (5, 128), generator=torch.Generator().manual_seed(1)).to(BF16)
    gemmill.torch.run_on_cpu()
    found = torch.ops.gemmill.mixed_mm(x, weight.mT, None, scale, b_dtype="e2m1", out_dtype=torch.float32)
    assert torch.equal(found, x.float() @ wide_mxfp4(weight, scale).mT)
