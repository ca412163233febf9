"""Kernels of every arithmetic against the oracle: each bit of D, on random data and on data that is hard to sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from tests.cli.test_cli import ok
from tests.cli.test_oracle import DIGEST
from tests.gpu.harness import torch

import gemmill
from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.bits import required_arithmetic
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.oracle.elements import checked_array, rounded
from gemmill.library.oracle.oracle import oracle
from gemmill.library.oracle.problems import random_matrix
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

DATA = ("normal", "wide", "cancelling", "small", "special")
M, N, K = 448, 448, 528
"""K has a tail in every tile K; five kinds of data are a million sums of each arithmetic."""
TILE_K: Mapping[DTypeName, int] = {"bf16": 64, "f16": 64, "tf32": 32, "e4m3": 128, "e5m2": 128, "s8": 128}
SLICED = ("splitk 2", "splitk 8", "splitk 9", "splitk 40", "tree 4", "k3cluster 0")


def wgmma(dtype: DTypeName) -> Iterator[tuple[str, int]]:
    """Names and slices of WGMMA kernels."""
    k, promotes = TILE_K[dtype], ("", "p4") if DTYPES[dtype].bits == 8 and dtype != "s8" else ("",)
    d = "s32" if dtype == "s8" else "f32"
    for promote in promotes:
        start = f"sm90a_{dtype}k16_{dtype}k16_{d}{promote}_none_{d}n16"
        yield f"{start}_128x128x{k}_1x1_cooperative_s3_m8_k1_linear", 1
        yield f"{start}_128x256x{k}_2x1_cooperative_s2_m8_k1_linear", 1
        for decomposition, slices in (words.split() for words in SLICED):
            yield f"{start}_128x96x{k}_1x1_cooperative_s3_m8_{decomposition}_linear", int(slices) or 1
    if dtype != "s8":
        yield f"sm90a_{dtype}k16_{dtype}k16_{d}_none_{d}n16_128x128x{k}_1x1_cooperative_s3_m8_serial_linear", 5


def others(dtype: DTypeName) -> Iterator[str]:
    """Names of kernels without TMA."""
    if dtype == "f64":
        yield "sm90_f64k16_f64k16_f64_none_f64any8_64x64x16_1x1_multistage_s4_m8_k1_linear"
        yield "sm90_f64any8_f64any8_f64_none_f64any8_64x64x16_1x1_simt_s2_m8_k1_linear"
        return
    d, k, size = "s32" if dtype == "s8" else "f32", TILE_K[dtype], DTYPES[dtype].bytes
    for align in (16, size):
        start = f"sm90_{dtype}k{align}_{dtype}k{align}_{d}_none_{d}any4"
        yield f"{start}_64x64x{k}_1x1_multistage_s4_m8_k1_linear"
        yield f"{start}_16x32x{2 * k}_1x1_multistage_s4_m8_k1_linear"
    yield f"sm90_{dtype}any{size}_{dtype}any{size}_{d}_none_{d}any4_64x64x16_1x1_simt_s2_m8_k1_linear"
    if size == 2:
        yield f"sm90a_{dtype}k16_{dtype}k16_f32_none_f32any4_8x16x512_1x1_gemv_s4_m1_k1_linear"
        yield f"sm90a_{dtype}k4_{dtype}k4_f32_none_f32any4_32x16x256_1x1_gemv_s8_m1_k1_linear"
        yield f"sm90a_{dtype}k16_{dtype}mn16_f32_none_f32any4_8x64x256_1x1_gemv_s8_m1_k1_linear"
    if dtype == "e4m3":
        yield "sm90a_e4m3k8_e4m3k8_f32_none_f32any4_8x32x256_1x1_gemv_s8_m1_k1_linear"


def matrix(data: str, dtype: DTypeName, shape: tuple[int, int], draw: np.random.Generator) -> np.ndarray:
    """A matrix with K along the first axis."""
    row = DTYPES[dtype]
    if row.is_integer:
        return random_matrix(*shape, dtype, draw)
    values = draw.standard_normal(shape)
    reach = min(30, -row.least_exponent - 2)
    if data == "wide":
        values *= np.exp2(draw.integers(-reach, reach, shape))
    elif data == "small":
        values *= np.exp2(max(row.least_exponent, -70) + draw.integers(-4, 8, shape))
    elif data == "special":
        for special in (np.inf, -np.inf, np.nan, 0.0, -0.0):
            values[draw.random(shape) < 0.2 / len(values)] = special
    return rounded(values, "f32" if dtype == "tf32" else dtype)


def operands(data: str, dtype: DTypeName, k: int) -> tuple[np.ndarray, np.ndarray]:
    """A of M x K and B of K x N."""
    draw = np.random.default_rng(DATA.index(data))
    a, b = (matrix(data, dtype, (k, extent), draw) for extent in (M, N))
    if data == "cancelling" and not DTYPES[dtype].is_integer:
        half = k // 2
        order = draw.permutation(half)
        a[half : 2 * half], b[half : 2 * half] = a[:half][order], b[:half][order]
        b.view(f"u{b.itemsize}")[:half] ^= b.view(f"u{b.itemsize}").dtype.type(1 << (8 * b.itemsize - 1))
    return np.ascontiguousarray(a.T), b


def on_gpu(array: np.ndarray, dtype: DTypeName) -> Any:
    integers = np.ascontiguousarray(array).view(f"i{array.itemsize}")
    return torch.from_numpy(integers).cuda().view(getattr(torch, DTYPES[dtype].torch))


def bits_of(tensor: Any) -> np.ndarray:
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return np.asarray(tensor.contiguous().view(integer).cpu().numpy())


@pytest.mark.parametrize("dtype", [*TILE_K, "f64"])
def test_kernels_of_every_arithmetic_give_the_bits_of_the_oracle(dtype: DTypeName) -> None:
    kernels = [*(() if dtype == "f64" else wgmma(dtype)), *((name, 1) for name in others(dtype))]
    registry = Registry()
    registry.warm(dict.fromkeys(name for name, _ in kernels))
    d_dtype: DTypeName = {"s8": "s32", "f64": "f64"}.get(dtype, "f32")  # type: ignore[assignment]
    wrong = []
    for data in DATA:
        expected: dict[tuple[str, int], np.ndarray] = {}
        for name, slices in kernels:
            arithmetic = str(arithmetic_of(parse_name(name), slices))
            k = 48 if arithmetic in ("fma", "k4") else K  # the CPU needs longer for these
            a, b = operands(data, dtype, k)
            if (arithmetic, k) not in expected:
                expected[arithmetic, k] = oracle(a, b, dtypes=(dtype, dtype), arithmetic=arithmetic, d_dtype=d_dtype)
            out = torch.empty(M, N, dtype=getattr(torch, DTYPES[d_dtype].torch), device="cuda")
            left, right = on_gpu(a, dtype), on_gpu(b.T, dtype).T
            if "mn16" in name:
                right = right.contiguous()
            options = {"slices": slices} if slices > 1 else {}
            if dtype == "tf32":
                options["tf32"] = True
            if "p4_" in name:
                options["fast_accumulation"] = False
            gemmill.matmul(left, right, out=out, kernel=name, registry=registry, **options)
            differ = int((bits_of(out) != expected[arithmetic, k].view(bits_of(out).dtype)).sum())
            if differ:
                wrong.append((data, arithmetic, name, differ))
    assert not wrong


def with_outputs(dtype: DTypeName, d: DTypeName, has_c: bool) -> Iterator[str]:
    """Names of kernels with D, and C, of a type: by WGMMA, with split-K, and without TMA."""
    size, k = DTYPES[d].bytes, TILE_K[dtype]
    for decomposition in ("k1", "splitk"):
        c = f"{d}n16" if has_c else "none"
        yield f"sm90a_{dtype}k16_{dtype}k16_f32_{c}_{d}n16_128x64x{k}_1x1_cooperative_s3_m8_{decomposition}_linear"
    c = f"{d}any{size}" if has_c else "none"
    yield f"sm90_{dtype}k16_{dtype}k16_f32_{c}_{d}any{size}_64x64x{k}_1x1_multistage_s4_m8_k1_linear"


@pytest.mark.parametrize("dtype", ["bf16", "f16", "e4m3"])
@pytest.mark.parametrize("d_dtype", ["f32", "bf16", "f16", "e4m3", "e5m2"])
def test_alpha_beta_c_and_narrow_outputs_have_the_bits_of_the_oracle(dtype: DTypeName, d_dtype: DTypeName) -> None:
    registry, draw, wrong = Registry(), np.random.default_rng(5), []
    c = rounded(draw.standard_normal((M, N)) * np.exp2(draw.integers(-9, 9, (M, N))), d_dtype)
    registry.warm([name for has_c in (True, False) for name in with_outputs(dtype, d_dtype, has_c)])
    for data in ("normal", "special"):
        a, b = operands(data, dtype, 256)
        left, right = on_gpu(a, dtype), on_gpu(b.T, dtype).T
        for alpha, beta in ((1.0, 0.0), (-1.0, 0.0), (2.0**-6, 0.0), (0.7, 1 / 3), (-3.0, 1.0), (1.0, -0.3)):
            for name in with_outputs(dtype, d_dtype, beta != 0):
                slices = 3 if "splitk" in name else 1
                arithmetic = arithmetic_of(parse_name(name), slices)
                expected = oracle(
                    a, b, dtypes=(dtype, dtype), arithmetic=arithmetic, d_dtype=d_dtype, alpha=alpha, beta=beta, c=c
                )
                out = torch.empty(M, N, dtype=getattr(torch, DTYPES[d_dtype].torch), device="cuda")
                options = {"c": on_gpu(c, d_dtype), "beta": beta} if beta else {}
                options |= {"slices": slices} if slices > 1 else {}
                gemmill.matmul(left, right, out=out, alpha=alpha, kernel=name, registry=registry, **options)
                shown = bits_of(out)
                if not (shown == expected.view(shown.dtype)).all():
                    wrong.append((data, alpha, beta, name))
    assert not wrong


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("k", [1024, 2048])
def test_calls_with_invariant_bits_give_those_of_the_oracle_for_any_number_of_rows(dtype: DTypeName, k: int) -> None:
    a, b = operands("wide", dtype, k)
    arithmetic = required_arithmetic("invariant", GemmProblem(m=1, n=N, k=k, a=dtype))
    assert arithmetic
    expected = oracle(a, b, dtypes=(dtype, dtype), arithmetic=arithmetic, d_dtype="bf16")
    for rows in (1, 2, 7, 16, 33, 64, 100, 300, M):
        shown = bits_of(gemmill.matmul(on_gpu(a[:rows], dtype), on_gpu(b.T, dtype).T, bits="invariant"))
        assert (shown == expected[:rows].view(shown.dtype)).all(), rows


def test_a_gpu_gives_the_digest_that_the_command_prints() -> None:
    draw = np.random.default_rng(0)
    a, b = random_matrix(8, 640, "bf16", draw), random_matrix(640, 12, "bf16", draw)
    d = gemmill.matmul(on_gpu(a, "bf16"), on_gpu(b, "bf16"), bits="k16")
    assert hashlib.sha256(checked_array(bits_of(d), "bf16", "d").tobytes()).hexdigest() == DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "264x392x1000 bf16 tn",
        "64x128x4096 e4m3 tn c=bf16",
        "96x128x512x3 f16 nt c=f32 d=f32",
        "128x256x512 s8 tn d=s8",
        "128x256x512 s8 tn c=bf16 d=bf16",
    ],
)
def test_run_verifies_bits(text: str) -> None:
    rows = json.loads(ok("bench", "--problem", text, "--verify", "bits", "--top", "3", "--json"))["items"]
    kernels = [row for row in rows if row["kernel"] not in BASELINES]
    assert kernels
    assert all(row["verified"] for row in kernels)


@pytest.mark.parametrize(
    ("text", "epilogue"),
    [
        ("264x392x1000 bf16 tn", "d = relu(alpha * acc * s[m] * t[n] + bias.bf16[n])"),
        ("64x256x2048 bf16 tn d=f32", "d = acc * s[m] - beta * r.bf16[m, n] * t[n]"),
        ("300x512x512 e4m3 tn d=bf16", "d = clamp(gate, -7, 7) * (up + 1) * s"),
        ("128x128x512x3 f16 nt", "d = where(acc > bias[n], f16(acc), acc - bias[n] * s[m]) + max(bias[n], s[m], 0)"),
    ],
)
def test_run_verifies_the_bits_of_expressions(text: str, epilogue: str) -> None:
    said = ok("bench", "--problem", text, "--epilogue", epilogue, "--verify", "bits", "--top", "3", "--json")
    assert all(row["verified"] for row in json.loads(said)["items"] if row["kernel"] not in BASELINES)
