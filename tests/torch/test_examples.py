"""Programs of ``examples/`` run without a GPU, and print what they are to show."""

from __future__ import annotations

import re

import pytest
from tests.cases.programs import EXAMPLES, Program, run_program

pytest.importorskip("torch")

NUMBER = r"[\d.]+(?:e[+-]\d+)?"


def printed(name: str, arguments: str = "") -> str:
    return run_program(Program(f"{name}.py", f"--device cpu --tiny {arguments}"), EXAMPLES, OMP_NUM_THREADS="1")


def test_weights_are_converted() -> None:
    text = printed("fp8_inference")
    rows = re.findall(rf"^(\S[\w ]*\w) +({NUMBER}) MB +({NUMBER}) from", text, re.MULTILINE)
    kept = {name: (float(size), float(error)) for name, size, error in rows}
    assert [*kept] == ["bf16", "e4m3_rows", "e4m3_blocks", "u4_g128"]
    assert kept["u4_g128"][0] < 0.4 * kept["bf16"][0]
    assert max(kept["e4m3_rows"][0], kept["e4m3_blocks"][0]) < 0.6 * kept["bf16"][0]
    assert 0 < max(kept["e4m3_rows"][1], kept["e4m3_blocks"][1]) < 0.05
    assert 0 < kept["u4_g128"][1] < 0.25


@pytest.mark.slow
def test_a_gpt_learns_compiled() -> None:
    losses = [[float(x) for x in re.findall(r"\d\.\d{3}", line)] for line in printed("train_nanogpt").splitlines()[:2]]
    assert losses[0][-1] < losses[0][0] - 0.8  # batches of 64 bytes of the docs, which change
    assert losses[1] == pytest.approx(losses[0], abs=0.1)


@pytest.mark.slow
def test_a_llama_is_fine_tuned() -> None:
    pytest.importorskip("transformers")
    text = printed("finetune_llama", "--steps 20")  # of the docs, which change: one batch says little
    first, last, apart = map(float, re.search(rf"from ({NUMBER}) to ({NUMBER}), at most ({NUMBER})", text).groups())  # type: ignore[union-attr]
    assert last < first - 0.5
    assert apart < 0.1


@pytest.mark.slow
def test_a_llama_generates() -> None:
    pytest.importorskip("transformers")
    text = printed("llama_generate", "--tokens 8")
    assert [float(x) < 0.03 for x in re.findall(rf"logits are ({NUMBER}) from", text)] == [True, True]
    assert int(re.search(r"(\d+)% of the tokens", text)[1]) > 30  # type: ignore[index]
