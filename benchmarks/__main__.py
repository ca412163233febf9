"""What the tables of docs/performance rest on: ``python -m benchmarks NAME [OPTION]...``; without a name, which there
are."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PROGRAMS = {
    "gemm": "suites of shapes: best and selected kernel beside cuBLAS and cuBLASLt",
    "drawn": "problems drawn by a seed, in bursts, beside cuBLAS and cuBLASLt",
    "sustained": "large layers drawn by a seed, at the power limit, beside cuBLAS and cuBLASLt",
    "picture": "an SVG of what sustained recorded; no GPU",
    "deepgemm": "beside DeepGEMM, in bursts and at the power limit",
    "models": "PyTorch models under enabled(): time, accuracy, what is served",
    "training": "training steps of a Llama under enabled(): time, loss",
    "host": "host time of a call, from PyTorch",
    "dispatch": "host time of a launch and of first calls",
    "choice": "host time of a choice: warm, of mixed types, of a fresh process; no GPU",
    "first_call": "host time of the first call of a signature, up to the driver; no GPU",
    "first_gemm": "the first GEMM of a fresh process, from compiler, server, store and pack",
}
"""Modules of this package, and of its folder ``pytorch``, by what they measure."""
IN_PYTORCH = ("models", "training", "host")


def main() -> None:
    """Run the program that the first argument names, with the others."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in PROGRAMS:
        print(__doc__, *(f"  {key:12}{value}" for key, value in PROGRAMS.items()), sep="\n")
        sys.exit(0 if name in ("", "--help") else f"no program is called {name}")
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
    import_module(f"benchmarks.{'pytorch.' if name in IN_PYTORCH else ''}{name}").main()


if __name__ == "__main__":
    main()
