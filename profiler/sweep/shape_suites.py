"""Shape suites: lists of shapes to profile, to pack or to select kernels for, in gemmill's or other tools' formats.

A suite is ``{name: large, shapes: [[4096, 4096, 4096], [128, 128, 4096, 16], {m: 1000, n: 3000, k: 1024}]}``. Each
shape is a list ``[m, n, k]`` or ``[m, n, k, batch]``, or a mapping with these keys; batch defaults to 1. A mapping may
also contain other keywords of a problem (library/input/problem_words.py), ``sizes`` of its groups
(library/input/group_sizes.py) and a ``count``. Lists in a mapping are cross products, as in manifests:
``{m: [1, 16, 4096], n: 6144, k: 4096, a: [bf16, f16]}`` is six shapes. Only a list of numbers for ``sizes`` is a single
value. ``defaults`` of a suite is a mapping of keywords for all shapes that do not set them. The counts of equal shapes
are added. Formats of other tools are recognized by their content (profiler/imports).
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemmill.library.errors import ManifestError, ProblemError, RecordError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import read_given
from gemmill.library.input.group_sizes import BALANCED, checked_sizes
from gemmill.library.input.problem_words import FIELDS, KEYWORDS
from gemmill.library.manifest.document import INVALID, Document, Location, read_document
from gemmill.library.manifest.load import SHIPPED
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.profiler.imports.collector import Collector, Imported, ListedProblem, Note
from gemmill.profiler.imports.file_formats import (
    FORMATS,
    MAX_BYTES,
    NOTHING,
    Given,
    format_named,
    problems_of,
    read_problems,
)

EXTENTS = ("m", "n", "k", "batch")
"""Keys of a shape, in the order of its list form."""
KEYS = (*KEYWORDS, "sizes", "count")
"""Keys of a shape's mapping."""
MAX_SHAPES = 100_000
"""Maximum number of shapes in a file."""
FORMS = "a shape must be [m, n, k], [m, n, k, batch] or a mapping with these keys"
MAX_COUNT = 1 << 62
_OURS = "a shape suite"
_SHAPES = re.compile(rb"""(?:^|[{,]\s*)["']?shapes["']?\s*:""", re.MULTILINE)
"""The key that a suite, even a damaged one, has."""
_LIKE_OURS = "a shape suite is YAML: {name: mine, shapes: [[4096, 4096, 4096], {m: 16, n: 4096, k: 7168, a: e4m3}]}"
_READABLE = (
    f"{_LIKE_OURS}; gemmill also reads {', '.join(form.name for form in FORMATS)}; `gemmill shapes --help` says how "
    "it recognizes each"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of a GEMM, and any other keywords of its problem."""

    m: int
    n: int
    k: int
    batch: int = 1
    keywords: tuple[tuple[str, Any], ...] = ()
    """Other keywords of its problem, sorted by name; a sweep chooses those that are not set."""
    sizes: str = ""
    """Sizes of its groups; empty without groups."""

    @classmethod
    def of(cls, problem: GemmProblem, sizes: str = "") -> Shape:
        """The shape with all keywords of a problem, including a missing C."""
        keywords = tuple(sorted((name, getattr(problem, name)) for name in FIELDS if name not in EXTENTS))
        return cls(problem.m, problem.n, problem.k, problem.batch, keywords, sizes)

    @property
    def problem(self) -> GemmProblem:
        """Its problem, with defaults for missing keywords; ProblemError for invalid combinations."""
        words = dict(self.keywords)
        return GemmProblem(self.m, self.n, self.k, **({} if "groups" in words else {"batch": self.batch}), **words)

    @property
    def words(self) -> dict[str, Any]:
        """Its mapping in a suite, without a count."""
        extents = {"m": self.m, "n": self.n, "k": self.k} | ({"batch": self.batch} if self.batch != 1 else {})
        return extents | dict(self.keywords) | ({"sizes": self.sizes} if self.sizes not in ("", BALANCED) else {})

    def __str__(self) -> str:
        """``MxNxK`` or ``MxNxKxBATCH``; with other keywords, the problem as text."""
        if self.keywords:
            return str(self.problem) + (f" sizes={self.sizes}" if self.sizes not in ("", BALANCED) else "")
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.batch}" if self.batch != 1 else "")


@dataclass(frozen=True, slots=True)
class ShapeSuite:
    """The distinct shapes of a file, in its order."""

    name: str
    shapes: tuple[Shape, ...]
    counts: Mapping[Shape, int] = field(default_factory=dict)
    """How often each shape ran, or is listed."""
    format: str = _OURS
    """The format of the file."""
    left_out: tuple[str, ...] = ()
    """What is in the file and not in a shape: whole entries, or parts of them, each with its place."""
    assumed: tuple[str, ...] = ()
    """What the file lacks and gemmill assumes, each with the place of the first such entry."""

    def as_yaml(self) -> str:
        """The text of a suite file. Each shape is JSON, which is valid YAML."""
        lines = [f"# {self.format}", f"name: {json.dumps(self.name)}", "shapes:"]
        for shape in self.shapes:
            count = self.counts.get(shape, 1)
            words = shape.words | ({"count": count} if count != 1 else {})
            lines.append(f"  - {{{', '.join(f'{name}: {json.dumps(value)}' for name, value in words.items())}}}")
        return "\n".join(lines)


def shipped_suites() -> dict[str, Path]:
    """The files of the built-in shape suites, by name."""
    return {path.stem: path for path in sorted((SHIPPED / "shapes").glob("*.yaml"))}


def load_shapes(path: Path, given: Given = NOTHING) -> ShapeSuite:
    """Read a shape suite, a list of another tool, or a folder of such lists.

    Args:
        path: the file or folder.
        given: what lists of other tools may lack.

    Raises:
        RecordError: the file cannot be read or is invalid, with a line ``file:line:column: field: ...`` for each fault.
    """
    try:
        return _load(path, given)
    except RecordError:
        if says := wrong_kind(path, "suite", only_ours=True):
            raise RecordError(f"{path} {says}") from None
        raise


def _load(path: Path, given: Given) -> ShapeSuite:
    if path.is_dir() or format_named(path):
        if (imported := read_problems(path, given)) is None:
            raise RecordError(f"{path}: no file of the folder is in a format of another tool; {_READABLE}")
        return _imported(path, imported)
    try:
        content = read_given(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}:1:1: file: cannot read: {getattr(error, 'strerror', None) or error}") from None
    try:
        if (imported := problems_of(content, path, given)) is not None:
            return _imported(path, imported)
    except RecordError as error:
        raise RecordError(f"{error}; {_LIKE_OURS}") from None

    def read_content(path: Path, limit: int) -> bytes:
        if len(content) > limit:
            message = f"has {len(content):,} bytes; at most {limit:,} are allowed"
            raise OSError(errno.EFBIG, message, str(path))
        return content

    try:
        document = read_document(path, read_content)
        if not isinstance(document.data, dict) or not {"name", "shapes"} & {*document.data}:
            raise RecordError(f"{path}:1:1: this is no list of problems; {_READABLE}")
        suite = _suite(document)
        document.check()
    except ManifestError as error:
        hint = "" if _SHAPES.search(content) else f"; {_READABLE}"
        raise RecordError(f"{error}{hint}") from None
    return suite


def _imported(path: Path, imported: Imported) -> ShapeSuite:
    """The shapes of another tool's list."""
    counts: dict[Shape, int] = {}
    into = Collector(path)
    into.merge(replace(imported, problems=()))
    for listed in imported.problems:
        shape = _shape_of(listed)
        try:
            shape = replace(shape, sizes=checked_sizes(shape.problem, shape.sizes))
        except ProblemError as error:
            into.note(Note(str(error), False, listed.where))
            continue
        counts[shape] = min(MAX_COUNT, counts.get(shape, 0) + listed.count)
    notes = into.result()
    if not counts:
        why = f": {notes.left_out[0]}" if notes.left_out else ""
        raise RecordError(f"{path}: {imported.format}, without any supported problem{why}")
    name = path.resolve().name if path.is_dir() else path.stem
    return ShapeSuite(name, tuple(counts), counts, imported.format, notes.left_out, notes.assumed)


def _shape_of(listed: ListedProblem) -> Shape:
    words: dict[str, Any] = dict(listed.fields)
    shape_fields = {key: words.pop(key) for key in (*EXTENTS, "sizes") if key in words}
    return Shape(**shape_fields, keywords=tuple(sorted(words.items())))


def _suite(document: Document) -> ShapeSuite:
    root = document.data
    if not isinstance(root, dict):
        document.fault((), "a shape suite must be a mapping with name and shapes")
        return ShapeSuite("", ())
    _refuse_unknown(document, (), root, ("name", "defaults", "shapes"))
    name, items = root.get("name", document.path.stem), root.get("shapes")
    if name is not INVALID and not isinstance(name, str):
        document.fault(("name",), f"must be text, not {name!r}")
    if not isinstance(items, list) or not items:
        if items is not INVALID:
            document.fault(("shapes",), f"must be a list of at least one shape; {FORMS}")
        return ShapeSuite(str(name), ())
    defaults = root.get("defaults", {})
    if not isinstance(defaults, dict):
        document.fault(("defaults",), f"must be a mapping of keywords; allowed: {', '.join(KEYWORDS)}")
        defaults = {}
    _refuse_unknown(document, ("defaults",), defaults, (*KEYWORDS, "sizes"))
    counts: dict[Shape, int] = {}
    for index, item in enumerate(items):
        for shape, count in _shapes(document, ("shapes", index), item, defaults, MAX_SHAPES - len(counts)):
            counts[shape] = min(MAX_COUNT, counts.get(shape, 0) + count)
    return ShapeSuite(str(name), tuple(counts), counts)


def _shapes(
    document: Document, location: Location, item: object, defaults: Mapping[str, object], most: int
) -> Iterator[tuple[Shape, int]]:
    """The shapes of an item with their counts; none if it is invalid or has more than ``most`` shapes."""
    fields: Mapping[str, object]
    places: dict[str, Location]
    if isinstance(item, list) and len(item) in (3, 4):
        fields = dict(zip(EXTENTS, item, strict=False))
        places = {key: (*location, index) for index, key in enumerate(fields)}
    elif isinstance(item, dict):
        _refuse_unknown(document, location, item, KEYS)
        fields = {key: item[key] for key in KEYS if key in item}
        places = {key: (*location, key) for key in fields}
    else:
        if item is not INVALID:
            document.fault(location, FORMS)
        return
    fields = {key: value for key, value in defaults.items() if key in KEYS} | dict(fields)
    places = {key: ("defaults", key) for key in fields} | places
    if missing := [key for key in EXTENTS[:3] if key not in fields]:
        document.fault(location, f"missing {', '.join(missing)}; {FORMS}")
    choices: dict[str, list[Any]] = {}
    for key, value in fields.items():
        values: dict[Location, object] = {places[key]: value}
        may_be_many = isinstance(item, dict) or key in defaults
        if may_be_many and isinstance(value, list) and not (key == "sizes" and _are_sizes(value)):
            values = {(*places[key], index): one for index, one in enumerate(value)}
        if not values:
            document.fault(places[key], f"{key} is an empty list; expected at least one value")
        for place, one in values.items():
            if key not in (*EXTENTS, "count") or (type(one) is int and 1 <= one <= MAX_EXTENT):
                choices.setdefault(key, []).append(one)
            elif one is not INVALID:
                document.fault(place, f"{key} is {one!r}; it must be an integer from 1 to {MAX_EXTENT}")
    if (product := math.prod(map(len, choices.values()))) > most:
        document.fault(location, f"expands to {product:,} shapes; a file can have at most {MAX_SHAPES:,}")
    elif len(choices) == len(fields) and not missing and INVALID not in itertools.chain(*choices.values()):
        for combination in itertools.product(*choices.values()):
            words = dict(zip(choices, combination, strict=True))
            count, sizes = words.pop("count", 1), words.pop("sizes", None)
            extents = {key: words.pop(key) for key in EXTENTS if key in words}
            try:
                shape = Shape(**extents, keywords=tuple(sorted(words.items())))
                shape = replace(shape, sizes=checked_sizes(shape.problem, sizes))
            except (ProblemError, TypeError) as error:  # TypeError: a mapping instead of a word
                document.fault(location, str(error))
                return
            yield shape, count


def _are_sizes(values: list[object]) -> bool:
    return bool(values) and all(type(value) is int for value in values)


def _refuse_unknown(
    document: Document, location: Location, mapping: dict[str, object], allowed: tuple[str, ...]
) -> None:
    for key in mapping:
        if key not in allowed:
            document.fault((*location, key), f"unknown key; allowed: {', '.join(allowed)}", key=True)
