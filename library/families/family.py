"""What a kernel family is to the rest of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemmill.library.config.fields import Fields, Value
from gemmill.library.legality.rule import Rule


def _data_parallel(schedule: str) -> tuple[str, ...]:
    return ("tiles",)


def _nothing(fields: Fields) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel template: its rules, and what it asks of a CTA. The functions take fields of its own schedules."""

    archs: tuple[str, ...]
    """The targets it is compiled for."""
    rules: tuple[Rule, ...]
    """Its legality rules, in the order of reports."""
    domains: Mapping[str, tuple[Value, ...]]
    """The values it takes, of the fields that have no words."""
    threads: Callable[[Fields], int]
    """Threads of a CTA."""
    stage_bytes: Callable[[Fields], tuple[int, int]]
    """Bytes of one stage of A and of B."""
    shared_bytes: Callable[[Fields], int]
    """Dynamic shared memory of a CTA."""
    accumulator_registers: Callable[[Fields], int]
    """32-bit accumulator registers of a thread that multiplies."""
    auto_stages: Callable[[Fields], int]
    """Stages that ``stages: auto`` stands for: the most that fit, up to ``max_auto_stages``; may be below 2."""
    max_auto_stages: Callable[[Fields], int]
    """Deepest pipeline that ``stages: auto`` asks for."""
    lacks_for_epilogue: Callable[[Fields], str | None]
    """What an expression asks for that the family, or its target, lacks; None where it has all."""
    decompositions: Callable[[str], tuple[str, ...]] = _data_parallel
    """The decompositions of K that a schedule of it has."""
    batchings: tuple[str, ...] = ("strided",)
    """The kinds of batches that it has."""
    explained: Callable[[Fields], Mapping[str, int]] = _nothing
    """What else it asks of an SM, by name with unit, for whoever wants to know."""
