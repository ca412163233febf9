"""The page of terms leads to what it says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_term_is_where_the_page_says() -> None:
    page = (ROOT / "docs" / "terms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| `([^`]+)` \| `([^`]+)` \|$", page, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?!term|-)", page, re.MULTILINE)) > 30
    wrong = [(file, words) for file, words in rows if words not in (ROOT / file).read_text(encoding="utf-8")]
    assert not wrong
