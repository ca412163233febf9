"""Shell completion of kernels, manifests, suites, GPUs and types, and of the files that are accepted instead.

A shell runs this on each key press, so errors and warnings are suppressed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path

from gemmill.library.arch import GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import GemmillError

_MOST = 40
"""Maximum number of kernels shown by their whole names. For more, only the next part of each name is shown."""
_MANIFESTS = (".yaml", ".yml")
_PAGES = (".cu",)
_SUITES = (*_MANIFESTS, ".json", ".jsonl", ".csv")


def _quietly(complete: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Make a completion return nothing where it would fail, and suppress its warnings."""

    @wraps(complete)
    def quiet(incomplete: str) -> list[str]:
        with warnings.catch_warnings(action="ignore"), suppress(GemmillError, OSError):
            return [*complete(incomplete)]
        return []

    return quiet


@_quietly
def dtypes(incomplete: str) -> Iterable[str]:
    """Types of operands."""
    return _beginning(incomplete, DTYPES)


@_quietly
def manifests(incomplete: str) -> Iterable[str]:
    """Shipped manifests, and files."""
    from gemmill.library.manifest.load import shipped_manifests

    yield from _beginning(incomplete, shipped_manifests())
    yield from _files(incomplete, _MANIFESTS)


@_quietly
def buildable(incomplete: str) -> Iterable[str]:
    """Arguments of `build`: a manifest, or a source file."""
    yield from manifests(incomplete)
    yield from _files(incomplete, _PAGES)


@_quietly
def suites(incomplete: str) -> Iterable[str]:
    """Shipped shape suites, and files."""
    from gemmill.profiler.sweep.shape_suites import shipped_suites

    yield from _beginning(incomplete, shipped_suites())
    yield from _files(incomplete, _SUITES)


@_quietly
def gpus(incomplete: str) -> Iterable[str]:
    """GPUs in library/arch.py, with hyphens instead of blanks; with the prefix NVIDIA if the user types it."""
    names = [name.replace(" ", "-") for name in GPUS]
    return _beginning(incomplete, [name.removeprefix("NVIDIA-") for name in names] + (names if incomplete else []))


@_quietly
def kernels(incomplete: str) -> Iterable[str]:
    """Kernels of the shipped manifests, by the next part of their names until few are left; manifests and source
    files."""
    from gemmill.runtime.storage.declared_kernels import declared_names
    from gemmill.runtime.storage.store import Store

    yield from next_parts(declared_names(Store(), _declared_configs), incomplete)
    yield from _files(incomplete, (*_MANIFESTS, *_PAGES))


def next_parts(names: Iterable[str], typed: str) -> list[str]:
    """The names that begin with the typed text; if there are many, their prefixes up to the next underscore.

    The result is never a single prefix, because a shell would add a blank after it.
    """
    matches = _beginning(typed, names)
    end = len(typed)
    while len(matches) > _MOST:
        cut = {name[: name.find("_", end) + 1] or name for name in matches}
        if len(cut) > 1:
            return sorted(cut)
        end = len(cut.pop())
    return sorted(matches)


def _declared_configs() -> Iterator[GemmConfig]:
    from gemmill.library.manifest.load import load_manifest, shipped_manifests

    for name in shipped_manifests():
        yield from load_manifest(name, legal=False).expand()


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _files(incomplete: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Files with one of these endings in the directory that is being typed."""
    folder, _, begun = incomplete.rpartition("/")
    for path in sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir()):
        if path.name.startswith(begun) and path.name.endswith(endings):
            yield f"{folder}/{path.name}" if "/" in incomplete else path.name
