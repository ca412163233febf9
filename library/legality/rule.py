"""What a legality rule is."""

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
    """One fact that legal configs obey."""

    id: str
    """Stable kebab-case name."""
    fields: tuple[str, ...]
    """The fields that it reads, the one to change first in front; ``schedule`` is added where the rule has a family."""
    check: Callable[[Any], str | None]
    """What is wrong, with the values on both sides, with a kernel of such a plan; None when the rule is kept."""
    source: str
    """Where the fact is from."""
    plan: type[KernelPlan]
    """The plans that the check reads."""

    def __post_init__(self) -> None:
        if self.family is not None and "schedule" not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, "schedule"))

    @property
    def family(self) -> FamilyName | None:
        """The kernel family that the rule is for; None: all."""
        return self.plan.family

    def finding(self, config: GemmConfig) -> str | None:
        """What is wrong; None when the rule is kept or is for other kernels."""
        return self.check(self.plan(config)) if self.family is None or config.family == self.family else None

    def concerns(self, schedule: str) -> bool:
        """Whether the rule is for kernels of a schedule."""
        return self.family is None or FAMILIES[schedule] == self.family

    def allows(self, config: GemmConfig) -> bool:
        """Whether the rule is kept."""
        return self.finding(config) is None


def rule(
    name: str, fields: tuple[str, ...], source: str, plan: type[Plan]
) -> Callable[[Callable[[Plan], str | None]], Rule]:
    """Makes a rule of the check that follows, whose docstring says what legal configs obey."""
    return lambda check: Rule(name, fields, check, source, plan)
