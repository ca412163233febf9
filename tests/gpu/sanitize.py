"""Run small problems through kernels while compute-sanitizer watches, with all of its tools side by side.

    python -m tests.gpu.sanitize
    python -m tests.gpu.sanitize --tool racecheck NAME ...

Without names, a few small kernels of every schedule, decomposition of K, kind of batch and kind of operand. Exits with
1 if a tool reports anything, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gemmill.library.config.domains import WORDS
from gemmill.library.config.fields import Value, config_of
from gemmill.library.config.model import FAMILIES, GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.legality.search import any_legal
from gemmill.library.problem import is_mixed
from gemmill.runtime.registry import Registry

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
KINDS: tuple[dict[str, Value], ...] = (
    {"a.major": "mn", "b.major": "mn", "c.dtype": "f32", "d.major": "m", "tile.k": 64},
    {"cluster.m": 2, "c.dtype": "none", "d.dtype": "bf16", "tile.n": 128},
    {"cluster.n": 2, "tile.n": 48, "c.dtype": "bf16", "c.major": "m", "d.dtype": "bf16"},
    {"cluster.m": 4, "cluster.n": 2, "tile.n": 104, "c.dtype": "none", "d.dtype": "bf16"},  # slices of 26 rows
    {"tile.m": 128, "tile.n": 112, "tile.k": 64, "stages": 7, "c.dtype": "none", "d.dtype": "bf16"},  # one D subtile
    # D subtiles that overlap; in pingpong the last tile's lie where A and B were.
    {"tile.m": 128, "tile.n": 152, "tile.k": 64, "stages": 5, "c.dtype": "none", "d.dtype": "bf16", "d.major": "m"},
    {"a.dtype": "tf32", "c.dtype": "none", "d.dtype": "f32"},
    {"a.dtype": "tf32", "a.major": "mn", "b.major": "mn", "tile.n": 32, "tile.k": 32, "d.dtype": "f32"},
    {"a.dtype": "bf16x6", "b.major": "mn", "c.dtype": "none", "d.dtype": "f32"},
    {"a.dtype": "f16x3", "b.major": "mn", "c.dtype": "none", "d.dtype": "f32"},
    {"a.dtype": "f16x3", "scheduler.batching": "grouped", "c.dtype": "none", "d.dtype": "f32"},
    # An A that producer warps copy, since its rows begin anywhere.
    {"a.align": 2, "tile.n": 64, "c.dtype": "none", "d.dtype": "bf16"},
    {"a.align": 2, "a.major": "mn", "tile.n": 64, "c.dtype": "none", "d.dtype": "bf16"},
    {"a.align": 4, "a.dtype": "tf32", "tile.n": 64, "c.dtype": "none", "d.dtype": "f32"},
    {"a.align": 1, "a.dtype": "s8", "b.dtype": "s8", "a.major": "mn", "tile.n": 64, "c.dtype": "none"},
    # A is transposed in place, B to another one.
    {"a.dtype": "s8", "b.dtype": "s8", "a.major": "mn", "b.major": "mn", "tile.m": 128, "tile.n": 64, "tile.k": 128},
    {"a.dtype": "e4m3", "b.dtype": "e5m2", "promote": 4, "a.scale": "none", "d.dtype": "e4m3"},
    {"a.dtype": "e4m3", "b.dtype": "e4m3", "a.scale": "1x128", "b.scale": "128x128", "tile.n": 96},
    {"a.dtype": "e4m3", "b.dtype": "e4m3", "a.scale": "1x128e8", "b.scale": "128x128e8", "tile.n": 96},
    {"a.dtype": "s8", "b.dtype": "u8", "c.dtype": "s32", "d.dtype": "s32"},
    {"a.dtype": "s8", "b.dtype": "s8", "c.dtype": "none", "d.dtype": "s8", "d.major": "n"},
    {"scheduler.decomposition": "cluster", "scheduler.splits": 3},
    {"scheduler.rows": "gathered", "scheduler.batching": "grouped", "c.dtype": "none", "d.dtype": "bf16"},
    {"scheduler.rows": "gathered", "scheduler.batching": "kgrouped", "c.dtype": "none"},
    {"a.dtype": "u4", "a.scale": "1x128z", "scheduler.batching": "ngrouped", "c.dtype": "none"},
    {"a.dtype": "e2m1", "a.scale": "1x32e8", "scheduler.batching": "nmasked", "c.dtype": "none"},
    {"a.dtype": "e2m1", "a.scale": "1x32e8", "c.dtype": "none"},
    {"scheduler.symmetry": "symmetric", "tile.n": 64, "c.dtype": "bf16", "d.dtype": "bf16"},
    {"scheduler.symmetry": "symmetric", "tile.n": 72, "c.dtype": "none", "d.dtype": "f16", "a.dtype": "f16"},
    {"a.dtype": "f64"},
    {"tile.m": 16, "tile.n": 32, "tile.k": 128, "a.dtype": "bf16", "c.dtype": "none"},  # warps that share K
    # Rows that begin anywhere.
    {"tile.m": 16, "tile.n": 32, "a.dtype": "s8", "b.dtype": "s8", "a.align": 1, "b.align": 1, "a.major": "k"},
)
"""What a kernel is asked for; a schedule that has none such is passed over."""

WISHES: tuple[dict[str, Value], ...] = ({"stages": 3, "a.align": 16}, {"a.align": 16}, {"stages": 3}, {})
"""What a kernel has too where it can: few stages, and operands that TMA loads. The first that it can have counts."""


def chosen() -> Iterator[GemmConfig]:
    """For every schedule, a kernel of each kind, of each decomposition of K and of each kind of batch."""
    schedulers: Iterator[dict[str, Value]] = (
        {f"scheduler.{what}": word} for what in ("decomposition", "batching") for word in WORDS[f"scheduler.{what}"]
    )
    for schedule, kind in itertools.product(FAMILIES, (*KINDS, *schedulers)):
        given: dict[str, Value] = {"schedule": schedule, "arch": "sm90a"}
        given |= {"scheduler.decomposition": "tiles", "scheduler.batching": "strided", **kind}
        found = (any_legal({**wish, **given}) for wish in WISHES)
        fields = next((fields for fields in found if fields is not None), None)
        if fields is not None:
            yield config_of(fields)


def watched(configs: Sequence[GemmConfig]) -> int:
    """Run each kernel on problems that touch tile edges, several tiles a block, a batch, an empty K, and operands and a
    D as little aligned as it takes them."""
    from tests.gpu.groups import check_groups  # the watching process needs no GPU
    from tests.gpu.harness import check, least_aligns, torch
    from tests.gpu.test_nested import check_nested
    from tests.gpu.test_weight_groups import run as check_weight_groups
    from tests.gpu.weights import check as check_mixed

    registry = Registry()
    wrong = 0
    for config in configs:
        m, n, k = config.tile.m, config.tile.n, config.tile.k
        try:
            if config.scheduler.batching == "nested":
                check_nested(config, (3, 5), registry)
                continue
            if config.scheduler.batching in ("ngrouped", "nmasked"):
                check_weight_groups(config, [n + 1, 0, 1, n, 2 * n - 1], 3, m * 2 - 8, k * 2 + 32, registry)
                check_weight_groups(config, [n] * 35, 0, m * 2, k, registry)
                continue
            if config.scheduler.batching != "strided":
                check_groups(config, registry)
                continue
            if is_mixed(config.a.dtype, config.b.dtype):
                check_mixed(config, n + 1, m - 1, k * (config.stages + 1) + 1, registry, exact=True)
                check_mixed(config, n * 12, m * 12 + 1, k + 1, registry, exact=True)
                continue
            is_square = config.scheduler.symmetry == "symmetric"
            sizes: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
                (m - 1, n + 1, k * (config.stages + 1) + 1, {}),
                (m * config.cluster.m + 3, n * config.cluster.n + 8, k, {"batch": 2}),
                # More tiles than the GPU holds, so that blocks come round to a second one.
                (m * (20 if is_square else 12) + 1, n * 12, k + 1, {}),
                (m - 1, n + 1, k + 1, {"aligns": least_aligns(config), "offset": 1}),
                (m, n, 0, {}),
            )
            for rows, columns, depth, options in sizes:
                if depth or "mn" not in (config.a.major, config.b.major):  # without elements they are bound K-major
                    check(config, rows, rows if is_square else columns, depth, registry, **options)
        except AssertionError as error:
            wrong += 1
            print(f"WRONG  {kernel_name(config)}: {error}", flush=True)
    torch.cuda.synchronize()
    print(f"{len(configs)} kernels, {wrong} wrong", flush=True)
    return int(wrong > 0)


def command(tool: str, names: Sequence[str]) -> list[str]:
    """compute-sanitizer on this module."""
    options = ["--tool", tool, "--error-exitcode", "1"]
    if tool == "memcheck":  # CUDA's Python bindings probe for entry points that the driver lacks
        options += ["--report-api-errors", "no"]
    if tool != "initcheck":  # that must see who else wrote
        options += ["--kernel-name", "kernel_substring=sm90a_"]
    return ["compute-sanitizer", *options, sys.executable, "-m", "tests.gpu.sanitize", "--watched", *names]


def main() -> int:
    """Run the tools; their summaries, and all they say where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="only this tool; may be repeated")
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernels")
    arguments = parser.parse_args()
    configs = list(dict.fromkeys(parse_name(name) for name in arguments.names)) or list(dict.fromkeys(chosen()))
    if arguments.watched:
        return watched(configs)
    Registry().warm(configs)
    names = [kernel_name(config) for config in configs]
    start = time.monotonic()
    # So that memcheck knows the bounds of each tensor.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    pipe, merged = subprocess.PIPE, subprocess.STDOUT
    processes = {
        tool: subprocess.Popen(command(tool, names), stdout=pipe, stderr=merged, text=True, env=environment)
        for tool in arguments.tool or TOOLS
    }
    failed = 0
    for tool, process in processes.items():
        said = process.communicate()[0].strip()
        failed += process.returncode != 0
        lines = said.splitlines()
        shown = lines[-60:] if process.returncode else lines[-2:]
        print("\n".join(f"{tool}: {line}" for line in shown))
    print(f"{len(configs)} kernels, {len(processes)} tools, {failed} with complaints, {time.monotonic() - start:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
