"""Experts that are not quantised, or in e4m3 with scales of 128 x 128 blocks. vLLM chooses among its own classes of
experts, so the plugin replaces the method that computes those of ``TritonExperts``."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import vllm.envs as envs
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

import gemmill.torch

Scales = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Scales of blocks of tokens and of both weights: f32 (tokens, H / 128), (experts, 2 F / 128, H / 128) and
(experts, H / 128, F / 128)."""
BLOCK = [128, 128]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Values of ``MoEActivation`` for ``f(gate) * up``, where the gate's rows come before those of up."""


def run(
    output: torch.Tensor, x: torch.Tensor, weights: tuple[torch.Tensor, torch.Tensor], ids: torch.Tensor,
    of_slots: torch.Tensor | None, activation: str, biases: tuple[torch.Tensor, torch.Tensor] | None,
    scales: Scales | None = None,
) -> None:  # fmt: skip
    """Write the results of a layer of experts.

    Args:
        output: (tokens, H).
        x: tokens, (tokens, H).
        weights: (experts, 2 F, H) and (experts, H, F).
        ids: the experts of each token, (tokens, slots).
        of_slots: their weights; None: 1.
        activation: one of :data:`ACTIVATIONS`.
        biases: (experts, 2 F) and (experts, H), or None.
        scales: those of e4m3 tokens and weights.
    """
    keywords: dict[str, Any] = {"out_dtype": output.dtype, "bits": "invariant" if envs.VLLM_BATCH_INVARIANT else "any"}
    gate, up = "gate_half", "up_half"
    if biases is not None:
        of_gate, of_up = biases[0].chunk(2, dim=1)
        gate, up = f"({gate} + gate_bias[n])", f"({up} + up_bias[n])"
        keywords |= {"gate_bias": of_gate.contiguous(), "up_bias": of_up.contiguous(), "b2": biases[1]}
    keywords["activation"] = f"d = {activation}({gate}) * {up}"
    if scales is not None:
        keywords |= dict(zip(("x_scale", "w1_scale", "w2_scale"), scales, strict=True))
    w1, w2 = weights
    output.copy_(gemmill.torch.moe(x, w1, w2, ids, of_slots, **keywords))


def scales_of(layer: Any, x: torch.Tensor, x_scale: torch.Tensor | None) -> Scales | None:
    """The scales of a layer of e4m3 that gemmill supports."""
    if x.dtype != torch.float8_e4m3fn or layer.block_shape != BLOCK or x_scale is None:
        return None
    scales = x_scale, layer.w1_scale, layer.w2_scale
    return scales if all(scale is not None and scale.dtype == torch.float32 for scale in scales) else None


def serves(
    layer: Any, x: torch.Tensor, w1: torch.Tensor, ids: torch.Tensor, activation: Any, experts: Any,
    scales: Scales | None = None,
) -> bool:  # fmt: skip
    """Whether gemmill computes a layer: of 16 bits or with ``scales``, without LoRA, with all experts on this GPU, and
    one of :data:`ACTIVATIONS`."""
    fits = x.dtype in (torch.bfloat16, torch.float16) if scales is None else w1.shape[1] % (2 * BLOCK[0]) == 0
    return (
        fits
        and w1.dtype == x.dtype
        and ids.dtype in (torch.int32, torch.int64)
        and activation.value in ACTIVATIONS
        and clamp_limit(layer) is None
        and layer._lora_context is None
        and experts is None
        and w1.shape[1] % 16 == x.shape[1] % (16 // x.dtype.itemsize) == 0
    )


def clamp_limit(layer: Any) -> float | None:
    """The limit of the activation. Before vLLM 0.28, the layer itself has it."""
    config = getattr(layer, "activation_config", None)
    limit: float | None = layer.gemm1_clamp_limit if config is None else config.clamp_limit
    return limit


def replace() -> None:
    """Make :func:`run` compute the layers on CUDA that it supports. Further calls do nothing."""
    original = TritonExperts.apply
    if getattr(original, "of_gemmill", False):
        return

    signature = inspect.signature(original)

    def apply(*arguments: Any, **keywords: Any) -> None:
        given = signature.bind(*arguments, **keywords).arguments
        layer, x, w1, w2, ids = (given[name] for name in ("self", "hidden_states", "w1", "w2", "topk_ids"))
        scales = scales_of(layer, x, given["a1q_scale"])
        if not (x.is_cuda and serves(layer, x, w1, ids, given["activation"], given["expert_map"], scales)):
            original(*arguments, **keywords)
            return
        of_slots = None if given["apply_router_weight_on_input"] else given["topk_weights"]
        biases = None if layer.w1_bias is None else (layer.w1_bias, layer.w2_bias)
        run(given["output"], x, (w1, w2), ids, of_slots, given["activation"].value, biases, scales)

    apply.of_gemmill = True  # type: ignore[attr-defined]
    TritonExperts.apply = apply
