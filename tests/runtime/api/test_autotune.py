"""What autotuning found: kept in the store, read by the next process, and found out anew where it no longer holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.library.arch import GPUS
from gemmill.library.errors import StoreWarning
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api.autotune import autotuned
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Candidate, Choice
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import write_pack

PROBLEM = GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
GPU = "NVIDIA H200"


@pytest.fixture
def pack(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> Path:
    path = tmp_path / "kernels.pack"
    write_pack(path, artifacts)
    return path


def registry(pack: Path) -> Registry:
    return Registry(packs=[pack], store=pack.parent / "store", gpu=GPUS[GPU])


def slowest_first(candidates: list[Candidate]) -> list[float]:
    """The times of a GPU on which the model is wrong: the last candidate is the fastest."""
    return [float(len(candidates) - i) for i in range(len(candidates))]


def never(candidates: list[Candidate]) -> list[float]:
    raise AssertionError(f"{candidates} are timed again")


def test_the_fastest_of_the_best_is_kept_for_the_process_and_the_next(pack: Path) -> None:
    first = registry(pack)
    chosen = first.select(PROBLEM)
    choice = autotuned(first, PROBLEM, 2, None, GPU, slowest_first)
    assert (choice.kernel, choice.runners_up) == (chosen.runners_up[0][0], ((chosen.kernel, 2.0),))
    assert (choice.predicted_us, choice.source) == (1.0, "measured")
    assert choice.config == first.configs()[choice.name]
    assert (
        choice.reason == f"autotuned: the fastest of 2 kernels timed for this problem on {GPU}: 1.0 us; arithmetic k16"
    )
    assert autotuned(first, PROBLEM, 2, None, GPU, never) is choice
    assert first.select(PROBLEM) == chosen, "calls that do not ask for it do not depend on the store"

    code = (
        "import sys; from tests.runtime.api.test_autotune import *\n"
        "print(autotuned(registry(Path(sys.argv[1])), PROBLEM, 2, None, GPU, never).name)"
    )
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root), *filter(None, sys.path)))}
    command = [sys.executable, "-c", code, str(pack)]
    other = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, env=environment)
    assert other.stdout.split() == [choice.name]


def test_one_candidate_is_the_selectors(pack: Path) -> None:
    used = registry(pack)
    assert autotuned(used, PROBLEM, 1, None, GPU, slowest_first).name == used.select(PROBLEM).name


def test_an_answer_is_for_one_problem_gpu_bound_and_set_of_candidates(pack: Path) -> None:
    seen: list[list[Candidate]] = []

    def time(candidates: list[Candidate]) -> list[float]:
        seen.append(candidates)
        return slowest_first(candidates)

    def ask(problem: GemmProblem = PROBLEM, count: int = 2, sm_count: int | None = None, gpu: str = GPU) -> Choice:
        return autotuned(registry(pack), problem, count, sm_count, gpu, time)

    for _ in range(2):
        ask()
        ask(replace(PROBLEM, m=513))
        ask(count=1)
        ask(gpu="NVIDIA H100 80GB HBM3")
        assert "on 20 SMs" in ask(sm_count=20).reason
    assert [len(candidates) for candidates in seen] == [2, 2, 1, 2, 2]


def test_kernels_that_cannot_run_are_no_answer(pack: Path) -> None:
    first = registry(pack).select(PROBLEM)
    choice = autotuned(registry(pack), PROBLEM, 2, None, GPU, lambda _: [None, 7.0])
    assert (choice.kernel, choice.predicted_us, choice.runners_up) == (first.runners_up[0][0], 7.0, ())


@pytest.mark.parametrize("damage", ["empty", "cut", "other cubin", "other kernel", "other problem"])
def test_an_answer_that_no_longer_holds_is_found_out_anew(pack: Path, damage: str) -> None:
    best = autotuned(registry(pack), PROBLEM, 2, None, GPU, slowest_first).name
    (file,) = (pack.parent / "store" / "autotuned").iterdir()
    whole = file.read_bytes()
    if damage.startswith("other"):
        answer = json.loads(whole)
        if damage == "other problem":
            answer["problem"]["m"] += 1
        else:
            key, value = ("digest", "0" * 64) if damage == "other cubin" else ("kernel", "sm90a_none_of_ours")
            answer["kernels"][0][key] = value
        file.write_text(json.dumps(answer))
    else:
        file.write_bytes(b"" if damage == "empty" else whole[: len(whole) // 2])
    assert autotuned(registry(pack), PROBLEM, 2, None, GPU, lambda _: [1.0, 2.0]).name != best
    assert autotuned(registry(pack), PROBLEM, 2, None, GPU, never).name != best


def test_an_answer_under_a_former_name_of_a_field_holds(pack: Path) -> None:
    best = autotuned(registry(pack), PROBLEM, 2, None, GPU, slowest_first)
    (file,) = (pack.parent / "store" / "autotuned").iterdir()
    file.write_text(file.read_text().replace('"swap_ab"', '"swapped"'))
    assert autotuned(registry(pack), PROBLEM, 2, None, GPU, never) == best


def test_clearing_the_store_forgets_answers(pack: Path) -> None:
    autotuned(registry(pack), PROBLEM, 2, None, GPU, slowest_first)
    registry(pack).store.clear()
    assert autotuned(registry(pack), PROBLEM, 2, None, GPU, lambda _: [1.0, 2.0]).predicted_us == 1.0
    assert len([*(pack.parent / "store" / "autotuned").iterdir()]) == 1


def test_a_store_that_cannot_be_written_costs_only_the_memory_of_it(pack: Path) -> None:
    (pack.parent / "store").write_text("a file where the folder should be")
    used = registry(pack)
    with pytest.warns(StoreWarning, match="Not a directory"):
        choice = autotuned(used, PROBLEM, 2, None, GPU, slowest_first)
    assert autotuned(used, PROBLEM, 2, None, GPU, never) is choice


def test_measured_kernels_are_the_first_candidates(tmp_path: Path, artifacts: tuple[Artifact, ...]) -> None:
    slower = registry_with_decisions(tmp_path, artifacts, {}).select(PROBLEM).runners_up[0][0]
    used = registry_with_decisions(tmp_path, artifacts, {slower.name: 3.5})
    assert used.candidates(PROBLEM, 2)[0] == Candidate(slower, False, 3.5)
    assert all(candidate.us != 3.5 for candidate in used.candidates(PROBLEM, 2, 20)), "it was measured on all SMs"


def registry_with_decisions(folder: Path, artifacts: tuple[Artifact, ...], times: dict[str, float]) -> Registry:
    path = folder / "decided.pack"
    write_pack(path, artifacts, [Decision(problem=PROBLEM, gpu=GPU, kernel=name, us=us) for name, us in times.items()])
    return Registry(packs=[path], store=folder / "store", gpu=GPUS[GPU])
