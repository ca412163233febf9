"""The programs of ``examples/``: how each is tried, with a GPU and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).parents[2] / "examples"


class Program(NamedTuple):
    """A program with what it is given."""

    file: str
    arguments: str = ""
    needs: tuple[str, ...] = ()
    """Modules beside gemmill's own."""


WITHOUT_GPU = (
    Program("short/choose_without_gpu.py"),
    Program("short/edit_a_kernel.py"),
    Program("short/service_client.py", needs=("uvicorn",)),
    Program("short/ship_a_pack.py"),
)
OF_TENSORS = (
    "first_matmul",
    "fused_epilogue",
    "experts",
    "mxfp4_experts",
    "fp8_block_scales",
    "u4_weights",
    "muon",
    "cuda_graph",
    "own_launcher",
)
"""Short ones that need PyTorch."""
ON_GPU = (
    *(Program(f"{name}.py", "--tiny", ("torch",)) for name in ("fp8_inference", "train_nanogpt")),
    Program("finetune_llama.py", "--tiny --steps 12", ("torch", "transformers")),
    Program("llama_generate.py", "--tiny --tokens 8", ("torch", "transformers")),
    Program("jax_block.py", "--tiny --steps 5", ("jax",)),
    Program("short/arrays.py"),
    *(Program(f"short/{name}.py", needs=("torch",)) for name in OF_TENSORS),
    Program("short/edit_a_kernel.py", "--run", ("torch",)),
)


def run_program(program: Program, folder: Path, **environment: str) -> str:
    """What it prints, run in a folder, with further variables of the environment; it must succeed."""
    command = [sys.executable, str(EXAMPLES / program.file), *program.arguments.split()]
    variables = os.environ | environment
    done = subprocess.run(command, cwd=folder, env=variables, text=True, capture_output=True, timeout=600, check=False)
    assert not done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout
