"""Mistakes that new users make: each message names what is wrong, and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cases.exporter import Exporter, Words, on_gpu

import gemmill
from gemmill import GemmProblem, Registry, array_matmul, grouped_matmul, matmul, plan
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage.trust.signatures import TrustedKeys

COMPLEX, INT = 5, 0
A, B, OUT, GROUPS = (on_gpu(shape) for shape in ((64, 64), (64, 64), (64, 64), (4, 64, 64)))
ENDS = on_gpu((4,), "s32")
ROW = on_gpu((64,), "f32")
FP8, FP8_B = on_gpu((64, 256), "e4m3"), on_gpu((256, 64), "e4m3", strides=(1, 256))
SCALES, SCALES_B = on_gpu((64, 2), "f32"), on_gpu((2, 1), "f32")
WIDE, NARROW = on_gpu((64, 128)), on_gpu((128, 64), "s8", strides=(1, 128))
PROBLEM = GemmProblem(m=64, n=64, k=64)


def odd(code: int, bits: int, shape: tuple[int, ...] = (64, 64)) -> Exporter:
    """A tensor of a type that gemmill has not."""
    return Exporter(shape, code=code, bits=bits, gpu=0)


def scaled(**scales: Any) -> Any:
    return matmul(FP8, FP8_B, out=OUT, **scales)


def upconverted(**scales: Any) -> Any:
    return matmul(WIDE, NARROW, out=OUT, **scales)


def fused(epilogue: Any, **operands: Any) -> Any:
    return matmul(A, B, out=OUT, epilogue=epilogue, **operands)


def nothing() -> gemmill.Plan:
    """A plan that launches nothing, and so needs no GPU."""
    return plan(on_gpu((0, 64)), B, out=on_gpu((0, 64)), epilogue="d = acc + bias[n]", bias=ROW)


Call = Callable[[], object]
MISTAKES: dict[str, list[tuple[Call, str]]] = {
    "dtype": [
        (
            lambda: matmul(odd(COMPLEX, 64), B, out=OUT),
            r"^b is bf16 and a is complex64; all must have one complex dtype: pass b.to\(complex64\)",
        ),
        (lambda: matmul(A, odd(INT, 16), out=OUT), r"^b has dtype int16; supported dtypes are bf16.*convert it first"),
        (lambda: matmul([[1.0]], B, out=OUT), r"^a is a builtins.list; it must be a PyTorch tensor"),  # type: ignore[arg-type]
        (
            lambda: matmul(A, np.zeros((64, 64), np.float16), out=OUT),
            r"^b is in host memory; .* pass a copy, such as cupy",
        ),
        (lambda: matmul(A, B, out=OUT, out_dtype="bf61"), "^out_dtype is 'bf61', did you mean bf16"),
        (lambda: matmul(A, B, out=OUT, out_dtype="f32"), "^out is bf16 and out_dtype is f32; .*leave out out_dtype"),
        (lambda: matmul(A, B, out=OUT, accumulator="f46"), "^accumulator is 'f46', did you mean f64"),  # type: ignore[arg-type]
        (lambda: matmul(WIDE, NARROW, out=OUT, b_dtype="f32"), "^b is s8; to read it as f32 .*: pass int8"),
        (lambda: grouped_matmul(A, GROUPS, on_gpu((4,), "f32"), out=OUT), r"^offsets is f32; .* pass offsets.int\(\)"),
        (lambda: array_matmul(A, B, OUT, on_gpu((3, 8), "s32")), "^addresses has dtype .*; it must be int64"),
        (
            lambda: fused("d = acc * a_scale[m]", a_scale=on_gpu((64,), "s8")),
            r"^a_scale is s8; it must be one of f32.*pass a_scale.float\(\)",
        ),
        (lambda: GemmProblem(m=1, n=1, k=1, a="bf61"), "^a is 'bf61', did you mean bf16"),
    ],
    "shape": [
        (lambda: gemmill.syrk(np.zeros(4)), r"^x has shape \(4,\); it must be .* of shape \(..., M, K\)"),
        (lambda: gemmill.syrk(A), r"^x is a Exporter; .* pass both operands: matmul\(a, b, symmetric=True\)"),
        (lambda: matmul(A, on_gpu((72, 64)), out=OUT), "a has K = 64 columns, b has K = 72 rows; they must be equal"),
        (lambda: matmul(WIDE, on_gpu((96, 128)), out=OUT), "K = 128 .* K = 96 rows; they must be equal: pass b.mT"),
        (lambda: matmul(WIDE, on_gpu((64, 96)), out=OUT), "K = 128 .* K = 64 rows; they must be equal: pass a.mT"),
        (
            lambda: matmul(A, B, out=WIDE),
            r"^out has shape \(64, 128\); .* has shape \(64, 64\): pass an out of that shape",
        ),
        (lambda: matmul(on_gpu(()), B, out=OUT), r"^a has shape \(\) .* pass the factor as alpha"),
        (lambda: matmul(on_gpu((2, 8, 8)), on_gpu((3, 8, 8)), out=OUT), r"batch extents \[2, 3\] do not broadcast"),
        (lambda: fused("d = acc + x[n]", x=on_gpu((72,))), r"^x has shape \(72,\); x\[n\] must be \(64,\)"),
        (
            lambda: fused("d = acc * x", x=ROW),
            r"^x has shape \(64,\); without an index .* write x\[n\] for a vector of N",
        ),
        (
            lambda: fused("d = acc * x[n]", x=2.0),
            r"^x is 2.0, but x\[n\] in the epilogue must be a tensor in GPU memory",
        ),
        (lambda: fused("d = gate * up"), r"^out has shape \(64, 64\); .* has shape \(64, 32\)"),
        (lambda: matmul(A, B, out=OUT, c=on_gpu((72, 64))), "^c has shape .* does not broadcast to"),
        (lambda: grouped_matmul(GROUPS, GROUPS, ENDS, out=OUT), r"with offsets of 4 groups, a must be \(M, K\) and b"),
        (lambda: grouped_matmul(A, GROUPS, out=OUT), "^offsets and counts are both missing.* use gemmill.matmul"),
        (
            lambda: array_matmul(A, B, OUT, Words(2, 4)),
            r"^addresses must be int64 \(3, matrices\): one row each for a, b",
        ),
        (lambda: GemmProblem(m=1.5, n=1, k=1), "^m is 1.5; it must be a whole number"),  # type: ignore[arg-type]
        (lambda: GemmProblem.from_text("64*64*64 bf16"), "write MxNxK or MxNxKxBATCH, for example 4096x4096x4096"),
    ],
    "scale": [
        (
            lambda: scaled(a_scale=SCALES),
            r"^a_scale has shape .* block scales, which need b_scale of shape \(2, 1\) too",
        ),
        (lambda: scaled(a_scale=on_gpu((64, 3), "f32"), b_scale=SCALES_B), r"^a_scale has shape \(64, 3\)"),
        (
            lambda: grouped_matmul(A, GROUPS, ENDS, rows=on_gpu((9,), "s32"), a_scale=on_gpu((9, 1), "f32")),
            r"^a_scale has shape \(9, 1\); with rows it must be one value, or \(\d+, \d+\) for blocks of a, ",
        ),
        (
            lambda: scaled(a_scale=SCALES, b_scale=on_gpu((3, 3), "f32")),
            r"block scales, which need b_scale of shape \(2, 1\) too",
        ),
        (lambda: scaled(a_scale=odd(INT, 64, (64, 2)), b_scale=SCALES_B), r"^a_scale .* int64; .*a_scale.float\(\)"),
        (
            lambda: scaled(a_scale=SCALES, b_scale=on_gpu((2, 1), "ue8m0")),
            r"^a_scale is f32 and b_scale is ue8m0; block scales must have the same dtype: pass b_scale.float\(\)",
        ),
        (lambda: scaled(a_scale=on_gpu((64, 2), "f32", gpu=1), b_scale=SCALES_B), "^a_scale is on GPU 1 .* be on one"),
        (
            lambda: scaled(a_scale=np.ones((64, 2), "f4"), b_scale=SCALES_B),
            r"^a_scale is in host .* pass a copy, such as cupy.asarray",
        ),
        (lambda: scaled(a_scale="1x128", b_scale=SCALES_B), "^a_scale is a builtins.str; it must be a PyTorch tensor"),
        (lambda: scaled(b_zero=SCALES_B), "^zero points need one operand narrower than the other; a is e4m3"),
        (lambda: upconverted(b_zero=on_gpu((1, 64))), "^b_zero is passed without b_scale: pass both"),
        (
            lambda: upconverted(a_scale=on_gpu((64, 2))),
            "^a is bf16, the wider operand; only b can have a scale for groups",
        ),
        (lambda: upconverted(b_scale=on_gpu((3, 64))), r"^b_scale has shape \(3, 64\); .* must be \(1, 64\) or"),
        (lambda: GemmProblem(m=64, n=64, k=64, a_scale="128x1"), "^a_scale is '128x1', did you mean 128x128"),
    ],
    "keyword": [
        (lambda: matmul(A, B, out=OUT, aplha=2.0), "^unexpected argument 'aplha', did you mean alpha"),
        (lambda: plan(A, B, out=OUT, sm_cuont=8), "^unexpected argument 'sm_cuont', did you mean sm_count"),
        (lambda: grouped_matmul(A, GROUPS, ofsets=ENDS, counts=ENDS), "^unexpected .*'ofsets', did you mean offsets"),
        (lambda: array_matmul(A, B, OUT, Words(3, 4), betta=1.0), "^unexpected argument 'betta', did you mean beta"),  # type: ignore[call-arg]
        (
            lambda: matmul(A, B, out=OUT, x=ROW),
            "^unexpected argument 'x'; for an operand of an epilogue, pass epilogue= too, as in",
        ),
        (lambda: fused("d = acc + bias[n]", bais=ROW), "^bais is passed, .* does not use it, did you mean bias"),
        (lambda: nothing().rebind(bais=ROW), "^unexpected argument 'bais', did you mean bias"),
        (lambda: Registry(manifest=["bf16"]), "^unexpected argument 'manifest', did you mean manifests"),  # type: ignore[call-arg]
        (lambda: Registry(manifests=()).select(PROBLEM, smcount=8), "^unexpected .*'smcount', did you mean sm_count"),  # type: ignore[call-arg]
        (lambda: gemmill.load_manifest("bf16", leagl=True), "^unexpected argument 'leagl', did you mean legal"),  # type: ignore[call-arg]
        (
            lambda: GemmProblem(m=1, n=1, k=1, epilog="d = acc"),
            "^unknown keyword 'epilog' of a problem, did you mean epilogue",
        ),
        (lambda: GemmProblem.from_text("64x64x64 gruoped=4"), "^unknown name in 'gruoped=4', did you mean grouped"),
    ],
    "name in an epilogue": [
        (lambda: fused("d = silu(gate) * upp"), "^upp is missing: .*did you mean up. names .* are acc, gate, up, g"),
        (lambda: fused("d = acc * alhpa"), "^alhpa is missing: .*did you mean alpha"),
        (lambda: fused("twice = acc * 2; d = twcie + twice"), "^twcie is missing: .*did you mean twice"),
        (lambda: fused("d = accc + x[n]", x=ROW), "must read the sums of products: .*did you mean acc"),
        (lambda: fused("d = sliu(acc)"), "unknown function 'sliu', did you mean silu"),
        (lambda: fused("d = acc + a_zero[m]"), "'a_zero' is a reserved name .*choose another"),
        (lambda: fused("acc"), "'acc' is not an assignment; write for example `d = acc`"),
        (lambda: fused("d = acc + c"), "reads c: pass c="),
        (lambda: fused("d = acc", alpha=2.0), "^alpha is 2.0, but the epilogue `d = acc` does not read it"),
        (lambda: fused(5), "^epilogue is 5; it must be a str such as 'd = silu"),
    ],
    "value": [
        (lambda: matmul(A, B, out=OUT, kernel=5), "^kernel is 5; it must be the name of a kernel or a GemmConfig"),  # type: ignore[arg-type]
        (
            lambda: matmul(A, B, out=OUT, kernel="bf16"),
            "^'bf16' is not a kernel name: .* a kernel name has 13: arch, A",
        ),
        (lambda: matmul(A, B, out=OUT, registry="bf16"), "^registry is 'bf16'; it must be a gemmill.Registry"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, registry=[]), r"^registry is \[\]; it must be a gemmill.Registry"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, stream="default"), "^stream is 'default'; it must be a CUstream handle"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, quick="no"), "^quick is 'no'; it must be True or False"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, autotune=True), "^autotune is True; it must be a positive integer"),
        (lambda: matmul(A, B, out=OUT, alpha="two"), "^alpha is 'two'; it must be a number"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, beta=1.0), "^beta is 1.0, but there is no c to scale: pass c="),
        (lambda: Registry(manifests=()).select("64x64x64"), "^problem is '64x64x64'; .*GemmProblem.from_text"),  # type: ignore[arg-type]
        (
            lambda: Registry(manifests=()).select(PROBLEM, bits="k17"),
            "^bits is 'k17'; it must be 'any', 'invariant', 'cu",
        ),
        (lambda: Registry(manifests=()).get(5), "^kernel is 5; it must be the name of a kernel"),  # type: ignore[arg-type]
        (lambda: Registry(manifests=()).warm("bf16"), "^kernels is 'bf16'; it must be a list"),
        (lambda: Registry(gpu="H2000"), "'H2000' is none of NVIDIA H200"),
        (lambda: Registry(gpu=0), "^gpu is 0; it must be a name such as 'H200'"),  # type: ignore[arg-type]
    ],
    "file": [
        (lambda: Registry(manifests=["bf61"]), "^bf61:1:1: file: cannot be read: No such file"),
        (lambda: Registry(manifests="bf16"), r"^manifests is 'bf16'; it must be a list: pass manifests=\['bf16'\]"),
        (lambda: Registry(manifests=["typo.yaml"]), "typo.yaml:2:1: stes: unknown field, did you mean sets"),
        (
            lambda: Registry(packs=["none.pack"]),
            "^none.pack: No such file or directory; create one with `gemmill pack make`",
        ),
        (lambda: Registry(packs="some.pack"), r"^packs is 'some.pack'; it must be a list: pass packs=\['some.pack'\]"),
        (
            lambda: Registry(packs=["bad.pack"]),
            "^bad.pack is a text file; it must be a pack, from `gemmill pack`",
        ),
        (lambda: Registry(records=["none.jsonl"]), "^none.jsonl: cannot be read: No such file or directory"),
        (lambda: Registry(records=["bad.jsonl"]), "^bad.jsonl:1:1: kernel: Input should be a valid string"),
        (lambda: Registry(records=Path("bad.jsonl")), r"^records is 'bad.jsonl'; it must be a list"),  # type: ignore[arg-type]
        (lambda: Registry(store=5), "^store is 5; it must be the name of a folder"),  # type: ignore[arg-type]
        (lambda: Registry(gpu="H200", model="none").gpu, "^model none: .* train a new one: gemmill train"),
    ],
    "option": [
        (
            lambda: gemmill.syrk(np.zeros((4, 4)), b=B),
            r"^unexpected argument 'b'; syrk multiplies x by x.mT. .* matmul\(a, b, symmetric=True\)",
        ),
        (lambda: matmul(A, B, out=OUT, precision="tf32x3"), "^precision is 'tf32x3'; .* 'ieee', 'tf32', .* 'f16x3'$"),
        (
            lambda: matmul(A, B, out=OUT, c=ROW, symmetric=True),
            r"^symmetric is True, and c has shape \(64,\); it must be symmetric too",
        ),
        (
            lambda: plan(A, GROUPS, out=OUT, offsets=ENDS, symmetric=True),
            "^symmetric is True, and batching is grouped; leave out offsets",
        ),
        (lambda: matmul(A, B, out=OUT, autotune=2, kernel="any"), "^kernel and autotune are both passed; .*: pass one"),
        (lambda: matmul(A, B, out=OUT, autotune=2, deterministic=True), "^autotune and deterministic are both passed"),
        (lambda: matmul(A, B, out=OUT, autotune=0), "^autotune is 0; it must be a positive integer .* or None"),
        (lambda: matmul(A, B, out=OUT, objective="fast"), "^objective is 'fast'; it must be '.*' or '"),  # type: ignore[arg-type]
        (lambda: matmul(A, B, out=OUT, slices=2), "^slices is for a split-K kernel .*: pass kernel="),
        (lambda: matmul(A, B, out=OUT, slices=0, kernel="any"), "^slices is 0; it must be a positive integer"),
        (lambda: matmul(A, B, out=OUT, sm_count=0), "^sm_count is 0; it must be a positive integer, or None for all"),
        (lambda: matmul(A, B, out=OUT, alpha=1e39), r"^alpha is 1e\+39; it must fit in a float32, at most 3.403e\+38"),
        (lambda: matmul(A, B, out=A), "^out and a overlap in memory .*: pass other memory for out"),
        (lambda: matmul(A, on_gpu((64, 64), gpu=1), out=OUT), "^b is on GPU 1 and a is on GPU 0; all must be on one"),
        (
            lambda: matmul(A, B, out=OUT, bits="fast"),
            "^bits is 'fast'; it must be 'any', .* such as 'k16' or 'k16/8'",
        ),
        (lambda: matmul(A, B, out=OUT, bits=True), "^bits is True; it must be 'any'"),  # type: ignore[arg-type]
        (
            lambda: matmul(A, B, out=OUT, bits="k16/stream@64"),
            "^bits is 'k16/stream@64'; in stream-K, or with S .*: name an arith",
        ),
        (
            lambda: matmul(A, B, out=OUT, bits="cublas", batch_invariant=True),
            "^batch_invariant is another name for bits='invariant', and bits is 'cublas': pass one of them",
        ),
        (
            lambda: grouped_matmul(A, GROUPS, ENDS, out=OUT, expected_rows=3),
            "^expected_rows is 3 and counts is missing; .*: leave it out, or pass counts",
        ),
    ],
    "setting": [
        (lambda: Settings.read({"GEMMILL_STORE": "kernels"}), "^GEMMILL_STORE='kernels': expected an absolute path"),
        (lambda: Settings.read({"GEMMILL_STORE_BYTES": "10 GB"}), "='10 GB': expected a number of bytes such as 500M"),
        (lambda: Settings.read({"GEMMILL_JOBS": "0"}), "='0': expected a whole number from 1 to 9999"),
        (lambda: Settings.read({"GEMMILL_DEBUG": "yes"}), "^GEMMILL_DEBUG='yes': expected 0 or 1"),
        (lambda: Settings.read({"GEMMILL_MODEL": "models"}), "^GEMMILL_MODEL='models': expected an absolute path"),
        (lambda: Settings.read({"GEMMILL_REMOTE": "host"}), "^GEMMILL_REMOTE='host': expected an https or http URL"),
        (lambda: Settings.read({"GEMMILL_REMOTE_MODE": "write"}), "='write': expected one of read, readwrite, only"),
        (lambda: Settings.read({"GEMMILL_REMOTE_DEADLINE": "10s"}), "='10s': expected a number of seconds from 0.1 to"),
        (
            lambda: Settings.read({"GEMMILL_REMOTE_TOKEN": "a b"}),
            "^GEMMILL_REMOTE_TOKEN is not a valid token: expected",
        ),
        (
            lambda: Settings.read({"GEMMILL_REMOTE_MODE": "only"}).url_of(None),
            "^GEMMILL_REMOTE_MODE=only forbids compiling, .*: set it .*, or unset GEMMILL_REMOTE_MODE",
        ),
        (
            lambda: TrustedKeys.read("keys.txt"),
            "^'keys.txt' is neither a key .* nor an absolute path of a file of keys",
        ),
        (lambda: TrustedKeys.read(""), "^'' has no key: add at least one public key"),
    ],
}
TABLE = [pytest.param(kind, *row, id=f"{kind}-{i}") for kind, rows in MISTAKES.items() for i, row in enumerate(rows)]


@pytest.mark.parametrize(("kind", "mistake", "says"), TABLE)
def test_a_mistake_is_named_with_the_way_out(
    kind: str, mistake: Call, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pack").write_text("no pack")
    Path("bad.jsonl").write_text('{"kernel": 1}\n')
    Path("typo.yaml").write_text("name: x\nstes: []\n")
    with pytest.raises(gemmill.GemmillError) as raised:
        mistake()
    assert re.search(says, str(raised.value), re.DOTALL), str(raised.value)
    if kind == "keyword":
        assert isinstance(raised.value, gemmill.KeywordError)
        assert isinstance(raised.value, TypeError), "as Python has it"


def test_there_are_a_hundred_and_ten_of_each_kind() -> None:
    assert len(TABLE) >= 100
    assert min(map(len, MISTAKES.values())) >= 10


@pytest.mark.parametrize("call", [matmul, plan])
def test_quick_has_no_effect_and_each_call_that_passes_it_is_warned(call: Callable[..., Any]) -> None:
    for _ in range(2):  # the second is like one that was made ready
        with pytest.warns(DeprecationWarning, match="quick has no effect"):
            call(on_gpu((0, 64)), B, out=on_gpu((0, 64)), quick=True)
