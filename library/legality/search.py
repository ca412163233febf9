"""Search of the legal space: some fields given, the others tried until every rule is kept.

Coverage tables ask whether there is any such config, random tests draw one. Fields are tried one after the other, each
value looked ahead one step (forward checking): a rule of which one field is still open strikes out the values that it
refuses, so a contradiction shows where it arises.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias

from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import FIELD_NAMES, ConfigView, Fields, Value
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.rule import Rule
from gemmill.library.legality.rules import DOMAINS, RULES

_FIRST: tuple[str, ...] = (
    *("schedule", "arch", "a.dtype", "b.dtype", "accumulator", "promote", "tile.k", "a.scale", "b.scale", "tile.n"),
    *("a.major", "b.major", "d.dtype", "d.major", "c.dtype", "c.major", "a.align", "b.align", "c.align", "d.align"),
    *("tile.m", "cluster.m", "cluster.n", "scheduler.decomposition", "scheduler.splits", "scheduler.batching"),
    *("scheduler.raster", "scheduler.swizzle_size", "epilogue", "stages"),
)
ORDER = (*_FIRST, *(name for name in FIELD_NAMES if name not in _FIRST))
"""The fields in the order in which they are decided: what is multiplied first, and what a rule ties together nearby."""
STEPS = 20_000
"""Values tried before a search gives up."""
RESTARTS = 50
"""Times that a draw starts anew, with its share of the steps: after an unlucky start, that beats going on."""

_ABSENT: Mapping[str, Value] = {row.name: row.absent for row in TABLE.values() if row.absent is not None}


def _whole_c(name: str, plan: KernelPlan) -> str | None:
    is_absent = getattr(plan.config.outputs["c"], name) == _ABSENT[f"c.{name}"]
    return None if is_absent == (plan.config.c is None) else "C is there or not"


_C_RULES = tuple(
    Rule("c", ("c.dtype", f"c.{name}"), partial(_whole_c, name), "gemmill.library.config.fields", KernelPlan)
    for name in ("major", "align")
)

_Domains: TypeAlias = dict[str, tuple[Value, ...]]
_WHOLE: Mapping[str, tuple[Value, ...]] = {
    name: (*DOMAINS[name], _ABSENT[name]) if name in _ABSENT else DOMAINS[name] for name in ORDER
}
"""All values of each field."""

Constraints: TypeAlias = Mapping[str, Value | tuple[Value, ...]]
"""What some fields must be: one value, or one of several."""


def any_legal(constraints: Constraints, rules: Sequence[Rule] = RULES) -> Fields | None:
    """The first config that meets constraints and keeps the rules; None where there is none."""
    return _Search(_concerning(rules, constraints), None).solve(constraints)


def draw_legal(generator: random.Random, constraints: Constraints) -> Fields | None:
    """A random legal config that meets constraints; None where there is none, or the search has given up.

    Each field in turn is drawn evenly from the values that leave a legal config: formats are even, whatever number of
    tiles each has.
    """
    rules = _concerning(RULES, constraints)
    attempts = (_Search(rules, generator, STEPS // RESTARTS).solve(constraints) for _ in range(RESTARTS))
    return next((fields for fields in attempts if fields is not None), None)


def obstacle(constraints: Constraints) -> Rule | None:
    """The rule without which there would be a config that meets constraints; None where there is one already.

    Of several that forbid it, the first that suffices; where no single one does, the first of those that together do.
    """
    fixed = {name: value for name, value in constraints.items() if not isinstance(value, tuple)}
    for rule in RULES:
        if all(name in fixed for name in rule.fields) and not rule.allows(ConfigView(fixed)):
            return rule
    search = _Search(_concerning(RULES, constraints), None)
    if search.solve(constraints) is not None:
        return None
    for rule in RULES:
        # Without one that struck out nothing, the search would go the same way.
        if (
            rule in search.refused
            and any_legal(constraints, [other for other in RULES if other is not rule]) is not None
        ):
            return rule
    for count, rule in enumerate(RULES, 1):
        if any_legal(constraints, RULES[count:]) is not None:
            return rule
    raise ValueError(f"no config has {dict(constraints)}, whatever the rules")


def _concerning(rules: Sequence[Rule], constraints: Constraints) -> Sequence[Rule]:
    """The rules that may refuse a config that meets constraints."""
    schedule = constraints.get("schedule")
    return [rule for rule in rules if rule.concerns(schedule)] if isinstance(schedule, str) else rules


@lru_cache(1 << 18)
def _allowed(rule: Rule, name: str, values: tuple[Value | None, ...]) -> frozenset[Value]:
    """The values of a field that a rule allows beside those of its other fields: one search after the other asks."""
    fields = {other: value for other, value in zip(rule.fields, values, strict=True) if value is not None}
    config, allowed = ConfigView(fields), []
    for value in _WHOLE[name]:
        fields[name] = value
        if rule.allows(config):
            allowed.append(value)
    return frozenset(allowed)


class _Search:
    """One search."""

    def __init__(self, rules: Sequence[Rule], generator: random.Random | None, steps: int = STEPS) -> None:
        self._generator = generator
        self._steps = steps
        self._contradicted = dict.fromkeys(ORDER, 0)
        self._rules_of: dict[str, list[tuple[Rule, frozenset[str]]]] = {name: [] for name in ORDER}
        self._domains: _Domains = dict(_WHOLE)
        self.refused: set[Rule] = set()
        """The rules that have struck out anything."""
        for rule in (*_C_RULES, *rules):
            names = frozenset(rule.fields)
            for name in names:
                self._rules_of[name].append((rule, names))
            if len(names) == 1:
                self._strike(rule, name, {}, self._domains)

    def solve(self, constraints: Constraints) -> Fields | None:
        """A config that meets constraints, in the order of the names; None if there is none or it takes too long."""
        decided: dict[str, Value] = {}
        domains = dict(self._domains)
        fixed = {name: value for name, value in constraints.items() if not isinstance(value, tuple)}
        for name, values in constraints.items():
            if isinstance(values, tuple):
                domains[name] = tuple(value for value in domains[name] if value in values)
        for name, value in fixed.items():
            decided[name] = value
            narrowed = self._narrowed(decided, domains, name)
            if narrowed is None:
                return None
            domains = narrowed
        if not self._extend(decided, domains, [name for name in ORDER if name not in fixed]):
            return None
        return {name: decided[name] for name in FIELD_NAMES}

    def _extend(self, decided: dict[str, Value], domains: _Domains, names: Sequence[str]) -> bool:
        if not names:
            return True
        # What contradictions were about first, so that the next one shows before anything else is tried.
        name = names[0] if self._generator else max(names, key=self._contradicted.__getitem__)
        rest = [other for other in names if other != name]
        for value in self._ordered(name, domains[name]):
            self._steps -= 1
            if self._steps < 0:
                break
            decided[name] = value
            narrowed = self._narrowed(decided, domains, name)
            if narrowed is not None and self._extend(decided, narrowed, rest):
                return True
            del decided[name]
        return False

    def _ordered(self, name: str, values: tuple[Value, ...]) -> Sequence[Value]:
        if self._generator is None:
            return values
        shuffled = self._generator.sample(values, len(values))
        if name == "c.dtype" and self._generator.random() < 0.5:  # or one in a dozen would do without C
            shuffled.sort(key=lambda value: value != "none")
        return shuffled

    def _narrowed(self, decided: Fields, domains: _Domains, name: str) -> _Domains | None:
        """The domains without what a rule refuses now that ``name`` is decided; None where nothing is left of one."""
        narrowed = dict(domains)
        for rule, names in self._rules_of[name]:
            undecided = names.difference(decided)
            if len(undecided) > 1:
                continue
            if undecided:
                (other,) = undecided
                self._strike(rule, other, decided, narrowed)
                possible = bool(narrowed[other])
            elif not (possible := rule.allows(ConfigView(decided))):
                self.refused.add(rule)
            if not possible:
                for other in names:
                    self._contradicted[other] += 1
                return None
        return narrowed

    def _strike(self, rule: Rule, name: str, decided: Fields, domains: _Domains) -> None:
        """Strikes out the values that a rule refuses of its last undecided field."""
        allowed = _allowed(rule, name, tuple(map(decided.get, rule.fields)))
        if not allowed.issuperset(domains[name]):
            self.refused.add(rule)
            domains[name] = tuple(value for value in domains[name] if value in allowed)
