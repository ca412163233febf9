"""Fetches exactly the kernels of a lock file, from any source, or raises an error that names the differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from gemmill.library.bits import ANY
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
    """A kernel of a lock file."""

    artifact: Artifact
    source: Source
    """Where the kernel came from."""


def lock(
    registry: Registry,
    problems: Sequence[GemmProblem],
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] | None = None,
    bits: str = ANY,
) -> Lock:
    """Return the lock of the kernels that a registry selects for problems; compiles those that are missing.

    Args:
        registry: the registry.
        problems: the problems.
        jobs: processes that compile.
        on_done: called for each kernel that packs do not hold, as it finishes.
        bits: as for :meth:`Registry.select`.

    Raises:
        UnsupportedProblemError, CompileError, ToolchainError, PackError: as for :meth:`Registry.warm`.
    """
    kernels = {problem: registry.select(problem, bits=bits).kernel for problem in problems}
    names = [*dict.fromkeys(kernel.name for kernel in kernels.values())]
    return Lock.of(registry.gpu.name, kernels, registry.warm(names, jobs=jobs, on_done=on_done))


def fetch(
    registry: Registry,
    locked: Lock,
    jobs: int | None = None,
    on_done: Callable[[Outcome], None] | None = None,
) -> list[Fetched]:
    """Load exactly the kernels of a lock into a registry and its store.

    Each kernel is looked up by its key in the packs, the store and the remote; otherwise the registry compiles it. The
    result must have the bits that the lock names.

    Args:
        registry: the registry whose packs and store are searched, and that has the kernels loaded afterwards.
        locked: the lock.
        jobs: processes that compile.
        on_done: called for each kernel that was not found, as it finishes.

    Returns:
        The kernels, in the order of the lock.

    Raises:
        LockError: some kernels differ from the lock; names each difference. Then none is loaded.
        ToolchainError, RemoteError: some kernels were not found and cannot be compiled here.
        CompileError: some kernels do not compile.
    """
    kernels = {name: fetched for name, kernel in locked.kernels.items() if (fetched := _find(registry, kernel))}
    if missing := [name for name in locked.kernels if name not in kernels]:
        # A separate registry, since the packs of the other one may have kernels of these names with other bits.
        plain = Registry(manifests=(), store=registry.store, gpu=registry.gpu, remote=registry.remote)
        try:
            artifacts = plain.warm(missing, jobs=jobs, on_done=on_done)
        except ToolchainError as error:
            which = f"{len(missing)} of {len(locked.kernels)} locked kernels, such as {missing[0]},"
            raise ToolchainError(
                f"{which} are in no pack and no store, and cannot be compiled here: {error}"
            ) from error
        kernels |= {artifact.name: Fetched(artifact, "compiled") for artifact in artifacts}
    differences = [
        f"{name}: {difference}"
        for name, kernel in locked.kernels.items()
        if (difference := kernel.difference(kernels[name].artifact))
    ]
    if differences:
        raise LockError(
            f"{len(differences)} of {len(locked.kernels)} kernels differ from the lock:\n" + "\n".join(differences)
        )
    for kernel in locked.kernels.values():
        registry.add(artifact := kernels[kernel.name].artifact)
        if not registry.store.holds(kernel.key):
            registry.store.put(kernel.key, artifact)
    return [kernels[name] for name in locked.kernels]


def _find(registry: Registry, kernel: LockedKernel) -> Fetched | None:
    """Return a kernel that matches the lock, from a pack, the store or the remote."""
    for pack in registry.packs:
        if kernel.name in pack:
            with suppress(PackError):  # another pack may have it undamaged
                if not kernel.difference(artifact := pack.get(kernel.name)):
                    return Fetched(artifact, "pack")
    stored = registry.store.get(kernel.key)
    if stored is not None and not kernel.difference(stored):
        return Fetched(stored, "store")
    fetched = _request(registry, kernel)
    return Fetched(fetched, "remote") if fetched is not None and not kernel.difference(fetched) else None


def _request(registry: Registry, kernel: LockedKernel) -> Artifact | None:
    """Return a kernel from the remote by the key in the lock, which needs no toolchain."""
    if registry.remote is None:
        return None
    from gemmill.runtime.storage.remote.protocol import RequestedKernel

    requested = RequestedKernel(
        kernel.name, kernel.provenance.source_digest, kernel.provenance.headers_digest, kernel.key
    )
    reply = registry.remote.kernel(requested, machine(registry.gpu))
    return reply if isinstance(reply, Artifact) else None
