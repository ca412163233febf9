"""Run small problems through kernels, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.gpu.sanitize
    compute-sanitizer --tool racecheck --error-exitcode 1 python -m tests.gpu.sanitize NAME ...

Set PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that memcheck knows each tensor's bounds. Without names, every kernel of
``harness.FAMILY``. Exits with 1 if a result is wrong.
"""

from __future__ import annotations

import sys

from tests.gpu.harness import FAMILY, check, torch

from gemmill.library.names import kernel_name, parse_name
from gemmill.runtime.registry import Registry


def main(names: list[str]) -> int:
    """Run each kernel on problems that touch tile edges, several tiles a block, a batch and an empty K."""
    configs = [parse_name(name) for name in names] or list(FAMILY)
    registry = Registry()
    registry.warm(configs)
    wrong = 0
    for config in configs:
        m, n, k = config.tile.m, config.tile.n, config.tile.k
        try:
            check(config, m - 1, n + 1, k * (config.stages + 1) + 1, registry)
            check(config, m * config.cluster.m * 2, n * config.cluster.n * 2 + 8, k, registry, batch=2)
            # More tiles than the GPU holds, so that blocks come round to a second one.
            check(config, m * 12 + 1, n * 12, k + 1, registry)
            if (config.a.major, config.b.major) == ("k", "k"):
                check(config, m, n, 0, registry)
            print(f"ok     {kernel_name(config)}", flush=True)
        except AssertionError as error:
            wrong += 1
            print(f"WRONG  {kernel_name(config)}: {error}", flush=True)
    torch.cuda.synchronize()
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
