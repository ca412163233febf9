"""``gemmill select``: what makes a problem slow without need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cases.manifests import ONE
from tests.cli.test_cli import ok

from gemmill.cli.problem_options import extents

# The fast kernel, and one that multiplies any two types.
KERNELS = (
    ONE
    + """\
  - arch: sm90
    a: {dtype: bf16, major: any, align: 2}
    b: {dtype: f16, major: any, align: 2}
    accumulator: f32
    d: {dtype: bf16, major: any, align: 2}
    tile: 64x64x16
    schedule: simt
"""
)


def test_a_list_has_the_runners_up_and_reasons_of_each_problem(tmp_path: Path) -> None:
    (manifest := tmp_path / "kernels.yaml").write_text(KERNELS)
    lines = ["4096x4096x4096 bf16*f16 tn", "4096x4096x4096 bf16 tn"]
    (shapes := tmp_path / "shapes.yaml").write_text("shapes: [{m: 4096, n: 4096, k: 4096, a: bf16, b: [f16, bf16]}]")
    each = ("select", "--shapes", shapes, "--manifest", manifest, "--gpu", "H200")
    alone = [json.loads(ok("select", "--problem", line, *each[3:], "--top", "2", "--json")) for line in lines]
    report = json.loads(ok(*each, "--top", "2", "--json"))["items"]
    assert report == [{key: value for key, value in row.items() if key != "schema"} for row in alone]
    _, *rows = ok(*each, "--top", "2").splitlines()
    kernels = [(row["text"], kernel["name"]) for row in report for kernel in row["ranking"]]
    assert [
        (row.partition("  ")[0], name) for row, (_, name) in zip(rows, kernels, strict=True) if name in row
    ] == kernels
    assert [row["arithmetic"] for row in report] == ["fma", "k16"]
    text = ok(*each, "--why")
    assert text.startswith("GPU: NVIDIA H200, from --gpu")
    for row in report:
        assert f"{row['text']}\nkernel" in text
        assert row["reason"] in text


def test_why_says_what_a_slow_path_costs_and_what_to_change(tmp_path: Path) -> None:
    (manifest := tmp_path / "kernels.yaml").write_text(KERNELS)
    mixed = ("select", "--problem", "4096x4096x4096 bf16*f16", "--manifest", manifest)
    report = json.loads(ok(*mixed, "--json"))
    slow = report["slow_path"]
    assert slow["factor"] > 3
    assert slow["us"] * slow["factor"] == pytest.approx(report["ranking"][0]["us"], rel=0.01)
    assert slow["advice"] == "convert b to bf16, so that a and b have the same dtype"
    *_, why = ok(*mixed, "--why").splitlines()
    assert why.startswith(report["reason"])
    assert why.endswith(slow["advice"])
    plain = ("select", "--problem", "4096x4096x4096 bf16", "--manifest", manifest)
    assert json.loads(ok(*plain, "--json"))["slow_path"] is None


def test_extents_are_separated_by_commas_or_by_x() -> None:
    assert extents("512x768x256") == extents("512, 768, 256") == {"m": 512, "n": 768, "k": 256}
    assert extents("8x16x32x4") == {"m": 8, "n": 16, "k": 32, "batch": 4}
