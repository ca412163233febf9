"""Emitted text: golden files, purity, and what the emitter refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gemmill.emitters import headers_digest, include_path
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError

NAMES = sorted(path.stem for path in (Path(__file__).parent / "golden").glob("*.cu"))
WGMMA = [name for name in NAMES if name.startswith("sm90a")]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_the_golden_text(name: str) -> None:
    golden = Path(__file__).parent / "golden" / f"{name}.cu"
    assert emit(parse_name(name)).text == golden.read_text(), "rewrite with: python tests/emitters/golden.py"


def test_every_golden_kernel_is_there() -> None:
    assert len(NAMES) == 8


def test_text_is_the_same_in_every_process_and_folder(tmp_path: Path) -> None:
    program = (
        "from gemmill.emitters.emit import emit\nfrom gemmill.library.config.names import parse_name\n"
        f"source = emit(parse_name({WGMMA[0]!r}))\nprint(source.digest, source.headers_digest)"
    )
    for seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert child.stdout.split() == [emit(parse_name(WGMMA[0])).digest, headers_digest()]


def test_text_names_no_path() -> None:
    assert str(include_path().parent) not in emit(parse_name(WGMMA[0])).text


def test_a_refused_config_is_not_emitted() -> None:
    config = parse_name(WGMMA[0])
    wide = replace(config, tile=replace(config.tile, n=116))
    with pytest.raises(ConfigError, match=r"\[tile-n\] tile N is 116"):
        emit(wide)
    with pytest.raises(ConfigError, match="arch is 'sm99': Input should be 'sm70', "):
        emit(replace(config, arch="sm99"))  # type: ignore[arg-type]


def test_parameters_do_not_overlap_and_descriptors_are_aligned() -> None:
    launch = emit(parse_name(WGMMA[3])).launch
    scalars = [offset for name, offset in launch.offsets.items() if name != "epilogue"]  # which alpha begins
    spans = [(box.offset, 128) for box in launch.boxes] + [(offset, 4) for offset in scalars]
    spans.sort()
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= launch.params_bytes
    assert all(box.offset % 64 == 0 for box in launch.boxes)
