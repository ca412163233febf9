"""Lock files: read as they are written, or refused with the place of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import LockError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.lockfile import Lock, LockedKernel

PROBLEMS = [GemmProblem.from_text(text) for text in ("4096x4096x4096 bf16 tn", "64x4096x4096 bf16 tn")]


def lock_of(problems: Iterable[GemmProblem], artifacts: Sequence[Artifact]) -> Lock:
    kernels = [SlicedKernel(artifact.name) for artifact in artifacts]
    return Lock.of("NVIDIA H200", dict(zip(problems, kernels, strict=True)), artifacts)


def locked(artifacts: tuple[Artifact, ...]) -> Lock:
    return lock_of(PROBLEMS, artifacts)


def test_a_lock_is_read_as_it_is_written(artifacts: tuple[Artifact, ...], tmp_path: Path) -> None:
    lock = locked(artifacts)
    lock.write(path := tmp_path / "kernels.lock")
    assert Lock.read(path) == lock
    other = lock_of(PROBLEMS[::-1], artifacts[::-1])
    assert other.to_bytes() == path.read_bytes(), "whatever the order"
    text = path.read_text()
    for artifact in artifacts:
        assert text.count(artifact.key) == text.count(artifact.digest) == 1


def test_a_difference_is_named(artifact: Artifact) -> None:
    kernel = LockedKernel.of(artifact)
    assert not kernel.difference(artifact)
    other = replace(artifact.provenance, nvrtc_version="13.0.88", toolkit_digest="ab" * 32, gemmill_version="9.9")
    said = kernel.difference(replace(artifact, provenance=other))
    toolkit = artifact.provenance.toolkit_digest[:12]
    assert said == f"toolkit_digest is abababababab, locked {toolkit}; nvrtc_version is 13.0.88, locked 12.9.86"
    newer = replace(artifact, provenance=replace(artifact.provenance, gemmill_version="9.9"))
    assert not kernel.difference(newer), "the same bits"
    said = kernel.difference(replace(artifact, cubin=artifact.cubin[:-1] + b"\1"))
    assert said.startswith("made from the same inputs, but the digest of its machine code is ")
    assert "its key is" in kernel.difference(replace(artifact, launch=replace(artifact.launch, threads=1)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "gemmill.lockfile/2"}, "its schema is 'gemmill.lockfile/2'; it must be 'gemmill.lockfile/1'"),
        ({"more": 1}, "it: got an unexpected .*'more'"),
        ({"gpu": "\x1b"}, "gpu is"),
        ({"problems": {"4096x4096": "a"}}, "4096x4096"),
        ({"problems": {"4096x4096x4096 tn bf16": "a"}}, "is not the canonical form of a problem"),
        ({"problems": {"4096x4096x4096 bf16 tn": "a"}}, "is 'a', which is not one of its kernels"),
        ({"slices": {"4096x4096x4096 bf16 tn": 257}}, "slices is 257; it must be from 1 to 256"),
        ({"kernels": []}, r"kernels is \[\]; it must be a mapping"),
        ({"kernels": {"sm90a": {}}}, "missing 3 required .*'key', 'cubin'"),
    ],
)
def test_other_locks_are_refused(
    change: dict[str, Any], says: str, artifacts: tuple[Artifact, ...], tmp_path: Path
) -> None:
    content = json.loads(locked(artifacts).to_bytes()) | change
    (path := tmp_path / "kernels.lock").write_text(json.dumps(content))
    with pytest.raises(LockError, match=f"{path}: not a lock file .*{says}"):
        Lock.read(path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("key", "../../x", "key is '../../x', which is not a SHA-256 in hex"),
        ("key", 7, "key is 7; it must be a printable text"),
        ("cubin", "0" * 63, "which is not a SHA-256 in hex"),
        ("more", 7, "unexpected keyword argument 'more'"),
        ("name", "sm90a", "unexpected keyword argument 'name'"),
        ("provenance", {}, "schema_version"),
    ],
)
def test_other_kernels_in_locks_are_refused(
    field: str, value: object, says: str, artifacts: tuple[Artifact, ...]
) -> None:
    content = json.loads(locked(artifacts).to_bytes())
    content["kernels"][artifacts[0].name][field] = value
    with pytest.raises(LockError, match=says):
        Lock.from_bytes(json.dumps(content).encode())


def test_files_that_are_no_locks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LockError, match=r"No such file.*create one with `gemmill lock`"):
        Lock.read(tmp_path / "none")
    with pytest.raises(LockError, match="is a folder"):
        Lock.read(tmp_path)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["schema", "gemmill", "gpu", "problems", "kernels", "key", "cubin", "provenance"]), values, values
)
def test_nothing_makes_the_reader_fail_otherwise(
    artifacts: tuple[Artifact, ...], field: str, new: Any, whole: Any
) -> None:
    content = json.loads(locked(artifacts).to_bytes())
    holder = content if field in content else content["kernels"][artifacts[0].name]
    holder[field] = new
    for data in (json.dumps(content).encode(), json.dumps(whole).encode(), json.dumps(whole).encode()[:-1]):
        try:
            found = Lock.from_bytes(data)
        except LockError:
            continue
        assert json.loads(found.to_bytes()) == content
