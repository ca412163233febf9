"""How soon a fresh process has its first GEMM, by where the kernel comes from: the process compiles it, a server
compiles it or has it, the process's own store or a pack has it.

Each round starts a server with an empty store, and a process for each of the five, which imports PyTorch and makes
operands, and with them the CUDA context; then they run one after the other, while nothing else does. Those that a
server serves cannot import NVRTC or find headers, and compile nothing (``GEMMILL_REMOTE_MODE=only``). The clock begins
before gemmill is imported: ``selected`` is when a kernel is, of all that ship, which takes longer the first time with a
store; ``kernel`` when it is at hand, ``launched`` when ``gemmill.matmul`` returns, ``done`` when the GPU has finished;
what it computed is compared with PyTorch's. A first round does not count: it finds cold file caches, and writes
bytecode. Needs an NVIDIA GPU, PyTorch, and gemmill's extra ``service``; without a GPU it says so, and times what comes
before a launch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any

FROM = {
    "compiled": "the process compiles it",
    "server, cold": "a server compiles it",
    "server, warm": "a server has it",
    "store": "the store has it",
    "pack": "a pack has it",
}
"""Where the kernel comes from, in the order of a round."""
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
TOKEN = "secret-of-the-benchmark"
TOOLCHAIN = ("cuda.bindings.nvrtc", "cutlass_library", "nvidia.cuda_nvrtc")


class Gone:
    """Has modules not found, as where no toolchain is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Of the import system."""
        if name.startswith(TOOLCHAIN):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def service(folder: Path) -> Iterator[int]:
    """`gemmill serve` with an empty store and one compiler, which signs and requires tokens, as in use: its port."""
    from gemmill.runtime.storage.trust.signatures import SigningKey

    SigningKey.new().save(folder / "server.key")
    (folder / "tokens").write_text(f"pods read,compile {hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    command = [sys.executable, "-m", "gemmill", "serve", "--port", "0", "--jobs", "1"]
    command += ["--tokens", str(folder / "tokens"), "--sign", str(folder / "server.key")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    with (
        (folder / "log").open("w") as errors,
        subprocess.Popen(command, stderr=errors, env=environment(folder / "store"), **pipes) as process,
    ):
        assert process.stdout is not None
        try:
            found = re.search(r":(\d+)\s*$", process.stdout.readline())
            assert found, (folder / "log").read_text()
            yield int(found[1])
        finally:
            process.terminate()


def environment(store: Path) -> dict[str, str]:
    """The environment of a process of gemmill that has a store of its own, and no settings of the caller."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    path = os.pathsep.join([str(SOURCES), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "GEMMILL_STORE": str(store)}


def write_kernel_pack(path: Path, extents: tuple[int, int, int], gpu: str | None) -> None:
    """Write a pack of the kernel that is selected."""
    import gemmill
    from gemmill.runtime.storage.pack import write_pack

    registry = gemmill.Registry(gpu=gpu)
    write_pack(path, [registry.get(registry.select(problem_of(extents)).name)])


def problem_of(extents: tuple[int, int, int]) -> Any:
    """The GEMM, in bf16."""
    import gemmill

    return gemmill.GemmProblem(*extents, a="bf16", a_major="k", b_major="k", d="bf16")


def child(extents: tuple[int, int, int], has_gpu: bool, is_served: bool) -> dict[str, float]:
    """Milliseconds until each step is done, from a line of the parent on, which has more of the environment."""
    m, n, k = extents
    if has_gpu:
        import torch

        a = torch.randint(-2, 3, (m, k), device="cuda").to(torch.bfloat16)
        b = torch.randint(-2, 3, (n, k), device="cuda").to(torch.bfloat16).t()
        torch.cuda.synchronize()
    if is_served:
        sys.meta_path.insert(0, Gone())
    print("ready", flush=True)
    os.environ.update(json.loads(sys.stdin.readline()))
    start = time.perf_counter()
    import gemmill

    packs = [path] if (path := os.environ.get("PACK")) else []
    registry = gemmill.Registry(packs=packs, gpu=None if has_gpu else "H200")
    selected = registry.select(problem_of(extents)).name
    ms = {"selected": 1000 * (time.perf_counter() - start)}
    registry.get(selected)
    ms["kernel"] = 1000 * (time.perf_counter() - start)
    if has_gpu:
        d = gemmill.matmul(a, b, registry=registry)
        ms["launched"] = 1000 * (time.perf_counter() - start)
        torch.cuda.synchronize()
        ms["done"] = 1000 * (time.perf_counter() - start)
        assert torch.equal(d, (a.double() @ b.double()).bfloat16()), "sums of small whole numbers are exact"
    if is_served:
        assert registry.remote is not None
        assert registry.remote.counters()["hits"] == 1, registry.remote
    return ms


def measured_round(folder: Path, pack: Path, options: list[str]) -> dict[str, dict[str, float]]:
    """What a process for each of :data:`FROM` tells."""
    from gemmill.runtime.storage.trust.signatures import SigningKey

    stores = {"compiled": "own", "server, cold": "first", "server, warm": "second", "store": "own", "pack": "third"}
    with ExitStack() as stack:
        processes = {}
        for name in FROM:
            kind = "served" if name.startswith("server") else "alone"
            command = [sys.executable, "-m", "benchmarks", "first_gemm", "--child", kind, *options]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(command, cwd=ROOT, env=environment(folder / stores[name]), **pipes)
            processes[name] = stack.enter_context(process)
            stack.callback(process.kill)
        port = stack.enter_context(service(folder))
        remote = {
            "GEMMILL_REMOTE": f"http://127.0.0.1:{port}",
            "GEMMILL_REMOTE_MODE": "only",
            "GEMMILL_REMOTE_TOKEN": TOKEN,
            "GEMMILL_REMOTE_DEADLINE": "300",
            "GEMMILL_TRUSTED_KEYS": str(SigningKey.load(folder / "server.key").public),
        }
        more = {"server, cold": remote, "server, warm": remote, "pack": {"PACK": str(pack)}}
        for process in processes.values():
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "see what the process printed"
        told = {}
        for name, process in processes.items():
            out, _ = process.communicate(json.dumps(more.get(name, {})) + "\n")
            assert not process.returncode, "see what the process printed"
            told[name] = json.loads(out)
    return told


def gpu() -> str:
    """Its name; empty where there is none that PyTorch can use."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each source instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count (%(default)s)")
    parser.add_argument("--extents", type=int, nargs=3, default=(4096, 4096, 4096), help="M, N and K (%(default)s)")
    parser.add_argument("--child", choices=("alone", "served"), help=argparse.SUPPRESS)
    parser.add_argument("--no-gpu", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.extents, not arguments.no_gpu, arguments.child == "served")))
        return
    if arguments.rounds < 2:
        parser.error("at least 2 rounds count, as quartiles are told")
    options = ["--extents", *map(str, arguments.extents)]
    if not (name := gpu()):
        print("no GPU, or no PyTorch, here: what comes before a launch is timed, and nothing runs", file=sys.stderr)
        options.append("--no-gpu")
    rows: dict[str, dict[str, list[float]]] = {source: {} for source in FROM}
    with tempfile.TemporaryDirectory() as packs:
        write_kernel_pack(pack := Path(packs) / "kernels.pack", arguments.extents, None if name else "H200")
        for repeat in range(arguments.rounds + 1):
            with tempfile.TemporaryDirectory() as folder:
                for source, found in measured_round(Path(folder), pack, options).items():
                    for step, ms in found.items() if repeat else ():
                        rows[source].setdefault(step, []).append(ms)
    if arguments.json:
        common = {"gpu": name, "extents": arguments.extents, "cores": os.cpu_count(), "python": sys.version.split()[0]}
        for source, steps in rows.items():
            print(json.dumps({"from": source, "ms": steps, **common}))
        return
    print(f"{'milliseconds':26}{'':10}{'median':>8}{'quartiles':>18}")
    for source, steps in rows.items():
        for step, values in steps.items():
            low, median, high = quantiles(values, method="inclusive")
            print(f"{FROM[source]:26}{step:10}{median:>8.0f}{low:>10.0f}{high:>8.0f}")
