"""Packs: written whole, read lazily, every damage found and named."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.library.errors import PackError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack

PREFIX = struct.Struct("<8sQ32s")
ARTIFACT = struct.Struct("<8sQQ32s")
PROBLEM = GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")


@pytest.fixture
def decisions(artifact: Artifact) -> list[Decision]:
    return [Decision(problem=PROBLEM, gpu="NVIDIA H200", kernel=artifact.name, us=4.5)]


@pytest.fixture
def path(tmp_path: Path, artifacts: tuple[Artifact, ...], decisions: list[Decision]) -> Path:
    path = tmp_path / "kernels.pack"
    write_pack(path, artifacts, decisions)
    return path


def test_what_is_packed_is_unpacked(path: Path, artifacts: tuple[Artifact, ...], decisions: list[Decision]) -> None:
    pack = Pack.open(path)
    assert pack.names() == sorted(artifact.name for artifact in artifacts)
    assert [pack.get(artifact.name) for artifact in artifacts] == list(artifacts)
    assert pack.configs() == {artifact.name: artifact.config for artifact in artifacts}
    assert pack.decisions == tuple(decisions)
    assert pack.verify() == {}


def test_equal_kernels_make_equal_packs(path: Path, artifacts: tuple[Artifact, ...], decisions: list[Decision]) -> None:
    again = path.with_name("again.pack")
    write_pack(again, reversed(artifacts), decisions)
    assert again.read_bytes() == path.read_bytes()


def test_others_may_read_a_pack(path: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_missing_kernel_is_named(path: Path) -> None:
    with pytest.raises(PackError, match=rf"{path}: it has no kernel nonsense among its 2"):
        Pack.open(path).get("nonsense")


def test_damage_to_one_kernel_is_found_and_costs_no_other(path: Path, artifacts: tuple[Artifact, ...]) -> None:
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    first, last = sorted(artifacts, key=lambda artifact: artifact.name)
    pack = Pack.open(path)
    assert pack.get(first.name) == first
    with pytest.raises(PackError, match=rf"{last.name} is damaged \(checksum mismatch\)"):
        pack.get(last.name)
    assert list(pack.verify()) == [last.name]


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    sound = path.read_bytes()
    for place in [*range(60), *range(60, len(sound), 307)]:
        data = bytearray(sound)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            faults = Pack.open(path).verify()
        except PackError:
            continue
        assert faults, place


@pytest.mark.parametrize("keep", [0, 10, 47, 48, 100, -1])
def test_a_truncated_pack_is_refused(keep: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    try:
        faults = "".join(Pack.open(path).verify().values())
    except PackError as error:
        faults = str(error)
    assert "truncated" in faults or "no pack" in faults


def test_foreign_and_missing_files_are_refused(tmp_path: Path, artifact: Artifact) -> None:
    with pytest.raises(PackError, match="No such file"):
        Pack.open(tmp_path / "none.pack")
    with pytest.raises(PackError, match="is a folder"):
        Pack.open(tmp_path)
    foreign = tmp_path / "foreign"
    for content, says in (
        (b"", "is an empty file; it must be a pack, from `gemmill pack`"),
        (b"PK\x03\x04" * 30, "is a binary file; it must be a pack"),
        (artifact.to_bytes(), "is a kernel of a store; it must be a pack"),
        (b"gempack\x02" + bytes(99), "not a pack of this version of gemmill"),
    ):
        foreign.write_bytes(content)
        with pytest.raises(PackError, match=says):
            Pack.open(foreign)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.pop("decisions"),
        lambda index: index.update(codec="xz"),
        lambda index: index["members"][0].update(codec="xz"),
        lambda index: index["members"][0].pop("sha256"),
        lambda index: index["decisions"][0].update(watts=700),
        lambda index: index["decisions"][0]["problem"].pop("m"),
    ],
)
def test_an_index_of_another_version_is_refused(change: Callable[[dict[str, Any]], object], path: Path) -> None:
    index = read_index(path)
    change(index)
    write_index(path, index)
    with pytest.raises(PackError, match=rf"{path}: written by another version of gemmill: "):
        Pack.open(path)


@pytest.mark.parametrize(
    ("entry", "value", "says"),
    [
        ((), [], "it is []; it must be a mapping"),
        (("members",), {"name": "a"}, "members is {'name': 'a'}; it must be a list"),
        (("members", 1), ["a", 0], "members[1] is ['a', 0]; it must be a mapping"),
        (("members", 1, "name"), ["a"], "members[1].name is ['a']; it must be a printable text"),
        (("members", 0, "name"), "k\x1b[31m", r"members[0].name is 'k\x1b[31m'; it must be a printable text"),
        (("decisions", 0, "gpu"), "\x07", r"decisions[0].gpu is '\x07'; it must be a printable text"),
        (("members", 0, "bytes"), "12", "members[0].bytes is '12'; it must be a whole number from 0 to 2^62"),
        (("members", 0, "offset"), -1, "members[0].offset is -1; it must be a whole number from 0 to 2^62"),
        (("members", 0, "offset"), 1 << 64, "it must be a whole number from 0 to 2^62"),
        (("decisions", 0), None, "decisions[0] is None; it must be a mapping"),
        (
            ("members", 1, "offset"),
            3,
            "members[1] has the name of another member, or does not start where the previous one ends",
        ),
        (("decisions", 0, "us"), "4.5", "decisions[0].us is '4.5'; it must be a number"),
        (("decisions", 0, "us"), 0, "decisions[0].us is 0; it must be from 0.001 to 1e+12"),
        (("decisions", 0, "us"), 1e308, "decisions[0].us is 1e+308; it must be from 0.001 to 1e+12"),
        (("decisions", 0, "kernel"), "sm90a", "decisions[0].kernel is 'sm90a', which is not in the pack"),
        (("decisions", 0, "problem", "k"), 0, "decisions[0].problem: k is 0; it must be from 1 to "),
        (("decisions", 0, "problem", "a_dtype"), "fp4", "decisions[0].problem.a_dtype is 'fp4'; it must be "),
        (("decisions", 0, "problem", "promote"), 3, "decisions[0].problem.promote is 3; it must be 0, 2 or 4"),
        (("decisions", 0, "problem", "epilogue"), "d = ((", "decisions[0].problem: epilogue: "),
        (("decisions", 0, "final"), 1, "decisions[0].final is 1; it must be true or false"),
        (("decisions", 0, "problem"), [512], "decisions[0].problem is [512]; it must be a mapping"),
        (("decisions", 0, "problem", "m"), True, "decisions[0].problem.m is True; it must be a whole number"),
        (
            ("decisions", 0, "problem", "c_dtype"),
            16,
            "decisions[0].problem.c_dtype is 16; it must be a printable text or null",
        ),
    ],
)
def test_an_index_of_wrong_types_is_damaged(entry: tuple[str | int, ...], value: object, says: str, path: Path) -> None:
    whole = {"index": read_index(path)}
    *outer, last = ("index", *entry)
    place: Any = whole
    for step in outer:
        place = place[step]
    place[last] = value
    write_index(path, whole["index"])
    with pytest.raises(PackError, match=re.escape(f"{path}: the index is damaged: ") + ".*" + re.escape(says)):
        Pack.open(path)


def test_a_member_longer_than_its_file_is_truncated(path: Path) -> None:
    index = read_index(path)
    last = index["members"][-1]
    for size, says in ((1 << 24, f"truncated: {last['name']} has "), (1 << 60, "the limit is 33,554,432")):
        last["bytes"] = size
        write_index(path, index)
        with pytest.raises(PackError, match=says):
            Pack.open(path).get(last["name"])


@pytest.mark.parametrize(
    "index", [b"[" * 100_000, b'{"members":' + b"9" * 10_000 + b"}", b"NaN", b"\xff\xfe[", b"1e999"]
)
def test_an_index_that_no_reader_can_take_is_refused(index: bytes, path: Path) -> None:
    digest = hashlib.sha256(index).digest()
    path.write_bytes(PREFIX.pack(path.read_bytes()[:8], len(index), digest) + index)
    with pytest.raises(PackError, match=f"{path}: "):
        Pack.open(path)


def test_a_pack_from_a_pipe_is_read(path: Path, artifacts: tuple[Artifact, ...]) -> None:
    """Twice as much as a pipe holds, so that it is written while it is read."""
    code = """
import sys
from gemmill.runtime.storage.pack import Pack
pack = Pack.open("/dev/stdin")
print(pack.verify(), *pack.names())
"""
    done = subprocess.run(
        ["bash", "-c", 'cat "$0" | "$1" -c "$2"', path, sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["{}", *sorted(artifact.name for artifact in artifacts)], done.stderr


def test_a_signed_pack_waits_for_who_can_check_it(path: Path) -> None:
    index = read_index(path)
    index["signature"] = "ed25519:00"
    write_index(path, index)
    with pytest.raises(PackError, match="it has an embedded signature, which this version of gemmill cannot check"):
        Pack.open(path)


def read_index(path: Path) -> Any:
    data = path.read_bytes()
    _, size, _ = PREFIX.unpack_from(data)
    return json.loads(data[PREFIX.size : PREFIX.size + size])


def write_index(path: Path, index: object) -> None:
    """Another index in front of a pack's members, with a checksum that holds."""
    data, changed = path.read_bytes(), json.dumps(index).encode()
    magic, size, _ = PREFIX.unpack_from(data)
    digest = hashlib.sha256(changed).digest()
    path.write_bytes(PREFIX.pack(magic, len(changed), digest) + changed + data[PREFIX.size + size :])


@pytest.mark.parametrize(
    ("part", "field", "value", "says"),
    [
        ("config", "arch", "sm99", "Input should be 'sm70', "),
        ("config", "twist", 1, "unexpected keyword argument 'twist'"),
        ("config", "tile", {"m": 64, "n": 32, "k": 0}, "greater than 0"),
        ("config", "tile", None, "'m'"),
        ("launch", "twist", 1, "unexpected keyword argument 'twist'"),
        ("launch", "boxes", [{}], "'box'"),
        ("resources", "twist", 1, "unexpected keyword argument 'twist'"),
        ("provenance", "options", None, "options is None; it must be a list"),
        ("provenance", "nvrtc_version", "\x1b[31m12.9", r"nvrtc_version is '\x1b[31m12.9'; it must be a printable"),
        ("provenance", "schema_version", 99, "its schema is 99 (made by gemmill "),
        ("resources", "registers", "9", "registers is '9'; it must be a whole number"),
    ],
)
def test_a_kernel_of_another_version_is_refused(
    part: str, field: str, value: object, says: str, artifact: Artifact
) -> None:
    prefix, data = struct.Struct("<8sQQ32s"), artifact.to_bytes()
    magic, size, rest, _ = prefix.unpack_from(data)
    header = json.loads(data[prefix.size : prefix.size + size])
    header[part][field] = value
    head, body = json.dumps(header).encode(), data[prefix.size + size :]
    digest = hashlib.sha256(head + body).digest()
    with pytest.raises(ValueError, match="not readable by this version of gemmill") as refused:
        Artifact.from_bytes(prefix.pack(magic, len(head), rest, digest) + head + body)
    assert says in str(refused.value)


def test_packs_that_make_no_sense_are_not_written(tmp_path: Path, artifact: Artifact) -> None:
    path = tmp_path / "kernels.pack"
    with pytest.raises(PackError, match="at least one kernel"):
        write_pack(path, [])
    with pytest.raises(PackError, match="two kernels are named"):
        write_pack(path, [artifact, artifact])
    unknown = Decision(problem=PROBLEM, gpu="NVIDIA H200", kernel="other", us=1.0)
    with pytest.raises(PackError, match="decision table names kernels that are not in the pack: other"):
        write_pack(path, [artifact], [unknown])
    with pytest.raises(PackError, match="cannot be written: No such file"):
        write_pack(tmp_path / "none" / "kernels.pack", [artifact])
    assert not list(tmp_path.iterdir())


def test_a_failed_write_keeps_the_old_pack(path: Path, artifact: Artifact) -> None:
    before = path.read_bytes()
    with pytest.raises(PackError):
        write_pack(path, [artifact, artifact])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_opening_reads_the_index_only(path: Path) -> None:
    """A member outside the index can be cut off without opening failing: nothing of it was read."""
    pack = Pack.open(path)
    size = path.stat().st_size
    os.truncate(path, size - 1000)
    assert Pack.open(path).names() == pack.names()


WITHOUT_TOOLKIT = """
import sys
GONE = ("cuda.bindings.nvrtc", "cuda.pathfinder", "cutlass_library", "elftools")
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(GONE):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from gemmill.library.errors import ToolchainError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
registry = Registry(packs=[sys.argv[1]])
choice = registry.select(GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n"))
print(choice.name, choice.source, choice.predicted_us, registry.get(choice.name).digest, len(registry.configs()))
registry.warm(registry.configs())
print([name for name in sys.modules if name.startswith(GONE)])
try:
    registry.get(sys.argv[2])
except ToolchainError as error:
    print(error)
"""


def test_a_pack_runs_where_there_is_no_toolkit(path: Path, artifact: Artifact) -> None:
    """No NVRTC, no CUTLASS, no ELF reader; our own headers are not looked at."""
    other = artifact.name.replace("_s4_", "_s3_")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TOOLKIT, str(path), other], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    chosen, modules, refused = done.stdout.splitlines()
    assert chosen.split() == [artifact.name, "measured", "4.5", artifact.digest, "2"]
    assert refused.startswith(f"none of the 1 packs holds {other}, and it cannot be compiled here: ")
    assert modules == "[]"


STARTING = """
import sys
import gemmill
gemmill.matmul
registry = gemmill.Registry(packs=[sys.argv[1]])
problem = gemmill.GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")
registry.get(registry.select(problem).name)
print(*sys.modules)
"""
NOT_FOR_PACKS = {
    *("pydantic", "pydantic_core", "annotated_types", "cryptography"),
    *("yaml", "platformdirs", "typer", "gemmill.profiler", "gemmill.emitters"),
    *(
        "gemmill.library.manifest.load",
        "gemmill.library.records",
        "gemmill.library.legality.rules",
        "gemmill.library.families.families",
        "gemmill.library.extras",
        "gemmill.library.file_kinds",
    ),
    *(
        "gemmill.runtime.api.autotune",
        "gemmill.runtime.storage.store",
        "gemmill.runtime.storage.folder",
        "gemmill.runtime.storage.oci.reference",
        "gemmill.runtime.storage.trust.signatures",
        "gemmill.runtime.launch_times",
        "gemmill.runtime.compile.toolchain",
    ),
}


def test_starting_from_a_pack_imports_what_that_takes_and_no_more(path: Path) -> None:
    """A process that serves from a pack waits for every import before its first GEMM; the
    first process of all verified what it uses."""
    assert Pack.open(path).verify() == {}
    done = subprocess.run([sys.executable, "-c", STARTING, str(path)], capture_output=True, text=True, check=True)
    assert not NOT_FOR_PACKS & set(done.stdout.split())


def test_an_edited_kernel_is_read_as_strictly_and_no_measurement_is_of_one(
    tmp_path: Path, artifact: Artifact, decisions: list[Decision]
) -> None:
    edited, path = replace(artifact, is_edited=True), tmp_path / "edited.pack"
    assert Artifact.from_bytes(edited.to_bytes()) == edited
    assert edited.key != artifact.key
    with pytest.raises(ValueError, match="edited is False; it must be true or absent"):
        Artifact.from_bytes(rewritten(edited, b'"edited":true', b'"edited":false'))
    with pytest.raises(PackError, match=r"the decision table names edited kernels, .*\+src\."):
        write_pack(path, [edited], [replace(decisions[0], kernel=edited.name)])


def rewritten(artifact: Artifact, before: bytes, after: bytes) -> bytes:
    """An artifact on disk with something else in its header, and the checksum of that."""
    data = artifact.to_bytes()
    magic, head_bytes, body_bytes, _ = ARTIFACT.unpack_from(data)
    content = data[ARTIFACT.size :].replace(before, after, 1)
    head_bytes += len(after) - len(before)
    return ARTIFACT.pack(magic, head_bytes, body_bytes, hashlib.sha256(content).digest()) + content
