"""Links of the pages lead to files and headings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases.pages import DOCUMENTS, name


def anchors(page: Path) -> set[str]:
    """What headings are linked by, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            wrong.append(target)
    assert not wrong
