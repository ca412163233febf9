"""PeakRates: which one a problem meets, how near it came, and what reports make of it. No GPU is needed."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cases.problems import plain
from tests.cli.test_cli import gemmill, ok, process
from tests.profiler.analysis.test_report import SCALED

from gemmill.library.errors import RecordError
from gemmill.library.records import read_records
from gemmill.profiler.measure.peak_rates import PeakRates, Rate, read_peak_rates

SQUARE = plain((4000, 4000, 4000, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))


def rate(median: float) -> Rate:
    return Rate(
        median=median, low=median, high=median, windows=1, sm_mhz=1500, memory_mhz=3201, watts=700.0, celsius=60
    )


PEAK_RATES = PeakRates(
    gpu="NVIDIA H200",
    driver="1",
    cuda="1",
    torch="1",
    gemmill="1",
    commit="",
    time=datetime(2026, 11, 21, tzinfo=UTC),
    compute_tflops={"bf16": rate(800), "e4m3": rate(1600)},
    copy_tbps=rate(4),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "h200.peak-rates.json"
    path.write_text(PEAK_RATES.model_dump_json())
    return path


@pytest.mark.parametrize(
    ("changes", "name", "us"),
    [
        ({}, "bf16", 2 * 4000**3 / 800e6),
        ({"m": 1}, "copy", 2 * (4000 + 4000**2 + 4000) / 4e6),
        ({"m": 1, "batch": 3}, "copy", 3 * 2 * (4000 + 4000**2 + 4000) / 4e6),
        ({"m": 1, "b_dtype": "u4"}, "copy", (2 * 4000 + 4000**2 / 2 + 2 * 4000) / 4e6),
        ({"b_dtype": "s8"}, "bf16", 2 * 4000**3 / 800e6),
        ({"a_dtype": "e5m2", "b_dtype": "e4m3"}, "e4m3", 2 * 4000**3 / 1600e6),
        # Three groups share the rows of A and D; each has a B.
        ({"m": 3, "batch": 3, "batching": "grouped"}, "copy", 2 * (3 * 4000 + 3 * 4000**2 + 3 * 4000) / 4e6),
    ],
)
def test_the_nearer_roof_is_the_one_that_takes_longer(changes: dict[str, object], name: str, us: float) -> None:
    roof = PEAK_RATES.roof(replace(SQUARE, **changes))  # type: ignore[arg-type]
    assert roof is not None
    assert roof.name == name
    assert roof.us == pytest.approx(us)


def test_what_was_not_measured_or_has_no_wgmma_has_no_roof() -> None:
    assert PEAK_RATES.roof(replace(SQUARE, a_dtype="f16", b_dtype="f16")) is None
    assert PEAK_RATES.roof(replace(SQUARE, m=1, a_dtype="f64", b_dtype="f64")) is None


def test_a_fraction_is_that_of_the_peak_rates_time() -> None:
    measured = next(m for m in read_records(SCALED) if m.us is not None)
    at_half = measured.model_copy(update={"problem": SQUARE, "us": 2 * 2 * 4000**3 / 800e6})
    assert PEAK_RATES.fraction(at_half) == pytest.approx(0.5)
    assert PEAK_RATES.fraction(at_half.model_copy(update={"us": None})) is None


def test_a_file_of_peak_rates_reads_as_it_was_written_and_nothing_else_does(file: Path) -> None:
    assert read_peak_rates(file) == PEAK_RATES
    with pytest.raises(RecordError, match="is a records file; it must be a file of peak rates, from `gemmill roofline"):
        read_peak_rates(SCALED)


def test_a_report_says_how_near_each_problem_came(file: Path, tmp_path: Path) -> None:
    page, table = tmp_path / "report.html", tmp_path / "table.csv"
    ok("report", SCALED, "--peak-rates", file, "-o", page, "--csv", table)
    with table.open(newline="") as lines:
        found = list(csv.DictReader(lines))
    assert {line["roof"] for line in found} == {"e4m3", "copy"}
    for line in found:
        if line["roof"] == "e4m3":
            assert float(line["of_roof"]) == pytest.approx(float(line["tflops"]) / 1600)
    text = page.read_text()
    assert "NVIDIA H200: copy, 4.0 TB/s; WGMMA e4m3, 1600 TFLOP/s" in text
    assert "WGMMA bf16" not in text, "no problem is of it"

    ok("report", SCALED, "-o", page, "--csv", table)
    with table.open(newline="") as lines:
        assert {line["roof"] + line["of_roof"] for line in csv.DictReader(lines)} == {""}
    assert "DRAM" in page.read_text()


def test_a_report_names_the_gpu_whose_peak_rates_are_missing(file: Path, tmp_path: Path) -> None:
    file.write_text(PEAK_RATES.model_copy(update={"gpu": "another"}).model_dump_json())
    result = gemmill("report", SCALED, "--ceilings", file, "--csv", tmp_path / "table.csv")
    assert "--ceilings is now called --peak-rates" in result.stderr
    assert result.exit_code == 0
    assert "--peak-rates has no file for NVIDIA H200; run `gemmill roofline -o FILE` on that GPU" in result.stderr


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    result = gemmill("roofline", "--dtypes", "bf16,f32")
    assert result.exit_code == 2
    assert "each type must be bf16, f16, tf32, e4m3 or s8, not 'f32'" in " ".join(result.stderr.split())
    assert gemmill("roofline", "--dtypes", "bf16,bf16").exit_code == 2
    (tmp_path / "empty.jsonl").write_text("")
    result = gemmill("roofline", "--records", tmp_path / "empty.jsonl")
    assert (result.exit_code, "no measurement; run gemmill profile" in result.stderr) == (1, True)

    without_gpu = process("roofline", "-o", tmp_path / "peak-rates.json", CUDA_VISIBLE_DEVICES="")
    _, complaint = without_gpu.communicate(timeout=120)
    assert without_gpu.returncode == 3
    assert complaint.startswith("error: there is no GPU to run kernels on: "), complaint
    assert not (tmp_path / "peak-rates.json").exists()
