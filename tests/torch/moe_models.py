"""Small language models of transformers with experts and random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_WIDTHS = {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 256}
_LATENT = {
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 32, "v_head_dim": 64, "max_position_embeddings": 256,
}  # fmt: skip
_GROUPS = {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_SLOTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 128}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Qwen3-MoE": ("Qwen3MoeConfig", {**_WIDTHS, **_HEADS, "num_experts": 8, **_SLOTS}),
    "DeepSeek-V3": ("DeepseekV3Config", {**_WIDTHS, **_LATENT, **_GROUPS, **_SLOTS}),
    "gpt-oss": (
        "GptOssConfig",
        {
            **_WIDTHS, **_HEADS, "intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 3,
            "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
}  # fmt: skip
"""Config class and its arguments. The experts of gpt-oss have biases, and their gate and up alternate."""


def built(name: str, device: str = "cpu", experts: str = "eager", dtype: Any = torch.bfloat16) -> Any:
    """A model in evaluation mode. ``experts`` is transformers' ``experts_implementation``."""
    import transformers

    kind, fields = MODELS[name]
    config = getattr(transformers, kind)(**fields)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, experts_implementation=experts)
    with torch.no_grad():
        for of_weight, weight in model.named_parameters():  # some of these models leave memory as it is
            if "norm" not in of_weight:
                weight.normal_(0, 0.1)
    return model.to(device, dtype).eval()


def experts_of(model: Any) -> Any:
    """The experts of the last layer."""
    return model.model.layers[-1].mlp.experts


def tokens_for(model: Any, count: int = 40, slots: int = 3) -> tuple[Any, Any, Any]:
    """Activations, experts and weights for the experts of a model."""
    weight = next(experts_of(model).parameters())
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(count, model.config.hidden_size, generator=draw).to(weight)
    ids = torch.stack([torch.randperm(8, generator=draw)[:slots] for _ in range(count)])
    return x, ids.to(weight.device), torch.rand(count, slots, generator=draw).to(weight)


def prompt(model: Any, batch: int = 2, count: int = 24) -> Any:
    """Token ids (batch, count)."""
    draw = torch.Generator().manual_seed(2)
    return torch.randint(1, model.config.vocab_size, (batch, count), generator=draw).to(model.device)


def in_blocks(plain: Any, scale_fmt: str) -> Any:
    """Experts of transformers in e4m3 with scales of blocks, and ``plain`` with what they stand for."""
    from transformers.integrations.finegrained_fp8 import ALL_FP8_EXPERTS_FUNCTIONS, FP8Experts
    from transformers.integrations.moe import use_experts_implementation

    kind = use_experts_implementation(
        experts_class=type("Experts", (FP8Experts,), {}), experts_interface=ALL_FP8_EXPERTS_FUNCTIONS
    )
    module = kind(plain.config, block_size=(128, 128), scale_fmt=scale_fmt)
    torch.manual_seed(0)
    with torch.no_grad():
        for name in ("gate_up_proj", "down_proj"):
            weight, scale = getattr(module, name), getattr(module, f"{name}_scale_inv")
            weight.copy_(torch.randn(weight.shape).clamp(-4, 4) * 100)
            scale.copy_(torch.randint(-14, -10, scale.shape).float().exp2())
            wide = weight.float() * scale.float().repeat_interleave(128, 1).repeat_interleave(128, 2)
            getattr(plain, name).copy_(wide)
    return module
