"""What callers hand to a registry: refused where it is of another kind, with the way to write it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import ConfigError, DeviceError, ManifestError, PackError, ProblemError, RecordError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.trust.keys import TrustedKeys

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


def check_files(**given: object) -> None:
    """Refuse one file where there must be a list of them: ManifestError, PackError or RecordError."""
    for name, value in given.items():
        if isinstance(value, str | Path):
            raise _NO_LIST[name](f"{name} is {str(value)!r}; it must be a list: {name}=[{str(value)!r}]")


def opened_packs(packs: Iterable[str | Path], store: Path | None) -> tuple[Pack, ...]:
    """Packs, opened: signed by a trusted key where the environment names any. TrustError, PackError: as for
    :meth:`Pack.open`."""
    files = [*packs]
    trusted = TrustedKeys.of_settings() if files else None
    return tuple(Pack.open(path, store, trusted) for path in files)


def kernel_named(kernel: object) -> str:
    """The name of a kernel, by name or config; ConfigError where it is neither, or a config that breaks a rule."""
    if isinstance(kernel, str):
        return kernel
    if isinstance(kernel, GemmConfig):
        return kernel_name(kernel)
    raise ConfigError(f"kernel is {kernel!r:.80}; it must be the name of a kernel or a GemmConfig")
