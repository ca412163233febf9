"""Generate text with a transformers Llama inside `enabled()`, eager and compiled.

    python examples/llama_generate.py                       # on a GPU: 8 layers of Llama-3.1-8B's widths
    python examples/llama_generate.py --model PATH          # your checkpoint
    python examples/llama_generate.py --device cpu --tiny   # without a GPU: tries the program

The model is unchanged. Prints the speed, how many tokens and how close the logits are equal to PyTorch's, and which
calls used gemmill.
"""

from __future__ import annotations

import argparse
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import transformers

import gemmill.torch


def main() -> None:
    """Generate with PyTorch alone and with gemmill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint; default: random weights")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers of width 64")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    model = load(arguments.model, arguments.device, arguments.tiny)
    prompt = torch.randint(1, model.config.vocab_size, (4, 16 if arguments.tiny else 512), device=arguments.device)

    made = {}
    sides: dict[str, AbstractContextManager[Any]] = {"PyTorch": nullcontext(), "enabled()": gemmill.torch.enabled()}
    for name, context in sides.items():
        with context:
            made[name], seconds = generate(model, prompt, arguments.tokens)
        print(f"{name:20} {made[name].numel() / seconds:8.0f} tokens per second")
    same = (made["PyTorch"] == made["enabled()"]).float().mean()
    print(f"{same:.0%} of the tokens are equal; rounding decides between equally likely tokens")

    # After the first tie, greedy sequences differ for good, so logits are a better comparison.
    with torch.no_grad():
        plain = model(prompt).logits[:, -1].double()
        with gemmill.torch.enabled():
            ours = model(prompt).logits[:, -1].double()
        forward = torch.compile(lambda ids: model(ids).logits[:, -1])
        with gemmill.torch.enabled():  # compiled code uses gemmill's operators, with fused epilogues
            compiled = forward(prompt).double()
    for name, logits in (("enabled()", ours), ("enabled(), compiled", compiled)):
        print(f"{name:20} logits are {float((logits - plain).norm() / plain.norm()):.1e} from PyTorch's")
    print(gemmill.torch.stats())


def load(path: str | None, device: str, tiny: bool) -> Any:
    """A causal language model in bf16."""
    if path is not None:
        return transformers.AutoModelForCausalLM.from_pretrained(path).to(device, torch.bfloat16).eval()
    widths = (64, 128, 4, 2, 2, 128) if tiny else (4096, 14336, 32, 8, 8, 128256)
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    fields = dict(zip((*names, "num_hidden_layers", "vocab_size"), widths, strict=True))
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model.generation_config.eos_token_id = None  # with random weights, the end token may appear anywhere
    return model.to(torch.bfloat16).eval()


def generate(model: Any, prompt: torch.Tensor, tokens: int) -> tuple[torch.Tensor, float]:
    """Greedy decoding; returns the new tokens, and the seconds of a second run, since the first compiles kernels."""
    for _ in range(2):
        start = time.perf_counter()
        with torch.no_grad():
            made = model.generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        found: torch.Tensor = made[:, prompt.shape[1] :].cpu()
        seconds = time.perf_counter() - start
    return found, seconds


if __name__ == "__main__":
    main()
