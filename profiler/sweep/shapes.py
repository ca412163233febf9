"""Shape suites: YAML files that name the problems a sweep measures.

A suite is ``{name: large, shapes: [[4096, 4096, 4096], [128, 128, 4096, 16], {m: 1000, n: 3000, k: 1024}]}``. Each
shape is a list ``[m, n, k]`` or ``[m, n, k, batch]``, or a mapping with those keys; batch is 1 unless given. In a
mapping, lists are cross products, as in manifests: ``{m: [1, 16, 4096], n: 6144, k: 4096}`` is three shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemmill.library.errors import ManifestError, RecordError
from gemmill.library.manifest.document import INVALID, Document, Location, read_document
from gemmill.library.manifest.load import SHIPPED
from gemmill.library.problem import MAX_EXTENT

EXTENTS = ("m", "n", "k", "batch")
"""Keys of a shape, in the order of its list form."""
MAX_SHAPES = 100_000
"""Most shapes of a file."""
FORMS = "a shape is [m, n, k], [m, n, k, batch] or a mapping with those keys"


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of a GEMM, without formats."""

    m: int
    n: int
    k: int
    batch: int = 1

    def __str__(self) -> str:
        """``MxNxK``, and ``xBATCH`` where there is more than one."""
        return f"{self.m}x{self.n}x{self.k}" + (f"x{self.batch}" if self.batch != 1 else "")


@dataclass(frozen=True, slots=True)
class ShapeSuite:
    """Shapes measured together, in the order of the file, without duplicates."""

    name: str
    shapes: tuple[Shape, ...]


def shipped_suites() -> dict[str, Path]:
    """The files of the shape suites that ship, by name."""
    return {path.stem: path for path in sorted((SHIPPED / "shapes").glob("*.yaml"))}


def load_shapes(path: Path) -> ShapeSuite:
    """Read a shape suite.

    Raises:
        RecordError: the file cannot be read or is wrong; one ``file:line:column: field: ...`` line for each fault.
    """
    try:
        document = read_document(path)
        suite = _suite(document)
        document.check()
    except ManifestError as error:
        raise RecordError(str(error)) from None
    return suite


def _suite(document: Document) -> ShapeSuite:
    root = document.data
    if not isinstance(root, dict):
        document.fault((), "a shape suite is a mapping with name and shapes")
        return ShapeSuite("", ())
    _refuse_unknown(document, (), root, ("name", "shapes"))
    name, items = root.get("name", document.path.stem), root.get("shapes")
    if name is not INVALID and not isinstance(name, str):
        document.fault(("name",), f"{name!r} is not text")
    if not isinstance(items, list) or not items:
        if items is not INVALID:
            document.fault(("shapes",), f"must be a list with at least one shape; {FORMS}")
        return ShapeSuite(str(name), ())
    first: dict[Shape, int] = {}
    for index, item in enumerate(items):
        for shape in _shapes(document, ("shapes", index), item, MAX_SHAPES - len(first)):
            if shape in first:
                document.fault(("shapes", index), f"{shape} stands twice; it is shapes[{first[shape]}] already")
            first.setdefault(shape, index)
    return ShapeSuite(str(name), tuple(first))


def _shapes(document: Document, location: Location, item: object, most: int) -> Iterator[Shape]:
    """The shapes of an item; none where it is wrong, or they are more than ``most``."""
    given: Mapping[str, object]
    places: dict[str, Location]
    if isinstance(item, list) and len(item) in (3, 4):
        given = dict(zip(EXTENTS, item, strict=False))
        places = {key: (*location, index) for index, key in enumerate(given)}
    elif isinstance(item, dict):
        _refuse_unknown(document, location, item, EXTENTS)
        given = {key: item[key] for key in EXTENTS if key in item}
        places = {key: (*location, key) for key in given}
    else:
        if item is not INVALID:
            document.fault(location, FORMS)
        return
    if missing := [key for key in EXTENTS[:3] if key not in given]:
        document.fault(location, f"{', '.join(missing)} missing; {FORMS}")
    extents: dict[str, list[int]] = {}
    for key, value in given.items():
        values: dict[Location, object] = {places[key]: value}
        if isinstance(item, dict) and isinstance(value, list):
            values = {(*places[key], index): extent for index, extent in enumerate(value)}
        if not values:
            document.fault(places[key], f"{key} is an empty list; it needs a number")
        for place, extent in values.items():
            if type(extent) is int and 1 <= extent <= MAX_EXTENT:
                extents.setdefault(key, []).append(extent)
            elif extent is not INVALID:
                document.fault(place, f"{key} is {extent!r}; allowed: a whole number from 1 to {MAX_EXTENT}")
    if (count := math.prod(map(len, extents.values()))) > most:
        document.fault(location, f"stands for {count:,} shapes; a file may for {MAX_SHAPES:,}")
    elif len(extents) == len(given) and not missing:
        for combination in itertools.product(*extents.values()):
            yield Shape(**dict(zip(extents, combination, strict=True)))


def _refuse_unknown(document: Document, location: Location, mapping: dict[str, object], known: tuple[str, ...]) -> None:
    for key in mapping:
        if key not in known:
            document.fault((*location, key), f"unknown key; allowed: {', '.join(known)}", key=True)
