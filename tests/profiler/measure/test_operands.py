"""What is drawn for a problem is, to the API, that problem: on the CPU, from layouts alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cases.kinds import KINDS

from gemmill.library.input.group_sizes import sizes_of
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import as_called, factors, make_operands, plan_options
from gemmill.runtime.api.prepare import check
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.operands.epilogue_arguments import NO_ARGUMENTS, EpilogueArguments, read_epilogue, typed
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.tensors import TORCH_DTYPES, TensorView, unpacked
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.faults import needs_swap

torch = pytest.importorskip("torch")

MORE = (
    "64x96x64 bf16 tn grouped=1",
    "64x96x64 bf16 tn masked=1",
    "64x96x64 bf16 nn array=1 c=f32 d=f32",
    "64x96x256 e4m3 tn grouped=3 a_scale=1x128 b_scale=128x128 epilogue='d = silu(gate) * up'",
    "64x96x256 e4m3 tn masked=3 a_scale=1x128 b_scale=128x128",
    "64x96x256 e4m3 tn grouped=3 a_scale=1x128e8 b_scale=128x128e8",
    "64x96x64 bf16 tn grouped=3 epilogue='t = acc + bias.bf16[n]; d = t * s[batch] + r.bf16[m, n]; top[n] = max(d)'",
    "64x96x64 bf16 tn grouped=3 rows=gathered epilogue='d = silu(gate) * up'",
    "64x96x64 bf16 tn masked=3 epilogue='d = acc * x[m] + bias[n]; per_row[m] = sum(d)'",
    "64x96x64 bf16 nt kgrouped=3 epilogue='d = acc * x[m] + bias[n]'",
    "64x96x64x2 bf16 tn epilogue='d = acc + r.n[m, n] + q.bf16.m[m, n]; aux.f16.n = acc; low[batch] = min(acc)'",
    "64x96x64 bf16 tn epilogue='d = acc + bias[n] * s; amax = max(abs(acc)); low[batch] = min(acc)'",
    "64x96x64 f16 tn c=f16 epilogue='d = relu(alpha * acc + beta * c)'",
    "64x96x64 bf16 tn a_align=2 b_align=4 d_align=8",
    "64x96x66 bf16 tn a_align=16 b_align=16",
    "64x96x64 tf32 tn",
    "64x96x64 s8 tn d=bf16 epilogue='d = acc * sa[m] * sb[n]'",
    "64x96x64 e4m3 tn promote=4",
    "64x96x64 bf16 a_major=any d_major=any",
    "200x40x416x3 e2m1*bf16 tn d_major=m",  # scales of rows that end within 16 bytes
    "64x96x256 bf16*u4 tn grouped=3 b_scale=1x64z",
    "64x96x256 bf16*s4 tn masked=3 b_scale=1x32 expected_rows=5",
    "64x96x256 bf16*e2m1 tn grouped=3",
    "64x96x256 f16*s8 tn grouped=1 b_scale=1x128 c=f16",
    "64x96x256 bf16*e4m3 tn grouped=3 epilogue='d = acc * x[m] + bias[n] + r[m, n]; per_row[m] = sum(d)'",
)


def view(tensor: Any) -> TensorView:
    """What the API would read of a tensor on GPU 0."""
    dtype = TORCH_DTYPES[str(tensor.dtype).removeprefix("torch.")]
    return TensorView(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), dtype, 0)


def call_of(problem: GemmProblem, sizes: tuple[int, ...] | None = None) -> GemmCall:
    """The call that a worker makes for a problem."""
    problem, (o,) = as_called(problem, make_operands(problem, 0, "cpu", sets=1, sizes=sizes))
    options = plan_options(problem, o)
    alpha, beta = factors(problem)
    tensors = {name: x for name, x in o.tensors().items() if x is not None and name not in o.arguments}
    views = {name: view(x.view(torch.int32) if name == "addresses" else x) for name, x in tensors.items()}
    for name in "ab":
        if held := options[f"{name}_dtype"]:
            views[name] = unpacked(name, views[name], held, problem.k)
    arguments = NO_ARGUMENTS
    if (text := options["epilogue"]) is not None:
        epilogue = read_epilogue(text)
        values = {x.name: view(o.arguments[x.name]) for x in epilogue.arguments}
        arguments = EpilogueArguments(typed(epilogue, values), values, text)
    known = {name: options[name] for name in Options._fields if name in options}
    return GemmCall(views, Options(**(known | {"alpha": alpha, "beta": beta})), arguments)


@pytest.mark.parametrize("text", [*(kind.text for kind in KINDS.values()), *MORE])
def test_the_api_sees_the_problem_of_its_operands(text: str) -> None:
    problem = GemmProblem.from_text(text).with_narrow_a
    call = call_of(problem, sizes_of(problem, "zipf:1.1") or None)
    check(call)
    MemoryCheck.of(call)(call.addresses)
    seen = call.problem
    if "any" in text:  # of neighbours two elements apart, alignments are no worse
        seen = seen.but(a_align=problem.a_align, d_align=problem.d_align)
    # TMA could move matrices of which nothing is said; kernels that do not serve the problem as well.
    assert seen.but(epilogue=problem.epilogue) == problem


def test_kernels_of_an_expression_fit_what_the_api_sees() -> None:
    registry = Registry(gpu="H200")
    for text in MORE[3:12]:
        problem = GemmProblem.from_text(text)
        assert needs_swap(registry.select(problem).config, call_of(problem).problem) is not None, text


def test_problems_without_rows_have_operands() -> None:
    for rows in ("stored", "gathered"):
        (o,) = make_operands(GemmProblem.from_text(f"0x96x64 bf16 tn grouped=3 rows={rows}"), 0, "cpu", sets=1)
        assert all(index.numel() == (3 if name == "offsets" else 0) for name, index in o.groups.items())
