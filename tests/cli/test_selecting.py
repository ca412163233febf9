"""``gemmill select``: what makes a problem slow without need."""

from __future__ import annotations

import json

import pytest
from tests.cli.test_cli import ok


@pytest.mark.slow
def test_why_says_what_a_slow_path_costs_and_what_to_change() -> None:
    kernels = ("--manifest", "bf16", "--manifest", "simt")
    mixed = ("select", "--problem", "4096x4096x4096 bf16*f16", *kernels)
    report = json.loads(ok(*mixed, "--json"))
    slow = report["slow_path"]
    assert slow["factor"] > 10
    assert slow["us"] * slow["factor"] == pytest.approx(report["ranking"][0]["us"], rel=0.01)
    assert slow["advice"] == "convert b to bf16, so that a and b have one type"
    *_, why = ok(*mixed, "--why").splitlines()
    assert why.startswith(report["reason"])
    assert why.endswith(slow["advice"])
    plain = ("select", "--problem", "4096x4096x4096 bf16", *kernels)
    assert json.loads(ok(*plain, "--json"))["slow_path"] is None
