"""The choice table of a pack, by what its selector chooses without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gemmill.library.arch import Gpu
from gemmill.library.problem import GemmProblem, Regime
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.table_making import table_of
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack


def decisions_of(artifacts: Iterable[Artifact], decisions: Iterable[Decision]) -> list[Decision]:
    """Return the measurements of these kernels."""
    names = {artifact.name for artifact in artifacts}
    return [decision for decision in decisions if decision.kernel in names]


def table_among(
    artifacts: Iterable[Artifact],
    decisions: Sequence[Decision],
    problems: Iterable[GemmProblem],
    gpu: Gpu | None,
    objective: Regime,
    bits: str,
) -> ChoiceTable:
    """Return the choice table of a pack of these kernels and measurements: which lists what its selector would choose.

    Args:
        artifacts: the kernels of the pack.
        decisions: the measurements in it.
        problems: the problems.
        gpu: the GPU to select for, with its model; None: that of this machine.
        objective: the objective.
        bits: the bits.

    Raises:
        UnsupportedProblemError: no kernel supports a problem.
    """
    with TemporaryDirectory() as folder:
        write_pack(path := Path(folder) / "kernels.pack", artifacts, decisions)
        registry = Registry(packs=[Pack.open(path)], gpu=gpu)
        select = partial(registry.select, bits=bits, objective=objective)
        return table_of(problems, select, registry.gpu.name, objective, bits)
