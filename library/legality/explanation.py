"""A config in words: its fields with their meaning, the resources that it needs, and the rules that it breaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.config.field_table import GROUPS, Row
from gemmill.library.config.fields import Fields, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.families.families import plan_of
from gemmill.library.legality.rules import Verdict


def explanation(config: GemmConfig, broken: Sequence[Verdict], slices: int = 0) -> str:
    """The text that `explain` prints for a config and the rules that it breaks; its arithmetic is that of a launch with
    a number of slices of K."""
    lines = [kernel_name(config), *(f"  {group}: {words}" for group, words in fields_in_words(config).items())]
    if not broken:
        arithmetic = arithmetic_of(config, slices)
        needs = (f"  {what}: {value:,}" for what, value in resources_of(config).items())
        return "\n".join([*lines, f"  arithmetic: {arithmetic} ({arithmetic.in_words()})", "legal", *needs])
    fields = fields_of(config)
    for verdict in broken:
        values = ", ".join(f"{field} = {fields[field]}" for field in verdict.fields)
        fix = ", ".join(f"{field} = {value}" for field, value in (verdict.fix or {}).items()) or "none found"
        lines += [
            f"rejected by {verdict.rule}: {verdict.message}",
            f"  with: {values}",
            f"  nearest legal change: {fix}",
        ]
    return "\n".join(lines)


def fields_in_words(config: GemmConfig) -> dict[str, str]:
    """The fields of each group, with the meaning of their values; without groups and fields at their default."""
    fields = fields_of(config)
    words = {rows[0].group: _group_in_words(rows, fields) for rows in GROUPS.values()}
    return {group: text for group, text in words.items() if text}


def _group_in_words(rows: Sequence[Row], fields: Fields) -> str:
    leaves = []
    for row in rows:
        value = fields[row.name]
        if value == row.absent:
            return "none"
        if not (row.field.unsaid and value == row.default):
            meaning = row.field.means.get(str(value))
            leaves.append(" ".join(filter(None, (row.leaf, str(value), meaning and f"({meaning})"))))
    return ", ".join(leaves)


def resources_of(config: GemmConfig) -> Mapping[str, int]:
    """The SM resources that a legal config needs; each name contains the unit."""
    return {**plan_of(config).resources, "bytes of shared memory a CTA can have": config.target.shared_bytes}
