"""Kernels of a lock file: exactly those, from wherever they are, or an error that names what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from gemmill.library.errors import LockError, PackError, ToolchainError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.host_gpu import machine
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.lockfile import Lock, LockedKernel

if TYPE_CHECKING:
    from gemmill.runtime.compile.pool import Outcome

Source = Literal["pack", "store", "remote", "compiled"]


class Fetched(NamedTuple):
    """A kernel of a lock."""

    artifact: Artifact
    source: Source
    """Where it was: in a pack, in the store, at the remote, or nowhere, so that it was made."""


def lock(
    registry: Registry,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] | None = None,
) -> Lock:
    """The lock of the kernels that a registry selects for problems; compiles what it has not.

    Raises:
        UnsupportedProblemError, CompileError, ToolchainError, PackError: as for :meth:`Registry.warm`.
    """
    kernels = {problem: registry.select(problem).kernel for problem in problems}
    names = [*dict.fromkeys(kernel.name for kernel in kernels.values())]
    return Lock.of(registry.gpu.name, kernels, registry.warm(names, jobs=jobs, on_done=on_done))


def fetch(
    registry: Registry,
    locked: Lock,
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] | None = None,
) -> list[Fetched]:
    """Have exactly the kernels of a lock at hand in a registry, and in its store.

    Each is looked for by its key in the packs, in the store and at the remote, then made as the registry makes kernels
    that it has not; what comes must be, to the bit, what the lock names.

    Args:
        registry: its packs and store are looked into, and it has the kernels at hand from then on.
        locked: the lock.
        jobs: processes that compile.
        on_done: called for each kernel that is nowhere, as it finishes.

    Returns:
        The kernels, in the order of the lock.

    Raises:
        LockError: some are not what the lock names; says of each what differs. None is at hand then.
        ToolchainError, RemoteError: some are nowhere, and cannot be compiled here.
        CompileError: some do not compile.
    """
    kernels = {name: fetched for name, kernel in locked.kernels.items() if (fetched := _find(registry, kernel))}
    if missing := [name for name in locked.kernels if name not in kernels]:
        # A registry of its own: in the packs of the other one kernels of these names have other bits.
        plain = Registry(manifests=(), store=registry.store, gpu=registry.gpu, remote=registry.remote)
        try:
            artifacts = plain.warm(missing, jobs=jobs, on_done=on_done)
        except ToolchainError as error:
            which = f"{len(missing)} of {len(locked.kernels)} kernels, {missing[0]} the first,"
            raise ToolchainError(f"no pack and no store has {which} as locked, and here: {error}") from error
        kernels |= {artifact.name: Fetched(artifact, "compiled") for artifact in artifacts}
    differences = [
        f"{name}: {difference}"
        for name, kernel in locked.kernels.items()
        if (difference := kernel.difference(kernels[name].artifact))
    ]
    if differences:
        raise LockError(
            f"{len(differences)} of {len(locked.kernels)} kernels are not as locked:\n" + "\n".join(differences)
        )
    for kernel in locked.kernels.values():
        registry.add(artifact := kernels[kernel.name].artifact)
        if not registry.store.holds(kernel.key):
            registry.store.put(kernel.key, artifact)
    return [kernels[name] for name in locked.kernels]


def _find(registry: Registry, kernel: LockedKernel) -> Fetched | None:
    """A kernel that a pack, or the store, has as locked."""
    for pack in registry.packs:
        if kernel.name in pack:
            with suppress(PackError):  # another pack may have it sound
                if not kernel.difference(artifact := pack.get(kernel.name)):
                    return Fetched(artifact, "pack")
    kept = registry.store.get(kernel.key)
    if kept is not None and not kernel.difference(kept):
        return Fetched(kept, "store")
    served = _request(registry, kernel)
    return Fetched(served, "remote") if served is not None and not kernel.difference(served) else None


def _request(registry: Registry, kernel: LockedKernel) -> Artifact | None:
    """A kernel from the remote, by the key that the lock names: no toolchain is needed to know it."""
    if registry.remote is None:
        return None
    from gemmill.runtime.storage.remote.protocol import RequestedKernel

    requested = RequestedKernel(
        kernel.name, kernel.provenance.source_digest, kernel.provenance.headers_digest, kernel.key
    )
    served = registry.remote.kernel(requested, machine(registry.gpu))
    return served if isinstance(served, Artifact) else None
