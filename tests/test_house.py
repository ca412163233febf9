"""Functions that a screen or two hold, and the words of the field."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = (
    *("library", "emitters", "runtime", "profiler", "src/gemmill/service", "src/gemmill/cli"),
    *("benchmarks", "examples", "integrations"),
)
"""Folders of code; what else is in src/gemmill links to them."""

JARGON: Mapping[str, str] = {
    r"\bNeed\b": "WorkspaceSize",
    r"\bExchange\b": "Workspace",
    r"\bCrew\b|\bcrews?\b": "worker pool",
    r"\b_?hir(e|ed|es|ing)\b": "start",
    r"\b_?AtOnce\b": "quick selection",
    r"\bPassed\b|\bread_passed\b": "EpilogueArguments",
    r"\bBound\b": "BoundArguments",
    r"\b_Ready\b": "prepared call",
    r"\bclass Like\b|\bLike\(|: Like\b": "TensorSignature",
    r"\bColumns\(": "FeatureTable",
    r"\bk(Together|Through|MostAhead)\b": "what it bounds, with the unit",
    r"\bwidens_a\b": "upconverts_a",
    r"\bwiden(s|ed|ing)?\b": "upconvert",
    r"\bbands?\b": "group of tiles, swizzle size",
    r"\bparts of K\b": "slices of K, split-K",
    r"\bkSlot\w+|\b(spec|launch)\.parts\b|\bPartsSpec\b|\bclass Parts\b|\bParts of K\b": "K decomposition, workspace",
    r"\bblocks? of (a|the) cluster\b|\bcluster blocks?\b": "CTAs of a cluster",
    r"\b(threads|registers|shared memory) (a|of a|of the) block\b": "CTA",
    r"\b(cluster|reduction)_blocks\b|\b(threads|vectors) of a block\b|\bblocks (sum|share) (K|slices)\b": "CTAs",
    r"(?<!--)\bceilings?\b(?!-)|\bCeilings?\b": "peak rates (roofline)",
    r"\bgrown\b|\bGROWN_": "trained (decision tree)",
}
"""Identifiers and phrases that were replaced, as regular expressions, and the term to use instead."""

SUFFIXES = (".py", ".cuh")
MOST_LINES_OF_A_FUNCTION = 60


def code() -> list[Path]:
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)


def texts() -> list[Path]:
    """Code, tests and pages of docs."""
    alone = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md")]
    pages = [*alone, *(ROOT / "docs").rglob("*.md")]
    found = [*code(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "manifests").rglob("*.yaml"), *pages]
    return sorted(path for path in found if path != Path(__file__).resolve())


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """Name and lines of every function of a tree, with its decorators and without its docstring: that of ``matmul``
    explains twenty-five keywords."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{within}{node.name}"
            if not isinstance(node, ast.ClassDef):
                first = min(node.lineno, *(decorator.lineno for decorator in node.decorator_list), node.lineno)
                doc = ast.get_docstring(node, clean=False) or ""
                yield inner, (node.end_lineno or first) - first + 1 - len(doc.splitlines())
            yield from functions(node, f"{inner}.")
        else:
            yield from functions(node, within)


def device_functions(lines: list[str]) -> Iterator[tuple[str, int]]:
    """First line and lines of every function of a header that is not closed where it is opened: formatted code closes
    it at the indentation at which it began."""
    for first, line in enumerate(lines):
        found = re.match(r"(\s*)\S.*__(?:device|global)__.*[^;}]$|(\s*)__(?:device|global)__.*[^;}]$", line)
        if found is None:
            continue
        indent = found[1] or found[2] or ""
        for count, further in enumerate(lines[first:], 1):
            if count > 1 and further.startswith(f"{indent}}}"):
                yield line.strip(), count
            if count > 1 and further and not further.startswith((f"{indent} ", "#")):
                break


def large_functions() -> dict[str, int]:
    found = {}
    for path in code():
        text = path.read_text(encoding="utf-8")
        of_file = functions(ast.parse(text)) if path.suffix == ".py" else device_functions(text.splitlines())
        found.update({f"{name(path)}::{function}": lines for function, lines in of_file})
    return {function: lines for function, lines in found.items() if lines > MOST_LINES_OF_A_FUNCTION}


@cache
def contents() -> dict[str, str]:
    return {name(path): path.read_text(encoding="utf-8") for path in texts()}


def test_the_readme_takes_five_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_functions_are_short() -> None:
    assert not large_functions()


@pytest.mark.parametrize("pattern", JARGON)
def test_replaced_words_are_gone(pattern: str) -> None:
    found = {path: len(hits) for path, text in contents().items() if (hits := re.findall(pattern, text))}
    assert not found, f"write {JARGON[pattern]}"
