"""Everything that outlives a call, and for how long.

- **The default registry**: for the life of the process. Calls without ``registry=`` share its selectors and kernels.
- **Loaded kernels and autotuning results**: as long as their registry, which is held weakly, since another registry may
  have another kernel with the same name, or other candidates. Driver modules stay loaded for the life of the process,
  because CUDA graphs may refer to them (:func:`gemmill.runtime.launch.kernel.load`).
- **Prepared calls**: until :data:`CALLS` other signatures were used since. They hold no tensors; their signature holds
  the registry that the caller passed.
- **Layers of experts, and adapters**: likewise.
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
    from gemmill.runtime.api.launch_sequence import SharedLaunches
    from gemmill.runtime.launch.kernel import Kernel
    from gemmill.runtime.launch.launcher import PreparedCall
    from gemmill.runtime.select.choice import Choice

CALLS = 1024
"""Most prepared signatures; the least recently used is dropped first."""

T = TypeVar("T")


@dataclass(slots=True)
class Entry(Generic[T]):
    """A mutable slot for the value of a key; None until it is set."""

    value: T | None = None


def entries() -> functools._lru_cache_wrapper[Entry[T]]:
    """Return a cache of :data:`CALLS` slots, each created at the first lookup. Of all bounded mappings that threads can
    share, lru_cache has the fastest lookup."""

    def entry(_: Hashable) -> Entry[T]:
        return Entry()

    return functools.lru_cache(CALLS)(entry)


prepared: functools._lru_cache_wrapper[Entry[PreparedCall]] = entries()
"""Prepared calls by :func:`~gemmill.runtime.operands.call.signature`."""

layers: functools._lru_cache_wrapper[Entry[SharedLaunches]] = entries()
"""Launches of layers of experts, and of adapters, by what they depend on."""

recognised: dict[Hashable, tuple[RecognisedCall, ...]] = {}
"""Buckets of recently launched calls, each call with its matcher; at most :data:`CALLS` buckets."""


def forget_calls() -> None:
    """Drop all prepared calls, so that gemmill reads, checks and prepares the next call of each again. Kernels stay
    loaded."""
    prepared.cache_clear()
    layers.cache_clear()
    recognised.clear()


@dataclass(slots=True)
class OfRegistry:
    """Cached state of one registry."""

    kernels: dict[tuple[int, SlicedKernel], Kernel] = field(default_factory=dict)
    """Its loaded kernels, by GPU and slices of K."""
    answers: dict[str, Choice] = field(default_factory=dict)
    """Its autotuning results, by the key of the problem."""


_of_registry: WeakKeyDictionary[Registry, OfRegistry] = WeakKeyDictionary()
_lock = threading.Lock()


def of_registry(registry: Registry) -> OfRegistry:
    """Return the cached state of a registry, which lives as long as the registry."""
    with _lock:
        return _of_registry.setdefault(registry, OfRegistry())


@functools.cache
def _default_registry() -> Registry:
    return Registry()


def default_registry() -> Registry:
    """Return the registry of calls without ``registry=``: ``GEMMILL_PACKS`` or the shipped manifests, and the default
    store."""
    with _lock:  # concurrent threads would create several
        return _default_registry()
