"""What compiling costs: one cold kernel, further ones in the process, kernels a minute from the pool.

Each beside a trivial kernel that includes ``cute/tensor.hpp`` and does nothing, compiled by the same NVRTC in the same
run: the machine's share of the time. Needs a toolchain, no GPU. Every child is a fresh process, so nothing is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

TRIVIAL = '#include <cute/tensor.hpp>\nextern "C" __global__ void trivial(int* out) {{ *out = {index}; }}\n'


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--manifest", default="bf16", help="shipped manifest whose kernels are compiled (%(default)s)")
    parser.add_argument("--further", type=int, default=6, help="kernels after the first in a process (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="cold processes (%(default)s)")
    parser.add_argument("--pool", type=int, default=32, help="kernels that the pool compiles (%(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes of the pool")
    parser.add_argument("--child", choices=["kernels", "trivial"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(arguments.child, arguments.manifest, arguments.further + 1)))
        return

    runs: dict[str, list[dict[str, Any]]] = {"kernels": [], "trivial": []}
    for _ in range(arguments.repeats):
        for what, results in runs.items():
            results.append(json.loads(_spawn(what, arguments.manifest, arguments.further).communicate()[0]))
    figures: dict[str, Any] = {
        what: {
            "cold_s": round(median(run["seconds"][0] for run in results), 3),
            "further_s": round(median(seconds for run in results for seconds in run["seconds"][1:]), 3),
            "further_max_s": round(max(seconds for run in results for seconds in run["seconds"][1:]), 3),
            "import_s": round(median(run["import"] for run in results), 3),
        }
        for what, results in runs.items()
    }
    figures["kernels"]["per_minute"] = _pool(arguments.manifest, arguments.pool, arguments.jobs)
    figures["trivial"]["per_minute"] = _trivial_pool(arguments.pool, arguments.jobs)
    figures |= {"jobs": arguments.jobs, "toolchain": runs["kernels"][0]["toolchain"]}
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'':28}{'gemmill':>10}{'trivial':>10}")
    for key, label in (
        ("cold_s", "one cold kernel, s"),
        ("further_s", "a further one, median, s"),
        ("further_max_s", "a further one, slowest, s"),
        ("import_s", "importing before that, s"),
        ("per_minute", f"a minute, {arguments.jobs} processes"),
    ):
        print(f"{label:28}{figures['kernels'][key]:>10}{figures['trivial'][key]:>10}")
    print(", ".join(f"{piece} {version}" for piece, version in figures["toolchain"].items()))


def _spawn(what: str, manifest: str, further: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", what, "--manifest", manifest, "--further", str(further)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _configs(manifest: str, count: int) -> list[Any]:
    """Kernels spread evenly over a manifest."""
    from gemmill.library.manifest import load_manifest, shipped_manifest

    configs = list(load_manifest(shipped_manifest(manifest)).expand())
    return [configs[index * len(configs) // count] for index in range(min(count, len(configs)))]


def _child(what: str, manifest: str, count: int) -> dict[str, Any]:
    """Seconds of each compilation in this process, the first one cold."""
    start = time.perf_counter()
    from gemmill.emitters.emit import emit
    from gemmill.runtime.compiler import Compiler
    from gemmill.runtime.toolchain import Toolchain

    configs = _configs(manifest, count) if what == "kernels" else []
    imported = time.perf_counter() - start
    seconds = []
    for index in range(count):
        start = time.perf_counter()
        if what == "trivial":
            _compile_trivial(Toolchain.find(), index)
        else:
            if index == 0:
                compiler = Compiler()
            compiler.compile(emit(configs[index]), configs[index])
        seconds.append(time.perf_counter() - start)
    return {"import": imported, "seconds": seconds, "toolchain": Toolchain.find().versions}


def _compile_trivial(toolchain: Any, index: int) -> None:
    """Compile the trivial kernel as kernels are: with a precompiled header, and past NVRTC's own cache."""
    from cuda.bindings import nvrtc

    from gemmill.runtime import pch

    nvrtc.nvrtcSetPCHHeapSize(pch.HEAP_BYTES)
    options = ["--std=c++17", "-default-device", "--gpu-architecture=sm_90a", "-DNDEBUG", "--no-cache", "-pch"]
    options += [f"-pch-dir={pch.directory()}", *(f"-I{path}" for path in toolchain.include_dirs)]
    _, program = nvrtc.nvrtcCreateProgram(TRIVIAL.format(index=index).encode(), b"trivial.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = bytes(size)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(f"the trivial kernel does not compile: {log.decode()}")
    nvrtc.nvrtcDestroyProgram(program)


def _pool(manifest: str, count: int, jobs: int) -> int:
    from gemmill.runtime.pool import compile_many

    configs = _configs(manifest, count)
    start = time.perf_counter()
    outcomes = compile_many(configs, jobs=jobs, store=None)
    seconds = time.perf_counter() - start
    if errors := [str(outcome.error) for outcome in outcomes if outcome.error]:
        raise SystemExit(f"{len(errors)} of {len(outcomes)} kernels did not compile; the first: {errors[0]}")
    return round(60 * len(configs) / seconds)


def _trivial_pool(count: int, jobs: int) -> int:
    """Trivial kernels a minute, compiled by as many processes, their start included as the pool's is."""
    each = -(-count // jobs)
    start = time.perf_counter()
    processes = [_spawn("trivial", "", each - 1) for _ in range(jobs)]
    for process in processes:
        process.communicate()
    return round(60 * each * jobs / (time.perf_counter() - start))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
