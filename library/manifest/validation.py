"""Validation of parts of a document with the schema's models. Pydantic's errors become faults with a location."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gemmill.library.config.domains import meant
from gemmill.library.manifest import schema
from gemmill.library.manifest.document import INVALID, Document, Location
from gemmill.library.wording import one_of, suggest

Model = TypeVar("Model", bound=schema.Spec)

_MODELS: dict[str, type[schema.Spec]] = {
    "sets": schema.FilteredSet,
    "defaults": schema.SetSpec,
    "match": schema.SetSpec,
    **schema.PART_MODELS,
}
"""The model of mappings by the key that contains them."""


def validated(document: Document, model: type[Model], data: object, at: Location) -> Model | None:
    """``data`` at location ``at`` as a model; None if it is invalid, in which case its faults are recorded."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if document.is_full_of_faults:
                document.uncounted += 1
            else:
                _record(document, detail, at)
        return None


def _record(document: Document, detail: ErrorDetails, at: Location) -> None:
    location = at
    for part in detail["loc"]:  # pydantic's locations also hold union tags and the index 0 of a lone value
        if (*location, part) in document.values:
            location = (*location, part)
    value, context = detail["input"], detail.get("ctx", {})
    if value is INVALID or any(location[:end] in document.invalid for end in range(len(location) + 1)):
        return
    key = detail["type"] == "extra_forbidden"
    document.fault(location, _message(detail, location), key=key, column=context.get("column"))


def _message(detail: ErrorDetails, location: Location) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    value_text = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:37]}..."
    match kind:
        case "extra_forbidden":
            allowed = tuple(_model(location[:-1]).model_fields)
            return f"unknown field{suggest(str(location[-1]), allowed) or ';'} allowed: {', '.join(allowed)}"
        case "missing":
            return f"missing {detail['loc'][-1]}"
        case "literal_error":
            words = re.findall(r"[\w.-]+", context["expected"].replace(" or ", " "))
            hint = meant(str(location[-1]), str(value), words)
            return f"is {value_text}{hint or ';'} it must be {one_of(words)}"
        case "int_type" if isinstance(value, str) and value.isdecimal():
            return f"is the text {value_text}; it must be an integer: remove the quotes"
        case "int_type":
            return f"is {value_text}; it must be an integer"
        case "greater_than":
            return f"is {value_text}; it must be at least 1"
        case "string_type":
            return f"is {value_text}; it must be text"
        case "string_too_short":
            return "is empty"
        case "model_type":
            return f"is {value_text}; it must be a mapping with the keys {', '.join(_model(location).model_fields)}"
    return detail["msg"]


def _model(location: Location) -> type[schema.Spec]:
    """The model of the mapping at a location."""
    names = [part for part in location if isinstance(part, str)]
    if not names:
        return schema.Manifest
    if len(names) == 2 and names[0] == "presets":
        return schema.PresetSpec
    return _MODELS[names[-1]]
