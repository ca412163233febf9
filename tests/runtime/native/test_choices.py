"""libgemmill chooses by choice tables what Python chooses, and launches it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases import choices
from tests.runtime.native.cases import CHOSEN, UNCHOSEN
from tests.runtime.native.test_launches import UNSUPPORTED, of_c, recorded

from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.choice_table import ALL_EXTENTS, EXTENTS
from gemmill.runtime.select.table_chooser import value_of, word_of

pytestmark = pytest.mark.slow


def test_a_table_chooses_as_in_python(programs: Path, tmp_path: Path) -> None:
    """The shared cases, except what no C call can ask for: a symmetric D and sums in f16."""
    document = json.loads(choices.FILE.read_text())
    cases = []
    for case in document["cases"]:
        problem = GemmProblem.unchecked(**case["problem"])
        if problem.symmetry == "general" and problem.accumulator != "f16":
            aligns = [getattr(problem, f"{name}_align") for name in "abcd"]
            extents = [getattr(problem, name) for name in ALL_EXTENTS]
            described = {"word": word_of(problem), "extents": extents, "aligns": aligns}
            cases.append({**case, **described, "values": [value_of(problem, name) for name in EXTENTS]})
    (file := tmp_path / "choices.json").write_text(json.dumps({"choices": document["choices"], "cases": cases}))
    done = subprocess.run([programs / "choose_cases", file], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [case["choice"] for case in cases]
    assert len(cases) > 40


@pytest.mark.parametrize("way", ["plan", "calls"])
def test_choices_are_launched_as_in_python(programs: Path, small_pack: Path, tmp_path: Path, way: str) -> None:
    module = "tests.runtime.native.python_launches"
    (folder := tmp_path / "python").mkdir()
    command = (sys.executable, "-m", module, str(small_pack), "CHOSEN", "UNCHOSEN")
    expected = recorded(programs, folder, *command)
    ours = of_c(programs, small_pack, tmp_path, [*CHOSEN, *UNCHOSEN], way)
    for case in CHOSEN:
        assert ours[case.id] == expected[case.id], case.id
    for case in UNCHOSEN:
        assert [x[case.id][0]["status"] for x in (ours, expected)] == [UNSUPPORTED, UNSUPPORTED], case.id


def test_a_pack_without_a_table_needs_a_name(programs: Path, pack: Path, tmp_path: Path) -> None:
    ((error,),) = of_c(programs, pack, tmp_path, CHOSEN[:1], "plan").values()
    assert error["status"] == UNSUPPORTED
    assert "has no choice table" in error["message"]
