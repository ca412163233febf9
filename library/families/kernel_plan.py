"""What the plan of every kernel has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from gemmill.library.config.fields import member
from gemmill.library.config.model import FamilyName, GemmConfig


class Region(NamedTuple):
    """A part of a CTA's shared memory."""

    name: str
    parts: int
    """Equal parts of it."""
    size: int
    """Bytes of one."""

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.parts * self.size


class KernelPlan:
    """What a kernel takes of an SM, made of its config alone. Each family has a plan of its own.

    Members are computed when they are first read, and read few members of the config each: rules read plans of
    configs of which few fields are known (:class:`~gemmill.library.config.fields.ConfigView`).
    """

    family: ClassVar[FamilyName | None] = None
    """The family whose kernels have such plans; None: all, of which only the config is known."""
    archs: ClassVar[tuple[str, ...]]
    """The targets that they are compiled for."""
    batchings: ClassVar[tuple[str, ...]] = ("strided",)
    """The kinds of batches that they have."""
    threads: member[int]
    """Threads of a CTA."""
    stage_bytes: member[tuple[int, int]]
    """Bytes of one stage of A and of B."""
    shared_bytes: member[int]
    """Dynamic shared memory of a CTA."""
    accumulator_registers: member[int]
    """32-bit accumulator registers of a thread that multiplies."""
    auto_stages: member[int]
    """Stages that ``stages: auto`` stands for: the most that fit, up to :attr:`max_auto_stages`; may be below 2."""

    def __init__(self, config: GemmConfig) -> None:
        self.config = config

    @member
    def decompositions(self) -> tuple[str, ...]:
        """The decompositions of K that kernels of the schedule have."""
        return ("tiles",)

    @member
    def regions(self) -> tuple[Region, ...]:
        """The parts of shared memory, in the order in which they lie: the stages of A and of B."""
        names = ("A stages", "B stages")
        return tuple(Region(*each) for each in zip(names, (self.config.stages,) * 2, self.stage_bytes, strict=True))

    @member
    def max_auto_stages(self) -> int:
        """Deepest pipeline that ``stages: auto`` stands for."""
        return self.auto_stages

    @member
    def multiply_add_chain(self) -> int:
        """Multiply-adds by one register that its machine code issues together; 0: as ptxas has it."""
        return 0

    @member
    def lacks_for_epilogue(self) -> str | None:
        """What the config's expression needs that the family, or its target, lacks; None where it has all."""
        return None

    @member
    def resources(self) -> Mapping[str, int]:
        """What a CTA takes, by name with unit."""
        return {
            "threads a CTA": self.threads,
            "accumulator registers a thread": self.accumulator_registers,
            "stages": self.config.stages,
            "bytes of a stage": sum(self.stage_bytes),
            "bytes of shared memory": self.shared_bytes,
        }
