"""The launch facts of a kernel: threads, cluster, shared memory, TMA boxes and parameter layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gemmill.library.config.model import DecompositionName
from gemmill.library.dtypes import DTypeName

TMA_BYTES = 128
"""Size of a ``CUtensorMap``."""
NESTED_EXTENTS = 3
"""Most batch extents of a kernel with nested batching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaBox:
    """How one operand's TMA descriptor is encoded (CUDA driver API, ``cuTensorMapEncodeTiled``).

    A descriptor has rank 3 (contiguous extent, strided extent, batch) or rank 4. The box is 1 along all extents except
    the first two, unless it has ``halves``.
    """

    operand: str
    """``a``, ``b``, ``c``, ``d``. ``partials``: the partial sums of a split-K kernel, which have the major of D.
    ``scale`` and ``zero``: group scales and zero points of a narrow A. ``epilogue.x``: the matrix x of the epilogue."""
    dtype: DTypeName
    contiguous: Literal["m", "n", "k"]
    """The problem extent that is contiguous in memory."""
    strided: Literal["m", "n", "k"]
    """The other extent."""
    box: tuple[int, int]
    """Box extents in elements (in bytes for packed types): contiguous, strided."""
    swizzle: int
    """Swizzle span in bytes; 16 means no swizzle."""
    offset: int
    """Byte offset of the descriptor in the parameter struct."""
    group: int = 1
    """Units of the problem extent per element of the strided extent: the group size for group scales, otherwise 1."""
    window: int = 0
    """If not 0, the kernel can clip boxes at any row, not only at the end of the tensor. The strided extent then has
    this many rows, and a third extent slides this window over the tensor, starting ``window`` rows before it. A box at
    row ``window - v`` of the window at ``i + v`` covers rows ``i``, ``i + 1``, …, and TMA clips all but the first
    ``v``."""
    part: Literal["", "whole", "tail"] = ""
    """TMA needs as long for a row beyond an operand as for three rows within it. Boxes therefore end with the operand
    and have two descriptors: ``whole`` boxes (possibly none along the strided extent), and the ``tail`` for the
    remaining rows, if any. A smaller box leaves part of a stage unwritten, and no stored result depends on that
    part."""
    anywhere: bool = False
    """Whether the kernel gets the addresses of matrices at run time. The descriptor then has rank 4 and starts at
    address 0; its third extent has steps of 16 bytes, its fourth of 2^35 bytes."""

    halves: bool = False
    """Whether the rows of a box alternate, 8 by 8, between the halves of the strided extent. The descriptor then has
    rank 4: the contiguous extent, 8 rows, the halves of all matrices, and the runs of 8 rows in a half."""

    def rows(self, strided: int) -> int:
        """Rows of the box if the operand has ``strided`` rows; 0 if there is no such box."""
        rows = self.box[1]
        return {"": rows, "whole": rows if strided >= rows else 0, "tail": strided % rows}[self.part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The second kernel of split-K, which adds partial sums and stores D. It has the same parameters."""

    entry: str
    """``extern "C"`` symbol."""
    threads: int
    """Threads of a CTA."""
    vectors: int
    """Vectors of four adjacent elements along D's contiguous extent that a CTA computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KDecomposition:
    """Slices of K of a tile: how CTAs share them, and the workspace for their partial sums."""

    name: DecompositionName
    """See :class:`~gemmill.library.config.model.Scheduler`."""
    splits: int = 1
    """Slices of K of every tile in a launch that sets their number. 1 before that, and for ``stream``, which divides
    work by the size of the grid."""
    tile_k: int
    """K of one step."""
    tile_bytes: int
    """Bytes of the partial sums of a cluster tile in stream-K; 0 for others. Split-K stores whole matrices."""
    tile_flags: int
    """32-bit flags of a cluster tile in the workspace of stream-K; 0 for others."""
    reduction: Reduction | None = None
    """The second kernel of ``splitk`` and ``tree``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """The launch facts of one kernel, computed in Python and checked against constants that the kernel exports."""

    entry: str
    """``extern "C"`` symbol."""
    threads: int
    """Threads of a CTA."""
    cluster: tuple[int, int]
    """CTAs of a cluster along M and N."""
    cluster_k: int = 1
    """CTAs of a cluster that share K of a tile."""
    shared_bytes: int
    """Dynamic shared memory in bytes."""
    tile: tuple[int, int]
    """Extents along M and N of the scheduler's output tiles."""
    k_decomposition: KDecomposition | None = None
    """None if one CTA or one cluster sums all of K for a tile, without slices that the launch sets."""
    boxes: tuple[TmaBox, ...]
    """TMA descriptors. Those of A and B come first."""
    params_bytes: int
    """Size of the parameter struct."""
    offsets: dict[str, int]
    """Byte offset of each scalar parameter, by name.

    - ``m n k batch`` (int32).
    - ``batched`` (uint32): bits 0, 1 and 2 for A, B and C, and from bit 3 on the matrices of the epilogue that TMA
      moves, in the order of ``boxes``. A clear bit broadcasts the operand over the batch.
    - ``alpha beta`` (float32; int32 if D is s32), or ``alpha64 beta64`` (float64).
    - ``d_stride`` (int64): elements between neighbours along D's strided extent.
    - ``x_pointer``, and in elements ``x_row_stride x_column_stride x_batch_stride`` (int64), for an operand x that is
      accessed without TMA.
    - ``x_scale_pointer``, and in elements ``x_scale_stride`` (along M or N), ``x_scale_k_stride`` and
      ``x_scale_batch_stride`` (int64), for block scales.
    - ``groups_pointer`` (address of offsets, counts or addresses) and ``groups_stride`` (int32: 32-bit words from one
      entry to the next).
    - ``epilogue``: the start of the parameters of the expression. ``epilogue.x``: the address of its operand or output
      x, followed by int64 strides in elements (along M, N and the batch for a matrix; along the batch for other kinds)
      or, for a scalar, by the value that applies if the address is 0, which is as wide as alpha.
    - ``partials flags`` (addresses in the workspace) and ``c_stride`` if CTAs share K through a workspace; ``splits``
      (int32) if the launch sets the number of slices.
    - ``inner middle`` (int32: the innermost batch extent and the next one) and ``x_step_0 x_step_1 x_step_2`` for x in
      A, B, C and D (int32, innermost first) for a nested batch. A step counts matrices in the descriptor's batch, or
      units of ``d_batch_stride`` from D's address.
    """

    @property
    def has_workspace(self) -> bool:
        """Whether partial sums go through global memory."""
        return "partials" in self.offsets

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster. The grid is one-dimensional and a multiple of it."""
        return self.cluster[0] * self.cluster[1] * self.cluster_k
