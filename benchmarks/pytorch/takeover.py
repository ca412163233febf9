"""Host time of PyTorch's own operators with their kernels overridden, beside the original's.

On a GPU, kernels of ours are launched; elsewhere what is dispatched, recognised and allocated is timed on the CPU,
before a launcher that does nothing.

    python benchmarks/pytorch/takeover.py
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch

from gemmill.runtime.torch.takeover.aten import Call, Given
from gemmill.runtime.torch.takeover.backends import kernels, launching
from gemmill.runtime.torch.takeover.overrides import Takeover

ROUNDS, REPEATS, CALLS = 6, 80, 200
WIDTH = 4096
"""K and N on a GPU; on the CPU 8, as PyTorch computes what it is called for."""


def launch_nothing(call: Call, given: Given, names: list[str]) -> Any:
    """All but a launch."""
    return launching(call, given[names[0]], names, ("a", "b", "", "out"), lambda *_: None, lambda _: 0), "nothing"


def bare(library: torch.library.Library, key: str, d: Any) -> None:
    """Overrides that do nothing at all."""
    library.impl("mm", lambda a, b: d, key, allow_override=True)
    library.impl("mm.out", lambda a, b, out: out, key, allow_override=True)
    library.impl("addmm", lambda c, a, b: d, key, allow_override=True)


def cases(device: str, width: int) -> dict[str, Callable[[], Any]]:
    """Calls by name."""
    layer = torch.nn.Linear(width, width, bias=False, device=device, dtype=torch.bfloat16)
    x, weight, bias = torch.randn(2, width, device=device).bfloat16(), layer.weight, torch.zeros_like(layer.weight[0])
    batch, out, double = x[None], torch.empty_like(x), (x.double(), weight.double())
    linear = torch.nn.functional.linear
    return {
        "torch.mm": lambda: torch.mm(x, weight),
        "torch.mm(out=)": lambda: torch.mm(x, weight, out=out),
        "linear, bias": lambda: linear(x, weight, bias),
        "linear of a batch": lambda: linear(batch, weight),
        "linear of a batch, bias": lambda: linear(batch, weight, bias),
        "nn.Linear of a batch": lambda: layer(batch),
        "torch.mm of f64, left to PyTorch": lambda: torch.mm(*double),
    }


def main() -> None:
    """Print microseconds a call, the least of all rounds, in which the ways alternate."""
    on_gpu = torch.cuda.is_available()
    device, key = ("cuda", "CUDA") if on_gpu else ("cpu", "CPU")
    torch.set_num_threads(1)
    calls = cases(device, WIDTH if on_gpu else 8)
    takeover = Takeover(key, kernels if on_gpu else launch_nothing)
    best: dict[tuple[str, str], float] = {}

    def measure(way: str) -> None:
        for name, call in calls.items():
            for _ in range(3):
                call()
            for _ in range(REPEATS):
                if on_gpu:
                    torch.cuda.synchronize()
                us = timeit.timeit(call, number=CALLS) / CALLS * 1e6
                best[way, name] = min(best.get((way, name), us), us)

    with torch.no_grad():
        for _ in range(ROUNDS):
            measure("PyTorch")
            with takeover.within():
                measure("overridden")
            library = torch.library.Library("aten", "IMPL")
            bare(library, key, calls["torch.mm"]())
            measure("an override that does nothing")
            library._destroy()
    ways = ("PyTorch", "an override that does nothing", "overridden")
    print("| | " + " | ".join(ways) + " |\n|---|---|---|---|")
    for name in calls:
        print(f"| {name} | " + " | ".join(f"{best[way, name]:.2f}" for way in ways) + " |")


if __name__ == "__main__":
    main()
