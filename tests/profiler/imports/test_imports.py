"""Files that others have: which problems come out of each, what is left out, and what is damaged or absurd."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import RecordError
from gemmill.profiler.imports.collector import MAX_PROBLEMS, Imported
from gemmill.profiler.imports.file_formats import MAX_BYTES, Given, problems_of, read_problems
from gemmill.profiler.sweep.shape_suites import shipped_suites

DATA = Path(__file__).parents[2] / "data" / "shapes"
FILES = sorted(DATA.iterdir())
EXPERTS = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json"
LINE = (
    "a_align=16 a_dtype=bf16 a_major=k a_scale=none accumulator=f32 b_align=16 b_dtype=bf16 b_major=k b_scale=none "
    "batching=strided c_align=16 c_dtype=none d_align=16 d_dtype=bf16 d_major=n epilogue=linear promote=0 "
    "rows=stored symmetry=general"
)
SCALED = "d~=~alpha~*~acc"
BF16 = "a=bf16 b=bf16 d=bf16"
E4M3 = "a=e4m3 a_major=k b=e4m3 b_major=k"
OF_LAYERS = (
    "a_dtype=f16 a_major=k a_scale=none accumulator=f32 b_dtype=f16 b_major=k b_scale=none c=none d_dtype=f16 "
    "d_major=n epilogue=linear"
)

EXPECTED = {
    "config.json": (
        "a config of a model on Hugging Face",
        [
            (3, 1, f"{OF_LAYERS} k=256 m=16 n=768"),
            (4, 1, f"{OF_LAYERS} k=512 m=16 n=256"),
            (2, 1, f"{OF_LAYERS} k=256 m=16 n=16"),
            (2, 1, f"{OF_LAYERS} batching=grouped groups=16 k=256 m=64 n=256"),
            (2, 1, f"{OF_LAYERS} batching=grouped groups=16 k=128 m=64 n=256"),
            (1, 1, f"{OF_LAYERS} k=256 m=16 n=1024"),
            (1, 1, f"{OF_LAYERS} k=256 m=16 n=1000"),
        ],
        [],
    ),
    "list.json": (
        "a JSON list",
        [
            (40, 2, "a=bf16 b=bf16 k=4096 m=4096 n=6144"),
            (1, 4, "a=e4m3 b=e5m2 batch=16 d=f16 k=64 m=128 n=128"),
            (1, 5, "k=14336 m=1 n=4096"),
            (1, 6, "batch=8 k=64 m=512 n=512"),
        ],
        ["7: expected [m, n, k]", "8: m is 0; it must be from 1 to", "9: the type of A, 'complex64', is not supported"],
    ),
    "cutlass.gemm.csv": (
        "a table of CUTLASS's profiler",
        [
            (1, 2, f"{BF16} a_major=k accumulator=f32 b_major=k c=bf16 c_major=n d_major=n k=1024 m=2048 n=4096"),
            (1, 4, f"{E4M3} accumulator=f32 batch=4 d=bf16 d_major=m k=128 m=256 n=512"),
        ],
        ["5: the operation 'spgemm' is not supported; only gemm is"],
    ),
    "hipblaslt-bench.txt": (
        "a table of hipblaslt-bench or rocblas-bench",
        [
            (1, 5, f"{BF16} a_major=k accumulator=f32 b_major=k d_major=n k=2048 m=512 n=7168"),
            (
                1,
                6,
                "a=f16 a_major=mn accumulator=f32 b=f16 b_major=mn batch=3 c=f32 c_major=n d=f32 d_major=n "
                "k=256 m=128 n=64",
            ),
        ],
        ["7: the type of B, 'f8_fnuz_r', is not supported"],
    ),
    "deepbench.h": (
        "a DeepBench header",
        [
            (2, 3, "a_major=k b_major=mn d_major=n k=1760 m=16 n=1760"),
            (1, 4, "a_major=k b_major=k d_major=n k=2560 m=8457 n=35"),
            (1, 6, "a_major=mn b_major=mn d_major=n k=1024 m=7435 n=3072"),
        ],
        ["15: a tuple of 6 values; only GEMMs (m, n, k, a_t, b_t) are supported"],
    ),
    "weight_shapes.py": (
        "a table of vLLM's weight shapes",
        [
            (1, 4, "k=4096 m=16 n=6144"),
            (2, 5, "k=4096 m=16 n=4096"),
            (1, 7, "k=256 m=16 n=512"),
            (1, 11, "batching=grouped groups=8 k=4096 m=32 n=14336"),
        ],
        [],
    ),
    EXPERTS: (
        "a config of vLLM's fused mixture of experts",
        [
            (1, 1, f"{E4M3} batching=grouped groups=8 k={k} m={m} n={n}")
            for m in (1, 64)
            for n, k in ((2 * 7168, 4096), (4096, 7168))
        ],
        [],
    ),
    "rocblas.yaml": (
        "YAML of hipblaslt-bench or rocblas-bench",
        [
            (136, 1, f"{BF16} a_major=k accumulator=f32 b_major=k d_major=n k=4608 m=4547 n=12288"),
            (1, 2, "a=f16 a_major=mn b=f16 b_major=mn batch=5 c=f16 c_major=n d=f16 d_major=n k=32 m=128 n=64"),
        ],
        ["3: 'rocblas_cgemm': complex numbers", "4: the function 'rocblas_sgemv' is not supported"],
    ),
    "hipblaslt.yaml": (
        "YAML of hipblaslt-bench or rocblas-bench",
        [
            (1, 14, f"a_major=k b_major={major} {batch}d_major=n {extents}")
            for extents in ("k=1024 m=2048 n=16", "k=512 m=512 n=512")
            for major in ("mn", "k")
            for batch in ("", "batch=3 ")
        ]
        + [(1, 23, f"{BF16} a_major=k accumulator=f32 b_major=k d_major=n k=32 m=64 n=128")],
        ["2: include: 'hipblaslt_common.yaml' is not read", "3: include: 'matmul_common.yaml' is not read"],
    ),
    "cublaslt.log": (
        "a log of cuBLASLt or hipBLASLt",
        [
            (
                1,
                3,
                f"{BF16} a_major=k accumulator=f32 b_major=k d_major=n k=4096 m=128 n=6144 "
                "epilogue=d~=~alpha~*~acc~+~bias.bf16[n]",
            ),
            (
                1,
                4,
                "a=e5m2 a_major=k a_scale=1x128 accumulator=f32 b=e4m3 b_major=k b_scale=128x128 d=bf16 d_major=n "
                "k=256 m=512 n=64",
            ),
            (
                1,
                5,
                "a=tf32 a_major=mn accumulator=f32 b=tf32 b_major=mn batch=7 c=f32 c_major=n d=f32 d_major=n "
                "k=32 m=128 n=64",
            ),
        ],
        ["6: aScaleMode 'VEC32_UE8M0' is not supported"],
    ),
    "cublas.log": (
        "a log of cuBLAS",
        [
            (1, 4, f"{BF16} a_major=k accumulator=f32 b_major=k d_major=n k=4096 m=128 n=6144"),
            (1, 22, "a=tf32 a_major=mn accumulator=f32 b=tf32 b_major=mn batch=12 d=f32 d_major=n k=16 m=32 n=64"),
        ],
        ["30: cublasCgemm_v2: complex numbers"],
    ),
    "trace.json.gz": (
        "a trace of PyTorch's profiler",
        [
            (2, 6, f"{BF16} a_major=k b_major=k d_major=n k=4096 m=128 n=6144"),
            (1, 8, f"{BF16} a_major=mn b_major=mn d_major=n k=128 m=4096 n=6144"),
            (1, 9, "a=f32 b=f32 d=f32 d_major=n k=256 m=64 n=512 epilogue=d~=~acc~+~bias[n]"),
            (1, 10, "a=f16 a_major=k b=f16 b_major=k batch=12 d=f16 d_major=n k=128 m=64 n=64"),
            (1, 11, f"{BF16} a_major=k b_major=mn batch=2 c=bf16 c_major=n d_major=n k=16 m=64 n=32"),
            (1, 12, f"{E4M3} d=bf16 d_major=n k=512 m=128 n=256 promote=4 epilogue={SCALED}~*~a_scale~*~b_scale"),
            (1, 13, f"{E4M3} d=bf16 d_major=n k=512 m=128 n=256 epilogue={SCALED}~*~a_scale[m]~*~b_scale[n]"),
            (1, 14, f"{E4M3} a_scale=1x128 b_scale=128x128 d=bf16 d_major=n k=512 m=128 n=256"),
            (1, 16, f"{BF16} a_major=k b_major=k batching=grouped d_major=n groups=8 k=256 m=1024 n=512"),
        ],
        [
            "15: scales of the type 'c10::Float8_e8m0fnu' are not supported",
            "17: the dims of A are not recorded",
        ],
    ),
    "tunableop_results0.csv": (
        "a file of PyTorch's TunableOp",
        [
            (1, 3, f"{BF16} a_major=k b_major=k d_major=n k=4096 m=128 n=4096"),
            (1, 5, "a=f16 a_major=mn b=f16 b_major=mn batch=12 d=f16 d_major=n k=128 m=512 n=64"),
            (
                1,
                6,
                f"{E4M3} d=bf16 d_major=n k=4096 m=128 n=6144 promote=4 "
                f"epilogue={SCALED}~*~a_scale[m]~*~b_scale[n]~+~bias.bf16[n]",
            ),
            (
                1,
                7,
                f"{BF16} a_major=k b_major=k d_major=n k=256 m=64 n=512 epilogue=d~=~relu(alpha~*~acc~+~bias.bf16[n])",
            ),
        ],
        ["8: the type of B, 'c10::complex<float>', is not supported"],
    ),
    "inductor.log": (
        "a log of Inductor's autotuning",
        [
            (1, 3, f"{BF16} a_major=mn b_major=mn d_major=n k=1152 m=3840 n=49136"),
            (
                1,
                9,
                "a=f16 a_major=k b=f16 b_major=k d=f16 d_major=n k=512 m=64 n=1000 epilogue=d~=~acc~+~bias.f16[n]",
            ),
            (1, 13, "a=f16 a_major=k b=f16 b_major=k batch=12 d=f16 d_major=n k=128 m=64 n=64"),
            (
                1,
                16,
                f"{E4M3} d_major=n k=3072 m=4096 n=64 promote=4 epilogue=d~=~acc~*~a_scale~*~b_scale~+~bias.bf16[n]",
            ),
        ],
        ["19: AUTOTUNE convolution is not supported"],
    ),
    "lines.txt": (
        "a list of lines",
        [
            (1, 2, f"{LINE} k=256 m=512 n=768"),
            (2, 3, "k=64 m=64 n=128"),
            (
                1,
                4,
                LINE.replace("bf16 a_", "e4m3 a_", 1)
                .replace("b_dtype=bf16", "b_dtype=e4m3")
                .replace("a_scale=none", "a_scale=1x128")
                .replace("b_scale=none", "b_scale=128x128")
                .replace("promote=0", "promote=4")
                .replace("batching=strided", "batch=64 batching=grouped")
                + " k=7168 m=8192 n=4096 sizes=zipf:1.1",
            ),
            (1, 6, "batch=4 k=3 m=1 n=2"),
        ],
        ["7: '64 by 64': expected `64 128 64`"],
    ),
    "operators.txt": (
        "a log of PyTorch's operators",
        [
            (
                10,
                4,
                "a=f16 a_major=k b=f16 b_major=k d=f16 d_major=n k=256 m=30 n=512 epilogue=d~=~acc~+~bias.f16[n]",
            ),
            (12, 6, "a=f16 a_major=k b=f16 b_major=k batch=6 d=f16 d_major=n k=64 m=512 n=512"),
            (49, 8, "a=f16 a_major=k b=f16 b_major=mn d=f16 d_major=n k=700 m=8192 n=768"),
            (1, 9, "a=f16 a_major=mn b=f16 b_major=mn d=f16 d_major=n k=8192 m=700 n=768"),
        ],
        ["10: the type of A, 'c64', is not supported"],
    ),
}


def written(text: str) -> dict[str, int | str]:
    """Fields from ``key=value`` words; ``~`` stands for a space within an epilogue."""
    pairs = (word.partition("=") for word in text.split())
    return {key: int(v) if v.isdigit() else v.replace("~", " ") if key == "epilogue" else v for key, _, v in pairs}


def understood(content: str | bytes, name: str = "x", **given: Any) -> Imported:
    data = content.encode() if isinstance(content, str) else content
    found = problems_of(data, Path(name), Given(**given))
    assert found is not None
    return found


def short(found: Imported) -> list[str]:
    return [" ".join(f"{k}={v}" for k, v in sorted(each.fields.items())) for each in found.problems]


@pytest.mark.parametrize("name", EXPECTED)
def test_each_format_is_told_by_its_content_and_read(name: str, tmp_path: Path) -> None:
    form, problems, left_out = EXPECTED[name]
    path = tmp_path / (name if name == EXPERTS else "what.ever")
    shutil.copyfile(DATA / name, path)
    found = read_problems(path, Given(m=(16,), k=(4096,)))
    assert found is not None
    assert found.format == form
    got = [(each.count, each.where, dict(each.fields)) for each in found.problems]
    assert got == [(count, f"{path}:{line}", written(text)) for count, line, text in problems]
    assert len(found.left_out) == len(left_out)
    for said, part in zip(found.left_out, left_out, strict=True):
        assert part in said.removeprefix(f"{path}:")


def test_every_file_of_data_is_expected() -> None:
    assert {path.name for path in FILES} == set(EXPECTED)


def test_epilogues_are_those_of_the_library() -> None:
    for path in FILES:
        found = read_problems(path, Given(m=(1,), k=(4096,)))
        assert found is not None
        for each in found.problems:
            assert canonical(str(each.fields.get("epilogue", "linear")))


def test_what_lacks_an_extent_says_so(tmp_path: Path) -> None:
    weights = read_problems(DATA / "weight_shapes.py")
    assert weights is not None
    assert not weights.problems
    said = "missing M: the table has only K and N of the weights; pass --m TOKENS,... to gemmill shapes (5 times)"
    assert weights.left_out[0].endswith(f"weight_shapes.py:4: {said}")
    experts = read_problems(DATA / EXPERTS)
    assert experts is not None
    assert "missing K: the config has E, N and tokens only; pass --k HIDDEN_SIZE" in experts.left_out[0]
    shutil.copyfile(DATA / EXPERTS, tmp_path / "experts.json")
    renamed = read_problems(tmp_path / "experts.json", Given(k=(4096,)))
    assert renamed is not None
    assert "E and N are read from the name of the file" in renamed.left_out[0]


def test_weights_are_taken_with_every_m() -> None:
    found = understood('WEIGHT_SHAPES = {"a/b": [([256, 512], 1)]}', m=(1, 16))
    assert short(found) == ["k=256 m=1 n=512", "k=256 m=16 n=512"]


def test_plain_weights_and_quotients() -> None:
    found = understood('X_SHAPES: dict = {"a/TP2": [[5120, 13824 // 2]], "b": "?"}', m=(1,))
    assert short(found) == ["k=5120 m=1 n=6912"]
    assert found.left_out == ("x:1: 'b': invalid weight '?'; it must be ([K, N], dimension)",)
    with pytest.raises(RecordError, match="x:1: the table must be a dict"):
        understood('X_SHAPES = {"a": [[1 // 0, 2]]}', m=(1,))


def test_lists_in_other_forms() -> None:
    lines = '{"m": 1, "n": 2, "k": 3}\n[1, 2, 3]\n\n{"K": 3, "M": 1, "N": 2, "calls": 3, "time_us": 1.5}\n'
    found = understood(lines)
    assert found.format == "JSON Lines"
    assert [(each.count, each.where) for each in found.problems] == [(5, "x:1")]
    yaml = "# mine\n- [1, 2, 3]\n- {m: 4, n: 5, k: 6, l: 7, dtype: bf16, a_major: mn}\n"
    assert short(understood(yaml)) == ["k=3 m=1 n=2", "a=bf16 a_major=mn b=bf16 batch=7 k=6 m=4 n=5"]
    assert short(understood("[[1, 2, 3], [4, 5, 6],]")) == ["k=3 m=1 n=2", "k=6 m=4 n=5"]
    assert short(understood('\ufeff[{"m": 1, "n": 2, "k": 3, "d_type": "half"}]')) == ["d=f16 k=3 m=1 n=2"]
    groups = '[{"m": 8, "n": 2, "k": 3, "groups": 4, "batching": "grouped", "rows": "gathered"}]'
    assert short(understood(groups)) == ["batching=grouped groups=4 k=3 m=8 n=2 rows=gathered"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_in_any_order_and_case(delimiter: str) -> None:
    rows = [
        ["name", "N", "M", "K", "Batch", "Count"],
        ["q k", "2", "1", "3.0", "", "4"],
        ["o", "x", "1", "3", "5", "1"],
    ]
    found = understood("\r\n".join(delimiter.join(row) for row in rows) + "\r\n")
    assert [(dict(each.fields), each.count) for each in found.problems] == [({"m": 1, "n": 2, "k": 3}, 4)]
    assert found.left_out == ("x:2: not read: 'name'", "x:3: n is 'x'; it must be an integer")


def test_a_table_with_spaces() -> None:
    found = understood("M N  K dtype count\n1 2  3 fp16  4\n\n4 5 6   bf16 1\n")
    assert found.format == "a table"
    assert short(found) == ["a=f16 b=f16 k=3 m=1 n=2", "a=bf16 b=bf16 k=6 m=4 n=5"]
    assert found.problems[0].count == 4
    assert problems_of(b"where m n k are extents\n1 2 3\n", Path("x")) is None


def test_command_lines_of_benches() -> None:
    found = understood(
        "+ ./hipblaslt-bench -m 512 -n 64 -k 128 --transA T --transB N -r bf16_r --compute_type f32_r --batch_count 2\n"
        "./rocblas-bench -f gemm_ex --transposeA N --transposeB T -m 8 -n 16 -k 32 --a_type h --b_type h --c_type s "
        "--d_type s --compute_type s --beta 1\n"
        "# ./rocblas-bench -f gemm -r s -m 1 -n 1 -k 1\n"
        "./rocblas-bench -f gemv -r s -m 8 -n 16\n"
        "./rocblas-bench -f gemm -r s -m 8 -n 16\n"
    )
    assert short(found) == [
        "a=bf16 a_major=k accumulator=f32 b=bf16 b_major=k batch=2 d=bf16 d_major=n k=128 m=64 n=512",
        "a=f16 a_major=mn accumulator=f32 b=f16 b_major=mn c=f32 c_major=n d=f32 d_major=n k=32 m=16 n=8",
    ]
    assert found.left_out == ("x:4: the function 'gemv' is not supported; only GEMMs are", "x:5: missing k")


def test_products_of_integers_and_those_that_are_not_read() -> None:
    args = {"Input Dims": [[32, 64], [64, 16]], "Input type": ["signed char", "signed char"]}
    names = ("aten::_int_mm", "aten::_scaled_grouped_mm", "aten::relu")
    events = [{"cat": "cpu_op", "name": name, "args": args} for name in names]
    found = understood(json.dumps([*events, {"ph": "X"}]))
    assert short(found) == ["a=s8 b=s8 d=s32 d_major=n k=64 m=32 n=16"]
    assert found.left_out == ("x:1: aten::_scaled_grouped_mm is not supported",)


def test_logs_of_hipblaslt_and_of_two_levels() -> None:
    pairs = "Adesc=[type=R_16BF rows=48 cols=1024 ld=48] B=0x2 Bdesc=[type=R_16BF rows=176 cols=1024 ld=176] "
    pairs += "C=0x3 Cdesc=[type=R_16BF rows=48 cols=176 ld=48] D=0x4 Ddesc=[type=R_8F_E4M3 rows=48 cols=176 ld=48] "
    pairs += "computeDesc=[computeType=COMPUTE_32F transA=OP_N transB=OP_T epilogue=EPILOGUE_RELU_BIAS] alpha=1 beta=0"
    lines = [
        f"[2026-02-28 11:24:46][HIPBLASLT][1][{level}][rocblaslt_matmul] A=0x1 {pairs}" for level in ("Api", "Trace")
    ]
    found = understood("\n".join(lines))
    assert [(dict(each.fields), each.count, each.where) for each in found.problems] == [
        (
            written("a=bf16 a_major=mn accumulator=f32 b=bf16 b_major=mn d=e4m3 d_major=n k=1024 m=176 n=48")
            | {"epilogue": "d = relu(alpha * acc + bias.bf16[n])"},
            1,
            "x:2",
        )
    ]


def test_functions_of_a_test_and_their_types() -> None:
    found = understood(
        "Definitions:\n- &single {a_type: f32_r, b_type: f32_r, d_type: f32_r}\n- &half {a_type: h, b_type: h}\n"
        "Tests:\n- {matrix_size: {M: 1, N: 2, K: 3}, function: [{gemm: [*single, *half]}, {gemv: *half}, sgemm]}\n"
        "- {matrix_size: {M: 4, N: 5, K: 1..9}}\n"
    )
    assert short(found) == [
        "a=f32 a_major=k b=f32 b_major=mn d=f32 d_major=n k=3 m=2 n=1",
        "a=f16 a_major=k b=f16 b_major=mn d_major=n k=3 m=2 n=1",
    ]
    assert [each.count for each in found.problems] == [2, 1]
    assert found.left_out == (
        "x:5: the function 'gemv' is not supported; only GEMMs are",
        "x:6: k is '1..9'; it must be an integer",
    )


def test_a_trace_without_shapes_says_how_to_record_them() -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "args": {"External id": 1}}
    found = understood(json.dumps({"traceEvents": [event, event]}))
    said = "x:1: the dims of products are not recorded; record the trace with record_shapes=True (2 times)"
    assert found.left_out == (said,)


def test_reasons_are_named_once_and_counted() -> None:
    rows = "\n".join(f"{number}x,1,1" for number in range(30))
    found = understood(f"m,n,k\n1,2,3\n{rows}\n0x,1,1\n")
    assert len(found.left_out) == 21
    assert found.left_out[0] == "x:3: m is '0x'; it must be an integer (2 times)"
    assert found.left_out[-1] == "x: and 10 more"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"m": 1, "n": 2, "k": 3}\n{"m": 1, "n"\n', "x:2: invalid JSON: "),
        ('[[1, 2, 3],\n [4, 5', "x:2: invalid JSON: "),
        ('- {m: 1, n: 2, k: 3}\n- {m: 1, n: 2, k: 3.5}\n', "x:2:19: .*is not an integer"),
        ("m,n,k\n1,2,3\n1,2\n", "x:3: the row must have 3 columns"),
        ("std::vector<std::tuple<int>> s = {\nstd::make_tuple(1, 2,", "x:2: the tuple is not closed"),
        ('WEIGHT_SHAPES = {\n"a": [([f(1), 2], 1)]}', "x:2: the table is not closed, too large, or contains more than"),
        ('WEIGHT_SHAPES = {"a": [([1 2], 1)]}', "x:1: the table must be a dict"),
        ('WEIGHT_SHAPES = {"a", "b"}', "x:1: the table must be a dict"),
        ("- {transA: N, matrix_size: [{M: 1\n", r"x:2:1: YAML"),
        ("[x][cublasLt][1][Trace][cublasLtMatmul] A=0X1 Adesc=[type=R_16F rows=1", "x:1: the line lacks A, B, D, comp"),
        ("Operator: aten.mm.default\ncnt: 49, ((T([8192, 7", "x:2: expected `cnt: 1, "),
        ('{"traceEvents": [\n{"ph": "X"},\n{"ph": ', "x:3: the trace is truncated or damaged here"),
        ('{"traceEvents": [' + '{"a":' * 100_000, "x:1: the event is nested too deeply|x:1: the trace is truncated"),
        ('{"1": {"BLOCK_SIZE_M": 1},\n', "x:2: invalid JSON: "),
        (gzip.compress(b"[[1, 2, 3]]", mtime=0)[:-9], "x:1: cannot decompress the file: "),
    ],
)  # fmt: skip
def test_damaged_files_are_errors_with_a_place(content: str | bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        understood(content)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.csv:1: cannot read the file: No such file"):
        read_problems(tmp_path / "none.csv")
    assert read_problems(tmp_path) is None
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(RecordError, match="more than the 67,108,864 it may have; compress it with gzip, or split it"):
        read_problems(tmp_path / "large.json")


@pytest.mark.parametrize("content", ["", "\n\n", "words\n", "{}", "[]", "\x00\x01", '{"a": [1]}', "- a\n- b"])
def test_other_files_are_left_to_others(content: str) -> None:
    assert problems_of(content.encode(), Path("x")) is None


def test_suites_of_ours_are_left_to_others() -> None:
    for path in shipped_suites().values():
        assert read_problems(path) is None
    assert problems_of(b"{name: s, shapes: [[1, 2, 3]]}", Path("x")) is None
    assert problems_of(b'{"name": "s", "shapes": [[1, 2, 3]]}', Path("x")) is None
    assert problems_of(b"\xff\xfe", Path("x")) is None


ABSURD: dict[str, tuple[str | bytes, str]] = {
    "more problems than a file may have": (
        "m,n,k\n" + "".join(f"{i},1,1\n" for i in range(1, MAX_PROBLEMS + 2)),
        f"x:{MAX_PROBLEMS + 2}: the file has more than 100,000 distinct problems",
    ),
    "deep JSON": ("[" * 200_000, "x:1: invalid JSON: "),
    "long numbers": (f"[[{'9' * 5000}, 1, 1]]", "x:1: invalid JSON: "),
    "a product of lists": (
        f"- {{transA: [N, T], M: {[*range(1, 400)]}, N: {[*range(1, 400)]}, K: {[*range(1, 400)]}}}\n",
        "x:1: the file has more than 100,000 problems",
    ),
    "more lines than a text may have": ("\n" * 2_000_001 + "x", "x:1: the file has more than 2,000,000 lines"),
    "a deep table": (f"WEIGHT_SHAPES = {'{' * 100_000}", "x:1: the table is not closed"),
    "signs": (f"WEIGHT_SHAPES = {{'a': {'-' * 100_000}1}}", "x:1: the table is not closed"),
    "a bomb": (gzip.compress(bytes(257 << 20), 1), "x:1: decompresses to more than 268,435,456 bytes"),
}


@pytest.mark.parametrize("what", ABSURD)
def test_absurd_files_are_errors_soon(what: str) -> None:
    content, message = ABSURD[what]
    with pytest.raises(RecordError, match=message):
        understood(content)


@pytest.mark.parametrize(
    "repeated",
    ["SHAPES", "[Trace][cublasLtMatmul] Adesc=[type=", "hipblaslt-bench -m ", "make_tuple(", "/* std::tuple make_tuple",
     "I! cuBLAS (v1) function cublasStatus_t ", "- { rocblas_function: ", "Operator: aten.mm.default cnt: 1, (T([",
     "m,n,k,", "WEIGHT_SHAPES={\n", "\nm,n,k", "[[1,2,3],", '{"traceEvents":[', " matrix_size: *a", "\n- [1, 2, 3]"],
)  # fmt: skip
def test_nothing_that_is_repeated_takes_long(repeated: str) -> None:
    content = (repeated * (1 + 1_000_000 // len(repeated))).encode()
    start = time.process_time()
    try:
        found = problems_of(content, Path("x"), Given(m=(1,), k=(1,)))
    except RecordError:
        found = None
    assert found is None or isinstance(found, Imported)
    assert time.process_time() - start < 20


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.suffix)
@given(chance=st.randoms(use_true_random=False), edits=st.integers(1, 8))
def test_mutated_files_are_understood_or_refused(path: Path, chance: random.Random, edits: int) -> None:
    content = path.read_bytes()
    packed = content.startswith(b"\x1f\x8b")
    data = bytearray(gzip.decompress(content) if packed else content)
    odd = [b"", b"\n", b"\xff", b"\0", b"9" * 30, b"1e999", b"null", b"NaN", b"*a", b"&a ", bytes(data[:60])]
    odd += [character.encode() for character in "[]{}()\"',:=-#0x²"]
    for _ in range(edits):
        start = chance.randrange(len(data) + 1)
        data[start : start + chance.choice([0, 1, 5, 40])] = chance.choice(odd)
    mutated = bytes(data)
    if packed and chance.random() < 0.5:
        mutated = gzip.compress(mutated)[: chance.choice([None, -1, 100])]
    start_time = time.process_time()
    try:
        found = problems_of(mutated, path, Given(m=(16,), k=(4096,)))
    except RecordError as error:
        if not str(error).startswith(f"{path}:"):
            raise AssertionError("the error has no place") from error
        return
    assert time.process_time() - start_time < 10
    assert found is None or len(found.left_out) <= 21
    for each in found.problems if found else ():
        assert {"m", "n", "k"} <= set(each.fields)
        assert each.count >= 1
