"""What a row of the table of fields says, and the types of fields that are no plain words.

The row of a field is its declaration in :mod:`gemmill.library.config.model`: ``Annotated[type, Field(...)] = default``.
:mod:`gemmill.library.config.field_table` reads the rows; names, manifests, filters, checks and docs read the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import ExpressionError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Value = str | int
"""The value of a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What is said of a field beside its type and its default."""

    doc: str
    """What it is, with its unit: in the docs, and in the JSON Schema of manifests."""
    means: Mapping[str, str] = field(default_factory=dict)
    """What each of its words means, where that needs saying."""
    example: Value | None = None
    """A usual value, where there is no default or that is not usual."""
    token: str = "{}"
    """How its value stands in a kernel's name."""
    unsaid: bool = False
    """Whether names leave its default out."""
    part: str | None = None
    """The part of a kernel's name that it stands in, where that is not called as the part of the config."""
    format: bool = False
    """Whether a problem has it, and goes to kernels that have the same, or ``any`` major."""
    auto: bool = False
    """Whether a manifest may say ``auto``, which is then its default."""
    cpp: str | None = None
    """The member of a kernel's ``Config`` that says it in C++, with ``{}`` for the value, words in capitals; None where
    an emitter says it otherwise."""
    was: tuple[str, ...] = ()
    """Its former keys in manifests, filters and stored configs, which are still read."""
    former_words: Mapping[str, str] = field(default_factory=dict)
    """The present words by former ones, which kernel names and manifests may still have."""


class _AtLeastOne:
    """Has pydantic take integers of at least 1, and nothing else for one."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.int_schema(gt=0, strict=True)


class _Canonical:
    """Has pydantic take canonical texts of epilogues."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import PydanticCustomError, core_schema

        def check(text: str) -> str:
            try:
                spelling = canonical(text)
            except ExpressionError as error:
                raise PydanticCustomError(
                    "epilogue", "{reason}", {"reason": str(error), "column": error.column}
                ) from None
            if spelling != text:
                raise PydanticCustomError(
                    "epilogue", "is not canonical; write {spelling}", {"spelling": repr(spelling)}
                )
            return text

        return core_schema.no_info_after_validator_function(check, core_schema.str_schema(strict=True))


Positive = Annotated[int, _AtLeastOne()]
"""An integer of at least 1."""
EpilogueText = Annotated[str, _Canonical()]
"""The canonical text of an epilogue: ``linear`` or an expression (:mod:`gemmill.library.epilogues.parse`)."""
