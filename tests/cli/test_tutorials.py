"""README and tutorials do what they say, as far as no GPU is needed; tests/gpu/test_tutorials.py runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.pages import ROOT, TUTORIALS, run_page

WITHOUT_GPU = {"README": 2, "kernel": 4, "kernel-set": 3, "pack": 3, "frameworks": 0, "ladder": 5}
"""How many blocks of a page are commands and programs that need none."""


@pytest.mark.heavy
@pytest.mark.parametrize("page", [ROOT / "README.md", *TUTORIALS], ids=lambda page: page.stem)
def test_a_page_works_from_start_to_end(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path, gpu=False) == WITHOUT_GPU[page.stem]
