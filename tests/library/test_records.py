import json
import lzma
import os
import random
import subprocess
import sys
import threading
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import METHOD, Measurement, measurement_key, read_records

PROBLEM = GemmProblem(4096, 4096, 4096, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
MEASURED = Measurement(
    kernel="sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear",
    digest="ab" * 32,
    problem=PROBLEM,
    gpu="NVIDIA H200",
    driver="580.159",
    cuda="13.0",
    torch="2.11",
    gemmill="0.1.0",
    commit="c0ffee",
    time=datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC),
    stage="final",
    us=200.0,
    low_us=199.0,
    high_us=202.0,
    samples=32,
    baseline_us=190.0,
    verified=True,
    error=0.25,
    throttle=("software power cap",),
)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


extents = st.integers(0, 1 << 20)


@given(
    st.builds(
        Measurement,
        problem=st.builds(GemmProblem, m=extents, n=extents, k=extents, batch=extents),
        time=st.datetimes(timezones=st.just(UTC)),
        us=st.none() | st.floats(min_value=1e-3, max_value=1e9),
        error=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_a_record_survives_its_line_of_json(measurement: Measurement) -> None:
    line = measurement.model_dump_json()
    assert "\n" not in line
    assert Measurement.model_validate_json(line) == measurement


def test_a_record_from_before_launches_and_regimes_reads_as_one_of_bursts() -> None:
    line = MEASURED.model_copy(update={"launches": 6}).model_dump(mode="json")
    assert (line["launches"], line["regime"]) == (6, "burst")
    old = Measurement.model_validate_json(
        json.dumps({k: v for k, v in line.items() if k not in ("launches", "regime")})
    )
    assert (old.launches, old.regime, old.key) == (0, "burst", MEASURED.key)
    with pytest.raises(ValidationError, match="regime"):
        Measurement.model_validate_json(json.dumps(line | {"regime": "idle"}))


def test_rate_and_ratio_follow_from_the_times() -> None:
    assert MEASURED.tflops == pytest.approx(2 * 4096**3 / 200e-6 / 1e12)
    assert MEASURED.ratio == pytest.approx(0.95)
    failed = MEASURED.model_copy(update={"us": None})
    assert failed.tflops is None
    assert failed.ratio is None


def test_the_arithmetic_follows_from_the_kernel_and_its_slices() -> None:
    sliced = MEASURED.model_copy(update={"kernel": SPLIT_K.format("splitk"), "slices": 4})
    assert sliced.model_dump(mode="json")["arithmetic"] == "k16/4"
    line = sliced.model_dump_json().replace("k16/4", "k16")
    assert Measurement.model_validate_json(line).arithmetic == "k16/4", "what a file says is not believed"
    assert MEASURED.model_copy(update={"kernel": "cublas"}).arithmetic is None


def test_the_key_changes_with_cubin_problem_gpu_and_method_and_with_nothing_else() -> None:
    other_problem = GemmProblem(4096, 4096, 4096, 2, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
    for change in ({"digest": "cd" * 32}, {"problem": other_problem}, {"gpu": "NVIDIA H100"}, {"method": METHOD + 1}):
        assert MEASURED.model_copy(update=change).key != MEASURED.key
    for same in ({"kernel": "renamed"}, {"us": 1.0}, {"driver": "590"}, {"commit": ""}, {"gemmill": "0.2.0"}):
        assert MEASURED.model_copy(update=same).key == MEASURED.key
    assert MEASURED.key == measurement_key(MEASURED.digest, PROBLEM, MEASURED.gpu)
    slots = PROBLEM.but(batching="masked")
    keys = {measurement_key("", slots.but(expected_rows=rows), "NVIDIA H200") for rows in (None, 20, 1024)}
    assert len(keys) == 3, "records say of which expectation the choice was"
    stacked = PROBLEM.but(batching="grouped")
    keys = {measurement_key("", stacked.but(rows=rows), "NVIDIA H200") for rows in ("stored", "gathered")}
    assert len(keys) == 2


def test_fields_that_came_later_keep_the_keys_of_earlier_records() -> None:
    assert measurement_key("", GemmProblem(4096, 4096, 7168), "NVIDIA H200", method=3) == (
        "a5d7d6aaf7ef50dd73e87c39f82225d12cdad5985fb985306375460a7f9e4338"
    )


SPLIT_K = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x64x64_1x1_cooperative_s8_m8_{}_linear"


def test_numbers_of_slices_of_a_cubin_are_measured_each() -> None:
    keys = {MEASURED.model_copy(update={"kernel": SPLIT_K.format("splitk"), "slices": x}).key for x in (1, 4, 8)}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("how", "present", "slices"),
    [("k4split", "k4split", 4), ("k4fused", "k4fused", 4), ("k4anysplit", "splitk", 4), ("k4splitk", "splitk", 4)],
)
def test_times_of_a_kernel_that_was_replaced_are_not_those_of_the_other(how: str, present: str, slices: int) -> None:
    line = MEASURED.model_copy(update={"kernel": SPLIT_K.format(how)}).model_dump_json()
    found = Measurement.model_validate_json(line.replace('"slices":1,', ""))
    assert found.sliced == (SPLIT_K.format(present), slices)


def test_an_infinite_error_is_written_as_unknown() -> None:
    line = MEASURED.model_copy(update={"error": float("inf"), "verified": False}).model_dump_json()
    assert Measurement.model_validate_json(line).error is None


@pytest.mark.parametrize(
    "change", [{"us": 0.0}, {"us": float("nan")}, {"time": datetime(2026, 1, 1)}, {"stage": "x"}, {"colour": 1}]
)
def test_what_is_no_measurement_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Measurement.model_validate({**MEASURED.model_dump(), **change})


@pytest.mark.parametrize("field", ["us", "low_us", "baseline_us", "error", "watts"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_figures_that_are_no_numbers_are_refused_by_name(tmp_path: Path, field: str, value: str) -> None:
    line = json.dumps(json.loads(MEASURED.model_dump_json()) | {field: None})
    path = write(tmp_path, line.replace(f'"{field}": null', f'"{field}": {value}'))
    with pytest.raises(RecordError, match=rf":1:1: {field}: Input should be"):
        list(read_records(path))


def test_records_are_read_in_order(tmp_path: Path) -> None:
    later = MEASURED.model_copy(update={"us": 150.0})
    path = write(tmp_path, MEASURED.model_dump_json(), "", later.model_dump_json())
    assert list(read_records(path)) == [MEASURED, later]


def test_an_unfinished_line_is_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = MEASURED.model_dump_json()
    path = write(tmp_path, line, line[:100], line)
    assert list(read_records(path)) == [MEASURED, MEASURED]
    assert f"{path}:2: skipped an unfinished or damaged record" in caplog.text


def test_a_line_ends_where_json_lines_do_and_may_be_torn_inside_a_character(tmp_path: Path) -> None:
    odd = MEASURED.model_copy(update={"says": "a\u2028b \N{MICRO SIGN}"})
    line = odd.model_dump_json().encode()
    torn = line[: line.index("\N{MICRO SIGN}".encode()) + 1]
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join((line, torn, line)))
    assert list(read_records(path)) == [odd, odd]


def test_nothing_behind_what_is_compressed_is_passed_over(tmp_path: Path) -> None:
    line = MEASURED.model_dump_json().encode() + b"\n"
    path = tmp_path / "records.jsonl.xz"
    path.write_bytes(lzma.compress(line) + lzma.compress(line))
    assert list(read_records(path)) == [MEASURED, MEASURED]
    for behind in (line, lzma.compress(line)[:-8]):
        path.write_bytes(lzma.compress(line) + behind)
        with pytest.raises(RecordError, match="is not valid xz data"):
            list(read_records(path))


def test_a_wrong_record_is_an_error_with_its_place(tmp_path: Path) -> None:
    line = MEASURED.model_dump_json()
    path = write(tmp_path, line, line.replace('"us":200.0', '"us":-1'))
    with pytest.raises(RecordError, match=rf"{path}:2:1: us: "):
        list(read_records(path))


@pytest.mark.parametrize(
    ("change", "says"), [({"m": -4}, "m is -4"), ({"n": 10**30}, "n is 1000"), ({"epilogue": "d = foo("}, "epilogue: ")]
)
def test_a_problem_that_cannot_be_is_an_error_with_its_place(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    record = json.loads(MEASURED.model_dump_json())
    record["problem"] |= change
    path = write(tmp_path, json.dumps(record))
    with pytest.raises(RecordError, match=rf"{path}:1:1: problem: {says}"):
        list(read_records(path))


def test_a_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "name: projections")
    with pytest.raises(RecordError, match=f"{path} is a text file; it must be a records file, from `gemmill profile`"):
        list(read_records(path))


def test_the_first_faults_are_named_and_all_are_counted(tmp_path: Path) -> None:
    line = MEASURED.model_dump_json()
    wrong = line.replace('"us":200.0', '"us":-1')
    found = read_records(path := write(tmp_path, *[wrong] * 9, line))
    assert next(found) == MEASURED
    with pytest.raises(RecordError) as refused:
        next(found)
    *named, more = str(refused.value).split("\n")
    assert [fault.partition(": us: ")[0] for fault in named] == [f"{path}:{number}:1" for number in range(1, 6)]
    assert more == f"{path}: and 4 more faults"


def test_a_file_of_something_else_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = write(tmp_path, MEASURED.model_dump_json(), *["name: projections"] * 100_000)
    with pytest.raises(RecordError, match="1,000 faults; reading stopped here"):
        list(read_records(path))


def test_records_from_a_pipe_are_read(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "records.jsonl")
    content = (MEASURED.model_dump_json() + "\n").encode() * 200
    writer = threading.Thread(target=lambda: path.write_bytes(content))
    writer.start()
    assert list(read_records(path)) == [MEASURED] * 200
    writer.join()


MEMORY = 300 << 20
"""Bytes that reading may take beyond what the interpreter and its modules have."""
BOUNDED = """
import resource, sys
from pathlib import Path
from gemmill.library.errors import RecordError
from gemmill.library.records import read_records
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + int(sys.argv[2]),) * 2)
try:
    print(len(list(read_records(Path(sys.argv[1])))))
except RecordError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("piece", "says"),
    [
        (b"\n" * (1 << 20), "has more than 10,000,000 lines"),
        (b" " * (1 << 20), "the line has more than 1,048,576 bytes"),
        (b"[" * (1 << 20), "the line has more than 1,048,576 bytes"),
    ],
)
def test_what_decompresses_to_gigabytes_takes_no_memory(piece: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl.xz"
    path.write_bytes(lzma.compress(piece * 16, preset=1) * 256)
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, path, str(MEMORY)], capture_output=True, text=True, timeout=60, check=True
    )
    assert says in done.stdout, done.stderr


def test_a_dictionary_of_gigabytes_is_refused(tmp_path: Path) -> None:
    """What an xz file says that its decompressor must keep."""
    path = tmp_path / "records.jsonl.xz"
    line = lzma.compress(b"{}", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}])
    # The block's header: its size, flags, filter, bytes of properties, dictionary; padding; CRC-32.
    header = bytearray(line[12:24])
    assert header[:4] == b"\x02\x00\x21\x01"
    header[4] = 36  # 1 GiB
    header[8:] = zlib.crc32(header[:8]).to_bytes(4, "little")
    path.write_bytes(line[:12] + header + line[24:])
    with pytest.raises(RecordError, match="decompression needs more than 268,435,456 bytes"):
        list(read_records(path))


@pytest.mark.parametrize("special", ["/dev/zero", "/dev/null"])
def test_devices_are_refused_by_name(special: str) -> None:
    with pytest.raises(RecordError, match=f"{special}: cannot be read: is a device, not a regular file"):
        list(read_records(Path(special)))


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_files_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="cannot be read"):
        list(read_records(tmp_path / name))


SOUND = (MEASURED.model_dump_json() + "\n").encode() * 3
ODD = [b"", b"[" * 2000, b'{"a":', b"9" * 5000, b"1e999", b"NaN", b"\xff", b"\0", b"\n", b"null", b"-1", b'"\\u001b"']


@given(st.randoms(use_true_random=False), st.integers(1, 5), st.booleans())
def test_mutated_records_are_read_or_raise_record_errors(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random, edits: int, compressed: bool
) -> None:
    data = bytearray(SOUND)
    for _ in range(edits):
        start = chance.randrange(len(data))
        data[start : start + chance.choice([0, 1, 5, 40])] = chance.choice(ODD)
    content = bytes(data)
    if compressed:
        data = bytearray(lzma.compress(content) * 2)
        if edits > 1:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        content = bytes(data)
    folder = tmp_path_factory.mktemp("mutated")
    (path := folder / f"r.jsonl{'.xz' if compressed else ''}").write_bytes(content)
    with suppress(RecordError):
        assert len(list(read_records(path))) <= 12
