"""Configs of public models, as their config.json has the fields that decide linear layers, with fewer layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _config(model_type: str, architecture: str, **fields: Any) -> Mapping[str, Any]:
    dtype = {} if "torch_dtype" in fields or "dtype" in fields else {"torch_dtype": "bfloat16"}
    return MappingProxyType({"model_type": model_type, "architectures": [architecture], **dtype, **fields})


def _text(model_type: str, architecture: str, *sizes: int, **fields: Any) -> Mapping[str, Any]:
    """A decoder with these sizes: hidden, MLP, heads, heads of keys and values, vocabulary."""
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    return _config(model_type, architecture, num_hidden_layers=3, **dict(zip(names, sizes, strict=True)), **fields)


_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Llama-3.1-8B": _text("llama", "LlamaForCausalLM", 4096, 14336, 32, 8, 128256),
        "Llama-3.2-1B": _text(
            "llama", "LlamaForCausalLM", 2048, 8192, 32, 8, 128256, head_dim=64, tie_word_embeddings=True
        ),
        "Llama-3.3-70B": _text("llama", "LlamaForCausalLM", 8192, 28672, 64, 8, 128256),
        "Mistral-7B-v0.3": _text("mistral", "MistralForCausalLM", 4096, 14336, 32, 8, 32768),
        "Mistral-Nemo-12B": _text("mistral", "MistralForCausalLM", 5120, 14336, 32, 8, 131072, head_dim=128),
        "Mixtral-8x7B": _text(
            "mixtral", "MixtralForCausalLM", 4096, 14336, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2
        ),
        "Qwen2.5-7B": _text("qwen2", "Qwen2ForCausalLM", 3584, 18944, 28, 4, 152064),
        "Qwen2-57B-A14B": _text(
            "qwen2_moe",
            "Qwen2MoeForCausalLM",
            *(3584, 18944, 28, 4, 151936),
            num_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=2560,
            shared_expert_intermediate_size=20480,
            decoder_sparse_step=2,
        ),
        "Qwen3-8B": _text("qwen3", "Qwen3ForCausalLM", 4096, 12288, 32, 8, 151936, head_dim=128),
        "Qwen3-30B-A3B": _text(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            *(2048, 6144, 32, 4, 151936),
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            mlp_only_layers=[0],
            decoder_sparse_step=1,
        ),
        "Gemma-2-9B": _text("gemma2", "Gemma2ForCausalLM", 3584, 14336, 16, 8, 256000, head_dim=256),
        "Gemma-3-1B": _text("gemma3_text", "Gemma3ForCausalLM", 1152, 6912, 4, 1, 262144, head_dim=256),
        "Gemma-3-4B": _config(
            "gemma3",
            "Gemma3ForConditionalGeneration",
            mm_tokens_per_image=256,
            text_config={
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 3,
            },
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_attention_heads": 16,
                "num_hidden_layers": 3,
                "image_size": 896,
                "patch_size": 14,
                "vision_use_head": False,
            },
        ),
        "Phi-2": _text("phi", "PhiForCausalLM", 2560, 10240, 32, 32, 51200, torch_dtype="float16"),
        "Phi-3-mini": _text("phi3", "Phi3ForCausalLM", 3072, 8192, 32, 32, 32064),
        "Phi-4": _text("phi3", "Phi3ForCausalLM", 5120, 17920, 40, 10, 100352),
        "Phi-3.5-MoE": _text(
            "phimoe", "PhimoeForCausalLM", 4096, 6400, 32, 8, 32064, num_local_experts=16, num_experts_per_tok=2
        ),
        "DeepSeek-V2-Lite": _text(
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            *(2048, 10944, 16, 16, 102400),
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=64,
            n_shared_experts=2,
            num_experts_per_tok=6,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            topk_method="greedy",
        ),
        "DeepSeek-V3": _text(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            *(7168, 18432, 128, 128, 129280),
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
            n_routed_experts=256,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=2048,
            first_k_dense_replace=2,
            moe_layer_freq=1,
            num_nextn_predict_layers=1,
            quantization_config=_FP8,
        ),
        "gpt-oss-120b": _text(
            "gpt_oss",
            "GptOssForCausalLM",
            *(2880, 2880, 64, 8, 201088),
            head_dim=64,
            num_local_experts=128,
            num_experts_per_tok=4,
            experts_per_token=4,
            quantization_config=_MXFP4,
        ),
        "GLM-4-9B": _text("glm4", "Glm4ForCausalLM", 4096, 13696, 32, 2, 151552, head_dim=128),
        "GLM-4.5-Air": _text(
            "glm4_moe",
            "Glm4MoeForCausalLM",
            *(4096, 10944, 96, 8, 151552),
            head_dim=128,
            n_routed_experts=128,
            n_shared_experts=1,
            num_experts_per_tok=8,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
        ),
        "OLMo-2-7B": _text("olmo2", "Olmo2ForCausalLM", 4096, 11008, 32, 32, 100352, torch_dtype="float32"),
        "OLMoE-1B-7B": _text(
            "olmoe", "OlmoeForCausalLM", 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8
        ),
        "Falcon-7B": _config(
            "falcon",
            "FalconForCausalLM",
            hidden_size=4544,
            num_attention_heads=71,
            num_kv_heads=71,
            num_hidden_layers=3,
            multi_query=True,
            new_decoder_architecture=False,
            parallel_attn=True,
            vocab_size=65024,
        ),
        "Falcon-40B": _config(
            "falcon",
            "FalconForCausalLM",
            hidden_size=8192,
            num_attention_heads=128,
            num_kv_heads=8,
            num_hidden_layers=3,
            multi_query=True,
            new_decoder_architecture=True,
            vocab_size=65024,
        ),
        "GPT-2": _config(
            "gpt2",
            "GPT2LMHeadModel",
            n_embd=768,
            n_head=12,
            n_layer=3,
            n_inner=None,
            vocab_size=50257,
            torch_dtype=None,
        ),
        "GPT-NeoX-20B": _config(
            "gpt_neox",
            "GPTNeoXForCausalLM",
            hidden_size=6144,
            intermediate_size=24576,
            num_attention_heads=64,
            num_hidden_layers=3,
            vocab_size=50432,
            torch_dtype="float16",
        ),
        "OPT-350M": _config(
            "opt",
            "OPTForCausalLM",
            hidden_size=1024,
            ffn_dim=4096,
            num_attention_heads=16,
            num_hidden_layers=3,
            word_embed_proj_dim=512,
            vocab_size=50272,
            do_layer_norm_before=False,
            torch_dtype="float16",
        ),
        "StarCoder2-7B": _text("starcoder2", "Starcoder2ForCausalLM", 4608, 18432, 36, 4, 49152),
        "Command-R": _text("cohere", "CohereForCausalLM", 8192, 22528, 64, 64, 256000, torch_dtype="float16"),
        "Command-R7B": _text("cohere2", "Cohere2ForCausalLM", 4096, 14336, 32, 8, 256000, head_dim=128),
        "Granite-3.1-8B": _text("granite", "GraniteForCausalLM", 4096, 12800, 32, 8, 49155),
        "Granite-3.1-3B-A800M": _text(
            "granitemoe",
            "GraniteMoeForCausalLM",
            *(1536, 512, 24, 8, 49155),
            num_local_experts=40,
            num_experts_per_tok=8,
        ),
        "SmolLM3-3B": _text("smollm3", "SmolLM3ForCausalLM", 2048, 11008, 16, 4, 128256),
        "Seed-OSS-36B": _text("seed_oss", "SeedOssForCausalLM", 5120, 27648, 80, 8, 155136, head_dim=128),
        "BERT-large": _config(
            "bert",
            "BertForMaskedLM",
            hidden_size=1024,
            intermediate_size=4096,
            num_attention_heads=16,
            num_hidden_layers=3,
            vocab_size=30522,
            torch_dtype="float32",
        ),
        "BERT-classifier": _config(
            "bert",
            "BertForSequenceClassification",
            hidden_size=768,
            intermediate_size=3072,
            num_attention_heads=12,
            num_hidden_layers=3,
            vocab_size=30522,
            torch_dtype="float32",
        ),
        "ViT-B-16": _config(
            "vit",
            "ViTForImageClassification",
            hidden_size=768,
            intermediate_size=3072,
            num_attention_heads=12,
            num_hidden_layers=3,
            image_size=224,
            patch_size=16,
            num_channels=3,
            id2label={str(label): f"LABEL_{label}" for label in range(1000)},
            torch_dtype="float32",
        ),
        "CLIP-ViT-B-32": _config(
            "clip",
            "CLIPModel",
            projection_dim=512,
            text_config={"model_type": "clip_text_model", "num_hidden_layers": 3, "vocab_size": 49408},
            vision_config={"model_type": "clip_vision_model", "num_hidden_layers": 3},
            torch_dtype="float32",
        ),
        "SigLIP-so400m": _config(
            "siglip",
            "SiglipModel",
            text_config={
                "model_type": "siglip_text_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_attention_heads": 16,
                "num_hidden_layers": 3,
            },
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_attention_heads": 16,
                "num_hidden_layers": 3,
                "image_size": 384,
                "patch_size": 14,
            },
            torch_dtype="float32",
        ),
        "Qwen2-VL-7B": _text(
            "qwen2_vl",
            "Qwen2VLForConditionalGeneration",
            *(3584, 18944, 28, 4, 152064),
            vision_config={
                "depth": 3,
                "embed_dim": 1280,
                "hidden_size": 3584,
                "mlp_ratio": 4,
                "num_heads": 16,
                "in_chans": 3,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        ),
        "Qwen2.5-VL-7B": _text(
            "qwen2_5_vl",
            "Qwen2_5_VLForConditionalGeneration",
            *(3584, 18944, 28, 4, 152064),
            vision_config={
                "depth": 3,
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "in_chans": 3,
                "out_hidden_size": 3584,
                "patch_size": 14,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
            },
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        ),
    }
)
"""The configs by name."""
TOKENS = 16
"""Tokens of the recorded pass."""
IMAGE = (280, 420)
"""Height and width in pixels of the image for models that take any."""
