"""Worker processes that answer, die, hang and end; and where the code runs from: the working directory, an archive."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gemmill
from gemmill.library.errors import InstallationError
from gemmill.runtime import workers
from gemmill.runtime.workers import Worker, WorkerError, WorkerPool

BEFORE_US = {"importlib", "types", "sitecustomize", "usercustomize"}
"""What ``python -m`` itself imports before it comes to a package, from the working directory if that has it."""
NAMES = (
    *("threading", "numpy", "json", "re", "yaml", "torch", "cuda", "queue", "typing", "string", "types", "struct"),
    *("importlib", "subprocess", "multiprocessing", "pydantic", "filelock", "platformdirs", "elftools", "triton"),
    *("sitecustomize", "usercustomize", "gemmill"),
)


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environ}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder of modules that say so when they are imported."""
    folder = tmp_path / "strange"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'hits')!r}, 'a').write('{name}\\n')\nraise SystemExit\n"
        )
    return folder


def hits(folder: Path) -> list[str]:
    file = folder.with_name("hits")
    return file.read_text().split() if file.exists() else []


@pytest.mark.parametrize(
    "command",
    [
        ("store", "list"),
        ("bench", "--mnkl", "64,64,64"),
        pytest.param(("select", "--mnkl", "64,64,64"), marks=pytest.mark.heavy),
    ],
)
def test_the_command_imports_nothing_from_the_working_directory(strange: Path, command: tuple[str, ...]) -> None:
    run(Path(sys.executable).with_name("gemmill"), *command, cwd=strange)
    assert not hits(strange)


def test_the_module_imports_nothing_from_the_working_directory(strange: Path) -> None:
    for name in (*BEFORE_US, "gemmill"):
        (strange / f"{name}.py").unlink()
    done = run(sys.executable, "-m", "gemmill", "select", "--mnkl", "64,64,64", cwd=strange)
    assert not hits(strange)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("paths", [[""], ["", "relative"], []])
def test_child_processes_import_nothing_from_the_working_directory(
    strange: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    code = "import importlib, json, queue, gemmill, sys; print(sys.argv[1:], gemmill.__file__, '' in sys.path)"
    done = run(*workers.command(code, "7", "x y"), cwd=strange)
    assert not hits(strange)
    assert done.stdout.split() == ["['7',", "'x", "y']", gemmill.__file__, "False"], done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("emit", "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"),
        pytest.param(("list",), marks=pytest.mark.heavy),
    ],
)
def test_an_archive_is_told_to_be_unpacked(command: tuple[str, ...], tmp_path: Path) -> None:
    archive = tmp_path / "packed.zip"
    package = Path(gemmill.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for folder, below, names in os.walk(package, followlinks=True):
            below[:] = [name for name in below if name not in ("__pycache__", "results", "include")]
            for name in names:
                path = Path(folder) / name
                file.write(path, path.relative_to(package.parent))
    done = run(sys.executable, "-m", "gemmill", *command, cwd=tmp_path, PYTHONPATH=str(archive))
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: gemmill is imported from the archive {archive}, "), done.stderr
    assert "unpack the zip" in done.stderr


def test_data_that_did_not_come_along_is_named(tmp_path: Path) -> None:
    from gemmill.library.files import shipped

    with pytest.raises(InstallationError, match=r"lacks its data files.*PyInstaller"):
        shipped(tmp_path / "manifests")


BODY = """
import os, signal, time

def serve(parent):
    parent.end_with()
    while True:
        message = parent.receive()
        if message == b"die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if message == b"leave":
            raise SystemExit(3)
        if message == b"hang":
            time.sleep(600)
        parent.send(message * 3)
"""


@pytest.fixture
def body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "worker_body.py").write_text(BODY)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return "worker_body"


def test_a_worker_answers_and_its_end_names_the_item(body: str) -> None:
    for message, how, status in (
        (b"die", "died (SIGSEGV)", -11),
        (b"leave", "died (exit status 3)", 3),
        (b"hang", "took longer than 0.5 s and was stopped", None),
        (b"x" * 40, "sent more than 100 bytes and was stopped", None),
    ):
        worker = Worker(body)
        assert worker.call("first", b"ab", 60) == b"ababab"
        with pytest.raises(WorkerError, match=re.escape(how)) as lost:
            worker.call("second", message, 0.5 if message == b"hang" else 60, 100)
        assert (lost.value.item, lost.value.status) == ("second", status)
        assert not worker.is_alive


def test_threads_share_workers_and_wait_where_no_more_can_be_started(body: str) -> None:
    started: list[Worker] = []

    def start() -> Worker:
        if len(started) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(Worker(body))
        return started[-1]

    pool = WorkerPool(start)

    def triple(number: int) -> bytes:
        with pool.worker() as worker:
            return worker.call(str(number), b"%d" % number, 60)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(triple, range(8))) == [b"%d" % number * 3 for number in range(8)]
    assert len(started) == 2
    pool.close()
    with pytest.raises(InstallationError, match="the worker pool is closed"), pool.worker():
        pass
    assert [worker._process.returncode for worker in started] == [-9, -9]


def test_a_pool_that_starts_nothing_says_why() -> None:
    def start() -> Worker:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with pytest.raises(InstallationError, match="Resource temporarily unavailable"), WorkerPool(start).worker():
        pass


def test_closing_a_pool_ends_the_item_at_work(body: str) -> None:
    pool = WorkerPool(lambda: Worker(body))

    def hang() -> None:
        with pool.worker() as worker:
            worker.call("item", b"hang", 600)

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(hang)
        while not pool.busy:
            time.sleep(0.01)
        pool.close()
        with pytest.raises(WorkerError, match="SIGKILL"):
            future.result(60)
    assert not pool.busy
