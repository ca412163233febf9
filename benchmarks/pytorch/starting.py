"""Seconds of a new process until transformers' ``generate`` has its first token, without gemmill and in ``enabled()``.

The processes have a store without kernels: gemmill's come from the pack in ``GEMMILL_PACKS``, or are compiled. The
clock starts when PyTorch is imported and the model, Llama-3.1-8B's with random weights, is on the GPU.
Writes JSON Lines. Needs transformers and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SIDES = ("torch", "ours")


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of the prompt (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side (%(default)s)")
    parser.add_argument("--out", type=Path, help="file to append lines to")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for number in range(arguments.rounds):
        for side in sorted(SIDES, reverse=number % 2 == 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=first_token, args=(theirs, side, arguments.layers, arguments.prompt))
            process.start()
            line = json.dumps({"what": "start", "side": side, **ours.recv()})
            process.join()
            print(line, flush=True)
            if arguments.out is not None:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


def first_token(pipe: Connection, side: str, layers: int, prompt: int) -> None:
    """Generate a token, and send the seconds of each part."""
    import torch
    from benchmarks.pytorch.architectures import build

    model = build("Llama-3.1-8B", layers, "cuda", tiny=False)
    ids = torch.randint(1, model.config.vocab_size, (1, prompt), device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    seconds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as store, torch.no_grad():
        os.environ["GEMMILL_STORE"] = store
        entered: Any = nullcontext()
        if side == "ours":
            import gemmill.torch

            entered = gemmill.torch.enabled()
        seconds["imported"] = time.perf_counter() - start
        with entered:
            for name in ("first", "second"):
                model.generate(ids, max_new_tokens=1, do_sample=False, pad_token_id=0)
                torch.cuda.synchronize()
                seconds[name] = time.perf_counter() - start
        if side == "ours":
            seconds["stats"] = gemmill.torch.stats().as_dict()
    pipe.send({name: round(x, 3) if isinstance(x, float) else x for name, x in seconds.items()})
