"""Baselines: what they solve, how cuBLASLt sees operands, and on a GPU that they solve it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.cases.problems import plain as of_formats

from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT, CUBLASLT_TUNED, PER_TENSOR, TRITON, absent
from gemmill.profiler.baselines.cublaslt import Stored, column_major, stored, stored_scales
from gemmill.profiler.measure.graph_timing import capture
from gemmill.profiler.measure.operands import make_operands, poison
from gemmill.profiler.measure.verify import reference

torch = pytest.importorskip("torch")


def problem(ab: DTypeName, accumulator: DTypeName, d: DTypeName, b: DTypeName | None = None) -> GemmProblem:
    return GemmProblem(64, 48, 96, 1, ab, "k", b or ab, "k", accumulator, d, "n")


SCALED = replace(problem("e4m3", "f32", "bf16"), promote=4, a_scale="1x128", b_scale="128x128")


@pytest.mark.parametrize(
    ("asked", "solved", "name"),
    [
        (problem("bf16", "f32", "bf16"), None, CUBLAS),
        (problem("f16", "f16", "f16"), None, CUBLAS),
        (problem("tf32", "f32", "f32"), None, CUBLAS),
        (problem("f64", "f64", "f64"), None, CUBLAS),
        (problem("s8", "s32", "s32"), None, CUBLAS),
        (problem("s8", "s32", "bf16"), problem("s8", "s32", "s32"), CUBLAS),
        (problem("e4m3", "f32", "bf16"), None, CUBLAS),
        (replace(problem("e4m3", "f32", "bf16"), promote=4), None, CUBLAS),
        (problem("e4m3", "f32", "e4m3"), problem("e4m3", "f32", "bf16"), CUBLAS),
        (SCALED, problem("e4m3", "f32", "bf16"), PER_TENSOR),
    ],
    ids=str,
)
def test_a_baseline_says_what_it_solves_and_solves_it(
    asked: GemmProblem, solved: GemmProblem | None, name: str
) -> None:
    operands = make_operands(asked, 1, "cpu", sets=2)
    assert BASELINES[CUBLAS if name == PER_TENSOR else PER_TENSOR](asked, operands) is None
    cublas = BASELINES[name](asked, operands)
    assert cublas is not None
    assert cublas.problem == (solved or asked)
    settings = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_fp16_accumulation
    for index, own in enumerate(cublas.operands):
        try:
            cublas.launch(index)
        except (RuntimeError, NotImplementedError) as error:
            pytest.skip(f"torch has none on the CPU: {error}")
        assert own.a is operands[index].a
        verdict = reference(cublas.problem, own, 1.0, 0.0).compare(own.d)
        assert verdict.passed, verdict.says
    assert settings == (torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_fp16_accumulation)


@pytest.mark.parametrize(
    "asked",
    [
        problem("e5m2", "f32", "bf16"),
        problem("u8", "s32", "s32"),
        problem("bf16", "f32", "bf16", "s8"),
        problem("bf16", "f32", "f16"),
        replace(problem("s8", "s32", "bf16"), c_dtype="bf16", c_major="n"),
    ],
    ids=str,
)
def test_where_cublas_has_nothing_there_is_no_baseline(asked: GemmProblem) -> None:
    operands = make_operands(asked, 1, "cpu", sets=1)
    assert not any(prepare(asked, operands) for name, prepare in BASELINES.items() if name != TRITON)


@pytest.mark.parametrize(("package", "module"), [("nvmath", "cublaslt"), ("triton", "triton_matmul")])
def test_a_baseline_that_cannot_be_had_says_how_to_get_it(package: str, module: str) -> None:
    place = f"gemmill.profiler.baselines.{module}"
    code = f"import sys; sys.modules[{package!r}] = None; from {place} import missing; print(missing())"
    says = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "cannot import" in says
    assert "gemmill's extra '" in says


@pytest.mark.gpu
def test_what_is_installed_can_be_had() -> None:
    packages = {CUBLASLT: "nvmath", CUBLASLT_TUNED: "nvmath", TRITON: "triton"}
    assert set(absent()) == {name for name, package in packages.items() if importlib.util.find_spec(package) is None}


def from_memory(tensor: Any, seen: Stored, batch: int) -> Any:
    """What cuBLASLt would read, (batch, rows, columns), transposed where it is told to."""
    elements = tensor.as_strided((tensor.numel(),), (1,))
    read = elements.as_strided((batch, seen.rows, seen.columns), (seen.stride, 1, seen.ld))
    return read.mT if seen.transposed else read


@pytest.mark.parametrize(
    "extents", [(5, 7, 3, 1), (5, 7, 3, 4), (1, 7, 3, 1), (5, 1, 3, 2), (5, 7, 1, 1), (1, 1, 1, 2)]
)
@pytest.mark.parametrize("majors", [(a, b, d) for a in ("k", "mn") for b in ("k", "mn") for d in ("n", "m")])
def test_cublaslt_finds_every_element_column_by_column(extents: Any, majors: Any) -> None:
    a, b, d = majors
    asked = of_formats(extents, ("f64", a), ("f64", b), "f64", ("f64", d), ("f64", d))
    (operands,) = make_operands(asked, 1, "cpu", sets=1)
    swapped, o = column_major(asked, operands)
    seen_a, seen_b = stored(o.a, swapped.a_major == "k"), stored(o.b, swapped.b_major == "mn")
    seen_c, seen_d = stored(o.c, swapped.c_major == "n"), stored(o.d, swapped.d_major == "n")
    assert seen_c == seen_d
    assert not seen_d.transposed
    for seen in (seen_a, seen_b, seen_d):
        assert seen.ld >= seen.rows
    product = from_memory(o.a, seen_a, asked.batch) @ from_memory(o.b, seen_b, asked.batch)
    from_memory(o.d, seen_d, asked.batch).copy_(product)
    torch.testing.assert_close(operands.d, operands.a @ operands.b)


def test_block_scales_stay_with_their_operand_and_lie_as_cublaslt_reads_them() -> None:
    asked = replace(SCALED, m=300, n=260, k=5 * 128)
    (operands,) = make_operands(asked, 1, "cpu", sets=1)
    swapped, o = column_major(asked, operands)
    assert (swapped.a_scale, swapped.b_scale) == ("128x128", "1x128")
    squares, vectors = stored_scales(o.a_scale, "128x128"), stored_scales(o.b_scale.mT, "1x128")
    assert squares.shape == (3, 8)
    assert vectors.shape == (5, 300)
    for blocks in (squares, vectors):
        assert blocks.is_contiguous()
    for k in range(5):
        assert torch.equal(squares[:, k], operands.b_scale[k, :])
        assert torch.equal(vectors[k, :], operands.a_scale[:, k])


def served() -> list[GemmProblem]:
    """Small problems of every kind that cuBLASLt serves."""

    def packed(
        ab: Any, accumulator: DTypeName, d: Any, extents: Any = (256, 384, 512, 1), c: Any = None
    ) -> GemmProblem:
        a, b = ab if isinstance(ab, tuple) else (ab, ab)
        return of_formats(extents, (a, "k"), (b, "k"), accumulator, c, (d, "n"))

    plain = [
        *(packed(t, "f32", d) for t in ("bf16", "f16") for d in (t, "f32")),
        packed("f16", "f16", "f16"),
        *(packed(t, "f32", "f32") for t in ("tf32", "f32")),
        packed("f64", "f64", "f64"),
        *(packed("s8", "s32", d) for d in ("s32", "bf16")),
        *(packed(pair, "f32", "bf16") for pair in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))),
        *(packed("e4m3", "f32", d) for d in ("e4m3", "f32", "f16")),
    ]
    bf16 = packed("bf16", "f32", "bf16")
    batched = packed("bf16", "f32", "bf16", (128, 192, 256, 3))
    others = [
        replace(packed("e4m3", "f32", "bf16"), promote=4),
        replace(packed("e4m3", "f32", "bf16"), promote=4, a_scale="1x128", b_scale="128x128"),
        replace(packed("e4m3", "f32", "bf16"), promote=4, a_scale="1x128", b_scale="1x128"),
        *(
            of_formats((256, 384, 512, 1), ("bf16", a), ("bf16", b), "f32", None, ("bf16", d))
            for a in ("k", "mn")
            for b in ("k", "mn")
            for d in ("n", "m")
        ),
        of_formats((256, 384, 512, 1), ("e4m3", "k"), ("e5m2", "k"), "f32", None, ("bf16", "m")),
        batched,
        *(replace(p, c_dtype=p.d_dtype, c_major=p.d_major) for p in (bf16, batched, packed("f64", "f64", "f64"))),
        packed("bf16", "f32", "bf16", (1, 384, 512, 1)),
    ]
    return plain + others


def tiled() -> list[GemmProblem]:
    """Small problems of every kind that the Triton kernel serves, with tiles that stick out."""

    def packed(dtype: Any, d: Any, major: Any = "n") -> GemmProblem:
        sums: DTypeName = "s32" if dtype == "s8" else "f32"
        return of_formats((336, 208, 416, 1), (dtype, "k"), (dtype, "k"), sums, None, (d, major))

    types = [("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("e4m3", "bf16"), ("e5m2", "f16"), ("s8", "s32")]
    return [*(packed(*pair) for pair in types), packed("bf16", "bf16", "m"), packed("e4m3", "f32", "m")]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "asked"),
    [*((name, p) for name in (CUBLASLT, CUBLASLT_TUNED) for p in served()), *((TRITON, p) for p in tiled())],
    ids=str,
)
def test_baselines_are_right_on_every_operand_set_also_in_a_graph(name: str, asked: GemmProblem) -> None:
    pytest.importorskip("triton" if name == TRITON else "nvmath")
    assert name not in absent()
    operands = make_operands(asked, 1, sets=2)
    baseline = BASELINES[name](asked, operands)
    assert baseline is not None

    def check() -> None:
        torch.cuda.synchronize()
        assert baseline is not None
        for own in baseline.operands:
            verdict = reference(baseline.problem, own, 1.0, 1.0).compare(own.d)
            assert verdict.passed, verdict.says
            poison(own.d)

    for index in range(2):
        poison(baseline.operands[index].d)
        baseline.launch(index)
    check()
    graph = capture(baseline.launch, 2, 2, torch.cuda.Stream())
    check()
    graph.replay()
    check()


@pytest.mark.gpu
def test_cublaslt_says_what_it_has_no_algorithm_for() -> None:
    pytest.importorskip("nvmath")
    asked = of_formats((256, 384, 512, 1), ("e4m3", "mn"), ("e4m3", "k"), "f32", None, ("bf16", "n"))
    with pytest.raises(UnsupportedProblemError, match="cuBLASLt"):
        BASELINES[CUBLASLT](asked, make_operands(asked, 1, sets=1))
