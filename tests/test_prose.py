"""The prose linter finds what it is for, and reads only prose."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.prose import LONGEST_SENTENCE, check, helps, prose

LONG = " ".join(["The", *["word"] * LONGEST_SENTENCE])


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (f"{LONG}.", f"{LONGEST_SENTENCE + 1} words in a sentence"),
        (f"Short. {LONG}.", f"{LONGEST_SENTENCE + 1} words in a sentence"),
        ("What is not aligned is copied.", "name the subject"),
        ("The kernel asks for 168 registers.", "a thing has no will"),
        ("It runs at 1.1 of cuBLAS's rate, but for tf32.", "except for"),
        ("This is a very unique kernel.", "unique"),
    ],
)
def test_private_or_long_prose_is_a_finding(text: str, finding: str) -> None:
    assert any(finding in message for _, message in check([("page:1", "Plain."), ("page:3", text)]))
    assert {where for where, _ in check([("page:1", "Plain."), ("page:3", text)])} == {"page:3"}


def test_code_and_questions_are_no_findings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# What is a tile?\n\nThe command `{LONG}` prints it, e.g. in `What is x.` form.\n\n```sh\n{LONG} anew\n```\n"
        f"\n| a | b |\n|---|---|\n| one | two |\n"
    )
    texts = [(str(line), text) for line, text in prose(page)]
    assert [text for _, text in texts][-1] == "two"
    assert [*check(texts)] == []


def test_help_of_all_commands_is_read() -> None:
    names = {name.partition(" --")[0] for name, _ in helps()}
    assert {"gemmill", "gemmill bench", "gemmill pack sign", "gemmill serve token new"} <= names
