"""Packs: compiled kernels, a decision table and provenance in one file, for machines that have no toolkit.

Layout: a fixed prefix, the index (JSON), then the members (artifacts in their form on disk) back to back. The index
gives each member's name, offset, size and SHA-256; the prefix gives the index's. Opening a pack reads the index only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError, PackError
from gemmill.library.files import publish
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.storage.artifact import Artifact

_MAGIC = b"gempack\x01"
_PREFIX = struct.Struct("<8sQ32s")
"""Magic, bytes of the index, SHA-256 of the index."""
_LARGEST = 1 << 62
"""Whole numbers of the index are at most this, so that sums of two can be offsets in a file."""
_WORDS: Mapping[type, str] = MappingProxyType(
    {
        str: "a text",
        int: "a whole number from 0 to 2^62",
        float: "a number",
        bool: "true or false",
        NoneType: "null",
        list: "a list",
        dict: "a mapping",
    }
)
"""The types of JSON in words."""


class Member(NamedTuple):
    """Where one kernel lies in a pack."""

    name: str
    """Kernel name."""
    offset: int
    """Bytes from the end of the index."""
    bytes: int
    sha256: str


def write_pack(path: Path | str, artifacts: Iterable[Artifact], decisions: Sequence[Decision] = ()) -> int:
    """Write a pack, and return its bytes; it appears whole or not at all. Equal input gives equal bytes.

    Raises:
        PackError: two artifacts have one name, there are none, a decision names a kernel that is not among them, or the
            file cannot be written.
    """
    path = Path(path)
    try:
        publish(path, parts := pack_parts(artifacts, decisions))
    except PackError as error:
        raise PackError(f"{path}: {error}") from None
    except OSError as error:
        raise PackError(f"{path}: cannot be written: {error.strerror or error}") from error
    return sum(map(len, parts))


def pack_parts(artifacts: Iterable[Artifact], decisions: Sequence[Decision] = ()) -> list[bytes]:
    """What a pack's file holds, one after the other; PackError as for :func:`write_pack`."""
    members: list[Member] = []
    contents: list[bytes] = []
    offset = 0
    for artifact in sorted(artifacts, key=lambda artifact: artifact.name):
        data = artifact.to_bytes()
        if members and members[-1].name == artifact.name:
            raise PackError(f"two kernels are named {artifact.name}")
        members.append(Member(name=artifact.name, offset=offset, bytes=len(data), sha256=_sha256(data)))
        contents.append(data)
        offset += len(data)
    if not members:
        raise PackError("a pack without kernels serves nobody")
    if missing := {decision.kernel for decision in decisions} - {member.name for member in members}:
        raise PackError(f"the decision table names kernels that the pack lacks: {', '.join(sorted(missing))}")
    content = {"members": [member._asdict() for member in members], "decisions": [*map(asdict, decisions)]}
    index = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return [_PREFIX.pack(_MAGIC, len(index), hashlib.sha256(index).digest()), index, *contents]


class Pack:
    """An opened pack. Members are read, and their checksums compared, when asked for; the file stays open.

    Made by :meth:`open`, of the index's rows: a field that is missing or unknown is a TypeError or KeyError, one of
    another type a PackError.
    """

    def __init__(self, path: Path, file: int, start: int, *, members: Any, decisions: Any) -> None:
        self.path = path
        self._file = os.dup(file)  # what was opened stays, whatever takes its place
        weakref.finalize(self, os.close, self._file)
        damaged = f"{path}: the index is damaged: "
        self.decisions = tuple(
            Decision(**{**row, "problem": GemmProblem(**_row(f"{place}.problem", row["problem"], GemmProblem))})
            for place, row in _rows(f"{damaged}decisions", decisions, Decision)
        )
        """The decision table."""
        self._members = {row["name"]: Member(**row) for _, row in _rows(f"{damaged}members", members, Member)}
        self._start = start

    @classmethod
    def open(cls, path: Path | str) -> Pack:
        """Read the index of a pack.

        Raises:
            PackError: there is no such file, it is no pack of this version, or its index is damaged.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                prefix = file.read(_PREFIX.size)
                if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
                    raise PackError(f"{path}: no pack of this version of gemmill")
                _, size, checksum = _PREFIX.unpack(prefix)
                available = os.fstat(file.fileno()).st_size - _PREFIX.size
                index = file.read(min(size, available))
                if len(index) != size:
                    raise PackError(f"{path}: truncated: the index has {len(index)} of {size} bytes")
                if hashlib.sha256(index).digest() != checksum:
                    raise PackError(f"{path}: the index is damaged (checksum mismatch)")
                content = _typed(json.loads(index), (dict,), f"{path}: the index is damaged: it")
                return cls(path, file.fileno(), _PREFIX.size + size, **content)
        except OSError as error:
            raise PackError(f"{path}: {error.strerror or error}") from error
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PackError(f"{path}: written by another version of gemmill: {error}") from error

    def names(self) -> list[str]:
        """Names of the kernels, sorted."""
        return list(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def configs(self, where: Callable[[str], bool] = lambda name: True) -> dict[str, GemmConfig]:
        """The configs of kernels by name, without reading any cubin: of those whose names pass ``where``.

        Raises:
            PackError: a name means nothing to this version of gemmill.
        """
        try:
            return {name: parse_name(name) for name in self._members if where(name)}
        except ConfigError as error:
            raise PackError(f"{self.path}: {error}") from error

    def get(self, name: str) -> Artifact:
        """One kernel.

        Raises:
            PackError: the pack has no such kernel, or the file was truncated or damaged there.
        """
        if name not in self._members:
            raise PackError(f"{self.path}: no kernel {name} among its {len(self._members)}")
        member = self._members[name]
        try:
            most = os.fstat(self._file).st_size  # whatever the index says, no more memory than this
            data = os.pread(self._file, min(member.bytes, most), self._start + member.offset)
        except OSError as error:
            raise PackError(f"{self.path}: {error.strerror or error}") from error
        if len(data) != member.bytes:
            raise PackError(f"{self.path}: truncated: {name} has {len(data)} of {member.bytes} bytes")
        if _sha256(data) != member.sha256:
            raise PackError(f"{self.path}: {name} is damaged (checksum mismatch)")
        try:
            artifact = Artifact.from_bytes(data)
        except ValueError as error:
            raise PackError(f"{self.path}: {name}: {error}") from error
        if artifact.name != name:
            raise PackError(f"{self.path}: the member called {name} is {artifact.name}")
        return artifact

    def verify(self) -> dict[str, str]:
        """What is wrong with each damaged kernel; empty if the pack is sound. Reads everything."""
        faults = {}
        for name in self._members:
            try:
                self.get(name)
            except PackError as error:
                faults[name] = str(error)
        return faults


def _rows(place: str, rows: Any, of: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the index, each with its place; PackError as for :func:`_row`."""
    for i, row in enumerate(_typed(rows, (list,), place)):
        yield f"{place}[{i}]", _row(f"{place}[{i}]", row, of)


def _row(place: str, row: Any, of: type) -> dict[str, Any]:
    """A row of the index, to make a tuple or dataclass of; PackError names the place of a value of another type."""
    types = _types(of)
    fields: dict[str, Any] = _typed(row, (dict,), place)
    for name, value in fields.items():
        if name in types:
            _typed(value, types[name], place, name)
    return fields


def _typed(value: Any, types: tuple[type, ...], *place: str) -> Any:
    if type(value) not in types or (type(value) is int and not 0 <= value <= _LARGEST):
        wanted = " or ".join(_WORDS[each] for each in types)
        raise PackError(f"{'.'.join(place)} is {value!r:.80}; it must be {wanted}")
    return value


@functools.cache
def _types(of: type) -> Mapping[str, tuple[type, ...]]:
    """The types that JSON has for the fields of a tuple or dataclass."""
    return {name: tuple(dict.fromkeys(_json_types(hint))) for name, hint in get_type_hints(of).items()}


def _json_types(hint: Any) -> Iterator[type]:
    if arguments := get_args(hint):  # of a union or a Literal
        for argument in arguments:
            yield from _json_types(argument)
    elif not isinstance(hint, type):
        yield type(hint)  # one word of a Literal
    else:
        yield hint if hint in _WORDS else dict
        if hint is float:
            yield int


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
