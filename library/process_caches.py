"""The process-wide caches: results of gemmill's functions with ``functools.cache`` or ``lru_cache``.

They are found among the objects of the interpreter, so no list needs maintenance. Other process-wide objects are state,
not caches: loaded kernels (:mod:`gemmill.runtime.launch.kernel`), workspaces, and the calls of each registry
(:mod:`gemmill.runtime.api.caches`).
"""

from __future__ import annotations

import functools
import gc
from typing import Any


def process_caches() -> dict[str, functools._lru_cache_wrapper[Any]]:
    """The cached functions of all imported modules, by module and name."""
    caches = (item for item in gc.get_objects() if isinstance(item, functools._lru_cache_wrapper))
    named = {f"{cache.__module__}.{cache.__qualname__}": cache for cache in caches if _is_ours(cache.__module__)}
    return dict(sorted(named.items()))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "gemmill"
