"""Check the prose of README, docs and help texts: ``python -m tests.prose [PAGE ...]``, which `make lint` runs.

It applies proselint's checks, a vocabulary of this project, and a limit on the length of sentences. Code, addresses and
what command lines print are no prose, so the checks skip them.
"""

from __future__ import annotations

import inspect
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import typer
from markdown_it import MarkdownIt
from proselint.checks import __register__
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile
from tests.cases.pages import DOCUMENTS, ROOT

from gemmill.cli import application

LONGEST_SENTENCE = 35
"""Words. Most sentences should have 20 or fewer."""
_VERBS = "ask|asks|know|knows|speak|speaks|tell|tells|want|wants|wish|wishes|hear|hears|learn of|learns of"
_THINGS = "kernel|config|plan|selector|store|cache|table|tree|network|problem|page|file|record|manifest|field|rule|tile"
VOCABULARY: tuple[tuple[str, str], ...] = (
    (rf"\b(?:{_THINGS})s? (?:{_VERBS})\b", "a thing has no will: say what a person or a program does with it"),
    (r"(?:^|[.!:] )(?-i:What|Who|Whoever|Whatever) [^.?!]*[.!](?= |$)", "name the subject: '... is' after What or Who"),
    (r"\bto be had\b|\bis had\b|\bhas it (?:quiet|so)\b", "say who does what"),
    (r"\bfor (?:you|the user|the caller|users|callers) to (?:say|choose|decide|give)\b", "you choose"),
    (r"\bas (?:it|they) needs?\b", "as needed"),
    (r"\bon (?:its|their) way\b", "say when: before the MMA, during the copy"),
    (r"\bin vain\b", "without gain"),
    (r"\bbut for\b", "except for"),
    (r"\b(?:all|nothing|none|anything) but\b", "except, only"),
    (r"\banew\b", "again, new"),
    (r"\bin the mean\b", "on average; the geometric mean is"),
    (r"\bat work\b", "in use, running"),
    (r"\bbeside (?:others|cuBLAS|cuBLASLt|PyTorch|DeepGEMM)\b", "compared with"),
    (r"\bof (?:cuBLAS|cuBLASLt|PyTorch|DeepGEMM|CUTLASS|Triton)'s\b(?! \w)", "relative to"),
    (r"\bof (?:ours|theirs|yours)\b", "our, their, your"),
    (r"\b\w+ of (?:its|their|your|our|his) own\b", "its own ..."),
    (r"\bmills?\b(?!-)", "generates"),
    (r"\bproblems? (?:goes|go) to\b", "gemmill selects"),
    (r"\balike\b", "compatible"),
    (r"\bpromoted\b", "with two-level accumulation"),
    (r"\banysplit\b", "runtime split-K"),
    (r"\b([a-z]+) \1\b", "one of the two words"),
    (r"\bseldom\b|\bthrice\b|\blest\b|\bere\b", "rarely, three times, so that ... not, before"),
    (r"\bwhosoever\b|\bwhoever\b|\bwherefore\b|\bthereof\b|\bwhereof\b", "plain English"),
    (r"\bnot served\b|\bunserved\b|\bproblems? (?:is|are) served\b", "not supported, supported"),
)
"""What the project's pages do not write, and what to write instead."""

_SENTENCE = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z`\"'(\[])")
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|vs|cf|al)\.")


class Finding(NamedTuple):
    """What is wrong with a line."""

    where: str
    message: str


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Paragraphs, headings, items and cells of a page, each with the line it begins at; code is replaced by a word."""
    line = 0
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else line
        if token.type == "inline":
            yield line, "".join(_text(child) for child in token.children or ())


def _text(token: Any) -> str:
    if token.type == "code_inline":
        return "`code`"
    return " " if token.type in ("softbreak", "hardbreak") else "" if token.type == "html_inline" else token.content


def helps() -> Iterator[tuple[str, str]]:
    """The help texts of commands and options, each with the name of its command."""
    yield from _helps(typer.main.get_command(application()), "gemmill")


def _helps(command: Any, name: str) -> Iterator[tuple[str, str]]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph and "\b" not in paragraph:
            yield name, re.sub(r"`[^`]*`", "`code`", " ".join(paragraph.split()))
    for parameter in command.params:
        if text := getattr(parameter, "help", None):
            yield f"{name} {parameter.opts[0]}", re.sub(r"`[^`]*`", "`code`", " ".join(text.split()))
    for sub, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _helps(inner, f"{name} {sub}")


def check(texts: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Everything that is wrong with some paragraphs, each after the place it is from."""
    for where, text in texts:
        for sentence in _SENTENCE.split(_ABBREVIATIONS.sub(r"\1", text)):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST_SENTENCE:
                yield Finding(where, f"{len(words)} words in a sentence: {' '.join(words[:8])} ...")
        for pattern, instead in VOCABULARY:
            for match in re.finditer(pattern, text, re.IGNORECASE):
                yield Finding(where, f"'{match[0].strip()[:60]}': {instead}")
    whole = "\n\n".join(text for _, text in texts)  # proselint takes as long for a paragraph as for a page
    starts = list(accumulate((len(text) + 2 for _, text in texts), initial=0))
    for result in LintFile("prose", whole).lint(PROSELINT) if whole.strip() else ():
        start, end = (position - 1 for position in result.check_result.span)
        yield Finding(texts[bisect_right(starts, start) - 1][0], f"'{whole[start:end]}': {result.check_result.message}")


def _proselint() -> Config:
    CheckRegistry().register_many(__register__)
    skipped = dict.fromkeys(SKIPPED, False)  # first, since the first prefix of a check decides whether it runs
    return {"max_errors": 1000, "checks": skipped | DEFAULT["checks"] | skipped}


SKIPPED = ("dates_times", "lexical_illusions", "misc.phrasal_adjectives", "needless_variants", "typography")
"""Checks of proselint that take figures, H100's and subtile for faults, or repeat what ruff checks."""
PROSELINT = _proselint()


def main(pages: list[str]) -> int:
    """Print findings as ``file:line: message``; 1 where there are any."""
    paths = [Path(page).resolve() for page in pages] or DOCUMENTS
    groups = [[(f"{path.relative_to(ROOT)}:{line}", text) for line, text in prose(path)] for path in paths]
    findings = [finding for texts in (*groups, [] if pages else list(helps())) for finding in check(texts)]
    sys.stdout.writelines(f"{where}: {message}\n" for where, message in findings)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
