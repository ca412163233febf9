"""Reading of YAML files with the position of every value. Values that YAML 1.1 would silently convert are errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import yaml

from gemmill.library.errors import ManifestError
from gemmill.library.files import read_given

Location = tuple[str | int, ...]
"""Keys and list indices from the root to a value."""

INVALID = object()
"""The placeholder for a value with a recorded fault."""

_INT = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_OPENING = re.compile("""(?:[&!]\\S*\\s+)*(?P<quote>['"]?)""")
_CHARACTERS = {"": re.compile("."), "'": re.compile("''|."), '"': re.compile(r"\\(?:x..|u.{4}|U.{8}|.)|.")}
MAX_BYTES = 1 << 20
"""Most bytes of a file: forty times the size of the largest manifest of gemmill."""
MOST_NAMED = 20
"""Faults of a file that an error lists; further faults are only counted."""
_MAX_NODES = 200_000
_MAX_DEPTH = 50
_MOST_WORDED = 500
"""Faults that get a message; further ones are only counted, because messages take longer than detection."""
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One error in a file. Lines and columns count from 1."""

    line: int
    column: int
    field: str
    message: str


@dataclass
class Document:
    """The data of a YAML file, the position of each value, and the faults."""

    path: Path
    data: object = None
    values: dict[Location, tuple[int, int]] = field(default_factory=dict)
    """Line and column of each value."""
    keys: dict[Location, tuple[int, int]] = field(default_factory=dict)
    """Line and column of each key of a mapping."""
    source: str = ""
    """The content of the file."""
    written: dict[Location, slice] = field(default_factory=dict)
    """The range in the source of each single-line text, including anchor, quotes and escapes."""
    invalid: set[Location] = field(default_factory=set)
    """The locations with value :data:`INVALID`."""
    faults: list[Fault] = field(default_factory=list)
    uncounted: int = 0
    """The number of faults beyond those in ``faults``."""

    @property
    def is_full_of_faults(self) -> bool:
        """Whether further faults are only counted."""
        return len(self.faults) >= _MOST_WORDED

    def fault(self, location: Location, message: str, *, key: bool = False, column: int | None = None) -> None:
        """Record a fault at a value, at its key, or at a column (from 0) of its text."""
        position = self.keys.get(location) if key else None
        nearest = location
        while nearest not in self.values and nearest:
            nearest = nearest[:-1]
        line, start = position or self.values.get(nearest, (1, 1))
        if column is not None and nearest in self.written:
            start += _width(self.source[self.written[nearest]], column)
        self.faults.append(Fault(line, start, dotted(location), message))

    def report(self) -> str:
        """The first faults in file order, each as a line ``file:line:column: field: message``, and the number of
        further faults."""
        faults = sorted(set(self.faults))
        lines = [f"{self.path}:{f.line}:{f.column}: {f.field}: {f.message}" for f in faults[:MOST_NAMED]]
        if more := len(faults) + self.uncounted - len(lines):
            lines.append(f"{self.path}: and {more:,} more fault{'s'[: more > 1]}")
        return "\n".join(lines)

    def check(self) -> None:
        """Raise ManifestError if there are faults."""
        if self.faults:
            raise ManifestError(self.report())


def dotted(location: Location) -> str:
    """A location as text, for example ``sets[0].tile.m``."""
    names = [part if isinstance(part, int) or part.isprintable() else repr(part) for part in location]
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)
    return text.removeprefix(".") or "manifest"


def read_document(path: Path, read: Callable[[Path, int], bytes] = read_given) -> Document:
    """Read one YAML document; faults within it are recorded in the result.

    Args:
        path: its file; with the default of ``read``, also a pipe.
        read: a function that reads the file, up to a number of bytes.

    Raises:
        ManifestError: the file cannot be read, is too large, is not UTF-8, or is not YAML.
    """
    document = Document(path)
    text = document.source = _text(document, read)
    try:
        _check_size(text)
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        if node is None:
            document.fault((), "the file is empty; write a manifest")
        else:
            converter = _Converter(document)
            document.data = converter.convert(node, ())
            if converter.nodes > _MAX_NODES:
                document.fault((), f"aliases expand to more than {_MAX_NODES:,} values")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        document.faults.append(Fault(line + 1, column + 1, "YAML", _syntax(error, text, line, column)))
    if document.data is None:
        document.check()
    return document


def _check_size(text: str) -> None:
    """Reject input that would overflow the C stack of libyaml's recursive composer, or need much memory."""
    try:
        _walk(text, yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        # PyYAML 6.0.4's C parser rejects a thousand levels while it looks ahead; the slower parser does not.
        if "nesting" not in str(error.problem):
            raise
        _walk(text, yaml.SafeLoader)


def _walk(text: str, loader: type[yaml.CSafeLoader | yaml.SafeLoader]) -> None:
    """Reject too deeply nested lists and mappings, and too many values."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.NodeEvent):
            nodes += 1
            depth += isinstance(event, yaml.CollectionStartEvent)
        if depth > _MAX_DEPTH or nodes > _MAX_NODES:
            deep = f"lists and mappings are nested more than {_MAX_DEPTH} deep"
            problem = deep if depth > _MAX_DEPTH else f"there are more than {_MAX_NODES:,} values"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=cast(yaml.Mark, event.start_mark))


def _text(document: Document, read: Callable[[Path, int], bytes]) -> str:
    try:
        raw = read(document.path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ManifestError(f"{document.path}:1:1: file: cannot be read: {reason}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = raw[: error.start].decode("utf-8-sig")
        _refuse_at(document, text, f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8")
    if control := yaml.reader.Reader.NON_PRINTABLE.search(text):
        _refuse_at(document, text[: control.start()], f"the control character U+{ord(control[0]):04X} is not allowed")
    return text


def _refuse_at(document: Document, text_before: str, message: str) -> None:
    """Raise ManifestError with a fault at the end of ``text_before``."""
    position = text_before.count("\n") + 1, len(text_before) - text_before.rfind("\n")
    document.faults.append(Fault(*position, "file", message))
    document.check()


def _syntax(error: yaml.MarkedYAMLError, text: str, line: int, column: int) -> str:
    lines = text.splitlines()
    if line < len(lines) and lines[line][column : column + 1] == "\t":
        return "a tab cannot indent YAML; use spaces"
    return f"{error.problem or 'cannot be parsed'}{f' ({error.context})' if error.context else ''}"


class _Converter:
    """Converts nodes to dicts, lists, strings and integers, and records the position of each."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.active: set[int] = set()
        self.nodes = 0

    def convert(self, node: yaml.Node, location: Location) -> object:
        self.document.values[location] = _position(node)
        self.nodes += 1
        if id(node) in self.active:
            return self.refuse(node, location, "an alias must not be inside its own anchor")
        if self.nodes > _MAX_NODES:
            return INVALID
        if len(self.active) > _MAX_DEPTH:
            return self.refuse(node, location, f"aliases are nested more than {_MAX_DEPTH} deep")
        self.active.add(id(node))
        try:
            if isinstance(node, yaml.ScalarNode):
                return self.scalar(node, location)
            if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
                return self.refuse(node, location, f"the tag {_short(node.tag)} is not supported; remove it")
            if isinstance(node, yaml.SequenceNode):
                return [self.convert(item, (*location, index)) for index, item in enumerate(node.value)]
            return self.mapping(node, location)
        finally:
            self.active.discard(id(node))

    def mapping(self, node: yaml.Node, location: Location) -> dict[str, object]:
        result: dict[str, object] = {}
        for key_node, value_node, merged in self.pairs(node, location):
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != f"{_TAG}str":
                self.complain(key_node, location, f"the key {_excerpt(key_node)} is not text; keys must be field names")
                continue
            key = key_node.value
            if key not in result:
                self.document.keys[(*location, key)] = _position(key_node)
                result[key] = self.convert(value_node, (*location, key))
            elif not merged:
                line, _ = self.document.keys[(*location, key)]
                self.complain(key_node, (*location, key), f"duplicate key; the first one is in line {line}")
        return result

    def pairs(self, node: yaml.Node, location: Location) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """The keys and values of a mapping, then those that ``<<`` merges into it, which are marked True."""
        merges: list[yaml.Node] = []
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                merges += value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                yield key, value, False
        for source in merges:
            if not isinstance(source, yaml.MappingNode) or id(source) in self.active:
                self.complain(source, location, "the value of `<<` must be an alias of another mapping")
                continue
            if len(self.active) > _MAX_DEPTH:
                self.complain(source, location, f"aliases are nested more than {_MAX_DEPTH} deep")
                continue
            self.active.add(id(source))
            for key, value, _ in self.pairs(source, location):
                self.nodes += 1
                if self.nodes > _MAX_NODES:
                    break
                yield key, value, True
            self.active.discard(id(source))

    def scalar(self, node: yaml.ScalarNode, location: Location) -> object:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        if kind == "str":
            if node.start_mark.line == node.end_mark.line and node.style not in ("|", ">"):
                self.document.written[location] = slice(node.start_mark.index, node.end_mark.index)
            return text
        if kind == "int" and _INT.fullmatch(text):
            return int(text)
        excerpt = _excerpt(node)
        if kind == "int" and re.fullmatch("-?[0-9]{19,}", text):
            message = f"{excerpt} is out of range"
        elif kind == "int":
            message = f"YAML 1.1 reads {excerpt} as {_yaml_int(node)}; write a plain decimal, or quote it for text"
        elif kind == "bool":
            message = f"YAML 1.1 reads {excerpt} as a truth value; quote it for text"
        elif kind == "null":
            message = "has no value; write one or remove the key"
        elif kind == "float":
            message = f"{excerpt} is not an integer"
        elif kind == "timestamp":
            message = f"YAML 1.1 reads {excerpt} as a date; quote it for text"
        else:
            message = f"the tag {_short(node.tag)} is not supported; remove it"
        return self.refuse(node, location, message)

    def refuse(self, node: yaml.Node, location: Location, message: str) -> object:
        self.complain(node, location, message)
        self.document.invalid.add(location)
        return INVALID

    def complain(self, node: yaml.Node, location: Location, message: str) -> None:
        self.document.faults.append(Fault(*_position(node), dotted(location), message))


def _position(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _width(written: str, characters: int) -> int:
    """The columns in the source before a character of a text, including anchor and quotes."""
    opening = _OPENING.match(written)
    assert opening is not None, "the pattern also matches an empty text"
    units = _CHARACTERS[opening["quote"]].findall(written, opening.end())
    return opening.end() + len("".join(units[:characters]))


def _excerpt(node: yaml.Node) -> str:
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else node.tag.removeprefix(_TAG)
    return f"`{text[:40]}`"


def _short(tag: str) -> str:
    return tag.replace(_TAG, "!!")


def _yaml_int(node: yaml.ScalarNode) -> str:
    try:
        if len(node.value) > 40:
            return "a number"
        return str(yaml.constructor.SafeConstructor().construct_yaml_int(node))
    except ValueError:
        return "a number"
