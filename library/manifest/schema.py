"""The schema of manifests: the meaning of the YAML keys, also available to editors as JSON Schema.

Each value can be a list, and a set contains the cross product of all lists. Missing parts have the values of the
manifest's ``defaults``, then those of gemmill. The parts of a config and their leaves come from the table of fields.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gemmill.library.config.field_table import GROUPS, PARTS, Row
from gemmill.library.config.names import token_of
from gemmill.library.epilogues.misspelt import check_names
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.errors import ExpressionError
from gemmill.library.manifest import expression
from gemmill.library.manifest.expression import Expression

T = TypeVar("T")


class _OneOrMore:
    """The JSON Schema of a list that can be written as its only item."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        items = handler(schema)["items"]
        return {"anyOf": [items, {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}]}


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise PydanticCustomError("empty_list", "the list is empty, so there are no kernels; add a value")
    seen: set[T] = set()
    for value in values:
        if value in seen:
            raise PydanticCustomError("duplicate", "the list contains {value} twice", {"value": _text(value)})
        seen.add(value)
    return values


def _text(value: object) -> str:
    return str(value.model_dump(exclude_none=True)) if isinstance(value, BaseModel) else str(value)


OneOrMore = Annotated[tuple[T, ...], BeforeValidator(_listed), AfterValidator(_distinct), _OneOrMore()]
"""A value or a list of different values."""

Positive = Annotated[int, Field(gt=0)]


def _stages(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 2):
        return value
    raise PydanticCustomError(
        "stages", "is {value}; it must be auto or an integer of at least 2", {"value": repr(value)}
    )


Stages = Annotated[
    int | Literal["auto"],
    PlainValidator(_stages),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 2}]}),
]


def _where(value: object) -> tuple[Expression, ...]:
    if not isinstance(value, str):
        raise PydanticCustomError("where", "must be text, for example `where: tile.m * tile.n <= 32768`")
    try:
        return expression.parse(value)
    except ExpressionError as error:
        raise PydanticCustomError("where", "{reason}", {"reason": str(error), "column": error.column}) from None


Where = Annotated[tuple[Expression, ...], PlainValidator(_where), WithJsonSchema({"type": "string"})]
"""A filter: comparisons and integer arithmetic over field names (``tile.m``, ``a.major``, ``schedule``, ...)."""


def _epilogue(value: object) -> str:
    if not isinstance(value, str):
        raise PydanticCustomError("epilogue", "must be text, for example `epilogue: d = relu(acc + bias[n])`")
    try:
        check_names(value)
        return value if value == LINEAR else str(parse(value))
    except ExpressionError as error:
        raise PydanticCustomError("epilogue", "{reason}", {"reason": str(error), "column": error.column}) from None


EpilogueSpec = Annotated[str, PlainValidator(_epilogue), WithJsonSchema({"type": "string"})]
"""``linear``, or assignments such as ``d = silu(alpha * acc + bias[n])``. The explicit forms of ``linear`` are kept as
written, because they state whether there is a C."""


class Spec(BaseModel):
    """Base class of the schema's models."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Choices(Spec):
    """Base class of the models generated from the table of fields: each member is a tuple of choices, or None."""

    def __getitem__(self, name: str) -> tuple[Any, ...] | None:
        choices: tuple[Any, ...] | None = getattr(self, name)
        return choices


class Extents(Choices):
    """Base class of models that can be written as one word, such as ``2x1``, as in a kernel's name."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(cls.model_fields)
        if not re.fullmatch("x".join(["[1-9][0-9]{0,8}"] * len(names)), value):
            raise PydanticCustomError(
                "extents",
                "is {value}; it must be {word}, or a mapping with the keys {names}",
                {"value": repr(value), "word": "x".join(name.upper() for name in names), "names": ", ".join(names)},
            )
        return dict(zip(names, map(int, value.split("x")), strict=True))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(handler(schema))
        word = {"type": "string", "pattern": f"^{'x'.join(['[1-9][0-9]*'] * len(cls.model_fields))}$"}
        return {"anyOf": [word, mapping], "description": mapping.pop("description", "")}


def _no_matrix(value: object) -> object:
    if value in ("none", "same"):
        return value
    raise PydanticCustomError(
        "c",
        "is {value}; it must be none, same (as D), or a mapping with the keys dtype, major, align",
        {"value": repr(value)},
    )


def _or_word(part: type[Spec]) -> Any:
    """The type of an optional part: ``none``, ``same`` (as D), or a mapping."""
    word = Annotated[
        Literal["none", "same"],
        PlainValidator(_no_matrix),
        WithJsonSchema({"enum": ["none", "same"]}),
        Tag("word"),
    ]
    tell = Discriminator(lambda value: "matrix" if isinstance(value, dict | part) else "word")
    return Annotated[Annotated[part, Tag("matrix")] | word, tell]


def _choice(row: Row) -> Any:
    """The type of a field in a manifest."""
    if row.is_open:
        return EpilogueSpec
    if row.field.auto:
        return Stages
    return Literal[row.values] if row.values else Positive


def _info(row: Row) -> FieldInfo:
    """The description of a field for editors, with its default, and its former names, which are accepted."""
    default = "auto" if row.field.auto else row.default
    doc = row.doc if default is None else f"{row.doc} Default: {default}."
    return FieldInfo(description=doc, json_schema_extra={"was": [*row.field.was]})


def _choices_model(name: str, base: type[Choices], doc: str, types: Mapping[str, tuple[Any, FieldInfo]]) -> Any:
    """A model whose members are choices of these types."""
    members = {key: (Annotated[OneOrMore[kind] | None, info], None) for key, (kind, info) in types.items()}  # type: ignore[valid-type]
    return create_model(name, __base__=base, __doc__=doc, **members)  # type: ignore[call-overload]


def _part(kind: type) -> type[Choices]:
    """The model of a nested class of the config. If all leaves are extents, it can be written as a word."""
    rows = next(rows for group, rows in GROUPS.items() if PARTS.get(group) is kind)
    extents = all(row.field.token in ("{}", "x{}") and row.type is int for row in rows)
    doc, example = inspect.cleandoc(kind.__doc__ or ""), "".join(token_of(row, row.example) for row in rows)
    model: type[Choices] = _choices_model(
        f"{kind.__name__.removesuffix('Operand')}Spec",
        Extents if extents else Choices,
        f"{doc} ``{example}`` or a mapping." if extents else doc,
        {row.leaf: (_choice(row), _info(row)) for row in rows},
    )
    return model


PART_MODELS: Mapping[str, type[Choices]] = {group: _part(kind) for group, kind in PARTS.items()}
"""The model of each part of a config that is a mapping."""


def _member(group: str, rows: tuple[Row, ...]) -> tuple[Any, FieldInfo]:
    if not rows[0].leaf:
        return _choice(rows[0]), _info(rows[0])
    model = PART_MODELS[group]
    if rows[0].absent is None:
        return model, FieldInfo()
    return _or_word(model), FieldInfo(description="The added matrix: none (the default), same (as D), or a mapping.")


if TYPE_CHECKING:
    SetSpec = Choices
else:
    SetSpec = _choices_model(
        "SetSpec",
        Choices,
        "Choices for each part of a config. An omitted part has its default; in a preset's match, any value.",
        {group: _member(group, rows) for group, rows in GROUPS.items()},
    )


class FilteredSet(SetSpec):
    """The cross product of its choices, filtered by ``where``."""

    where: Where | None = Field(
        None, description="Keeps the candidates that meet this condition, for example ``tile.m * tile.n <= 32768``."
    )


class PresetSpec(Spec):
    """A named part of the manifest's kernels."""

    description: str = ""
    where: Where | None = Field(None, description="Keeps the kernels that meet this condition.")
    match: OneOrMore[SetSpec] | None = Field(
        None, description="Keeps the kernels that match one of these. A part that a match omits can have any value."
    )


class Manifest(Spec):
    """A set of GEMM kernels."""

    name: str = Field(min_length=1, description="The name of the kernel set.")
    description: str = ""
    extends: str | None = Field(
        None,
        description="Another manifest, as a path relative to this one or the name of a built-in manifest. Its sets and "
        "presets come first.\nThis manifest's ``defaults`` override the other's.",
    )
    defaults: SetSpec = Field(SetSpec(), description="Defaults of all sets.")
    where: Where | None = Field(
        None, description="Keeps the candidates, including those of inherited sets, that meet this condition."
    )
    sets: list[FilteredSet] = Field([], description="The kernels: the union of these sets.")
    presets: dict[str, PresetSpec] = Field({}, description="Named parts of the kernels.")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of manifests, in the draft that YAML editors support."""
    schema = _terse(Manifest.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "gemmill manifest"}
    return {**head, **schema, "definitions": definitions}


def _terse(node: Any) -> Any:
    """A schema without generated titles and without null, which manifests do not allow, and with former field names."""
    if isinstance(node, list):
        return [_terse(item) for item in node]
    if not isinstance(node, dict):
        return node
    terse_node = {key: _terse(value) for key, value in node.items() if not _generated(key, value)}
    if "anyOf" in terse_node:
        choices = [choice for choice in terse_node.pop("anyOf") if choice != {"type": "null"}]
        choices = [c for choice in choices for c in choice.get("anyOf", [choice])]
        terse_node |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    for name, member in [*terse_node.get("properties", {}).items()]:
        for old in member.pop("was", ()):
            terse_node["properties"][old] = {**member, "deprecationMessage": f"is now called {name}"}
    return terse_node


def _generated(key: str, value: object) -> bool:
    return (key == "title" and isinstance(value, str)) or key == "default"


def schema_text() -> str:
    """The content of ``manifests/schema.json``; ``python -m gemmill.library.manifest.schema`` writes it."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / "manifests" / "schema.json").write_text(schema_text(), encoding="utf-8")
