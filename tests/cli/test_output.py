"""What commands print: nothing that a terminal, a spreadsheet or a parser takes for more than text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cases.manifests import ONE
from tests.cli.test_cli import gemmill

from gemmill.cli import output
from gemmill.profiler.analysis.report import _cell

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
