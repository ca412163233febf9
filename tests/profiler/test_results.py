"""The measurements that the repository keeps: small, all spoken of, and with those that shipped models rest on."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gemmill.library.parquet import COLUMNS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "profiler" / "results"
MOST_BYTES = 20 << 20


def test_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) <= MOST_BYTES


def test_every_file_is_spoken_of() -> None:
    text = (RESULTS / "README.md").read_text()
    names = [f"{name.removesuffix('*')}*" for name in re.findall(r"`([^`\s]+)`", text)]
    kept = [path.name for path in RESULTS.iterdir() if path.name != "README.md"]
    assert not [name for name in kept if not any(fnmatch(name, pattern) for pattern in names)]


@pytest.mark.parametrize("gpu", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_what_a_shipped_model_was_fitted_to_is_kept(gpu: str) -> None:
    runs = {run for name in ("h200", "h100") for run in _runs(RESULTS / f"{name}.parquet")}
    trees = json.loads((ROOT / "runtime" / "models" / f"{gpu}.trees.json").read_text())
    assert not {*trees["fitted to"]} - runs


def test_files_of_measurements_have_all_columns_and_name_each_run_once() -> None:
    seen: set[str] = set()
    for path in RESULTS.glob("*.parquet"):
        assert pq.read_schema(path).names == [*COLUMNS]
        own = _runs(path)
        assert not seen & own
        seen |= own


def _runs(path: Path) -> set[str]:
    return set(pq.read_table(path, columns=["run"])["run"].unique().to_pylist())
