"""A dtype is one row, and each table that must know it does."""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import pytest

import gemmill
from gemmill.emitters import include_path
from gemmill.emitters.peak_rate import MEASURED_DTYPES
from gemmill.library.dtypes import DTYPES, FP8, INT8, NAMES, DTypeName, find_dtype
from gemmill.library.epilogues.function_table import FUNCTIONS
from gemmill.library.families import gemv, mma, simt
from gemmill.library.families.shared_rules import D_DTYPES
from gemmill.library.families.wgmma import operand_rules

PACKAGE = Path(gemmill.__file__).parent
TYPES_HEADER = (include_path() / "gemmill" / "types.cuh").read_text()
SCHEMA = json.dumps(json.loads((PACKAGE / "manifests" / "schema.json").read_text()))
HELD = [t.name for t in DTYPES.values() if t.stored_as is None]
"""Dtypes that tensors have of their own."""
MULTIPLIED = [t.name for t in DTYPES.values() if not t.is_scale and t.name != "s32"]
"""Dtypes of A and B."""
TABLES: Mapping[str, tuple[Iterable[str], Iterable[str]]] = {
    "DTypeName of library/dtypes.py": (get_args(DTypeName), DTYPES),
    "the structs of emitters/include/gemmill/types.cuh": (
        re.findall(r"^(?:struct|using) (\w+)", TYPES_HEADER, re.MULTILINE),
        [t.name for t in DTYPES.values() if t.cpp.startswith("gemmill::")],
    ),
    "manifests/schema.json (python -m gemmill.library.manifest.schema)": (re.findall(r'"(\w+)"', SCHEMA), DTYPES),
    "the families' types of A and B (ACCUMULATORS)": (
        [x for table in (operand_rules.ACCUMULATORS, mma.ACCUMULATORS) for pair in table for x in pair]
        + [*simt.FLOATS, "f64"],
        MULTIPLIED,
    ),
    "ACCUMULATORS of library/families/gemv.py": (gemv.ACCUMULATORS, (*FP8, *INT8)),
    "D_DTYPES of library/families/arithmetic.py": ({x for to in D_DTYPES.values() for x in to}, (*FP8, *INT8)),
    "conversions of library/epilogues/function_table.py": (FUNCTIONS, (*FP8, *INT8)),
    "XLA's codes (xla)": ([t.name for t in DTYPES.values() if t.xla is not None], HELD),
    "PyTorch's codes (aten)": ([t.name for t in DTYPES.values() if t.aten is not None], {*HELD} - {"ue8m0"}),
    "peak rates that are measured, or those of the compatible type (emitters/peak_rate.py)": (
        [t.name for t in DTYPES.values() if (t.compatible or t.name) in MEASURED_DTYPES],
        ("bf16", "f16", "tf32", *FP8, *INT8),
    ),
}
"""Where, what is there, and what must be."""


@pytest.mark.parametrize("table", TABLES)
def test_tables_know_all_types_that_they_must(table: str) -> None:
    has, wanted = TABLES[table]
    missing = {*wanted} - {*has}
    assert not missing, f"{', '.join(sorted(missing))} must be in {table}"


BY_NAME = {
    "library/layouts/atoms.py": "CuTe's atoms, in the words of CUTLASS and PTX",
    "library/anatomy/anatomy.py": "the same",
    "library/dtypes.py": "the table",
    "library/oracle/elements.py": "formats of each type, bit by bit",
    "profiler/baselines/cublas.py": "pairs that cuBLASLt multiplies",
}
"""Modules that name the second type of a kind, and why; others take FP8 and INT8, or ask a column."""


def test_no_other_module_lists_types_of_eight_bits() -> None:
    found = set()
    for layer in ("library", "emitters", "runtime", "profiler", "cli", "service"):
        for path in sorted((PACKAGE / layer).rglob("*.py")):
            constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            if any(isinstance(x, str) and re.fullmatch(r"e5m2|E5M2|E4M3\|E5M2.*", x) for x in constants):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found <= {*BY_NAME}


def test_names_of_others_mean_one_type_each() -> None:
    words = [name for t in DTYPES.values() for name in (t.name, *t.names.split())]
    assert len({*words}) == len(words)
    assert (find_dtype("torch.float8_e5m2"), find_dtype("bfloat16"), find_dtype("h")) == ("e5m2", "bf16", None)
    assert NAMES["int8"] == "s8"
    assert all(t.least < t.largest for t in DTYPES.values() if not t.is_scale)
