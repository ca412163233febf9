"""Tests of the oracle: results that an H200 gave, the model in exact fractions, and what must not change bits."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import ConfigError, ProblemError
from gemmill.library.oracle import tensor_core
from gemmill.library.oracle.elements import rounded, values
from gemmill.library.oracle.epilogue import applied
from gemmill.library.oracle.fused import fma32, fma64
from gemmill.library.oracle.oracle import oracle
from gemmill.library.oracle.tensor_core import LEAST_EXPONENT, MODELS

STEPS: dict[DTypeName, str] = {"bf16": "k16", "f16": "k16", "tf32": "k8", "e4m3": "k32", "e5m2": "k32"}


@cache
def recorded() -> tuple[dict[str, np.ndarray], list[Any]]:
    """Arrays and cases of h200.npz: parts of results of kernels of each arithmetic on an H200, on random data and on
    data with wide exponents, cancellation, subnormal numbers, infinities and NaNs."""
    file = np.load(Path(__file__).with_name("h200.npz"))
    bits, index = file["bits"].tobytes(), json.loads(file["index"].tobytes())
    arrays = {
        name: np.frombuffer(bits, dtype, math.prod(shape), begin).reshape(shape)
        for name, (begin, dtype, shape) in index["arrays"].items()
    }
    return arrays, index["cases"]


@pytest.mark.parametrize("dtype", [*STEPS, "s8", "f64"])
def test_the_oracle_gives_the_bits_of_an_h200(dtype: str) -> None:
    arrays, cases = recorded()
    wrong = []
    for of, data, a, b, results in cases:
        for arithmetic, d_dtype, alpha, beta, c, d in results if of == dtype else ():
            found = oracle(
                arrays[a], arrays[b], dtypes=(of, of), arithmetic=arithmetic,
                d_dtype=d_dtype, alpha=alpha, beta=beta, c=arrays[c] if c else None,
            )  # fmt: skip
            if found.tobytes() != arrays[d].tobytes():
                wrong.append((arithmetic, d_dtype, data, alpha, beta))
    assert not wrong
    assert any(case[0] == dtype for case in cases)


def bits_of(dtype: str) -> st.SearchStrategy[int]:
    """Bits of a finite element, near each other in exponent as often as far apart."""
    row = DTYPES[dtype]
    fraction = round(-math.log2(row.epsilon))
    exponents = 2 ** (19 - 1 - fraction if dtype == "tf32" else row.bits - 1 - fraction) - 1 - (dtype != "e4m3")
    middle = st.integers(exponents // 2 - 6, exponents // 2 + 6)
    shift = 13 if dtype == "tf32" else 0
    finite = st.builds(
        lambda sign, exponent, low: (
            ((sign << 18 if dtype == "tf32" else sign << (row.bits - 1)) | exponent << fraction | low) << shift
        ),
        st.integers(0, 1),
        st.one_of(middle, st.integers(0, exponents)),
        st.integers(0, 2**fraction - 2),
    )
    return st.one_of(finite, st.just(0))


def exponent_of(x: Fraction | int, least: int) -> int:
    return max(math.frexp(x)[1] - 1, least)


def truncated(x: Fraction | int, quantum: int) -> Fraction:
    return math.trunc(x / Fraction(2) ** quantum) * Fraction(2) ** quantum


def one_step(dtype: DTypeName, pairs: list[tuple[float, float]], sum_so_far: Fraction) -> Fraction:
    """The model of one step, in fractions."""
    model, least = MODELS[STEPS[dtype]], DTYPES[dtype].least_exponent
    terms = [
        (Fraction(a) * Fraction(b), exponent_of(Fraction(a), least) + exponent_of(Fraction(b), least)) for a, b in pairs
    ]
    terms.append((sum_so_far, exponent_of(sum_so_far, -126)))
    top = max([LEAST_EXPONENT, *(exponent for value, exponent in terms if value)])
    total = sum((truncated(value, top - model.aligned) for value, _ in terms), Fraction(0))
    return truncated(total, exponent_of(total, -126) - model.kept)


@pytest.mark.parametrize("dtype", STEPS)
@given(data=st.data())
def test_two_steps_are_those_of_the_model_in_fractions(dtype: DTypeName, data: st.DataObject) -> None:
    count = 2 * MODELS[STEPS[dtype]].products
    size = {"tf32": np.uint32, "bf16": np.uint16, "f16": np.uint16}.get(dtype, np.uint8)
    a, b = (np.array(data.draw(st.lists(bits_of(dtype), min_size=count, max_size=count)), size) for _ in "ab")
    shown = oracle(a[None], b[:, None], dtypes=(dtype, dtype), arithmetic=STEPS[dtype])[0, 0]
    kinds = {"tf32": np.float32, "f16": np.float16}
    pairs = list(zip(*(values(x.view(kinds.get(dtype, size)), dtype).tolist() for x in (a, b)), strict=True))
    expected = one_step(dtype, pairs[count // 2 :], one_step(dtype, pairs[: count // 2], Fraction(0)))
    if abs(expected) < 2**128:
        assert Fraction(float(shown)) == expected
    else:
        assert math.isinf(shown)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["k16", "k16w4@64", "k16/3@16", "k16/8t@16", "k16/4", "fma"]))
def test_a_row_does_not_depend_on_others(seed: int, arithmetic: str) -> None:
    draw = np.random.default_rng(seed)
    a = draw.standard_normal((5, 200)).astype(np.float16)
    b = (draw.standard_normal((200, 3)) * np.exp2(draw.integers(-12, 12, (200, 3)))).astype(np.float16)
    whole = oracle(a, b, dtypes=("f16", "f16"), arithmetic=arithmetic)
    one = oracle(a[2:3], b, dtypes=("f16", "f16"), arithmetic=arithmetic)
    assert whole[2:3].tobytes() == one.tobytes()


def test_blocks_do_not_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    a, b = (rounded(draw.standard_normal(shape), "bf16") for shape in ((9, 96), (96, 70)))
    a[3, 5], b[7, 9] = 0x7F80, 0x7FFF  # infinity, NaN
    a[4], a[5] = 0, a[5] & 0x800F  # zeros, subnormal numbers
    found = []
    for elements in (1, 1 << 11, 1 << 18):
        monkeypatch.setattr(tensor_core, "BLOCK_ELEMENTS", elements)
        found.append(oracle(a, b, dtypes=("bf16", "bf16"), arithmetic="k16"))
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()
    assert (found[0][4, :9] == 0).all()
    assert (found[0][5, :9] != 0).all()


def test_products_of_a_step_have_no_order_but_steps_have() -> None:
    draw = np.random.default_rng(2)
    a = (draw.standard_normal((8, 64)) * np.exp2(draw.integers(-8, 8, (8, 64)))).astype(np.float16)
    b = draw.standard_normal((64, 8)).astype(np.float16)
    within = np.concatenate([draw.permutation(16) + k for k in range(0, 64, 16)])
    across = np.arange(64)[::-1]
    d, same, other = (
        oracle(a[:, k], b[k], dtypes=("f16", "f16"), arithmetic="k16").tobytes()
        for k in (np.arange(64), within, across)
    )
    assert d == same != other


floats = st.floats(allow_nan=False, allow_infinity=False)


@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_fma32_rounds_once(a: float, b: float, c: float) -> None:
    found = float(fma32(*(np.array([x], np.float32) for x in (a, b, c)))[0])
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    exponent = exponent_of(exact, -126) - 23
    nearest = round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent
    assert found == nearest if abs(nearest) < 2**128 else math.isinf(found)


@given(floats, floats, floats)
def test_fma64_rounds_once(a: float, b: float, c: float) -> None:
    found = float(fma64(*(np.array([x]) for x in (a, b, c)))[0])
    try:
        assert found == float(Fraction(a) * Fraction(b) + Fraction(c))
    except OverflowError:
        assert math.isinf(found)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3", "e5m2"])
def test_every_value_of_a_type_rounds_to_its_bits_and_ties_go_to_even(dtype: DTypeName) -> None:
    size: Any = np.uint16 if DTYPES[dtype].bits == 16 else np.uint8
    bits: Any = np.arange(2 ** DTYPES[dtype].bits - 1).astype(size)
    kept = values(bits.view(np.float16) if dtype == "f16" else bits, dtype)
    finite = np.isfinite(kept)
    assert (rounded(kept, dtype).view(size) == bits)[finite].all()
    upper = finite[:-1] & finite[1:] & (kept[1:] > 0)
    low, high = (x[upper].astype(np.float64) for x in (kept[:-1], kept[1:]))
    middle = ((low + high) / 2).astype(np.float32)
    even = (bits[:-1] + (bits[:-1] & 1))[upper]
    assert (rounded(middle, dtype).view(size) == even).all()


def test_narrow_results_overflow_or_saturate_as_kernels_do() -> None:
    large = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert rounded(large, "bf16").tolist() == [0x7F80, 0xFF80, 0x7FFF]
    assert rounded(large, "f16").view(np.uint16).tolist() == [0x7C00, 0xFC00, 0x7FFF]
    assert rounded(large, "e4m3").tolist() == [0x7E, 0xFE, 0x7F]
    assert rounded(large, "e5m2").tolist() == [0x7B, 0xFB, 0x7F]


@pytest.mark.parametrize(
    ("epilogue", "expected"),
    [
        ("d = acc * s - t", 2.0**-24),
        ("d = s * acc - t", 2.0**-24),
        ("d = t - acc * s", -(2.0**-24)),
        ("d = f32(acc * s) - t", 0.0),
        ("d = s * acc - 1.0 * t", 0.0),  # of two products, the right one is fused
        ("d = acc * 3 * s - 3 * t", 2.0**-22),
        ("d = max(-(0 * acc), 0)", 0.0),
        ("d = min(0 * acc, -(0 * acc), t)", -0.0),
        ("d = relu(-(0 * acc))", 0.0),
        ("d = where(acc > s, 1, 2) + clamp(acc, 3, t) * 4", 2 + 4 * (1 + 2.0**-11)),
        ("d = e4m3(300 * acc) + bf16(acc) + s8(-2.5 * acc)", 288 + 1 - 3),
    ],
)
def test_operations_of_an_epilogue_round_once_in_the_order_of_kernels(epilogue: str, expected: float) -> None:
    values = {"acc": 1 + 2.0**-12, "s": 1 + 2.0**-12, "t": 1 + 2.0**-11}
    found = applied(parse(epilogue), {name: np.array(x, np.float32) for name, x in values.items()})
    assert found.tobytes() == np.float32(expected).tobytes()


def test_sums_of_integers_round_to_even_and_saturate() -> None:
    a, b = np.array([[1], [3], [5], [-3], [127]], np.int8), np.array([[1, 3]], np.int8)
    d = oracle(a, b, dtypes=("s8", "s8"), arithmetic="exact", d_dtype="s8", alpha=0.5)
    assert d.tolist() == [[0, 2], [2, 4], [2, 8], [-2, -4], [64, 127]]
    d = oracle(a, b, dtypes=("s8", "s8"), arithmetic="exact", d_dtype="u8", beta=-1, c=np.full((5, 2), 2, np.uint8))
    assert d.tolist() == [[0, 1], [1, 7], [3, 13], [0, 0], [125, 255]]
    with pytest.raises(ProblemError, match=r"alpha is 0\.5 and beta is 0; for D in s32"):
        oracle(a, b, dtypes=("s8", "s8"), arithmetic="exact", d_dtype="s32", alpha=0.5)


def test_what_the_model_does_not_cover_is_refused() -> None:
    a = np.zeros((2, 32), np.float16)
    for arithmetic, says in (
        ("k16/stream@64", "the launch determines its slices; use bits='invariant' or a fixed number"),
        ("k16/S", "the launch determines its slices"),
        ("k16.sm80", "was not measured"),
        ("k16f16", "k16f16: how it adds the products of a step was not measured"),
        ("k16w4", "k16w4: no kernel can sum in this order"),
        ("k16w2v3x5@64", "no kernel can sum in this order"),
        ("fma/4", "no kernel can sum in this order"),
        ("k8", "f16 by f16 in k8, which multiplies tf32, f32"),
    ):
        with pytest.raises(ProblemError, match=says):
            oracle(a, a.T, dtypes=("f16", "f16"), arithmetic=arithmetic)
    with pytest.raises(ConfigError, match="not the name of an arithmetic"):
        oracle(a, a.T, dtypes=("f16", "f16"), arithmetic="fast")
    with pytest.raises(ProblemError, match=r"\(2, 32\) and b is \(2, 32\)"):
        oracle(a, a, dtypes=("f16", "f16"), arithmetic="k16")
    with pytest.raises(ProblemError, match=r"c is \(2,\); it must be \(2, 2\)"):
        oracle(a, a.T, dtypes=("f16", "f16"), arithmetic="k16", beta=1, c=np.zeros(2, np.float32))
    with pytest.raises(ProblemError, match="array of float64; f16 takes float16"):
        oracle(a.astype(np.float64), a.T, dtypes=("f16", "f16"), arithmetic="k16")
