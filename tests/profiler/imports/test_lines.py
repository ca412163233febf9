"""Readers of lists: gemmill reads what it writes, extents in each form are the same, and junk is refused in words."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library.test_problem import masked, problems

from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.profiler.imports.file_formats import FORMATS, problems_of, read_problems
from gemmill.profiler.sweep.shape_suites import Shape, load_shapes

X = Path("x")
RUNNABLE = (problems | masked).filter(lambda problem: min(problem.m, problem.n, problem.k, problem.batch) > 0)
EXTENTS = st.lists(st.tuples(*[st.integers(1, 1 << 20)] * 3), min_size=1, max_size=5)


def shapes_of(content: str, folder: Path) -> list[Shape]:
    (path := folder / "list").write_text(content, encoding="utf-8")
    return [*load_shapes(path).shapes]


@given(st.lists(RUNNABLE, min_size=1, max_size=4, unique=True))
def test_lines_of_problems_are_read_as_they_are_written(written: list[GemmProblem]) -> None:
    as_lines = problems_of("\n".join(map(str, written)).encode(), X)
    as_json = problems_of(json.dumps([str(problem) for problem in written]).encode(), X)
    for found in (as_lines, as_json):
        assert found is not None
        assert not found.notes
        assert [GemmProblem.from_dict(each.fields) for each in found.problems] == written


@pytest.mark.parametrize("line", ["512x768x256 bf16 tn", "64x64x64 e4m3 tn grouped=4 sizes=zipf:1.1", "64x128x64x2"])
def test_the_name_of_a_shape_is_its_line(line: str, tmp_path: Path) -> None:
    (shape,) = shapes_of(line, tmp_path)
    assert str(shape) == line
    assert shapes_of(f"{shape}\n{line}", tmp_path) == [shape]


@pytest.mark.parametrize(
    "form", ["{} {} {}", "{}\t{}\t{}", "  {}   {} {}  ", "{},{},{}", "{}; {}; {}", "{}x{}x{}", "[{}, {}, {}]"]
)
@given(extents=EXTENTS)
def test_extents_in_every_form_are_the_same(form: str, extents: list[tuple[int, int, int]]) -> None:
    found = problems_of("\r\n".join(form.format(*each) for each in extents).encode(), X)
    assert found is not None
    listed = [tuple(each.fields[key] for key in "mnk") for each in found.problems]
    assert listed == [*dict.fromkeys(extents)]


WORDS = st.sampled_from(
    ["64x128x64", "1 2 3", "1,2,3", "bf16", "tn", "epilogue='d = ", "sizes=", "grouped=4", "{", "[", "]", '"', ":",
     "- ", "\n", "AUTOTUNE mm(", "strides: [", "dtypes: torch.", "GemmTunableOp_", "_TN,tn_1_2_3", "Validator,", '"ph"',
     '{"traceEvents": [', "Operator: aten.mm.default\n", "cnt: 1, ((T([1, 2], f16)", "E=8,N=7", "m,n,k\n", "x",
     "9" * 25]
)  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=5), max_size=12).map("".join) | st.binary(max_size=60))
def test_junk_is_a_list_or_refused(content: str | bytes) -> None:
    data = content.encode(errors="replace") if isinstance(content, str) else content
    with suppress(RecordError):
        found = problems_of(data, X)
        assert found is None or all({"m", "n", "k"} <= set(each.fields) for each in found.problems)


@pytest.mark.parametrize(
    "content",
    [
        "words\n",
        "1,024 512 64\n",
        "1,024;512;64\n",
        "The shapes of layers: [\n",
        "words: [\n",
        "",
        "{}",
        "B:\n  shapes: [[1, 2, 3]]\n",
        "a,b,c\n1,2,3\n",
        "\xff\xfe",
    ],
)
def test_a_file_that_is_no_list_says_which_formats_are_read(content: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError) as refused:
        shapes_of(content, tmp_path)
    assert str(refused.value).startswith(f"{tmp_path / 'list'}:")
    for form in FORMATS:
        assert form.name in str(refused.value)


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ('{"m": 1, "n": 2, "k": 3, "note": "AUTOTUNE mm(64x32, 32x16)"}\n', "a JSON list"),
        ("# transA is T\n- {m: 1, n: 2, k: 3}\n", "a YAML list"),
        ("# GemmTunableOp_Half_NT,nt_1_2_3\n1 2 3\n", "a list of lines"),
        ("m,n,k,operation\n1,2,3,gemm\n", "a table"),
    ],
)
def test_words_of_a_format_in_another_one_do_not_change_it(content: str, form: str) -> None:
    found = problems_of(content.encode(), X)
    assert found is not None
    assert (found.format, [dict(each.fields) for each in found.problems]) == (form, [{"m": 1, "n": 2, "k": 3}])


def test_a_folder_is_read_as_all_of_its_files(tmp_path: Path) -> None:
    tiles = '{"1": {"BLOCK_SIZE_M": 16}}'
    (tmp_path / "N=64,K=128,device_name=A.json").write_text(tiles)
    (tmp_path / "N=64,K=128,device_name=B.json").write_text(tiles)
    (tmp_path / "README.md").write_text("Configs of kernels.\n")
    (tmp_path / ".hidden").write_text("1 2 3\n")
    (tmp_path / "inside").mkdir()
    found = read_problems(tmp_path)
    assert found is not None
    assert found.format == "a folder of 3 files: a config of vLLM's block-scaled products"
    assert [(dict(each.fields), each.count) for each in found.problems] == [
        ({"m": 1, "n": 64, "k": 128, "a_major": "k", "b_major": "k"}, 2)
    ]
    assert found.left_out == (
        f"{tmp_path / 'inside'}: only files in a folder are read, and this is none",
        f"{tmp_path / 'README.md'}: the file is in no format of another tool",
    )
    assert load_shapes(tmp_path / "inside" / "..").name == tmp_path.name
    with pytest.raises(RecordError, match="no file of the folder is in a format of another tool"):
        load_shapes(tmp_path / "inside")
