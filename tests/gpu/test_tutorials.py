"""README and tutorials do what they say, from start to end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.pages import ROOT, TUTORIALS, run_page

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page", [ROOT / "README.md", *TUTORIALS], ids=lambda page: page.stem)
def test_a_page_works_from_start_to_end(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path, gpu=True)
