"""Errors in NVRTC's log; tests/cli/test_pages.py has what NVRTC itself writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gemmill.runtime.compile.nvrtc_log import cited_errors

LINES = (
    *("", "    int x = y;", "            ^", '"k.cu": creating precompiled header file "/tmp/k.pch"'),
    *('k.cu(3): error: identifier "y" is undefined', "/inc/a/b.cuh(7): error #20: wrong", "k.cu(1): warning: unused"),
    *("          detected during:", '            instantiation of "f" at line 9 of k.cu', "2 errors detected."),
)


@given(lines=st.lists(st.sampled_from(LINES) | st.text(max_size=20)))
def test_every_error_is_cited_once_and_in_order(lines: list[str]) -> None:
    log = "\n".join(lines)
    cited = cited_errors(log, "k.cu", ["/inc"])
    places = [error.partition(": ")[0] for error in cited]
    wrong = [line for line in log.splitlines() if line in (LINES[4], LINES[5])]
    ours = [place for place in places if place in ("k.cu:3", "k.cu:9", "a/b.cuh:7")]
    assert len(ours) == len(wrong)
    for place, line in zip(ours, wrong, strict=True):
        assert (place == "k.cu:3") == line.startswith("k.cu")


def test_a_header_is_cited_where_the_source_instantiates_it_else_by_itself() -> None:
    _, header, _, trace, at = LINES[4], LINES[5], LINES[6], LINES[7], LINES[8]
    inner = '            instantiation of class "g" at line 5 of /inc/a/b.cuh'
    (cited,) = cited_errors("\n".join([header, "    code", trace, inner, at]), "k.cu", ["/inc"])
    assert cited == "k.cu:9: wrong (a/b.cuh:7)\n    code"
    assert cited_errors(header, "k.cu", ["/inc"]) == ["a/b.cuh:7: wrong"]
    (catastrophe,) = cited_errors('k.cu(1): catastrophic error: cannot open source file "x"', "k.cu", [])
    assert catastrophe == 'k.cu:1: catastrophic error: cannot open source file "x"'


def test_the_end_of_the_source_and_notes_are_cited_like_errors() -> None:
    log = 'At end of source: error: expected a "}"\nk.cu(3): note #3196-D: to match this "{"\n  void f() {'
    assert cited_errors(log, "k.cu", []) == [
        'k.cu: at the end: expected a "}"\nk.cu:3: note: to match this "{"\n  void f() {'
    ]


def test_errors_of_ptxas_are_cited_without_the_warnings_before() -> None:
    wrong = "ptxas application ptx input, line 9; error   : Unknown modifier '.bar'"
    log = f"k.cu(1): warning #177-D: unused\n\n{wrong}\nptxas info : a note\nptxas fatal   : aborted due to errors"
    assert cited_errors(log, "k.cu", []) == [f"k.cu: {wrong}", "k.cu: ptxas fatal   : aborted due to errors"]
