"""Search for legal configs with given values of some fields.

Coverage tables test whether such a config exists; random tests draw one. The search assigns one field after another
with forward checking: a rule with one open field rules out the values that violate it, so that contradictions show
early.
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
"""The order in which the search assigns fields: operand types first, and fields that share a rule close together."""
STEPS = 20_000
"""Values that a search tries before it gives up."""
RESTARTS = 50
"""Attempts of a random draw, each with an equal share of the steps: a new start recovers from unlucky choices."""

_ABSENT: Mapping[str, Value] = {row.name: row.absent for row in TABLE.values() if row.absent is not None}


def _whole_c(name: str, plan: KernelPlan) -> str | None:
    is_absent = getattr(plan.config.outputs["c"], name) == _ABSENT[f"c.{name}"]
    return None if is_absent == (plan.config.c is None) else "the fields of C must either all be set or all be absent"


_C_RULES = tuple(
    Rule("c", ("c.dtype", f"c.{name}"), partial(_whole_c, name), "gemmill.library.config.fields", KernelPlan)
    for name in ("major", "align")
)

_Domains: TypeAlias = dict[str, tuple[Value, ...]]
_WHOLE: Mapping[str, tuple[Value, ...]] = {
    name: (*DOMAINS[name], _ABSENT[name]) if name in _ABSENT else DOMAINS[name] for name in ORDER
}
"""All values of each field, including those of an absent C."""

Constraints: TypeAlias = Mapping[str, Value | tuple[Value, ...]]
"""For some fields, the required value or a tuple of allowed values."""


def any_legal(constraints: Constraints, rules: Sequence[Rule] = RULES) -> Fields | None:
    """The first config found that meets the constraints and the rules; None if there is none."""
    return _Search(_concerning(rules, constraints), None).solve(constraints)


def draw_legal(generator: random.Random, constraints: Constraints) -> Fields | None:
    """A random legal config that meets the constraints; None if there is none or the search gives up.

    Each field is drawn uniformly from the values that still allow a legal config. All formats are therefore equally
    likely, regardless of how many tiles each has.
    """
    rules = _concerning(RULES, constraints)
    attempts = (_Search(rules, generator, STEPS // RESTARTS).solve(constraints) for _ in range(RESTARTS))
    return next((fields for fields in attempts if fields is not None), None)


def obstacle(constraints: Constraints) -> Rule | None:
    """The rule that excludes every config that meets the constraints; None if a legal config exists.

    It is the first rule whose removal alone allows a config. If there is no such rule, it is the last of the shortest
    prefix of the rules whose removal allows one.
    """
    fixed = {name: value for name, value in constraints.items() if not isinstance(value, tuple)}
    for rule in RULES:
        if all(name in fixed for name in rule.fields) and not rule.allows(ConfigView(fixed)):
            return rule
    search = _Search(_concerning(RULES, constraints), None)
    if search.solve(constraints) is not None:
        return None
    for rule in RULES:
        # Removing a rule that ruled out nothing would not change the search.
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
    """The rules that apply to configs that meet the constraints."""
    schedule = constraints.get("schedule")
    return [rule for rule in rules if rule.concerns(schedule)] if isinstance(schedule, str) else rules


@lru_cache(1 << 18)
def _allowed(rule: Rule, name: str, values: tuple[Value | None, ...]) -> frozenset[Value]:
    """The values of a field that a rule allows, given its other fields. Cached across searches."""
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
        """The rules that have ruled out at least one value."""
        for rule in (*_C_RULES, *rules):
            names = frozenset(rule.fields)
            for name in names:
                self._rules_of[name].append((rule, names))
            if len(names) == 1:
                self._strike(rule, name, {}, self._domains)

    def solve(self, constraints: Constraints) -> Fields | None:
        """A config that meets the constraints, in the order of the fields; None if none exists or the steps run out."""
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
        # Fields of earlier contradictions first, so that the next contradiction shows early.
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
        if name == "c.dtype" and self._generator.random() < 0.5:  # otherwise only one config in a dozen has no C
            shuffled.sort(key=lambda value: value != "none")
        return shuffled

    def _narrowed(self, decided: Fields, domains: _Domains, name: str) -> _Domains | None:
        """The domains without the values that rules refuse once ``name`` is decided; None if a domain becomes empty."""
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
        """Remove the values that a rule refuses from the domain of its last undecided field."""
        allowed = _allowed(rule, name, tuple(map(decided.get, rule.fields)))
        if not allowed.issuperset(domains[name]):
            self.refused.add(rule)
            domains[name] = tuple(value for value in domains[name] if value in allowed)
