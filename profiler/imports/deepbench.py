"""DeepBench's headers: C++ lists of ``std::make_tuple(m, n, k, a_t, b_t)``."""

from __future__ import annotations

import re
from pathlib import Path

from gemmill.profiler.imports import blas
from gemmill.profiler.imports.problems import Collector, Imported, LeftOut, shown, whole

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TUPLE = re.compile(r"make_tuple\s*\(([^()]{0,400})(\)?)")
_BOOLS = {"true": True, "false": False, "1": True, "0": False}


def looks_like_one(text: str) -> bool:
    """Whether a text is a header with such lists."""
    return "make_tuple" in text and "std::tuple" in text


def read(path: Path, text: str) -> Imported:
    """Problems of a header, column-major as cuBLAS takes them; comments are none of it."""
    into = Collector(path, "a header of DeepBench")
    code = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    line = last = 0
    for found in _TUPLE.finditer(code):
        line, last = line + code.count("\n", last, found.start()), found.start()
        if not found[2]:
            raise into.error(line + 1, "a tuple is not closed; write std::make_tuple(m, n, k, a_t, b_t)")
        with into.at(line + 1):
            values = [value.strip() for value in found[1].split(",")]
            if len(values) != 5 or values[3] not in _BOOLS or values[4] not in _BOOLS:
                raise LeftOut(f"a tuple of {len(values)}; a GEMM is m, n, k, a_t, b_t, and others are not read")
            if any(whole(value) is None for value in values[:3]):
                raise LeftOut(f"{shown(', '.join(values[:3]))}: m, n and k must be whole numbers")
            fields = blas.problem(
                dict(zip("mnk", values, strict=False)),
                transposed_a=_BOOLS[values[3]],
                transposed_b=_BOOLS[values[4]],
                types={},
            )
            into.add(fields, line + 1)
    return into.result()
