"""The caches that live as long as the process: results that functions of gemmill remember.

Whatever is under ``functools.cache`` or ``lru_cache`` is one, and is found among the objects of the interpreter, so
that no list is kept by hand. What a process holds besides is state, not results: kernels that are loaded
(:mod:`gemmill.runtime.launch.kernel`), workspaces, calls of each registry (:mod:`gemmill.runtime.api.caches`).
"""

from __future__ import annotations

import functools
import gc
from typing import Any


def process_caches() -> dict[str, functools._lru_cache_wrapper[Any]]:
    """Functions that remember, by module and name, of all modules that are imported."""
    caches = (item for item in gc.get_objects() if isinstance(item, functools._lru_cache_wrapper))
    named = {f"{cache.__module__}.{cache.__qualname__}": cache for cache in caches if _is_ours(cache.__module__)}
    return dict(sorted(named.items()))


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "gemmill"
