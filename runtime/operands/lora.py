"""Checks the tensors of ``lora``, says which launches compute it, and how large the buffers between these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.emitters.adapting import BLOCK, MOST_RANK, Order
from gemmill.emitters.expanding import COLUMNS, Expansion
from gemmill.emitters.ptx import BITS
from gemmill.emitters.shrinking import Shrinking, ranks_of_cta
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.wording import one_of
from gemmill.runtime.operands.experts import Shapes
from gemmill.runtime.operands.routing import has_aligned_rows, refuse_shared_elements
from gemmill.runtime.operands.tensors import TensorView, check_devices

WEIGHTS: tuple[DTypeName, ...] = ("bf16", "f16")
"""Dtypes of tokens and adapters."""
ROUTED = ("offsets", "rows", "places")
"""Tensors of a :class:`gemmill.Routing`."""
FEW = 2048
"""Most tokens times ranks, of at least 16 each, that are not sorted: their tiles read more adapters, which takes less
time than a launch."""
MANY = 6144
"""Tiles and adapters times ranks above which grouped products are faster, of more ranks than :data:`LOW`."""
LOW = 32
"""Most ranks for which grouped products are never faster."""
SMS = 132
"""SMs of an H100 or H200."""
TALL = 1024
"""Tokens from which tiles have two blocks, if an adapter has :data:`OF_ADAPTER` of them."""
OF_ADAPTER = 128


class Division(NamedTuple):
    """How the kernels of adapters divide their work."""

    blocks: int
    """Blocks of 16 tokens in a tile."""
    slices: int
    """Slices of K."""
    shares: int
    """CTAs of the first kernel that share the adapters of a tile."""
    shares_of_columns: int
    """CTAs of the second kernel that share them."""

    def tiles(self, tokens: int) -> int:
        """Tiles of some tokens."""
        return -(-tokens // (BLOCK * self.blocks))


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

    def between(self, dtype: DTypeName, routes: bool, division: Division | None) -> Shapes:
        """Return the shapes and dtypes of the tensors between the launches by name.

        Args:
            dtype: Dtype of the tokens.
            routes: Whether the first launch sorts the tokens.
            division: That of the kernels of adapters; None for products of groups.
        """
        shapes = self.shapes()
        routing: Shapes = {name: (shapes[name], "s32") for name in ROUTED if routes}
        if division:
            tile = BLOCK * division.blocks
            padded = tile * division.tiles(self.tokens)
            return routing | {"inner": ((division.slices, padded, self.rank), "f32")}
        return routing | {"inner": ((self.tokens, self.rank), dtype), "sums": ((self.tokens, self.columns), dtype)}

    @property
    def sorts(self) -> bool:
        """Whether tokens with ids are sorted for the kernels of adapters."""
        return self.adapters > 1 and self.tokens * max(16, self.rank) > FEW

    def division(self, is_sorted: bool) -> Division:
        """Return how the kernels of adapters divide their work, whether or not tokens are sorted."""
        is_tall = self.tokens >= max(TALL, OF_ADAPTER * self.adapters) and self.rank <= 64
        blocks = 2 if is_tall else 1
        tiles = max(1, -(-self.tokens // (BLOCK * blocks)))
        parts = tiles * (self.rank // ranks_of_cta(self.rank, blocks))
        of_tile = min(BLOCK * blocks, self.adapters, self.tokens)
        if is_sorted:
            of_tile = min(of_tile, 2 + self.adapters // tiles)

        def fits(slices: int) -> bool:
            return parts * slices * (of_tile if slices > 4 else 1) <= SMS

        def shares(ctas: int) -> int:
            return max(1, min(of_tile, 2 * SMS // max(1, ctas)))

        most = min(16, max(4, self.rank // 4))
        slices = next((n for n in (16, 8, 4, 2) if n <= most and fits(n)), 1)
        return Division(blocks, slices, shares(parts * slices), shares(tiles * -(-self.columns // COLUMNS)))


@dataclass(frozen=True, slots=True)
class BoundAdaptation:
    """The tensors of the kernels that multiply tokens by their adapters (emitters/adapting.py)."""

    x: TensorView
    a: TensorView
    b: TensorView
    ids: TensorView
    """The ids of adapters, or, with ``rows``, the ends of the groups of sorted tokens."""
    rows: TensorView | None
    """The sorted tokens."""
    inner: TensorView
    """The sums of the first kernel, for each slice."""
    scales: TensorView | None
    scale: float
    y: TensorView | None
    out: TensorView
    division: Division

    @property
    def order(self) -> Order:
        """How the kernels find the adapters of tokens."""
        if self.rows:
            return "sorted"
        return "s64" if self.ids.strides[0] == 2 else "s32"

    @property
    def shrinking(self) -> Shrinking:
        """The first kernel that reads these tensors."""
        return Shrinking(self.x.dtype, self.order, self.a.shape[1], self.division.blocks)

    @property
    def expansion(self) -> Expansion:
        """The second kernel that reads these tensors."""
        y, scale = (x.dtype if x else None for x in (self.y, self.scales))
        blocks, slices = self.division[:2]
        return Expansion(self.x.dtype, self.order, self.a.shape[1], blocks, slices, y, scale, self.out.dtype)


def adapts(tensors: Mapping[str, TensorView], extents: LoraExtents) -> bool:
    """Whether the kernels of adapters take these tensors, and are faster than grouped products."""
    rank = extents.rank
    passes = -(-extents.tokens // BLOCK) + min(extents.adapters, extents.tokens)
    if not 0 < rank <= MOST_RANK or (rank > LOW and passes * rank > MANY):
        return False
    if any(name in tensors and tensors[name].strides != (1,) for name in ("offsets", "rows")):
        return False
    for name in ("a", "b"):
        factor = tensors[name]
        steps = [step * DTYPES[factor.dtype].bytes for step in factor.strides[:2]]
        if factor.strides[2] != 1 or factor.ptr % TMA_ALIGN or any(step % TMA_ALIGN for step in steps):
            return False
    return all(has_aligned_rows(tensors[name], TMA_ALIGN) for name in ("y", "out") if name in tensors)


def extents_of(shapes: Mapping[str, tuple[int, ...]]) -> LoraExtents:
    """Return the extents of a product with adapters, given the shapes of its tensors by keyword.

    Raises:
        OperandError: a shape does not fit; the message names the tensor.
    """
    for name, rank, form in (
        ("x", 2, "(tokens, H)"),
        ("a", 3, "(adapters, rank, H)"),
        ("b", 3, "(adapters, N, rank)"),
    ):
        if len(shapes[name]) != rank:
            raise OperandError(f"{name} has shape {shapes[name]}; it must be {form}")
    x, a, b = (shapes[name] for name in "xab")
    extents = LoraExtents(x[0], a[0], a[1], a[2], b[1])
    for name, shape in extents.shapes().items():
        if name in shapes and shapes[name] != shape:
            raise OperandError(
                f"{name} has shape {shapes[name]}; with x {x}, a {a} and b {b} it must have shape {shape}"
            )
    return extents


def lora_extents(tensors: Mapping[str, TensorView]) -> LoraExtents:
    """Return the extents of a product with adapters, given its tensors by keyword.

    Raises:
        OperandError: a tensor does not fit; the message names it.
    """
    x, extents = tensors["x"], extents_of({name: tensor.shape for name, tensor in tensors.items()})
    check_dtypes({name: tensor.dtype for name, tensor in tensors.items()}, extents)
    check_devices(tensors)
    for name in ("x", "y", "out"):
        if name in tensors and 1 not in (tensors[name].shape[1], tensors[name].strides[1]):
            raise OperandError(
                f"{name} has strides {tensors[name].strides}; its rows must be contiguous: pass {name}.contiguous()"
            )
    if "out" in tensors:
        refuse_shared_elements(tensors["out"])
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


def check_dtypes(dtypes: Mapping[str, DTypeName], extents: LoraExtents) -> None:
    """Raise OperandError for dtypes of tensors, by keyword, and for rows of elements that no launch takes."""
    for name in "xab":
        if (dtype := dtypes[name]) not in WEIGHTS or dtype != dtypes["x"]:
            raise OperandError(f"{name} is {dtype}; x, a and b must all be bf16 or all f16: convert {name} first")
    for name in ("y", "out", "scale"):
        if name in dtypes and (dtype := dtypes[name]) not in BITS:
            raise OperandError(f"{name} is {dtype}; it must be {one_of([*BITS])}: convert it first")
    for name in ("adapter_ids", *ROUTED):
        if name in dtypes and (dtype := dtypes[name]) != "s32":
            raise OperandError(f"{name} is {dtype}; it must be int32: pass {name}.int()")
    unit = TMA_ALIGN // DTYPES[dtypes["x"]].bytes
    for what, extent in (("H", extents.hidden), ("the rank", extents.rank), ("N", extents.columns)):
        if extent % unit:
            raise OperandError(f"{what} is {extent}; it must be a multiple of {unit}: pad with zeros")
