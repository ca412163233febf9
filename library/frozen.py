"""Base of what is kept as JSON and read back checked: measurements, peak rates, answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, hashable, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
