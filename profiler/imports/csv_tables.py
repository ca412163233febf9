"""CSV tables with a header line: plain tables, and those of CUTLASS's profiler, hipblaslt-bench and rocblas-bench."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice

from gemmill.profiler.imports import blas
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import (
    Collector,
    Fields,
    Imported,
    LeftOut,
    TextFile,
    extent,
    shown,
)
from gemmill.profiler.imports.lists import add_mapping

_LINES_BEFORE = 100_000
"""Maximum number of lines before the header line, since programs print other output, too."""
_MAJORS: Mapping[str, Mapping[str, str]] = {
    "a": {"row": "k", "column": "mn"},
    "b": {"row": "mn", "column": "k"},
    "c": {"row": "n", "column": "m"},
    "d": {"row": "n", "column": "m"},
}
"""The contiguous extent of CUTLASS's layouts of M x K, K x N and M x N matrices."""

Row = Mapping[str, str]


def read(file: TextFile) -> Imported | None:
    """Problems of a table; None if no header line contains m, n and k."""
    path, lines = file.path, file.lines
    if (header := _names(lines)) is None:
        return None
    start, delimiter, names = header
    if "operation" in names and "provider" in names:
        return _cutlass(Collector(path, "a table of CUTLASS's profiler"), _rows(lines, start, delimiter, names))
    if {"transa", "transb"} <= set(names):
        return _bench(Collector(path, "a table of hipblaslt-bench or rocblas-bench"), lines, start, delimiter, names)
    into = Collector(path, "a table")
    for number, row in _rows(lines, start, delimiter, names):
        if row is None:
            raise into.error(number, f"the row must have {len(names)} columns, as the header; complete or remove it")
        with into.at(number):
            add_mapping(into, row, number)
    result = into.result()
    return result if result.problems or result.left_out else None  # not a header line after all


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line; csv.Error for invalid quotes."""
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, strict=True), [])]


def _names(lines: list[str]) -> tuple[int, str, list[str]] | None:
    """Index of the header line, the delimiter, and the names in lower case."""
    for index, line in enumerate(islice(lines, _LINES_BEFORE)):
        for delimiter in ",;\t":
            if delimiter in line and (names := _named(line, delimiter)):
                return index, delimiter, names
    return None


def _named(line: str, delimiter: str) -> list[str]:
    """The names in a header line, in lower case; empty unless they include m, n and k."""
    names = [cell.strip().strip('"').lower() for cell in re.sub(r"^\s*\[\d+\]:", "", line).split(delimiter)]
    return names if {"m", "n", "k"} <= set(names) else []


def _rows(lines: list[str], start: int, delimiter: str, names: list[str]) -> Iterator[tuple[int, Row | None]]:
    """The rows below the header with their line numbers; None for a row with another number of columns."""
    for number, line in enumerate(islice(lines, start + 1, None), start + 2):
        if not line.strip() or line.startswith("#") or _named(line, delimiter):
            continue
        try:
            cells = _cells(line, delimiter)
        except csv.Error:
            cells = []
        yield number, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


def _cutlass(into: Collector, rows: Iterator[tuple[int, Row | None]]) -> Imported:
    """Read a table of CUTLASS's profiler; it has several rows per problem, one for each kernel."""
    seen: set[tuple[tuple[str, int | str], ...]] = set()
    for number, row in rows:
        if row is None:  # other output of the profiler
            continue
        with into.at(number):
            fields = _cutlass_problem(row)
            if (identity := tuple(sorted(fields.items()))) not in seen:
                into.add(fields, number)
                seen.add(identity)
    return into.result()


def _cutlass_problem(row: Row) -> Fields:
    kind = row.get("operationkind", "gemm")
    if kind != "gemm":
        raise LeftOut(f"the operation {shown(kind)} is not supported; only gemm is")
    if "grouped" in row.get("gemm_kind", ""):
        raise LeftOut("a grouped GEMM; the table does not contain the groups")
    fields: dict[str, int | str] = {key: extent(key, row[key]) for key in ("m", "n", "k")}
    if row.get("batch_count"):
        fields["batch"] = extent("batch", row["batch_count"])
    with_c = blas.adds_c(row.get("beta"))
    for name, majors in _MAJORS.items():
        word, _, layout = row.get(name, row.get("c", "")).partition(":")  # D had no column before CUTLASS 3
        if not word or (name == "c" and (word == "void" or not with_c)):
            continue
        if layout not in majors:
            raise LeftOut(f"the layout of {name.upper()} is {shown(layout)}; it must be row or column")
        fields |= {name: dtype(word, name.upper()), f"{name}_major": majors[layout]}
    if row.get("accum"):
        fields["accumulator"] = dtype(row["accum"], "sums")
    return fields


def _bench(into: Collector, lines: list[str], start: int, delimiter: str, names: list[str]) -> Imported:
    """Read a table of hipblaslt-bench or rocblas-bench. Rows begin with N, T or C; other lines are skipped."""
    for number, row in _rows(lines, start, delimiter, names):
        if row is None:
            if re.match(r"\s*[NTC],[NTC],", lines[number - 1]):
                into.note(number, f"the row must have {len(names)} columns, as the header")
            continue
        with into.at(number):
            if row.get("grouped_gemm", "0") not in ("0", "false"):
                raise LeftOut("a grouped GEMM; the table does not contain the groups")
            extents = {key: row.get(key) for key in ("m", "n", "k")} | {"batch": row.get("batch_count")}
            fields = blas.problem(
                extents,
                transposed_a=blas.is_transposed("transA", row["transa"]),
                transposed_b=blas.is_transposed("transB", row["transb"]),
                types={name: row.get(f"{name}_type") for name in "abcd"},
                computes_in=row.get("compute_type", ""),
                beta=row.get("beta"),
            )
            if row.get("activation_type", "none") != "none" or row.get("bias_vector", "0") != "0":
                into.note(number, "activation and bias are ignored")
            into.add(fields, number)
    return into.result()
