"""Lock files: the kernels for problems, bit for bit, so that one machine builds what another runs.

Keep them under version control: equal problems, kernels and toolchains give equal bytes, and changes show in a diff.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import GemmillError, LockError
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import is_sha256, publish, read_given
from gemmill.library.input.strict_json import RowError, parse, read_row
from gemmill.library.problem import GemmProblem
from gemmill.library.version import __version__
from gemmill.runtime.storage.artifact import Artifact, Provenance, canonical

SCHEMA = "gemmill.lockfile/1"
MAX_LOCK_BYTES = 64 << 20
"""Largest lock file, in bytes: ten thousand kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedKernel:
    """The exact bits of a kernel."""

    name: str
    key: str
    """:attr:`Artifact.key`, the key of the kernel in stores and servers."""
    cubin: str
    """:attr:`Artifact.digest`: SHA-256, in hex, of its machine code. Its file may still differ between versions of
    zstandard or gemmill, which does not affect how it runs."""
    provenance: Provenance
    """What it was made from; names the difference where keys differ."""

    @classmethod
    def of(cls, artifact: Artifact) -> LockedKernel:
        """Return the lock of a compiled kernel."""
        return cls(name=artifact.name, key=artifact.key, cubin=artifact.digest, provenance=artifact.provenance)

    def difference(self, artifact: Artifact) -> str:
        """Return how another compiled kernel differs; empty where it is the same."""
        if artifact.name != self.name:
            return f"the kernel with its key is {artifact.name}"
        if artifact.key == self.key:
            if artifact.digest == self.cubin:
                return ""
            return (
                f"made from the same inputs, but the digest of its machine code is {artifact.digest[:12]}, locked "
                f"{self.cubin[:12]}"
            )
        locked, actual = asdict(self.provenance), asdict(artifact.provenance)
        others = [name for name in locked if actual[name] != locked[name] and name != "gemmill_version"]
        differences = [f"{name} is {_brief(actual[name])}, locked {_brief(locked[name])}" for name in others]
        return "; ".join(differences) or f"its key is {artifact.key[:12]}, locked {self.key[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Problems, and their kernels on a GPU."""

    gpu: str
    """Name of the GPU that kernels were selected for."""
    problems: Mapping[str, SlicedKernel]
    """Kernels and slices of K by problem, in the form of ``str(problem)``."""
    kernels: Mapping[str, LockedKernel]
    """Kernels by name."""
    gemmill: str = __version__
    """Version of the gemmill that made it."""

    @classmethod
    def of(cls, gpu: str, problems: Mapping[GemmProblem, SlicedKernel], artifacts: Iterable[Artifact]) -> Lock:
        """Return the lock of compiled kernels and of the problems that use them."""
        return cls(
            gpu=gpu,
            problems={str(problem): kernel for problem, kernel in problems.items()},
            kernels={artifact.name: LockedKernel.of(artifact) for artifact in artifacts},
        )

    @property
    def content(self) -> dict[str, Any]:
        """The GPU, the names of kernels by problem, and the slices of K where there are several, in the form of
        JSON."""
        names = {problem: kernel.name for problem, kernel in self.problems.items()}
        slices = {problem: kernel.slices for problem, kernel in self.problems.items() if kernel.slices > 1}
        return {"gpu": self.gpu, "problems": names} | ({"slices": slices} if slices else {})

    @property
    def arithmetic(self) -> dict[str, str | None]:
        """The name of the arithmetic of each problem, which its kernel and slices determine."""
        return {problem: arithmetic_named(kernel) for problem, kernel in self.problems.items()}

    def to_bytes(self) -> bytes:
        """Return the lock as JSON, with one line per value."""
        kernels = {name: asdict(kernel) for name, kernel in self.kernels.items()}
        for fields in kernels.values():
            del fields["name"]
        content = {"schema": SCHEMA, "gemmill": self.gemmill, **self.content}
        return (json.dumps({**content, "kernels": kernels}, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Lock:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            LockError: it is not a lock file of this version of gemmill.
        """
        try:
            return _read(parse(data))
        except (GemmillError, KeyError, TypeError, ValueError) as error:
            raise LockError(
                f"not a lock file of this version of gemmill: {error}; create one with `gemmill lock`"
            ) from None

    def write(self, path: Path) -> None:
        """Write it to a file, completely or not at all; OSError where that fails."""
        publish(path, [self.to_bytes()])

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read the lock in a file.

        Raises:
            LockError: it cannot be read, or is not a lock file; names the file.
        """
        try:
            return cls.from_bytes(read_given(path, MAX_LOCK_BYTES))
        except OSError as error:
            raise LockError(f"{path}: {error.strerror or error}; create one with `gemmill lock`") from error
        except LockError as error:
            says = wrong_kind(path, "lock")
            raise LockError(f"{path} {says}" if says else f"{path}: {error}") from None


class _LockedAs(NamedTuple):
    """A kernel in the file, by its name."""

    key: str
    cubin: str
    provenance: dict[str, Any]


class _Content(NamedTuple):
    """Content of the file."""

    schema: str
    gemmill: str
    gpu: str
    problems: Mapping[str, str]
    kernels: Mapping[str, _LockedAs]
    slices: Mapping[str, int] = MappingProxyType({})


def _read(content: Any) -> Lock:
    """Return the lock from JSON; raises an error where it is invalid."""
    if isinstance(content, dict) and content.get("schema") != SCHEMA:
        raise RowError(f"its schema is {content.get('schema')!r:.80}; it must be {SCHEMA!r}")
    file = read_row("it", content, _Content)
    kernels = {name: _kernel(name, locked) for name, locked in file.kernels.items()}
    problems = {text: SlicedKernel.recorded(name, file.slices.get(text, 1)) for text, name in file.problems.items()}
    for text, kernel in problems.items():
        if str(GemmProblem.from_text(text)) != text:
            raise RowError(f"problems has {text!r:.200}, which is not the canonical form of a problem")
        if kernel.name not in kernels:
            raise RowError(f"problems.{text} is {kernel.name!r:.200}, which is not one of its kernels")
    return Lock(gpu=file.gpu, problems=problems, kernels=kernels, gemmill=file.gemmill)


def _kernel(name: str, locked: _LockedAs) -> LockedKernel:
    parse_name(plain_name(name))
    for what, text in (("key", locked.key), ("cubin", locked.cubin)):
        if not is_sha256(text):
            raise RowError(f"kernels.{name}.{what} is {text!r:.80}, which is not a SHA-256 in hex")
    return LockedKernel(name=name, key=locked.key, cubin=locked.cubin, provenance=Provenance.of(locked.provenance))


def _brief(value: object) -> str:
    """Return a value of a provenance for messages; digests are cut to twelve digits."""
    text = value if isinstance(value, str) else canonical(value).decode()
    return text[:12] if is_sha256(text) else text
