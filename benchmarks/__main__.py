"""The benchmarks behind docs/performance: ``python -m benchmarks NAME [OPTION]...``; without a name, lists them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PROGRAMS = {
    "gemm": "suites of shapes: fastest and selected kernel relative to cuBLAS and cuBLASLt",
    "drawn": "random problems in bursts, relative to cuBLAS and cuBLASLt",
    "bits": "the cost of the same bits for every batch, beside any bits and cuBLAS",
    "sustained": "random large layers at the power limit, relative to cuBLAS and cuBLASLt",
    "picture": "draw the records of sustained as an SVG; no GPU",
    "float32": "f32 and complex64 on tensor cores relative to cuBLAS, in bursts and at the power limit; errors",
    "deepgemm": "relative to DeepGEMM, in bursts and at the power limit",
    "moe": "layers of mixtures of experts, relative to PyTorch and Triton, in bursts and at the power limit",
    "lora": "products of low-rank adapters, relative to PyTorch and Triton, in bursts",
    "models": "PyTorch models with enabled(): time, accuracy, coverage",
    "training": "training steps of a Llama with enabled(): time, energy, loss",
    "generation": "transformers' generate with enabled(): time to the first token, tokens per second, energy",
    "starting": "seconds of a new process to transformers' first token, with enabled() and without",
    "serving": "vLLM with the plugin: start-up, time to the first token, tokens per second, energy",
    "host": "host time of a call from PyTorch",
    "dispatch": "host time of a launch and of first calls",
    "choosing": "regret of choosers of kernels, gemmill's and others, on measured problems; no GPU",
    "choice": "host time of a selection; no GPU",
    "first_call": "host time of the first call of a signature, up to the driver; no GPU",
    "first_gemm": "time to the first GEMM of a process, with the kernel from compiler, server, store or pack",
}
"""Modules of this package and of its folder ``pytorch``, with their descriptions."""
IN_PYTORCH = ("models", "training", "generation", "starting", "serving", "host")


def main() -> None:
    """Run the program named by the first argument, with the other arguments."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in PROGRAMS:
        print(__doc__, *(f"  {key:12}{value}" for key, value in PROGRAMS.items()), sep="\n")
        sys.exit(0 if name in ("", "--help") else f"unknown program {name}")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
    from gemmill.library.errors import GemmillError
    from gemmill.library.extras import install_torch

    try:
        import_module(f"benchmarks.{'pytorch.' if name in IN_PYTORCH else ''}{name}").main()
    except GemmillError as error:
        sys.exit(f"error: {error}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.exit(f"error: {name} needs PyTorch ({error}); {install_torch()}")


if __name__ == "__main__":
    main()
