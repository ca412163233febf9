"""Problems described by hand: keywords, lines and mappings that rebuild them; whatever is wrong is named, with what may
stand there."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.config.model import BatchingName
from gemmill.library.dtypes import DTYPES, SPLIT, default_accumulator, find_dtype, unknown
from gemmill.library.errors import ProblemError
from gemmill.library.problem import ASSUMED_ROWS, MAX_EXTENT, GemmProblem

SIZE = {"m": 64, "n": 96, "k": 128}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"m": "64"}, "m is '64'; it must be a whole number from 0"),
    ({"n": 5.5}, "n is 5.5; it must be a whole number"),
    ({"k": True}, "k is True; it must be a whole number"),
    ({"m": None}, "m is None; it must be a whole number"),
    ({"batch": -1}, "batch is -1; it must be a whole number"),
    ({"m": MAX_EXTENT + 1}, f"m is {MAX_EXTENT + 1}; it must be a whole number from 0 to {MAX_EXTENT:,}"),
    ({"m": 1 << 2000}, "m is a number of 2001 bits; it must be"),
    ({"a": "bf17"}, "a is 'bf17', did you mean bf16. it must be bf16, f16"),
    ({"b": ("bf16", "k")}, r"b is \('bf16', 'k'\); it must be bf16"),
    ({"a": "bf16", "a_dtype": "bf16"}, "a and a_dtype are the same keyword; pass one of them"),
    ({"b_major": "row"}, "b_major is 'row'; it must be k, mn or any"),
    ({"d_major": "k"}, "d_major is 'k'; it must be n, m or any"),
    ({"c_major": "n"}, "c_major is 'n', but there is no C; pass the type of C as c, or omit c_major"),
    ({"a_scale": "1x129"}, "a_scale is '1x129', did you mean 1x128"),
    ({"promote": 1}, "promote is 1; it must be 0 or 4"),
    ({"a_align": 3}, "a_align is 3; it must be 1, 2, 4, 8 or 16"),
    ({"groups": 4}, "groups is 4; it replaces batch only if batching is grouped, masked, kgrouped, ngrouped"),
    ({"groups": 4, "batch": 4, "batching": "grouped"}, "it replaces batch only if"),
    ({"batching": "groupd"}, "batching is 'groupd', did you mean grouped"),
    ({"expected_rows": 97, "batching": "nmasked"}, "expected_rows is 97; it must be from 1 to n = 96"),
    ({"rows": "gatherd"}, "rows is 'gatherd', did you mean gathered"),
    (
        {"rows": "gathered", "batching": "masked"},
        "rows is gathered, but batching is masked; omit rows, or use batching",
    ),
    ({"symmetry": "symmetric", "n": 63}, "D is symmetric, but m is 64 and n is 63; they must be equal"),
    ({"symmetry": "symmetric", "n": 64, "b": "f16"}, "a_dtype is bf16 and b_dtype is f16; they must be equal"),
    ({"symmetry": "symmetric", "n": 64, "batching": "masked"}, "batching is masked; it must be strided or nested"),
    (
        {"expected_rows": 8},
        "expected_rows is 8, but batching is strided; omit expected_rows, or use batching masked",
    ),
    ({"expected_rows": 8, "batching": "grouped", "groups": 4}, "expected_rows is 8, but batching is grouped"),
    (
        {"expected_rows": 65, "batching": "masked"},
        "expected_rows is 65; it must be from 1 to m = 64, the capacity of a group",
    ),
    ({"expected_rows": 0, "batching": "masked"}, "expected_rows is 0; it must be from 1 to m = 64"),
    ({"expected_rows": 0.5, "batching": "masked"}, "expected_rows is 0.5; it must be a whole number"),
    ({"epilogue": "d = silu("}, "epilogue is 'd = silu"),
    ({"epilogue": 5}, "epilogue is 5; it must be a str such as"),
    ({"a_dtpye": "bf16"}, "unknown keyword 'a_dtpye' of a problem, did you mean a_dtype"),
]
LINES = [
    ("", "the problem is empty; write for example"),
    ("64x64", "the extents are '64x64'; write MxNxK or MxNxKxBATCH"),
    ("64x64x64 'a", "cannot be parsed: No closing quotation"),
    ("64x64x64 bf17", "'bf17', did you mean bf16. it must be a type such as"),
    ("64x64x64 bf16x6*f32", "a is bf16x6 and b is f32; with bf16x6, which splits f32, both must be bf16x6"),
    ("64x64x64 bf16 f16", "'f16' sets a a second time"),
    ("64x64x64 bf16*", "'bf16*'; it must be a type|a second time"),
    ("64x64x64 tn a_major=k", "'a_major=k' sets a_major a second time"),
    ("64x64x64 dd=3", "unknown name in 'dd=3', did you mean d. names: m, n, k, batch, a_dtype"),
    ("99999999999x1x1", "write MxNxK or MxNxKxBATCH"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_what_cannot_be_is_named(words: dict[str, Any], says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        GemmProblem(**{**SIZE, **words})


@pytest.mark.parametrize(("text", "says"), LINES)
def test_a_line_that_cannot_be_is_named(text: str, says: str) -> None:
    if text.endswith("bf16*"):  # as if there were no star
        assert GemmProblem.from_text(text) == GemmProblem.from_text("64x64x64")
        return
    with pytest.raises(ProblemError, match=says):
        GemmProblem.from_text(text)


def test_what_is_left_out_is_as_people_expect() -> None:
    assert str(GemmProblem(**SIZE)) == "64x96x128 bf16 tn"
    assert GemmProblem(**SIZE, a="e4m3").d_dtype == "bf16"
    assert GemmProblem(**SIZE, a="s8").accumulator == "s32"
    assert GemmProblem(**SIZE, a="f64").accumulator == "f64"
    assert GemmProblem(**SIZE, a="s4", b="bf16").d_dtype == "bf16"
    assert GemmProblem(64, 63, 7).d_align == 2
    assert GemmProblem(1, 63, 7).d_align == 16, "nothing is 63 elements apart"
    assert GemmProblem(**SIZE, a="e4m3", a_scale="1x128", b_scale="128x128").promote == 4
    assert GemmProblem(**SIZE, c="f32", d_major="m").c_major == "m"
    assert GemmProblem(**SIZE, a_major="m", b_major="n") == GemmProblem(**SIZE, a_major="mn", b_major="mn")
    assert GemmProblem(**SIZE, batching="grouped", groups=8).batch == 8


def test_a_line_says_all_that_differs() -> None:
    problem = GemmProblem(
        m=4096, n=7168, k=2048, a="float8_e4m3fn", b="f8e5m2", d="fp16", b_major="n", batching="grouped", groups=64,
        a_scale="1x128", b_scale="128x128", epilogue="d=silu( acc+bias[n] )",
    )  # fmt: skip
    text = (
        "4096x7168x2048 e4m3*e5m2 tt grouped=64 d=f16 a_scale=1x128 b_scale=128x128 epilogue='d = silu(acc + bias[n])'"
    )
    assert str(problem) == text
    assert repr(problem) == (
        "GemmProblem(m=4096, n=7168, k=2048, groups=64, a='e4m3', b='e5m2', b_major='mn', d='f16', a_scale='1x128', "
        "b_scale='128x128', batching='grouped', epilogue='d = silu(acc + bias[n])')"
    )


extents = st.integers(0, 1 << 20)
dtypes = st.sampled_from([*DTYPES])
whole = st.sampled_from(sorted(DTYPES.keys() - SPLIT))
problems = st.builds(
    lambda ab, **words: GemmProblem(a=ab[0], b=ab[1], **words),
    st.tuples(whole, whole) | st.sampled_from(SPLIT).map(lambda name: (name, name)),
    m=extents,
    n=extents,
    k=st.integers(0, 1 << 15).map(lambda blocks: 32 * blocks),  # as e2m1 needs it
    batch=st.integers(1, 100),
    c=st.none() | dtypes,
    d=dtypes,
    accumulator=dtypes,
    a_major=st.sampled_from(["k", "mn", "any"]),
    b_major=st.sampled_from(["k", "mn", "any"]),
    d_major=st.sampled_from(["n", "m", "any"]),
    a_align=st.sampled_from([None, 1, 2, 16]),
    d_align=st.sampled_from([None, 1, 2, 16]),
    a_scale=st.sampled_from(["none", "1x128", "1x128e8", "1x64z"]),
    b_scale=st.sampled_from(["none", "128x128"]),
    promote=st.sampled_from([None, 0, 4]),
    batching=st.sampled_from([*get_args(BatchingName)]),
    epilogue=st.sampled_from(["linear", "d = silu(acc + bias[n])", "d = silu(gate) * up", "d = acc; aux = acc"]),
)
gathered = st.builds(
    GemmProblem, m=extents, n=extents, k=extents, batching=st.just("grouped"), rows=st.just("gathered")
)
symmetric = extents.flatmap(
    lambda m: st.builds(GemmProblem, m=st.just(m), n=st.just(m), k=extents, symmetry=st.just("symmetric"))
)
masked = st.integers(1, 1 << 20).flatmap(
    lambda m: st.builds(
        GemmProblem,
        m=st.just(m),
        n=extents,
        k=extents,
        batching=st.just("masked"),
        groups=st.integers(0, 100),
        expected_rows=st.none() | st.integers(1, m),
    )
)


@given(problems | gathered | masked | symmetric)
def test_lines_mappings_and_reprs_rebuild_a_problem(problem: GemmProblem) -> None:
    assert GemmProblem.from_text(str(problem)) == problem
    assert eval(repr(problem)) == problem
    assert GemmProblem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert replace(problem) == problem
    assert problem.but() == problem
    assert hash(problem.but(m=problem.m)) == hash(problem)


@given(st.text(max_size=40) | st.from_regex(r"\d+x\d+x\d+( \w+(=[\w']*)?){0,4}"))
def test_any_line_is_a_problem_or_an_error_of_ours(text: str) -> None:
    with suppress(ProblemError):
        assert GemmProblem.from_text(text).m >= 0


def test_a_masked_group_costs_what_the_rows_in_use_do() -> None:
    masked = GemmProblem.from_text("4096x96x128 bf16 tn masked=8")
    assert str(masked.but(expected_rows=192)) == "4096x96x128 bf16 tn masked=8 expected_rows=192"
    for rows, typical in ((192, 192), (4096, 4096), (None, ASSUMED_ROWS)):
        asked = masked.but(expected_rows=rows)
        assert asked.typical() == GemmProblem(m=typical, n=96, k=128, batch=8)
        assert asked.expected_flops == 2 * 8 * typical * 96 * 128
        assert asked.flops == masked.flops == 2 * 8 * 4096 * 96 * 128
    assert masked.but(m=5).typical().m == 5, "a masked group has no more"


@pytest.mark.parametrize(
    ("line", "turned", "typical"),
    [
        ("600x96x64 bf16 tn grouped=8", "96x600x64 bf16 tn ngrouped=8 {}", (75, 96, 64)),
        ("600x96x64 bf16 tn masked=8 expected_rows=5", "96x600x64 bf16 tn nmasked=8 {} expected_rows=5", (5, 96, 64)),
        ("96x80x600 bf16 nt kgrouped=8", "80x96x600 bf16 nt kgrouped=8 {}", (96, 80, 75)),
    ],
)
def test_groups_along_n_are_the_transpose_of_groups_along_m(
    line: str, turned: str, typical: tuple[int, int, int]
) -> None:
    problem = GemmProblem.from_text(line)
    m, n, k = typical
    assert str(problem.transposed) == turned.format("d_major=m")
    assert problem.transposed.transposed == problem
    assert problem.typical() == GemmProblem(m, n, k, batch=8, a_major=problem.a_major, b_major=problem.b_major)
    assert problem.transposed.typical() == problem.typical().transposed
    assert problem.transposed.flops == problem.flops
    assert problem.transposed.expected_flops == problem.expected_flops


@pytest.mark.parametrize("line", ["64x96x256 bf16*u4 tn grouped=4 b_scale=1x128z", "64x96x256 bf16*s8 tn masked=4"])
def test_groups_with_narrow_weights_are_their_transpose(line: str) -> None:
    problem = GemmProblem.from_text(line)
    assert problem.with_narrow_a == problem.transposed
    assert problem.but(epilogue="d = silu(gate) * up").with_narrow_a.a_dtype == "bf16"


@pytest.mark.parametrize(
    "wrong", [{"expected_rows": 65}, {"expected_rows": 0}, {"expected_rows": 8, "batching": "array"}]
)
def test_expected_rows_of_a_file_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected_rows is"):
        GemmProblem(**SIZE, batching="masked").but(**wrong).check()


def test_what_is_known_to_be_right_is_not_checked_and_has_the_same_defaults() -> None:
    fields = {name: getattr(GemmProblem(**SIZE), name) for name in GemmProblem.__dataclass_fields__}
    assert GemmProblem.unchecked(**fields) == GemmProblem(**SIZE)
    assert GemmProblem.unchecked(**{**fields, "m": 5.5}).m == 5.5


def test_integers_of_any_library_are_integers() -> None:
    problem = GemmProblem(np.int64(64), np.int32(96), np.uint8(128))  # type: ignore[arg-type]
    assert problem == GemmProblem(**SIZE)
    assert type(problem.m) is int


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype.stored_as is None], ids=lambda d: d.name)
def test_what_others_call_dtypes_is_understood(dtype: Any) -> None:
    assert find_dtype(f"torch.{dtype.torch}") == dtype.name
    assert unknown(f"torch.{dtype.torch}") == f", did you mean {dtype.name}?"
    assert GemmProblem(**SIZE, a=f"torch.{dtype.torch}").accumulator == default_accumulator(dtype.name)
