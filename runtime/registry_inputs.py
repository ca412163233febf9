"""What callers hand to a registry: refused where it is of another kind, with the way to write it."""

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

_NO_LIST = {"manifests": ManifestError, "packs": PackError, "records": RecordError}
"""Errors of files of each kind."""


def checked_problem(problem: object) -> GemmProblem:
    """A problem that a caller passes; ProblemError where it is none."""
    if not isinstance(problem, GemmProblem):
        raise ProblemError(
            f"problem is {problem!r:.80}; it must be a gemmill.GemmProblem, as GemmProblem(m=4096, n=4096, k=4096) and "
            "GemmProblem.from_text('4096x4096x4096 bf16') are"
        )
    return problem


def checked_gpu(gpu: Gpu | str | None) -> Gpu | None:
    """A GPU, perhaps by its name, as ``--gpu`` takes it; DeviceError where it is none that has figures."""
    if gpu is None or isinstance(gpu, Gpu):
        return gpu
    if not isinstance(gpu, str):
        raise DeviceError(
            f"gpu is {gpu!r:.80}; it must be a name such as 'H200', or None for GPU 0 of this machine; on which GPU a "
            "call runs, its tensors say"
        )
    try:
        return gpu_named(gpu)
    except LookupError as error:
        raise DeviceError(error.args[0]) from None


def checked_place(store: Store | str | Path | None) -> Path | None:
    """The folder of a store; StoreError where it is neither a folder's name nor a Store."""
    if not (store is None or isinstance(store, str | Path) or hasattr(store, "path")):
        raise StoreError(f"store is {store!r:.80}; it must be the name of a folder, or a Store")
    return Path(store) if isinstance(store, str | Path) else store.path if store else None


def check_files(**files: object) -> None:
    """Refuse one file where there must be a list of them: ManifestError, PackError or RecordError."""
    for name, value in files.items():
        if isinstance(value, str | Path):
            raise _NO_LIST[name](f"{name} is {str(value)!r}; it must be a list: {name}=[{str(value)!r}]")


def opened_packs(packs: Iterable[str | Path], store: Path | None) -> tuple[Pack, ...]:
    """Packs, opened: signed by a trusted key where the environment names any. TrustError, PackError: as for
    :meth:`Pack.open`."""
    if not (files := [*packs]):
        return ()
    from gemmill.runtime.storage.pack import Pack
    from gemmill.runtime.storage.trust.signatures import TrustedKeys

    trusted = TrustedKeys.of_settings()
    return tuple(Pack.open(path, store, trusted) for path in files)


def kernel_named(kernel: object) -> str:
    """The name of a kernel, by name or config; ConfigError where it is neither, or a config that breaks a rule."""
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, GemmConfig):
        return kernel_name(kernel)
    raise ConfigError(f"kernel is {kernel!r:.80}; it must be the name of a kernel or a GemmConfig")


def check_remote(remote: object) -> None:
    """Refuse what is neither a URL nor a Remote: SettingError."""
    if isinstance(remote, str):
        from gemmill.runtime.storage.remote.transport import Address

        Address.of(remote)
    elif not (remote is None or hasattr(remote, "kernel")):
        raise SettingError(f"remote is {remote!r:.80}; it must be a URL such as 'https://kernels.example', or a Remote")


def remote_of(remote: Remote | str | None) -> Remote | None:
    """A remote, that of a URL, or that of the environment; SettingError where a variable means nothing."""
    if remote is None and Settings.read().url_of(None) is None:
        return None  # and nothing of HTTP is imported
    from gemmill.runtime.storage.remote.client import Remote

    return Remote.of_settings(remote) if remote is None or isinstance(remote, str) else remote


def kernel_sets(
    manifests: Iterable[str | Path | KernelSet] | None, types: Collection[str] | None = None
) -> Iterable[KernelSet]:
    """The kernel sets of manifests; for None of all that ship, with ``types`` only what may have such A and B. That
    they hold legal kernels, the tests have seen."""
    from gemmill.library.manifest.load import load_manifest, shipped_manifests, shipped_sets

    if manifests is None and types is not None:
        return shipped_sets(types)
    shipped = shipped_manifests()
    return tuple(
        load_manifest(manifest, legal=str(manifest) not in shipped) if isinstance(manifest, str | Path) else manifest
        for manifest in (shipped if manifests is None else manifests)
    )
