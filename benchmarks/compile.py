"""What compiling costs: one cold kernel, further ones in the process, kernels a minute from the pool.

Of manifests that ship (``bf16``), or of schedules (``cooperative``), of which random legal configs are compiled. Beside
a trivial kernel that includes ``cute/tensor.hpp`` and does nothing, compiled by the same NVRTC in the same run: the
machine's share of the time. Needs a toolchain, no GPU. Every child is a fresh process, so nothing is warm.

Reproduces docs/performance/host.md, "Compiling".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

TRIVIAL = '#include <cute/tensor.hpp>\nextern "C" __global__ void trivial(int* out) {{ *out = {index}; }}\n'


COLUMNS = (
    ("cold_s", "cold, s"),
    ("further_s", "further, s"),
    ("further_max_s", "slowest, s"),
    ("import_s", "import, s"),
    ("per_minute", "a minute"),
)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=["bf16"], help="manifests or schedules (bf16)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--further", type=int, default=6, help="kernels after the first in a process (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="cold processes (%(default)s)")
    parser.add_argument("--pool", type=int, default=32, help="kernels that the pool compiles (%(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes of the pool")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_child(arguments.sources[0], arguments.further + 1)))
        return

    runs: dict[str, list[dict[str, Any]]] = {source: [] for source in (*arguments.sources, "trivial")}
    for _ in range(arguments.repeats):
        for source, results in runs.items():
            results.append(json.loads(_spawn(source, arguments.further).communicate()[0]))
    figures: dict[str, Any] = {
        source: {
            "cold_s": round(median(run["seconds"][0] for run in results), 3),
            "further_s": round(median(seconds for run in results for seconds in run["seconds"][1:]), 3),
            "further_max_s": round(max(seconds for run in results for seconds in run["seconds"][1:]), 3),
            "import_s": round(median(run["import"] for run in results), 3),
            "per_minute": (_trivial_pool if source == "trivial" else _pool)(source, arguments.pool, arguments.jobs),
        }
        for source, results in runs.items()
    }
    toolchain = runs["trivial"][0]["toolchain"]
    if arguments.json:
        print(json.dumps({**figures, "jobs": arguments.jobs, "toolchain": toolchain}, indent=2))
        return
    print(f"{'':16}" + "".join(f"{label:>12}" for _, label in COLUMNS))
    for source, values in figures.items():
        print(f"{source:16}" + "".join(f"{values[key]:>12}" for key, _ in COLUMNS))
    print(
        f"a minute: {arguments.jobs} processes; "
        + ", ".join(f"{name} {version}" for name, version in toolchain.items())
    )


def _spawn(source: str, further: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", source, "--further", str(further)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _configs(source: str, count: int) -> list[Any]:
    """Kernels spread evenly over a manifest, or random ones of a schedule, all for one target."""
    from gemmill.library.config.fields import config_of
    from gemmill.library.config.model import FAMILIES
    from gemmill.library.legality.search import draw_legal
    from gemmill.library.manifest.load import load_manifest, shipped_manifest

    if source in FAMILIES:
        generator = random.Random(0)
        first = draw_legal(generator, {"schedule": source})
        if first is None:
            raise SystemExit(f"there are no {source} kernels")
        given = {"schedule": source, "arch": first["arch"]}
        drawn = filter(None, (draw_legal(generator, given) for _ in range(100 * count)))
        return [config_of(fields) for fields in islice(drawn, count)]
    configs = list(load_manifest(shipped_manifest(source)).expand())
    return [configs[index * len(configs) // count] for index in range(min(count, len(configs)))]


def _child(source: str, count: int) -> dict[str, Any]:
    """Seconds of each compilation in this process, the first one cold."""
    start = time.perf_counter()
    from gemmill.emitters.emit import emit
    from gemmill.runtime.compile.compiler import Compiler
    from gemmill.runtime.compile.toolchain import Toolchain

    configs = _configs(source, count) if source != "trivial" else []
    imported = time.perf_counter() - start
    seconds = []
    for index in range(count):
        start = time.perf_counter()
        if source == "trivial":
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

    from gemmill.runtime.compile import pch

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


def _pool(source: str, count: int, jobs: int) -> int:
    from gemmill.runtime.compile.pool import compile_many

    configs = _configs(source, count)
    start = time.perf_counter()
    outcomes = compile_many(configs, jobs=jobs, store=None)
    seconds = time.perf_counter() - start
    if errors := [str(outcome.error) for outcome in outcomes if outcome.error]:
        raise SystemExit(f"{len(errors)} of {len(outcomes)} kernels did not compile; the first: {errors[0]}")
    return round(60 * len(configs) / seconds)


def _trivial_pool(source: str, count: int, jobs: int) -> int:
    """Trivial kernels a minute, compiled by as many processes, their start included as the pool's is."""
    each = -(-count // jobs)
    start = time.perf_counter()
    processes = [_spawn(source, each - 1) for _ in range(jobs)]
    for process in processes:
        process.communicate()
    return round(60 * each * jobs / (time.perf_counter() - start))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
