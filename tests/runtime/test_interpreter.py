"""Where worker processes get an interpreter: in programs that embed Python, in frozen ones, and of other builds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gemmill.library.errors import InstallationError
from gemmill.runtime import interpreter

HOST = """
#include <Python.h>
int main(int argc, char **argv) {
    FILE *starts = fopen("starts", "a");
    fputs("started\\n", starts);
    fclose(starts);
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    PyConfig_SetBytesString(&config, &config.program_name, argv[0]);
    PyConfig_SetBytesArgv(&config, argc, argv);
    PyStatus status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    return PyRun_SimpleString(argv[1]) || Py_FinalizeEx() < 0;
}
"""
"""A program that embeds Python, names itself as ``sys.executable`` and records each start."""
MANY = """
from gemmill.library.config.names import parse_name
from gemmill.runtime.compile.pool import compile_many
NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x{}x64_1x1_pingpong_s4_m1_k1_linear"
for outcome in compile_many([parse_name(NAME.format(n)) for n in (32, 64)]):
    print(outcome.error or "compiled")
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled :data:`HOST`."""
    value = sysconfig.get_config_var
    compiler, header = shutil.which("cc"), Path(value("INCLUDEPY")) / "Python.h"
    if compiler is None or not header.is_file() or not value("Py_ENABLE_SHARED"):
        pytest.skip("no C compiler, no Python.h, or no shared library of Python")
    folder = tmp_path_factory.mktemp("host")
    (folder / "host.c").write_text(HOST)
    places = [f"-I{value('INCLUDEPY')}", f"-L{value('LIBDIR')}", f"-Wl,-rpath,{value('LIBDIR')}"]
    command = [compiler, "host.c", *places, f"-lpython{value('LDVERSION')}", "-o", "host"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "host"


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "sys.exec_prefix = sys.base_exec_prefix = '/nowhere'"])
def test_a_program_that_embeds_python_is_not_started_again(host: Path, tmp_path: Path, before: str) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; {before}\n{MANY}"
    done = subprocess.run([host, code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["compiled", "compiled"], done.stderr
    assert (tmp_path / "starts").read_text() == "started\n"
    assert done.stderr.count("compiling in this process") == bool(before)
    assert not before or f"sys.executable is {host}, and neither that nor /nowhere/bin has" in done.stderr


@pytest.mark.slow
def test_a_host_with_the_name_of_an_interpreter_is_started_only_to_check_it(host: Path, tmp_path: Path) -> None:
    named = host.with_name("python-host")
    shutil.copy(host, named)
    code = f"import sys; sys.path[:] = {sys.path!r}\n{MANY}"
    done = subprocess.run([named, code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["compiled", "compiled"], done.stderr
    assert (tmp_path / "starts").read_text() == "started\n" * 2


@pytest.mark.slow
def test_a_frozen_program_compiles_itself_and_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.frozen = True\n{MANY}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["compiled", "compiled"]
    assert f"{sys.executable} is a frozen program" in done.stderr


@pytest.mark.parametrize("executable", ["", "no/such/python3"])
def test_the_interpreter_of_the_prefix_stands_in(monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert os.path.realpath(interpreter.interpreter()) == os.path.realpath("/proc/self/exe")


@pytest.mark.parametrize(
    ("name", "prints", "is_started"), [("python3", "3.9.1", True), ("host", "", False)], ids=["other build", "host"]
)
def test_only_the_same_build_counts_and_only_interpreters_are_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, prints: str, is_started: bool
) -> None:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nprintf %s '{prints}'\n")
    program.chmod(0o755)
    for prefix in ("exec_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, prefix, str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "_base_executable", str(program))
    with pytest.raises(InstallationError, match=f"sys.executable is {program}, and neither"):
        interpreter.interpreter()
    assert (tmp_path / "started").exists() == is_started
