"""Search for the smallest change of a config after which it meets a broken rule."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gemmill.library.config.fields import ConfigView, Fields, Value
from gemmill.library.legality.rule import Rule


class _Choice(NamedTuple):
    """A candidate value of a field."""

    distance: float
    """Its distance from the old value."""
    place: int
    """Its index in the field's domain; :data:`_KEPT` for the old value."""
    value: Value


_KEPT = -1
_Open = dict[str, tuple[_Choice, ...]]
"""Undecided fields and their remaining candidates: the old value first, unless it is ruled out, then by distance."""


def nearest_change(
    rule: Rule, fields: Fields, keep: Sequence[Rule], domains: Mapping[str, tuple[Value, ...]]
) -> dict[str, Value] | None:
    """The smallest change of a broken rule's fields after which that rule and ``keep`` hold; None if none exists.

    A change of fewer fields is smaller. Among changes of equally many fields the nearest one wins; among equally near
    ones, the one that changes the fields that the rule names first.
    """
    search = _Search(rule, fields, keep, domains)
    changes = (search.of_size(size) for size in range(1, 1 + len(search.names)))
    return next((change for change in changes if change is not None), None)


class _Search:
    """Search that starts from the broken rules: if a change breaks a rule, another field of that rule must change too.

    Each field is changed or kept in turn. A rule with one open field rules out the values that violate it (forward
    checking). If that includes the old value, the field must change.
    """

    def __init__(
        self, rule: Rule, fields: Fields, keep: Sequence[Rule], domains: Mapping[str, tuple[Value, ...]]
    ) -> None:
        self.names = [name for name in rule.fields if not (name.startswith("c.") and fields["c.dtype"] == "none")]
        self._rule = rule
        self._fields = dict(fields)
        self._config = ConfigView(self._fields)
        self._rules_of = {name: [other for other in (rule, *keep) if name in other.fields] for name in self.names}
        touched = dict.fromkeys(itertools.chain.from_iterable(self._rules_of.values()))
        self._open = self._narrowed(touched, {name: _choices(name, fields[name], domains[name]) for name in self.names})

    def of_size(self, size: int) -> dict[str, Value] | None:
        """The nearest change of ``size`` fields, given that no change of fewer fields suffices."""
        self._best: tuple[float, list[int], list[int]] | None = None
        self._found: dict[str, Value] | None = None
        if self._open is not None:
            self._extend({}, [self._rule], self._open, size)
        return self._found

    def _extend(self, changed_fields: dict[str, _Choice], broken: list[Rule], free: _Open, left: int) -> None:
        """Change up to ``left`` more ``free`` fields, after ``changed_fields``, to repair the ``broken`` rules."""
        if not broken:
            self._compare(changed_fields)
            return
        so_far = sum(choice.distance for choice in changed_fields.values())
        for name in self._suspects(broken, free, left):
            old, rules = self._fields[name], self._rules_of[name]
            choices, free = free[name], {other: choices for other, choices in free.items() if other != name}
            for choice in choices:
                if choice.place == _KEPT:
                    continue
                if self._best is not None and so_far + choice.distance > self._best[0]:
                    break
                self._fields[name] = choice.value
                if left > 1 and (narrowed := self._narrowed(rules, free)) is not None:
                    broken_elsewhere = [rule for rule in broken if name not in rule.fields]
                    broken_here = [rule for rule in rules if not rule.allows(self._config)]
                    self._extend({**changed_fields, name: choice}, broken_elsewhere + broken_here, narrowed, left - 1)
                elif left == 1 and all(rule.allows(self._config) for rule in rules):
                    self._compare({**changed_fields, name: choice})
            self._fields[name] = old
            open_fields = self._narrowed(rules, free) if left > 1 else free
            if choices[0].place != _KEPT or open_fields is None:
                break  # this field must change
            free = open_fields

    def _suspects(self, broken: list[Rule], free: _Open, left: int) -> list[str]:
        """Fields of which at least one must change, fewest candidates first; none if more than ``left`` must change."""
        musts = [name for name, choices in free.items() if choices[0].place != _KEPT]
        if len(musts) > left or not left:
            return []
        suspects = [[name for name in rule.fields if name in free] for rule in broken]
        candidates = musts[:1] or min(suspects, key=len)
        if left == 1:  # a single change has to repair all of them
            candidates = [name for name in candidates if all(name in rule_fields for rule_fields in suspects)]
        return sorted(candidates, key=lambda name: len(free[name]))

    def _narrowed(self, rules: Iterable[Rule], free: _Open) -> _Open | None:
        """``free`` without the values that rules with one free field rule out; None if a field has no value left."""
        narrowed = dict(free)
        for rule in rules:
            if "schedule" not in free and not rule.concerns(self._config.schedule):
                continue
            undecided = [name for name in rule.fields if name in free]
            if not undecided and not rule.allows(self._config):
                return None
            if len(undecided) == 1:
                (name,) = undecided
                old = self._fields[name]
                narrowed[name] = tuple(choice for choice in narrowed[name] if self._allowed(rule, name, choice))
                self._fields[name] = old
                if not narrowed[name]:
                    return None
        return narrowed

    def _allowed(self, rule: Rule, name: str, choice: _Choice) -> bool:
        self._fields[name] = choice.value
        return rule.allows(self._config)

    def _compare(self, changed_fields: dict[str, _Choice]) -> None:
        """Keep this change if it is nearer than the best one so far."""
        changes = [(at, changed_fields[name]) for at, name in enumerate(self.names) if name in changed_fields]
        key = sum(c.distance for _, c in changes), [at for at, _ in changes], [c.place for _, c in changes]
        if self._best is None or key < self._best:
            self._best, self._found = key, {self.names[at]: choice.value for at, choice in changes}


def _choices(name: str, old: Value, domain: Sequence[Value]) -> tuple[_Choice, ...]:
    """The old value of a field, then the other values of its domain, nearest first."""
    other_choices = (_Choice(_distance(name, old, new), place, new) for place, new in enumerate(domain) if new != old)
    return (_Choice(0, _KEPT, old), *sorted(other_choices, key=lambda choice: choice.distance))


def _distance(name: str, old: Value, new: Value) -> float:
    """The cost of a change: low for tuning fields, higher for tile and schedule, highest for fields that change the
    GEMM or the order of summation."""
    weights = {"stages": 1, "scheduler": 1, "scheduler.decomposition": 8, "tile": 2, "cluster": 2, "schedule": 2}
    weight = weights.get(name, weights.get(name.partition(".")[0], 8))
    if isinstance(old, int) and isinstance(new, int):
        return weight * abs(math.log2(max(new, 1) / max(old, 1)))
    return 2 * weight
