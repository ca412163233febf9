"""The table of functions: every row is whole, and the page that says how to add one does."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmill.emitters import include_path
from gemmill.library.epilogues.evaluation import evaluate
from gemmill.library.epilogues.function_table import FUNCTIONS, Arrays, Function
from gemmill.library.epilogues.parse import parse

ROOT = Path(__file__).parents[3]
HEADER = include_path() / "gemmill" / "epilogue" / "math.cuh"
PAGE = (ROOT / "docs" / "epilogues.md").read_text()
REQUIRED = [name for name, x in inspect.signature(Function).parameters.items() if x.default is x.empty]
X = np.concatenate([-np.geomspace(30, 1e-3, 500), np.geomspace(1e-3, 30, 500)])
POSITIVE = ("log", "sqrt", "rsqrt")
"""Functions of positive numbers."""


def arguments(row: Function) -> list[Any]:
    x = abs(X) if row.name in POSITIVE else X
    return [x > 0 if kind == "condition" else x + at for at, kind in enumerate(row.takes)]


@pytest.mark.parametrize("column", REQUIRED)
def test_a_row_that_lacks_a_column_is_refused_by_its_name(column: str) -> None:
    assert {"name", "takes", "cpp", "array", "ulps", "registers", "aten"} == {*REQUIRED}
    columns = {name: getattr(FUNCTIONS["exp"], name) for name in REQUIRED if name != column}
    with pytest.raises(TypeError, match=column):
        Function(**columns)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns_of_a_row_are_what_they_should_be(name: str) -> None:
    row, header = FUNCTIONS[name], HEADER.read_text()
    for function in re.findall(r"math::(\w+)", row.cpp):
        assert re.search(rf"\b{function}\(", header), f"cpp: math.cuh has no device function {function}"
    for dtype in row.short:
        assert f"{name}<gemmill::{dtype}>(float x)" in header, f"short: math.cuh has no {name}<gemmill::{dtype}>"
    value = row.array(Arrays(np), *arguments(row))
    assert value.shape == X.shape, "array: not one value for each element"
    assert (value.dtype == bool) == (row.gives == "condition"), "gives: not the type of array's result"
    assert np.isfinite(value).all(), "array: not finite"
    if row.gives == "number" and len(row.takes) == 1 and row.spread is None:
        steps = np.diff(value) * np.sign(np.diff(arguments(row)[0]))
        assert (steps >= 0).all() or (steps <= 0).all(), "spread: missing, and array is not monotone"
    assert row.ulps >= 0, "ulps: negative"
    if row.keeps_integers:
        whole = row.array(Arrays(np), *(np.round(x) if x.dtype != bool else x for x in arguments(row)))
        assert (whole == np.round(whole)).all(), "keeps_integers: it does not"
    assert all(re.fullmatch(r"\w+\.(default|Tensor|Scalar|self)", x) for x in row.aten), "aten: not packet.overload"
    listed = PAGE[PAGE.index("## Functions") : PAGE.index("### Add a function")]
    assert row.symbol or re.search(rf"\b{name}\b", listed), f"docs/epilogues.md does not list {name}"
    for text in row.decompositions:
        inside = {"x": X, "acc": X}
        made = evaluate(parse(f"t = {text}; d = t + 0 * acc"), inside, np)["d"].value
        assert np.allclose(made, value, rtol=1e-4, atol=1e-6), f"decompositions: {text} is not {name}"


ADDED = """
import numpy as np
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.evaluation import evaluate
from gemmill.library.epilogues.parse import encode, parse
from gemmill.runtime.compile.compiler import Compiler

text = "d = softsign(acc + bias[n])"
name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_" + encode(text)
config = parse_name(name)
source = emit(config)
assert "math::softsign(math::add(acc, column.bias_))" in source.text
found = evaluate(parse(text), {"acc": np.array([[-3.0, 1.0]]), "bias": np.zeros(2)}, np)["d"]
assert found.value.tolist() == [[-0.75, 0.5]] and (found.error > 0).all() and (found.error < 1e-6).all()
Compiler().compile(source, config)
"""


@pytest.mark.slow
def test_the_page_adds_a_function_that_compiles(tmp_path: Path) -> None:
    section = PAGE[PAGE.index("### Add a function") :]
    row, device = re.findall(r"```(?:python|{code-block} cuda)\n(.*?)```", section, re.DOTALL)[:2]
    for folder in ("library", "emitters", "runtime", "manifests", "src"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    table = tmp_path / "library" / "epilogues" / "function_table.py"
    table.write_text(table.read_text().replace("_ROWS = (\n", f"_ROWS = (\n{row},", 1))
    header = tmp_path / HEADER.relative_to(HEADER.parents[4])
    end = "}  // namespace gemmill::math"
    header.write_text(header.read_text().replace(end, f"{device}\n{end}"))
    environment = {"PYTHONPATH": str(tmp_path / "src"), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", ADDED]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
