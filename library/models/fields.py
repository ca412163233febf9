"""The fields of a model's config, which has many names for the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gemmill.library.errors import ProblemError
from gemmill.library.problem import MAX_EXTENT
from gemmill.library.wording import one_of

NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden_size": ("hidden_size", "n_embd", "d_model", "embed_dim"),
        "layers": ("num_hidden_layers", "n_layer", "num_layers", "depth"),
        "heads": ("num_attention_heads", "n_head", "num_heads"),
        "kv_heads": ("num_key_value_heads", "num_kv_heads"),
        "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
        "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
        "top_k": ("num_experts_per_tok", "experts_per_token", "num_experts_per_token"),
        "channels": ("num_channels", "in_channels", "in_chans"),
    }
)
"""The names in configs of each field that has several, in the order in which they are looked up."""
MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class Notes:
    """What a config lacks and gemmill assumes, and what it has that no problem shows; each text once."""

    assumed: dict[str, None] = field(default_factory=dict)
    left_out: dict[str, None] = field(default_factory=dict)

    def assume(self, text: str) -> None:
        """Note what the config lacks."""
        self.assumed[text] = None

    def leave_out(self, text: str) -> None:
        """Note what the problems lack."""
        self.left_out[text] = None


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a config, or of a part such as its vision tower."""

    config: Mapping[str, Any]
    type: str
    """The model_type, for messages."""
    notes: Notes
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Values of fields that published configs of this type omit, as transformers has them."""
    place: str = ""
    """The key of the part, with a dot, for messages."""

    def has(self, name: str) -> bool:
        """Whether the config has a value that is not null for a field."""
        return self._found(name) is not None

    def whole(self, name: str, otherwise: int | None = None, *, least: int = 1) -> int:
        """A whole number.

        Args:
            name: the field: a key of :data:`NAMES`, or its name in the config.
            otherwise: the value that the architecture defines for a config without the field.
            least: smallest valid value.

        Raises:
            ProblemError: the field is missing, and nothing defines its value; or it is no whole number in range.
        """
        if (found := self._found(name)) is None:
            if name in self.defaults:
                value = self.defaults[name]
                says = f"{self.place}{self._names(name)[0]} is missing; assuming {value}"
                self.notes.assume(f"{says}, the default of {self.type} in transformers")
                return value
            if otherwise is None:
                names = [self.place + alias for alias in self._names(name)]
                raise ProblemError(
                    f"the config has no {one_of(names)}, which a model of type {self.type} needs; add it"
                )
            return otherwise
        most = MOST_LAYERS if name == "layers" else MAX_EXTENT
        key, value = found
        if type(value) is not int or not least <= value <= most:
            shown = (
                f"a number of {value.bit_length()} bits"
                if type(value) is int and value.bit_length() > 64
                else repr(value)[:80]
            )
            raise ProblemError(f"{self.place}{key} is {shown}; it must be a whole number from {least} to {most:,}")
        return value

    def flag(self, name: str, otherwise: bool) -> bool:
        """True or false; ProblemError for other values."""
        value = self.config.get(name, otherwise)
        if type(value) is not bool:
            raise ProblemError(f"{self.place}{name} is {value!r:.80}; it must be true or false")
        return value

    def part(self, key: str, kind: str, defaults: Mapping[str, int] = MappingProxyType({})) -> Fields:
        """The fields of a part of the config; ProblemError if it is no mapping."""
        value = self.config.get(key)
        if not isinstance(value, dict):
            raise ProblemError(f"{key} is {value!r:.80}; a model of type {self.type} needs a mapping")
        return Fields(value, kind, self.notes, defaults, f"{self.place}{key}.")

    def _names(self, name: str) -> tuple[str, ...]:
        return NAMES.get(name, (name,))

    def _found(self, name: str) -> tuple[str, Any] | None:
        """The first name with a value other than null, and the value."""
        values = ((key, self.config.get(key)) for key in self._names(name))
        return next(((key, value) for key, value in values if value is not None), None)
