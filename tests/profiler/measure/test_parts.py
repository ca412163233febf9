"""Groups and arrays on the CPU: what is drawn of them, and that each element is held against its own group."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from gemmill.library.input.group_sizes import sizes_of
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.profiler.measure.operands import OperandSet, make_operands, set_bytes
from gemmill.profiler.measure.verify import reference, upconverted

torch = pytest.importorskip("torch")

GROUPS = {
    "grouped": GemmProblem(90, 24, 64, batching="grouped", groups=4),
    "one group": GemmProblem(9, 24, 64, batching="grouped", groups=1),
    "gathered": GemmProblem(90, 24, 64, batching="grouped", groups=4, rows="gathered"),
    "with C": GemmProblem(90, 24, 64, batching="grouped", groups=4, c="bf16"),
    "scaled": GemmProblem(
        90, 136, 200, a="e4m3", batching="grouped", groups=4, a_scale="1x128", b_scale="128x128", d="f32"
    ),
    "gathered scales": GemmProblem(
        90,
        136,
        200,
        a="e4m3",
        batching="grouped",
        groups=4,
        a_scale="1x128",
        b_scale="128x128",
        d="f32",
        rows="gathered",
    ),
    "scaled slots": GemmProblem(
        9, 136, 200, a="e4m3", batching="masked", groups=4, a_scale="1x128e8", b_scale="128x128e8"
    ),
    "masked": GemmProblem(40, 24, 64, batching="masked", groups=4),
    "kgrouped": GemmProblem(
        16, 24, 96, batching="kgrouped", groups=4, a_major="mn", b_major="mn", d="f32", c="f32", c_major="n"
    ),
    "ngrouped": GemmProblem(
        24, 90, 64, a="u4", b="bf16", a_scale="1x32z", d_major="m", batching="ngrouped", groups=4, c="bf16"
    ),
    "gathered columns": GemmProblem(
        24, 90, 64, a="s8", b="bf16", d_major="m", batching="ngrouped", groups=4, rows="gathered"
    ),
    "nmasked": GemmProblem(24, 40, 64, a="s8", b="f16", d_major="m", batching="nmasked", groups=4),
    "array": GemmProblem(16, 24, 64, batching="array", groups=3, c="bf16"),
}


def expand(scale: Any, shape: Any, across: int) -> Any:
    rows, columns = shape
    return scale.double().repeat_interleave(across, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


def solve(problem: GemmProblem, o: OperandSet) -> None:
    """D of each group, as the API's conventions have them."""
    ends = [0, *accumulate(o.sizes)]
    narrow = upconverted(problem, o) if upconverts_a(problem.a_dtype, problem.b_dtype) else o.a
    for i in range(problem.batch):
        match problem.batching:
            case "ngrouped":
                span = slice(ends[i], ends[i + 1])
                of_b = o.b[:, o.groups["rows"].long()] if problem.rows == "gathered" else o.b
                a, b, d, scales = narrow[i], of_b[:, span], o.d[:, span], None
                c = None if o.c is None else o.c[:, span]
            case "nmasked":
                span = slice(0, o.sizes[i])
                a, b, d, c, scales = narrow[i], o.b[i][:, span], o.d[i][:, span], None, None
            case "grouped":
                span = slice(ends[i], ends[i + 1])
                of_a = o.groups["rows"].long()[span] if problem.rows == "gathered" else span
                a, b, d, c = o.a[of_a], o.b[i], o.d[span], None if o.c is None else o.c[span]
                scales = None if o.a_scale is None else (o.a_scale[of_a], o.b_scale[i])
            case "masked":
                a, b, d, c = o.a[i, : o.sizes[i]], o.b[i], o.d[i, : o.sizes[i]], None
                scales = None if o.a_scale is None else (o.a_scale[i, : o.sizes[i]], o.b_scale[i])
            case "kgrouped":
                a, b, d, c = o.a[:, ends[i] : ends[i + 1]], o.b[ends[i] : ends[i + 1]], o.d[i], o.c[i]
                scales = None
            case _:
                a, b, d, c, scales = o.a[i], o.b[i], o.d[i], o.c[i], None
        left, right = a.double(), b.double()
        if scales:
            left = left * expand(scales[0], a.shape, 1)
            right = right * expand(scales[1].T, b.T.shape, 128).T
        d.copy_(left @ right + (0 if c is None else c.double()))


@pytest.mark.parametrize("sizes", ["balanced", "zipf:1.1"])
@pytest.mark.parametrize("name", GROUPS)
def test_every_group_is_verified(name: str, sizes: str) -> None:
    problem = GROUPS[name]
    own = sizes_of(problem, sizes)
    (operands,) = make_operands(problem, 1, "cpu", sets=1, sizes=own)
    expected = reference(problem, operands, 1.0, 1.0)
    assert not expected.compare(operands.d).passed, "D was never written"
    solve(problem, operands)
    verdict = expected.compare(operands.d)
    assert verdict.passed, verdict.says
    last = max(i for i, size in enumerate(own or [1] * problem.batch) if size)
    other = operands.b[last if problem.batching != "kgrouped" else -1]
    other.copy_(other.float() * 2)  # as if a group had found another's B
    solve(problem, operands)
    assert not expected.compare(operands.d).passed


def test_rows_of_a_slot_that_nobody_uses_may_hold_anything() -> None:
    problem = GROUPS["masked"]
    (operands,) = make_operands(problem, 1, "cpu", sets=1, sizes=(40, 0, 7, 1))
    solve(problem, operands)
    operands.d[1] = 1e30
    expected = reference(problem, operands, 1.0, 0.0)
    assert expected.compare(operands.d).passed
    operands.d[2, 6, 3] += 100
    assert "1 of 3840 elements exceed their bound; D[2][6, 3]" in expected.compare(operands.d).says


def test_tables_say_where_groups_and_matrices_are() -> None:
    (grouped,) = make_operands(GROUPS["grouped"], 1, "cpu", sets=1, sizes=(50, 0, 39, 1))
    assert grouped.groups["offsets"].tolist() == [50, 50, 89, 90]
    (masked,) = make_operands(GROUPS["masked"], 1, "cpu", sets=1)
    assert masked.groups["counts"].tolist() == [40] * 4
    (array,) = make_operands(GROUPS["array"], 1, "cpu", sets=1)
    addresses = array.groups["addresses"]
    assert addresses.shape == (4, 3)
    assert [int(row[2]) for row in addresses] == [x[2].data_ptr() for x in (array.a, array.b, array.d, array.c)]
    assert array.tensors()["a"].data_ptr() == int(addresses[0, 0])


def test_bytes_are_those_that_are_used() -> None:
    problem = GROUPS["masked"]
    full, few = set_bytes(problem), set_bytes(problem, (40, 0, 0, 0))
    assert full == 2 * 4 * (40 * 64 + 64 * 24 + 40 * 24)
    assert few == full // 4


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("64x64x64 bf16 tn a_align=2", 2),
        ("64x64x64 bf16 nn a_align=8", 8),
        ("64x64x66 bf16 tn a_align=16", 0),
        ("64x64x66 bf16 tn a_align=4", 0),
        ("64x64x68 bf16 tn a_align=4", 4),
        ("1x64x66 bf16 tn a_align=16", 0),
    ],
)
def test_operands_are_aligned_as_the_problem_says_and_no_better(text: str, offset: int) -> None:
    problem = GemmProblem.from_text(text)
    (operands,) = make_operands(problem, 1, "cpu", sets=1)
    a = operands.a
    assert a.storage_offset() * 2 == offset
    strides = [step * 2 for extent, step in zip(a.shape, a.stride(), strict=True) if extent > 1 and step > 1]
    least = min([(x & -x) for x in (*strides, offset or 16)], default=16)
    assert min(least, 16) == problem.a_align
