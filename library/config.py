"""The config of one kernel: frozen, hashable, split by decision. A config that validates may still break a rule."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gemmill.library.arch import ARCHS, Arch, ArchName
from gemmill.library.dtypes import DTYPES, DType, DTypeName

MajorAB = Literal["k", "mn"]
MajorCD = Literal["n", "m"]
ScheduleName = Literal["cooperative", "pingpong"]
RasterName = Literal["m", "n"]
EpilogueName = Literal["linear"]


class Frozen(BaseModel):
    """Base of every config model: immutable, hashable, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class InputOperand(Frozen):
    """A (M x K) or B (N x K)."""

    dtype: DTypeName
    """Element type in memory."""
    major: MajorAB
    """The contiguous extent: ``k``, or ``mn`` (M for A, N for B)."""
    align: int = Field(default=16, gt=0)
    """Alignment in bytes that base address and strides must have."""

    @property
    def type(self) -> DType:
        """Row of the dtype table."""
        return DTYPES[self.dtype]


class OutputOperand(Frozen):
    """C or D (M x N)."""

    dtype: DTypeName
    """Element type in memory."""
    major: MajorCD
    """The contiguous extent: ``n`` (row-major) or ``m`` (column-major)."""
    align: int = Field(default=16, gt=0)
    """Alignment in bytes that base address and strides must have."""

    @property
    def type(self) -> DType:
        """Row of the dtype table."""
        return DTYPES[self.dtype]


class Tile(Frozen):
    """Extents of the output tile that one block (one warpgroup under pingpong) computes, and of one stage along K."""

    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)


class Cluster(Frozen):
    """Blocks of a cluster along M and N. A is multicast along N, B along M."""

    m: int = Field(default=1, gt=0)
    n: int = Field(default=1, gt=0)


class Scheduler(Frozen):
    """Order in which the persistent blocks walk the output tiles."""

    raster: RasterName = "m"
    """The extent along which consecutive tiles lie."""
    swizzle: int = Field(default=1, gt=0)
    """Tiles across the raster direction that are walked as one band, for L2 reuse."""
    splits: int = Field(default=1, gt=0)
    """Parts that K is split into."""


class GemmConfig(Frozen):
    """Everything that determines one kernel: D = epilogue(A @ B, C), with A (M x K), B (K x N), C and D (M x N)."""

    arch: ArchName
    """Compilation target."""
    a: InputOperand
    b: InputOperand
    accumulator: DTypeName
    """Type the products are summed in."""
    c: OutputOperand | None
    """The added matrix; None for kernels that take no C."""
    d: OutputOperand
    tile: Tile
    cluster: Cluster
    schedule: ScheduleName
    """``cooperative``: two or three consumer warpgroups share a tile. ``pingpong``: two take turns, a tile each."""
    stages: int = Field(gt=0)
    """Stages of the shared-memory pipeline of A and B tiles."""
    scheduler: Scheduler
    epilogue: EpilogueName = "linear"
    """``linear``: D = alpha * acc + beta * C."""

    @property
    def target(self) -> Arch:
        """Row of the arch table."""
        return ARCHS[self.arch]
