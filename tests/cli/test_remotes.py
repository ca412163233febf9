"""gemmill store push and pull, and the doctor's line: against a server that keeps to the protocol."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.remotes import Honest, Server, http
from tests.cli.test_cli import gemmill

from gemmill.runtime.health.examination import remote
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
OTHER = KERNEL.replace("64x32x64", "64x64x64")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return Registry(manifests=()).get(KERNEL)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> SigningKey:
    """A key that this process trusts."""
    made = SigningKey.new()
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", str(made.public))
    return made


@pytest.fixture
def server(artifact: Artifact, key: SigningKey) -> Iterator[Server]:
    with Server(Honest([artifact], [key])) as made:
        yield made


def test_a_store_is_pushed_and_pulled(tmp_path: Path, artifact: Artifact, key: SigningKey) -> None:
    key.save(file := tmp_path / "key.pem")
    Store(tmp_path / "one").put(artifact.key, artifact)
    with Server(Honest([], [])) as server:
        arguments = ("store", "push", "--remote", server.url, "--sign", file, "--store", tmp_path / "one")
        assert "1 stored of 1 kernels" in gemmill(*arguments).stdout
        assert json.loads(gemmill(*arguments, "--json").stdout)["there"] == 1
        done = gemmill("store", "pull", KERNEL, "--remote", server.url, "--store", tmp_path / "two")
        assert "1 kernels, 1 fetched" in done.stdout
        assert Store(tmp_path / "two").get(artifact.key) == artifact
        done = gemmill("store", "pull", KERNEL, "--remote", server.url, "--store", tmp_path / "two")
        assert "0 fetched, 1 already in the store" in done.stdout


def test_what_is_not_kept_is_not_pulled(tmp_path: Path, artifact: Artifact, server: Server) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as where the disk is full
    try:
        done = gemmill("store", "pull", KERNEL, "--remote", server.url, "--store", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.exit_code == 1
    assert "the store did not keep all kernels" in done.stderr
    assert not Store(tmp_path).list()


def test_what_is_not_served_is_named(tmp_path: Path, server: Server) -> None:
    done = gemmill("store", "pull", OTHER, "--remote", server.url, "--store", tmp_path)
    assert done.exit_code == 1
    assert f"did not deliver 1 of 1 kernels:\n{OTHER}: {server.url} cannot compile" in done.stderr


def test_what_is_not_taken_is_named(tmp_path: Path, artifact: Artifact) -> None:
    Store(tmp_path).put(artifact.key, artifact)
    with Server(lambda request: [http(401)]) as server:
        done = gemmill("store", "push", "--remote", server.url, "--store", tmp_path)
    assert done.exit_code == 1
    assert "refused 1 of 1 kernels" in done.stderr
    assert "GEMMILL_REMOTE_TOKEN is missing, wrong or expired" in done.stderr


def test_no_remote(tmp_path: Path) -> None:
    done = gemmill("store", "push", "--store", tmp_path)
    assert done.exit_code == 2
    assert "pass --remote URL or set GEMMILL_REMOTE" in done.stderr


@pytest.mark.parametrize(
    ("status", "state", "says"),
    [
        (404, "ok", "answers in"),
        (403, "ok", "answers in"),
        (401, "wrong", "a token with the scope read"),
        (500, "wrong", "500"),
    ],
)
def test_the_doctor_probes(
    status: int, state: str, says: str, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(lambda request: [http(status)]) as server:
        monkeypatch.setenv("GEMMILL_REMOTE", server.url)
        (finding,) = remote()
    assert finding.state == state
    assert says in f"{finding.detail} {finding.advice}"


def test_the_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [*remote()]
    monkeypatch.setenv("GEMMILL_REMOTE", "http://127.0.0.1:9")
    (finding,) = remote()
    assert "gemmill key show" in finding.advice
    monkeypatch.setenv("GEMMILL_REMOTE_MODE", "reed")
    (finding,) = remote()
    assert "expected one of read, readwrite, only" in finding.advice
