"""gemmill for JAX: ``matmul`` and ``grouped_matmul``, for ``jit``, ``grad``, ``jvp``, ``vmap`` and ``shard_map``.

Importing this module imports JAX and registers the target ``gemmill_gemm`` of XLA's foreign function interface. A
process that loads an exported program must import it first.
"""

from __future__ import annotations

from gemmill.runtime.jax.api import grouped_matmul as grouped_matmul
from gemmill.runtime.jax.api import matmul as matmul
from gemmill.runtime.jax.cpu_handler import run_on_cpu as run_on_cpu

__all__ = ["grouped_matmul", "matmul", "run_on_cpu"]
