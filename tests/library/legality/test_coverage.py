"""The coverage tables: true to the rules, and complete."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from tests.cli.test_cli import gemmill, ok

from gemmill.library.config.model import FAMILIES
from gemmill.library.families.wgmma.operand_rules import ACCUMULATORS
from gemmill.library.legality.coverage import OK, Table, tables
from gemmill.library.legality.rules import RULES
from gemmill.library.legality.search import any_legal


@pytest.fixture(scope="module")
def views() -> dict[str, Table]:
    return {table.title: table for table in tables()}


def test_every_cell_is_covered_or_names_a_rule(views: dict[str, Table]) -> None:
    rules = {rule.id for rule in RULES}
    for table in views.values():
        for row in table.rows:
            assert set(row.cells) == set(FAMILIES)
            assert {cell for cell in row.cells.values() if cell != OK} <= rules


def test_every_pairing_of_wgmma_has_its_rows(views: dict[str, Table]) -> None:
    covered = {
        (row.given["a.dtype"], row.given["b.dtype"], row.given["accumulator"])
        for row in views["Operands"].rows
        if OK in (row.cells["cooperative"], row.cells["pingpong"])
    }
    assert covered >= {(*pair, accumulator) for pair, sums in ACCUMULATORS.items() for accumulator in sums}


def test_cells_say_what_the_rules_say(views: dict[str, Table]) -> None:
    # A hole has no legal config whatever else is chosen, though a search in another order looks for one.
    for table in views.values():
        for row, schedule in itertools.product(table.rows[::7], FAMILIES):
            exact = {**row.given, "schedule": schedule}
            if row.cells[schedule] != OK:
                assert any_legal(dict(reversed(exact.items()))) is None


def test_equal_rows_are_merged_and_none_is_lost(views: dict[str, Table]) -> None:
    for table in views.values():
        text = table.merged()
        assert len(text) <= len(table.rows)
        assert len({row[: len(table.columns)] for row in text}) == len(text)
        cells = {tuple(row.cells.values()) for row in table.rows}
        assert {row[len(table.columns) :] for row in text} == cells


def test_the_command_line_names_a_rule_for_every_hole() -> None:
    views = json.loads(ok("list", "--coverage", "--json"))
    tf32 = [row for row in views["Operands"] if row["a.dtype"] == "tf32"]
    assert {(row["a.major"], row["schedules"]["cooperative"]) for row in tf32} >= {("k", "ok"), ("any", "tma-majors")}
    assert "mma-majors" in ok("list", "--coverage")
    assert gemmill("list", "bf16", "--coverage").exit_code == 2


@pytest.mark.slow
def test_the_tables_fold_to_the_width_of_a_terminal() -> None:
    ours, theirs = os.openpty()
    environment = os.environ | {"TERM": "dumb", "COLUMNS": "80", "LINES": "25"}
    with subprocess.Popen([sys.executable, "-m", "gemmill", "list", "--coverage"], stdout=theirs, env=environment):
        os.close(theirs)
        text = b""
        with suppress(OSError):  # Linux raises it at the end of a terminal
            while part := os.read(ours, 1 << 16):
                text += part
    os.close(ours)
    assert "supported by" in text.decode()
    assert max(map(len, text.decode().splitlines())) <= 80
