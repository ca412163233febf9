"""The measurements that the repository keeps: small, all spoken of, and with those that shipped models rest on."""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml

from gemmill.library.parquet import COLUMNS

pq = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "profiler" / "results"
MOST_BYTES = 20 << 20
OUTPUTS = "outputs.tar.xz"
ABOUT = ("README.md", "index.yaml", "sweeps.csv", OUTPUTS)
"""Files that say what the others are, and the archive of what programs wrote."""


@cache
def kept() -> Mapping[str, frozenset[str]]:
    """Sweeps and files, those in the archive too, with the commits that sweeps are of."""
    found: dict[str, set[str]] = {path.name: set() for path in RESULTS.iterdir() if path.name not in ABOUT}
    with tarfile.open(RESULTS / OUTPUTS) as archive:
        found |= {name: set() for name in archive.getnames()}
    for path in [RESULTS / name for name in found if name.endswith(".parquet")]:
        del found[path.name]
        rows = pq.read_table(path, columns=["run", "commit"]).group_by(["run", "commit"]).aggregate([])
        for row in rows.to_pylist():
            found.setdefault(row["run"], set()).add(row["commit"])
    return {name: frozenset(commits) for name, commits in found.items()}


def named(pattern: str) -> set[str]:
    """What a pattern or the beginning of a commit means."""
    is_commit = re.fullmatch("[0-9a-f]{7,}", pattern)
    return {
        name
        for name, commits in kept().items()
        if (any(commit.startswith(pattern) for commit in commits) if is_commit else fnmatch(name, pattern))
    }


def test_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.iterdir()) <= MOST_BYTES


def test_the_index_names_all_that_is_kept_and_nothing_else() -> None:
    index = yaml.safe_load((RESULTS / "index.yaml").read_text())
    entries = {entry for entries in index.values() for entry in entries}
    assert not [entry for entry in entries if not named(entry)], "these match nothing"
    assert not {*kept()} - {name for entry in entries for name in named(entry)}, "nothing rests on these"


def test_the_index_is_keyed_by_pages_and_folders_that_exist() -> None:
    index = yaml.safe_load((RESULTS / "index.yaml").read_text())
    assert not [key for key in index if not (ROOT / key).exists()]


@pytest.mark.parametrize("page", ["profiler/results/README.md", "docs/performance*"])
def test_what_a_page_says_of_sweeps_and_files_is_of_some_that_are_kept(page: str) -> None:
    """A name with a day, in backticks, as a whole or but for its ends; a sweep's may be that of its file."""
    pages = [own for path in ROOT.glob(page) for own in ([path] if path.is_file() else path.rglob("*.md"))]
    assert pages
    text = "\n".join(own.read_text() for own in pages)
    entries = re.findall(r"`([\w*+./\[\]-]*2026\d{4}[\w*+./\[\]-]*)`", text)
    said = {re.sub(r"\.jsonl(\.xz)?$", "", entry.rpartition("/")[2]) for entry in entries}
    assert said
    assert not [entry for entry in said if not (named(entry) or named(f"{entry}*") or named(f"*{entry}*"))]


@pytest.mark.parametrize("gpu", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_what_a_shipped_model_was_fitted_to_is_kept(gpu: str) -> None:
    content = json.loads((ROOT / "runtime" / "models" / f"{gpu}.json").read_text())
    assert not {*content["fitted to"]} - {*kept()}


@pytest.mark.parametrize(("gpu", "short"), [("nvidia-h200", "H200"), ("nvidia-h100-80gb-hbm3", "H100 SXM")])
def test_the_page_of_selection_has_the_accuracy_of_the_shipped_models(gpu: str, short: str) -> None:
    content = json.loads((ROOT / "runtime" / "models" / f"{gpu}.json").read_text())
    (held_out,) = (figures for key, figures in content.items() if key.startswith("held out by K"))
    page = (ROOT / "docs" / "performance" / "selection.md").read_text()
    for dtype, of in held_out.items():
        alone, fitted = (", ".join(f"{x:.3f}" for x in of[key]) for key in ("analytic", "fitted"))
        assert f"| {short}, {dtype} | {of['problems']:,} | {alone} | **{fitted}** |\n" in page


def test_what_is_told_of_sweeps_is_of_some_that_are_kept() -> None:
    with (RESULTS / "sweeps.csv").open(newline="") as file:
        runs = [row["run"] for row in csv.DictReader(file)]
    assert len({*runs}) == len(runs)
    assert not {*runs} - {*kept()}


YOUNGER = {"expected_rows", "launches", "regime", "sizes", "slices", "rows", "symmetry"}
"""Columns that are younger than some files: what these hold has their defaults."""


def test_files_of_measurements_have_all_columns_and_name_each_run_once() -> None:
    seen: set[str] = set()
    for path in RESULTS.glob("*.parquet"):
        names = pq.read_schema(path).names
        assert names == [name for name in COLUMNS if name in names]
        assert {*COLUMNS} - {*names} <= YOUNGER
        own = set(pq.read_table(path, columns=["run"])["run"].unique().to_pylist())
        assert not seen & own
        seen |= own


def test_the_picture_of_sustained_rates_is_of_its_records() -> None:
    from benchmarks.picture import drawn

    times = ("20261127T205341Z", "20261128T025731Z")
    records = [json.loads((RESULTS / f"sustained-{time}.json").read_text()) for time in times]
    assert (ROOT / "docs" / "pictures" / "sustained.svg").read_text(encoding="utf-8") == drawn(records)
