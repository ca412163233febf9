"""The plan of a kernel: the threads, registers and shared memory that its config implies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from gemmill.library.config.fields import member
from gemmill.library.config.model import FamilyName, GemmConfig


class Region(NamedTuple):
    """A part of a CTA's shared memory."""

    name: str
    parts: int
    """The number of equal parts."""
    size: int
    """Bytes of one part."""

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.parts * self.size


class KernelPlan:
    """The resources of an SM that a kernel uses, computed from its config. Each family has its own subclass.

    Members are computed when they are first read, and each reads only a few fields. Rules can therefore use plans of
    configs that lack some fields (:class:`~gemmill.library.config.fields.ConfigView`).
    """

    family: ClassVar[FamilyName | None] = None
    """The family that the plan belongs to; None for this base class, which only holds the config."""
    archs: ClassVar[tuple[str, ...]]
    """The targets that the family supports."""
    batchings: ClassVar[tuple[str, ...]] = ("strided",)
    """The kinds of batching that the family supports."""
    rows: ClassVar[tuple[str, ...]] = ("stored",)
    """How the family's kernels can find the rows of A."""
    symmetries: ClassVar[tuple[str, ...]] = ("general",)
    """Which output tiles the family's kernels can multiply."""
    threads: member[int]
    """Threads of a CTA."""
    stage_bytes: member[tuple[int, int]]
    """Bytes of one stage of A and of B."""
    shared_bytes: member[int]
    """Dynamic shared memory of a CTA."""
    accumulator_registers: member[int]
    """32-bit accumulator registers of a thread that issues MMAs or FMAs."""
    auto_stages: member[int]
    """Stages for ``stages: auto``: as many as fit, up to :attr:`max_auto_stages`; can be below 2."""

    def __init__(self, config: GemmConfig) -> None:
        self.config = config

    @member
    def decompositions(self) -> tuple[str, ...]:
        """The decompositions of K that the schedule supports."""
        return ("tiles",)

    @member
    def regions(self) -> tuple[Region, ...]:
        """The regions of shared memory in address order: the stages of A, then those of B."""
        names = ("A stages", "B stages")
        return tuple(Region(*fields) for fields in zip(names, (self.config.stages,) * 2, self.stage_bytes, strict=True))

    @member
    def max_auto_stages(self) -> int:
        """Most stages for ``stages: auto``."""
        return self.auto_stages

    @member
    def multiply_add_chain(self) -> int:
        """Multiply-adds by one register that its machine code issues together; 0: as ptxas has it."""
        return 0

    @member
    def lacks_for_epilogue(self) -> str | None:
        """Why the family or the target does not support the epilogue expression; None if it does."""
        return None

    @member
    def resources(self) -> Mapping[str, int]:
        """The resources of a CTA, by name with unit."""
        return {
            "threads a CTA": self.threads,
            "accumulator registers a thread": self.accumulator_registers,
            "stages": self.config.stages,
            "bytes of a stage": sum(self.stage_bytes),
            "bytes of shared memory": self.shared_bytes,
        }
