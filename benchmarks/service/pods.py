"""CPU seconds of a fleet's cold start, with a server of kernels and without.

A pod is a real process with an empty store that wants the kernels of a few problems and has no GPU: it imports gemmill,
finds the key of each kernel, and gets it from the server or compiles it. The server begins with an empty store, too, so
the first pod waits for its compiling, and CPU seconds of the server and of its compiling processes are of the sum.
Without a server each pod does the same work, so few are measured and multiplied: two hundred would take hours. A pod
that imports gemmill and gets nothing is the floor of both.

Reproduces docs/service/operators.md, "Figures".
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.service.servers import TOKEN, environment, service  # noqa: E402

PROBLEMS = ("4096x4096x4096 bf16 tn", "8192x8192x1024 bf16 tn", "64x4096x4096 bf16 tn", "4096x4096x4096 e4m3 tn")
MOST_PODS = 1000


def pod(names: list[str]) -> None:
    """What a pod does, with the environment that says where kernels are."""
    from gemmill.runtime.registry import Registry

    start = time.perf_counter()
    registry = Registry(manifests=(), gpu="H200")
    for name in names:
        registry.get(name)
    hits = registry.remote.counters().get("hits", 0) if registry.remote else 0
    print(json.dumps({"seconds": time.perf_counter() - start, "hits": hits}))


def fleet(count: int, names: list[str], **environ: str) -> list[dict[str, Any]]:
    """Pods, as many at a time as there are cores; what each tells."""

    def run(_: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--pod", *names]
            done = subprocess.run(
                command, env=environment(Path(folder), **environ), stdout=subprocess.PIPE, text=True, check=True
            )
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return [*threads.map(run, range(count))]


def cpu_seconds() -> float:
    """Of all processes that ended and were waited for, and of those that these waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def served(count: int, names: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """CPU seconds of pods and of the server that serves them, and what each pod tells."""
    from gemmill.runtime.storage.trust.keys import SigningKey

    start = cpu_seconds()
    with tempfile.TemporaryDirectory() as name, service(Path(name), "--jobs", str(os.cpu_count())) as server:
        pods = fleet(
            count,
            names,
            GEMMILL_REMOTE=f"http://127.0.0.1:{server.port}",
            GEMMILL_REMOTE_TOKEN=TOKEN,
            GEMMILL_REMOTE_DEADLINE="300",
            GEMMILL_TRUSTED_KEYS=str(SigningKey.load(Path(name) / "server.key").public),
        )
    return cpu_seconds() - start, pods


def measured(pods: int, compiling: int, problems: list[str]) -> dict[str, Any]:
    """All figures."""
    from gemmill.library.problem import GemmProblem
    from gemmill.runtime.registry import Registry

    registry = Registry(gpu="H200")
    names = [*dict.fromkeys(registry.select(GemmProblem.from_text(problem)).name for problem in problems)]
    start = cpu_seconds()
    fleet(compiling, [])
    floor = (cpu_seconds() - start) / compiling
    start = cpu_seconds()
    alone = fleet(compiling, names)
    without = (cpu_seconds() - start) / compiling
    total, told = served(pods, names)
    assert sum(each["hits"] for each in told) == pods * len(names), "every kernel comes from the server"
    return {
        "kernels": len(names),
        "pods": pods,
        "pods_compiling": compiling,
        "cores": os.cpu_count(),
        "cpu_s_of_a_pod_that_gets_nothing": floor,
        "cpu_s_of_a_pod_that_compiles": without,
        "cpu_s_without_service": without * pods,
        "cpu_s_with_service": total,
        "seconds_to_kernels_without": median(each["seconds"] for each in alone),
        "seconds_to_kernels_with": median(each["seconds"] for each in told),
        "seconds_to_kernels_of_the_first": max(each["seconds"] for each in told),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--pods", type=int, default=200, help="pods with the service (%(default)s)")
    parser.add_argument("--compiling", type=int, default=4, help="pods without, measured and multiplied (%(default)s)")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, help="what a pod needs kernels for")
    parser.add_argument("--pod", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pod is not None:
        pod(arguments.pod)
        return
    if not 0 < max(arguments.pods, arguments.compiling) <= MOST_PODS:
        parser.error(f"1 to {MOST_PODS:,} pods")
    found = measured(arguments.pods, arguments.compiling, arguments.problems)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name.replace('_', ' '):40}{value:>10,.{0 if isinstance(value, int) else 2}f}")


if __name__ == "__main__":
    main()
