"""Verification on the CPU: torch is needed, a GPU is not."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import OperandSet, make_operands, natural_alpha, set_bytes, set_count
from gemmill.profiler.measure.verify import half_ulp, reference, upconverted

torch = pytest.importorskip("torch")

from gemmill.runtime.torch.layers.mxfp4 import wide_mxfp4  # noqa: E402

PROBLEM = GemmProblem(72, 40, 512, 1, "bf16", "k", "bf16", "mn", "f32", "bf16", "n")
FORMATS = [
    PROBLEM,
    replace(PROBLEM, d_dtype="f32"),
    replace(PROBLEM, k=8),
    replace(PROBLEM, k=4096, d_major="m"),
    replace(PROBLEM, batch=3, a_major="mn", b_major="k"),
    replace(PROBLEM, a_dtype="f16", b_dtype="f16", d_dtype="f16", c_dtype="f16", c_major="m"),
]


def problem(
    ab: DTypeName, accumulator: DTypeName, d: DTypeName, k: int = 512, b: DTypeName | None = None
) -> GemmProblem:
    """A problem of other types."""
    return replace(PROBLEM, a_dtype=ab, b_dtype=b or ab, b_major="k", accumulator=accumulator, d_dtype=d, k=k)


SCALED = replace(problem("e4m3", "f32", "bf16", 300), promote=4, a_scale="1x128", b_scale="128x128")
TYPES = [
    problem("tf32", "f32", "f32"),
    problem("f32", "f32", "f32"),
    problem("f64", "f64", "f64"),
    problem("e4m3", "f32", "bf16", 256),
    problem("e5m2", "f32", "f32", 256, "e4m3"),
    problem("e4m3", "f32", "e4m3", 256),
    replace(problem("e4m3", "f32", "f32", 4096), promote=4),
    problem("e4m3", "f16", "f16", 128),
    SCALED,
    replace(SCALED, batch=2, m=130, n=140),
    problem("s8", "s32", "s32"),
    problem("s8", "s32", "s32", b="u8"),
    problem("u8", "s32", "f32"),
    problem("s8", "s32", "bf16"),
    problem("s8", "s32", "f16"),
    problem("s8", "s32", "s8", 4096),
    replace(problem("s8", "s32", "s32"), c_dtype="s32", c_major="n"),
]


def solve_exactly(operands: OperandSet, alpha: float, beta: float) -> None:
    """Computes D in float64, rounded once."""
    a, b = operands.a.double(), operands.b.double()
    if operands.a_scale is not None:
        a = a * operands.a_scale.repeat_interleave(128, -1)[..., : a.shape[-1]]
        scales = operands.b_scale.repeat_interleave(128, -1).repeat_interleave(128, -2)
        b = b * scales[..., : b.shape[-2], : b.shape[-1]]
    result = alpha * (a @ b)
    if operands.c is not None:
        result += beta * operands.c.double()
    if not operands.d.dtype.is_floating_point:
        info = torch.iinfo(operands.d.dtype)
        result = result.round().clamp(info.min, info.max)
    operands.d.copy_(result)


@pytest.mark.parametrize("problem", TYPES, ids=str)
def test_every_type_is_verified(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    alpha = natural_alpha(problem)
    expected = reference(problem, operands, alpha, 1.0)
    assert not expected.compare(operands.d).passed, "D was never written"
    solve_exactly(operands, alpha, 1.0)
    verdict = expected.compare(operands.d)
    assert verdict.passed, verdict.says
    # An integer may not be off by one, nor anything else by as much as an eighth of K leaves out.
    where, d = place(operands), operands.d
    typical = math.sqrt(problem.k / 8) * (1.0 if operands.a.is_floating_point() else 73.0**2) * alpha
    d[where] = d[where].double() - (typical if d.dtype.is_floating_point else math.copysign(1, int(d[where])))
    assert not expected.compare(d).passed


def test_a_scale_of_another_block_is_wrong() -> None:
    operands = make_operands(SCALED, 1, "cpu", sets=1)[0]
    expected = reference(SCALED, operands, 1.0, 0.0)
    operands.a_scale[5, 1] = operands.a_scale[5, 0]
    solve_exactly(operands, 1.0, 0.0)
    assert "D[5, " in expected.compare(operands.d).says


def hopper(a: Any, b: Any, interval: int) -> Any:
    """fp8 sums as Hopper is said to make them: 32 products and the running sum, cut off 13 bits below the largest."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    running = torch.zeros_like(total)
    for k in range(0, a.shape[1], 32):
        products = a[:, None, k : k + 32] * b.T[None, :, k : k + 32]
        terms = torch.cat([products, running[..., None]], dim=-1)
        ulp = torch.exp2(torch.frexp(terms.abs().amax(-1, keepdim=True)).exponent - 14.0)
        running = ((terms / ulp).trunc() * ulp).sum(-1)
        if (k + 32) % interval == 0:
            total, running = (total + running).float().double(), torch.zeros_like(total)
    return total + running


@pytest.mark.parametrize("k", [32, 256, 2048, 8192])
@pytest.mark.parametrize("promote", [0, 4])
def test_what_fp8_tensor_cores_lose_is_within_the_bound(k: int, promote: int) -> None:
    fp8 = replace(problem("e4m3", "f32", "f32", k), promote=promote, m=24, n=16)  # type: ignore[arg-type]
    operands = make_operands(fp8, k, "cpu", sets=1)[0]
    operands.d.copy_(hopper(operands.a.double(), operands.b.double(), 32 * promote or k))
    verdict = reference(fp8, operands, 1.0, 0.0).compare(operands.d)
    assert verdict.passed, verdict.says
    assert verdict.error > 0.002  # nor is the bound without meaning


def test_sums_that_ought_to_have_been_promoted_are_found() -> None:
    fp8 = replace(problem("e4m3", "f32", "f32", 65536), promote=4, m=24, n=16)
    operands = make_operands(fp8, 1, "cpu", sets=1)[0]
    expected = reference(fp8, operands, 1.0, 0.0)
    for interval, passes in ((128, True), (65536, False)):
        operands.d.copy_(hopper(operands.a.double(), operands.b.double(), interval))
        assert expected.compare(operands.d).passed is passes


def solve(operands: OperandSet, alpha: float, beta: float) -> None:
    """Computes D as a kernel would: f32 sums, one rounding to D's format."""
    result = alpha * (operands.a.float() @ operands.b.float())
    if operands.c is not None:
        result += beta * operands.c.float()
    operands.d.copy_(result)


def place(operands: OperandSet) -> tuple[int, ...]:
    """Indices of an element of the last matrix."""
    return (*(extent - 1 for extent in operands.d.shape[:-2]), 7, 3)


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_operands_have_the_strides_that_the_majors_name(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    shapes: dict[str, tuple[int, int, bool]] = {
        "a": (problem.m, problem.k, problem.a_major == "k"),
        "b": (problem.k, problem.n, problem.b_major == "mn"),
        "d": (problem.m, problem.n, problem.d_major == "n"),
    }
    for name, (rows, columns, row_major) in shapes.items():
        tensor: Any = getattr(operands, name)
        assert tuple(tensor.shape) == ((problem.batch,) if problem.batch > 1 else ()) + (rows, columns)
        assert tensor.stride()[-2:] == ((columns, 1) if row_major else (1, rows))


def test_operands_are_random_and_differ_from_set_to_set() -> None:
    first, second = make_operands(PROBLEM, 1, "cpu", sets=2)
    assert not torch.equal(first.a, second.a)
    assert 0.9 < float(first.a.float().std()) < 1.1
    assert torch.equal(first.a, make_operands(PROBLEM, 1, "cpu", sets=1)[0].a)


@pytest.mark.parametrize("extent", [64, 1000, 4096, 16384])
def test_the_sets_together_exceed_twice_any_l2(extent: int) -> None:
    problem = replace(PROBLEM, m=extent, n=extent, k=extent)
    sets = set_count(problem)
    assert sets >= 2
    assert sets * set_bytes(problem) > 2 * (60 << 20) or sets == 1024


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_a_right_result_passes_and_an_unwritten_one_fails(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    expected = reference(problem, operands, 0.5, 2.0)
    verdict = expected.compare(operands.d)
    assert not verdict.passed
    assert "nan" in verdict.says
    solve(operands, 0.5, 2.0)
    verdict = expected.compare(operands.d)
    assert verdict.passed, verdict.says
    # The bound is not slack: rounding to a 16-bit D uses most of it.
    assert verdict.error > 0.5 or problem.d_dtype == "f32"


@pytest.mark.parametrize("problem", FORMATS, ids=str)
def test_one_missing_product_fails(problem: GemmProblem) -> None:
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    where = place(operands)
    expected = reference(problem, operands, 1.0, 1.0)
    solve(operands, 1.0, 1.0)
    operands.d[where] -= 1.0  # a product of two elements of ordinary size
    verdict = expected.compare(operands.d)
    assert f"1 of {operands.d.numel()} elements" in verdict.says
    assert f"[{where[-2]}, {where[-1]}] is" in verdict.says


def test_the_last_products_of_a_long_k_are_missed_in_f32() -> None:
    """FMAs round to nearest, so their bound grows with the square root of K."""
    long = replace(problem("f32", "f32", "f32", 65536), m=24, n=16)
    operands = make_operands(long, 1, "cpu", sets=1)[0]
    expected = reference(long, operands, 1.0, 0.0)
    solve(operands, 1.0, 0.0)
    assert expected.compare(operands.d).passed
    operands.d.copy_((operands.a[:, :-2].double() @ operands.b[:-2].double()).float())
    assert not expected.compare(operands.d).passed


def test_the_worst_element_is_found_in_any_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmill.profiler.measure.verify.CHUNK", 3 * PROBLEM.n)
    operands = make_operands(PROBLEM, 1, "cpu", sets=1)[0]
    expected = reference(PROBLEM, operands, 1.0, 0.0)
    solve(operands, 1.0, 0.0)
    assert expected.compare(operands.d).passed
    operands.d[70, 39] += 100
    verdict = expected.compare(operands.d)
    assert "1 of 2880 elements" in verdict.says
    assert "D[70, 39]" in verdict.says


@pytest.mark.parametrize(
    ("dtype", "magnitude", "expected"),
    [
        ("bf16", 1.0, 2.0**-8),
        ("bf16", 1.99, 2.0**-8),
        ("bf16", 2.0, 2.0**-7),
        ("f16", 1.0, 2.0**-11),
        ("f32", 4.0, 2.0**-22),
    ],
)
def test_half_an_ulp_is_that_of_the_binade(dtype: str, magnitude: float, expected: float) -> None:
    assert float(half_ulp(torch.tensor([magnitude], dtype=torch.float64), dtype)[0]) == expected


@pytest.mark.parametrize("wide", ["bf16", "f16"])
def test_weights_of_e2m1_are_those_of_their_format(wide: str) -> None:
    problem = GemmProblem(m=200, n=40, k=416, a="e2m1", b=wide)
    operands = make_operands(problem, 1, "cpu", sets=1)[0]
    wanted = wide_mxfp4(operands.a, operands.a_scale.mT)
    assert torch.equal(upconverted(problem, operands).float(), wanted)
    operands.d.copy_(wanted @ operands.b.float())
    expected = reference(problem, operands, 1.0, 0.0)
    assert expected.compare(operands.d).passed
    operands.d[7, 3] *= 1.1
    assert not expected.compare(operands.d).passed
