"""What a launcher needs to know of a kernel: grid, cluster, shared memory, TMA boxes, parameter layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmill.library.config.model import DecompositionName
from gemmill.library.dtypes import DTypeName

TMA_BYTES = 128
"""Size of a ``CUtensorMap``."""
NESTED_EXTENTS = 3
"""Most extents of a batch that a kernel with nested batching takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaBox:
    """How one operand's TMA descriptor is encoded (CUDA driver API, ``cuTensorMapEncodeTiled``).

    A descriptor has rank 3: contiguous extent, strided extent, batch; or rank 4. The box is 1 along all extents but the
    first two.
    """

    operand: str
    """``a``, ``b``, ``c``, ``d``. ``partials``: matrices of partial sums that a split kernel stores, of D's majorness.
    ``scale`` and ``zero``: of narrow A's groups. ``epilogue.x``: the matrix x of an epilogue's expression."""
    dtype: DTypeName
    contiguous: Literal["m", "n", "k"]
    """The problem extent that is contiguous in memory."""
    strided: Literal["m", "n", "k"]
    """The other extent."""
    box: tuple[int, int]
    """Box extents in elements, packed ones in bytes: contiguous, strided."""
    swizzle: int
    """Swizzle span in bytes; 16 means none."""
    offset: int
    """Byte offset of the descriptor in the parameter struct."""
    group: int = 1
    """How much of the strided extent one element stands for: that of a group where groups share scales."""
    window: int = 0
    """Where not 0, the kernel clips boxes at any row, not only at the tensor's last: the strided extent is this many
    rows, and a third one slides them over the tensor, starting that many rows before it. A box at row ``window - v`` of
    the window that starts ``i + v`` rows on has rows ``i``, ``i + 1``, …, and TMA clips all but the first ``v``."""
    part: Literal["", "whole", "tail"] = ""
    """Boxes that end with the operand, since a row beyond it takes TMA as long as three of its rows, have two
    descriptors: ``whole`` boxes, of which the strided extent may have none, and the ``tail`` of rows that these leave,
    if they do. What a cut box leaves of a stage is not written, and nothing that is stored depends on it."""
    anywhere: bool = False
    """Whether the matrices lie at addresses that the kernel knows. The descriptor then has rank 4 and begins at address
    0: its third extent steps 16 bytes, its fourth 2^35."""

    def rows(self, strided: int) -> int:
        """Rows of the box where the operand has so many; 0 where no box is like this."""
        rows = self.box[1]
        return {"": rows, "whole": rows if strided >= rows else 0, "tail": strided % rows}[self.part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The second kernel of split-K: it adds up partial sums and stores D; it takes the same parameters."""

    entry: str
    """``extern "C"`` symbol."""
    threads: int
    """Threads of a CTA."""
    vectors: int
    """Vectors of four neighbours along D's contiguous extent that a CTA computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KDecomposition:
    """How CTAs share K of a tile, and the workspace that they leave partial sums in."""

    name: DecompositionName
    """See :class:`~gemmill.library.config.model.Scheduler`."""
    splits: int = 1
    """Slices of K of every tile of a launch of ``splitk``; 1 as it is compiled, and for ``stream``, which shares tiles
    by the size of the grid."""
    tile_k: int
    """K of one step."""
    tile_bytes: int
    """Bytes of the partial sums of a cluster tile; 0 for ``splitk``, which stores matrices."""
    tile_flags: int
    """32-bit flags of a cluster tile in the workspace; 0 for ``splitk``."""
    reduction: Reduction | None = None
    """The second kernel, of ``splitk``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """Launch facts of one kernel, computed in Python and checked against constants that the kernel exports."""

    entry: str
    """``extern "C"`` symbol."""
    threads: int
    """Threads of a CTA."""
    cluster: tuple[int, int]
    """CTAs of a cluster along M and N."""
    cluster_k: int = 1
    """CTAs of a cluster that share K of a tile."""
    shared_bytes: int
    """Dynamic shared memory."""
    tile: tuple[int, int]
    """Extents along M and N of the output tile that the scheduler hands out."""
    k_decomposition: KDecomposition | None = None
    """None where one CTA, or one cluster, sums all of K for a tile."""
    boxes: tuple[TmaBox, ...]
    """TMA descriptors. Those of A and B come first."""
    params_bytes: int
    """Size of the parameter struct."""
    offsets: dict[str, int]
    """Byte offset of each scalar parameter. ``m n k batch`` (int32); ``batched`` (uint32: bit 0 A, 1 B, 2 C; a clear
    bit broadcasts the operand over the batch; from bit 3 on the matrices of the epilogue that TMA moves, in the order
    of ``boxes``); ``alpha beta`` (float32; int32 where D is s32) or ``alpha64 beta64`` (float64); ``d_stride`` (int64:
    elements between neighbours along D's strided extent); of an operand x that is read or written through plain
    addresses ``x_pointer`` and, in elements, ``x_row_stride x_column_stride x_batch_stride`` (int64); of block scales
    ``x_scale_pointer`` and, in elements, ``x_scale_stride`` (along M or N), ``x_scale_k_stride`` and
    ``x_scale_batch_stride`` (int64); ``groups_pointer`` (address of offsets, counts or addresses) and ``groups_stride``
    (int32: from an entry to the next, in words of 32 bits). ``epilogue``: where what the expression takes begins;
    ``epilogue.x``, of its operand or output x: an address, and behind it int64 strides in elements, of a matrix along
    M, N and the batch, of others along the batch, or of a scalar, which has none, the value that it has where its
    address is 0, as wide as alpha. Where CTAs share K also ``partials flags`` (addresses in the workspace) and
    ``c_stride``, and where the launch says in how many slices ``splits`` (int32). Of a nested batch ``inner middle``
    (int32: its innermost extent, and the next) and ``x_step_0 x_step_1 x_step_2`` (int32, of A, B, C and D, innermost
    first: places in the descriptor's batch, or times ``d_batch_stride`` from D's address, from a matrix to the next).
    """

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster. The grid is one-dimensional: a multiple of them."""
        return self.cluster[0] * self.cluster[1] * self.cluster_k
