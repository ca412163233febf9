"""What ``gemmill`` exports: typed for whoever checks their program against it, and short where it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.exporter import on_gpu
from tests.cases.manifests import ONE

import gemmill
from gemmill.library import errors

CONSUMER = '''\
from typing import assert_type

import gemmill


class Tensor:
    """As a library exports it."""

    def __dlpack__(self, *, stream: int | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


a, b, out = Tensor(), Tensor(), Tensor()
problem = gemmill.GemmProblem(m=64, n=64, k=64, a="bf16")
registry = gemmill.Registry(manifests=["bf16"], gpu="H200")
choice = registry.select(problem)
assert_type(choice, gemmill.Choice)
assert_type(choice.why, str)
assert_type(choice.slow_path, gemmill.SlowPath | None)
assert_type(choice.config, gemmill.GemmConfig)
assert_type(choice.problem, gemmill.GemmProblem | None)
assert_type(registry.candidates(problem, 2), list[gemmill.Candidate])
assert_type(registry.get(choice.name), gemmill.Artifact)
assert_type(registry.gpu, gemmill.Gpu)
assert_type(registry.packs, tuple[gemmill.Pack, ...])
assert_type(registry.store, gemmill.Store)
assert_type(gemmill.load_manifest("bf16"), gemmill.KernelSet)
plan = gemmill.plan(a, b, out=out, epilogue="d = acc + x[n]", x=Tensor(), registry=registry)
assert_type(plan, gemmill.Plan)
assert_type(plan.problem, gemmill.GemmProblem)
assert_type(plan.choice, gemmill.Choice | None)
plan.rebind(a=a, x=Tensor())
gemmill.matmul(a, b, out=out, c=out, alpha=2.0, stream=0, out_dtype="bf16", explain=True)
try:
    gemmill.grouped_matmul(a, b, Tensor(), out=out)
except gemmill.KeywordError as error:
    wrong: gemmill.OperandError | gemmill.ProblemError | TypeError = error

gemmill.matmul([[1.0]], b)  # error: arg-type
gemmill.matmul(a, b, out=3.0)  # error: arg-type
gemmill.matmul(a, b, kernel=5)  # error: arg-type
gemmill.matmul(a, b, accumulator="f46")  # error: arg-type
gemmill.array_matmul(a, b, out, Tensor(), betta=1.0)  # error: call-arg
gemmill.Registry(manifest=["bf16"])  # error: call-arg
registry.select("64x64x64")  # error: arg-type
gemmill.mul(a, b)  # error: attr-defined
'''


@pytest.mark.heavy
def test_a_program_is_checked_against_the_annotations(tmp_path: Path) -> None:
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=False, cwd=tmp_path)
    told = re.findall(r":(\d+): error: .*\[(.*)\]$", done.stdout, re.MULTILINE)
    found = {(int(number), code) for number, code in told}
    wanted = {
        (number, line.partition("# error: ")[2])
        for number, line in enumerate(CONSUMER.splitlines(), 1)
        if "# error: " in line
    }
    assert found == wanted, done.stdout + done.stderr


def test_all_errors_and_warnings_are_public() -> None:
    declared = {name for name, x in vars(errors).items() if isinstance(x, type) and issubclass(x, Exception)}
    assert declared <= {*dir(gemmill)}
    for name in declared:
        kind = getattr(gemmill, name)
        assert issubclass(kind, gemmill.GemmillWarning if name.endswith("Warning") else gemmill.GemmillError)


def test_what_is_printed_is_one_line_that_says_which(tmp_path: Path) -> None:
    (manifest := tmp_path / "one.yaml").write_text(ONE)
    registry = gemmill.Registry(manifests=[manifest], gpu="H200")
    choice = registry.select(gemmill.GemmProblem(m=512, n=512, k=512))
    assert repr(choice) == f"<Choice {choice.name} for 512x512x512 bf16 tn: {choice.reason}>"
    assert repr(registry) == "<Registry of one for NVIDIA H200>"
    assert repr(gemmill.Registry()) == "<Registry of the shipped manifests for the GPU of this machine>"
    with gemmill.plan(on_gpu((0, 64)), on_gpu((64, 64)), out=on_gpu((0, 64))) as plan:
        assert repr(plan) == "<Plan of 0x64x64 bf16 tt: D is empty, so there is no launch>"
    assert repr(plan) == "<Plan of 0x64x64 bf16 tt, closed>"
    assert repr(gemmill.load_manifest("bf16")).startswith("<KernelSet bf16 with presets ")


def test_the_errors_that_the_docs_explain_are_exported() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert len(names) >= 10
    for name in names:
        assert issubclass(getattr(gemmill, name), gemmill.GemmillError | gemmill.GemmillWarning), name
