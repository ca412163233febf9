"""Base class of models that are stored as JSON and validated on input: measurements, peak rates, answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A strict pydantic model that is immutable and hashable, and rejects unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
