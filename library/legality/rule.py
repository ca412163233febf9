"""What a legality rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmill.library.config.fields import Fields
from gemmill.library.config.model import FAMILIES, FamilyName

Check = Callable[[Fields], str | None]
"""What is wrong with a kernel; None where nothing is."""


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One fact that legal configs obey."""

    id: str
    """Stable kebab-case name."""
    fields: tuple[str, ...]
    """The fields that it reads, the one to change first in front; ``schedule`` is added where the rule has a family."""
    check: Check
    """What is wrong, with the values on both sides, with a kernel of :attr:`family`; None when the rule is kept."""
    source: str
    """Where the fact is from."""
    family: FamilyName | None = None
    """The kernel family that the rule is for; None: all."""

    def __post_init__(self) -> None:
        if self.family is not None and "schedule" not in self.fields:
            object.__setattr__(self, "fields", (*self.fields, "schedule"))

    def says(self, fields: Fields) -> str | None:
        """What is wrong; None when the rule is kept or is for other kernels."""
        return self.check(fields) if self.concerns(fields) else None

    def concerns(self, fields: Fields) -> bool:
        """Whether the rule is for kernels of such a schedule."""
        return self.family is None or FAMILIES[str(fields["schedule"])] == self.family

    def allows(self, fields: Fields) -> bool:
        """Whether the rule is kept."""
        return self.says(fields) is None


def rule(name: str, fields: tuple[str, ...], source: str, family: FamilyName | None = None) -> Callable[[Check], Rule]:
    """Makes a rule of the check that follows, whose docstring says what legal configs obey."""
    return lambda check: Rule(name, fields, check, source, family)
