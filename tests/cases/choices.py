"""Cases of choice tables for every reader of packs: a table, and what it chooses for problems.

``choices.json`` has them as data; ``python -m tests.cases.choices`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from gemmill.library.arch import GPUS
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice_table import ChoiceTable
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.select.table_chooser import TableChooser, TableOfPack
from gemmill.runtime.select.table_making import table_of

FILE = Path(__file__).with_suffix(".json")
GPU = GPUS["NVIDIA H200"]
PROBLEMS = tuple(
    map(
        GemmProblem.from_text,
        (
            "16x4096x4096 bf16 tn",
            "2048x4096x4096 bf16 tn",
            "16x512x8192 bf16 tn",
            "16x4096x4096 bf16 tn a_align=2 b_align=2",
            "4096x512x20000 bf16 nt",
            "1024x2048x768 bf16 tn grouped=16",
            "512x2048x768 bf16 tn masked=8",
            "768x2048x4096 bf16 nt kgrouped=8",
            "64x1024x2880 bf16*e2m1 tn grouped=16",
            "64x1024x2048 bf16 tn epilogue='d = silu(gate) * up'",
            "64x256x1024 e4m3 tn batching=strided",
            "100x768x512 f16 tn c=f16",
        ),
    )
)
"""What the table is made for."""
ASKED = (
    *(f"{m}x4096x4096 bf16 tn" for m in (0, 1, 16, 17, 64, 65, 100, 257, 300, 1000, 2048, 5000, 16384, 20000, 100000)),
    *(f"{m}x4096x5120 bf16 tn" for m in (1, 700)),
    "16x1024x8192 bf16 tn",
    "16x8192x8192 bf16 tn",
    "16x1448x4096 bf16 tn",
    "16x4096x0 bf16 tn",
    "16x4096x4096x3 bf16 tn",
    *(f"300x4096x4096 bf16 tn {x}_align={align}" for x in "abd" for align in (2, 8)),
    "300x4096x4096 bf16 tn a_align=1",
    "4096x512x1 bf16 nt",
    "4096x512x8000 bf16 nt",
    "4096x512x300000 bf16 nt",
    "4000x512x8000 bf16 nt",
    *(f"{m}x2048x768 bf16 tn grouped=16" for m in (0, 7, 1025, 30000)),
    "1024x2048x768 bf16 tn grouped=24",
    "1024x2048x768 bf16 tn grouped=16 a_align=8",
    "512x2048x768 bf16 tn masked=8",
    "512x2048x768 bf16 tn masked=8 expected_rows=1",
    "9000x2048x768 bf16 tn masked=8 expected_rows=4000",
    "768x2048x100 bf16 nt kgrouped=8",
    "3000x1024x2880 bf16*e2m1 tn grouped=16",
    "64x1024x2048 bf16 tn epilogue='d = silu(gate) * up'",
    "64x1022x2048 bf16 tn epilogue='d = silu(gate) * up'",
    "64x1021x2048 bf16 tn epilogue='d = silu(gate) * up'",
    "9x256x1024 e4m3 tn",
    "9x256x1024 e4m3 tn promote=4",
    "700x768x512 f16 tn c=f16",
    "700x768x512 f16 tn",
    "700x768x512 f16 tn c=f16 accumulator=f16",
    "512x512x8192 bf16 tn symmetry=symmetric",
    "16x4096x4096 bf16 nn",
    "16x4096x4096 f32 tn",
)


@cache
def selector() -> Selector:
    """The selector over the kernels that are the best of the shipped ones for :data:`PROBLEMS`."""
    shipped = Registry(gpu=GPU)
    return Selector({choice.name: choice.config for choice in map(shipped.select, PROBLEMS)}, GPU)


def made() -> ChoiceTable:
    """The table of these kernels by the selector."""
    return table_of(PROBLEMS, selector().select, GPU.name, "sustained", "any")


@cache
def table() -> ChoiceTable:
    """The table in the file."""
    content = json.loads(FILE.read_text())["choices"]
    return ChoiceTable.read("choices", content, {kernel["name"] for kernel in content["kernels"]})


def chosen(chooser: TableChooser, problem: GemmProblem) -> dict[str, Any] | None:
    """What a chooser chooses for a problem; None where it refuses it."""
    try:
        choice = chooser.choose(problem, None)
    except UnsupportedProblemError:
        return None
    return {"kernel": choice.name, "slices": choice.slices, "swap_ab": choice.swap_ab}


def document(table: ChoiceTable) -> dict[str, Any]:
    """The content of a file for a table. A problem has all fields, after A has become the narrow operand."""
    chooser = TableChooser([TableOfPack(table, "cases.pack")])

    def cases() -> Iterator[dict[str, Any]]:
        for text in ASKED:
            problem = GemmProblem.from_text(text).with_narrow_a
            yield {"text": text, "problem": asdict(problem), "choice": chosen(chooser, problem)}

    return {"choices": table.to_json(), "cases": [*cases()]}


if __name__ == "__main__":
    FILE.write_text(json.dumps(document(made()), indent=1) + "\n")
