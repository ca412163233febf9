"""The config of one kernel: frozen, hashable, split by decision. A config that validates may still break a rule.

The classes are plain dataclasses, which pydantic validates where configs come in
(:func:`gemmill.library.config.fields.config_of`): a program whose kernels come from packs starts without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gemmill.library.arch import ARCHS, Arch, ArchName
from gemmill.library.dtypes import DTYPES, DType, DTypeName
from gemmill.library.epilogues.parse import LINEAR, canonical
from gemmill.library.errors import ExpressionError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

MajorAB = Literal["k", "mn", "any"]
MajorCD = Literal["n", "m", "any"]
ScaleName = Literal["none", "1x128", "128x128", "1x32", "1x64", "1x32z", "1x64z", "1x128z"]
ScheduleName = Literal["cooperative", "pingpong", "multistage", "simt", "gemv"]
RasterName = Literal["m", "n"]
DecompositionName = Literal["tiles", "split", "fused", "stream", "cluster"]
BatchingName = Literal["strided", "array", "grouped", "masked", "kgrouped"]
Promotion = Literal[0, 4]


class _AtLeastOne:
    """Has pydantic take integers of at least 1, and nothing else for one."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.int_schema(gt=0, strict=True)


class _Canonical:
    """Has pydantic take canonical texts of epilogues."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> CoreSchema:
        from pydantic_core import PydanticCustomError, core_schema

        def check(text: str) -> str:
            try:
                spelling = canonical(text)
            except ExpressionError as error:
                raise PydanticCustomError(
                    "epilogue", "{reason}", {"reason": str(error), "column": error.column}
                ) from None
            if spelling != text:
                raise PydanticCustomError(
                    "epilogue", "is not canonical; write {spelling}", {"spelling": repr(spelling)}
                )
            return text

        return core_schema.no_info_after_validator_function(check, core_schema.str_schema(strict=True))


Positive = Annotated[int, _AtLeastOne()]
"""An integer of at least 1."""
EpilogueText = Annotated[str, _Canonical()]
"""The canonical text of an epilogue: ``linear`` or an expression (:mod:`gemmill.library.epilogues.parse`)."""


FamilyName = Literal["wgmma", "mma", "simt", "gemv"]
FAMILIES: Mapping[str, FamilyName] = MappingProxyType(
    {"cooperative": "wgmma", "pingpong": "wgmma", "multistage": "mma", "simt": "simt", "gemv": "gemv"}
)
"""Kernel family by schedule: a family is a kernel template, an emitter and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOperand:
    """A (M x K) or B (N x K)."""

    dtype: DTypeName
    """Element type in memory."""
    major: MajorAB
    """The contiguous extent: ``k``, or ``mn`` (M for A, N for B); ``any``: strides along both extents are read."""
    align: Positive = 16
    """Alignment in bytes of base address and strides as the kernel reads it; see :meth:`GemmConfig.least_aligns`."""
    scale: ScaleName = "none"
    """Block scales that multiply it: elements along M or N, and along K, that share one; ``z``: and a zero point."""

    @property
    def type(self) -> DType:
        """Row of the dtype table."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOperand:
    """C or D (M x N)."""

    dtype: DTypeName
    """Element type in memory."""
    major: MajorCD
    """The contiguous extent: ``n`` (row-major) or ``m`` (column-major); ``any``: strides along both are followed."""
    align: Positive = 16
    """Alignment in bytes of base address and strides as the kernel reads C, or writes D at its best."""

    @property
    def type(self) -> DType:
        """Row of the dtype table."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Extents of the output tile that one block (one warpgroup under pingpong) computes, and of one stage along K."""

    m: Positive
    n: Positive
    k: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Blocks of a cluster along M and N. A is multicast along N, B along M."""

    m: Positive = 1
    n: Positive = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Order in which the persistent blocks walk the output tiles."""

    raster: RasterName = "m"
    """The extent along which consecutive tiles lie."""
    swizzle: Positive = 1
    """Tiles across the raster direction that are walked as one band, for L2 reuse."""
    splits: Positive = 1
    """Parts that K is split into; 1 but for ``split``, ``fused`` and ``cluster``."""
    decomposition: DecompositionName = "tiles"
    """``tiles``: a block sums all of K. ``split``: parts of K, added up by a second kernel. ``fused``: the same, added
    up by the block that finishes a tile. ``stream``: blocks without a tile of the last wave take parts of the others'
    K (stream-K).
    ``cluster``: as many blocks as parts form a cluster, add up through its shared memory, and store a share each."""
    batching: BatchingName = "strided"
    """How the matrices of a batch are found. ``strided``: at one stride. ``array``: at an array of addresses.
    ``grouped``: A and D one after the other along M, at offsets. ``masked``: in slots of equal capacity along M, with
    counts of rows. ``kgrouped``: A and B one after the other along K, at offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConfig:
    """Everything that determines one kernel: D = epilogue(A @ B, C), with A (M x K), B (K x N), C and D (M x N).

    Making one checks nothing: :func:`gemmill.library.config.fields.config_of` does, and :class:`gemmill.Registry` of
    what it is asked for.
    """

    arch: ArchName
    """Compilation target."""
    a: InputOperand
    b: InputOperand
    accumulator: DTypeName
    """Type the products are summed in."""
    promote: Promotion = 0
    """WGMMAs after which fp8 sums, which the tensor cores keep in 14 bits or so, move to f32 registers; 0: never."""
    c: OutputOperand | None
    """The added matrix; None for kernels that take no C."""
    d: OutputOperand
    tile: Tile
    cluster: Cluster
    schedule: ScheduleName
    """``cooperative``: two or three consumer warpgroups share a tile. ``pingpong``: two take turns, a tile each.
    ``multistage``: mma.sync behind a cp.async pipeline. ``simt``: FMAs. ``gemv``: dot products, for a few rows."""
    stages: Positive
    """Stages of the shared-memory pipeline of A and B tiles."""
    scheduler: Scheduler
    epilogue: EpilogueText = LINEAR
    """What is done to each sum before it is stored. ``linear``: D = alpha * acc + beta * C."""

    @property
    def family(self) -> FamilyName:
        """The kernel template that the schedule belongs to."""
        return FAMILIES[self.schedule]

    def least_aligns(self) -> tuple[int, int, int, int]:
        """Alignments in bytes that A, B, C and D must have at least, 0 where there is no C: those of the operands, or
        of an element where they are copied into aligned memory beforehand, or threads store the D that TMA cannot."""
        a, b, c, d, scheduler = self.a, self.b, self.c, self.d, self.scheduler
        tma = self.family == "wgmma"
        by_element = tma and scheduler.decomposition != "split" and scheduler.batching != "array"
        copied = tma and scheduler.batching == "strided" and a.type.bits == b.type.bits
        return (
            a.type.bytes if copied else a.align,
            b.type.bytes if copied else b.align,
            0 if c is None else c.type.bytes if copied and by_element else c.align,
            d.type.bytes if by_element else d.align,
        )

    @property
    def target(self) -> Arch:
        """Row of the arch table."""
        return ARCHS[self.arch]


_PARTS: Mapping[str, type] = MappingProxyType(
    {
        "a": InputOperand,
        "b": InputOperand,
        "c": OutputOperand,
        "d": OutputOperand,
        "tile": Tile,
        "cluster": Cluster,
        "scheduler": Scheduler,
    }
)
"""The class of each part of a config that is no single value."""


def made_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of :class:`GemmConfig` from nested mappings, as ``dataclasses.asdict`` makes them: the parts that have
    classes become those. Nothing is checked but the names of fields; TypeError for one that is missing or unknown."""
    return {name: _PARTS[name](**part) if type(part) is dict else part for name, part in parts.items()}
