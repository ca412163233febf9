"""Generates the docs page that lists every rule.

``python -m gemmill.library.legality.rules_page`` writes ``docs/rules.md``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from pathlib import Path

from gemmill.library.families.families import FAMILIES
from gemmill.library.legality.rule import Rule
from gemmill.library.legality.rules import RULES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
_HEAD = """# Rules

This page is for authors of kernel sets. It lists every rule that a legal config meets, with its source.
`gemmill explain` reports the rules that a config breaks and the nearest legal change; manifests skip configs that break
a rule. The rules are defined in `library/legality/rules.py` and `library/families/`;
`python -m gemmill.library.legality.rules_page` writes this page.
"""


def statement(rule: Rule) -> str:
    """The text of a rule: what legal configs meet, in a sentence."""
    check = rule.check
    while isinstance(check, functools.partial):
        check = check.func
    return " ".join(inspect.getdoc(check).split()) if inspect.getdoc(check) else ""  # type: ignore[union-attr]


def markdown() -> str:
    """What ``docs/rules.md`` must hold."""
    parts = [_HEAD, "## All kernels", *_table(rule for rule in RULES if rule.family is None)]
    for name in FAMILIES:
        parts += [f"## {name}", *_table(rule for rule in RULES if rule.family == name)]
    return "\n".join(parts)


def _table(rules: Iterable[Rule]) -> list[str]:
    lines = ["", "| rule | legal configs | reads | source |", "|---|---|---|---|"]
    for rule in rules:
        fields = ", ".join(f"`{name}`" for name in rule.fields)
        lines.append(f"| `{rule.id}` | {statement(rule)} | {fields} | {rule.source} |")
    return [*lines, ""]


if __name__ == "__main__":
    DOCS.write_text(markdown(), encoding="utf-8")
