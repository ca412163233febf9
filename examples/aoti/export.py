"""Compile a decoder of Llama's shape into a package that C++ programs run without Python (docs/native.md).

Writes to a folder: `model.pt2`, the package, whose products call gemmill's operators; `config.json`, for `gemmill model
--separate --pack`; `inputs.pt`, token ids; and `expected.pt`, the logits of eager PyTorch. Weights are random.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import gemmill.torch

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "vocab_size": 8192,
    "torch_dtype": "bfloat16",
}
TINY = CONFIG | {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 512}
TINY |= {"num_key_value_heads": 2}


class Layer(nn.Module):
    """A decoder layer: attention with rotary positions, and a gated MLP."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, wide = config["hidden_size"], config["intermediate_size"]
        self.heads, self.shared = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = width // self.heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (
            nn.Linear(columns, rows, bias=False)
            for columns, rows in (
                (width, width),
                (width, self.shared * self.size),
                (width, self.shared * self.size),
                (width, width),
                (width, wide),
                (width, wide),
                (wide, width),
            )
        )

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Tokens (1, T, hidden) to tokens."""
        y = self.norms[0](x)
        q, k, v = (
            layer(y).view(1, -1, heads, self.size).transpose(1, 2)
            for layer, heads in ((self.q, self.heads), (self.k, self.shared), (self.v, self.shared))
        )
        q, k = (z * cos + torch.cat((-z[..., self.size // 2 :], z[..., : self.size // 2]), -1) * sin for z in (q, k))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Token ids (1, T) to logits (1, T, vocabulary)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.embed = nn.Embedding(config["vocab_size"], width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, config["vocab_size"], bias=False)
        size = width // config["num_attention_heads"]
        self.register_buffer("rates", 10000.0 ** -(torch.arange(0, size, 2) / size))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Run all layers."""
        x = self.embed(ids)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * self.rates.float().repeat(2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="layers of width 256")
    arguments = parser.parse_args()
    folder, config = arguments.folder, TINY if arguments.tiny else CONFIG
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    torch.manual_seed(0)
    with torch.device(arguments.device), torch.no_grad():
        model = Decoder(config).to(torch.bfloat16).eval()
        ids = torch.randint(config["vocab_size"], (1, arguments.tokens))
        torch.save([ids], folder / "inputs.pt")
        torch.save([model(ids)], folder / "expected.pt")
        exported = torch.export.export(
            model, (ids,), dynamic_shapes=({1: torch.export.Dim("tokens", min=2, max=4096)},)
        )
        with gemmill.torch.enabled():
            torch._inductor.aoti_compile_and_package(
                exported,
                package_path=str(folder / "model.pt2"),
                # Plain products, of which the pack of a model has kernels, instead of fused epilogues.
                inductor_configs={"emulate_precision_casts": True},
            )


if __name__ == "__main__":
    main()
