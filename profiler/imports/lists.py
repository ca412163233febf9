"""Lists of problems in JSON, JSON Lines and YAML: mappings, ``[m, n, k]`` or ``[m, n, k, batch]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import get_args

from gemmill.library.config.model import BatchingName, ScaleName
from gemmill.library.errors import ManifestError, RecordError
from gemmill.library.input import strict_json
from gemmill.library.manifest.document import MAX_BYTES, read_document
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import (
    MAX_JSON,
    Collector,
    Fields,
    Imported,
    LeftOut,
    TextFile,
    extent,
    shown,
    whole,
)

_CALLED: Mapping[str, str] = MappingProxyType(
    {key: key for key in ("m", "n", "k", "batch", "groups", "expected_rows")}
    | {"l": "batch", "batch_count": "batch", "batch_size": "batch", "batchcount": "batch", "num_groups": "groups"}
)
_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: (name,) for name in "abcd"}
    | {f"{name}_{word}": (name,) for name in "abcd" for word in ("dtype", "type")}
    | {"dtype": ("a", "b"), "in_dtype": ("a", "b"), "input_dtype": ("a", "b"), "precision": ("a", "b")}
    | {"out_dtype": ("d",), "output_dtype": ("d",)}
    | dict.fromkeys(("accumulator", "acc_dtype", "accum", "acc"), ("accumulator",))
)
_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"a_major": ("k", "mn"), "b_major": ("k", "mn"), "c_major": ("n", "m"), "d_major": ("n", "m")}
    | {"a_scale": get_args(ScaleName), "b_scale": get_args(ScaleName), "batching": get_args(BatchingName)}
)
_COUNTS = ("count", "counts", "calls", "num_calls", "call_count", "cnt", "freq", "frequency", "occurrences")
_SIZES = ("sizes", "group_sizes")
_UNREAD = ("transa", "transb", "trans_a", "trans_b", "ta", "tb", "layout", "bias", "activation")
"""Keys that are ignored, since their meaning differs between lists."""


def looks_like_one(item: object) -> bool:
    """Whether an item of a list is a problem."""
    if isinstance(item, list):
        return len(item) in (3, 4) and all(whole(value) is not None for value in item)
    return isinstance(item, dict) and {"m", "n", "k"} <= {key.lower() for key in item if isinstance(key, str)}


def add_mapping(into: Collector, item: Mapping[str, object], line: int) -> None:
    """Add a problem from a mapping with the keys m, n, k and common names of other keywords, in any letter case."""
    fields: dict[str, int | str] = {}
    count = 1
    for written, value in item.items():
        key = written.strip().lower()
        if value is None or value == "":
            continue
        if key in _CALLED or (key == "b" and whole(value) is not None):
            fields[_CALLED.get(key, "batch")] = extent(_CALLED.get(key, "batch"), value)
        elif key in _TYPES:
            for name in _TYPES[key]:
                if name not in fields or len(_TYPES[key]) == 1:
                    fields[name] = dtype(value, name.upper() if len(name) == 1 else "sums")
        elif key in _WORDS:
            if value not in _WORDS[key]:
                raise LeftOut(f"{key} is {shown(value)}; it must be one of {', '.join(_WORDS[key])}")
            fields[key] = str(value)
        elif key == "epilogue" and isinstance(value, str):
            fields[key] = value
        elif key in _SIZES:
            fields["sizes"] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        elif key in _COUNTS:
            count = extent("count", value)
        elif key in _UNREAD:
            into.note(line, f"{written} is ignored; use a_major, b_major or epilogue")
    into.add(fields, line, count)


def _add(into: Collector, items: Iterable[tuple[int, object]]) -> Imported:
    for line, item in items:
        with into.at(line):
            if not looks_like_one(item):
                raise LeftOut("expected [m, n, k], [m, n, k, batch] or a mapping with m, n and k")
            if isinstance(item, dict):
                add_mapping(into, item, line)
            elif isinstance(item, list):
                into.add(_listed(item), line)
    return into.result()


def _listed(item: list[object]) -> Fields:
    return {key: extent(key, value) for key, value in zip(("m", "n", "k", "batch"), item, strict=False)}


def read_json(file: TextFile) -> Imported | None:
    """Problems of a JSON text or of JSON Lines; None if it is neither, or has no problems."""
    path, text = file.path, file.text
    into = Collector(path, "a JSON list")
    if len(text) > MAX_JSON:
        raise into.error(1, f"the list has more than {MAX_JSON:,} characters; split it")
    lines = text.split("\n")
    first = next(line for line in lines if line.strip())
    try:
        value = strict_json.parse(text.encode())
    except ValueError as error:
        if not _is_json(first):
            return _yaml_or(file, into.error(getattr(error, "lineno", 1), f"invalid JSON: {error}"))
        return _read_lines(Collector(path, "JSON Lines"), lines)
    if looks_like_one(value) and isinstance(value, dict):
        return _add(Collector(path, "JSON Lines"), [(1, value)])
    if not isinstance(value, list) or not any(map(looks_like_one, value)):
        return None
    return _add(into, ((line, item) for line, item in zip(_lines_of(lines, len(value)), value, strict=True)))


def _lines_of(lines: list[str], items: int) -> list[int]:
    """Line numbers of the items of a list; 1 for all if the items are not on separate lines."""
    opening = [number for number, line in enumerate(lines, 1) if line.strip()[:1] in "[{" and line.strip()[1:]]
    return opening if len(opening) == items else [1] * items


def _is_json(line: str) -> bool:
    try:
        return isinstance(strict_json.parse(line.encode()), dict | list)
    except ValueError:
        return False


def _read_lines(into: Collector, lines: list[str]) -> Imported | None:
    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                items.append((number, strict_json.parse(line.encode())))
            except ValueError as error:
                raise into.error(number, f"invalid JSON: {error}; complete or remove the line") from None
    return _add(into, items) if any(looks_like_one(item) for _, item in items) else None


def _yaml_or(file: TextFile, error: RecordError) -> Imported | None:
    """Problems of a text in brackets that is not JSON, if it is a YAML list; raises the error for damaged JSON."""
    path, text = file.path, file.text
    document = text if len(text) <= MAX_BYTES else ""
    try:
        read_document(path, lambda *_: document.encode()).check()
    except ManifestError:
        if text.lstrip().startswith(("[", '{"')):
            raise error from None
        return None
    return read_yaml(file)


def read_yaml(file: TextFile) -> Imported | None:
    """Problems of a YAML list; None for other texts."""
    path, text = file.path, file.text
    words = (line.lstrip() for line in file.lines)
    first = next((line for line in words if line and not line.startswith(("#", "---"))), "")
    if not first.startswith(("-", "[", "{")) or len(text) > MAX_BYTES:
        return None
    try:
        document = read_document(path, lambda *_: text.encode())
    except ManifestError:
        return None
    if not isinstance(document.data, list) or not any(map(looks_like_one, document.data)):
        return None
    try:
        document.check()
    except ManifestError as error:
        raise RecordError(str(error)) from None
    lines = (document.values[index,][0] for index in range(len(document.data)))
    return _add(Collector(path, "a YAML list"), zip(lines, document.data, strict=True))
