"""Kernels of edited pages: run by name from a registry and from a pack, verified and timed beside what they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli import SMALL, gemmill, ok
from tests.gpu.harness import product

from gemmill import matmul
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.pack import write_pack

pytestmark = pytest.mark.gpu

TEXT = emit(parse_name(SMALL)).text


def test_an_edited_kernel_runs_by_its_name(tmp_path: Path) -> None:
    import torch

    a, b, expected = product()
    registry = Registry(manifests=(), store=tmp_path / "store")
    mine = registry.add_source(SMALL, TEXT.replace("Raster::M", "Raster::N"))
    write_pack(tmp_path / "mine.pack", [mine])
    for of in (registry, Registry(packs=[tmp_path / "mine.pack"])):
        found: Any = matmul(a, b, kernel=mine.name, registry=of)
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_a_page_is_verified_and_timed_beside_its_kernel(tmp_path: Path) -> None:
    page = tmp_path / "k.cu"
    page.write_text(TEXT.replace("Raster::M", "Raster::N"))
    document = json.loads(ok("build", page, "--mnkl", "512,768,256", "--json"))
    original, edited = sorted(document["measurements"], key=lambda measurement: len(measurement["kernel"]))
    assert original["kernel"] == SMALL
    assert edited["kernel"] == document["items"][0]["name"]
    assert edited["digest"] == document["items"][0]["digest"] != original["digest"]
    for measurement in (original, edited):
        assert measurement["verified"]
        assert measurement["samples"] >= 8
        assert measurement["low_us"] <= measurement["us"] <= measurement["high_us"]
    assert SMALL in ok("build", page, "--problem", "512x768x256 bf16 tn")


@pytest.mark.slow
def test_a_page_that_computes_something_else_is_found_out(tmp_path: Path) -> None:
    page = tmp_path / "k.cu"
    wrong = TEXT.replace('"%16, %17, p, 1, 1, 0, 0;', '"%16, %17, p, -1, 1, 0, 0;')  # A is negated
    assert wrong != TEXT
    page.write_text(wrong)
    result = gemmill("build", page, "--mnkl", "512,768,256", "--json")
    assert result.exit_code == 1
    original, edited = sorted(json.loads(result.stdout)["measurements"], key=lambda row: len(row["kernel"]))
    assert original["verified"]
    assert not edited["verified"]
    assert edited["says"].startswith("wrong result")
