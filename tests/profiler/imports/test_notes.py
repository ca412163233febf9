"""What a problem cannot say of an entry, and what an entry does not say of its problem: each kind, with a count."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.profiler.imports.collector import Imported
from gemmill.profiler.imports.file_formats import Given, problems_of

F8, BF16, F32 = "c10::Float8_e4m3fn", "c10::BFloat16", "float"


def found(content: str, name: str = "x", **given: Any) -> Imported:
    imported = problems_of(content.encode(), Path(name), Given(**given))
    assert imported is not None
    return imported


def lines(imported: Imported) -> list[str]:
    """The problems as lines."""
    return [str(GemmProblem.from_dict(each.fields)) for each in imported.problems]


def trace(operator: str, *arguments: tuple[Any, str, Any] | str | None, texts: bool = True) -> str:
    """A trace of one call, twice. An argument is a tensor's dims, type and strides, the text of a scalar, or None."""
    tensors = [x if isinstance(x, tuple) else ([], "" if x is None else "Scalar", []) for x in arguments]
    dims, types, strides = (list(column) for column in zip(*tensors, strict=True))
    args: dict[str, Any] = {"Input Dims": dims, "Input type": types, "Input Strides": strides}
    if texts:
        args["Concrete Inputs"] = [x if isinstance(x, str) else "" for x in arguments]
    event = {"ph": "X", "cat": "cpu_op", "name": operator, "args": args}
    return json.dumps({"traceEvents": [event, event]})


A, B = ([128, 512], F8, [512, 1]), ([512, 1024], F8, [1, 512])
ROWS, COLUMNS, BIAS = ([128, 1], F32, [1, 1]), ([1, 1024], F32, [1024, 1]), ([1024], BF16, [1])
ONE: tuple[Any, str, Any] = ([], F32, [])
X, Y, Z = ([8, 16], BF16, [16, 1]), ([16, 32], BF16, [32, 1]), ([8, 32], BF16, [32, 1])
MATMUL = (
    "[t][cublasLt][1][Trace][cublasLtMatmul] Adesc=[type={a} rows=256 cols=64 ld=256{more}] Bdesc=[type={a} rows=256 "
    "cols=512 ld={ld}{more}] Cdesc=[type=R_16BF rows=64 cols=512 ld=64{more}] Ddesc=[type=R_16BF rows=64 cols=512 "
    "ld=64{more}] computeDesc=[computeType={compute} transa=OP_T{desc}] beta={beta}"
)
BENCH = "hipblaslt-bench -m 64 -n 512 -k 256 --transA T -r bf16_r --compute_type f32_r "


def matmul(desc: str = "", a: str = "R_16BF", ld: int = 256, more: str = "", beta: str = "0", compute: str = "") -> str:
    compute = compute or "COMPUTE_32F"
    return MATMUL.format(a=a, ld=ld, more=more, compute=compute, desc=desc and f" {desc}", beta=beta)


def cublas(name: str, *, types: str = "16BF", compute: str = "32F", beta: str = "0", **more: object) -> str:
    arguments = {
        "transa": "CUBLAS_OP_T(1)",
        "transb": "CUBLAS_OP_N(0)",
        "m": 64,
        "n": 512,
        "k": 256,
        "beta": beta,
        **{f"{x}type": f"CUDA_R_{types}(14)" for x in "ABC"},
        "computeType": f"CUBLAS_COMPUTE_{compute}(68)",
        **more,
    }
    written = "".join(f"i!  {key}: type=int; val={value}\n" for key, value in arguments.items())
    return f"I! cuBLAS (v12.9) function cublasStatus_t {name}(cublasHandle_t) called:\n{written}"


def tunable(operator: str, parameters: str) -> str:
    return f"Validator,PT_VERSION,2.9.0\n{operator},{parameters},Default,0.1\n{operator},{parameters},Other,0.2\n"


PLAIN = "512x64x256 bf16 tn"
SAID: dict[str, tuple[str, list[str], list[str], list[str]]] = {
    # _scaled_mm
    "scales of rows": (
        trace("aten::_scaled_mm", A, B, ROWS, COLUMNS, None, None, "15", "False"),
        ["128x1024x512 e4m3 tn promote=4 epilogue='d = alpha * acc * a_scale[m] * b_scale[n]'"],
        [],
        [],
    ),
    "one scale each, and a bias": (
        trace("aten::_scaled_mm", A, B, ONE, ONE, BIAS, None, "15", "True"),
        ["128x1024x512 e4m3 tn epilogue='d = acc * a_scale * b_scale + bias.bf16[n]'"],
        [],
        [],
    ),
    "scales of rows, and a bias": (
        trace("aten::_scaled_mm", A, B, ROWS, COLUMNS, BIAS, None, "5", "True"),
        ["128x1024x512 e4m3 tn d=f16 epilogue='d = acc * a_scale[m] * b_scale[n] + bias.bf16[n]'"],
        [],
        [],
    ),
    "D of A's type": (
        trace("aten::_scaled_mm", A, B, ONE, ONE, None, None, None, "True"),
        ["128x1024x512 e4m3 tn d=e4m3 epilogue='d = alpha * acc * a_scale * b_scale'"],
        [],
        [],
    ),
    "a scale of D": (
        trace("aten::_scaled_mm", A, B, ONE, ONE, None, ONE, "15", "True"),
        ["128x1024x512 e4m3 tn epilogue='d = alpha * acc * a_scale * b_scale'"],
        ["scale_result of _scaled_mm: a problem cannot scale D by a further tensor (2 times)"],
        [],
    ),
    "scales that are not recorded": (
        trace("aten::_scaled_mm", A, B, None, None, None, None, "15", "True"),
        ["128x1024x512 e4m3 tn"],
        ["the scales of _scaled_mm: their dims are not recorded (2 times)"],
        [],
    ),
    "other scales": (
        trace("aten::_scaled_mm", A, B, ([128, 16], F32, [16, 1]), COLUMNS, None, None, "15", "True"),
        [],
        ["scales of '[128, 16]' and '[1, 1024]' are not supported; use one scale, one for each row and column, 1x128 "
         "or 128x128 (2 times)"],
        [],
    ),
    "texts that are not recorded": (
        trace("aten::_scaled_mm", A, B, ONE, ONE, None, None, "15", "True", texts=False),
        ["128x1024x512 e4m3 tn promote=4 epilogue='d = alpha * acc * a_scale * b_scale'"],
        [],
        ["the type of D of _scaled_mm is not recorded; assuming that of the manifest, or the default (2 times)",
         "use_fast_accum of _scaled_mm is not recorded; assuming False (2 times)"],
    ),
    # Other operators of PyTorch
    "factors": (
        trace("aten::addmm", ([32], BF16, [1]), X, Y, "0.5", "2"),
        ["8x32x16 bf16 tt epilogue='d = alpha * acc + beta * bias.bf16[n]'"],
        [],
        [],
    ),
    "beta 0": (trace("aten::addmm", Z, X, Y, "0", "2"), ["8x32x16 bf16 tt"], [], []),
    "in place": (trace("aten::addmm_", Z, X, Y, "1", "1"), ["8x32x16 bf16 tt c=bf16"], [], []),
    "factors that are not recorded": (
        trace("aten::addmm", Z, X, Y, "1", "1", texts=False),
        ["8x32x16 bf16 tt c=bf16"],
        [],
        ["alpha of addmm is not recorded; assuming 1 (2 times)", "beta of addmm is not recorded; assuming 1 (2 times)"],
    ),
    "an added column": (
        trace("aten::addmm", ([8, 1], BF16, [1, 1]), X, Y, "1", "1"),
        [],
        ["the added matrix is '[8, 1]'; it must be M x N, or a row of N (2 times)"],
        [],
    ),
    "a vector": (
        trace("aten::addmv", ([8], BF16, [1]), X, ([16], BF16, [1]), "1", "1"),
        ["8x1x16 bf16 tn d_major=m c=bf16"],
        [],
        [],
    ),
    "the type of D": (trace("aten::mm", X, Y, "6"), ["8x32x16 bf16 tt d=f32"], [], []),
    "f32": (
        trace("aten::mm", ([8, 16], F32, [16, 1]), ([16, 32], F32, [32, 1])),
        ["8x32x16 f32 tt"],
        [],
        ["whether TF32 is allowed is not recorded; assuming that f32 stays f32 (2 times)"],
    ),
    "strides": (
        trace("aten::mm", ([8, 16], BF16, [20, 1]), ([16, 32], BF16, [64, 2])),
        ["8x32x16 bf16 tt a_align=8"],
        ["the strides of B, which is contiguous along neither extent: PyTorch copies it (2 times)"],
        [],
    ),
    "a shared matrix": (
        trace("aten::bmm", ([4, 8, 16], BF16, [128, 16, 1]), ([4, 16, 32], BF16, [0, 32, 1])),
        ["32x32x16 bf16 tt"],
        [],
        [],
    ),
    "groups along M": (
        trace("aten::_grouped_mm", X, ([4, 16, 32], BF16, [512, 1, 16]), ([4], "int", [1]), None, None),
        ["8x32x16 bf16 tn grouped=4"],
        [],
        ["the sizes of groups are not recorded; assuming equal sizes (2 times)"],
    ),
    "groups along K": (
        trace("aten::_grouped_mm", ([8, 64], BF16, [1, 8]), ([64, 32], BF16, [32, 1]), ([4], "int", [1]), None, None),
        ["8x32x64 bf16 nt kgrouped=4"],
        [],
        ["the sizes of groups are not recorded; assuming equal sizes (2 times)"],
    ),
    "integers": (
        trace("aten::_int_mm", ([8, 16], "signed char", [16, 1]), ([16, 32], "signed char", [1, 16])),
        ["8x32x16 s8 tn"],
        [],
        [],
    ),
    "an empty operand": (
        trace("aten::mm", ([0, 16], BF16, [16, 1]), Y),
        [],
        ["A is empty; the extents of a problem must be at least 1 (2 times)"],
        [],
    ),
    "a product of PyTorch that is not read": (
        trace("aten::_scaled_mm_v2", X, Y),
        [],
        ["aten::_scaled_mm_v2 is not supported (2 times)"],
        [],
    ),
    "a product of others": (
        trace("vllm::cutlass_scaled_mm", X, Y),
        [],
        ["vllm::cutlass_scaled_mm is not read; only PyTorch's own operators are (2 times)"],
        [],
    ),
    "what calls another product, and what is none": (trace("aten::linear", X, Y), [], [], []),
    "a log of operators": (
        "Operator: aten.addmm.default\n"
        "cnt: 2, ((T([8, 32], bf16), T([8, 16], bf16), T([16, 32], bf16)), {'beta': 0.5})\n"
        "Operator: aten._scaled_mm.default\n"
        "cnt: 1, ((T([64, 256], f8e4m3fn), T([256, 144], f8e4m3fn, stride=(1, 256)), T([64, 1], f32), "
        "T([1, 144], f32), None, None, bf16), {'use_fast_accum': True})\n"
        "Operator: aten._weight_int8pack_mm.default\ncnt: 3, ((T([8, 16], bf16), T([32, 16], i8)), {})\n",
        ["8x32x16 bf16 tt c=bf16", "64x144x256 e4m3 tn epilogue='d = alpha * acc * a_scale[m] * b_scale[n]'"],
        ["aten::_weight_int8pack_mm is not supported"],
        [],
    ),
    # Inductor
    "autotuning": (
        "AUTOTUNE addmm(8x32, 8x16, 16x32)\nstrides: [0, 1], [16, 1], [1, 16]\n"
        "dtypes: torch.bfloat16, torch.bfloat16, torch.bfloat16\n  addmm 0.01 ms\n"
        "[rank0]:AUTOTUNE scaled_mm(128x512, 512x1024, 128x1, 1x1024)\n"
        "[rank0]:strides: [512, 1], [1, 512], [1, 1], [1024, 1]\n"
        "[rank0]:dtypes: torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.float32\n"
        "SingleProcess AUTOTUNE benchmarking takes 1 seconds\n",
        ["8x32x16 bf16 tn epilogue='d = acc + bias.bf16[n]'",
         "128x1024x512 e4m3 tn promote=4 epilogue='d = alpha * acc * a_scale[m] * b_scale[n]'"],
        [],
        ["alpha of addmm is not recorded; assuming 1", "beta of addmm is not recorded; assuming 1",
         "the type of D of _scaled_mm is not recorded; assuming that of the manifest, or the default",
         "use_fast_accum of _scaled_mm is not recorded; assuming False"],
    ),
    "autotuning without types": (
        "AUTOTUNE mm(1024x512, 512x256)\n  mm 0.01 ms\nAUTOTUNE addmm(8x32, 8x16, 16x32)\nAUTOTUNE convolution(1x2)\n",
        ["1024x256x512 bf16 tn", "8x32x16 bf16 tn"],
        ["c of addmm: its type and strides are not in the log, which has them since PyTorch 2.8",
         "AUTOTUNE convolution is not supported"],
        ["types and strides are not in the log; assuming those of the manifest, or the defaults (2 times)"],
    ),
    # cuBLASLt
    "scales of a matmul": (
        matmul("aScalePointer=0x7ef80a005800 bScalePointer=0x7ef80a005880", a="R_8F_E4M3"),
        ["512x64x256 e4m3 tn promote=4 epilogue='d = alpha * acc * a_scale * b_scale'"],
        [],
        [],
    ),
    "vectors of scales, a bias and fast sums": (
        matmul("epilogue=EPILOGUE_BIAS fastAccumulationMode=1 aScaleMode=OUTER_VEC_32F bScaleMode=OUTER_VEC_32F",
               a="R_8F_E4M3"),
        ["512x64x256 e4m3 tn epilogue='d = alpha * acc * a_scale[m] * b_scale[n] + bias.bf16[n]'"],
        [],
        [],
    ),
    "a scale of D of a matmul": (
        matmul("dScalePointer=0x1 amaxDPointer=0x2 pointerMode=POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO"),
        [PLAIN],
        [f"{name} is not part of a problem" for name in ("dScalePointer", "amaxDPointer", "pointerMode")],
        [],
    ),
    "C of a matmul": (matmul(beta="1"), [f"{PLAIN} c=bf16"], [], []),
    "an address for beta": (
        matmul(beta="0x7ffd937acaf8"),
        [PLAIN],
        [],
        ["beta is an address in the log; assuming 0, so that C is not added"],
    ),
    "an epilogue": (
        matmul("epilogue=EPILOGUE_DRELU_BGRAD"),
        [],
        ["the epilogue 'DRELU_BGRAD' is not supported; expected one of DEFAULT, BIAS, RELU, "],
        [],
    ),
    "a leading dimension": (matmul(ld=260), [f"{PLAIN} a_align=8"], [], []),
    "a batch that shares its matrices": (
        matmul(more=" batchCount=4"),
        ["512x64x256x4 bf16 tn"],
        ["A is one matrix for the whole batch; a problem has one for each",
         "B is one matrix for the whole batch; a problem has one for each"],
        [],
    ),
    "operands that are rounded": (
        matmul(a="R_32F", compute="COMPUTE_32F_FAST_16BF"),
        ["512x64x256 f32 tn d=bf16"],
        ["compute type COMPUTE_32F_FAST_16BF: a problem cannot say that f32 is converted to 16 bits"],
        [],
    ),
    # cuBLAS
    "addresses of factors": (
        cublas("cublasGemmEx", beta="POINTER (IN HEX:0x7ff)"),
        [PLAIN],
        [],
        ["beta is an address in the log; assuming 0, so that C is not added"],
    ),
    "strides of a batch": (
        cublas("cublasGemmStridedBatchedEx", batchCount=4, strideA=0, strideB=131076, ldb=256),
        ["512x64x256x4 bf16 tn a_align=8"],
        ["A is one matrix for the whole batch; a problem has one for each"],
        [],
    ),
    "other functions of cuBLAS": (
        cublas("cublasSsyrk_v2") + cublas("cublasSetStream_v2") + cublas("cublasGemmEx") + cublas("cublasSgemv_v2"),
        [PLAIN],
        ["cublasSsyrk_v2 is not supported; only GEMMs are", "cublasSgemv_v2 is not supported; only GEMMs are"],
        [],
    ),
    # hipBLASLt, rocBLAS
    "scales, bias and activation of a bench": (
        BENCH + "--scaleA 2 --scaleB 2 --bias_vector --bias_type f32_r --activation_type gelu\n",
        [f"{PLAIN} epilogue='d = gelu_tanh(alpha * acc * a_scale[m] * b_scale[n] + bias[n])'"],
        [],
        [],
    ),
    "outputs of a bench": (
        BENCH + "--use_e --scaleD 1 --amaxD\n",
        [PLAIN],
        ["use_e is not part of a problem", "scaled is not part of a problem", "amaxd is not part of a problem"],
        [],
    ),
    "an activation of a bench": (
        BENCH + "--activation_type clamp\n",
        [],
        ["the activation 'clamp' is not supported; expected none, relu, silu, sigmoid, gelu, swish"],
        [],
    ),
    "a table of a bench": (
        "transA,transB,grouped_gemm,batch_count,m,n,k,beta,ldb,a_type,b_type,c_type,d_type,scaleA,bias_vector,us\n"
        "T,N,0,1,64,512,256,1,260,bf16_r,bf16_r,bf16_r,bf16_r,1,1,9\n",
        [f"{PLAIN} c=bf16 a_align=8 epilogue='d = alpha * acc * b_scale + beta * c + bias.bf16[n]'"],
        [],
        [],
    ),
    # TunableOp
    "a result of TunableOp": (
        tunable("GemmTunableOp_BFloat16_TN", "tn_64_512_256_ld_256_260_64"),
        [f"{PLAIN} a_align=8"],
        [],
        ["beta is not in the file; assuming 0, so that C is not added"],
    ),
    "scales of TunableOp": (
        "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_512_256_ld_256_256_64_rw_1_bias_BFloat16\n"
        "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_64_512_256_ld_256_256_64_rw_0_bias_None\n",
        [f"512x64x256 e4m3 tn promote=4 epilogue='d = alpha * acc * a_scale{m} * b_scale{n}{bias}'"
         for m, n, bias in (("[m]", "[n]", " + bias.bf16[n]"), ("", "", ""))],
        [],
        ["use_fast_accum is not in the file; assuming False (2 times)"],
    ),
    "other calls of TunableOp": (
        "GemmAndBiasTunableOp_Half_TN,tn_64_512_256_ld_256_256_64\n"
        "GemmStridedBatchedTunableOp_tf32_NN,nn_64_512_256_B_8_ld_64_256_64\n"
        "GemmTunableOp_c10::complex<float>_NT,nt_64_512_256\nGemmTunableOp_float_NT,nt_64\n",
        ["512x64x256 f16 tn epilogue='d = alpha * acc + bias.f16[n]'", "512x64x256x8 tf32 tt"],
        ["the type of B, 'c10::complex<float>', is not supported",
         "'GemmTunableOp_float_NT,nt_64': expected GemmTunableOp_BFloat16_TN"],
        ["the activation of GemmAndBias is not in the file; assuming none",
         "beta is not in the file; assuming 0, so that C is not added"],
    ),
    # Lists
    "columns": (
        "m,n,k,name,bias,us\n1,2,3,q,1,0.5\n4,5,6,v,1,0.5\n",
        ["1x2x3 bf16 tn", "4x5x6 bf16 tn"],
        ["bias is ignored; use a_major, b_major or epilogue (2 times)", "not read: 'name', 'us' (2 times)"],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_each_problem_is_the_entry_and_the_rest_is_said(name: str) -> None:
    content, problems, left_out, assumed = SAID[name]
    imported = found(content)
    assert lines(imported) == problems
    for said, wanted in ((imported.left_out, left_out), (imported.assumed, assumed)):
        assert len(said) == len(wanted), said
        for text, part in zip(said, wanted, strict=True):
            assert part in text
            assert part.endswith("times)") == text.endswith("times)")


@given(
    content=st.sampled_from([content for content, *_ in SAID.values()]),
    place=st.integers(0, 1000),
    length=st.integers(0, 20),
    new=st.text(max_size=5) | st.sampled_from(["0", "[", "[[1]]", "null", "(nil)", "9" * 30]),
)
def test_an_edited_entry_is_read_or_refused(content: str, place: int, length: int, new: str) -> None:
    edited = content[:place] + new + content[place + length :]
    with suppress(RecordError):
        problems_of(edited.encode(errors="replace"), Path("x"))


TILES = '{"1": {"BLOCK_SIZE_M": 16}, "64": {"BLOCK_SIZE_M": 64}, "triton_version": "3"}'
EXPERTS, BLOCKS = "E=8,N=7168,device_name=NVIDIA_H100.json", "N=1536,K=7168,dtype=fp8_w8a8,block_shape=[128,128].json"


def test_configs_of_vllm_say_what_they_assume() -> None:
    given = found(TILES, EXPERTS, k=(4096,))
    top_k = "top-k is not in the file; assuming that each token uses one expert; --top-k sets it"
    equal = "the sizes of groups are not in the file; assuming equal sizes"
    assert given.assumed == tuple(f"{EXPERTS}:1: {said}" for said in (top_k, equal))
    assert not given.left_out
    assert [each.fields["m"] for each in given.problems] == [1, 1, 64, 64]
    routed = found(TILES, EXPERTS, k=(4096,), top_k=2)
    assert routed.assumed == (f"{EXPERTS}:1: {equal}",)
    assert [each.fields["m"] for each in routed.problems] == [2, 2, 128, 128]
    assert "--top-k is 9; the config has only 8 experts" in found(TILES, EXPERTS, k=(4096,), top_k=9).left_out[0]
    assert "pass --k HIDDEN_SIZE" in found(TILES, EXPERTS).left_out[0]
    unscaled = found(TILES, "E=8,N=64,dtype=fp8_w8a8.json", k=(4096,), top_k=1)
    assert "does not say how operands are scaled; assuming no scales" in unscaled.assumed[1]


def test_configs_of_block_scaled_products_have_all_extents() -> None:
    scaled = "e4m3 tn a_scale=1x128 b_scale=128x128"
    assert lines(found(TILES, BLOCKS)) == [f"1x1536x7168 {scaled}", f"64x1536x7168 {scaled}"]


def test_a_table_of_weights_is_of_one_gpu() -> None:
    table = 'SHAPES = {"a": [([256, 512], 1), ([256, 512], 0)], "b": [[256, 512]]}'
    assert found(table, m=(1,)).assumed == (
        "x:1: the whole weight is on one GPU; the table names the dimension that tensor parallelism splits (2 times)",
    )
