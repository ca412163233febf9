"""Families and K decompositions are whole: what depends on which it is, they answer themselves, room by room."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gemmill
from gemmill.emitters import emit
from gemmill.library.anatomy.anatomy import ANATOMIES
from gemmill.library.anatomy.panels import K_IN_WORDS
from gemmill.library.config.domains import WORDS
from gemmill.library.config.fields import ConfigView
from gemmill.library.config.model import FAMILIES
from gemmill.library.decompositions.decomposition import DECOMPOSITIONS
from gemmill.library.families.families import FAMILIES as LIBRARY
from gemmill.library.families.families import new_plan
from gemmill.runtime.select.cost import families as cost_families
from gemmill.runtime.select.cost.decompositions import COSTS

PACKAGE = Path(gemmill.__file__).parent
OWN = (
    *("library/families", "library/decompositions", "library/anatomy/anatomy.py"),
    "emitters/k_decomposition.py",
    *("emitters/direct_kernels.py", "emitters/wgmma_kernels.py", "emitters/wgmma_atom.py"),
    *("runtime/select/cost/families", "runtime/select/cost/decompositions.py"),
)
"""Where families and decompositions say what they are."""
WORDS_OF: Mapping[str, frozenset[str]] = {
    "family": frozenset(LIBRARY),
    "schedule": frozenset(WORDS["schedule"]),
    "decomposition": frozenset(DECOMPOSITIONS),
}
"""The words of what is compared, by a part of the names of variables, attributes and keys."""


def compared(tree: ast.AST) -> Iterator[ast.Compare | ast.Match]:
    """Comparisons of a family, schedule or decomposition with one of their words, and matches on one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.Match):
            text = ast.unparse(node)
            words = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            if any(words & own and name in text for name, own in WORDS_OF.items()):
                yield node


@pytest.mark.parametrize("layer", ["library", "emitters", "runtime", "profiler", "cli"])
def test_no_other_room_asks_which_it_is(layer: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno if isinstance(node, ast.Compare) else ''}: {ast.unparse(node)[:80]}"
        for path in sorted((PACKAGE / layer).rglob("*.py"))
        if not path.relative_to(PACKAGE).as_posix().startswith(OWN)
        for node in compared(ast.parse(path.read_text()))
    ]
    assert not found


def test_every_room_knows_all_of_them() -> None:
    assert {*LIBRARY} == {*FAMILIES.values()} == {*emit._EMITTERS} == {*cost_families.FAMILIES} == {*ANATOMIES}
    assert {*COSTS} == {*K_IN_WORDS} == {*DECOMPOSITIONS} == {*WORDS["scheduler.decomposition"]}
    for schedule, family in FAMILIES.items():
        assert {*new_plan(ConfigView({"schedule": schedule})).decompositions} <= {*DECOMPOSITIONS}
        assert {*LIBRARY[family].plan.batchings} <= {*WORDS["scheduler.batching"]}
