"""Products of attention on (B, S, H, D) views beside ``torch.matmul`` on the same views, in one run.

Scores, Q K^T, and context, P V, of four public models; ``torch.matmul`` copies views whose batch has no one stride,
gemmill reads them where they are. Launches are replayed in CUDA graphs. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/layouts.md, "Views of attention".
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

MODELS = {
    "Llama-3-8B": (32, 8, 128),
    "Qwen2.5-7B": (28, 4, 128),
    "GPT-J-6B": (16, 16, 256),
    "BERT-large": (16, 16, 64),
}
"""Heads, heads of keys and values, elements of a head."""
LENGTHS = (512, 1024, 2048)
"""Tokens."""
BATCHES = (1, 4)
SETS = 2
"""Operand sets that launches go through in turn."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options, check, in_turn, times

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    import gemmill

    stream = torch.cuda.Stream()
    generator = torch.Generator(device="cuda").manual_seed(0)
    record = Record("attention", arguments)

    def normal(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)

    def operands(what: str, batch: int, tokens: int, heads: int, shared: int, size: int) -> tuple[Any, Any]:
        """A and B as a model has them: of each head of keys or values as many of queries as share it."""
        group = heads // shared
        own = normal(batch, tokens, shared, size).transpose(1, 2)
        left = normal(batch, heads, tokens, tokens)
        if what == "scores":
            left, own = normal(batch, tokens, heads, size).transpose(1, 2), own.mT
        if group > 1:
            left, own = left.unflatten(1, (shared, group)), own.unsqueeze(2).expand(-1, -1, group, -1, -1)
        return left, own

    for batch in BATCHES:
        ratios = []
        for model, (heads, shared, size) in MODELS.items():
            for tokens in LENGTHS:
                for what in ("scores", "context"):
                    sets = [operands(what, batch, tokens, heads, shared, size) for _ in range(SETS)]
                    with torch.cuda.stream(stream):
                        plans: list[Any] = [gemmill.plan(a, b) for a, b in sets]
                        plans[0]()
                    stream.synchronize()
                    check(f"{model} {what}", plans[0].out, torch.matmul(*sets[0]).double())
                    launches = {
                        "gemmill": in_turn(plans),
                        "torch": in_turn([partial(torch.matmul, a, b) for a, b in sets]),
                    }
                    us = times(launches, SETS, 2 * SETS, arguments.rounds, stream)
                    ratio = us["torch"] / us["gemmill"]
                    ratios.append(ratio)
                    config = plans[0].kernel
                    row = {"model": model, "what": what, "batch": batch, "tokens": tokens, **us, "ratio": ratio}
                    record.add(row | {"kernel": str(plans[0].choice.name), "batching": config.scheduler.batching})
                    print(
                        f"B={batch} {model:12} S={tokens:5} {what:8} torch {us['torch']:8.1f} us  "
                        f"gemmill {us['gemmill']:8.1f} us  {ratio:6.3f}  {plans[0].choice.name}",
                        flush=True,
                    )
                    del plans, launches, sets
                    torch.cuda.empty_cache()
        print(f"B={batch}: geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.3f}")
    print(record.path)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
