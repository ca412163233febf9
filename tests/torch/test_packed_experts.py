"""4-bit weights of experts, read from AWQ and GPTQ."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from tests.torch.test_linear import words  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.layers.checkpoints import COLUMNS_OF_AWQ  # noqa: E402


def drawn(scheme: str, k: int, n: int, group: int, seed: int) -> tuple[dict[str, Any], Any, Any]:
    """An expert, its values (K, N), and its zero points (K / group, N)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 16, (k, n), generator=generator)
    zeros = torch.randint(1, 16, (k // group, n), generator=generator)
    scales = torch.rand(k // group, n, generator=generator).bfloat16()
    if scheme == "awq":
        order = COLUMNS_OF_AWQ
        return {"qweight": words(values, order), "qzeros": words(zeros, order), "scales": scales}, values, zeros
    kept = zeros if scheme == "gptq_v2" else zeros - 1
    packed = words(values.mT, range(8)).mT.contiguous()
    held = {"qweight": packed, "qzeros": words(kept, range(8)), "scales": scales, "g_idx": torch.arange(k) // group}
    return held, values, zeros


@given(
    st.sampled_from(["awq", "gptq", "gptq_v2"]),
    st.sampled_from([32, 64, 128]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_experts_are_what_their_checkpoint_has(scheme: str, group: int, groups: int, in_words: int, count: int) -> None:
    k, n = group * groups, 8 * in_words
    found = [drawn(scheme, k, n, group, seed) for seed in range(count)]
    weights, scales, zero_points = gemmill.torch.packed_experts([held for held, _, _ in found], scheme)
    for (held, values, zeros), weight, scale, zero in zip(found, weights, scales, zero_points, strict=True):
        assert torch.equal(torch.stack((weight & 15, weight >> 4), -1).flatten(1), values.mT)
        assert torch.equal(scale, held["scales"])
        assert torch.equal(zero, zeros.bfloat16())


def test_a_layer_of_a_checkpoint() -> None:
    """Gate and up apart, as AWQ and GPTQ store them."""
    hidden, inner, experts = 64, 32, 3
    projections = {
        name: [drawn("gptq", k, n, 32, seed + 7 * i) for seed in range(experts)]
        for i, (name, k, n) in enumerate((("gate", hidden, inner), ("up", hidden, inner), ("down", inner, hidden)))
    }
    gate, up, down = (gemmill.torch.packed_experts([x for x, _, _ in found]) for found in projections.values())
    w1, scale, zero = (torch.cat(both, axis) for *both, axis in zip(gate, up, (1, 2, 2), strict=True))
    of_groups = {"w1_scale": gemmill.interleaved(scale, axis=2), "w1_zero": gemmill.interleaved(zero, axis=2)}
    of_groups |= dict(zip(("w2_scale", "w2_zero"), down[1:], strict=True))
    x, ids = torch.randn(5, hidden).bfloat16(), torch.tensor([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2]])
    found = gemmill.torch.moe(x, gemmill.interleaved(w1), down[0], ids, None, w_dtype="u4", **of_groups)

    def wide(name: str, expert: int) -> Any:
        held, values, zeros = projections[name][expert]
        zero, scale = (y.repeat_interleave(32, 0).double() for y in (zeros, held["scales"]))
        return (values - zero) * scale

    for token, experts_of_it in enumerate(ids.tolist()):
        row, wanted = x[token].double(), torch.zeros(hidden)
        for e in experts_of_it:
            inner_row = torch.nn.functional.silu(row @ wide("gate", e)) * (row @ wide("up", e))
            wanted = wanted + inner_row @ wide("down", e)
        assert (found[token] - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (drawn("gptq", 128, 16, 64, 0)[0], r"w\[1\] has N 16, K 128, 2 groups .* and w\[0\] N 16, K 64, 2 groups"),
        ({"g_idx": torch.zeros(64)}, r"w\[1\] has rows reordered by g_idx \(desc_act\), which is not supported$"),
        ({"scales": torch.rand(2, 16)}, r"w\[1\] has .* torch.float32 scales and w\[0\] .* torch.bfloat16 scales"),
        ({"scales": torch.full((2, 16), float("nan")).bfloat16()}, r"w\[1\].scales: reading it back does not give"),
    ],
)
def test_what_differs_is_refused(changed: dict[str, Any], says: str) -> None:
    held = drawn("gptq", 64, 16, 32, 0)[0]
    with pytest.raises(OperandError, match=says):
        gemmill.torch.packed_experts([held, held | changed], name="w")


def test_parts_that_are_missing_are_named() -> None:
    held = drawn("awq", 64, 16, 32, 0)[0]
    with pytest.raises(OperandError, match=r"^experts has no experts"):
        gemmill.torch.packed_experts([])
    with pytest.raises(OperandError, match=r"experts\[0\] has no qzeros; it must have qweight, qzeros, scales"):
        gemmill.torch.packed_experts([{name: x for name, x in held.items() if name != "qzeros"}])
