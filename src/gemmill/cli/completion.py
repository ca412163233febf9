"""Shell completion of kernels, manifests, presets, suites, GPUs and words, and of the files that are accepted instead.

A shell runs this on each key press, so errors and warnings are suppressed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec, get_args

import typer

from gemmill.library.arch import GPUS
from gemmill.library.arithmetic import STEPS
from gemmill.library.bits import BITS
from gemmill.library.config.model import GemmConfig, ScaleName
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import GemmillError
from gemmill.library.files import ending

_MOST = 40
"""Maximum number of kernels shown by their whole names. For more, only the next part of each name is shown."""
_MANIFESTS = (".yaml", ".yml")
_PAGES = (".cu",)
_SUITES = (*_MANIFESTS, ".json", ".jsonl", ".csv", ".onnx", ".gguf")
P = ParamSpec("P")


def _quietly(complete: Callable[P, Iterable[str]]) -> Callable[P, list[str]]:
    """Make a completion return nothing where it would fail, and suppress its warnings."""

    @wraps(complete)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        with warnings.catch_warnings(action="ignore"), suppress(GemmillError, ImportError, OSError):
            return [*complete(*args, **kwargs)]
        return []

    return quiet


@_quietly
def dtypes(incomplete: str) -> Iterable[str]:
    """Types of operands."""
    return _beginning(incomplete, DTYPES)


@_quietly
def scale_blocks(incomplete: str) -> Iterable[str]:
    """Blocks of elements that share a scale."""
    return _beginning(incomplete, [name for name in get_args(ScaleName) if name != "none" and not name.endswith("z")])


@_quietly
def bits(incomplete: str) -> Iterable[str]:
    """Values of --bits: words, and names of arithmetics in which one CTA sums all of K."""
    return _beginning(incomplete, (*BITS, *STEPS))


@_quietly
def arithmetics(incomplete: str) -> Iterable[str]:
    """Names of arithmetics in which one CTA sums all of K."""
    return _beginning(incomplete, STEPS)


@_quietly
def measured_dtypes(incomplete: str) -> Iterable[str]:
    """Types that `roofline` measures, separated by commas."""
    from gemmill.emitters.peak_rate import MEASURED_DTYPES

    return _in_list(incomplete, MEASURED_DTYPES)


@_quietly
def scopes(incomplete: str) -> Iterable[str]:
    """Scopes of a token, separated by commas."""
    from gemmill.service.tokens import SCOPES

    return _in_list(incomplete, SCOPES)


@_quietly
def manifests(incomplete: str) -> Iterable[str]:
    """Shipped manifests, and files."""
    from gemmill.library.manifest.load import shipped_manifests

    yield from _beginning(incomplete, shipped_manifests())
    yield from _files(incomplete, _MANIFESTS)


@_quietly
def presets(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Presets of the manifests on the command line, or of all shipped manifests."""
    from gemmill.library.manifest.load import load_manifest, shipped_manifests

    sources = context.args or shipped_manifests()  # the option is without a value yet, so no argument has been parsed
    return _beginning(incomplete, dict.fromkeys(name for source in sources for name in load_manifest(source).presets))


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


def _in_list(incomplete: str, words: Iterable[str]) -> list[str]:
    """Words that may end a list separated by commas, after those before."""
    before, comma, begun = incomplete.rpartition(",")
    others = [word for word in words if word not in before.split(",")]
    return [f"{before}{comma}{word}" for word in _beginning(begun, others)]


def _files(incomplete: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Files with one of these endings in the directory that is being typed."""
    folder, _, begun = incomplete.rpartition("/")
    for path in sorted(Path(f"{folder}/" if "/" in incomplete else ".").iterdir()):
        if path.name.startswith(begun) and ending(path) in endings:
            yield f"{folder}/{path.name}" if "/" in incomplete else path.name
