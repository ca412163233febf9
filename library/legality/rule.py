"""The type of a legality rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gemmill.library.config.model import FAMILIES, FamilyName, GemmConfig

if TYPE_CHECKING:
    from gemmill.library.families.kernel_plan import KernelPlan

Plan = TypeVar("Plan", bound="KernelPlan")


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One condition that every legal config meets."""

    id: str
    """Stable kebab-case name."""
    fields: tuple[str, ...]
    """The fields that it reads, the first to change first. ``schedule`` is added for rules of a family."""
    check: Callable[[Any], str | None]
    """Takes a plan; returns what is wrong, with the actual and the allowed values, or None if the rule is met."""
    source: str
    """The document or source file that states the condition."""
    plan: type[KernelPlan]
    """The type of plan that the check takes."""

    def __post_init__(self) -> None:
        if self.family is not None and "schedule" not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, "schedule"))

    @property
    def family(self) -> FamilyName | None:
        """The kernel family that the rule applies to; None means all families."""
        return self.plan.family

    def finding(self, config: GemmConfig) -> str | None:
        """What is wrong; None if the config meets the rule or the rule does not apply to its family."""
        return self.check(self.plan(config)) if self.family is None or config.family == self.family else None

    def concerns(self, schedule: str) -> bool:
        """Whether the rule applies to kernels of ``schedule``."""
        return self.family is None or FAMILIES[schedule] == self.family

    def allows(self, config: GemmConfig) -> bool:
        """Whether ``config`` meets the rule."""
        return self.finding(config) is None


def rule(
    name: str, fields: tuple[str, ...], source: str, plan: type[Plan]
) -> Callable[[Callable[[Plan], str | None]], Rule]:
    """Decorator that makes a rule from a check. The check's docstring is the text of the rule."""
    return lambda check: Rule(name, fields, check, source, plan)
