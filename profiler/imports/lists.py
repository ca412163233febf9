"""Lists of problems in JSON, JSON Lines and YAML: mappings, ``[m, n, k]`` or ``[m, n, k, batch]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import get_args

from gemmill.library.config.model import BatchingName, RowsName, ScaleName
from gemmill.library.errors import ManifestError, RecordError
from gemmill.library.input import strict_json
from gemmill.library.manifest.document import MAX_BYTES, read_document
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import (
    MAX_JSON,
    Collector,
    Entry,
    Fields,
    Imported,
    LeftOut,
    TextFile,
    extent,
    shown,
    whole,
)
from gemmill.profiler.imports.lines import is_line, read_line

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
    | {"a_scale": get_args(ScaleName), "b_scale": get_args(ScaleName)}
    | {"batching": get_args(BatchingName), "rows": get_args(RowsName)}
)
_COUNTS = ("count", "counts", "calls", "num_calls", "call_count", "cnt", "freq", "frequency", "occurrences")
_SIZES = ("sizes", "group_sizes")
_MOST_IGNORED = 8
_UNREAD = ("transa", "transb", "trans_a", "trans_b", "ta", "tb", "layout", "bias", "activation")
"""Keys that are ignored, since their meaning differs between lists."""
_ALIGNMENTS = ("a_align", "b_align", "c_align", "d_align", "promote")


def looks_like_one(item: object) -> bool:
    """Whether an item of a list is a problem."""
    if isinstance(item, str):
        return is_line(item)
    if isinstance(item, list):
        return len(item) in (3, 4) and all(whole(value) is not None for value in item)
    return isinstance(item, dict) and {"m", "n", "k"} <= {key.lower() for key in item if isinstance(key, str)}


def is_key(name: str) -> bool:
    """Whether a key in lower case is one that is read."""
    return any(name in keys for keys in (_CALLED, _TYPES, _WORDS, _ALIGNMENTS, _COUNTS, _SIZES, ("epilogue",)))


def add_mapping(entry: Entry, item: Mapping[str, object]) -> None:
    """Add a problem from a mapping with the keys m, n, k and common names of other keywords, in any letter case."""
    fields: dict[str, int | str] = {}
    count, ignored = 1, []
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
        elif key in _ALIGNMENTS:
            fields[key] = extent(key, value)
        elif key in _UNREAD:
            entry.leave_out(f"{written} is ignored; use a_major, b_major or epilogue")
        else:
            ignored.append(shown(written))
    if ignored:
        more = ", ..." if len(ignored) > _MOST_IGNORED else ""
        entry.leave_out(f"not read: {', '.join(ignored[:_MOST_IGNORED])}{more}")
    entry.add(fields, count)


def _add(into: Collector, items: Iterable[tuple[int, object]]) -> Imported:
    for line, item in items:
        with into.at(line) as entry:
            if not looks_like_one(item):
                raise LeftOut("expected [m, n, k], [m, n, k, batch], a mapping with m, n and k, or a problem's line")
            if isinstance(item, dict):
                add_mapping(entry, item)
            elif isinstance(item, list):
                entry.add(_listed(item))
            else:
                entry.add(read_line(str(item)))
    return into.result()


def _listed(item: list[object]) -> Fields:
    return {key: extent(key, value) for key, value in zip(("m", "n", "k", "batch"), item, strict=False)}


def read_json(file: TextFile) -> Imported | None:
    """Problems of a JSON text; None for other texts, and if it has no problems."""
    into, lines = Collector(file.path), file.text.split("\n")
    if len(file.text) > MAX_JSON:
        raise into.error(1, f"the list has more than {MAX_JSON:,} characters; split it")
    try:
        value = strict_json.parse(file.text.encode())
    except ValueError as error:
        if _is_json(_first(lines)) or _is_yaml(file):
            return None
        raise into.error(getattr(error, "lineno", 1), f"invalid JSON: {error}") from None
    if looks_like_one(value) and isinstance(value, dict):
        return _add(into, [(1, value)])
    if not isinstance(value, list) or not any(map(looks_like_one, value)):
        return None
    return _add(into, ((line, item) for line, item in zip(_lines_of(lines, len(value)), value, strict=True)))


def read_json_lines(file: TextFile) -> Imported | None:
    """Problems of JSON Lines; None for other texts, and if they have no problems."""
    into, lines = Collector(file.path), file.text.split("\n")
    if not _is_json(_first(lines)):
        return None
    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                items.append((number, strict_json.parse(line.encode())))
            except ValueError as error:
                raise into.error(number, f"invalid JSON: {error}; complete or remove the line") from None
    return _add(into, items) if any(looks_like_one(item) for _, item in items) else None


def _first(lines: list[str]) -> str:
    return next(line for line in lines if line.strip())


def _lines_of(lines: list[str], items: int) -> list[int]:
    """Line numbers of the items of a list; 1 for all if the items are not on separate lines."""
    opening = [number for number, line in enumerate(lines, 1) if line.strip()[:1] in "[{" and line.strip()[1:]]
    return opening if len(opening) == items else [1] * items


def _is_json(line: str) -> bool:
    try:
        return isinstance(strict_json.parse(line.encode()), dict | list)
    except ValueError:
        return False


def _is_yaml(file: TextFile) -> bool:
    """Whether a text in brackets that is not JSON is YAML; a list must be complete."""
    document = file.text if len(file.text) <= MAX_BYTES else ""
    try:
        read_document(file.path, lambda *_: document.encode()).check()
    except ManifestError:
        return not file.text.lstrip().startswith(("[", '{"'))
    return True


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
    return _add(Collector(path), zip(lines, document.data, strict=True))
