"""The problems of a link: what is listed comes back, and what is damaged or too long is refused in words."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.models import CONFIGS

pytest.importorskip("uvicorn")

from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Notes
from gemmill.library.models.problems import Deployment, problems_of
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.profiler.sweep.shape_suites import Shape, load_shapes, shipped_suites
from gemmill.service.pages.problem_lists import MOST_BYTES, MOST_PROBLEMS, Entry, Pass, ProblemList
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import URL_BYTES

WORDS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30).map(lambda text: text.strip("#[]"))
PROBLEMS = [
    "16x6144x4096 bf16 tn",
    "64x4096x4096 bf16*u4 tn b_scale=1x128 epilogue='d = silu(acc + bias[n])'",
    "8192x4096x7168 e4m3 tn grouped=64 a_scale=1x128 b_scale=128x128",
    "100x99x98x7 f32 nt c=f32",
]
ENTRIES = st.builds(
    lambda text, count, layer: Entry(Shape.of(GemmProblem.from_text(text)), count, layer),
    st.sampled_from(PROBLEMS),
    st.integers(1, MAX_EXTENT),
    WORDS,
)
PASSES = st.builds(lambda name, entries: Pass(name, tuple(entries)), WORDS, st.lists(ENTRIES, min_size=1, max_size=20))


@given(passes=st.lists(PASSES.filter(lambda each: each.name), max_size=3), notes=st.lists(WORDS, max_size=2))
def test_what_is_listed_comes_back_from_its_link(passes: list[Pass], notes: list[str]) -> None:
    listed = ProblemList(tuple(passes), tuple(notes))
    assert ProblemList.from_parameters(listed.parameters) == ProblemList.from_text(str(listed)) == listed


@given(text=st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ProblemList.from_text(text)
    except ProblemError:
        return


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V3", "gpt-oss-120b"])
def test_the_passes_of_a_model_are_its_problems_and_fit_a_link(name: str) -> None:
    tokens = tuple(range(1, 13))
    listed = ProblemList.from_config(CONFIGS[name], Deployment(tokens=tokens, tp=2))
    found = [(entry.problem, entry.count) for each in listed.passes for entry in each.entries]
    alone = problems_of(CONFIGS[name], Deployment(tokens=tokens, tp=2), Notes())
    assert sorted(map(str, found)) == sorted(str((layer.problem, layer.count)) for layer in alone)
    assert [each.name for each in listed.passes][:2] == ["1 token", "2 tokens"]
    assert len(listed.parameters["packed"]) < URL_BYTES / 8


def test_a_model_without_tokens_has_one_pass() -> None:
    [only] = ProblemList.from_config(CONFIGS["ViT-B-16"], Deployment()).passes
    assert only.name == ""


def test_a_suite_comes_back_as_yaml(tmp_path: Any) -> None:
    path = tmp_path / "suite.yaml"
    for name in ("moe", "uneven", "attention"):
        path.write_text(ProblemList.from_suite(name).as_suite.as_yaml())
        found, shipped = load_shapes(path), load_shapes(shipped_suites()[name])
        assert (found.name, found.shapes, dict(found.counts)) == (name, shipped.shapes, dict(shipped.counts))


def packed(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


@pytest.mark.parametrize(
    "text",
    ["!", "abcd", packed(zlib.compress(b"\xff")), packed(zlib.compress(b"#" * (MOST_BYTES + 1)))],
    ids=["no base64", "no zlib", "no UTF-8", "too long"],
)
def test_damaged_links_are_refused(text: str) -> None:
    with pytest.raises(Refusal, match="packed is damaged; copy the whole link"):
        ProblemList.from_parameters({"packed": text})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n\n16x16x16 bf17", "line 3: 'bf17'"),
        ("16x16x16 count=0", "line 1: count is '0'; it must be an integer from 1 to"),
        ("16x16x16" + " " * 900_000 + "x", "can have at most 4,096"),
        ("16x16x16\n" * (MOST_PROBLEMS + 1), "there are 501 problems; a page can have at most 500"),
    ],
    ids=["type", "count", "line", "problems"],
)
def test_wrong_lists_are_refused(text: str, says: str) -> None:
    with pytest.raises(ProblemError, match=says):
        ProblemList.from_text(text)
