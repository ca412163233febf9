"""Kernels that are in no pack: from the store, then from a remote, then compiled; whatever the remote does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.cases.misbehaving import CASES
from tests.cases.remotes import HANG, Honest, Server, http

from gemmill.emitters.edited_page import edited
from gemmill.library.errors import RemoteError, RemoteWarning, SettingError
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys

OFTEN = ("no answer", "flips a bit of the blob", "unsigned")
WITHOUT_TOOLKIT = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("cuda.bindings.nvrtc", "cuda.pathfinder", "cutlass_library", "starlette", "uvicorn")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from gemmill.runtime.registry import Registry
registry = Registry(manifests=())
print(registry.get(sys.argv[1]).digest)
print(registry.remote.counters())
"""


def requests(remote: Remote | None) -> dict[str, int]:
    assert remote is not None
    return {name: count for name, count in remote.counters().items() if name != "bytes"}


def process(code: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def counting_compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of kernels that NVRTC compiles in this process."""
    from gemmill.runtime.compile.compiler import Compiler

    compile_, compiled = Compiler.compile, list[str]()

    def counted(self: Compiler, source: object, config: object, lineinfo: bool = False) -> Artifact:
        compiled.append(source.name)  # type: ignore[attr-defined]
        return compile_(self, source, config, lineinfo)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "compile", counted)
        yield compiled


def test_what_a_remote_has_is_not_compiled_and_is_stored(
    tmp_path: Path, artifact: Artifact, key: SigningKey, trusted: TrustedKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(Honest([artifact], [key])) as server, counting_compilations(monkeypatch) as compiled:
        remote = Remote(server.url, trusted=trusted)
        registry = Registry(manifests=(), store=tmp_path, remote=remote)
        assert registry.get(artifact.name) == artifact
        assert registry.get(artifact.name) == artifact
        assert Registry(manifests=(), store=tmp_path, remote=remote).get(artifact.name) == artifact
        assert requests(remote) == {"hits": 1, "requests": 2}, "loaded, then from the store"
        assert not compiled
        assert repr(remote) in repr(registry)


def test_packs_come_first(tmp_path: Path, artifact: Artifact, trusted: TrustedKeys) -> None:
    write_pack(path := tmp_path / "one.pack", [artifact])
    with Server(lambda request: [HANG]) as server:
        remote = Remote(server.url, trusted=trusted)
        assert Registry(packs=[path], store=tmp_path, remote=remote).get(artifact.name) == artifact
        assert not server.requests


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if case in OFTEN else pytest.param(case, marks=pytest.mark.heavy) for case in CASES]
)
def test_whatever_a_remote_does_the_kernel_comes(
    case: str,
    tmp_path: Path,
    artifact: Artifact,
    key: SigningKey,
    trusted: TrustedKeys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer, reason, count = CASES[case]
    with Server(partial(answer, Honest([artifact], [key]))) as server, counting_compilations(monkeypatch) as compiled:
        remote = Remote(server.url, trusted=trusted, deadline=0.4 if reason == "timeout" else 30)
        registry = Registry(manifests=(), store=tmp_path, remote=remote)
        with pytest.warns(RemoteWarning) as told:
            found = registry.get(artifact.name)
        assert found == artifact, "the same bits"
        assert compiled == [artifact.name]
        if reason != "timeout":  # on a busy machine that may be over before the request
            assert requests(remote) == {reason: 1, "requests": count}
        assert remote.counters()[reason] == 1
        assert [warning.category for warning in told].count(RemoteWarning) == 1


def test_threads_that_want_one_kernel_ask_once(
    tmp_path: Path, artifact: Artifact, key: SigningKey, trusted: TrustedKeys
) -> None:
    with Server(Honest([artifact], [key])) as server, ThreadPoolExecutor(16) as threads:
        remote = Remote(server.url, trusted=trusted)
        registry = Registry(manifests=(), store=tmp_path, remote=remote)
        found = [*threads.map(registry.get, 16 * [artifact.name])]
        assert {id(each) for each in found} == {id(found[0])}
        assert requests(remote) == {"hits": 1, "requests": 2}


@pytest.mark.slow
def test_processes_without_a_toolkit_that_want_one_kernel_ask_once(
    tmp_path: Path, artifact: Artifact, key: SigningKey
) -> None:
    with Server(Honest([], [key], made=[artifact])) as server:
        environ = {
            "GEMMILL_STORE": str(tmp_path / "store"),
            "GEMMILL_REMOTE": server.url,
            "GEMMILL_TRUSTED_KEYS": str(key.public),
        }
        found = [process(WITHOUT_TOOLKIT, artifact.name, **environ) for _ in range(3)]
        for each in found:
            out, err = each.communicate(timeout=120)
            assert each.returncode == 0, err
            assert out.startswith(artifact.digest)
        assert server.asked() == ["POST /v1/instantiate", "GET /v1/blobs"]


def test_only_compiles_nothing_and_says_what_is_missing(
    tmp_path: Path,
    artifacts: tuple[Artifact, ...],
    key: SigningKey,
    trusted: TrustedKeys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, missing = artifacts
    with Server(Honest([there], [key])) as server, counting_compilations(monkeypatch) as compiled:
        remote = Remote(server.url, trusted=trusted, mode="only")
        registry = Registry(manifests=(), store=tmp_path, remote=remote)
        assert registry.get(there.name) == there
        again = Registry(manifests=(), store=tmp_path, remote=Remote(server.url, trusted=trusted, mode="only"))
        assert again.get(there.name) == there
        assert requests(again.remote) == {}, "from the store, without knowing its key"
        with (
            pytest.warns(RemoteWarning),
            pytest.raises(RemoteError, match=rf"{missing.name} is not loaded.*cannot compile"),
        ):
            registry.get(missing.name)
        with pytest.raises(RemoteError, match=rf"not have 1 of 1 kernels:\n{missing.name}: failed a moment ago"):
            registry.warm([there.name, missing.name])
        with pytest.raises(RemoteError, match="remote's mode is only"):
            registry.add_source(there.config, edited(there.config, "").text)
        assert not compiled
        assert requests(remote) == {"hits": 1, "failed": 1, "remembered": 1, "requests": 3}


def test_without_toolchain_and_remote_the_error_is_as_before(tmp_path: Path, artifact: Artifact) -> None:
    code = """
        import sys
        from gemmill.runtime.registry import Registry
        Registry(manifests=()).get(sys.argv[1])
        """
    environ = {"GEMMILL_STORE": str(tmp_path / "store"), "GEMMILL_INCLUDE": str(tmp_path)}
    out = process(code, artifact.name, **environ).communicate(timeout=120)[1]
    assert f"ToolchainError: {artifact.name} is not loaded, and it cannot be compiled here: cutlass/version.h" in out


def test_what_another_toolchain_made_is_not_taken_where_there_is_one(
    tmp_path: Path, artifact: Artifact, key: SigningKey, trusted: TrustedKeys
) -> None:
    other = replace(artifact, provenance=replace(artifact.provenance, nvrtc_version="12.8.61"))
    with Server(Honest([other], [key])) as server:
        remote = Remote(server.url, trusted=trusted)
        with pytest.warns(RemoteWarning, match="another toolchain"):
            assert Registry(manifests=(), store=tmp_path, remote=remote).get(artifact.name) == artifact
        only = Remote(server.url, trusted=trusted, mode="only")
        assert Registry(manifests=(), store=tmp_path / "other", remote=only).get(artifact.name) == other


def test_what_is_compiled_is_uploaded_and_served_to_others(
    tmp_path: Path, artifacts: tuple[Artifact, ...], key: SigningKey, trusted: TrustedKeys
) -> None:
    first, second = artifacts
    with Server(honest := Honest([first], [key])) as server:
        remote = Remote(server.url, trusted=None, mode="readwrite")
        registry = Registry(manifests=(), store=tmp_path / "one", remote=remote)
        done: list[Outcome] = []
        with pytest.warns(RemoteWarning, match="cannot compile"):
            assert registry.warm([first.name, second.name], on_done=done.append) == [first, second]
        assert [(outcome.name, outcome.cached) for outcome in done] == [(first.name, True), (second.name, False)]
        assert requests(remote) == {"hits": 1, "failed": 1, "uploads": 1, "requests": 7}
        assert len(honest.put) == 2
        other = Registry(manifests=(), store=tmp_path / "two", remote=Remote(server.url, trusted=None))
        assert other.get(second.name) == second
        assert requests(other.remote) == {"hits": 1, "requests": 2}


def test_a_page_that_somebody_edited_is_not_asked_for(tmp_path: Path, artifact: Artifact, trusted: TrustedKeys) -> None:
    from gemmill.emitters.emit import emit

    with Server(lambda request: [http(404)]) as server:
        remote = Remote(server.url, trusted=trusted, mode="readwrite")
        registry = Registry(manifests=(), store=tmp_path, remote=remote)
        text = emit(artifact.config).text + "// edited\n"
        assert registry.add_source(artifact.config, text).is_edited
        assert not server.requests


def test_without_trusted_keys_nothing_is_asked(
    tmp_path: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEMMILL_TRUSTED_KEYS", raising=False)
    with Server(Honest([artifact], [])) as server:
        registry = Registry(manifests=(), store=tmp_path, remote=server.url)
        with pytest.warns(RemoteWarning, match="GEMMILL_TRUSTED_KEYS is not set"):
            assert registry.get(artifact.name) == artifact
        assert not server.requests
        assert registry.remote is Registry(manifests=(), remote=server.url).remote, "one breaker a process"


def test_the_environment_names_the_remote(
    tmp_path: Path, artifact: Artifact, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "keys").write_text(f"{key.public}\n")
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", str(file))
    monkeypatch.setenv("GEMMILL_REMOTE_TOKEN", "secret")
    with Server(Honest([artifact], [key])) as server:
        monkeypatch.setenv("GEMMILL_REMOTE", server.url)
        registry = Registry(manifests=(), store=tmp_path / "store")
        assert registry.get(artifact.name) == artifact
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer secret"}
        assert "secret" not in repr(registry)


@pytest.mark.parametrize("remote", ["kernels.example", 7])
def test_a_remote_that_is_none_is_refused(remote: object) -> None:
    with pytest.raises(SettingError, match="remote"):
        Registry(manifests=(), remote=remote)  # type: ignore[arg-type]
