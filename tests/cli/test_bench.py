"""``gemmill bench``: which kernels it takes for which problems, and what it writes of a recorded run."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from tests.cli.test_cli import MANIFEST, SMALL, gemmill, process

from gemmill.cli.commands.bench import KernelChoice
from gemmill.cli.commands.problems import report_measurements
from gemmill.library.problem import GemmProblem
from gemmill.library.records import read_records
from gemmill.profiler.analysis.measured import as_csv, as_svg, rows
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.runtime.registry import Registry

SVG = "{http://www.w3.org/2000/svg}"
RECORDS = Path(__file__).parents[1] / "cases" / "records"
SQUARE = GemmProblem(1024, 1024, 1024)
TWO = MANIFEST.replace("stages: 4}", "stages: [3, 4]}")


def test_top_adds_to_the_kernel_of_a_call_those_that_are_predicted_to_be_the_next_best() -> None:
    choice = Registry().select(SQUARE)
    first = [choice.kernel, *(kernel for kernel, _ in choice.runners_up)]
    kernels = KernelChoice(top=12).kernels(SQUARE)
    assert [*kernels[:5]] == first
    assert len({*kernels}) == 12
    assert KernelChoice().kernels(SQUARE) == kernels[:1]


def test_a_top_above_the_kernels_that_exist_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "two.yaml").write_text(TWO)
    assert len(KernelChoice(top=3, manifest=[str(path)]).kernels(SQUARE)) == 2
    assert capsys.readouterr().err == f"--top is 3, but only 2 of the kernels can run {SQUARE}\n"
    KernelChoice(top=2, manifest=[str(path)]).kernels(SQUARE)
    assert not capsys.readouterr().err


def test_all_takes_every_kernel_that_can_run_the_problem(tmp_path: Path) -> None:
    (path := tmp_path / "two.yaml").write_text(TWO)
    (other := tmp_path / "n.yaml").write_text(TWO.replace("b: {dtype: bf16, major: k}", "b: {dtype: bf16, major: mn}"))
    kernels = KernelChoice("all", manifest=[str(path), str(other)]).kernels(SQUARE)
    assert {kernel.name for kernel in kernels} == {SMALL, SMALL.replace("_s4_", "_s3_")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--kernel", "all", "--top", "2"), "--kernel selects the kernels; omit --top"),
        (("--kernel", "all", "--slices", "2"), "--slices needs a split-K kernel"),
        (("--shapes", "large"), "both --mnkl and --shapes are given"),
        (("--csv", "same", "--svg", "same"), "same is also an input or another output"),
        (("--regime", "calm"), "'calm' is not one of"),
    ],
)
def test_options_that_contradict_are_refused(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = gemmill("bench", "--mnkl", "64,64,64", *(str(tmp_path / "x") if x == "same" else x for x in arguments))
    assert done.exit_code == 2
    assert says.replace("same", "x") in " ".join(done.stderr.split())


def test_a_manifest_that_names_the_kernel_is_not_overwritten(tmp_path: Path) -> None:
    (path := tmp_path / "own.yaml").write_text(MANIFEST)
    done = gemmill("bench", "--mnkl", "64,64,64", "--kernel", path, "--csv", path)
    assert (done.exit_code, path.read_text()) == (2, MANIFEST)
    assert "is also an input or another output" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_kernels_whose_bits_no_oracle_computes_are_listed() -> None:
    child = process("bench", "--mnkl", "64,64,64", "--kernel", "all", "--verify", "bits", CUDA_VISIBLE_DEVICES="")
    _, errors = child.communicate()
    *left_out, error = errors.splitlines()
    assert left_out
    for line in left_out:
        assert re.match(r"not measured: \S*_k1stream_\S*: the oracle does not support k16/stream@64", line)
    assert error.startswith("error: there is no GPU to run kernels on: ")


@pytest.mark.slow
def test_without_a_gpu_the_error_says_what_predicts_and_no_file_is_written(tmp_path: Path) -> None:
    (suite := tmp_path / "suite.yaml").write_text(
        "name: s\nshapes:\n  - [64, 64, 64]\n  - {m: 64, n: 64, k: 64, a: s4, b: u4}\n"
    )
    table = tmp_path / "table.csv"
    child = process("bench", "--shapes", suite, "--csv", table, CUDA_VISIBLE_DEVICES="")
    _, errors = child.communicate()
    assert child.returncode == 3
    refusal, error = errors.splitlines()
    assert refusal.startswith("error: no kernel supports 64x64x64 s4*u4")
    assert error.startswith("error: there is no GPU to run kernels on: ")
    assert error.endswith("without a GPU, `gemmill select --top 5` predicts times")
    assert not table.exists()


def test_a_suite_without_any_supported_problem_is_one_error(tmp_path: Path) -> None:
    (suite := tmp_path / "suite.yaml").write_text("name: s\nshapes: [{m: 64, n: [64, 128], k: 64, a: s4, b: u4}]\n")
    done = gemmill("bench", "--shapes", suite, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["error"]["message"].count("no kernel supports") == 2


def test_a_recorded_run_as_table_csv_json_and_picture(capsys: pytest.CaptureFixture[str]) -> None:
    records = [*read_records(RECORDS / "tf32-slices-20261125T010418Z.jsonl.xz")]
    problems = {*[m.problem for m in records if m.stage == "failed"][:1], records[0].problem}
    found = [m for m in records if m.problem in problems]
    assert {m.stage for m in found} == {"failed", "screen", "final"}
    table = [*csv.DictReader(io.StringIO(as_csv(found)))]
    items = rows(found)
    assert len(table) == len(items) == len(found)
    for m, cells, item in zip(found, table, items, strict=True):
        assert GemmProblem.from_text(cells["problem"]) == m.problem
        assert (cells["kernel"], cells["us"], cells["says"]) == (m.kernel, str(m.us or ""), m.says)
        assert cells["of_roof"] == str(item["of_roof"] or "")
        assert item["roof"] in ("DRAM", "tensor cores")
        assert m.us is None or 0 < item["of_roof"] < 1.2
    drawn = ElementTree.fromstring(as_svg(found))
    texts = [text.text or "" for text in drawn.iter(f"{SVG}text")]
    bars = [bar for bar in drawn.iter(f"{SVG}rect") if bar.get("class") in ("s0", "s7")]
    finals = [m for m in found if m.stage == "final"]
    assert len(bars) == len(finals)
    assert sum(bar.get("class") == "s7" for bar in bars) == sum(m.kernel in BASELINES for m in finals)
    assert {str(m.sliced) for m in finals} <= {*texts}
    assert {m.says for m in found if m.stage == "failed"} <= {*texts}
    screened = sum(int(text.split()[0]) for text in texts if text.endswith("slower in a first short pass"))
    assert screened == sum(m.stage == "screen" for m in found)
    with pytest.raises(typer.Exit):
        report_measurements(found)
    printed = capsys.readouterr().out
    assert re.search(r"TFLOP/s +of roof +x cuBLAS +error/bound", printed)
    assert f"{items[found.index(finals[0])]['of_roof']:.0%}" in printed
