"""Packs: compiled kernels, a decision table and provenance in one file, for machines that have no toolkit.

Layout: a fixed prefix, the index (JSON), then the members (artifacts in their form on disk) back to back. The index
gives each member's name, offset, size and SHA-256; the prefix gives the index's. Opening a pack reads the index only; a
kernel is verified when it is read for the first time (:mod:`gemmill.runtime.storage.verify`).
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
from typing import Any, BinaryIO, NamedTuple, get_args, get_type_hints

from gemmill.library.config.edited import is_edited
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError, PackError
from gemmill.library.files import open_given, publish
from gemmill.library.input.strict_json import parse
from gemmill.library.problem import MAX_US, MIN_US, GemmProblem
from gemmill.library.version import __version__
from gemmill.library.wording import one_of
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.storage.artifact import MAX_BYTES, Artifact
from gemmill.runtime.storage.verdicts import Verdicts

_MAGIC = b"gempack\x01"
_PREFIX = struct.Struct("<8sQ32s")
"""Magic, bytes of the index, SHA-256 of the index."""
MAX_PACK_BYTES = 16 << 30
"""Most bytes of a pack: a hundred thousand kernels."""
MAX_INDEX_BYTES = 32 << 20
"""Most bytes of its index."""
_LARGEST = 1 << 62
"""Whole numbers of the index are at most this, so that sums of two can be offsets in a file."""
_WORDS: Mapping[type, str] = MappingProxyType(
    {
        str: "a printable text",
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
    if odd := sorted({decision.kernel for decision in decisions if is_edited(decision.kernel)}):
        raise PackError(f"the decision table names edited kernels, which no selector takes: {', '.join(odd)}")
    if missing := {decision.kernel for decision in decisions} - {member.name for member in members}:
        raise PackError(f"the decision table names kernels that the pack lacks: {', '.join(sorted(missing))}")
    content = {
        "gemmill": __version__,
        "signature": None,
        "members": [member._asdict() for member in members],
        "decisions": [*map(asdict, decisions)],
    }
    index = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return [_PREFIX.pack(_MAGIC, len(index), hashlib.sha256(index).digest()), index, *contents]


class Pack:
    """An opened pack. Members are read, and their checksums compared, when asked for; the file stays open.

    Made by :meth:`open`, of the index's rows: a field that is missing or unknown is a TypeError or KeyError, one of
    another type or value a PackError.
    """

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        start: int,
        verdicts: Verdicts,
        *,
        gemmill: Any,
        signature: Any,
        members: Any,
        decisions: Any,
    ) -> None:
        self.path = path
        self._file = os.dup(file.fileno())  # what was opened stays, whatever takes its place
        weakref.finalize(self, os.close, self._file)
        self._start, self._verdicts = start, verdicts
        self.bytes = os.fstat(self._file).st_size
        """Bytes of the file."""
        if signature is not None:
            raise PackError(f"{path}: it is signed, and this version of gemmill can check no signature")
        damaged = f"{path}: the index is damaged: "
        self._members: dict[str, Member] = {}
        end = 0
        for place, row in _rows(f"{damaged}members", members, Member):
            member = Member(**row)
            if member.name in self._members or member.offset != end:
                raise PackError(f"{place} has the name of another, or does not begin where that before it ends")
            self._members[member.name] = member
            end += member.bytes
        self.decisions = tuple(
            _decision(place, row, self._members) for place, row in _rows(f"{damaged}decisions", decisions, Decision)
        )
        """The decision table."""

    def __repr__(self) -> str:
        return f"<Pack {self.path} of {len(self._members):,} kernels>"

    @classmethod
    def open(cls, path: Path | str, store: Path | None = None) -> Pack:
        """Read the index of a pack: of a file, or of a pipe, whose content is kept in a temporary file.

        Args:
            path: the file.
            store: the folder of the store that remembers which kernels were verified; by default the user's.

        Raises:
            PackError: there is no such file, it is no pack of this version, or its index is damaged.
        """
        path = Path(path)
        try:
            with open_given(path, MAX_PACK_BYTES) as file:
                prefix = file.read(_PREFIX.size)
                if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
                    raise PackError(f"{path}: no pack of this version of gemmill; make one with `gemmill pack`")
                _, size, checksum = _PREFIX.unpack(prefix)
                if size > MAX_INDEX_BYTES:
                    raise PackError(f"{path}: its index has {size:,} bytes; at most {MAX_INDEX_BYTES:,} are read")
                index = file.read(size)
                if len(index) != size:
                    raise PackError(f"{path}: truncated: the index has {len(index)} of {size} bytes")
                if hashlib.sha256(index).digest() != checksum:
                    raise PackError(f"{path}: the index is damaged (checksum mismatch)")
                content = _typed(parse(index), (dict,), f"{path}: the index is damaged: it")
                return cls(path, file, _PREFIX.size + size, Verdicts(checksum, store), **content)
        except OSError as error:
            way = "; `gemmill pack` makes one" if isinstance(error, FileNotFoundError) else ""
            raise PackError(f"{path}: {error.strerror or error}{way}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise PackError(f"{path}: written by another version of gemmill: {error}") from error

    def names(self) -> list[str]:
        """Names of the kernels, sorted."""
        return list(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def configs(self, where: Callable[[str], bool] = lambda name: True) -> dict[str, GemmConfig]:
        """The configs of kernels by name, without reading any cubin: of those whose names pass ``where``.

        Edited kernels are not among them: nobody gets one who does not ask for it by its name.

        Raises:
            PackError: a name means nothing to this version of gemmill.
        """
        try:
            return {name: parse_name(name) for name in self._members if not is_edited(name) and where(name)}
        except ConfigError as error:
            raise PackError(f"{self.path}: {error}") from error

    def get(self, name: str) -> Artifact:
        """One kernel, verified.

        Raises:
            PackError: the pack has no such kernel, the file was truncated or damaged there, or the kernel is not what
                its name says.
        """
        artifact = self._read(name)
        if name not in self._verdicts:
            self._verify(name, artifact)
        return artifact

    def verify(self) -> dict[str, str]:
        """What is wrong with each damaged kernel; empty if the pack is sound. Reads and verifies everything."""
        faults = {}
        for name in self._members:
            try:
                self._verify(name, self._read(name))
            except PackError as error:
                faults[name] = str(error)
        return faults

    def _verify(self, name: str, artifact: Artifact) -> None:
        """Refuse a kernel that is not what its config says, and remember one that is."""
        from gemmill.runtime.storage.verify import verify  # not for kernels that are known

        try:
            verify(artifact)
        except ValueError as error:
            raise PackError(f"{self.path}: {name} is not what its config says: {error}") from error
        self._verdicts.add(name)

    def _read(self, name: str) -> Artifact:
        """One kernel as its checksum says."""
        if name not in self._members:
            raise PackError(f"{self.path}: no kernel {name} among its {len(self._members)}")
        member = self._members[name]
        if member.bytes > MAX_BYTES:
            raise PackError(f"{self.path}: {name} has {member.bytes:,} bytes; at most {MAX_BYTES:,} are read")
        try:
            data = os.pread(self._file, member.bytes, self._start + member.offset)
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


def _decision(place: str, row: dict[str, Any], members: Mapping[str, Member]) -> Decision:
    """A row of the decision table; PackError where it cannot be true."""
    fields = _row(f"{place}.problem", row["problem"], GemmProblem)
    problem = GemmProblem.known(**fields)
    try:
        problem.check()
    except ValueError as error:
        raise PackError(f"{place}.problem: {error}") from None
    if not MIN_US <= row["us"] <= MAX_US:
        raise PackError(f"{place}.us is {row['us']!r:.30}; it must be from {MIN_US:g} to {MAX_US:g}")
    if row["kernel"] not in members:
        raise PackError(f"{place}.kernel is {row['kernel']!r:.200}, which is no member")
    if is_edited(row["kernel"]):
        raise PackError(f"{place}.kernel is {row['kernel']!r:.200}, an edited kernel, which no selector takes")
    return Decision(**{**row, "problem": problem})


def _rows(place: str, rows: Any, of: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of the index, each with its place; PackError as for :func:`_row`."""
    for i, row in enumerate(_typed(rows, (list,), place)):
        yield f"{place}[{i}]", _row(f"{place}[{i}]", row, of)


def _row(place: str, row: Any, of: type) -> dict[str, Any]:
    """A row of the index, to make a tuple or dataclass of; PackError names the place of a value of another type, or of
    another word where there are few."""
    kinds = _kinds(of)
    fields: dict[str, Any] = _typed(row, (dict,), place)
    for name, value in fields.items():
        if name in kinds:
            types, words = kinds[name]
            _typed(value, types, place, name)
            if words and value not in words:
                raise PackError(f"{place}.{name} is {value!r:.80}; it must be {one_of(words)}")
    return fields


def _typed(value: Any, types: Sequence[type], *place: str) -> Any:
    is_odd = (type(value) is int and not 0 <= value <= _LARGEST) or (type(value) is str and not value.isprintable())
    if type(value) not in types or is_odd:
        wanted = " or ".join(_WORDS[each] for each in types)
        raise PackError(f"{'.'.join(place)} is {value!r:.80}; it must be {wanted}")
    return value


@functools.cache
def _kinds(of: type) -> Mapping[str, tuple[Sequence[type], Sequence[Any]]]:
    """The types that JSON has for the fields of a tuple or dataclass; and the only values, where these are listed."""
    leaves = {name: [*_leaves(hint)] for name, hint in get_type_hints(of).items()}
    return {
        name: (
            [*dict.fromkeys(kind for leaf in found for kind in _json_types(leaf))],
            [leaf if leaf is not NoneType else None for leaf in found]
            if any(not isinstance(leaf, type) for leaf in found)
            else [],
        )
        for name, found in leaves.items()
    }


def _leaves(hint: Any) -> Iterator[Any]:
    """The types of a union, and the words of a Literal."""
    if arguments := get_args(hint):
        for argument in arguments:
            yield from _leaves(argument)
    else:
        yield hint


def _json_types(leaf: Any) -> Iterator[type]:
    if not isinstance(leaf, type):
        yield type(leaf)
    else:
        yield leaf if leaf in _WORDS else dict
        if leaf is float:
            yield int


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
