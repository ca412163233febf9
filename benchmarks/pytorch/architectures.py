"""Architectures of public models, built from transformers configs with random weights, so that nothing is downloaded.

The widths are those of the models. The number of layers is reduced, so that a run takes minutes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class Architecture(NamedTuple):
    """The config of a model."""

    config: str
    """Config class of transformers."""
    fields: Mapping[str, Any]
    """Arguments of the config."""
    layers: int = 4
    """Default number of layers."""
    is_decoder: bool = True


_LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336}

_POSITIONS = {"max_position_embeddings": 2048}
"""The length of prompts, for models with fewer positions."""

ARCHITECTURES: Mapping[str, Architecture] = {
    "Llama-3.1-8B": Architecture("LlamaConfig", {**_LLAMA, "vocab_size": 128256}),
    "Qwen2.5-7B": Architecture(
        "Qwen2Config",
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
    ),
    "Gemma-7B": Architecture(
        "GemmaConfig",
        {
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "vocab_size": 256000,
        },
    ),
    "Phi-3-mini": Architecture(
        "Phi3Config",
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "pad_token_id": 0,
        },
        layers=8,
    ),
    "GPT-2 XL": Architecture("GPT2Config", {"n_embd": 1600, "n_head": 25, "vocab_size": 50257, **_POSITIONS}, layers=8),
    "StarCoder2-7B": Architecture(
        "Starcoder2Config",
        {
            "hidden_size": 4608,
            "intermediate_size": 18432,
            "num_attention_heads": 36,
            "num_key_value_heads": 4,
            "vocab_size": 49152,
        },
    ),
    "Mixtral-8x7B": Architecture("MixtralConfig", {**_LLAMA, "vocab_size": 32000}, layers=2),
    "BERT-large": Architecture(
        "BertConfig",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, **_POSITIONS},
        layers=8,
        is_decoder=False,
    ),
}
"""Architectures by the name of the model."""

_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "n_embd": 64,
    "n_head": 4,
}
"""Fields of a small model for CPUs."""


def build(name: str, layers: int | None, device: str, tiny: bool) -> Any:
    """A model in bf16 with random weights of a fixed seed; ``tiny``: two layers with the widths of :data:`_TINY`."""
    import transformers

    row = ARCHITECTURES[name]
    fields = {key: _TINY.get(key, value) if tiny else value for key, value in row.fields.items()}
    fields["n_layer" if row.config == "GPT2Config" else "num_hidden_layers"] = 2 if tiny else layers or row.layers
    config = getattr(transformers, row.config)(**fields, attn_implementation="sdpa")
    if "num_local_experts" in config.to_dict():  # one call for all experts, which CUDA graphs support
        config._experts_implementation = "grouped_mm"
    kind = transformers.AutoModelForCausalLM if row.is_decoder else transformers.AutoModel
    torch.manual_seed(0)
    with torch.device(device):
        model = kind.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    return model.eval().requires_grad_(False)


def takes(model: Any, name: str) -> bool:
    """Whether a model has an argument, which depends on the version of transformers."""
    return name in inspect.signature(model.forward).parameters
