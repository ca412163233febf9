"""The page of rules: what the rules themselves say."""

from __future__ import annotations

from gemmill.library.legality.rules import RULES
from gemmill.library.legality.rules_page import DOCS, markdown, statement


def test_the_page_is_what_the_rules_say() -> None:
    assert DOCS.read_text(encoding="utf-8") == markdown(), "run python -m gemmill.library.legality.rules_page"


def test_every_rule_says_in_a_sentence_what_legal_configs_obey() -> None:
    assert [rule.id for rule in RULES if not statement(rule).endswith(".")] == []
