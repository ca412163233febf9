"""Programs of ``examples/`` that need no GPU do their job, and check it; tests/gpu/test_examples.py runs the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases.programs import EXAMPLES, ON_GPU, WITHOUT_GPU, Program, run_program


def test_each_has_a_line_and_is_tried() -> None:
    paths = (*EXAMPLES.glob("*.py"), *EXAMPLES.glob("short/*.py"))
    programs = {path.relative_to(EXAMPLES).as_posix() for path in paths}
    linked = re.findall(r"^\| \[\w+\.py\]\(((?:short/)?\w+\.py)\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert programs == {*linked}
    assert programs == {program.file for program in (*WITHOUT_GPU, *ON_GPU)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=program.file, marks=[pytest.mark.heavy] * bool(program.needs))
        for program in WITHOUT_GPU
    ],
)
def test_a_program_does_its_job(program: Program, tmp_path: Path) -> None:
    for module in program.needs:
        pytest.importorskip(module)
    assert run_program(program, tmp_path)
