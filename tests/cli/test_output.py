"""What commands print: nothing that a terminal, a spreadsheet or a parser takes for more than text."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cases.manifests import ONE
from tests.cli.test_cli import REFUSED, SMALL, gemmill, ok
from tests.library.test_records import MEASURED

from gemmill.cli import output
from gemmill.cli.commands.problems import report_measurements
from gemmill.cli.output import MEANS, Status
from gemmill.profiler.analysis.report import _cell

DOCS = Path(__file__).parents[2] / "docs" / "output.md"

ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\r"


@pytest.mark.parametrize(
    "text",
    [
        ONE + 'presets:\n  "\\e]0;owned\\a\\e[31m": {where: tile.m == 64}\n',
        ONE + '"\\e]0;owned\\a\\e[31m": 1\n',
        ONE.replace("pingpong", '"\\e]0;owned\\a\\e[31m"'),
    ],
    ids=["preset", "key", "value"],
)
def test_files_of_others_control_no_terminal(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    said = gemmill("validate", path).output
    assert "x1b]0;owned" in said
    assert "\x1b" not in said
    assert "\x07" not in said


@pytest.mark.parametrize(
    "arguments", [("list", ESCAPES), ("select", "--mnkl", ESCAPES), (ESCAPES,), ("list", f"--{ESCAPES}")]
)
def test_arguments_control_no_terminal(arguments: tuple[str, ...]) -> None:
    said = gemmill(*arguments).output
    assert "owned" in said
    assert not set(said) & set(ESCAPES.replace("owned", "")) - set("[]0;31m2J")


def test_tables_show_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name",), [(ESCAPES,)], title=ESCAPES)
    assert "\\x1b]0;owned\\x07" in capsys.readouterr().out
    assert output.printable("a\tb\nc \u00e9") == "a\tb\nc \u00e9"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_json_has_no_words_of_its_own(value: float, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json("test", {"us": [value, 1.5], "row": (value,)})

    def refuse(word: str) -> Any:
        raise AssertionError(word)

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "schema": "gemmill.test/1",
        "us": [None, 1.5],
        "row": [None],
    }


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert _cell(text) == f"'{text}"
    assert _cell("1x1") == "1x1"
    assert _cell(-1.5) == -1.5


TABLE = """
from gemmill.cli.output import print_table
row = ("64x64x64 bf16 tn", "k" * 70, 1.5, "a word\\nand some more of them")
print_table(("problem", "kernel", ">us", "says"), [row])
"""


def test_a_table_in_a_pipe_has_a_line_for_each_row() -> None:
    piped = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, text=True, check=True).stdout
    assert piped.splitlines() == [
        f"problem           {'kernel':70}   us  says",
        f"64x64x64 bf16 tn  {'k' * 70}  1.5  a word and some more of them",
    ]


def table_in_a_terminal(columns: int) -> list[str]:
    """The lines of the table in a terminal of this width."""
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "dumb", "COLUMNS": str(columns), "LINES": "25"}
    subprocess.run([sys.executable, "-c", TABLE], stdout=theirs, check=True, env=environment)
    os.close(theirs)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    os.close(ours)
    return lines


def test_a_table_in_a_narrow_terminal_keeps_names_whole() -> None:
    """Cells with spaces wrap, so that the row fits."""
    lines = table_in_a_terminal(100)
    assert sum("k" * 70 in line for line in lines) == 1
    assert max(map(len, lines)) <= 100
    words = {"64x64x64", "bf16", "tn", "k" * 70, "1.5", "a", "word", "and", "some", "more", "of", "them"}
    assert {*" ".join(lines[1:]).split()} == words


def test_a_name_too_long_for_the_terminal_gets_its_own_line() -> None:
    assert table_in_a_terminal(80) == [
        "kernel",
        "  problem            us  says",
        "k" * 70,
        "  64x64x64 bf16 tn  1.5  a word and some more of them",
    ]


EXITS = [
    (("explain", SMALL), Status.OK, None),
    (("explain", REFUSED), Status.WRONG, None),
    (("report", "{empty}", "--csv", "{folder}/o.csv"), Status.WRONG, "record"),
    (("pack", "inspect", "{empty}"), Status.WRONG, "pack"),
    (("select", "--mnkl", "1,2"), Status.USAGE, "usage"),
    (("no-such-command",), Status.USAGE, "usage"),
    (("train", "{empty}"), Status.USAGE, "usage"),
]


@pytest.mark.parametrize(("arguments", "status", "code"), EXITS, ids=lambda value: str(value)[:40])
def test_whatever_happens_there_is_one_json_document(
    tmp_path: Path, arguments: tuple[str, ...], status: Status, code: str | None
) -> None:
    (empty := tmp_path / "empty.jsonl").touch()
    done = gemmill(*(argument.format(empty=empty, folder=tmp_path) for argument in arguments), "--json")
    assert done.exit_code == status
    document = json.loads(done.stdout)
    assert re.fullmatch(r"gemmill\.[a-z.]+/\d+", document["schema"])
    assert document.get("error", {}).get("code") == code
    assert (document["schema"] == "gemmill.error/1") == (code is not None)
    if code:
        assert done.stderr.strip(), "people read it there"


def test_a_setting_that_means_nothing_is_told_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_JOBS", "none")
    done = gemmill("explain", SMALL, "--json")
    assert done.exit_code == Status.USAGE
    assert json.loads(done.stdout)["error"]["code"] == "setting"


def test_an_error_behind_the_document_is_no_second_one(capsys: pytest.CaptureFixture[str]) -> None:
    with output.answer_as_json():
        output.print_json("test", [1])
        output.print_error("record", "some were measured elsewhere")
    assert json.loads(capsys.readouterr().out) == {"schema": "gemmill.test/1", "items": [1]}


def test_exit_codes_are_documented_and_stay() -> None:
    assert {status.name: status.value for status in Status} == {
        "OK": 0,
        "WRONG": 1,
        "USAGE": 2,
        "MISSING": 3,
        "HUNG_UP": 129,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
    documented = re.findall(r"^\| (\d+) \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    assert documented == [(str(int(status)), means) for status, means in MEANS.items()]
    said = " ".join(ok("--help").split())
    assert all(f"{status} {means}" in said for status, means in MEANS.items())


def test_every_form_of_json_is_documented() -> None:
    commands = Path(output.__file__).parent.rglob("*.py")
    forms = {
        form
        for file in commands
        for form in re.findall(r'print_(?:json|result|faults)\(\s*"([^"]+)"', file.read_text())
    }
    assert forms | {"error"} == set(re.findall(r"`gemmill\.([a-z.]+)/1`", DOCS.read_text()))


@pytest.mark.parametrize(
    ("message", "where", "hint"),
    [
        ("m.yaml:3:7: tile: 12 is no tile", "m.yaml:3:7", None),
        ("k.pack: a; b of it; name another", None, "name another"),
        ("a is 'bf17', did you mean bf16? it must be bf16 or f16", None, "did you mean bf16? it must be bf16 or f16"),
        ("r.jsonl: no measurement: run gemmill profile", None, "run gemmill profile"),
        ("needs Jinja (none); `pip install 'jinja2>=3.1'`", None, "`pip install 'jinja2>=3.1'`"),
    ],
)
def test_an_error_says_where_and_what_to_do(
    message: str, where: str | None, hint: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with output.answer_as_json():
        output.print_error("record", message)
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"code": "record", "message": message, "where": where, "hint": hint}


def test_times_have_quartiles_and_rounds_and_a_ratio_only_beside_cublas(capsys: pytest.CaptureFixture[str]) -> None:
    brief = MEASURED.model_copy(update={"stage": "screen", "samples": 4, "low_us": None, "high_us": None})
    elsewhere = MEASURED.model_copy(update={"gpu": "NVIDIA H100 80GB HBM3"})
    report_measurements([MEASURED, brief, elsewhere])
    told = capsys.readouterr()
    title, head, first, second, other, *_ = told.out.splitlines()
    assert title == "NVIDIA H200: medians over rounds, regime burst"
    assert head.split() == [
        *("problem", "kernel", "arithmetic", "us", "quartiles", "rounds", "TFLOP/s", "of", "roof"),
        *("x", "cuBLAS", "error/bound"),
    ]
    measured = [str(MEASURED.problem), MEASURED.kernel, "k16"]
    assert re.split("  +", first) == [*measured, "200.0", "199.0-202.0", "32", "687", "78%", "0.95", "0.25"]
    assert re.split("  +", second) == [*measured, "200.0", "4", "687", "78%", "0.25"]
    assert other.startswith("NVIDIA H100"), "figures of another GPU are in a table of their own"
    assert "kernels without a ratio were timed only in the first short pass" in told.err
