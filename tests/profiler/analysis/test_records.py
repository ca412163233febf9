import logging
import os
import runpy
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemmill.library.errors import RecordError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.analysis import appender
from gemmill.profiler.analysis.appender import Appender

PROBLEM = GemmProblem(64, 64, 64, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")


def record(kernel: str) -> Measurement:
    return Measurement(
        kernel=kernel,
        digest="0" * 64,
        problem=PROBLEM,
        gpu="NVIDIA H200",
        driver="580.1",
        cuda="13.0",
        torch="2.11",
        gemmill="0",
        commit="",
        time=datetime.now(UTC),
        stage="final",
        us=1.5,
        low_us=1.25,
        high_us=2.0,
        samples=3,
        verified=True,
        error=0.9,
        throttle=("software power cap",),
    )


def kernels(path: Path) -> list[str]:
    return [measurement.kernel for measurement in read_records(path)]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "records.jsonl"
    with Appender(path) as appender:
        appender.append(record("first"))
    with Appender(path) as appender:
        appender.append(record("second"))
    assert kernels(path) == ["first", "second"]
    first = next(read_records(path))
    assert first == record("first").model_copy(update={"time": first.time})


@pytest.mark.parametrize("kept", [1, 30, -3, -1])
def test_a_killed_writers_half_line_costs_that_line_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    path = tmp_path / "records.jsonl"
    with Appender(path) as appender:
        appender.append(record("first"))
        whole = path.read_bytes()
        appender.append(record("torn"))
    line = path.read_bytes().removeprefix(whole)
    path.write_bytes(whole + line[:kept])
    torn = ["torn"] if kept == -1 else []  # nothing but the newline is missing
    with caplog.at_level(logging.WARNING):
        assert kernels(path) == ["first", *torn]
    assert bool(caplog.records) == (not torn)
    with Appender(path) as appender:
        appender.append(record("second"))
    assert kernels(path) == ["first", *torn, "second"]


@pytest.mark.parametrize("name", ["records.jsonl.xz", "records.parquet"])
def test_nothing_is_appended_to_a_compressed_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match=rf"{name}: cannot append to .* such as records\.jsonl$"):
        Appender(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_records_of_two_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    line = tmp_path / "line.json"
    line.write_text(record("theirs").model_dump_json())
    writer = (
        "import sys; from pathlib import Path; from gemmill.library.records import Measurement\n"
        "from gemmill.profiler.analysis.appender import Appender\n"
        "measurement = Measurement.model_validate_json(Path(sys.argv[2]).read_text())\n"
        "with Appender(Path(sys.argv[1])) as appender:\n"
        "    for _ in range(50): appender.append(measurement)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen([sys.executable, "-c", writer, path, line], env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert kernels(path) == ["theirs"] * 100


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"records\.jsonl: cannot write the file: "):
        Appender(tmp_path / "file" / "records.jsonl")


def test_a_full_disk_is_no_silent_loss() -> None:
    with Appender(Path("/dev/full")) as appender, pytest.raises(RecordError, match="cannot write the file: No space"):
        appender.append(record("lost"))


def test_a_repository_around_the_environment_is_not_the_sources(tmp_path: Path) -> None:
    """Their commits would tell sweeps apart that one gemmill made."""
    installed = tmp_path / ".venv" / "records.py"
    installed.parent.mkdir()
    shutil.copyfile(appender.__file__, installed)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@localhost"]
    (tmp_path / ".gitignore").write_text(".venv\n")
    for command in (["init", "-q"], ["add", ".gitignore"], ["commit", "-qm", "theirs"]):
        subprocess.run([*git, *command], check=True)
    source_commit = runpy.run_path(str(installed))["source_commit"]
    assert source_commit() == ""
    subprocess.run([*git, "add", "-f", str(installed)], check=True)
    assert len(source_commit().removesuffix("-dirty")) == 12
