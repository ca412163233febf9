"""Measurement records as Parquet: many sweeps in one compressed file, which DuckDB and pandas can read directly.

A row is a measurement. Its columns are :data:`COLUMNS`: the fields of a record and those of its problem. Derived values
(key, arithmetic, rate, ratio) are computed when a record is read. Medians of final measurements have full precision, so
that tables made from them are reproducible; other times are float32. Screening measurements keep the median without
quartiles.

It needs PyArrow: gemmill's extra ``records``.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from gemmill.library.errors import RecordError
from gemmill.library.extras import install
from gemmill.library.files import open_given, publish
from gemmill.library.input.lines import MAX_BYTES, Faults
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement

_WORD, _COUNT, _SMALL, _REAL, _FULL = "word", "int32", "int16", "float32", "float64"
PROBLEM: Mapping[str, str] = {
    **dict.fromkeys(("m", "n", "k", "batch"), _COUNT),
    **dict.fromkeys(("a_dtype", "a_major", "b_dtype", "b_major", "accumulator", "d_dtype", "d_major"), _WORD),
    **dict.fromkeys(("c_dtype", "c_major"), _WORD),
    **dict.fromkeys(("a_align", "b_align", "c_align", "d_align"), _SMALL),
    **dict.fromkeys(("a_scale", "b_scale"), _WORD),
    "promote": _SMALL,
    **dict.fromkeys(("batching", "epilogue"), _WORD),
    "expected_rows": _COUNT,
    **dict.fromkeys(("rows", "symmetry"), _WORD),
}
"""The fields of a :class:`GemmProblem` and their column types."""
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("run", "gpu", "driver", "cuda", "torch", "gemmill", "commit"), _WORD),
    "method": _SMALL,
    "time": "time",
    **PROBLEM,
    **dict.fromkeys(("sizes", "kernel"), _WORD),
    "slices": _SMALL,
    "digest": _WORD,
    "chosen": "words",
    **dict.fromkeys(("holds", "stage"), _WORD),
    "us": _FULL,
    **dict.fromkeys(("low_us", "high_us", "baseline_us"), _REAL),
    **dict.fromkeys(("samples", "launches"), _COUNT),
    "regime": _WORD,
    "verified": "bool",
    "error": _REAL,
    "says": _WORD,
    **dict.fromkeys(("sm_mhz", "memory_mhz", "celsius"), _SMALL),
    "watts": _REAL,
    "throttle": "words",
}
"""Columns and their types. ``word``: a dictionary-encoded string; ``words``: a list of strings; ``time``: microseconds
in UTC. :class:`Measurement` describes all columns except those of :data:`PROBLEM`."""
_DEFAULTED = {
    *(name for name, field in Measurement.model_fields.items() if not field.is_required()),
    *(field.name for field in fields(GemmProblem) if field.default is not MISSING),
}
"""Columns that a file can lack."""
MAX_ROWS = 10_000_000
"""Most rows of a file."""
_MAX_THRIFT = 64 << 20
"""Most bytes, and most entries, of the metadata of a file."""
_BATCH = 1 << 14
"""Rows that are converted at a time."""


def read_parquet(path: Path) -> Iterator[Measurement]:
    """The measurements of a Parquet file, in order.

    Raises:
        RecordError: the file cannot be read or lacks columns, a row is not a valid record, or PyArrow is missing.
    """
    yield from _read(path, path)


def sweeps_of(path: Path) -> frozenset[str]:
    """The names of the sweeps in a Parquet file; RecordError as for :func:`read_parquet`."""
    with _opened(path, path) as file:
        return frozenset(file.read(columns=["run"], use_threads=False)["run"].unique().to_pylist())


def problems_of(path: Path) -> dict[str, set[GemmProblem]]:
    """The problems of each sweep in a Parquet file, without its measurements; RecordError as for
    :func:`read_parquet`."""
    problems: dict[str, set[GemmProblem]] = {}
    with _opened(path, path) as file:
        names = ["run", *(name for name in PROBLEM if name in file.schema_arrow.names)]
        rows = file.read(columns=names, use_threads=False).group_by(names, use_threads=False).aggregate([])
    for row in rows.to_pylist():
        run = row.pop("run")
        if isinstance(problem := _problem(row), ValueError):
            raise RecordError(f"{path}: sweep {run}: problem: {problem}")
        problems.setdefault(run, set()).add(problem)
    return problems


def read_sweeps(path: Path, sweeps: Collection[str]) -> Iterator[Measurement]:
    """The measurements of some sweeps of a Parquet file, in order; RecordError as for :func:`read_parquet`."""
    yield from _read(path, path, sweeps)


def _read(path: Path, source: Any, sweeps: Collection[str] | None = None) -> Iterator[Measurement]:
    """The measurements of ``source``, which PyArrow can open, for all or some sweeps; errors name ``path``."""
    problems: dict[tuple[Any, ...], GemmProblem | ValueError] = {}
    faults = Faults(path)
    row = 0
    for columns in _batches(path, source, sweeps):
        of_problem = {name: columns.pop(name) for name in PROBLEM if name in columns}
        parts = zip(*of_problem.values(), strict=True)
        for values, problem_fields in zip(zip(*columns.values(), strict=True), parts, strict=True):
            row += 1
            if problem_fields not in problems:
                problems[problem_fields] = _problem(dict(zip(of_problem, problem_fields, strict=True)))
            if isinstance(problem := problems[problem_fields], ValueError):
                faults.add(f"{path}: row {row}: problem: {problem}")
                continue
            try:
                yield Measurement.model_validate(dict(zip(columns, values, strict=True), problem=problem))
            except ValidationError as error:
                fault = error.errors(include_url=False, include_input=False)[0]
                field = ".".join(map(str, fault["loc"])) or "record"
                faults.add(f"{path}: row {row}: {field}: {fault['msg']:.300}")
    faults.check()


def _batches(path: Path, source: Any, sweeps: Collection[str] | None) -> Iterator[dict[str, list[Any]]]:
    """The columns of batches of rows. Missing columns whose fields have defaults are omitted, as in files of older
    versions."""
    compute = _arrow("compute", path)
    with _opened(path, source) as file:
        present = [name for name in COLUMNS if name in file.schema_arrow.names]
        # Without threads: if the system cannot start more threads, PyArrow ends the process.
        for batch in file.iter_batches(_BATCH, columns=present, use_threads=False):
            batch.validate(full=True)  # detects dictionary indices out of range
            if sweeps is not None:
                batch = batch.filter(compute.is_in(batch.column("run"), _arrow("lib", path).array([*sweeps])))
            yield {name: _values(batch.column(name)) for name in present}


@contextmanager
def _opened(path: Path, source: Any) -> Iterator[Any]:
    """Open a file of measurements, and check its size and columns. Errors of PyArrow become RecordError. PyArrow gets
    the open file, not its name."""
    arrow, lib = _arrow("parquet", path), _arrow("lib", path)
    try:
        with (
            open_given(path, MAX_BYTES) if source is path else nullcontext(source) as file,
            arrow.ParquetFile(
                file, thrift_string_size_limit=_MAX_THRIFT, thrift_container_size_limit=_MAX_THRIFT
            ) as parquet_file,
        ):
            _check(path, parquet_file)
            yield parquet_file
    except RecordError:
        raise
    except (lib.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise RecordError(f"{path}: cannot be read as Parquet: {reason}") from None


def _check(path: Path, file: Any) -> None:
    """Reject a file that does not contain measurements, or is too large."""
    types, meta = file.schema_arrow, file.metadata
    if meta.num_rows > MAX_ROWS or meta.num_row_groups > MAX_ROWS // 100:
        raise RecordError(f"{path}: has {meta.num_rows:,} rows in {meta.num_row_groups:,} groups; split it")
    taken = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    if not 0 <= taken <= MAX_BYTES:
        raise RecordError(f"{path}: has {taken:,} bytes uncompressed; the limit is {MAX_BYTES:,}: split it")
    for name, kind in COLUMNS.items():
        if name not in types.names:
            if name not in _DEFAULTED:
                reason = f"is not a file of measurements: column {name} is missing"
                raise RecordError(f"{path}: {reason}; write it with gemmill records pack")
        elif not _holds(path, types.field(name).type, kind):
            raise RecordError(f"{path}: column {name} has the type {types.field(name).type!s:.80}; it must be {kind}")


def _holds(path: Path, column_type: Any, kind: str) -> bool:
    """Whether a column type matches a kind of :data:`COLUMNS`."""
    types = _arrow("types", path)
    if types.is_dictionary(column_type):
        return kind == _WORD and _holds(path, column_type.value_type, kind)
    tests = {
        _WORD: (types.is_string, types.is_large_string),
        "words": (types.is_list, types.is_large_list),
        "time": (types.is_timestamp,),
        "bool": (types.is_boolean,),
        **dict.fromkeys((_COUNT, _SMALL), (types.is_integer,)),
        **dict.fromkeys((_REAL, _FULL), (types.is_floating,)),
    }
    if kind == "words" and tests[kind][0](column_type):
        return _holds(path, column_type.value_type, _WORD)
    return types.is_null(column_type) or any(test(column_type) for test in tests[kind])


def _values(column: Any) -> list[Any]:
    """The values of a column of a batch. Dictionary entries are converted once."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    words = column.dictionary.to_pylist()
    return [None if place is None else words[place] for place in column.indices.to_pylist()]


def write_parquet(path: Path, measurements: Iterable[Measurement]) -> int:
    """Write measurements to a file and return their number. The data is read back and compared before an existing file
    is replaced.

    Raises:
        RecordError: there are no measurements, the data read back differs from :func:`as_kept`, or PyArrow is missing.
        OSError: the file cannot be written.
    """
    measurements = list(measurements)
    content = _encoded(path, measurements)
    for row, (read, measurement) in enumerate(zip(_read(path, content), measurements, strict=True), 1):
        if read != as_kept(measurement):
            raise RecordError(
                f"{path}: not written, because row {row} would be read as {read} instead of {measurement}; keep the "
                "source files"
            )
    publish(path, [content.to_pybytes()])
    return len(measurements)


def _encoded(path: Path, measurements: Sequence[Measurement]) -> Any:
    """The bytes of a Parquet file, in PyArrow's memory."""
    pa, arrow = _arrow("lib", path), _arrow("parquet", path)
    types = {
        _WORD: pa.dictionary(pa.int32(), pa.string()),
        "words": pa.list_(pa.string()),
        "time": pa.timestamp("us", "UTC"),
        "bool": pa.bool_(),
        **{name: getattr(pa, name)() for name in (_COUNT, _SMALL, _REAL, _FULL)},
    }
    if not measurements:
        raise RecordError(f"{path}: there are no measurements to write; pass files with measurements")
    batches = []
    for first in range(0, len(measurements), _BATCH):
        rows = [_row(m) for m in measurements[first : first + _BATCH]]
        arrays = [pa.array([row[name] for row in rows], types[kind]) for name, kind in COLUMNS.items()]
        batches.append(pa.RecordBatch.from_arrays(arrays, list(COLUMNS)))
    table = pa.Table.from_batches(batches).unify_dictionaries()
    sink = pa.BufferOutputStream()
    arrow.write_table(
        table,
        sink,
        row_group_size=len(table),
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name, kind in COLUMNS.items() if kind not in (_REAL, _FULL, "bool")],
        column_encoding={name: "BYTE_STREAM_SPLIT" for name, kind in COLUMNS.items() if kind in (_REAL, _FULL)},
    )
    return sink.getvalue()


def as_kept(measurement: Measurement) -> Measurement:
    """A measurement as it is after writing and reading."""
    row = _row(measurement)
    reals = {name: row[name] and _rounded(row[name]) for name, kind in COLUMNS.items() if kind == _REAL}
    return measurement.model_copy(update=reals | {"us": row["us"]})


def _problem(values: Mapping[str, Any]) -> GemmProblem | ValueError:
    """The problem with these fields, or the error."""
    problem = GemmProblem.unchecked(**values)
    try:
        problem.check()
    except (AttributeError, TypeError, ValueError) as error:
        return ValueError(error)
    return problem


def _row(measurement: Measurement) -> dict[str, Any]:
    problem = measurement.problem
    row = {name: getattr(problem if name in PROBLEM else measurement, name) for name in COLUMNS}
    if measurement.stage != "final":
        row |= {"us": row["us"] and _rounded(row["us"]), "low_us": None, "high_us": None}
    return row


def _rounded(real: float) -> float:
    """A number rounded to float32."""
    return float(np.float32(real))


def _arrow(module: str, path: Path) -> Any:
    """A module of PyArrow, which has no type stubs."""
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise RecordError(f"{path}: Parquet needs PyArrow ({error}); {install('records')}") from None
