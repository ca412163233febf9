"""A layer of a mixture of experts by PyTorch, and its float64 reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from gemmill.profiler.measure.operands import torch

BLOCK = 128
"""Elements along K, and rows of weights, that share a scale."""
LARGEST = 448
"""The largest e4m3 number."""


class Experts(NamedTuple):
    """Weights of a layer."""

    gate_up: Any
    """(experts, 2 F, H): the F rows of gate stand before those of up."""
    down: Any
    """(experts, H, F)."""
    gate_up_scale: Any = None
    """Of e4m3 weights, f32: a scale for each block, (experts, 2 F / 128, H / 128); for PyTorch one for each row,
    (experts, 2 F)."""
    down_scale: Any = None
    """The same of ``down``: (experts, H / 128, F / 128), or (experts, H)."""


class Tokens(NamedTuple):
    """Inputs of a layer."""

    x: Any
    """(tokens, H)."""
    ids: Any
    """Experts of each token, int32 (tokens, slots)."""
    weights: Any
    """Their weights, f32 (tokens, slots), of values that bf16 has."""
    x_scale: Any = None
    """Of e4m3 tokens, f32: a scale for each block, (tokens, H / 128); for PyTorch one for each row, (tokens,)."""


def composed(tokens: Tokens, weights: Any, experts: Experts) -> Any:
    """The layer by PyTorch's operations: rows sorted by expert, two grouped GEMMs, rows weighted and added up.

    It does what the ``grouped_mm`` experts of transformers 5 do. The host never waits for the GPU, so a CUDA graph can
    capture it. Of e4m3, PyTorch multiplies groups on Hopper only with a scale for each row of both operands.

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
    if tokens.x_scale is None:
        multiply = torch()._grouped_mm
        gate, up = multiply(x[order // slots], experts.gate_up.mT, ends).chunk(2, dim=-1)
        inner = torch().nn.functional.silu(gate) * up
        rows = multiply(inner, experts.down.mT, ends)
    else:
        rows = _composed_in_e4m3(tokens, order // slots, ends, experts)
    rows = rows * weights.flatten()[order, None]
    places = torch().empty_like(order)
    places[order] = torch().arange(len(order), device=order.device)
    return rows[places].view(*ids.shape, -1).sum(dim=1)


def _composed_in_e4m3(tokens: Tokens, index: Any, ends: Any, experts: Experts) -> Any:
    """Both products, and what is between them, of rows of tokens in e4m3."""
    multiply = partial(torch()._scaled_grouped_mm, offs=ends, out_dtype=torch().bfloat16, use_fast_accum=True)
    e4m3 = tokens.x.dtype
    x = tokens.x.view(torch().uint8)[index].view(e4m3)
    gate, up = multiply(x, experts.gate_up.mT, tokens.x_scale[index], experts.gate_up_scale).chunk(2, dim=-1)
    inner = torch().nn.functional.silu(gate) * up
    scale = (inner.abs().amax(-1).float() / LARGEST).clamp(min=1e-12)
    return multiply((inner / scale[:, None]).to(e4m3), experts.down.mT, scale, experts.down_scale)


def scaled_by_rows(experts: Experts, tokens: Sequence[Tokens]) -> tuple[Experts, list[Tokens]]:
    """E4m3 weights and tokens with a scale for each row, from those with scales of blocks. Where these are powers of
    two, only numbers far below the largest of a row round."""
    (gate_up, of_gate_up), (down, of_down) = (
        tuple(map(torch().stack, zip(*map(_in_rows, *of_blocks), strict=True)))
        for of_blocks in ((experts.gate_up, experts.gate_up_scale), (experts.down, experts.down_scale))
    )
    e4m3 = experts.down.dtype
    found = []
    for own in tokens:
        x, scale = _in_rows(own.x, own.x_scale, 1)
        found.append(own._replace(x=x.view(e4m3), x_scale=scale))
    return Experts(gate_up.view(e4m3), down.view(e4m3), of_gate_up, of_down), found


def _in_rows(values: Any, scale: Any, rows: int = BLOCK) -> tuple[Any, Any]:
    """The bytes of e4m3 values (N, K) with scales of rows (N,), from those with scales of ``rows`` x 128."""
    of_blocks = scale.repeat_interleave(rows, 0)
    largest = of_blocks.amax(-1)
    scaled = values.float() * (of_blocks / largest[:, None]).repeat_interleave(BLOCK, -1)
    return scaled.to(values.dtype).view(torch().uint8), largest


def _wide(values: Any, scale: Any, rows: int) -> Any:
    """Values (..., N, K) in float64, times scales of blocks of ``rows`` x 128, if there are any."""
    if scale is None:
        return values.double()
    return values.double() * scale.double().repeat_interleave(rows, -2).repeat_interleave(BLOCK, -1)


def _matrix(weights: Any, scale: Any, expert: int) -> Any:
    return _wide(weights[expert], None if scale is None else scale[expert], BLOCK)


def reference(tokens: Tokens, experts: Experts, sample: Any) -> Any:
    """The float64 results of the tokens with the indices ``sample``, without rounding in between."""
    found = []
    for token in sample.tolist():
        of_x = None if tokens.x_scale is None else tokens.x_scale[token : token + 1]
        x, total = _wide(tokens.x[token : token + 1], of_x, 1)[0], 0.0
        for expert, weight in zip(tokens.ids[token].tolist(), tokens.weights[token].tolist(), strict=True):
            gate, up = (_matrix(experts.gate_up, experts.gate_up_scale, expert) @ x).chunk(2)
            inner = torch().nn.functional.silu(gate) * up
            total += weight * (_matrix(experts.down, experts.down_scale, expert) @ inner)
        found.append(total)
    return torch().stack(found)
