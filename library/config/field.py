"""The metadata of a config field, and the field types that pydantic does not provide.

A field is declared in :mod:`gemmill.library.config.model` as ``Annotated[type, Field(...)] = default``.
:mod:`gemmill.library.config.field_table` collects these declarations in a table. Kernel names, manifests, filters,
checks and docs are all derived from that table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NamedTuple

from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import ExpressionError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Value = str | int
"""The value of a field."""


class Field(NamedTuple):
    """The metadata of a field other than its type and default."""

    doc: str
    """What the field is, with its unit. The docs and the JSON Schema of manifests print it."""
    means: Mapping[str, str] = MappingProxyType({})
    """The meaning of each value that needs an explanation."""
    example: Value | None = None
    """A typical value, if there is no default or the default is not typical."""
    token: str = "{}"
    """The format of its value in a kernel's name."""
    unsaid: bool = False
    """Whether names omit its default."""
    part: str | None = None
    """The part of a kernel's name that contains it, if that differs from the part of the config."""
    format: bool = False
    """Whether problems have this field too. A kernel then supports problems with the same value, or has major
    ``any``."""
    auto: bool = False
    """Whether a manifest can use ``auto``, which is then the default."""
    cpp: str | None = None
    """The C++ member of a kernel's ``Config`` for this field, with ``{}`` for the value (words in capitals); None if an
    emitter generates it in another way."""
    was: tuple[str, ...] = ()
    """Former names in manifests, filters and stored configs. gemmill still accepts them."""
    former_words: Mapping[str, str] = MappingProxyType({})
    """Present values by former ones. Kernel names and manifests can still contain the former ones."""


class _AtLeastOne:
    """A pydantic schema of integers of at least 1, without conversion from other types."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.int_schema(gt=0, strict=True)


class _Canonical:
    """A pydantic schema of canonical epilogue texts."""

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
