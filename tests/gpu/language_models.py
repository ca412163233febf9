"""Small language models of transformers with random weights, and their logits for a prompt in several ways.

Attention is transformers' eager one, of two batched products and a softmax. Its RMSNorm, whose ``mean`` PyTorch sums in
another order for few rows, is replaced by ``torch.nn.RMSNorm``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_WIDTHS = {"vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 1024}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama": ("LlamaConfig", {**_WIDTHS, **_HEADS}),
    "Qwen3-MoE": ("Qwen3MoeConfig", {**_WIDTHS, **_HEADS, **_EXPERTS}),
}
"""Config class and its arguments."""


def built(name: str, device: str = "cuda", experts: str = "grouped_mm", attention: str = "eager", **widths: Any) -> Any:
    """A model in bf16. ``experts`` is ``grouped_mm``, or ``eager`` for a loop with two products for each expert."""
    import transformers

    kind, fields = MODELS[name]
    config = getattr(transformers, kind)(**{**fields, **widths}, attn_implementation=attention)
    if hasattr(config, "num_experts"):
        config._experts_implementation = experts
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model = model.to(torch.bfloat16).eval().requires_grad_(False)
    for parent in [*model.modules()]:
        for child_name, child in [*parent.named_children()]:
            if type(child).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape, child.variance_epsilon, device=device, dtype=torch.bfloat16)
                norm.weight = child.weight
                setattr(parent, child_name, norm)
    return model


def prompts(model: Any, batch: int, tokens: int) -> Any:
    """Token ids (batch, tokens); the first and the last prompt are the same for every batch."""
    device = next(model.parameters()).device
    draw = torch.Generator(device).manual_seed(batch)
    ids = torch.randint(1, model.config.vocab_size, (batch, tokens), generator=draw, device=device)
    ids[0] = ids[-1] = torch.arange(1, tokens + 1, device=device) * 7 % model.config.vocab_size
    return ids


def causal_mask(tokens: int, device: str = "cuda") -> Any:
    """The mask that transformers adds to scores. A model that makes it itself copies from the host, which a graph
    cannot capture."""
    least = torch.finfo(torch.bfloat16).min
    return torch.full((1, 1, tokens, tokens), least, dtype=torch.bfloat16, device=device).triu(1)


def logits(model: Any, ids: Any, mask: Any = None) -> Any:
    """The logits (batch, tokens, vocabulary), computed at once and without a cache."""
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits


def logits_in_chunks(model: Any, ids: Any, chunks: Sequence[int], capacity: int | None) -> Any:
    """The logits, computed in chunks of so many tokens with a cache of keys and values.

    A ``capacity`` gives the cache this many places, so that the attention of every chunk reads as many keys. None lets
    it grow.
    """
    from transformers import DynamicCache, StaticCache

    cache = DynamicCache() if capacity is None else StaticCache(config=model.config, max_cache_len=capacity)
    parts = ids.split([*chunks], dim=1)
    with torch.no_grad():
        return torch.cat([model(input_ids=x, past_key_values=cache, use_cache=True).logits for x in parts], dim=1)
