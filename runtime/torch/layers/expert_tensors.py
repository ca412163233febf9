"""The tensors of experts as transformers' models name and order them: plain ones, e4m3 with scales of blocks, MXFP4."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.api.moe import interleaved
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.torch.layers.mxfp4 import mxfp4
from gemmill.runtime.torch.layers.weight_formats import Stored

BIASES = ("gate_bias", "up_bias", "b2")
"""Biases of the first product, in two halves, and of the second."""
WEIGHTS = {"gate_up_proj": "w1", "down_proj": "w2"}
"""The weights of models, and those of ``Experts``."""
_FORMS = {"gate_up_proj_blocks": "mxfp4", "gate_up_proj_scale_inv": "e4m3_blocks"}
"""Formats by a tensor that only they have."""


def form_of(names: Collection[str]) -> str | None:
    """The format of quantised experts, given the names of their tensors; None if they are plain."""
    return next((form for name, form in _FORMS.items() if name in names), None)


class Order(NamedTuple):
    """How a model of transformers orders the tensors of experts: ``gate_up_proj``, ``down_proj``, and those with
    ``_bias`` after these names."""

    is_transposed: bool = False
    """Whether plain weights are (experts, H, 2 F) and (experts, F, H)."""
    is_concatenated: bool = True
    """Whether the gate's columns come before those of up. Otherwise they alternate."""

    def read(self, tensors: Stored) -> tuple[torch.Tensor, torch.Tensor, Stored]:
        """The arguments of :meth:`Experts.of`."""
        gate_up, down = tensors["gate_up_proj"], tensors["down_proj"]
        if self.is_transposed:
            gate_up, down = gate_up.mT, down.mT
        gate_up = gate_up if self.is_concatenated else torch.cat(self.halves(gate_up), 1)
        return gate_up, down, self._biases(tensors)

    def read_stored(self, tensors: Stored) -> tuple[Stored, Stored]:
        """The first two arguments of :meth:`Experts.of_stored`, of quantised tensors. They keep the values of the
        checkpoint: e4m3 weights are shared, and MXFP4 is read back to verify it.

        Raises:
            OperandError: experts do not have the format, or their extents do not fit it.
        """
        biases = self._biases(tensors)
        held: Stored = {}
        for name, own in WEIGHTS.items():
            if form_of(tensors) == "mxfp4":
                blocks, scales = (tensors[f"{name}_{part}"].detach() for part in ("blocks", "scales"))
                if own == "w1":
                    blocks, scales = (interleaved(x, alternate=not self.is_concatenated) for x in (blocks, scales))
                is_f16 = any(x.dtype == torch.float16 for x in biases.values())
                pair = mxfp4(blocks, scales, torch.float16 if is_f16 else torch.bfloat16, name)
            else:
                pair = self._of_blocks(name, tensors[name].detach(), tensors[f"{name}_scale_inv"].detach())
            held |= dict(zip((own, f"{own}_scale"), pair, strict=True))
        return held, biases

    def halves(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The gate's part of a tensor (experts, 2 F, ...), and that of up."""
        if self.is_concatenated:
            gate, up = x.chunk(2, dim=1)
            return gate, up
        return x[:, ::2], x[:, 1::2]

    def _biases(self, tensors: Stored) -> Stored:
        if tensors.get("down_proj_bias") is None:
            return {}
        parts = *self.halves(tensors["gate_up_proj_bias"]), tensors["down_proj_bias"]
        return dict(zip(BIASES, parts, strict=True))

    def _of_blocks(self, name: str, weight: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """E4m3 weights and the scales of their blocks, in float32: those of type ue8m0 have the same values."""
        if self != Order():
            raise OperandError(f"{name} has e4m3 rows that alternate or are transposed, which is not supported")
        if weight.dtype != torch.float8_e4m3fn:
            raise OperandError(f"{name} is {weight.dtype}; with {name}_scale_inv it must be torch.float8_e4m3fn")
        experts, rows, columns = weight.shape
        wanted = experts, -(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK)
        unit = 2 * SCALE_BLOCK if name == "gate_up_proj" else 1
        if scale.shape != wanted or rows % unit:
            raise OperandError(
                f"{name} has shape {(*weight.shape,)} and {name}_scale_inv {(*scale.shape,)}; a scale must be of "
                f"{SCALE_BLOCK} x {SCALE_BLOCK} weights, {wanted}, and belong to either the gate or up"
            )
        return weight.contiguous(), scale.float().contiguous()
