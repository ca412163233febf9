"""Tables of every rule, from which the docs page ``rules`` is generated (``docs/conf.py``)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator

from gemmill.library.families.families import FAMILIES
from gemmill.library.legality.rule import Rule
from gemmill.library.legality.rules import RULES


def statement(rule: Rule) -> str:
    """The text of a rule: what legal configs meet, in a sentence."""
    check = rule.check
    while isinstance(check, functools.partial):
        check = check.func
    return " ".join(inspect.getdoc(check).split()) if inspect.getdoc(check) else ""  # type: ignore[union-attr]


def rule_tables() -> Iterator[str]:
    """The lines of the tables: rules of all kernels, then those of each family, under a heading each."""
    yield from ("## All kernels", *_table(rule for rule in RULES if rule.family is None))
    for name in FAMILIES:
        yield from (f"## {name}", *_table(rule for rule in RULES if rule.family == name))


def _table(rules: Iterable[Rule]) -> Iterator[str]:
    yield from ("", "| rule | legal configs | reads | source |", "|---|---|---|---|")
    for rule in rules:
        fields = ", ".join(f"`{name}`" for name in rule.fields)
        yield f"| `{rule.id}` | {statement(rule)} | {fields} | {rule.source} |"
    yield ""
