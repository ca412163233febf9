"""Packs: compiled kernels, a table of measured decisions, a choice table and provenance in one file, for machines
without a toolkit.

Layout: a fixed prefix, the index (JSON), then the members (artifacts in their file format) back to back. The index has
each member's name, offset, size and SHA-256; the prefix has those of the index. Opening a pack reads only the index. A
kernel is verified when it is first read (:mod:`gemmill.runtime.storage.verification`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from gemmill.library.config.edited import is_edited
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import is_former, parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError, PackError
from gemmill.library.files import open_given, publish
from gemmill.library.input.strict_json import RowError, parse, row, rows, typed
from gemmill.library.problem import MAX_US, MIN_US, GemmProblem
from gemmill.library.version import __version__
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.settings import Settings, default_store
from gemmill.runtime.storage.artifact import MAX_BYTES, SCHEMA_VERSION, Artifact
from gemmill.runtime.storage.note_lines import NoteLines

if TYPE_CHECKING:
    from gemmill.runtime.storage.trust.signatures import TrustedKeys

_MAGIC = b"gempack\x01"
_PREFIX = struct.Struct("<8sQ32s")
"""Magic, bytes of the index, SHA-256 of the index."""
MAX_PACK_BYTES = 16 << 30
"""Largest pack, in bytes: a hundred thousand kernels."""
MAX_INDEX_BYTES = 32 << 20
"""Largest index, in bytes."""


class Member(NamedTuple):
    """Location of one kernel in a pack."""

    name: str
    """Kernel name."""
    offset: int
    """Bytes from the end of the index."""
    bytes: int
    sha256: str


class _Index(NamedTuple):
    """Content of a pack's index, not yet read. Made from its JSON, where a missing or unknown member gives a
    TypeError."""

    gemmill: Any
    signature: Any
    members: Any
    decisions: Any
    choices: Any = None
    """Packs without a choice table lack it."""


def write_pack(
    path: Path | str,
    artifacts: Iterable[Artifact],
    decisions: Sequence[Decision] = (),
    choices: ChoiceTable | None = None,
) -> int:
    """Write a pack and return its size in bytes. The file appears completely or not at all. Equal inputs give equal
    bytes.

    Raises:
        PackError: two artifacts have the same name, there are none, a decision or choice names a kernel that is not
            among them, or the file cannot be written.
    """
    path = Path(path)
    try:
        publish(path, parts := pack_parts(artifacts, decisions, choices))
    except PackError as error:
        raise PackError(f"{path}: {error}") from None
    except OSError as error:
        raise PackError(f"{path}: cannot be written: {error.strerror or error}") from error
    return sum(map(len, parts))


def pack_parts(
    artifacts: Iterable[Artifact], decisions: Sequence[Decision] = (), choices: ChoiceTable | None = None
) -> list[bytes]:
    """Return the parts of a pack's file in order; PackError as for :func:`write_pack`."""
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
        raise PackError("a pack must have at least one kernel")
    if odd := sorted({decision.kernel for decision in decisions if is_edited(decision.kernel)}):
        raise PackError(f"the decision table names edited kernels, which the selector never picks: {', '.join(odd)}")
    chosen = () if choices is None else choices.kernels
    for table, kernels in (("decision", {x.kernel for x in decisions}), ("choice", {x.name for x in chosen})):
        if missing := kernels - {member.name for member in members}:
            raise PackError(f"the {table} table names kernels that are not in the pack: {', '.join(sorted(missing))}")
    content = {
        "gemmill": __version__,
        "signature": None,
        "members": [member._asdict() for member in members],
        "decisions": [*map(asdict, decisions)],
    } | ({} if choices is None else {"choices": choices.to_json()})
    index = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return [_PREFIX.pack(_MAGIC, len(index), hashlib.sha256(index).digest()), index, *contents]


class Pack:
    """An opened pack. It reads members on demand and checks their checksums; the file stays open.

    :meth:`open` makes packs. Invalid rows of the index give errors: TypeError or KeyError for a missing or unknown
    field, RowError for a field with a wrong type or value.
    """

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        start: int,
        checksum: bytes,
        store: Path | None,
        index: _Index,
    ) -> None:
        self.path = path
        self._file = os.dup(file.fileno())  # keeps this file open even if another replaces it
        weakref.finalize(self, os.close, self._file)
        self._start = start
        # Verified kernels are recorded by the digest of the index, which covers that of each kernel, wherever the file
        # is. Verification by another version of gemmill does not count, since it may compute launches differently.
        verified = _sha256(f"{__version__} {SCHEMA_VERSION} {checksum.hex()}".encode())
        self._verified = NoteLines(store or Settings.read().store or default_store(), "verified", verified)
        self._sound = {*self._verified.lines}
        self.digest = checksum.hex()
        """SHA-256, in hex, of its index, which has that of each kernel: the identity of a pack."""
        self.gemmill: str = typed(index.gemmill, (str,), "gemmill")
        """Version of the gemmill that wrote it."""
        self.bytes = os.fstat(self._file).st_size
        """Size of the file in bytes."""
        if index.signature is not None:
            raise PackError(f"{path}: it has an embedded signature, which this version of gemmill cannot check")
        self._members: dict[str, Member] = {}
        end = 0
        for place, fields in rows("members", index.members, Member):
            member = Member(**fields)
            if member.name in self._members or member.offset != end:
                raise RowError(f"{place} has the name of another member, or does not start where the previous one ends")
            self._members[member.name] = member
            end += member.bytes
        self.decisions = tuple(
            _decision(place, fields, self._members) for place, fields in rows("decisions", index.decisions, Decision)
        )
        """The table of measured decisions."""
        self.choices = None if index.choices is None else ChoiceTable.read("choices", index.choices, self._members)
        """The choice table; None for a pack that was made without problems."""

    def __repr__(self) -> str:
        return f"<Pack {self.path} of {len(self._members):,} kernels>"

    @classmethod
    def open(cls, path: Path | str, store: Path | None = None, trusted: TrustedKeys | None = None) -> Pack:
        """Open a pack and read its index, from a file or from a pipe, whose content goes to a temporary file.

        Args:
            path: the file.
            store: folder of the store that records which kernels were verified; by default the user's.
            trusted: keys, one of which must have signed the pack in ``PATH.sig``; None checks no signature.

        Raises:
            PackError: the file does not exist, is not a pack of this version, or has a damaged index.
            TrustError: it is unsigned, or signed by other keys.
        """
        path = Path(path)
        pack = cls._open(path, store)
        if trusted is not None:
            from gemmill.runtime.storage.trust.signed_packs import (
                check_signature,
            )  # deferred: not needed without trusted keys

            check_signature(pack, trusted)
        return pack

    @classmethod
    def _open(cls, path: Path, store: Path | None) -> Pack:
        try:
            with open_given(path, MAX_PACK_BYTES) as file:
                prefix = file.read(_PREFIX.size)
                if len(prefix) < _PREFIX.size or not prefix.startswith(_MAGIC):
                    from gemmill.library.file_kinds import wrong_kind  # deferred: not needed for packs

                    says = wrong_kind(path, "pack")
                    raise PackError(
                        f"{path} {says}"
                        if says
                        else f"{path}: not a pack of this version of gemmill; create one with `gemmill pack make`"
                    )
                _, size, checksum = _PREFIX.unpack(prefix)
                if size > MAX_INDEX_BYTES:
                    raise PackError(f"{path}: its index has {size:,} bytes; the limit is {MAX_INDEX_BYTES:,}")
                index = file.read(size)
                if len(index) != size:
                    raise PackError(f"{path}: truncated: the index has {len(index)} of {size} bytes")
                if hashlib.sha256(index).digest() != checksum:
                    raise PackError(f"{path}: the index is damaged (checksum mismatch)")
                content = typed(parse(index), (dict,), "it")
                return cls(path, file, _PREFIX.size + size, checksum, store, _Index(**content))
        except OSError as error:
            way = "; create one with `gemmill pack make`" if isinstance(error, FileNotFoundError) else ""
            raise PackError(f"{path}: {error.strerror or error}{way}") from error
        except RowError as error:
            raise PackError(f"{path}: the index is damaged: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise PackError(
                f"{path}: written by another version of gemmill: {error}; create it again with `gemmill pack make`"
            ) from error

    def names(self) -> list[str]:
        """Return the names of the kernels, sorted."""
        return list(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def configs(self, where: Callable[[str], bool] = lambda name: True) -> dict[str, GemmConfig]:
        """Return the configs of kernels by name, for names that pass ``where``, without reading a cubin.

        Edited kernels are left out, since only callers that name them use them; so are kernels with former names, which
        others have replaced.

        Raises:
            PackError: a name is not valid in this version of gemmill.
        """
        try:
            return {
                name: parse_name(name)
                for name in self._members
                if not (is_edited(name) or is_former(name)) and where(name)
            }
        except ConfigError as error:
            raise PackError(f"{self.path}: {error}") from error

    def get(self, name: str) -> Artifact:
        """Return one kernel, verified.

        Raises:
            PackError: the pack has no such kernel, the file is truncated or damaged there, or the kernel does not match
                its name.
        """
        artifact = self._read(name)
        if name not in self._sound:
            self._verify(name, artifact)
        return artifact

    def verify(self) -> dict[str, str]:
        """Read and verify everything. Return the fault of each damaged kernel; empty if the pack is sound."""
        faults = {}
        for name in self._members:
            try:
                self._verify(name, self._read(name))
            except PackError as error:
                faults[name] = str(error)
        return faults

    def _verify(self, name: str, artifact: Artifact) -> None:
        """Raise PackError for a kernel that does not match its config, and record one that does."""
        from gemmill.runtime.storage.verification import verify  # deferred: not needed for verified kernels

        try:
            verify(artifact)
        except ValueError as error:
            raise PackError(f"{self.path}: {name} does not match its config: {error}") from error
        self._sound.add(name)
        self._verified.add(name)

    def _read(self, name: str) -> Artifact:
        """Return one kernel after checking its checksum."""
        if name not in self._members:
            raise PackError(f"{self.path}: it has no kernel {name} among its {len(self._members)}")
        member = self._members[name]
        if member.bytes > MAX_BYTES:
            raise PackError(f"{self.path}: {name} has {member.bytes:,} bytes; the limit is {MAX_BYTES:,}")
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
            raise PackError(f"{self.path}: the member {name} holds {artifact.name}")
        return artifact


def _decision(place: str, fields: dict[str, Any], members: Mapping[str, Member]) -> Decision:
    """Return a row of the decision table; RowError where it is invalid."""
    problem = GemmProblem.unchecked(**row(f"{place}.problem", fields["problem"], GemmProblem))
    try:
        problem.check()
    except ValueError as error:
        raise RowError(f"{place}.problem: {error}") from None
    if not MIN_US <= fields["us"] <= MAX_US:
        raise RowError(f"{place}.us is {fields['us']!r:.30}; it must be from {MIN_US:g} to {MAX_US:g}")
    kernel = SlicedKernel.recorded(fields["kernel"], fields.get("slices", 1))
    if kernel.name not in members:
        raise RowError(f"{place}.kernel is {kernel.name!r:.200}, which is not in the pack")
    if is_edited(kernel.name):
        raise RowError(f"{place}.kernel is {kernel.name!r:.200}, an edited kernel, which the selector never picks")
    return Decision(**{**fields, "kernel": kernel.name, "slices": kernel.slices, "problem": problem})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
