"""A layer of a mixture of experts by PyTorch, and its float64 reference."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemmill.profiler.measure.operands import torch


class Experts(NamedTuple):
    """Weights of a layer."""

    gate_up: Any
    """(experts, 2 F, H): the F rows of gate stand before those of up."""
    down: Any
    """(experts, H, F)."""


class Tokens(NamedTuple):
    """Inputs of a layer."""

    x: Any
    """(tokens, H)."""
    ids: Any
    """Experts of each token, int32 (tokens, slots)."""
    weights: Any
    """Their weights, f32 (tokens, slots), of values that bf16 has."""


def composed(tokens: Tokens, weights: Any, experts: Experts) -> Any:
    """The layer by PyTorch's operations: rows sorted by expert, two grouped GEMMs, rows weighted and added up.

    It does what the ``grouped_mm`` experts of transformers 5 do. The host never waits for the GPU, so a CUDA graph can
    capture it.

    Args:
        tokens: the inputs.
        weights: their weights in the dtype of x.
        experts: the weights of the layer.
    """
    x, ids = tokens.x, tokens.ids
    slots, count = ids.shape[1], experts.gate_up.shape[0]
    sorted_ids, order = torch().sort(ids.flatten())
    counted = sorted_ids if ids.is_cuda else sorted_ids.float()  # PyTorch counts integers only on a GPU
    ends = torch().histc(counted, count, 0, count - 1).cumsum(0, dtype=torch().int32)
    gate, up = torch()._grouped_mm(x[order // slots], experts.gate_up.mT, ends).chunk(2, dim=-1)
    inner = torch().nn.functional.silu(gate) * up
    rows = torch()._grouped_mm(inner, experts.down.mT, ends) * weights.flatten()[order, None]
    places = torch().empty_like(order)
    places[order] = torch().arange(len(order), device=order.device)
    return rows[places].view(*ids.shape, -1).sum(dim=1)


def reference(tokens: Tokens, experts: Experts, sample: Any) -> Any:
    """The float64 results of the tokens with the indices ``sample``, without rounding in between."""
    found = []
    for token in sample.tolist():
        x, total = tokens.x[token].double(), 0.0
        for expert, weight in zip(tokens.ids[token].tolist(), tokens.weights[token].tolist(), strict=True):
            gate, up = (experts.gate_up[expert].double() @ x).chunk(2)
            inner = torch().nn.functional.silu(gate) * up
            total += weight * (experts.down[expert].double() @ inner)
        found.append(total)
    return torch().stack(found)
