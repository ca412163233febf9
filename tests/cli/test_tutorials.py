"""README, tutorials and pages do what they show, as far as no GPU is needed; tests/gpu/test_tutorials.py runs all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cases.environments import environment, variables
from tests.cases.pages import DOCUMENTS, PAGES, ROOT, SHELLS, UNRUN, missing, missing_output, name, run_page

WITHOUT_GPU: Mapping[str, int] = {
    "README.md": 2,
    "docs/editing.md": 4,
    "docs/epilogues.md": 0,
    "docs/float32.md": 0,
    "docs/index.md": 0,
    "docs/jax.md": 1,
    "docs/manifests.md": 1,
    "docs/native.md": 3,
    "docs/performance/selection.md": 1,
    "docs/problems.md": 3,
    "docs/reference/api.md": 0,
    "docs/symmetric.md": 0,
    "docs/torch.md": 0,
    "docs/tuning.md": 2,
    "docs/tutorials/kernel-set.md": 3,
    "docs/tutorials/kernel.md": 4,
    "docs/tutorials/ladder.md": 4,
    "docs/tutorials/pack.md": 4,
    "docs/tutorials/service.md": 5,
    "integrations/kernels/README.md": 1,
    "integrations/vllm/README.md": 1,
}
"""How many blocks of a page are commands and programs that need none."""
EXTRAS: Mapping[str, str] = {
    "README.md": "cu13",
    "docs/jax.md": "cu13,jax",
    "docs/native.md": "cu13",
    "docs/problems.md": "cu13,onnx",
    "docs/tutorials/kernel.md": "cu13",
    "docs/tutorials/pack.md": "cu13",
    "docs/tutorials/service.md": "cu13,service",
    "integrations/kernels/README.md": "cu13",
    "integrations/vllm/README.md": "cu13",
}
"""The pages that say how gemmill is used from somewhere, and the extras that they need without a GPU. They run in an
environment that has only the wheel with these, as their reader's has."""


def of_page(page: Path) -> Any:
    heavy = name(page) in EXTRAS or WITHOUT_GPU.get(name(page), 2) > 1
    return pytest.param(page, marks=pytest.mark.heavy if heavy else pytest.mark.slow, id=name(page))


@pytest.mark.parametrize("page", [of_page(page) for page in PAGES])
def test_a_page_works_from_start_to_end(page: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if programs := missing(page):
        pytest.skip(f"needs {programs}")
    extras = EXTRAS.get(name(page))
    only = extras and variables(environment(tmp_path_factory, extras), tmp_path / ".home")
    printed = run_page(page, tmp_path, gpu=False, variables=only or None)
    assert len(printed) == WITHOUT_GPU[name(page)]
    assert missing_output(page, "".join(printed), gpu=False) == []


def test_the_landing_page_names_each_of_these_pages_with_its_extras() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| `(\S+)` \| \[[^]]+\]\(([^)#]+)", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE
    )
    ways = {f"docs/{page}": extras for extras, page in rows}
    assert {page: extras for page, extras in EXTRAS.items() if page.startswith("docs/")}.items() <= ways.items()


def test_no_block_is_passed_over() -> None:
    """What is in a language that nothing here runs is a directive of the site's, or of docs/layouts.md, whose own test
    runs it."""
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        languages = {*re.findall(r"^```(\S*)[^\n]*\n(?:[^`]|`(?!``))*^```$", text, re.MULTILINE)}
        known = {"yaml", *SHELLS, "python", "text"} | ({"console"} if name(page) == "docs/layouts.md" else set())
        assert not {word for word in languages - known if not word.startswith("{")}, page
        for of, beginning in UNRUN:
            assert of != name(page) or f"\n{beginning}" in text, f"{of} has no such block any more: {beginning}"
