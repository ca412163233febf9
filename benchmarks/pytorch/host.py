"""Host time of a call from PyTorch: ``gemmill.matmul``, its operators, and ``torch.mm`` and ``linear`` with and without
``enabled()``; also with gradients, and compiled.

Calls take turns: a batch of each, then the next round. The time to enter a context is not included. The stream is
drained between batches, and a batch fits the launch queue, so that no call waits for the GPU. Writes JSON Lines, one
for each call, with quartiles over batches in microseconds. Needs an NVIDIA GPU; ``--device cpu`` tries the program
without one.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from benchmarks.pytorch.sides import SIDES, Lines, synchronize
from torch.nn.functional import linear

import gemmill.torch

Call = Callable[[], Any]


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200, help="batches of each call (%(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="calls in a batch (%(default)s)")
    parser.add_argument("--extent", type=int, default=256, help="M, N and K of the GEMM (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="time limit of the run (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--commit", help="commit to record in the results")
    parser.add_argument("--out", type=Path, help="file to append lines to")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    lines = Lines(arguments.out, arguments.seconds)
    lines.head(program="host", commit=arguments.commit, extent=arguments.extent, calls=arguments.calls)
    ways: dict[str, tuple[str, Call]] = {}
    for name, (side, call) in _ways(arguments.extent, arguments.device).items():

        def first(side: str = side, call: Call = call) -> dict[str, Any]:
            with SIDES[side]():
                for _ in range(3):
                    call()
            return {"first": True}

        if lines.tried(first, way=name, side=side):
            ways[name] = side, call
    for name, values in _measure(ways, arguments.batches, arguments.calls, lines).items():
        low, middle, high = (round(x, 3) for x in quantiles(values, method="inclusive"))
        lines.add(way=name, side=ways[name][0], us=[low, middle, high], batches=len(values))


def _ways(extent: int, device: str) -> dict[str, tuple[str, Call]]:
    """Calls by name, each with the side whose context it runs in."""
    x, weight = (torch.randn(extent, extent, device=device, dtype=torch.bfloat16) for _ in range(2))
    out, bias, b = torch.empty_like(x), torch.randn_like(x[0]), weight.t()
    to_learn = weight.clone().requires_grad_()
    learnt = to_learn.t()  # a view, made once
    operators = torch.ops.gemmill
    ways: dict[str, tuple[str, Call]] = {
        "an empty lambda": ("torch", lambda: None),
        "torch.ops.gemmill.mm": ("torch", lambda: operators.mm(x, b)),
        "torch.ops.gemmill.mm_out": ("torch", lambda: operators.mm_out(x, b, out)),
        "torch.ops.gemmill.addmm": ("torch", lambda: operators.addmm(bias, x, b)),
        "torch.ops.gemmill.mm, gradients": ("torch", lambda: operators.mm(x, learnt)),
    }
    if device == "cuda":
        ways |= {
            "gemmill.matmul": ("torch", lambda: gemmill.matmul(x, b)),
            "gemmill.matmul(out=)": ("torch", lambda: gemmill.matmul(x, b, out=out)),
            "gemmill.matmul(c=)": ("torch", lambda: gemmill.matmul(x, b, c=bias)),
            "gemmill.matmul, gradients": ("torch", lambda: gemmill.matmul(x, learnt)),
        }
    for side in SIDES:
        enabled = ", enabled()" if side == "ours" else ""
        ways |= {
            f"torch.mm{enabled}": (side, lambda: torch.mm(x, b)),
            f"torch.mm(out=){enabled}": (side, lambda: torch.mm(x, b, out=out)),
            f"torch.addmm{enabled}": (side, lambda: torch.addmm(bias, x, b)),
            f"torch.mm, gradients{enabled}": (side, lambda: torch.mm(x, learnt)),
            f"linear{enabled}": (side, lambda: linear(x, weight)),
            f"linear with a bias{enabled}": (side, lambda: linear(x, weight, bias)),
            f"linear, gradients{enabled}": (side, lambda: linear(x, to_learn)),
        }
    compiled: dict[str, tuple[str, Callable[..., Any]]] = {
        "nothing, compiled": ("torch", lambda x, b: x.t()),
        "gemmill.matmul, compiled": ("torch", lambda x, b: gemmill.matmul(x, b)),
        "torch.mm, compiled": ("torch", lambda x, b: torch.mm(x, b)),
        "torch.mm, compiled, enabled()": ("ours", lambda x, b: torch.mm(x, b)),
    }
    return ways | {
        name: (side, functools.partial(torch.compile(call, dynamic=False), x, b))
        for name, (side, call) in compiled.items()
    }


def _measure(ways: dict[str, tuple[str, Call]], batches: int, calls: int, lines: Lines) -> dict[str, list[float]]:
    """Microseconds per call, one value for each batch; fewer batches if the time is up."""
    samples: dict[str, list[float]] = {name: [] for name in ways}
    repeat = range(calls)
    gc.disable()
    for batch in range(batches):
        if lines.left < 5 and batch > 1:
            break
        for name, (side, call) in ways.items():
            with SIDES[side]():
                for _ in range(3):
                    call()
                synchronize()
                start = time.perf_counter_ns()
                for _ in repeat:
                    call()
                samples[name].append((time.perf_counter_ns() - start) / 1000 / calls)
                synchronize()
    gc.enable()
    return samples
