"""Search for legal configs with given values of some fields.

Coverage tables test whether such a config exists; random tests draw one. The search assigns one field after another
with forward checking: a rule with one open field rules out the values that violate it, so that contradictions show
early.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

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


def legal_values(names: Sequence[str], constraints: Constraints) -> Iterator[tuple[Value, ...]]:
    """Every combination of values of the named fields for which a legal config exists that meets the constraints.

    The combinations share the work of forward checking, which is faster than a search for each.
    """
    search, decided = _Search(_concerning(RULES, constraints), None), dict[str, Value]()
    if (domains := search.constrained(constraints, decided)) is not None:
        yield from search.combinations(names, decided, domains)


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
    for rule, other in _nearly_fixed(frozenset(fixed)):
        if not (
            _allowed(rule, other, tuple(map(fixed.get, rule.fields)))
            if other
            else _meets(rule, tuple(map(fixed.__getitem__, rule.fields)))
        ):
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


@lru_cache(1 << 8)
def _nearly_fixed(names: frozenset[str]) -> Sequence[tuple[Rule, str | None]]:
    """The rules that read only these fields, then those that read one more, with that field."""
    others = [(rule, [name for name in rule.fields if name not in names]) for rule in RULES]
    within = [(rule, None) for rule, open_names in others if not open_names]
    return (*within, *((rule, open_names[0]) for rule, open_names in others if len(open_names) == 1))


@lru_cache(1 << 16)
def _meets(rule: Rule, values: tuple[Value, ...]) -> bool:
    """Whether the values of all fields of a rule meet it. Cached across searches."""
    return rule.allows(ConfigView(dict(zip(rule.fields, values, strict=True))))


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


class _Network(NamedTuple):
    """The rules of searches by their fields, and what rules of one field leave of the domains."""

    rules_of: Mapping[str, Sequence[tuple[Rule, frozenset[str]]]]
    domains: _Domains
    refused: frozenset[Rule]
    """The rules of one field that rule out at least one value."""


@lru_cache(1 << 8)
def _network(rules: tuple[Rule, ...]) -> _Network:
    """The network of some rules. Cached across searches."""
    rules_of: dict[str, list[tuple[Rule, frozenset[str]]]] = {name: [] for name in ORDER}
    domains, refused = dict(_WHOLE), set[Rule]()
    for rule in (*_C_RULES, *rules):
        names = frozenset(rule.fields)
        for name in names:
            rules_of[name].append((rule, names))
        if len(names) == 1:
            _strike(rule, name, {}, domains, refused)
    return _Network(rules_of, domains, frozenset(refused))


def _strike(rule: Rule, name: str, decided: Fields, domains: _Domains, refused: set[Rule]) -> None:
    """Remove the values that a rule refuses from the domain of its last undecided field."""
    allowed = _allowed(rule, name, tuple(map(decided.get, rule.fields)))
    if not allowed.issuperset(domains[name]):
        refused.add(rule)
        domains[name] = tuple(value for value in domains[name] if value in allowed)


class _Search:
    """One search."""

    def __init__(self, rules: Sequence[Rule], generator: random.Random | None, steps: int = STEPS) -> None:
        self._generator = generator
        self._steps = steps
        self._contradicted = dict.fromkeys(ORDER, 0)
        self._found: dict[str, Value] = {}
        """The last config that was found."""
        self._rules = tuple(rules)
        self._network = _network(self._rules)
        self.refused = {*self._network.refused}
        """The rules that have ruled out at least one value."""

    def solve(self, constraints: Constraints) -> Fields | None:
        """A config that meets the constraints, in the order of the fields; None if none exists or the steps run out."""
        decided: dict[str, Value] = {}
        if (domains := self.constrained(constraints, decided)) is None or not self._completed(decided, domains):
            return None
        return {name: decided[name] for name in FIELD_NAMES}

    def constrained(self, constraints: Constraints, decided: dict[str, Value]) -> _Domains | None:
        """The domains that constraints leave, whose required values it adds to ``decided``; None if one is empty."""
        domains = dict(self._network.domains)
        for name, values in constraints.items():
            if isinstance(values, tuple):
                domains[name] = tuple(value for value in domains[name] if value in values)
        for name, value in constraints.items():
            if not isinstance(value, tuple):
                decided[name] = value
                if (narrowed := self._narrowed(decided, domains, name)) is None:
                    return None
                domains = narrowed
        return domains

    def combinations(
        self, names: Sequence[str], decided: dict[str, Value], domains: _Domains
    ) -> Iterator[tuple[Value, ...]]:
        """The values of the named fields in every config that extends ``decided``."""
        if not names:
            self._steps, self._contradicted = STEPS, dict.fromkeys(ORDER, 0)
            config = {**self._found, **decided}  # often legal, which saves a search
            if self._is_legal(config) or self._completed(config := {**decided}, domains):
                self._found = config
                yield ()
            return
        name, *rest = names
        for value in domains[name]:
            with_value = {**decided, name: value}
            if (narrowed := self._narrowed(with_value, domains, name)) is not None:
                for others in self.combinations(rest, with_value, narrowed):
                    yield (value, *others)

    def _is_legal(self, config: Fields) -> bool:
        """Whether a config is complete and meets the rules."""
        rules = (*_C_RULES, *self._rules)
        return len(config) == len(ORDER) and all(
            _meets(rule, tuple(map(config.__getitem__, rule.fields))) for rule in rules
        )

    def _completed(self, decided: dict[str, Value], domains: _Domains) -> bool:
        """Whether values for all other fields were found, which it adds to ``decided``."""
        return self._extend(decided, domains, [name for name in ORDER if name not in decided])

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
        for rule, names in self._network.rules_of[name]:
            undecided = names.difference(decided)
            if len(undecided) > 1:
                continue
            if undecided:
                (other,) = undecided
                _strike(rule, other, decided, narrowed, self.refused)
                possible = bool(narrowed[other])
            elif not (possible := rule.allows(ConfigView(decided))):
                self.refused.add(rule)
            if not possible:
                for other in names:
                    self._contradicted[other] += 1
                return None
        return narrowed
