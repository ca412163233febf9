"""The house in order: files and functions that fit a screen or few, folders that one look takes in, the field's words.

What is larger, or has a replaced word, as of today stands in an allowlist with its number. A list may only shrink: what
has become better is taken out of it or lowered. ``python tests/test_house.py`` prints the lists as they would be.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("library", "emitters", "runtime", "profiler", "src/gemmill/cli", "benchmarks")
"""Folders of code; what else is in src/gemmill links to them."""

JARGON: Mapping[str, str] = {
    r"\bNeed\b": "WorkspaceSize",
    r"\bExchange\b": "Workspace",
    r"\bCrew\b|\bcrews?\b": "worker pool",
    r"\bhir(e|ed|es|ing)\b": "start",
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
    r"\bblocks? of (a|the) cluster\b|\bcluster blocks?\b": "CTAs of a cluster",
    r"\b(threads|registers|shared memory) (a|of a|of the) block\b": "CTA",
    r"(?<!--)\bceilings?\b|\bCeilings?\b": "peak rates (roofline)",
    r"\bgrown\b|\bGROWN_": "trained (decision tree)",
}
"""Identifiers and phrases that were replaced, as regular expressions, and the term to use instead."""

# The allowlists: each entry is the number of today.
FILES: Mapping[str, int] = {}
"""Lines of Python files over 400 and headers over 350."""
FUNCTIONS: Mapping[str, int] = {
    "benchmarks/skinny.py::main": 62,
    "emitters/epilogue/text.py::epilogue_text": 87,
    "src/gemmill/cli/commands/packs.py::make": 66,
}
"""Lines of functions over 60."""
FOLDERS: Mapping[str, int] = {}
"""Code files of folders with more than a dozen."""
WORDS: Mapping[str, int] = {}
"""How often expressions of :data:`JARGON` are found in all."""

MOST_LINES: Mapping[str, int] = {".py": 400, ".cuh": 350}
MOST_LINES_OF_A_FUNCTION = 60
MOST_FILES_OF_A_FOLDER = 12


def code() -> list[Path]:
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in MOST_LINES)


def texts() -> list[Path]:
    """Code, tests and pages of docs; measurements and what was tried are told in the words of their day."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = [*code(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "manifests").rglob("*.yaml"), *pages]
    return sorted(path for path in found if path != Path(__file__).resolve() and "performance" not in str(path))


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


def large_files() -> dict[str, int]:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code()}
    return {name(path): count for path, count in lines.items() if count > MOST_LINES[path.suffix]}


def large_functions() -> dict[str, int]:
    return {
        f"{name(path)}::{function}": lines
        for path in code()
        if path.suffix == ".py"
        for function, lines in functions(ast.parse(path.read_text(encoding="utf-8")))
        if lines > MOST_LINES_OF_A_FUNCTION
    }


def large_folders() -> dict[str, int]:
    files = Counter(name(path.parent) for path in code() if path.name != "__init__.py")
    return {folder: count for folder, count in files.items() if count > MOST_FILES_OF_A_FOLDER}


@cache
def contents() -> dict[str, str]:
    return {name(path): path.read_text(encoding="utf-8") for path in texts()}


def replaced(pattern: str) -> dict[str, int]:
    """How often each file has what an expression of :data:`JARGON` finds."""
    return {path: len(hits) for path, text in contents().items() if (hits := re.findall(pattern, text))}


def differences(found: Mapping[str, int], allowed: Mapping[str, int], most: object) -> list[str]:
    """What is larger than it may be, and entries of an allowlist that are larger than what they are for."""
    worse = [
        f"{what}: {count}; at most {allowed.get(what, most)}"
        for what, count in found.items()
        if count > allowed.get(what, 0)
    ]
    better = [
        f"{what}: {found.get(what, 'none')} now; lower its entry of {count}, or remove it"
        for what, count in allowed.items()
        if count > found.get(what, 0)
    ]
    return worse + better


def test_files_are_short() -> None:
    assert not differences(large_files(), FILES, MOST_LINES)


def test_functions_are_short() -> None:
    assert not differences(large_functions(), FUNCTIONS, MOST_LINES_OF_A_FUNCTION)


def test_folders_are_small() -> None:
    assert not differences(large_folders(), FOLDERS, MOST_FILES_OF_A_FOLDER)


@pytest.mark.parametrize("pattern", JARGON)
def test_replaced_words_are_gone(pattern: str) -> None:
    found = replaced(pattern)
    wrong = differences({pattern: sum(found.values())}, {pattern: WORDS.get(pattern, 0)}, 0)
    assert not wrong, f"write {JARGON[pattern]} in {found}"


if __name__ == "__main__":
    for title, found in (
        ("FILES", large_files()),
        ("FUNCTIONS", large_functions()),
        ("FOLDERS", large_folders()),
        ("WORDS", {pattern: count for pattern in JARGON if (count := sum(replaced(pattern).values()))}),
    ):
        print(f"{title}: Mapping[str, int] = {found!r}")
