"""The schema of manifests: what the keys of the YAML mean. Editors get it as JSON Schema.

Wherever one value is expected a list may stand, and the set holds the cross product. Optional parts fall back to the
manifest's ``defaults``, then to gemmill's own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gemmill.library.arch import ArchName
from gemmill.library.config.model import (
    BatchingName,
    DecompositionName,
    MajorAB,
    MajorCD,
    RasterName,
    ScaleName,
    ScheduleName,
)
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.errors import ExpressionError
from gemmill.library.manifest import expression
from gemmill.library.manifest.expression import Expression

T = TypeVar("T")


class _OneOrMore:
    """JSON Schema of a list that may be written as its only item."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        items = handler(schema)["items"]
        return {"anyOf": [items, {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}]}


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise PydanticCustomError("empty_list", "the list is empty, so the set holds no kernel; list a value")
    seen: set[T] = set()
    for value in values:
        if value in seen:
            raise PydanticCustomError("duplicate", "the list holds {value} twice", {"value": _text(value)})
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
        raise PydanticCustomError("where", "must be text, as in `where: tile.m * tile.n <= 32768`")
    try:
        return expression.parse(value)
    except ExpressionError as error:
        raise PydanticCustomError("where", "{reason}", {"reason": str(error), "column": error.column}) from None


Where = Annotated[tuple[Expression, ...], PlainValidator(_where), WithJsonSchema({"type": "string"})]
"""A filter: comparisons and integer arithmetic over field names (``tile.m``, ``a.major``, ``schedule``, ...)."""


def _epilogue(value: object) -> str:
    if not isinstance(value, str):
        raise PydanticCustomError("epilogue", "must be text, as in `epilogue: d = relu(acc + bias[n])`")
    try:
        return value if value == LINEAR else str(parse(value))
    except ExpressionError as error:
        raise PydanticCustomError("epilogue", "{reason}", {"reason": str(error), "column": error.column}) from None


EpilogueSpec = Annotated[str, PlainValidator(_epilogue), WithJsonSchema({"type": "string"})]
"""``linear``, or assignments such as ``d = silu(alpha * acc + bias[n])``. Those that ``linear`` stands for remain as
they are written, since they say whether there is a C."""


class Spec(BaseModel):
    """Base of the schema's models."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class InputSpec(Spec):
    """A (M x K) or B (N x K)."""

    dtype: OneOrMore[DTypeName] | None = None
    """Element type in memory."""
    major: OneOrMore[MajorAB] | None = None
    """The contiguous extent: k, or mn (M for A, N for B); any: no extent need be contiguous."""
    align: OneOrMore[Positive] | None = None
    """Bytes that base address and strides are a multiple of; 16."""
    scale: OneOrMore[ScaleName] | None = None
    """Elements along M or N, and along K, that share a scale (z: and a zero point); none."""


class OutputSpec(Spec):
    """C or D (M x N)."""

    dtype: OneOrMore[DTypeName] | None = None
    """Element type in memory."""
    major: OneOrMore[MajorCD] | None = None
    """The contiguous extent: n (row-major) or m (column-major); any: no extent need be contiguous."""
    align: OneOrMore[Positive] | None = None
    """Bytes that base address and strides are a multiple of; 16."""


class _Extents(Spec):
    """Extents that may be written as one word, ``2x1``."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(cls.model_fields)
        if not re.fullmatch("x".join(["[1-9][0-9]{0,8}"] * len(names)), value):
            raise PydanticCustomError(
                "extents",
                "is {value}; it must be {word}, or a mapping of {names}",
                {"value": repr(value), "word": "x".join(name.upper() for name in names), "names": ", ".join(names)},
            )
        return dict(zip(names, map(int, value.split("x")), strict=True))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(handler(schema))
        word = {"type": "string", "pattern": f"^{'x'.join(['[1-9][0-9]*'] * len(cls.model_fields))}$"}
        return {"anyOf": [word, mapping], "description": mapping.pop("description", "")}


class TileSpec(_Extents):
    """Output tile of one block along M and N, and depth of a stage along K: ``128x256x64`` or a mapping."""

    m: OneOrMore[Positive] | None = None
    n: OneOrMore[Positive] | None = None
    k: OneOrMore[Positive] | None = None


class ClusterSpec(_Extents):
    """Blocks of a cluster along M and N: ``2x1`` or a mapping."""

    m: OneOrMore[Positive] | None = None
    n: OneOrMore[Positive] | None = None


class SchedulerSpec(Spec):
    """Order in which persistent blocks walk the output tiles."""

    raster: OneOrMore[RasterName] | None = None
    """The extent along which consecutive tiles lie; m."""
    swizzle: OneOrMore[Positive] | None = None
    """Tiles across the raster direction that are walked as one band; 1."""
    splits: OneOrMore[Positive] | None = None
    """Parts that K is split into; 1."""
    decomposition: OneOrMore[DecompositionName] | None = None
    """tiles, the default: a block sums all of K; split: a second kernel adds up parts of K; fused: the same in one
    kernel; stream: stream-K; cluster: the blocks of a cluster add up parts of K in their shared memory."""
    batching: OneOrMore[BatchingName] | None = None
    """How the matrices of a batch are found: strided, the default; array; grouped, masked or kgrouped."""


def _no_matrix(value: object) -> object:
    if value in ("none", "same"):
        return value
    raise PydanticCustomError(
        "c", "is {value}; it must be none, same (as D) or a mapping of dtype, major, align", {"value": repr(value)}
    )


C = Annotated[
    Annotated[OutputSpec, Tag("matrix")]
    | Annotated[
        Literal["none", "same"],
        PlainValidator(_no_matrix),
        WithJsonSchema({"enum": ["none", "same"]}),
        Tag("word"),
    ],
    Discriminator(lambda value: "matrix" if isinstance(value, dict | OutputSpec) else "word"),
]
"""``none``; ``same``: dtype, major and alignment of D; or a mapping."""


class SetSpec(Spec):
    """Choices for each part of a config. Left out: the default, or any where a preset matches."""

    arch: OneOrMore[ArchName] | None = None
    """Compilation target; sm90a."""
    a: OneOrMore[InputSpec] | None = None
    b: OneOrMore[InputSpec] | None = None
    accumulator: OneOrMore[DTypeName] | None = None
    """Type the products are summed in."""
    promote: OneOrMore[Literal[0, 4]] | None = None
    """WGMMAs after which fp8 sums move to f32 registers; 0, the default: never."""
    c: OneOrMore[C] | None = None
    """The added matrix: none (the default), same (as D), or a mapping."""
    d: OneOrMore[OutputSpec] | None = None
    tile: OneOrMore[TileSpec] | None = None
    cluster: OneOrMore[ClusterSpec] | None = None
    """1x1 by default."""
    schedule: OneOrMore[ScheduleName] | None = None
    """cooperative: the consumer warpgroups share a tile; pingpong: they take turns, a tile each; multistage: mma.sync;
    simt: FMAs; gemv: dot products."""
    stages: OneOrMore[Stages] | None = None
    """Depth of the shared-memory pipeline; auto, the default: as deep as fits."""
    scheduler: OneOrMore[SchedulerSpec] | None = None
    epilogue: OneOrMore[EpilogueSpec] | None = None
    """What is done to each sum before it is stored, as in ``d = relu(acc + bias[n])``; linear, the default: D = alpha *
    A @ B + beta * C."""


class FilteredSet(SetSpec):
    """The cross product of its choices, less what ``where`` filters out."""

    where: Where | None = None
    """Keeps the candidates for which this holds, as in ``tile.m * tile.n <= 32768``."""


class PresetSpec(Spec):
    """A named part of the manifest's kernels."""

    description: str = ""
    where: Where | None = None
    """Keeps the kernels for which this holds."""
    match: OneOrMore[SetSpec] | None = None
    """Keeps the kernels that match one of these; what a match leaves out may be anything."""


class Manifest(Spec):
    """A set of GEMM kernels."""

    name: Annotated[str, Field(min_length=1)]
    """What the set is called."""
    description: str = ""
    extends: str | None = None
    """Another manifest, by path relative to this one or by the name it ships under, whose sets and presets come first.
    This manifest's ``defaults`` override the other's."""
    defaults: SetSpec = SetSpec()
    """What sets fall back to."""
    where: Where | None = None
    """Keeps the candidates, of inherited sets too, for which this holds."""
    sets: list[FilteredSet] = []
    """The kernels: the union of these sets."""
    presets: dict[str, PresetSpec] = {}
    """Named parts of the kernels."""


def json_schema() -> dict[str, Any]:
    """The JSON Schema of manifests, in the draft that YAML editors know."""
    schema = _terse(Manifest.model_json_schema(ref_template="#/definitions/{model}"))
    definitions = schema.pop("$defs")
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "gemmill manifest"}
    return {**head, **schema, "definitions": definitions}


def _terse(node: Any) -> Any:
    """Without generated titles, and without null, which manifests do not hold."""
    if isinstance(node, list):
        return [_terse(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _terse(value) for key, value in node.items() if not _generated(key, value)}
    if "anyOf" in kept:
        choices = [choice for choice in kept.pop("anyOf") if choice != {"type": "null"}]
        choices = [c for choice in choices for c in choice.get("anyOf", [choice])]
        kept |= choices[0] if len(choices) == 1 else {"anyOf": choices}
    return kept


def _generated(key: str, value: object) -> bool:
    return (key == "title" and isinstance(value, str)) or key == "default"


def schema_text() -> str:
    """What ``manifests/schema.json`` must hold; ``python -m gemmill.library.manifest.schema`` writes it."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / "manifests" / "schema.json").write_text(schema_text(), encoding="utf-8")
