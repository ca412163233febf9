"""The harness finds what it should: commands that are careless in one way each; and what it once found stays mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torture import plan

CARELESS = """
import json, os, sys, time
from pathlib import Path
from tests.torture import attempt, commands, place
from tests.torture.plan import Fault

folder = Path(sys.argv[1])
digests = place.furnish(folder / "template")
bench = attempt.Bench(folder / "bench", folder / "template", digests)
(folder / "bench").mkdir()

def in_place():
    with open("out.txt", "w") as file:
        file.write("whole\\n")

def swallows():
    try:
        text = Path("two.yaml").read_text()
    except OSError:
        text = ""
    print(text)

def leaves():
    Path(os.environ["TMPDIR"], "left").write_text("")

def overwrites():
    Path("../foreign/precious").write_text("mine")

def leaks():
    os.open("two.yaml", os.O_RDONLY)

def raises():
    raise RuntimeError("no message of ours")

def silent():
    try:
        Path("two.yaml").read_text()
    except OSError:
        sys.exit(1)

def hangs():
    time.sleep(60)

def adopts():
    [*Path("../store").glob("*/*.gemmill")][0].rename("../store/notes.gemmill")

attempt.SECONDS = 2
found = {}
for run, outputs, fault in [
    (in_place, ("out.txt",), Fault("write", 1, "half-kill")),
    *((run, (), Fault("open", 1, "EIO")) for run in (swallows, silent)),
    *((run, (), None) for run in (leaves, overwrites, leaks, raises, hangs, adopts)),
]:
    command = commands.Command(run.__name__, outputs, run=run)
    try:
        bench.well(command)
        found[run.__name__] = bench.attempt(command, fault).faults if fault else []
    except AssertionError as error:
        found[run.__name__] = [str(error)]
print(json.dumps(found))
"""
SAYS = {
    "in_place": "out.txt is neither as before nor as it should be",
    "swallows": "other words than without the fault",
    "leaves": "tmp/left was left",
    "overwrites": "foreign/precious was changed",
    "leaks": "says 'leaked'",
    "raises": "says 'Traceback",
    "silent": "exit code 1 without a word",
    "hangs": "took more than 2 s",
    "adopts": "store/notes.gemmill was left",
}
MENDED = """
import json, sys
from pathlib import Path
from tests.torture import attempt, commands, place
from tests.torture.plan import Fault
import gemmill.cli

gemmill.cli.application()
folder = Path(sys.argv[1])
digests = place.furnish(folder / "template")
(folder / "bench").mkdir()
bench = attempt.Bench(folder / "bench", folder / "template", digests)
found = {}
for text in json.loads(sys.argv[2]):
    line, _, fault = text.partition(" | ")
    [command] = [command for command in commands.COMMANDS if command.line.startswith(line)]
    done = bench.attempt(command, Fault.of(fault))
    found[text] = [*done.faults, *([] if done.fired else ["nothing happened"])]
print(json.dumps(found))
"""
ONCE_FOUND = (
    "list bf16 | write:1:half+",  # an unbuffered stdout lost what was not written
    "list more | write:1:ENOSPC+",  # the interpreter tried again at its end, with a traceback
    "store stats | open:1:ESTALE",  # folders that cannot be listed counted as empty
    "store clear --yes | unlink:2:EACCES",  # what stays in a store was not told
    "store verify | stat:8:ESTALE",
    "emit | open:1:term",  # the file beside the output's place stayed
    "build two.yaml --store ../cold --jobs 2 | thread:2:EAGAIN+",  # workers died of it
    "report r.parquet | thread:1:EAGAIN+",  # PyArrow ended the process
)


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        pytest.skip("no C compiler for the injector")
    return plan.build(tmp_path_factory.mktemp("injector"))


def run(code: str, injector: Path, *arguments: str | Path) -> dict[str, list[str]]:
    environment = {"LD_PRELOAD": str(injector), "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.heavy
def test_careless_commands_are_found(injector: Path, tmp_path: Path) -> None:
    found = run(CARELESS, injector, tmp_path)
    assert found.keys() == SAYS.keys()
    for name, says in SAYS.items():
        assert any(says in fault for fault in found[name]), (name, found[name])


@pytest.mark.heavy
def test_what_was_found_stays_mended(injector: Path, tmp_path: Path) -> None:
    found = run(MENDED, injector, tmp_path, json.dumps(ONCE_FOUND))
    assert found == {text: [] for text in ONCE_FOUND}
