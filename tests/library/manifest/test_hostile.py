"""Manifests and shape files from elsewhere: whatever they say, the answer is an error, soon, and in little memory."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import ManifestError, RecordError
from gemmill.library.manifest.load import MAX_FILES, load_manifest
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites

HEAD = """name: x
defaults:
  a: {dtype: bf16, major: k}
  b: {dtype: bf16, major: k}
  accumulator: f32
  d: {dtype: bf16, major: n}
"""
SET = "  - {tile: 64x64x64, schedule: pingpong}\n"


def numbers(count: int, start: int = 1) -> str:
    return f"[{', '.join(map(str, range(start, start + count)))}]"


def tiles(count: int, leaf: str = "m") -> str:
    return f"[{', '.join(f'{{{leaf}: {i}}}' for i in range(1, count))}]"


MNK = f"m: {numbers(400)}, n: {numbers(400)}, k: {numbers(400)}"
C = f"{{dtype: f32, major: n, align: {numbers(300)}}}"
D = f"{{dtype: [bf16, f32], major: [m, n, any], align: {numbers(300)}}}"
HOSTILE = {
    "more bytes than a manifest has": ("#" * (2 << 20), "has 2,097,152 bytes, more than the 1,048,576 it may have"),
    "a list of a million items": (f"name: [{',' * 500_000}", "there are more than 200,000 values|did not find"),
    "a list of numbers": (f"name: x\nsets: {numbers(140_000)}\n", "and 139,980 more faults"),
    "as many unknown keys": ("name: x\n" + "".join(f"k{i}: 1\n" for i in range(90_000)), "and 89,9"),
    "three extents, all long": (
        HEAD + f"sets:\n  - schedule: pingpong\n    tile: {{{MNK}}}\n",
        "tile has 64,000,000 values; the limit is 100,000",
    ),
    "parts filled into parts": (
        HEAD + f"  tile: {tiles(3000, 'n')}\nsets:\n  - schedule: pingpong\n    tile: {tiles(3000)}\n",
        "tile has 2,999 choices and 2,999 defaults; the limit is 100,000",
    ),
    "C by D": (
        HEAD.replace("d: {dtype: bf16, major: n}", f"d: {D}")
        + f"sets:\n  - {{tile: 64x64x64, schedule: pingpong, c: {C}}}\n",
        "c with d has 540,000 values; the limit is 100,000",
    ),
    "a filter that reads all fields": (
        HEAD
        + f"sets:\n  - schedule: pingpong\n    tile: {{m: {numbers(90)}, n: {numbers(90)}, k: 64}}\n"
        + f"    cluster: {{m: {numbers(40)}, n: 1}}\n    stages: {numbers(40, 2)}\n"
        + "    where: tile.m * tile.n * cluster.m * stages == 7\n",
        "the fields that it reads have more than 2,097,152 combinations",
    ),
    "a thousand equal sets": (
        HEAD + "sets:\n" + SET * 1000,
        "there are 1,000 sets including inherited ones; the limit is 300",
    ),
    "a thousand presets": (
        HEAD + "sets:\n" + SET * 200 + "presets:\n" + "".join(f"  p{i}: {{where: tile.m > 1}}\n" for i in range(1000)),
        "200,000 pairs; the limit is 100,000",
    ),
    "a long filter": (HEAD + f"where: {'tile.m * ' * 20_000}tile.m == 1\nsets:\n" + SET, "the limit is 10,000"),
    "a product of long numbers": (
        HEAD + f"where: {' * '.join(['9' * 900] * 10)} * tile.m == 1\nsets:\n" + SET,
        "no candidate of sets[0] passes",
    ),
    "a number in base 60": (f"name: x\nsets: {':'.join(['1'] * 400_000)}\n", "YAML 1.1 reads `1:1:1"),
    "former names in a thousand places": (
        HEAD + "sets:\n" + "  - {tile: 64x64x64, schedule: pingpong, scheduler: {swizzle: 1}}\n" * 3000,
        "there are 3,000 sets",
    ),
    "a long word for a short one": (HEAD + f"sets:\n  - {{tile: 64x64x64, schedule: {'p' * 500_000}}}\n", "schedule"),
}
LONG = ("as many unknown keys", "former names in a thousand places")
"""What takes longest, and meets a limit that another meets sooner: in the heavy tier."""
CHILD = """
import os, resource, sys, warnings
from pathlib import Path
from gemmill.library.errors import ManifestError
from gemmill.library.manifest.load import load_manifest
warnings.simplefilter("ignore")
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for path in map(Path, sys.argv[1:]):
    if os.fork():  # no process has what another has taken
        _, status = os.wait()
        assert status == 0, path
        continue
    resource.setrlimit(resource.RLIMIT_AS, (taken + (700 << 20),) * 2)
    try:
        load_manifest(path)
    except ManifestError as error:
        path.with_suffix(".says").write_text(str(error))
    break
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "those", [[what for what in HOSTILE if what not in LONG], pytest.param(LONG, marks=pytest.mark.heavy)]
)
def test_an_absurd_manifest_is_an_error_in_little_memory(those: Sequence[str], tmp_path: Path) -> None:
    paths = [tmp_path / f"{what}.yaml" for what in those]
    for what, path in zip(those, paths, strict=True):
        path.write_text(HOSTILE[what][0])
    command = [sys.executable, "-c", CHILD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for what, path in zip(those, paths, strict=True):
        said = path.with_suffix(".says").read_text()
        assert len(said.splitlines()) <= 21, what
        assert [part for part in HOSTILE[what][1].split("|") if part in said], f"{what}: {said[:500]}"


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/stdin", "/proc/self/mem"])
def test_only_regular_files_are_extended(place: str, tmp_path: Path) -> None:
    (path := tmp_path / "m.yaml").write_text(f"name: x\nextends: {place}\n")
    with pytest.raises(ManifestError, match=r"cannot be read: |is not a manifest|the file is empty"):
        load_manifest(path)


def test_a_pipe_is_not_extended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (path := tmp_path / "m.yaml").write_text("name: x\nextends: pipe.yaml\n")
    with pytest.raises(ManifestError, match="is a pipe, not a regular file"):
        load_manifest(path)


def test_a_manifest_from_a_pipe_is_read(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe.yaml")
    writer = threading.Thread(target=lambda: path.write_text(HEAD + "sets:\n" + SET))
    writer.start()
    assert load_manifest(path).count().legal == 1
    writer.join()


def test_a_chain_of_manifests_is_counted(tmp_path: Path) -> None:
    for i in range(MAX_FILES + 1):
        (tmp_path / f"{i}.yaml").write_text(f"name: x\nextends: {i + 1}.yaml\n")
    last = tmp_path / f"{MAX_FILES}.yaml"
    last.write_text(HEAD + "sets:\n" + SET)
    assert load_manifest(tmp_path / "1.yaml").count().legal == 1
    with pytest.raises(ManifestError, match=f"the chain of extended manifests has more than {MAX_FILES} files"):
        load_manifest(tmp_path / "0.yaml")


def test_shapes_are_counted_before_they_are_made(tmp_path: Path) -> None:
    item = f"  - {{m: {numbers(300)}, n: {numbers(300)}, k: 1}}\n"
    (path := tmp_path / "s.yaml").write_text("shapes:\n" + item + item.replace("k: 1", "k: 2"))
    with pytest.raises(RecordError, match="expands to 90,000 shapes; a file can have at most 100,000"):
        load_shapes(path)


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_mutated_shape_files_load_or_raise_record_errors(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random, edits: int
) -> None:
    data = bytearray(chance.choice([*shipped_suites().values()]).read_bytes())
    odd = (b"", b"[", b"{", b"]: ", b"&a ", b"*a", b"9" * 30, b"\xff", b"\0", b"- ", bytes(data[:40]))
    for _ in range(edits):
        start = chance.randrange(len(data))
        data[start : start + chance.choice([0, 1, 5, 40])] = chance.choice(odd)
    (path := tmp_path_factory.mktemp("mutated") / "s.yaml").write_bytes(data)
    with suppress(RecordError):
        assert load_shapes(path).shapes
