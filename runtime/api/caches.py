"""What outlives a call, all in one place, and for how long.

- **The default registry**: the process. Calls that name none share its selectors and kernels.
- **Loaded kernels and answers of autotuning**: their registry, held weakly, since another may hold another kernel of
  the name, or other candidates. Modules of the driver stay loaded for the life of the process all the same, as CUDA
  graphs may refer to them (:func:`gemmill.runtime.launch.kernel.load`).
- **Prepared calls**: until :data:`CALLS` other signatures were used since. They hold no tensor; their signature holds
  the registry that the caller named.
- **Recognised calls**, the fast path to prepared calls (:mod:`gemmill.runtime.api.fast_path`): until there are more
  than :data:`CALLS` buckets of them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from gemmill.runtime.registry import Registry

if TYPE_CHECKING:
    from gemmill.library.decompositions.sliced_kernel import SlicedKernel
    from gemmill.runtime.api.fast_path import RecognisedCall
    from gemmill.runtime.launch.kernel import Kernel
    from gemmill.runtime.launch.launcher import PreparedCall
    from gemmill.runtime.select.choice import Choice

CALLS = 1024
"""Signatures that are kept ready; the least recently used goes first."""

T = TypeVar("T")


@dataclass(slots=True)
class Entry(Generic[T]):
    """The place of a key's value, which is None until there is one."""

    value: T | None = None


def entries() -> functools._lru_cache_wrapper[Entry[T]]:
    """The places of :data:`CALLS` keys, each made when first asked for: of all bounded mappings that threads can share,
    lru_cache looks a key up fastest."""

    def entry(_: Hashable) -> Entry[T]:
        return Entry()

    return functools.lru_cache(CALLS)(entry)


prepared: functools._lru_cache_wrapper[Entry[PreparedCall]] = entries()
"""Prepared calls by :func:`~gemmill.runtime.operands.call.signature`."""

recognised: dict[Hashable, tuple[RecognisedCall, ...]] = {}
"""By a bucket of calls, the last in it, with what recognises them; at most :data:`CALLS` buckets."""


def forget_calls() -> None:
    """Forget all calls, so that the next of each is read, checked and prepared anew. Kernels stay loaded."""
    prepared.cache_clear()
    recognised.clear()


@dataclass(slots=True)
class OfRegistry:
    """What is kept beside a registry."""

    kernels: dict[tuple[int, SlicedKernel], Kernel] = field(default_factory=dict)
    """Its kernels that are loaded, by GPU and slices of K."""
    answers: dict[str, Choice] = field(default_factory=dict)
    """What autotuning has found out, by the key of the question."""


_of_registry: WeakKeyDictionary[Registry, OfRegistry] = WeakKeyDictionary()
_lock = threading.Lock()


def of_registry(registry: Registry) -> OfRegistry:
    """What is kept beside a registry, as long as it lives."""
    with _lock:
        return _of_registry.setdefault(registry, OfRegistry())


@functools.cache
def _default_registry() -> Registry:
    return Registry()


def default_registry() -> Registry:
    """The registry of calls that name none: the shipped manifests and the default store."""
    with _lock:  # threads at once would make several
        return _default_registry()
