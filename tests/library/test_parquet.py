"""Records as Parquet: what is written is read, and what is no file of records is an error."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library.test_records import MEASURED

from gemmill.library.errors import RecordError
from gemmill.library.parquet import COLUMNS, PROBLEM, as_kept, read_parquet, write_parquet
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records

extents = st.integers(1, 1 << 20)
measurements = st.builds(
    Measurement,
    problem=st.builds(
        GemmProblem,
        m=extents,
        n=extents,
        k=extents,
        batch=extents,
        a_align=st.sampled_from((1, 16)),
        epilogue=st.just("linear"),
    )
    | st.builds(GemmProblem, m=extents, n=extents, k=extents, batching=st.just("masked"), expected_rows=st.just(1)),
    time=st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    method=st.integers(0, 100),
    samples=st.integers(0, 1 << 30),
    us=st.none() | st.floats(1e-3, 1e9),
    low_us=st.none() | st.floats(1e-3, 1e9),
    baseline_us=st.none() | st.floats(1e-3, 1e9),
    high_us=st.none(),
    error=st.none() | st.floats(0, 1e30),
    watts=st.none() | st.floats(0, 1e3),
    sm_mhz=st.none() | st.integers(0, 4000),
    memory_mhz=st.none(),
    celsius=st.none() | st.integers(-10, 100),
)


@given(st.lists(measurements, min_size=1, max_size=5))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, given: list[Measurement]) -> None:
    path = tmp_path_factory.mktemp("records") / "a.parquet"
    assert write_parquet(path, given) == len(given)
    found = list(read_records(path))
    assert found == [as_kept(m) for m in given]
    write_parquet(path, found)
    assert list(read_parquet(path)) == found, "nothing is lost twice"


def test_every_field_of_a_measurement_is_a_column() -> None:
    problem = GemmProblem.__dataclass_fields__
    assert list(PROBLEM) == list(problem)
    assert {*COLUMNS} - {*problem} == {*Measurement.model_fields} - {"problem"}


def test_rows_that_are_no_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [MEASURED, MEASURED])
    table = pq.read_table(path)

    def with_column(name: str, *values: object) -> None:
        place = table.schema.get_field_index(name)
        pq.write_table(table.set_column(place, name, pa.array(values)), path)
        list(read_records(path))

    with pytest.raises(RecordError, match=r"a.parquet: row 2: us: Input should be greater than or equal to 0.001"):
        with_column("us", 200.0, -1.0)
    with pytest.raises(RecordError, match=r"a.parquet: row 1: problem: m is -4"):
        with_column("m", -4, 4096)
    with pytest.raises(RecordError, match=r"a.parquet: row 2: problem: "):
        with_column("k", 4096, None)
    pq.write_table(table.drop_columns(["gpu"]), path)
    with pytest.raises(RecordError, match="is not a file of measurements: column gpu is missing"):
        list(read_records(path))
    pq.write_table(table, path, compression="none", use_dictionary=False)
    damaged = path.read_bytes().replace(MEASURED.kernel.encode(), b"\xff" * len(MEASURED.kernel))
    path.write_bytes(damaged)
    with pytest.raises(RecordError, match=r"a.parquet: "):
        list(read_records(path))
    path.write_bytes(b"PAR1 of something else")
    with pytest.raises(RecordError, match="cannot be read as Parquet"):
        list(read_records(path))
    with pytest.raises(RecordError, match="cannot be read as Parquet"):
        list(read_records(tmp_path / "none.parquet"))
    with pytest.raises(RecordError, match="no measurements to write"):
        write_parquet(path, [])


def test_columns_of_other_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [MEASURED])
    table = pq.read_table(path)
    for name, values, says in (
        ("m", pa.array([[4096]]), r"column m has the type list<.*>; it must be int32"),
        ("kernel", pa.array([7]), "column kernel has the type int64; it must be word"),
        ("us", pa.array(["200"]), "column us has the type string; it must be float64"),
        ("throttle", pa.array([[7]]), r"column throttle has the type list<.*>; it must be words"),
    ):
        pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), path)
        with pytest.raises(RecordError, match=says):
            list(read_records(path))


def test_more_rows_than_can_be_meant_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Eleven million equal rows, a few KB of file."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"m": pa.array(np.zeros(11_000_000, np.int32))}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(RecordError, match="has 11,000,000 rows in 11 groups; split it"):
        list(read_records(path))


def test_columns_that_came_later_have_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, [MEASURED])
    pq.write_table(pq.read_table(path).drop_columns(["holds", "chosen", "batching", "celsius"]), path)
    assert list(read_records(path)) == [as_kept(MEASURED)]


@pytest.mark.slow
def test_without_pyarrow_it_is_said_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from gemmill.library.records import read_records\n"
        f"list(read_records(Path({str(tmp_path / 'a.parquet')!r})))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "gemmill's extra 'records'" in result.stderr.splitlines()[-1]


HOSTILE = """
import random, sys
from contextlib import suppress
from pathlib import Path
from gemmill.library.errors import RecordError
from gemmill.library.records import read_records
path, chance = Path(sys.argv[1]), random.Random(sys.argv[2])
sound = path.read_bytes()
for _ in range(int(sys.argv[3])):
    data = bytearray(sound)
    for _ in range(chance.randrange(1, 5)):
        anywhere, near_the_end = chance.randrange(len(data)), chance.randrange(max(0, len(data) - 2000), len(data))
        start = chance.choice([anywhere, near_the_end])
        match chance.randrange(3):
            case 0: data[start] ^= 1 << chance.randrange(8)
            case 1: del data[start : start + chance.choice([1, 30])]
            case 2: data[start : start + 4] = chance.choice([b"\\xff" * 4, b"\\0" * 4, b"\\xff\\xff\\xff\\x7f"])
    path.write_bytes(data)
    with suppress(RecordError):
        list(read_records(path))
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", [200, pytest.param(20_000, marks=pytest.mark.heavy)])
def test_mutated_files_are_read_or_raise_record_errors(files: int, tmp_path: Path) -> None:
    """In a process of its own: what reads them is not ours."""
    path = tmp_path / "a.parquet"
    write_parquet(path, [MEASURED, MEASURED.model_copy(update={"us": 150.0, "run": "b"})] * 20)
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, path, "seed", str(files)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr[-3000:]
