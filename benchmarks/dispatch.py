"""Host time of a launch: a bare ``cuLaunchKernelEx``, a warm plan, ``gemmill.matmul(out=)`` and ``torch.mm(out=)``.

``matmul`` is also measured without its fast path, as with ``GEMMILL_WARM_CALLS=0``. If Triton is installed, its
launcher is measured with an empty kernel that has the arguments of a GEMM: three tensors, three extents, six strides.

Candidates take turns: a batch of calls of each, then the next round. The stream is drained between batches, and a batch
fits the launch queue, so that no call waits for the GPU. Finally, the program measures first calls with another M on
loaded kernels, for which problem, selection and descriptors are new. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/summary.md, "Host time of a call".
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--batches", type=int, default=300, help="batches of each candidate (%(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="calls in a batch (%(default)s)")
    parser.add_argument("--extent", type=int, default=256, help="M, N and K of the GEMM (%(default)s)")
    arguments = parser.parse_args()

    import torch

    import gemmill
    from gemmill.runtime.api.prepare import launch
    from gemmill.runtime.api.read import read_call

    device = torch.device("cuda", 0)
    a, b = (torch.randn(arguments.extent, arguments.extent, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    weight = b.t()
    bias, biased = torch.randn_like(a[0]), "d = acc + bias[n]"
    rows8, weight8 = a.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    of_rows = torch.ones(arguments.extent, 1, device=device)
    scales = {"a_scale": of_rows, "b_scale": of_rows.t()}
    plan = gemmill.plan(a, weight, out=out)
    candidates: dict[str, Callable[[], Any]] = {
        "cuLaunchKernelEx": _bare(plan),
        "plan()": plan,
        "gemmill.matmul(out=)": lambda: gemmill.matmul(a, weight, out=out),
        "gemmill.matmul(out=), no fast path": lambda: launch(read_call({"a": a, "b": weight, "out": out})),
        "gemmill.matmul(out=), a bias": lambda: gemmill.matmul(a, weight, out=out, epilogue=biased, bias=bias),
        "gemmill.matmul(out=), row scales": lambda: gemmill.matmul(rows8, weight8, out=out, **scales),
        "torch.mm(out=)": lambda: torch.mm(a, weight, out=out),
        "torch.addmm(out=), a bias": lambda: torch.addmm(bias, a, weight, out=out),
        "an empty lambda": lambda: None,
    }
    if importlib.util.find_spec("triton"):
        candidates["Triton's launcher"] = _triton(a, weight, out)
    samples = _measure(candidates, arguments.batches, arguments.calls, torch.cuda.synchronize)
    samples |= _first_calls()
    figures = {
        name: dict(zip(("low", "median", "high"), quantiles(values), strict=True)) for name, values in samples.items()
    }
    if arguments.json:
        properties = torch.cuda.get_device_properties(0)
        versions = {"gpu": properties.name, "torch": torch.__version__, "python": sys.version.split()[0]}
        print(json.dumps({"us": figures, "kernel": plan.choice and plan.choice.name, **versions}, indent=2))
        return
    print(f"{'host microseconds per call':36}{'median':>8}{'quartiles':>18}")
    for name, figure in figures.items():
        print(f"{name:36}{figure['median']:>8.2f}{figure['low']:>9.2f}{figure['high']:>9.2f}")


def _bare(plan: Any) -> Callable[[], None]:
    """The driver call of a plan, with its kernel and parameters; the lower bound of any launch."""
    launch = plan._launcher._prepared  # private; needed only here
    bound: Callable[[], Any] = launch.bind(0, launch._arguments)
    return bound


def _triton(a: Any, b: Any, out: Any) -> Callable[[], Any]:
    """A launch of an empty Triton kernel, with one CTA per tile of 128 x 128."""
    import triton

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def nothing(a, b, out, m, n, k, a_m, a_k, b_k, b_n, out_m, out_n):  # type: ignore[no-untyped-def]
        pass

    (m, k), n = a.shape, b.shape[1]
    grid = (triton.cdiv(m, 128) * triton.cdiv(n, 128),)

    def launch() -> None:
        nothing[grid](a, b, out, m, n, k, *a.stride(), *b.stride(), *out.stride())

    return launch


def _first_calls(layer: int = 4096, calls: int = 300) -> dict[str, list[float]]:
    """Microseconds of first calls with random numbers of rows and square weights in bf16."""
    import torch

    import gemmill

    x, d = (torch.randn(8192, layer, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.randn(layer, layer, device="cuda", dtype=torch.bfloat16).t()
    rows = random.Random(0).sample(range(1, 8192), 2 * calls)
    loading = gemmill.Registry()
    chosen = {m: loading.select(_problem(m, layer, layer)).name for m in rows}
    kernels = loading.warm({*chosen.values()})
    ways: dict[str, Callable[[int], dict[str, Any]]] = {
        "": lambda m: {},
        ", kernel given": lambda m: {"kernel": chosen[m]},
    }
    samples: dict[str, list[float]] = {}
    for how, options in ways.items():
        registry = gemmill.Registry()
        for kernel in kernels:
            registry.add(kernel)
        for i, m in enumerate(rows):
            a, out = x[:m], d[:m]
            ours = functools.partial(gemmill.matmul, a, weight, out=out, registry=registry, **options(m))
            timed: dict[str, Callable[[], object]] = {f"first gemmill.matmul(out=), new M{how}": ours}
            if not how:
                timed["first torch.mm(out=), new M"] = functools.partial(torch.mm, a, weight, out=out)
            torch.cuda.synchronize()
            for name, call in timed.items():
                start = time.perf_counter_ns()
                call()
                if i >= calls:  # earlier calls load kernels and expand sets
                    samples.setdefault(name, []).append((time.perf_counter_ns() - start) / 1000)
    return samples


def _problem(m: int, n: int, k: int) -> Any:
    """A bf16 problem with K-major operands."""
    from gemmill.library.problem import GemmProblem

    return GemmProblem(m, n, k)


def _measure(
    candidates: dict[str, Callable[[], Any]], batches: int, calls: int, drain: Callable[[], None]
) -> dict[str, list[float]]:
    """Microseconds per call, one value for each batch."""
    for call in candidates.values():
        for _ in range(calls):
            call()
        drain()
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    repeat = range(calls)
    gc.disable()
    for _ in range(batches):
        for name, call in candidates.items():
            start = time.perf_counter_ns()
            for _ in repeat:
                call()
            samples[name].append((time.perf_counter_ns() - start) / 1000 / calls)
            drain()
    gc.enable()
    return samples


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
