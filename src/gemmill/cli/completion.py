"""What shells complete: kernels, manifests, suites, GPUs and dtypes, and the files that may stand in their places.

A shell asks with each press of a key, so nothing is said where nothing is found, whatever the reason.
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
"""Kernels that are shown by whole names; of more, only the next part of each."""
_MANIFESTS = (".yaml", ".yml")
_PAGES = (".cu",)
_SUITES = (*_MANIFESTS, ".json", ".jsonl", ".csv")


def _quietly(complete: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Have what completes a word find nothing where it would fail or warn."""

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
    """Manifests that ship, and files."""
    from gemmill.library.manifest.load import shipped_manifests

    yield from _beginning(incomplete, shipped_manifests())
    yield from _files(incomplete, _MANIFESTS)


@_quietly
def buildable(incomplete: str) -> Iterable[str]:
    """What `build` takes: a manifest, or a page."""
    yield from manifests(incomplete)
    yield from _files(incomplete, _PAGES)


@_quietly
def suites(incomplete: str) -> Iterable[str]:
    """Shape suites that ship, and files."""
    from gemmill.profiler.sweep.shape_suites import shipped_suites

    yield from _beginning(incomplete, shipped_suites())
    yield from _files(incomplete, _SUITES)


@_quietly
def gpus(incomplete: str) -> Iterable[str]:
    """GPUs with figures of their own, with the maker's name where that is being typed, and without blanks."""
    names = [name.replace(" ", "-") for name in GPUS]
    return _beginning(incomplete, [name.removeprefix("NVIDIA-") for name in names] + (names if incomplete else []))


@_quietly
def kernels(incomplete: str) -> Iterable[str]:
    """Kernels that the manifests which ship declare, and files with a config or a page: the next part of names, until
    few are left."""
    from gemmill.runtime.storage.declared_kernels import declared_names
    from gemmill.runtime.storage.store import Store

    yield from next_parts(declared_names(Store(), _declared_configs), incomplete)
    yield from _files(incomplete, (*_MANIFESTS, *_PAGES))


def next_parts(names: Iterable[str], typed: str) -> list[str]:
    """The names that begin with what was typed; of many, only as far as they are alike up to a next underscore: never
    one alone that is no whole name, behind which shells would put a blank."""
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
    """Files with one of these endings in the folder that is being typed."""
    folder, _, begun = incomplete.rpartition("/")
    for path in sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir()):
        if path.name.startswith(begun) and path.name.endswith(endings):
            yield f"{folder}/{path.name}" if "/" in incomplete else path.name
