"""Sets of a manifest told apart as they are written: by types alone, before anything else of them is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Wanted:
    """What sets must hold to be wanted."""

    types: frozenset[str]
    """Types of A and of B."""
    defaults: tuple[object, ...] = ()
    """Defaults around sets, as they are written, those that go before others first."""

    def within(self, defaults: object) -> Wanted:
        """The same of sets with further defaults, which those so far go before."""
        return replace(self, defaults=(*self.defaults, defaults))

    def has(self, item: object) -> bool:
        """Whether a set, as it is written, may have A and B of these types."""
        return all(not self.types.isdisjoint(_types((item, *self.defaults), operand)) for operand in ("a", "b"))


def _types(mappings: tuple[object, ...], operand: str) -> set[object]:
    """The types that an operand may have: those of the first mappings, up to one whose every choice says its types."""
    found: set[object] = set()
    for mapping in mappings:
        choices = _listed(mapping.get(operand)) if isinstance(mapping, dict) else []
        said = [_listed(choice.get("dtype")) if isinstance(choice, dict) else [] for choice in choices]
        found.update(dtype for types in said for dtype in types if isinstance(dtype, str))
        if said and all(said):
            break
    return found


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]
