"""`gemmill records pack`: sweeps in one file, nothing mixed and nothing lost."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cli.test_cli import gemmill, ok
from tests.library.test_records import MEASURED

from gemmill.library.records import read_records
from gemmill.runtime.select.decisions import read_decisions

pytest.importorskip("pyarrow")


@pytest.fixture
def sweeps(tmp_path: Path) -> list[Path]:
    """Two sweeps of one kernel and problem at one commit; in the later one the clock was higher."""
    later = MEASURED.model_copy(update={"us": 100.0, "baseline_us": 95.0, "time": datetime(2026, 11, 22, tzinfo=UTC)})
    monday, tuesday = tmp_path / "monday.jsonl", tmp_path / "tuesday.jsonl"
    monday.write_text(MEASURED.model_dump_json() + "\n")
    tuesday.write_text(later.model_dump_json() + "\n")
    return [monday, tuesday]


def test_sweeps_keep_their_names_in_one_file_and_are_not_mixed(sweeps: list[Path], tmp_path: Path) -> None:
    week, table = tmp_path / "week.parquet", tmp_path / "table.csv"
    assert "2 measurements of 2 sweeps" in ok("records", "pack", *sweeps, "-o", week)
    given = [m for path in sweeps for m in read_records(path)]
    assert [m.model_copy(update={"run": ""}) for m in read_records(week)] == given
    again = tmp_path / "again.parquet"
    ok("records", "pack", week, "-o", again)
    assert [m.run for m in read_records(again)] == ["monday", "tuesday"]
    ok("report", week, "--csv", table)
    found = [(row["run"], float(row["us"])) for row in csv.DictReader(table.open())]
    assert found == [("monday", 200.0), ("tuesday", 100.0)]


def test_sweeps_of_one_name_are_refused(sweeps: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    same = sweeps[1].rename(tmp_path / "other" / "monday.jsonl")
    result = gemmill("records", "pack", sweeps[0], same, "-o", tmp_path / "week.parquet")
    assert result.exit_code == 1
    assert "both have measurements of a sweep 'monday'" in result.stderr
    assert not (tmp_path / "week.parquet").exists()


def test_what_is_read_otherwise_than_it_was_written_replaces_nothing(sweeps: list[Path], tmp_path: Path) -> None:
    week = tmp_path / "week.parquet"
    ok("records", "pack", sweeps[0], "-o", week)
    before = week.read_bytes()
    tiny = MEASURED.model_copy(update={"baseline_us": 1e-50})  # no float32 above 0 is so small
    sweeps[1].write_text(tiny.model_dump_json() + "\n")
    assert gemmill("records", "pack", sweeps[1], "-o", week).exit_code == 1
    assert week.read_bytes() == before


def test_what_holds_no_more_decides_nothing(sweeps: list[Path], tmp_path: Path) -> None:
    gone = [m.model_copy(update={"holds": "nothing"}) for m in read_records(sweeps[1])]
    sweeps[1].write_text("".join(m.model_dump_json() + "\n" for m in gone))
    week = tmp_path / "week.parquet"
    ok("records", "pack", *sweeps, "-o", week)
    assert [decision.us for decision in read_decisions([week])] == [200.0]
