"""Fine-tune a transformers Llama with gemmill and with PyTorch alone, and compare the losses.

    python examples/finetune_llama.py                       # on a GPU: a model of 1.2 billion parameters
    python examples/finetune_llama.py --model PATH          # your checkpoint
    python examples/finetune_llama.py --device cpu --tiny   # without a GPU: tries the program

Forward and backward run inside `gemmill.torch.enabled()`, with bf16 autocast. Prints the losses of both runs.
"""

from __future__ import annotations

import argparse
import copy
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers

import gemmill.torch


def main() -> None:
    """Fine-tune with both, and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: random weights")
    parser.add_argument("--steps", type=int, default=40, help="training steps (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers of width 64")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    model = load(arguments.model, arguments.device, arguments.tiny)
    batch, tokens = (2, 32) if arguments.tiny else (4, 1024)
    batches = list(windows(arguments.steps, batch, tokens, arguments.device))

    losses = {}
    sides: dict[str, AbstractContextManager[Any]] = {"PyTorch": nullcontext(), "gemmill": gemmill.torch.enabled()}
    for name, context in sides.items():
        with context:
            losses[name] = finetune(copy.deepcopy(model), batches)
    print("step   PyTorch   gemmill")
    for step in range(0, arguments.steps, max(1, arguments.steps // 10)):
        print(f"{step:4} {losses['PyTorch'][step]:9.4f} {losses['gemmill'][step]:9.4f}")
    apart = max(abs(x - y) for x, y in zip(losses["PyTorch"], losses["gemmill"], strict=True))
    first, last = losses["gemmill"][0], losses["gemmill"][-1]
    print(f"gemmill: from {first:.4f} to {last:.4f}, at most {apart:.4f} difference to PyTorch")
    print(gemmill.torch.stats())


def load(path: str | None, device: str, tiny: bool) -> Any:
    """A causal language model in float32."""
    if path is not None:
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(device)
    widths = (64, 128, 4, 2, 2, 256) if tiny else (2048, 8192, 32, 8, 16, 32000)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    fields = dict(zip((*names, "num_hidden_layers", "vocab_size"), widths, strict=True))
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))


def windows(steps: int, batch: int, tokens: int, device: str) -> list[torch.Tensor]:
    """Batches of bytes from this repository's documentation."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    text = torch.tensor([*b"".join(page.read_bytes() for page in pages)])
    draw = torch.Generator().manual_seed(0)
    starts = torch.randint(0, len(text) - tokens, (steps, batch), generator=draw)
    return [torch.stack([text[i : i + tokens] for i in row]).to(device) for row in starts.tolist()]


def finetune(model: Any, batches: list[torch.Tensor]) -> list[float]:
    """Train a model; returns the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if model.config.hidden_size < 1000 else 3e-4)
    losses = []
    for ids in batches:
        with torch.autocast(ids.device.type, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(x) for x in losses]


if __name__ == "__main__":
    main()
