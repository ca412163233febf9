"""Tables with a header line: plain tables, and those of CUTLASS's profiler, hipblaslt-bench and rocblas-bench."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from gemmill.profiler.imports import bench, blas
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import Collector, Fields, Imported, LeftOut, TextFile, extent, shown
from gemmill.profiler.imports.lists import add_mapping, is_key

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
    """Problems of a table with any other columns; None if no header line contains m, n and k."""
    lines, into = file.lines, Collector(file.path)
    if (header := _names(lines)) is None:
        return None
    for number, row in _rows(lines, header):
        if row is None:
            columns = len(header.names)
            raise into.error(number, f"the row must have {columns} columns, as the header; complete or remove it")
        with into.at(number) as entry:
            add_mapping(entry, row)
    result = into.result()
    return result if result.problems or result.notes else None  # not a header line after all


def read_cutlass(file: TextFile) -> Imported | None:
    """Problems of a table of CUTLASS's profiler; None for others. It has several rows per problem, one for each
    kernel."""
    header, into = _names(file.lines), Collector(file.path)
    if header is None or not {"operation", "provider"} <= {*header.names}:
        return None
    seen: set[tuple[tuple[str, int | str], ...]] = set()
    for number, row in _rows(file.lines, header):
        if row is None:  # other output of the profiler
            continue
        with into.at(number) as entry:
            fields = _cutlass_problem(row)
            if (identity := tuple(sorted(fields.items()))) not in seen:
                entry.add(fields)
                seen.add(identity)
    return into.result()


def read_bench(file: TextFile) -> Imported | None:
    """Problems of a table of hipblaslt-bench or rocblas-bench; None for others. Rows begin with N, T or C; other lines
    are skipped."""
    header, into = _names(file.lines), Collector(file.path)
    if header is None or not {"transa", "transb"} <= {*header.names}:
        return None
    for number, row in _rows(file.lines, header):
        with into.at(number) as entry:
            if row is not None:
                entry.add(bench.problem(entry, row))
            elif re.match(r"\s*[NTC],[NTC],", file.lines[number - 1]):
                raise LeftOut(f"the row must have {len(header.names)} columns, as the header")
    return into.result()


def _cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line; csv.Error for invalid quotes."""
    if delimiter == " ":
        return line.split()
    return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, strict=True), [])]


class _Header(NamedTuple):
    start: int
    """Lines before it."""
    delimiter: str
    names: list[str]
    """Names of the columns in lower case."""


def _names(lines: list[str]) -> _Header | None:
    """The header line."""
    for index, line in enumerate(islice(lines, _LINES_BEFORE)):
        for delimiter in ",;\t ":
            if delimiter in line and (names := _named(line, delimiter)):
                return _Header(index, delimiter, names)
    return None


def _named(line: str, delimiter: str) -> list[str]:
    """The names in a header line, in lower case; empty unless they include m, n and k. With spaces between them, all
    must be names of columns that are read, since such a line could be a sentence."""
    cells = re.sub(r"^\s*\[\d+\]:", "", line).split(None if delimiter == " " else delimiter)
    names = [cell.strip().strip('"').lower() for cell in cells]
    is_header = {"m", "n", "k"} <= set(names) and (delimiter != " " or all(map(is_key, names)))
    return names if is_header else []


def _rows(lines: list[str], header: _Header) -> Iterator[tuple[int, Row | None]]:
    """The rows below the header with their line numbers; None for a row with another number of columns."""
    start, delimiter, names = header
    for number, line in enumerate(islice(lines, start + 1, None), start + 2):
        if not line.strip() or line.startswith("#") or _named(line, delimiter):
            continue
        try:
            cells = _cells(line, delimiter)
        except csv.Error:
            cells = []
        yield number, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


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
