"""The config of one kernel: frozen and hashable. A config that validates can still break a legality rule.

Each member is a row of the table of fields (:mod:`gemmill.library.config.field_table`), with its type, default, doc and
place in a kernel's name. The classes are plain dataclasses, which pydantic validates only on input
(:func:`gemmill.library.config.fields.config_of`), so that a program with kernels from packs does not import pydantic.
"""

# Without annotations from __future__, which field_table would have to parse again when a program starts.

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
ScaleName = Literal[
    "none", "1x128", "128x128", "1x128e8", "128x128e8", "1x32", "1x64", "1x32z", "1x64z", "1x128z", "1x32e8"
]
ScheduleName = Literal["cooperative", "pingpong", "multistage", "simt", "gemv"]
RasterName = Literal["m", "n"]
DecompositionName = Literal["tiles", "splitk", "stream", "cluster", "serial", "tree"]
BatchingName = Literal["strided", "nested", "array", "grouped", "masked", "kgrouped", "ngrouped", "nmasked"]
RowsName = Literal["stored", "gathered"]
SymmetryName = Literal["general", "symmetric"]
Promotion = Literal[0, 2, 4]

FamilyName = Literal["wgmma", "mma", "simt", "gemv"]
FAMILIES: Mapping[str, FamilyName] = MappingProxyType(
    {"cooperative": "wgmma", "pingpong": "wgmma", "multistage": "mma", "simt": "simt", "gemv": "gemv"}
)
"""Kernel family by schedule. A family has its own kernel template, emitter and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOperand:
    """A (M x K) or B (N x K)."""

    dtype: Annotated[
        DTypeName,
        Field(doc="Element type in memory.", example="bf16", format=True),
    ]
    major: Annotated[
        MajorAB,
        Field(
            doc="The dimension whose elements are adjacent in memory.",
            means={"mn": "M for A, N for B", "any": "any strides along both dimensions"},
            example="k",
            format=True,
        ),
    ]
    align: Annotated[
        Positive,
        Field(
            doc="Alignment in bytes of base address and strides. For a kernel with TMA, gemmill copies a less aligned "
            "operand at each call, which takes time and workspace. An A aligned to one element is read in place."
        ),
    ] = 16
    scale: Annotated[
        ScaleName,
        Field(
            doc="Block scales. `1x128`: each scale covers 1 element along M (A) or N (B), and 128 along K. `e8`: ue8m0 "
            "scales instead of f32. `z`: with zero points.",
            token="s{}",
            unsaid=True,
            format=True,
        ),
    ] = "none"

    @property
    def type(self) -> DType:
        """The row of the dtype table."""
        return DTYPES[self.dtype]

    @property
    def loaded(self) -> DType:
        """The row of the type that the kernel loads: see :attr:`~gemmill.library.dtypes.DType.loaded`."""
        return self.type.loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOperand:
    """C or D (M x N)."""

    dtype: Annotated[
        DTypeName,
        Field(doc="Element type in memory.", example="bf16", format=True),
    ]
    major: Annotated[
        MajorCD,
        Field(
            doc="The dimension whose elements are adjacent in memory.",
            means={"n": "row-major", "m": "column-major", "any": "any strides along both dimensions"},
            example="n",
            format=True,
        ),
    ]
    align: Annotated[
        Positive,
        Field(
            doc="Alignment in bytes of base address and strides. A less aligned C is copied as A and B are. For a less "
            "aligned D, threads store instead of TMA."
        ),
    ] = 16

    @property
    def type(self) -> DType:
        """The row of the dtype table; KeyError for :data:`NO_C`."""
        return DTYPES[self.dtype]

    @property
    def is_there(self) -> bool:
        """Whether it is a matrix; false for :data:`NO_C`."""
        return self.dtype in DTYPES


NO_C = OutputOperand(dtype=cast("DTypeName", "none"), major=cast("MajorCD", "none"), align=0)
"""The placeholder for C in configs without C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Output tile of one CTA along M and N (for pingpong, of one warpgroup), and depth of a stage along K."""

    m: Annotated[Positive, Field(doc="Rows of the output tile.", example=128)]
    n: Annotated[Positive, Field(doc="Columns of the output tile.", example=256, token="x{}")]
    k: Annotated[Positive, Field(doc="Elements along K of a pipeline stage.", example=64, token="x{}")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """CTAs of a cluster along M and N. TMA multicasts A along N and B along M."""

    m: Annotated[Positive, Field(doc="CTAs along M, which share B by multicast.", example=2)] = 1
    n: Annotated[Positive, Field(doc="CTAs along N, which share A by multicast.", token="x{}")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """The order in which persistent CTAs process output tiles, and how they share K and batches."""

    raster: Annotated[
        RasterName,
        Field(
            doc="Raster order: the dimension along which consecutive tiles follow each other (CUTLASS: RasterOrder, "
            "`AlongM` or `AlongN`).",
            cpp="gemmill::Raster kRaster = gemmill::Raster::{}",
        ),
    ] = "m"
    swizzle_size: Annotated[
        Positive,
        Field(
            doc="Swizzle size: tiles across the raster order in one group, for L2 reuse (CUTLASS: max_swizzle_size).",
            example=8,
            cpp="int kSwizzle = {}",
            was=("swizzle",),
        ),
    ] = 1
    splits: Annotated[
        Positive,
        Field(
            doc="Slices of K if `decomposition` is `cluster`. For `splitk`, `serial` and `tree`, a launch sets them.",
            token="k{}",
            part="splits",
        ),
    ] = 1
    decomposition: Annotated[
        DecompositionName,
        Field(
            doc="How CTAs share K.",
            means={
                "tiles": "data-parallel: one CTA sums all of K of a tile",
                "splitk": "split-K: a second kernel adds the partial sums of 1 to 256 slices",
                "stream": "stream-K: CTAs share the tiles of a partial last wave",
                "cluster": "cluster split-K: the CTAs of a cluster share the K of one tile",
                "serial": "one CTA sums 1 to 8 slices of K one after another, with the bits of `splitk`",
                "tree": "`splitk` of 1, 2, 4 or 8 slices, added in a binary tree",
            },
            unsaid=True,
            part="splits",
            former_words={"split": "splitk", "anysplit": "splitk", "fused": "splitk"},
        ),
    ] = "tiles"
    symmetry: Annotated[
        SymmetryName,
        Field(
            doc="Which output tiles the kernel multiplies.",
            means={
                "general": "all",
                "symmetric": "those that meet the lower triangle of a D that equals its transpose; it stores the "
                "others as their mirrors",
            },
            unsaid=True,
            format=True,
        ),
    ] = "general"
    rows: Annotated[
        RowsName,
        Field(
            doc="How the kernel finds the rows of A (groups along N: columns of B) of a group.",
            means={"stored": "in the order of the groups", "gathered": "by an index"},
            unsaid=True,
            format=True,
        ),
    ] = "stored"
    batching: Annotated[
        BatchingName,
        Field(
            doc="How the kernel finds the matrices of a batch.",
            means={
                "strided": "at one stride",
                "nested": "at one stride for each of up to three batch extents",
                "array": "at an array of addresses",
                "grouped": "groups along M of A and D, at offsets",
                "masked": "groups of equal capacity along M, with row counts",
                "kgrouped": "groups along K of A and B, at offsets",
                "ngrouped": "`grouped` transposed: groups along N of B and D",
                "nmasked": "`masked` transposed",
            },
            unsaid=True,
            format=True,
        ),
    ] = "strided"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConfig:
    """Everything that determines one kernel: D = epilogue(A @ B, C), with A (M x K), B (K x N), C and D (M x N).

    The constructor checks nothing. :func:`gemmill.library.config.fields.config_of` checks values, and
    :class:`gemmill.Registry` checks the configs that a caller requests.
    """

    arch: Annotated[ArchName, Field(doc="Compilation target.")] = "sm90a"
    a: InputOperand
    b: InputOperand
    accumulator: Annotated[
        DTypeName,
        Field(
            doc="Type in which the kernel sums products.",
            example="f32",
            format=True,
        ),
    ]
    promote: Annotated[
        Promotion,
        Field(
            doc="Two-level accumulation: sums of fp8 or split f32 move to f32 registers after this many WGMMAs of each "
            "term; 0: never.",
            token="p{}",
            unsaid=True,
            format=True,
            part="accumulator",
        ),
    ] = 0
    c: OutputOperand | None = None
    """The added matrix; None for kernels without C."""
    d: OutputOperand
    tile: Tile
    cluster: Cluster = Cluster()
    schedule: Annotated[
        ScheduleName,
        Field(
            doc="How the warps of a CTA share the work.",
            means={
                "cooperative": "consumer warpgroups share a tile",
                "pingpong": "two consumer warpgroups alternate, each with its own tile",
                "multistage": "mma.sync with a cp.async pipeline",
                "simt": "FMA instructions",
                "gemv": "for a few rows",
            },
            example="cooperative",
        ),
    ]
    stages: Annotated[
        Positive,
        Field(
            doc="Stages of the shared-memory pipeline. For `gemv`: vectors of B in flight per thread.",
            example=4,
            token="s{}",
            auto=True,
        ),
    ]
    scheduler: Scheduler = Scheduler()
    epilogue: Annotated[
        EpilogueText,
        Field(
            doc="Operation on each accumulator element before the store. `linear`: D = alpha * A @ B + beta * C.",
            format=True,
        ),
    ] = LINEAR

    @property
    def family(self) -> FamilyName:
        """The kernel template that the schedule belongs to."""
        return FAMILIES[self.schedule]

    @property
    def inputs(self) -> Mapping[InputName, InputOperand]:
        """A and B by name."""
        return {"a": self.a, "b": self.b}

    @property
    def outputs(self) -> Mapping[OutputName, OutputOperand]:
        """C, or :data:`NO_C`, and D by name."""
        return {"c": self.c or NO_C, "d": self.d}

    @property
    def operands(self) -> Mapping[str, InputOperand | OutputOperand]:
        """A, B, C (or :data:`NO_C`) and D by name."""
        outputs = self.outputs
        return {"a": self.a, "b": self.b, "c": outputs["c"], "d": outputs["d"]}

    @property
    def target(self) -> Arch:
        """The row of the arch table."""
        return ARCHS[self.arch]
