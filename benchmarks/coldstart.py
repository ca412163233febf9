"""How soon a fresh process that starts from a pack launches its first GEMM, once it has a CUDA context.

Compiles the kernels of a manifest that the store lacks, writes a pack of them, and starts fresh processes that have
nothing in their store. Each imports PyTorch and makes operands, and with them the context, before the clock starts;
then it imports gemmill, opens the pack and calls ``gemmill.matmul``: ``launched`` is when that returns, ``done`` when
the GPU has finished. Processes in between take the same path in steps, and time each. The first of either kind does not
count: it finds cold file caches, writes the bytecode of gemmill's modules, as an installer does, and verifies what it
runs of the pack. Needs an NVIDIA
GPU and PyTorch, and a toolchain to compile what is missing.

Reproduces docs/performance/host.md, "Host side of a call".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "src"
K_MAJOR = "a.major == 'k' and b.major == 'k' and c.dtype == 'none' and d.major == 'n'"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--manifest", default="bf16", help="manifest of the pack (%(default)s)")
    parser.add_argument("--where", default=K_MAJOR, help="which of its kernels (%(default)s)")
    parser.add_argument("--processes", type=int, default=10, help="processes of each kind that count (%(default)s)")
    parser.add_argument("--extents", type=int, nargs=3, default=(4096, 4096, 4096), help="M, N and K (%(default)s)")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        pack, kind = arguments.child
        print(json.dumps(_child(pack, arguments.extents, in_steps=kind == "steps")))
        return
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "kernels.pack"
        kernels = _write(pack, arguments.manifest, arguments.where)
        options = ["--extents", *map(str, arguments.extents)]
        rows: dict[str, list[float]] = {}
        for repeat in range(arguments.processes + 1):
            for kind in ("whole", "steps"):
                for name, ms in _run(pack, kind, options).items():
                    if repeat:
                        rows.setdefault(name, []).append(ms)
        size = pack.stat().st_size
    figures = {name: dict(zip(("low", "median", "high"), quantiles(ms), strict=True)) for name, ms in rows.items()}
    if arguments.json:
        import torch

        properties = torch.cuda.get_device_properties(0)
        versions = {"gpu": properties.name, "torch": torch.__version__, "python": sys.version.split()[0]}
        print(json.dumps({"ms": figures, "kernels": kernels, "bytes": size, **versions}, indent=2))
        return
    print(f"a pack of {kernels} kernels, {size:,} bytes\n{'milliseconds':28}{'median':>8}{'quartiles':>16}")
    for name, figure in figures.items():
        print(f"{name:28}{figure['median']:>8.2f}{figure['low']:>9.2f}{figure['high']:>7.2f}")


def _write(path: Path, manifest: str, where: str) -> int:
    """Write a pack, and return how many kernels it has."""
    from gemmill.library.manifest.load import load_manifest
    from gemmill.runtime.registry import Registry
    from gemmill.runtime.storage.pack import write_pack

    kernel_set = load_manifest(manifest)
    artifacts = Registry(manifests=[kernel_set]).warm(kernel_set.expand(where=where))
    write_pack(path, artifacts)
    return len(artifacts)


def _run(pack: Path, kind: str, options: list[str]) -> dict[str, float]:
    """What a fresh process measures. Its store remembers which kernels were verified, and has none of its own."""
    store = pack.parent / "store"
    command = [sys.executable, __file__, "--child", str(pack), kind, *options]
    environ = {**os.environ, "GEMMILL_STORE": str(store)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert not [*store.glob("??/*")], "a process that starts from a pack keeps no kernels"
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _child(pack: str, extents: tuple[int, int, int], in_steps: bool) -> dict[str, float]:
    """Milliseconds after the context: of the whole path, or of each step of it."""
    import torch

    m, n, k = extents
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).t()
    torch.cuda.synchronize()
    start = time.perf_counter()
    if in_steps:
        times = {"": start} | {step: time.perf_counter() for step in _steps(pack, a, b)}
        names, clocks = list(times), list(times.values())
        return {name: (clocks[i + 1] - clocks[i]) * 1000 for i, name in enumerate(names[1:])}
    import gemmill

    gemmill.matmul(a, b, registry=gemmill.Registry(packs=[pack]))
    launched = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    assert "gemmill.runtime.compile.compiler" not in sys.modules, "nothing is compiled"
    return {"launched": (launched - start) * 1000, "done": (done - start) * 1000}


def _steps(pack: str, a: Any, b: Any) -> Iterator[str]:
    """The path to the first GEMM, step by step: each is yielded when it is done."""
    import gemmill

    matmul, make_registry = gemmill.matmul, gemmill.Registry  # which imports what they need
    yield "  import gemmill"
    from gemmill.runtime import driver
    from gemmill.runtime.launch.kernel import load

    driver.bindings()
    yield "  import cuda.bindings"
    registry = make_registry(packs=[pack])
    yield "  open the pack"
    (m, k), n = a.shape, b.shape[1]
    operand = ("bf16", "k")
    problem = gemmill.GemmProblem(m, n, k, a=operand[0], a_major=operand[1], b_major=operand[1], d="bf16")
    name = registry.select(problem).name
    yield "  select"
    artifact = registry.get(name)
    yield "  read the kernel"
    load(0, artifact)
    yield "  load the module"
    matmul(a, b, registry=registry)
    yield "  bind and launch"


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCES))
    main()
