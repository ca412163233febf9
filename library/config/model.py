"""The config of one kernel: frozen, hashable, split by decision. A config that validates may still break a rule.

Its members are the rows of the table of fields (:mod:`gemmill.library.config.field_table`): each says type, default,
doc, place in a kernel's name. The classes are plain dataclasses, which pydantic validates where configs come in
(:func:`gemmill.library.config.fields.config_of`): a program whose kernels come from packs starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, cast

from gemmill.library.arch import ARCHS, Arch, ArchName
from gemmill.library.config.field import EpilogueText, Field, Positive
from gemmill.library.dtypes import DTYPES, DType, DTypeName
from gemmill.library.epilogues.parse import LINEAR

InputName = Literal["a", "b"]
OutputName = Literal["c", "d"]
MajorAB = Literal["k", "mn", "any"]
MajorCD = Literal["n", "m", "any"]
ScaleName = Literal["none", "1x128", "128x128", "1x128e8", "128x128e8", "1x32", "1x64", "1x32z", "1x64z", "1x128z"]
ScheduleName = Literal["cooperative", "pingpong", "multistage", "simt", "gemv"]
RasterName = Literal["m", "n"]
DecompositionName = Literal["tiles", "splitk", "stream", "cluster"]
BatchingName = Literal["strided", "nested", "array", "grouped", "masked", "kgrouped"]
Promotion = Literal[0, 4]

FamilyName = Literal["wgmma", "mma", "simt", "gemv"]
FAMILIES: Mapping[str, FamilyName] = MappingProxyType(
    {"cooperative": "wgmma", "pingpong": "wgmma", "multistage": "mma", "simt": "simt", "gemv": "gemv"}
)
"""Kernel family by schedule: a family is a kernel template, an emitter and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOperand:
    """A (M x K) or B (N x K)."""

    dtype: Annotated[DTypeName, Field(doc="Element type in memory.", example="bf16", format=True)]
    major: Annotated[
        MajorAB,
        Field(
            doc="The contiguous extent.",
            means={"mn": "M for A, N for B", "any": "none need be: strides along both extents are read"},
            example="k",
            format=True,
        ),
    ]
    align: Annotated[
        Positive,
        Field(
            doc="Alignment in bytes of base address and strides as the kernel reads it. Operands of less are realigned "
            "first where the kernel has TMA."
        ),
    ] = 16
    scale: Annotated[
        ScaleName,
        Field(
            doc="Block scales that multiply it: how many elements along M or N, and along K, share one; e8: of ue8m0, "
            "not f32; z: and a zero point.",
            token="s{}",
            unsaid=True,
            format=True,
        ),
    ] = "none"

    @property
    def type(self) -> DType:
        """Row of the dtype table."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOperand:
    """C or D (M x N)."""

    dtype: Annotated[DTypeName, Field(doc="Element type in memory.", example="bf16", format=True)]
    major: Annotated[
        MajorCD,
        Field(
            doc="The contiguous extent.",
            means={"n": "row-major", "m": "column-major", "any": "none need be: strides along both are followed"},
            example="n",
            format=True,
        ),
    ]
    align: Annotated[
        Positive,
        Field(doc="Alignment in bytes of base address and strides as the kernel reads C, or writes D at its best."),
    ] = 16

    @property
    def type(self) -> DType:
        """Row of the dtype table; KeyError for :data:`NO_C`."""
        return DTYPES[self.dtype]

    @property
    def is_there(self) -> bool:
        """Whether it is a matrix; :data:`NO_C` is none."""
        return self.dtype in DTYPES


NO_C = OutputOperand(dtype=cast("DTypeName", "none"), major=cast("MajorCD", "none"), align=0)
"""Stands for the C of configs that have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Output tile of one CTA (of one warpgroup under pingpong) along M and N, and depth of a stage along K."""

    m: Annotated[Positive, Field(doc="Rows of the output tile.", example=128)]
    n: Annotated[Positive, Field(doc="Columns of the output tile.", example=256, token="x{}")]
    k: Annotated[Positive, Field(doc="Depth of a stage of the pipeline.", example=64, token="x{}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """CTAs of a cluster along M and N. A is multicast along N, B along M."""

    m: Annotated[Positive, Field(doc="CTAs along M, to which B is multicast.", example=2)] = 1
    n: Annotated[Positive, Field(doc="CTAs along N, to which A is multicast.", token="x{}")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Order in which persistent CTAs walk the output tiles, and how they share K and batches."""

    raster: Annotated[
        RasterName,
        Field(
            doc="Raster order: the extent along which consecutive tiles lie.",
            cpp="gemmill::Raster kRaster = gemmill::Raster::{}",
        ),
    ] = "m"
    swizzle_size: Annotated[
        Positive,
        Field(
            doc="Swizzle size: tiles across the raster order that are walked as one group, for L2 reuse.",
            example=8,
            cpp="int kSwizzle = {}",
            was=("swizzle",),
        ),
    ] = 1
    splits: Annotated[
        Positive,
        Field(
            doc="CTAs of a cluster that share K. The slices of a splitk kernel are an argument of the launch.",
            token="k{}",
            part="splits",
        ),
    ] = 1
    decomposition: Annotated[
        DecompositionName,
        Field(
            doc="How CTAs share K.",
            means={
                "tiles": "data-parallel: a CTA sums all of K of its tiles",
                "splitk": "split-K: as many slices of K as a launch has, which a second kernel adds up",
                "stream": "stream-K: CTAs without a tile of the last wave take shares of the others' K",
                "cluster": "cluster split-K: as many CTAs as slices form a cluster, add up through its shared memory, "
                "and store a share each",
            },
            unsaid=True,
            part="splits",
            former_words={"split": "splitk", "anysplit": "splitk", "fused": "splitk"},
        ),
    ] = "tiles"
    batching: Annotated[
        BatchingName,
        Field(
            doc="How the matrices of a batch are found.",
            means={
                "strided": "at one stride",
                "nested": "at a stride for each of up to three batch extents",
                "array": "at an array of addresses",
                "grouped": "A and D one after the other along M, at offsets",
                "masked": "in groups of equal capacity along M, with counts of rows",
                "kgrouped": "A and B one after the other along K, at offsets",
            },
            unsaid=True,
            format=True,
        ),
    ] = "strided"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConfig:
    """Everything that determines one kernel: D = epilogue(A @ B, C), with A (M x K), B (K x N), C and D (M x N).

    Making one checks nothing: :func:`gemmill.library.config.fields.config_of` does, and :class:`gemmill.Registry` of
    what it is asked for.
    """

    arch: Annotated[ArchName, Field(doc="Compilation target.")] = "sm90a"
    a: InputOperand
    b: InputOperand
    accumulator: Annotated[DTypeName, Field(doc="Type the products are summed in.", example="f32", format=True)]
    promote: Annotated[
        Promotion,
        Field(
            doc="WGMMAs after which fp8 sums, which the tensor cores keep in 14 bits or so, move to f32 registers; 0: "
            "never.",
            token="p{}",
            unsaid=True,
            format=True,
            part="accumulator",
        ),
    ] = 0
    c: OutputOperand | None = None
    """The added matrix; None for kernels that take no C."""
    d: OutputOperand
    tile: Tile
    cluster: Cluster = Cluster()
    schedule: Annotated[
        ScheduleName,
        Field(
            doc="How the warps of a CTA share the work.",
            means={
                "cooperative": "two or three consumer warpgroups share a tile",
                "pingpong": "two consumer warpgroups take turns, a tile each",
                "multistage": "mma.sync behind a pipeline of cp.async",
                "simt": "multiply-adds",
                "gemv": "dot products, for a few rows",
            },
            example="cooperative",
        ),
    ]
    stages: Annotated[
        Positive,
        Field(
            doc="Stages of the shared-memory pipeline of A and B tiles (gemv: vectors of B in flight a thread).",
            example=4,
            token="s{}",
            auto=True,
        ),
    ]
    scheduler: Scheduler = Scheduler()
    epilogue: Annotated[
        EpilogueText,
        Field(doc="What is done to each sum before it is stored; linear: D = alpha * A @ B + beta * C.", format=True),
    ] = LINEAR

    @property
    def family(self) -> FamilyName:
        """The kernel template that the schedule belongs to."""
        return FAMILIES[self.schedule]

    @property
    def inputs(self) -> Mapping[InputName, InputOperand]:
        """A and B by their names."""
        return {"a": self.a, "b": self.b}

    @property
    def outputs(self) -> Mapping[OutputName, OutputOperand]:
        """C, or :data:`NO_C`, and D by their names."""
        return {"c": self.c or NO_C, "d": self.d}

    @property
    def operands(self) -> Mapping[str, InputOperand | OutputOperand]:
        """A, B, C, or :data:`NO_C`, and D by their names."""
        outputs = self.outputs
        return {"a": self.a, "b": self.b, "c": outputs["c"], "d": outputs["d"]}

    @property
    def target(self) -> Arch:
        """Row of the arch table."""
        return ARCHS[self.arch]
