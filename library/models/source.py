"""Find and read the config of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmill.library.errors import RecordError
from gemmill.library.files import ending, os_error_text, read_given
from gemmill.library.input import strict_json
from gemmill.library.models.fields import Notes
from gemmill.library.models.gguf import gguf_config, is_gguf

MAX_BYTES = 16 << 20
"""Maximum size of a config. That of an index of weights, with a name for each tensor, is a few megabytes."""
CONFIG = "config.json"


def read_config(path: Path, notes: Notes) -> Mapping[str, Any]:
    """The mapping in a ``config.json``.

    Args:
        path: the file, a folder with it, ``model.safetensors.index.json`` beside it, which has no shapes, or a GGUF
            file, whose header has its fields.
        notes: for what a GGUF file lacks.

    Raises:
        RecordError: the file cannot be read, or has no JSON mapping.
    """
    if path.is_dir():
        path = path / CONFIG
    try:
        if path.is_file() and is_gguf(path):
            return gguf_config(path, notes)
        if path.is_file() and ending(path) == ".gguf":
            raise RecordError(f"{path}: the file does not begin as GGUF does; download it again")
        config = parsed_config(read_given(path, MAX_BYTES), path)
    except OSError as error:
        raise RecordError(f"{path}: {os_error_text(error)}; pass the config.json of a model") from None
    if "weight_map" in config and path.name != CONFIG:
        return read_config(path.with_name(CONFIG), notes)
    return config


def parsed_config(content: bytes, place: object) -> Mapping[str, Any]:
    """The mapping in the text of a ``config.json``; RecordError, which begins with ``place``, if it has none."""
    try:
        config = strict_json.parse(content)
    except ValueError as error:
        raise RecordError(f"{place}:{getattr(error, 'lineno', 1)}: invalid JSON: {error}") from None
    if not isinstance(config, dict):
        raise RecordError(f"{place}: the JSON is no mapping; pass the config.json of a model")
    return config
