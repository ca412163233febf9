"""Comparison of D with the oracle, as ``bench --verify bits`` does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from gemmill.library.arithmetic import parse_arithmetic  # noqa: E402
from gemmill.library.input.group_sizes import sizes_of  # noqa: E402
from gemmill.library.oracle.oracle import oracle  # noqa: E402
from gemmill.library.problem import GemmProblem  # noqa: E402
from gemmill.profiler.measure.bits import compare_bits  # noqa: E402
from gemmill.profiler.measure.operands import factors, make_operands  # noqa: E402

PROBLEMS = (
    "24x16x64 bf16 tn",
    "24x16x64 f16 nt c=f16 d=f16",
    "24x16x64 tf32 tn",
    "24x16x64 e4m3 tn",
    "24x16x64 s8 tn",
    "24x16x64x3 bf16 tn c=bf16",
    "24x16x64 bf16 tn grouped=3",
)


@pytest.mark.parametrize("text", PROBLEMS)
def test_one_other_bit_is_found_and_named(text: str) -> None:
    problem = GemmProblem.from_text(text)
    steps = {"bf16": "k16", "f16": "k16", "tf32": "k8", "e4m3": "k32", "s8": "exact"}
    arithmetic = parse_arithmetic(steps[problem.a_dtype])
    [operands] = make_operands(problem, 0, device="cpu", sets=1, sizes=sizes_of(problem))
    alpha, beta = factors(problem)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}

    def array(tensor: torch.Tensor) -> np.ndarray:
        return np.asarray(tensor.contiguous().view(bits[tensor.element_size()]).numpy())

    ends = np.cumsum(operands.sizes).tolist() or [0]
    for i in range(problem.batch):
        rows = slice(ends[i] - operands.sizes[i], ends[i]) if operands.sizes else slice(None)
        a, d = ((x[i] if x.dim() == 3 else x)[rows] for x in (operands.a, operands.d))
        b = operands.b[i] if operands.b.dim() == 3 else operands.b
        c = operands.c[i] if problem.batch > 1 and operands.c is not None else operands.c
        expected = oracle(
            array(a), array(b), dtypes=(problem.a_dtype, problem.b_dtype), arithmetic=arithmetic,
            d_dtype=problem.d_dtype, alpha=alpha, beta=beta, c=None if c is None else array(c),
        )  # fmt: skip
        d.copy_(torch.from_numpy(expected.view(f"i{expected.itemsize}")).view(d.dtype))
    assert compare_bits(problem, operands, arithmetic).passed
    assert compare_bits(problem, operands, arithmetic, swap_ab=True).passed
    place = (-1,) * operands.d.dim()
    operands.d.view(bits[operands.d.element_size()])[place] ^= 1
    says = compare_bits(problem, operands, arithmetic).says
    assert says.startswith(f"1 of {operands.d.numel()} elements do not have the bits of {arithmetic}; D")
    assert "[23, 15] is 0x" in says
    assert ", expected 0x" in says


def test_an_epilogue_takes_the_operands_of_its_part() -> None:
    epilogue = "d = relu(acc * s[m] + bias.bf16[n])"
    problem = GemmProblem.from_text("24x16x64x3 bf16 tn d=f32").but(epilogue=epilogue)
    arithmetic = parse_arithmetic("k16")
    [operands] = make_operands(problem, 0, device="cpu", sets=1)
    sums = []
    for a, b in zip(operands.a, operands.b, strict=True):
        bits = [x.contiguous().view(torch.int16).numpy() for x in (a, b)]
        sums.append(torch.from_numpy(oracle(*bits, dtypes=("bf16", "bf16"), arithmetic=arithmetic)).double())
    s, bias = operands.arguments["s"].double(), operands.arguments["bias"].double()
    # In float64 the product is exact; rounding its sum twice gives other bits only if it is next to a tie.
    d = torch.relu(torch.stack(sums) * s[:, :, None] + bias[:, None, :]).float()
    operands.d.copy_(d)
    for swap_ab in (False, True):
        assert compare_bits(problem, operands, arithmetic, swap_ab=swap_ab).passed
    operands.d[2, 23, 15] += 1
    assert "1 of 1152 elements" in compare_bits(problem, operands, arithmetic).says
