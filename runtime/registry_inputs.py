"""Checks what callers pass to a registry; errors say how to pass it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import (
    ConfigError,
    DeviceError,
    ManifestError,
    PackError,
    ProblemError,
    RecordError,
    SettingError,
    StoreError,
)
from gemmill.library.problem import GemmProblem
from gemmill.runtime.settings import Settings

if TYPE_CHECKING:
    from gemmill.library.manifest.kernelset import KernelSet
    from gemmill.runtime.storage.pack import Pack
    from gemmill.runtime.storage.remote.client import Remote
    from gemmill.runtime.storage.store import Store
    from gemmill.runtime.storage.trust.signatures import TrustedKeys

_NO_LIST = {"manifests": ManifestError, "packs": PackError, "records": RecordError}
"""Errors by kind of file."""


def checked_problem(problem: object) -> GemmProblem:
    """Return a problem that a caller passed; ProblemError for anything else."""
    if not isinstance(problem, GemmProblem):
        raise ProblemError(
            f"problem is {problem!r:.80}; it must be a gemmill.GemmProblem, such as GemmProblem(m=4096, n=4096, "
            "k=4096) or GemmProblem.from_text('4096x4096x4096 bf16')"
        )
    return problem


def checked_gpu(gpu: Gpu | str | None) -> Gpu | None:
    """Return a GPU, also by its name as ``--gpu`` takes it; DeviceError for an unknown one."""
    if gpu is None or isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str):
        raise DeviceError(
            f"gpu is {gpu!r:.80}; it must be a name such as 'H200', or None for GPU 0 of this machine. Calls run on "
            "the GPU of their tensors"
        )
    return gpu_named(gpu)


def checked_place(store: Store | str | Path | None) -> Path | None:
    """Return the folder of a store; StoreError for anything that is neither the name of a folder nor a Store."""
    if not (store is None or isinstance(store, str | Path) or hasattr(store, "path")):
        raise StoreError(f"store is {store!r:.80}; it must be the name of a folder or a Store")
    return Path(store) if isinstance(store, str | Path) else store.path if store else None


def check_files(**files: object) -> None:
    """Raise ManifestError, PackError or RecordError for one file in place of a list of files."""
    for name, value in files.items():
        if isinstance(value, str | Path):
            raise _NO_LIST[name](f"{name} is {str(value)!r}; it must be a list: pass {name}=[{str(value)!r}]")


def opened_packs(packs: Iterable[str | Path | Pack], store: Path | None) -> tuple[Pack, ...]:
    """Return packs, and open files and references; where the environment names trusted keys, one of them must have
    signed each of these. Raises TrustError and PackError like :meth:`Pack.open`, and RemoteError where a registry does
    not provide one."""
    if not (files := [*packs]):
        return ()
    from gemmill.runtime.storage.oci.scheme import is_reference
    from gemmill.runtime.storage.pack import Pack

    trusted = _trusted_keys()

    def opened(pack: str | Path | Pack) -> Pack:
        if isinstance(pack, Pack):
            return pack
        return _pulled(str(pack), store, trusted) if is_reference(pack) else Pack.open(pack, store, trusted)

    return tuple(map(opened, files))


def _trusted_keys() -> TrustedKeys | None:
    """Return the keys in the environment; None where it sets none."""
    if Settings.read().trusted_keys is None:
        return None  # without importing modules for signatures
    from gemmill.runtime.storage.trust.signatures import TrustedKeys

    return TrustedKeys.of_settings()


def _pulled(reference: str, store: Path | None, trusted: TrustedKeys | None) -> Pack:
    """Open a pack of an OCI registry."""
    from gemmill.runtime.storage.oci.artifacts import open_artifact  # deferred: imports HTTP modules
    from gemmill.runtime.storage.oci.reference import Reference

    return open_artifact(Reference.of(reference), store, trusted)


def kernel_named(kernel: object) -> str:
    """Return the name of a kernel that is given by name or config; ConfigError for anything else, or for a config that
    breaks a rule."""
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, GemmConfig):
        return kernel_name(kernel)
    raise ConfigError(f"kernel is {kernel!r:.80}; it must be the name of a kernel or a GemmConfig")


def check_remote(remote: object) -> None:
    """Raise SettingError for what is neither a URL nor a Remote."""
    if isinstance(remote, str):
        from gemmill.runtime.storage.remote.transport import Address

        Address.of(remote)
    elif not (remote is None or hasattr(remote, "kernel")):
        raise SettingError(f"remote is {remote!r:.80}; it must be a URL such as 'https://kernels.example' or a Remote")


def remote_of(remote: Remote | str | None) -> Remote | None:
    """Return a remote, the one of a URL, or the one in the environment; SettingError where a variable has an invalid
    value."""
    if remote is None and Settings.read().url_of(None) is None:
        return None  # without importing HTTP modules
    from gemmill.runtime.storage.remote.client import Remote

    return Remote.of_settings(remote) if remote is None or isinstance(remote, str) else remote


def kernel_sets(
    manifests: Iterable[str | Path | KernelSet] | None, types: Collection[str] | None = None
) -> Iterable[KernelSet]:
    """Return the kernel sets of manifests; for None, of all shipped ones, and with ``types`` only those that may have
    such A and B. Shipped sets are not checked, since the tests check that their kernels are legal."""
    from gemmill.library.manifest.load import load_manifest, shipped_manifests, shipped_sets

    if manifests is None and types is not None:
        return shipped_sets(types)
    shipped = shipped_manifests()
    return tuple(
        load_manifest(manifest, legal=str(manifest) not in shipped) if isinstance(manifest, str | Path) else manifest
        for manifest in (shipped if manifests is None else manifests)
    )
