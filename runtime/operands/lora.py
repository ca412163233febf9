"""Checks the tensors of ``lora``, says which launches compute it, and how large the buffers between these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.emitters.adapting import RANKS_OF_CTA, Adaptation
from gemmill.emitters.ptx import BITS
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.wording import one_of
from gemmill.runtime.operands.experts import Shapes
from gemmill.runtime.operands.routing import has_aligned_rows
from gemmill.runtime.operands.tensors import TensorView, check_devices

WEIGHTS: tuple[DTypeName, ...] = ("bf16", "f16")
"""Dtypes of tokens and adapters."""
ROUTED = ("offsets", "rows", "places")
"""Tensors of a :class:`gemmill.Routing`."""


FEW = 4096
"""Most tokens times rank for which reading an adapter again for each token is faster than products of groups."""


class LoraExtents(NamedTuple):
    """Extents of a product with adapters."""

    tokens: int
    adapters: int
    rank: int
    hidden: int
    """Elements of a token."""
    columns: int
    """Elements of a result."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors by keyword."""
        return {
            "x": (self.tokens, self.hidden),
            "a": (self.adapters, self.rank, self.hidden),
            "b": (self.adapters, self.columns, self.rank),
            "adapter_ids": (self.tokens,),
            "scale": (self.tokens,),
            "y": (self.tokens, self.columns),
            "out": (self.tokens, self.columns),
            "offsets": (self.adapters,),
            "rows": (self.tokens,),
            "places": (self.tokens, 1),
        }

    def between(self, dtype: DTypeName, routes: bool, directly: bool) -> Shapes:
        """Return the shapes and dtypes of the tensors between the launches by name.

        Args:
            dtype: Dtype of the tokens.
            routes: Whether the first launch sorts the tokens.
            directly: Whether each token reads its adapter.
        """
        shapes = self.shapes()
        if directly:
            return {"inner": ((self.tokens, self.rank), "f32")}
        routing: Shapes = {name: (shapes[name], "s32") for name in ROUTED if routes}
        return routing | {"inner": ((self.tokens, self.rank), dtype), "sums": ((self.tokens, self.columns), dtype)}


@dataclass(frozen=True, slots=True)
class BoundAdaptation:
    """The tensors of the kernels that multiply each token by its own adapter (emitters/adapting.py)."""

    x: TensorView
    a: TensorView
    b: TensorView
    ids: TensorView
    """The ids of adapters, or, with ``offsets``, the places of the tokens."""
    offsets: TensorView | None
    inner: TensorView
    """The sums of the first kernel."""
    scales: TensorView | None
    scale: float
    y: TensorView | None
    out: TensorView

    @property
    def kind(self) -> Adaptation:
        """The kernels that read these tensors."""
        y, scale = (x.dtype if x else None for x in (self.y, self.scales))
        return Adaptation(self.x.dtype, self.offsets is not None, y, scale, self.out.dtype)

    @property
    def step(self) -> int:
        """Bytes between ids."""
        return 4 * (1 if self.ids.shape[0] < 2 else self.ids.strides[0])


def adapts_directly(tensors: Mapping[str, TensorView], extents: LoraExtents) -> bool:
    """Whether the kernels for few tokens are faster, and take these tensors."""
    if extents.tokens * extents.rank > FEW or extents.rank % RANKS_OF_CTA:
        return False
    if "offsets" in tensors and tensors["offsets"].strides != (1,):
        return False
    for name in ("a", "b"):
        factor = tensors[name]
        steps = [step * DTYPES[factor.dtype].bytes for step in factor.strides[:2]]
        if factor.strides[2] != 1 or factor.ptr % TMA_ALIGN or any(step % TMA_ALIGN for step in steps):
            return False
    return all(
        has_aligned_rows(tensors[name], 2 * DTYPES[tensors[name].dtype].bytes)
        for name in ("y", "out")
        if name in tensors
    )


def lora_extents(tensors: Mapping[str, TensorView]) -> LoraExtents:
    """Return the extents of a product with adapters, given its tensors by keyword.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    x, a, b = (tensors[name] for name in "xab")
    for name, rank, form in (
        ("x", 2, "(tokens, H)"),
        ("a", 3, "(adapters, rank, H)"),
        ("b", 3, "(adapters, N, rank)"),
    ):
        if len(tensors[name].shape) != rank:
            raise OperandError(f"{name} has shape {tensors[name].shape}; it must be {form}")
    extents = LoraExtents(x.shape[0], a.shape[0], a.shape[1], a.shape[2], b.shape[1])
    for name, shape in extents.shapes().items():
        if name in tensors and tensors[name].shape != shape:
            raise OperandError(
                f"{name} has shape {tensors[name].shape}; with x {x.shape}, a {a.shape} and b {b.shape} it must have "
                f"shape {shape}"
            )
    _check_dtypes(tensors)
    check_devices(tensors)
    unit = TMA_ALIGN // DTYPES[x.dtype].bytes
    for name, extent in (("H", extents.hidden), ("the rank", extents.rank), ("N", extents.columns)):
        if extent % unit:
            raise OperandError(f"{name} is {extent}; it must be a multiple of {unit}: pad with zeros")
    for name in ("x", "y", "out"):
        if name in tensors and 1 not in (tensors[name].shape[1], tensors[name].strides[1]):
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its rows must be contiguous: pass {name}.contiguous()"
            )
    ids = tensors.get("adapter_ids")
    if ids and ids.shape[0] > 1 and ids.strides[0] not in (1, 2):
        raise OperandError(
            f"adapter_ids has strides {ids.strides}; it must be contiguous: pass adapter_ids.contiguous()"
        )
    if not has_aligned_rows(x, TMA_ALIGN):
        raise OperandError(
            f"the rows of x, {x.strides[0]} elements apart, do not all start at multiples of {TMA_ALIGN} bytes: pass "
            "x.clone()"
        )
    return extents


def _check_dtypes(tensors: Mapping[str, TensorView]) -> None:
    """Raise OperandError for a dtype that no launch takes."""
    x = tensors["x"]
    for name in "xab":
        if (dtype := tensors[name].dtype) not in WEIGHTS or dtype != x.dtype:
            raise OperandError(f"{name} is {dtype}; x, a and b must all be bf16 or all f16: convert {name} first")
    for name in ("y", "out", "scale"):
        if name in tensors and (dtype := tensors[name].dtype) not in BITS:
            raise OperandError(f"{name} is {dtype}; it must be {one_of([*BITS])}: convert it first")
    for name in ("adapter_ids", *ROUTED):
        if name in tensors and (dtype := tensors[name].dtype) != "s32":
            raise OperandError(f"{name} is {dtype}; it must be int32: pass {name}.int()")
