"""Programs of ``examples/`` on a GPU, the larger ones at their smallest; the short ones check their results."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.programs import ON_GPU, Program, run_program

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("program", ON_GPU, ids=lambda program: program.file)
def test_a_program_does_its_job(program: Program, tmp_path: Path) -> None:
    for module in program.needs:
        pytest.importorskip(module)
    assert run_program(program, tmp_path)
