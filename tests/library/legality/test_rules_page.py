"""The page of rules: what the rules themselves say."""

from __future__ import annotations

from gemmill.library.legality.rules import RULES
from gemmill.library.legality.rules_page import rule_tables, statement


def test_the_page_has_a_row_for_every_rule() -> None:
    rows = [line.split(" | ")[0] for line in rule_tables() if line.startswith("| `")]
    assert sorted(rows) == sorted(f"| `{rule.id}`" for rule in RULES)


def test_every_rule_says_in_a_sentence_what_legal_configs_obey() -> None:
    assert [rule.id for rule in RULES if not statement(rule).endswith(".")] == []
