"""Manifests of kernels: what a signed one says of a blob holds, or the blob is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gemmill.library.errors import TrustError
from gemmill.runtime.storage.artifact import Artifact, canonical
from gemmill.runtime.storage.trust.kernel_manifest import KernelManifest


def written(content: object) -> bytes:
    return canonical(content)


def test_a_manifest_tells_of_its_kernel_and_takes_its_blob(artifacts: tuple[Artifact, ...]) -> None:
    for artifact in artifacts:
        manifest = KernelManifest.of(artifact)
        assert KernelManifest.from_bytes(manifest.to_bytes()) == manifest
        assert (manifest.kernel, manifest.key, manifest.arch) == (artifact.name, artifact.key, "sm90a")
        assert artifact.provenance.nvrtc_version.startswith("{}.{}".format(*manifest.cuda))
        assert manifest.artifact(artifact.to_bytes()) == artifact


def test_a_blob_that_is_not_the_manifests_is_refused(artifacts: tuple[Artifact, ...]) -> None:
    artifact, other = artifacts
    manifest, blob = KernelManifest.of(artifact), artifact.to_bytes()
    flipped = blob[:-10] + bytes([blob[-10] ^ 1]) + blob[-9:]
    for wrong in (b"", blob[:-1], blob + b"\0", flipped, other.to_bytes()):
        with pytest.raises(
            TrustError, match=r"bytes that do not match the digest of the expected [\d,]+ bytes"
        ) as refused:
            manifest.artifact(wrong)
        assert refused.value.reason == "tampered"


def test_a_manifest_of_a_true_digest_that_lies_otherwise_is_refused(artifacts: tuple[Artifact, ...]) -> None:
    artifact, other = artifacts
    manifest = KernelManifest.of(artifact)
    for lie in (
        replace(manifest, kernel=other.name),
        replace(manifest, key="0" * 64),
        replace(manifest, launch=other.launch),
        replace(manifest, provenance=replace(artifact.provenance, source_digest="0" * 64)),
    ):
        with pytest.raises(TrustError, match=f"its blob holds {artifact.name}, which does not match its manifest"):
            lie.artifact(artifact.to_bytes())


def test_a_blob_that_its_config_does_not_mean_is_refused(artifact: Artifact) -> None:
    """Signed by mistake: whose launch facts are not those of its name never reaches a driver."""
    wrong = replace(artifact, launch=replace(artifact.launch, threads=128))
    with pytest.raises(TrustError, match="its LaunchSpec has threads = 128, but its config gives 384"):
        KernelManifest.of(wrong).artifact(wrong.to_bytes())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "its schema is 2; it must be 1"),
        ({"more": 1}, "more"),
        ({"bytes": "9"}, "bytes is '9'; it must be a whole number"),
        ({"bytes": True}, "bytes is True; it must be a whole number"),
        ({"bytes": 1 << 40}, "it must be from 1 to 33,554,432"),
        ({"digest": "0" * 63}, "digest is .* which is not a SHA-256"),
        ({"key": "../../etc/passwd"}, "key is .* which is not a SHA-256"),
        ({"arch": "sm100a"}, "arch and cuda do not match"),
        ({"cuda": [13, 0]}, "arch and cuda do not match"),
        ({"kernel": "sm90a"}, "it has 1 parts"),
        ({"kernel": None}, "kernel is None; it must be a printable text"),
        ({"launch": {}}, "missing 8 required .*'entry'"),
        ({"provenance": {}}, "schema_version"),
    ],
)
def test_other_manifests_are_malformed(change: dict[str, Any], says: str, artifact: Artifact) -> None:
    content = json.loads(KernelManifest.of(artifact).to_bytes())
    with pytest.raises(TrustError, match=says) as refused:
        KernelManifest.from_bytes(written(content | change))
    assert refused.value.reason == "malformed"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = ("schema", "kernel", "key", "digest", "bytes", "arch", "cuda", "launch", "provenance")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(FIELDS), st.none() | st.text(max_size=9) | st.sampled_from(["boxes", "entry", "options"]), values
)
@example("launch", "entry", "[" * 900)
def test_no_change_makes_the_reader_fail_otherwise(artifact: Artifact, field: str, inner: str | None, new: Any) -> None:
    content = json.loads(KernelManifest.of(artifact).to_bytes())
    if inner is not None and isinstance(content[field], dict):
        content[field][inner] = new
    else:
        content[field] = new
    try:
        found = KernelManifest.from_bytes(written(content))
    except TrustError:
        return
    assert found.to_bytes() == canonical(content)


@pytest.mark.parametrize("depth", [200, 900, 100_000])
def test_nesting_is_bounded(artifact: Artifact, depth: int) -> None:
    text = (
        KernelManifest.of(artifact)
        .to_bytes()
        .replace(b'"entry":', b'"entry":' + b"[" * depth + b"1" + b"]" * depth + b',"e":')
    )
    with pytest.raises(TrustError):
        KernelManifest.from_bytes(text)


@given(st.binary())
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes) -> None:
    with pytest.raises(TrustError):
        KernelManifest.from_bytes(data)
