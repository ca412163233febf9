"""The same bits whatever M: one kernel for every M, whatever the layouts; and what is refused for the sake of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_kernels
from tests.cases.plain import bound
from tests.runtime.operands.test_groups import bound as bound_groups
from tests.runtime.operands.test_groups import tensor as packed
from tests.runtime.operands.test_mixed_operands import tensor
from tests.runtime.operands.test_operands import Array, carry_out, problems, read

from gemmill.library.arch import GPUS
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTypeName
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api.choose import choose
from gemmill.runtime.api.matmul import matmul, plan
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.selector import TYPICAL_ROWS, Selector

H200 = GPUS["NVIDIA H200"]


@pytest.fixture(scope="module")
def selector() -> Selector:
    sets = ("bf16", "mma", "simt", "tf32", "mixed")
    return Selector(shipped_kernels(*sets), H200)


# Selection.

extents = st.integers(1, 20_000)


@given(
    rows=st.lists(st.tuples(st.integers(1, 40_000), st.integers(1, 64)), min_size=2, max_size=4),
    n=extents,
    k=st.integers(0, 20_000),
    align=st.sampled_from([2, 16]),
    sm_count=st.sampled_from([None, 20]),
)
def test_one_kernel_serves_every_m_and_batch(
    selector: Selector, rows: list[tuple[int, int]], n: int, k: int, align: int, sm_count: int | None
) -> None:
    alike = GemmProblem(1, n, k, 1, "bf16", "k", "bf16", "mn", "f32", "bf16", "n", a_align=align)
    choices = [selector.select(replace(alike, m=m, batch=batch), sm_count, "m") for m, batch in rows]
    assert len({(choice.name, choice.swap_ab) for choice in choices}) == 1
    assert choices[0].config.scheduler.decomposition == "tiles"
    assert "batch-invariant" in choices[0].reason
    assert choices[0].kernel not in dict(choices[0].runners_up)


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (512, 7168), (64, 64)])
def test_it_is_the_one_that_is_fast_on_average(selector: Selector, n: int, k: int) -> None:
    alike = GemmProblem(1, n, k, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
    times = [selector.times(replace(alike, m=m)) for m in TYPICAL_ROWS]
    # Of many rows the model does not say what kernels that stream B take: they are slower by far.
    said = set.intersection(*map(set, times))
    whole = [kernel for kernel in said if selector.configs[kernel.name].scheduler.decomposition == "tiles"]
    mean = {kernel: float(np.mean([np.log(own[kernel]) for own in times])) for kernel in whole}
    choice = selector.select(alike, None, "m")
    assert mean[choice.kernel] == pytest.approx(min(mean.values()))
    assert choice.predicted_us >= min(times[0].values())


def test_of_a_transposed_problem_n_is_left_out(selector: Selector) -> None:
    problem = GemmProblem(4096, 1, 4096, 1, "s8", "k", "bf16", "k", "f32", "bf16", "m")
    choices = {selector.select(replace(problem, n=n), None, "n").name for n in (1, 7, 300, 5000)}
    assert len(choices) == 1
    assert len({selector.select(replace(problem, n=n)).name for n in (1, 7, 300, 5000)}) > 1


def test_without_a_kernel_that_keeps_k_together_the_error_says_so() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_k4cluster_linear"
    shared = parse_name(name)
    problem = GemmProblem(64, 64, 64, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
    with pytest.raises(UnsupportedProblemError, match="for every M: all 1 candidates share K between CTAs"):
        Selector({name: shared}, H200).select(problem, None, "m")
    gemm = bound(packed(64, 64), packed(64, 64, transposed=True), packed(64, 64))
    with pytest.raises(UnsupportedProblemError, match=rf"{name} shares K between CTAs \(cluster\): name a kernel"):
        choose(gemm, Options(kernel=name, batch_invariant=True), Registry(), None)


# Layouts.


@given(problems())
def test_what_it_is_chosen_for_is_the_same_matmul(problem: dict[str, tuple[Array, Array]]) -> None:
    arrays = {name: array for name, (array, _) in problem.items()}
    memory = {name: held for name, (_, held) in problem.items()}
    try:
        a, b, d = (read(arrays[name]) for name in "abd")
        c = read(arrays["c"]) if "c" in arrays else None
        given, gemm = bound(a, b, d, c), bound(a, b, d, c, batch_invariant=True)
    except OperandError:
        return
    p = gemm.problem
    assert (p.a_major, p.d_major, p.c_major or "n") == ("k", "n", "n")
    for name in "abcd":
        assert getattr(p, f"{name}_align") <= getattr(given.problem, f"{name}_align") or 1 in (p.n, p.k)
    expected = np.matmul(arrays["a"], arrays["b"]) + arrays.get("c", np.float32(0))
    carry_out(gemm, memory)
    assert np.array_equal(arrays["d"], expected)


@pytest.mark.parametrize(("n", "k"), [(64, 64), (64, 65), (33, 64), (1, 65), (1, 1)])
@pytest.mark.parametrize("b_dtype", ["bf16", "s8"])
def test_packed_operands_have_one_layout_whatever_m_and_batch(n: int, k: int, b_dtype: DTypeName) -> None:
    def alike(m: int, *batch: int) -> GemmProblem:
        b = tensor(b_dtype, *batch, n, k, t=True)
        a, d, c = tensor("bf16", *batch, m, k), tensor("bf16", *batch, m, n), tensor("f32", *batch, m, n)
        gemm = bound(a, b, d, c, batch_invariant=True)
        assert gemm.is_transposed == (b_dtype == "s8")
        return replace(gemm.problem, batch=1, **({"n": 1} if gemm.is_transposed else {"m": 1}))  # type: ignore[arg-type]

    assert len({alike(m) for m in (1, 2, 7, 64)} | {alike(m, 3) for m in (1, 5)}) == 1


def test_layouts_that_depend_on_m_are_refused() -> None:
    def binding(**changes: Any) -> None:
        operands = {"a": tensor("bf16", 8, 64), "b": tensor("bf16", 64, 32), "d": tensor("bf16", 8, 32), "c": None}
        bound(**(operands | changes), batch_invariant=True)

    binding()
    with pytest.raises(OperandError, match=r"a must be contiguous along K .* depends on M: pass"):
        binding(a=tensor("bf16", 64, 8, t=True))
    with pytest.raises(OperandError, match="out must be contiguous along N"):
        binding(d=tensor("bf16", 32, 8, t=True))
    with pytest.raises(OperandError, match="c must be contiguous along N"):
        binding(c=tensor("bf16", 32))
    with pytest.raises(OperandError, match=r"a is aligned to 2 bytes .*; packed rows are aligned to 16"):
        binding(a=tensor("bf16", 8, 64, at=2))


# Calls.


class Few:
    """A tensor of no elements, which needs no GPU."""

    def __init__(self, *shape: int, type: str = "<f2") -> None:  # noqa: A002
        self.__cuda_array_interface__ = {"shape": shape, "typestr": type, "data": (0, False), "version": 3}


OPERANDS = Few(0, 8), Few(8, 8)


@pytest.mark.parametrize("option", ["deterministic", "batch_invariant"])
@pytest.mark.parametrize("call", [matmul, plan])
def test_sums_in_an_epilogue_are_refused(call: Any, option: str) -> None:
    arguments: dict[str, Any] = {"out": Few(0, 8), "rows": Few(0, type="<f4"), option: True}
    with pytest.raises(
        OperandError, match=rf"{option}: `rows\[m\] = sum\(d\)` sums atomically, .* as in `rows\[m, n\]"
    ):
        call(*OPERANDS, epilogue="d = acc; rows[m] = sum(d)", **arguments)


def test_maxima_and_minima_are_deterministic() -> None:
    top, low, d, aux = Few(0, type="<f4"), Few(0, type="<f4"), Few(0, 8), Few(0, 8)
    text = "d = acc; top[m] = max(d); low[m] = min(d); aux[m, n] = d"
    plan(*OPERANDS, out=d, epilogue=text, top=top, low=low, aux=aux, deterministic=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"autotune": 0}, "autotune is 0; it must be a positive integer"),
        ({"autotune": True}, "autotune is True"),
        ({"autotune": 4, "deterministic": True}, "autotune and deterministic are both passed; .* kernels sum in"),
        ({"autotune": 4, "batch_invariant": True}, "autotune and batch_invariant are both passed"),
        ({"autotune": 4, "kernel": "x"}, "kernel and autotune are both passed; autotune searches for the fastest"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        matmul(*OPERANDS, out=Few(0, 8), **options)
    with pytest.raises(OperandError, match=says):
        plan(*OPERANDS, out=Few(0, 8), **options)


def test_groups_along_k_are_refused_and_groups_of_rows_are_not() -> None:
    rows = packed(300, 64), packed(4, 64, 80), packed(300, 80)
    invariant = bound_groups("offsets", 4, *rows, batch_invariant=True)
    assert invariant.problem == bound_groups("offsets", 4, *rows).problem
    along_k = packed(64, 300, transposed=True), packed(300, 80), packed(4, 64, 80)
    with pytest.raises(OperandError, match="groups along K: they share the K of the call"):
        bound_groups("offsets", 4, *along_k, batch_invariant=True)
