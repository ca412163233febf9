"""Grouped operands: what shapes mean, how they are read, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.exporter import on_gpu
from tests.cases.manifests import shipped_kernels
from tests.cases.plain import bound as bound_gemm
from tests.cases.plain import call_of, read

from gemmill.emitters.emit import launch_spec
from gemmill.library.arch import GPUS
from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.library.legality.rules import legal
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.launch.launcher import grid_ctas
from gemmill.runtime.launch.parameters import scalars
from gemmill.runtime.operands.binding import groups_kind
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import PLACES
from gemmill.runtime.operands.gemm import Gemm, RowIndex, Table
from gemmill.runtime.operands.tensors import TensorView, view_table
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.faults import is_swapped
from gemmill.runtime.select.selector import Selector

GATHERED = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8gatheredgrouped_k1_linear"


def tensor(*shape: int, dtype: Any = "bf16", transposed: bool = False, **changes: Any) -> TensorView:
    """A packed tensor at some address; ``transposed`` in its last two extents."""
    strides, step = [0] * len(shape), 1
    axes = [*reversed(range(len(shape)))]
    if transposed:
        axes[:2] = axes[1::-1]
    for axis in axes:
        strides[axis], step = step, step * shape[axis]
    fields = {"ptr": 1 << 20, "shape": shape, "strides": tuple(strides), "dtype": dtype, "device": 0}
    return TensorView(**(fields | changes))


def groups(count: int, **changes: Any) -> TensorView:
    return tensor(count, dtype="s32", **({"ptr": 0x5555550} | changes))


def bound(kind: str, count: int, a: TensorView, b: TensorView, d: TensorView, **options: Any) -> Gemm:
    array = options.pop("groups", groups(count))
    return bound_gemm(a, b, d, **{kind: array}, **options)


def test_groups_of_rows_stack_along_m() -> None:
    gemm = bound("offsets", 4, tensor(300, 64), tensor(4, 64, 80, transposed=True), tensor(300, 80))
    p = gemm.problem
    assert (p.m, p.n, p.k, p.batch, p.batching) == (300, 80, 64, 4, "grouped")
    assert (p.a_major, p.b_major, p.d_major) == ("k", "k", "n")
    assert (gemm.a.batch_stride, gemm.b.batch_stride, gemm.d.batch_stride) == (0, 64 * 80, 0)
    assert gemm.groups == Table("offsets", 0x5555550, 1)
    assert p.flops == 2 * 300 * 80 * 64


def test_rows_are_found_by_an_index() -> None:
    rows = groups(300, ptr=0x6666660, strides=(2,))
    operands = tensor(70, 64, strides=(72, 1)), tensor(4, 64, 80, transposed=True), tensor(300, 80)
    gemm = bound("offsets", 4, *operands, rows=rows)
    p = gemm.problem
    assert (p.m, p.n, p.k, p.batch, p.batching, p.rows) == (300, 80, 64, 4, "grouped", "gathered")
    assert (gemm.a.row_stride, gemm.a.align) == (72, 16)
    assert gemm.rows == RowIndex("rows", 0x6666660, 2, 70)
    assert gemm.addresses[PLACES["rows"]] == 0x6666660
    wanted = {"rows_pointer": 0x6666660, "rows_stride": 2, "a_pointer": 1 << 20, "a_row_chunks": 9, "a_rows": 70}
    written = {name: value for name, _, value in scalars(gemm, ())}
    assert {name: written[name] for name in wanted} == wanted
    assert wanted.keys() <= launch_spec(parse_name(GATHERED)).offsets.keys()
    assert is_swapped(parse_name(GATHERED), p) is False
    stored = bound("offsets", 4, tensor(300, 64), tensor(4, 64, 80, transposed=True), tensor(300, 80)).problem
    with pytest.raises(UnsupportedProblemError, match=r"it needs rows gathered \(the problem has stored\)"):
        is_swapped(parse_name(GATHERED), stored)


def test_scales_of_rows_are_found_by_the_same_index() -> None:
    operands = tensor(70, 256, dtype="e4m3"), tensor(4, 256, 128, dtype="e4m3", transposed=True), tensor(300, 128)
    scales = {"a_scale": tensor(70, 2, dtype="f32"), "b_scale": tensor(4, 2, 1, dtype="f32")}
    gemm = bound("offsets", 4, *operands, rows=groups(300), **scales)
    assert (gemm.problem.m, gemm.problem.rows, gemm.problem.a_scale) == (300, "gathered", "1x128")
    with pytest.raises(OperandError, match=r"a_scale has shape \(300, 2\); its last extents must be \(70, 2\)"):
        bound("offsets", 4, *operands, rows=groups(300), **scales | {"a_scale": tensor(300, 2, dtype="f32")})


def test_columns_of_groups_along_k_are_found_by_an_index() -> None:
    operands = tensor(64, 70, strides=(1, 72)), tensor(300, 80), tensor(4, 64, 80)
    gemm = bound("offsets", 4, *operands, rows=groups(300, ptr=0x6666660))
    p = gemm.problem
    assert (p.m, p.n, p.k, p.batch, p.batching, p.rows) == (64, 80, 300, 4, "kgrouped", "gathered")
    assert (p.a_major, p.b_major, p.d_major) == ("mn", "mn", "n")
    assert gemm.rows == RowIndex("rows", 0x6666660, 1, 70)
    written = {name: value for name, _, value in scalars(gemm, ())}
    assert (written["a_row_chunks"], written["a_rows"]) == (9, 70)
    config = parse_name(GATHERED)
    a, b, cluster = replace(config.a, major="mn"), replace(config.b, major="mn"), replace(config.cluster, m=1)
    along_k = replace(config, a=a, b=b, cluster=cluster, scheduler=replace(config.scheduler, batching="kgrouped"))
    assert legal(along_k)
    assert is_swapped(along_k, p) is False


@pytest.mark.parametrize("columns", [70, 300])
def test_an_alpha_of_0_reads_no_columns_by_an_index(columns: int) -> None:
    operands = tensor(64, columns, strides=(1, 72)), tensor(300, 80), tensor(4, 64, 80)
    call = call_of(*operands, offsets=groups(4), rows=groups(300))
    gemm = replace(call, options=call.options._replace(alpha=0.0)).bound
    assert (gemm.problem.k, gemm.problem.batching, gemm.problem.rows, gemm.rows) == (0, "kgrouped", "stored", None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": tensor(300, dtype="f32")}, r"rows is f32; it must be s32: pass rows.int\(\)"),
        ({"rows": groups(299)}, r"out has shape \(300, 80\)"),
        ({"rows": tensor(300, 1, dtype="s32")}, r"rows has shape \(300, 1\); it must be \(M,\)"),
        ({"rows": groups(300, device=1)}, "rows is on GPU 1 and a is on GPU 0"),
        ({"a": tensor(0, 64)}, "a must have a row"),
        ({"a": tensor(70, 64, strides=(1 << 31, 1))}, "with rows they must span less than 2.36"),
        ({"b": tensor(64, 80), "a": tensor(70, 64), "d": tensor(4, 70, 80)}, r"a \(70, 300\) @ b \(64, 80\)"),
        (
            {"b": tensor(300, 80), "a": tensor(64, 70, strides=(1, 1 << 31)), "d": tensor(4, 64, 80)},
            "the columns of a span",
        ),
        ({"b": tensor(300, 80), "a": tensor(70, 0), "d": tensor(4, 70, 80)}, "a must have a column"),
        (
            {"b": tensor(300, 80), "a": tensor(70, 64), "d": tensor(4, 70, 80), "rows": tensor(300, 1, dtype="s32")},
            r"it must be \(K,\), the column of a for each row of b",
        ),
        ({"a": tensor(4, 70, 64)}, "rows is an index for groups at offsets"),
        (
            {"a_scale": tensor(70, 1, dtype="f32"), "epilogue": parse("d = acc * a_scale[m]")},
            "a_scale has one value for each row of a, which is not",
        ),
        (
            {"a": tensor(70, 256, dtype="e4m3"), "b": tensor(4, 256, 128, dtype="e4m3"), "d": tensor(300, 128)}
            | {"a_scale": tensor(70, 2, dtype="ue8m0"), "b_scale": tensor(4, 2, 1, dtype="ue8m0")},
            "a_scale is ue8m0; with rows, scales of blocks must be f32",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes: dict[str, Any], says: str) -> None:
    usual = {"a": tensor(70, 64), "b": tensor(4, 64, 80), "d": tensor(300, 80), "rows": groups(300)}
    with pytest.raises(OperandError, match=says):
        bound("offsets", 4, **(usual | changes))


def test_rows_need_offsets() -> None:
    operands = tensor(4, 70, 64), tensor(4, 64, 80), tensor(4, 300, 80)
    with pytest.raises(OperandError, match="rows is passed with counts"):
        bound("counts", 4, *operands, rows=groups(300))
    with pytest.raises(OperandError, match="rows is passed with neither offsets nor counts"):
        bound_gemm(tensor(70, 64), tensor(64, 80), tensor(300, 80), rows=groups(300))


def test_slots_are_a_batch() -> None:
    gemm = bound("counts", 4, tensor(4, 300, 64), tensor(4, 64, 80), tensor(4, 300, 80), c=tensor(300, 80))
    p = gemm.problem
    assert (p.m, p.n, p.k, p.batch, p.batching) == (300, 80, 64, 4, "masked")
    assert gemm.c is not None
    assert (gemm.a.batch_stride, gemm.c.batch_stride, gemm.d.batch_stride) == (300 * 64, 0, 300 * 80)


def slots(**keywords: Any) -> GemmCall:
    """A call on slots, read and not launched."""
    a, b, out = on_gpu((32, 4096, 64)), on_gpu((32, 64, 96)), on_gpu((32, 4096, 96))
    return read(grouped_matmul, a, b, out=out, **({"counts": on_gpu((32,), "s32")} | keywords))


def test_calls_that_expect_other_rows_are_told_apart_and_may_have_other_kernels() -> None:
    few, many, unsaid = slots(expected_rows=20), slots(expected_rows=1024), slots()
    assert [x.problem.expected_rows for x in (few, many, unsaid)] == [20, 1024, None]
    assert few.problem == replace(unsaid.problem, expected_rows=20)
    assert len({x.signature for x in (few, many, unsaid)}) == 3
    assert few.signature == slots(expected_rows=20).signature


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"expected_rows": 0}, "expected_rows is 0; it must be a whole number from 1 to 4096, the capacity of a group"),
        ({"expected_rows": 4097}, "expected_rows is 4097; it must be"),
        ({"expected_rows": 20.0}, "expected_rows is 20.0; it must be"),
        ({"expected_rows": True}, "expected_rows is True; it must be"),
        (
            {"a": on_gpu((4096, 64)), "out": on_gpu((4096, 96))},
            "expected_rows is 20 and counts is missing; expected_rows is for masked groups",
        ),
    ],
)
def test_rows_that_a_slot_cannot_have_are_refused(keywords: dict[str, Any], says: str) -> None:
    if "a" in keywords:
        call = read(grouped_matmul, b=on_gpu((32, 64, 96)), offsets=on_gpu((32,), "s32"), expected_rows=20, **keywords)
    else:
        call = slots(**keywords)
    with pytest.raises(OperandError, match=says):
        _ = call.problem


@given(k=st.integers(0, 300))
def test_groups_along_k_make_a_batch_of_d(k: int) -> None:
    gemm = bound("offsets", 4, tensor(300, k, transposed=True), tensor(k, 80), tensor(4, 300, 80, dtype="f32"))
    p = gemm.problem
    assert (p.m, p.n, p.k, p.batch, p.batching) == (300, 80, k, 4, "kgrouped")
    assert (p.a_major, p.b_major) == ("mn", "mn"), "also without any K, where every major would do"
    assert (gemm.a.batch_stride, gemm.b.batch_stride, gemm.d.batch_stride) == (0, 0, 300 * 80)


@pytest.mark.parametrize(("dtype", "words"), [("f32", ("1x128", "128x128")), ("ue8m0", ("1x128e8", "128x128e8"))])
def test_block_scales_follow_their_operands(dtype: str, words: tuple[str, str]) -> None:
    a, b = tensor(300, 256, dtype="e4m3"), tensor(4, 256, 384, dtype="e4m3", transposed=True)
    scales = {"a_scale": tensor(300, 2, dtype=dtype), "b_scale": tensor(4, 2, 3, dtype=dtype)}
    gemm = bound("offsets", 4, a, b, tensor(300, 384), **scales)
    assert (gemm.problem.a_scale, gemm.problem.b_scale, gemm.problem.promote) == (*words, 4)
    assert gemm.a_scale is not None
    assert gemm.b_scale is not None
    assert (gemm.a_scale.batch_stride, gemm.b_scale.batch_stride) == (0, 6)


def test_halves_of_b_are_rows_of_k_and_whole_blocks_of_scales() -> None:
    halves = parse("d = silu(gate_half) * up_half")
    with pytest.raises(OperandError, match="b has another layout than rows of K elements"):
        bound("offsets", 4, tensor(300, 64), tensor(4, 64, 80), tensor(300, 40), epilogue=halves)
    selector = Registry(gpu="H200")
    for n, fits in ((512, True), (384, False)):
        a, b = tensor(300, 256, dtype="e4m3"), tensor(4, 256, n, dtype="e4m3", transposed=True)
        scales = {"a_scale": tensor(300, 2, dtype="f32"), "b_scale": tensor(4, 2, n // 128, dtype="f32")}
        if fits:
            problem = bound("offsets", 4, a, b, tensor(300, n // 2), epilogue=halves, **scales).problem
            assert (problem.n, problem.b_scale, problem.epilogue) == (n, "128x128", str(halves))
            assert "1x128_e4m3" in selector.select(problem).name
            with pytest.raises(UnsupportedProblemError, match="n is 640; each half of N must have whole blocks"):
                selector.select(problem.but(n=640))
        else:
            with pytest.raises(
                OperandError, match=r"N is 384, .* whole blocks of the scales of B, so N must be a multiple of 256"
            ):
                bound("offsets", 4, a, b, tensor(300, n // 2), epilogue=halves, **scales)


def test_a_gated_epilogue_halves_the_columns_of_groups() -> None:
    gated = parse("d = silu(gate) * up")
    a, b = tensor(300, 64), tensor(4, 64, 80)
    gemm = bound("offsets", 4, a, b, tensor(300, 40), epilogue=gated)
    assert (gemm.problem.n, gemm.problem.epilogue, gemm.problem.batching) == (80, str(gated), "grouped")
    with pytest.raises(OperandError, match=r"out has shape \(300, 80\)"):
        bound("offsets", 4, a, b, tensor(300, 80), epilogue=gated)
    with pytest.raises(OperandError, match="N must be even"):
        bound("offsets", 4, a, tensor(4, 64, 81), tensor(300, 40), epilogue=gated)
    with pytest.raises(OperandError, match="an epilogue is not supported with addresses: use alpha and beta"):
        bound("addresses", 0, a, tensor(64, 80), tensor(300, 40), groups=tensor(3, 10, dtype="s32"), epilogue=gated)


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("offsets", {"groups": groups(3)}, "b has 4 matrices and offsets has 3 entries"),
        ("offsets", {"groups": tensor(4, dtype="f32")}, r"offsets is f32; it must be s32: pass offsets.int\(\)"),
        ("offsets", {"groups": tensor(2, 2, dtype="s32")}, r"offsets has shape \(2, 2\)"),
        ("offsets", {"groups": groups(4, strides=(1 << 31,))}, "offsets has stride 2147483648.*contiguous"),
        ("offsets", {"groups": groups(4, device=1)}, "offsets is on GPU 1 and a is on GPU 0"),
        ("offsets", {"b": tensor(4, 72, 80)}, "a has K = 64 columns, b has K = 72 rows"),
        ("offsets", {"a": tensor(4, 300, 64)}, r"with offsets of 4 groups, a must be \(M, K\) and b \(4, K, N\)"),
        ("offsets", {"d": tensor(4, 300, 80)}, r"out has shape \(4, 300, 80\)"),
        ("offsets", {"d": tensor(300, 80, writable=False)}, "out is read-only"),
        ("offsets", {"d": tensor(300, 80, strides=(8, 1))}, "overlap"),
        ("counts", {}, r"with counts of 4 groups, a must be \(4, capacity, K\)"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(kind: str, changes: dict[str, Any], says: str) -> None:
    operands = {"a": tensor(300, 64), "b": tensor(4, 64, 80), "d": tensor(300, 80)}
    with pytest.raises(OperandError, match=says):
        bound(kind, 4, **(operands | changes))


class OnGpu(np.ndarray[Any, Any]):
    """Host memory that claims to be on GPU 0."""

    def __dlpack__(self, **_: object) -> Any:
        return np.asarray(self).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:  # type: ignore[override]
        return 2, 0


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("step", [1, 3])
def test_groups_are_words_at_a_stride(dtype: str, step: int) -> None:
    values = np.array([5, 70, 70, 300])
    memory = np.zeros(12, dtype).view(OnGpu)
    memory[: 4 * step : step] = values
    read = view_table(memory[: 4 * step : step], "offsets")
    gemm = bound("offsets", 4, tensor(300, 64), tensor(4, 64, 80), tensor(300, 80), groups=read)
    words = memory.view(np.int32)  # as the kernel reads them
    assert gemm.groups is not None
    at = (gemm.groups.ptr - memory.ctypes.data) // 4
    assert [words[at + i * gemm.groups.stride] for i in range(4)] == [*values]
    assert gemm.groups.stride == step * (2 if "64" in dtype else 1)


def test_other_integers_find_no_groups() -> None:
    with pytest.raises(OperandError, match=r"counts has dtype int16; it must be int32 or int64: pass counts\.int\(\)"):
        view_table(np.zeros(4, np.int16).view(OnGpu), "counts")
    with pytest.raises(OperandError, match="addresses has dtype int32; it must be int64"):
        view_table(np.zeros((3, 4), np.int32).view(OnGpu), "addresses")


def test_groups_are_told_apart_by_one_array() -> None:
    with pytest.raises(OperandError, match="offsets and counts are both missing"):
        grouped_matmul(on_gpu((4, 8)), on_gpu((4, 8, 8)))
    with pytest.raises(OperandError, match="offsets and counts are both passed"):
        groups_kind({"offsets": groups(4), "counts": groups(4)})


def test_an_array_is_described_by_one_of_its_matrices() -> None:
    table = tensor(3, 10, dtype="s32")
    gemm = bound("addresses", 0, tensor(300, 64), tensor(64, 80), tensor(300, 80), groups=table)
    assert (gemm.problem.m, gemm.problem.batch, gemm.problem.batching) == (300, 5, "array")
    assert gemm.groups == Table("addresses", table.ptr, 1)
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"groups": tensor(4, 10, dtype="s32")},
            r"addresses must be int64 \(3, matrices\): one row each for a, b, out$",
        ),
        ({"c": tensor(300, 80)}, r"addresses must be int64 \(4, matrices\).*and c"),
        ({"groups": tensor(3, 10, dtype="s32", strides=(20, 1))}, "not contiguous"),
        ({"a": tensor(2, 300, 64)}, "with addresses, each must be one matrix"),
    ]
    for changes, says in cases:
        operands = {"a": tensor(300, 64), "b": tensor(64, 80), "d": tensor(300, 80), "groups": table}
        with pytest.raises(OperandError, match=says):
            bound("addresses", 0, **(operands | changes))


def test_every_kind_of_groups_is_served_and_the_grid_fits_its_tiles() -> None:
    configs = shipped_kernels("bf16")
    selector = Selector(configs, GPUS["NVIDIA H200"], varies=True)
    gemms = [
        bound("offsets", 128, tensor(2048, 512), tensor(128, 512, 1024, transposed=swap), tensor(2048, 1024))
        for swap in (False, True)
    ]
    gemms.append(bound("counts", 128, tensor(128, 64, 512), tensor(128, 512, 1024), tensor(128, 64, 1024)))
    gemms += [
        bound("offsets", 8, tensor(512, 8192, transposed=True), tensor(8192, 768), tensor(8, 512, 768, dtype=d))
        for d in ("bf16", "f32")
    ]
    gemms += [
        bound(
            "addresses", 0, tensor(300, 64), tensor(64, 80), tensor(300, 80), c=c, groups=tensor(rows, 10, dtype="s32")
        )
        for rows, c in ((3, None), (4, tensor(300, 80)))
    ]
    for gemm in gemms:
        choice = selector.select(gemm.problem)
        assert choice.config.scheduler.batching == gemm.problem.batching
        assert gemm.problem.batching in str(gemm.problem)
        spec = launch_spec(choice.config)
        assert grid_ctas(spec, gemm.problem, 132 // spec.cluster_ctas) <= 132
        if gemm.problem.batching != "array":
            fused = replace(gemm.problem, epilogue="d = relu(acc + x[n])")
            assert selector.select(fused).config.epilogue == fused.epilogue
    choice = selector.select(gemms[0].problem)
    assert choice.config.tile.m == 64, "16 rows a group are the average"


@given(
    m=st.integers(1, 5000),
    count=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 5000), max_size=299),
    n=st.integers(1, 999),
)
def test_a_grid_has_a_block_for_every_tile(m: int, count: int, cuts: list[int], n: int) -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8grouped_k1_linear"
    problem = GemmProblem(m, n, 64, count, "bf16", "k", "bf16", "k", "f32", "bf16", "n", batching="grouped")
    ends = sorted(min(cut, m) for cut in cuts[: count - 1])
    sizes = [end - begin for begin, end in zip([0, *ends], [*ends, m], strict=True)]
    tiles = sum(-(-size // 256) for size in sizes) * -(-n // 256)
    assert grid_ctas(launch_spec(parse_name(name)), problem, 1 << 20) >= 2 * tiles
