"""Time until the first GEMM of a new process, by the source of the kernel: compiled by the process, compiled by a
server, or loaded from a server, from the local store or from a pack.

Each round starts a server with an empty store, and five processes, one for each source. They import PyTorch and make
operands, which creates the CUDA context, and then run one after the other. The clients of the server have no NVRTC and
no headers, and compile nothing (``GEMMILL_REMOTE_MODE=only``). The clock starts before gemmill is imported.
``selected``: a kernel is selected from all built-in ones, which takes longer with a new store. ``kernel``: the kernel
is loaded. ``launched``: ``gemmill.matmul`` has returned. ``done``: the GPU has finished; the result is compared with
PyTorch's. The first round, with cold file caches and without bytecode, does not count. Needs an NVIDIA GPU, PyTorch,
and gemmill's extra ``service``; without a GPU, the program only measures the steps before the launch.
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
    "compiled": "compiled by the process",
    "server, cold": "compiled by a server",
    "server, warm": "stored on a server",
    "store": "in the local store",
    "pack": "in a pack",
}
"""The sources of the kernel, in the order of a round."""
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
TOKEN = "secret-of-the-benchmark"
TOOLCHAIN = ("cuda.bindings.nvrtc", "cutlass_library", "nvidia.cuda_nvrtc")


class Gone:
    """An import hook that hides the modules of the toolchain."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for the modules of the toolchain."""
        if name.startswith(TOOLCHAIN):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextmanager
def service(folder: Path) -> Iterator[int]:
    """Run `gemmill serve` with an empty store, one compile process, tokens and signatures; yields its port."""
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
    """The environment of a process with a separate store, without the caller's gemmill settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    path = os.pathsep.join([str(SOURCES), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "PYTHONPATH": path, "GEMMILL_STORE": str(store)}


def write_kernel_pack(path: Path, extents: tuple[int, int, int], gpu: str | None) -> None:
    """Write a pack with the selected kernel."""
    import gemmill
    from gemmill.runtime.storage.pack import write_pack

    registry = gemmill.Registry(gpu=gpu)
    write_pack(path, [registry.get(registry.select(problem_of(extents)).name)])


def problem_of(extents: tuple[int, int, int]) -> Any:
    """The GEMM, in bf16."""
    import gemmill

    return gemmill.GemmProblem(*extents, a="bf16", a_major="k", b_major="k", d="bf16")


def child(extents: tuple[int, int, int], has_gpu: bool, is_served: bool) -> dict[str, float]:
    """Milliseconds until each step is done, since the parent has sent a line with the rest of the environment."""
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
        assert torch.equal(d, (a.double() @ b.double()).bfloat16()), "sums of small integers are exact"
    if is_served:
        assert registry.remote is not None
        assert registry.remote.counters()["hits"] == 1, registry.remote
    return ms


def measured_round(folder: Path, pack: Path, options: list[str]) -> dict[str, dict[str, float]]:
    """The results of a process for each source in :data:`FROM`."""
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
            assert process.stdout.readline() == "ready\n", "the process failed; see its output"
        told = {}
        for name, process in processes.items():
            out, _ = process.communicate(json.dumps(more.get(name, {})) + "\n")
            assert not process.returncode, "the process failed; see its output"
            told[name] = json.loads(out)
    return told


def gpu() -> str:
    """The name of the GPU; empty if PyTorch has none."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each source instead of a table")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds (%(default)s)")
    parser.add_argument("--extents", type=int, nargs=3, default=(4096, 4096, 4096), help="M, N and K (%(default)s)")
    parser.add_argument("--child", choices=("alone", "served"), help=argparse.SUPPRESS)
    parser.add_argument("--no-gpu", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.extents, not arguments.no_gpu, arguments.child == "served")))
        return
    if arguments.rounds < 2:
        parser.error("--rounds must be at least 2, for quartiles")
    options = ["--extents", *map(str, arguments.extents)]
    if not (name := gpu()):
        print("no GPU or no PyTorch: measuring only the steps before the launch", file=sys.stderr)
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
