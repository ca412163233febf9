"""libgemmill launches what Python launches, byte for byte, as a driver without a GPU records it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.native.cases import LAUNCHED, ONLY_IN_PYTHON, PINGPONG, REFUSED, UNALIGNED, table

from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.pack import write_pack

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
UNSUPPORTED, CAPTURE = 2, 6
"""Statuses of gemmill.h."""
CAPTURED = 0xCA
"""A stream that is being captured (recording_driver.cpp)."""
WORKSPACE = 0x7D00_0000_0000
"""Address of a workspace of the caller."""
Records = Mapping[str, list[dict[str, Any]]]


def recorded(programs: Path, folder: Path, *command: Path | str) -> Records:
    """Run a program on the recording driver; return its records by case; those before the first have no name."""
    file = folder / "records.jsonl"
    environment = os.environ | {"RECORDING": str(file), "LD_LIBRARY_PATH": str(programs / "driver")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    cases: dict[str, list[dict[str, Any]]] = {}
    case = ""
    for line in map(json.loads, file.read_text().splitlines()):
        if "case" in line:
            cases[case := line["case"]] = []
        else:
            cases.setdefault(case, []).append(line)
    return cases


def of_c(programs: Path, pack: Path, folder: Path, cases: Sequence[Any], *way: str) -> Records:
    (products := folder / "products.json").write_text(table(cases))
    return recorded(programs, folder, programs / "run_cases", pack, products, *way)


@pytest.fixture(scope="session")
def of_python(programs: Path, pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The records of Python's launches, in a fresh process."""
    module = "tests.runtime.native.python_launches"
    return recorded(
        programs, tmp_path_factory.mktemp("python"), sys.executable, "-m", module, str(pack), "LAUNCHED", "REFUSED"
    )


@pytest.mark.parametrize("way", ["plan", "calls"])
def test_launches_are_those_of_python_to_the_byte(
    programs: Path, pack: Path, tmp_path: Path, of_python: Records, way: str
) -> None:
    ours = of_c(programs, pack, tmp_path, LAUNCHED, way)
    for case in LAUNCHED:
        records = of_python[case.id]
        assert ours[case.id] == records, case.id
        launches = [x for x in records if "launch" in x]
        assert len(launches) >= (0 if 0 in (*case.d.shape, *case.b.shape[:-2]) else 4), case.id
        assert all("status" not in x for x in records), case.id


@pytest.mark.parametrize("way", ["plan", "calls"])
def test_what_python_refuses_is_refused(
    programs: Path, pack: Path, tmp_path: Path, of_python: Records, way: str
) -> None:
    ours = of_c(programs, pack, tmp_path, REFUSED, way)
    for case in REFUSED:
        (error,), (expected,) = ours[case.id], of_python[case.id]
        assert error["status"] == expected["status"], case.id
        _, needs, lacks = expected["message"].partition("it needs ")
        assert needs + lacks in error["message"], case.id


def test_copies_of_unaligned_operands_are_refused(programs: Path, pack: Path, tmp_path: Path) -> None:
    for case, (error,) in of_c(programs, pack, tmp_path, UNALIGNED, "plan").items():
        assert error["status"] == UNSUPPORTED, case
        assert "does not copy operands" in error["message"]


def test_what_only_python_supports_is_named(programs: Path, pack: Path, tmp_path: Path) -> None:
    records = of_c(programs, pack, tmp_path, [*ONLY_IN_PYTHON.values()], "plan")
    for words, case in ONLY_IN_PYTHON.items():
        (error,) = records[case.id]
        assert (error["status"], words in error["message"]) == (UNSUPPORTED, True), error


@pytest.mark.parametrize("name", ["split-K", "stream-K"])
def test_a_captured_launch_needs_the_workspace_of_the_caller(
    programs: Path, pack: Path, tmp_path: Path, name: str
) -> None:
    case = next(case for case in LAUNCHED if case.id == name)
    captured = replace(case, stream=CAPTURED)
    for folder in ("own", "refused", "lent"):
        (tmp_path / folder).mkdir()
    own = of_c(programs, pack, tmp_path / "own", [case], "plan")[name]
    (refused,) = of_c(programs, pack, tmp_path / "refused", [captured], "plan")[name]
    *lent, size = of_c(programs, pack, tmp_path / "lent", [captured], "plan", str(WORKSPACE))[name]
    assert refused["status"] == CAPTURE
    assert f"a workspace of {size['workspace']} bytes" in refused["message"]
    assert not any("allocate" in x or "status" in x for x in lent)
    at = next(x["address"] for x in own if "allocate" in x)
    places = [
        [x["parameters"].count(address.to_bytes(8, "little").hex()) for x in records if "launch" in x]
        for records, address in ((own, at), (lent, WORKSPACE))
    ]
    assert places[0] == places[1]
    assert all(places[0])
    cleared = [x for x in lent if "set" in x]
    assert len(cleared) == (len(case.launches) if name == "stream-K" else 0)
    for x in cleared:
        assert (x["word"], x["stream"], x["set"] % 256) == (0, CAPTURED, 0)
        assert x["set"] + 4 * x["count"] == WORKSPACE + size["workspace"]


def test_a_descriptor_of_4_bit_elements_is_refused(programs: Path, tmp_path: Path) -> None:
    artifact = Registry(manifests=()).get(PINGPONG)
    first, *others = artifact.launch.boxes
    launch = replace(artifact.launch, boxes=(replace(first, dtype="s4"), *others))
    write_pack(path := tmp_path / "broken.pack", [replace(artifact, launch=launch)])
    ((error,),) = of_c(programs, path, tmp_path, LAUNCHED[:1], "plan").values()
    assert error["status"] == UNSUPPORTED
