"""The table of model types. To add one, add a row; a test compares it with the modules of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.models import vision
from gemmill.library.models.architecture import (
    Architecture,
    Experts,
    after_dense,
    in_steps,
    of_falcon,
    of_queries,
    or_heads,
)
from gemmill.library.models.blocks import GATE_UP, QKV, VISION_QKV
from gemmill.library.models.text import bert, decoder, opt

_MIXTRAL = Experts("intermediate_size")
_QWEN3_MOE = Experts("moe_intermediate_size", in_steps)
_QWEN2_MOE = _QWEN3_MOE._replace(shared="shared_expert_intermediate_size")
_DEEPSEEK = Experts("moe_intermediate_size", after_dense, "n_shared_experts")

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        **dict.fromkeys(("llama", "olmo", "olmo2", "cohere", "cohere2", "granite"), Architecture(decoder, or_heads)),
        **dict.fromkeys(("mistral", "qwen2", "qwen3", "gemma", "gemma2", "smollm3", "seed_oss"), Architecture(decoder)),
        **dict.fromkeys(("mixtral", "gpt_oss", "phimoe"), Architecture(decoder, experts=_MIXTRAL)),
        **dict.fromkeys(("olmoe", "granitemoe"), Architecture(decoder, or_heads, experts=_MIXTRAL)),
        "qwen2_moe": Architecture(decoder, experts=_QWEN2_MOE),
        "qwen3_moe": Architecture(decoder, experts=_QWEN3_MOE),
        **dict.fromkeys(
            ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe"), Architecture(decoder, experts=_DEEPSEEK)
        ),
        "gemma3_text": Architecture(decoder, defaults=vision.GEMMA3_TEXT),
        "starcoder2": Architecture(decoder, gated=False),
        "phi": Architecture(decoder, or_heads, gated=False),
        "phi3": Architecture(decoder, or_heads, fused=(QKV, GATE_UP)),
        **dict.fromkeys(("glm", "glm4"), Architecture(decoder, fused=(GATE_UP,))),
        "gpt2": Architecture(decoder, of_queries, gated=False, mlp_factor=4, fused=(QKV,)),
        "gpt_neox": Architecture(decoder, of_queries, gated=False, fused=(QKV,)),
        "falcon": Architecture(decoder, of_falcon, gated=False, mlp_factor=4, fused=(QKV,)),
        "opt": Architecture(opt, of_queries, gated=False),
        "bert": Architecture(bert),
        "vit": Architecture(vision.vit),
        "siglip": Architecture(vision.siglip),
        "clip": Architecture(vision.clip),
        "gemma3": Architecture(vision.gemma3),
        "qwen2_vl": Architecture(vision.qwen2_vl, fused=(VISION_QKV,)),
        "qwen2_5_vl": Architecture(vision.qwen2_5_vl, fused=(VISION_QKV,)),
    }
)
"""The architectures by the word ``model_type`` of a config."""
