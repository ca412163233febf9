"""Packs in a real registry: pushed, pulled, found again without it, and refused without the right to it."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.registries import PASSWORD, USER, TokenServer, basic, needs_registry, registry
from tests.cases.remotes import Server

from gemmill.library.errors import PackError, RemoteError, RemoteWarning, TrustError
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.oci import artifacts as oci
from gemmill.runtime.storage.oci.artifacts import open_artifact, push
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.oci.repository import Repository
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import sign_pack, signature_path

pytestmark = [pytest.mark.slow, needs_registry]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("anonymous")) as found:
        yield found


def test_a_pack_comes_back_as_it_was(host: str, path: Path, tmp_path: Path, trusted: TrustedKeys) -> None:
    reference = Reference.of(f"oci://{host}/kernels/served:1.0")
    pushed = push(path, reference, trusted)
    assert (pushed.bytes, pushed.signed) == (path.stat().st_size, True)
    assert pushed.uploaded == pushed.bytes + signature_path(path).stat().st_size + len("{}")
    again = path.rename(path.with_name("other.pack"))
    signature_path(path).rename(signature_path(again))
    assert push(again, reference, None)._replace(uploaded=0) == pushed._replace(uploaded=0)
    assert push(again, reference, None).uploaded == 0

    pack = open_artifact(reference, tmp_path / "store", trusted)
    assert pack.path == tmp_path / "store" / "packs" / f"{pushed.digest}.pack"
    assert pack.path.read_bytes() == again.read_bytes()
    assert signature_path(pack.path).read_bytes() == signature_path(again).read_bytes()
    assert pack.verify() == {}
    assert {file.stat().st_mode & 0o777 for file in pack.path.parent.iterdir()} == {0o600}
    names = ("vnd.gemmill.arch", "vnd.gemmill.kernels")
    manifest = json.loads(Repository(reference).manifest(pushed.digest))
    assert [manifest["annotations"][name] for name in names] == ["sm90a", "2"]


def test_packs_count_to_the_limit_of_the_store(
    host: str, path: Path, tmp_path: Path, artifacts: tuple[Artifact, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Reference.of(f"oci://{host}/limited:{tag}") for tag in (1, 2))
    push(path, one, None)
    first = open_artifact(one, tmp_path / "store", None)
    os.utime(first.path, (1000, 1000))
    assert open_artifact(one, tmp_path / "store", None).path.stat().st_mtime > 1000, "a use counts"
    write_pack(path, artifacts[:1])
    signature_path(path).unlink()
    push(path, two, None)
    monkeypatch.setenv("GEMMILL_STORE_BYTES", str(path.stat().st_size))
    second = open_artifact(two, tmp_path / "store", None)
    assert [*second.path.parent.glob("*.pack*")] == [second.path]
    assert first.verify() == {}, "a process that has the pack keeps it"
    monkeypatch.setenv("GEMMILL_STORE_BYTES", str(path.stat().st_size - 1))
    with pytest.raises(PackError, match=r"bytes, more than the store's limit of .*; raise GEMMILL_STORE_BYTES"):
        open_artifact(two, tmp_path / "other", None)


def test_what_is_in_the_store_needs_no_registry(
    path: Path, tmp_path: Path, artifacts: tuple[Artifact, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tag = tmp_path / "store", ""
    with registry(tmp_path) as host:
        tag = f"oci://{host}/served:1"
        pushed = push(path, Reference.of(tag), None)
        assert Registry(packs=[tag], store=store).get(artifacts[0].name) == artifacts[0]
        write_pack(path, artifacts[:1])
        signature_path(path).unlink()
        push(path, Reference.of(tag), None)
        assert len(Registry(packs=[tag], store=store).packs[0].names()) == 2, "a process looks a tag up once"
        oci._found.cache_clear()
        monkeypatch.setenv("GEMMILL_PACKS", f"{tag},{pushed.reference}")
        one, two = Registry(store=store).packs
        assert (len(one.names()), len(two.names())) == (1, 2)
        assert Registry(manifests=(), store=store).packs == Registry(packs=(), store=store).packs == ()
    oci._found.cache_clear()
    assert len(Registry(packs=[pushed.reference], store=store).packs[0].names()) == 2
    with pytest.warns(RemoteWarning, match="refuses connections. gemmill uses the pack that it had before"):
        assert Registry(packs=[tag], store=store).packs[0].names() == one.names()
    with pytest.raises(RemoteError, match=f"{tag.replace(':1', ':2')[:-2]}.*refuses connections"):
        Registry(packs=[tag.removesuffix(":1") + ":2"], store=store)


def test_trusted_keys_are_needed_before_anything_is_downloaded(
    host: str, path: Path, tmp_path: Path, trusted: TrustedKeys
) -> None:
    signed, unsigned = (Reference.of(f"oci://{host}/trust:{tag}") for tag in ("signed", "unsigned"))
    sign_pack(path, [SigningKey.new()])
    with pytest.raises(TrustError, match="not trusted"):
        push(path, signed, trusted)
    push(path, signed, None)
    with pytest.raises(TrustError, match=r"trust:signed: .*not trusted"):
        open_artifact(signed, tmp_path / "store", trusted)
    signature_path(path).unlink()
    pushed = push(path, unsigned, None)
    assert pushed.uploaded == 0
    with pytest.raises(TrustError, match=r"trust:unsigned: it is unsigned.*gemmill pack sign") as error:
        open_artifact(unsigned, tmp_path / "store", trusted)
    assert error.value.reason == "unsigned"
    assert not [*tmp_path.glob("store/packs/*.pack")]
    open_artifact(unsigned, tmp_path / "store", None)
    with pytest.raises(TrustError, match="it is unsigned"):
        open_artifact(unsigned, tmp_path / "store", trusted)


def test_what_is_no_pack_is_not_pushed(host: str, path: Path, artifact: Artifact) -> None:
    reference = Reference.of(f"oci://{host}/refused:1")
    write_pack(path, [artifact])
    with pytest.raises(TrustError, match="differ from"):
        push(path, reference, None)
    signature_path(path).unlink()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(PackError, match="damaged"):
        push(path, reference, None)
    with pytest.raises(PackError, match="name a tag, and no digest"):
        push(path, reference.at("0" * 64), None)
    with pytest.raises(RemoteError, match="answers 404"):
        open_artifact(reference, None, None)


def test_a_damaged_copy_is_downloaded_again(host: str, path: Path, tmp_path: Path) -> None:
    pushed = push(path, Reference.of(f"oci://{host}/damaged:1"), None)
    reference = Reference.of(pushed.reference)
    pack = open_artifact(reference, tmp_path / "store", None)
    pack.path.write_bytes(b"gempack\x01 but no more")
    assert open_artifact(reference, tmp_path / "store", None).path.read_bytes() == path.read_bytes()
    pack.path.chmod(0o666)
    open_artifact(reference, tmp_path / "store", None)
    assert pack.path.stat().st_mode & 0o777 == 0o600, "what others may have written is not used"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_pack_is_opened_in_a_store_that_is_mounted_read_only(host: str, path: Path, tmp_path: Path) -> None:
    there = Reference.of(f"oci://{host}/volume:1")
    push(path, there, None)
    store, mount = tmp_path / "store", tmp_path / "mounted"
    open_artifact(there, store, None)
    absent = Reference.of(push(path, Reference.of(f"oci://{host}/absent:1"), None).reference).at("0" * 64)
    mount.mkdir()
    if subprocess.run(["mount", "--bind", store, mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert open_artifact(there, mount, None).verify() == {}
            with pytest.raises(RemoteError, match=f"{absent}: .* answers 404"):
                open_artifact(absent, mount, None)
            (pulled,) = store.glob("packs/*.pack")
            pulled.unlink()
            with pytest.raises(PackError, match=f"{there}: '{mount}/packs/.*': Read-only file system"):
                open_artifact(there, mount, None)
    finally:
        subprocess.run(["umount", mount], check=True)


def test_a_password_is_asked_for(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry(tmp_path, basic(tmp_path)) as host:
        reference = Reference.of(f"oci://{host}/served:1")
        with pytest.raises(RemoteError, match="requires a user and a password: run `docker login`, or set GEMMILL_OCI"):
            push(path, reference, None)
        monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{host}={USER}:wrong")
        with pytest.raises(RemoteError, match=r"answers 401.*GEMMILL_OCI_TOKEN") as error:
            push(path, reference, None)
        assert "wrong" not in str(error.value)
        (file := tmp_path / "secret").write_text(f"{USER}:{PASSWORD}\n")
        monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{host}=@{file}")
        push(path, reference, None)
        monkeypatch.delenv("GEMMILL_OCI_TOKEN")
        (tmp_path / "docker").mkdir()
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        config = tmp_path / "docker" / "config.json"
        config.write_text(json.dumps({"auths": {"elsewhere": {}, host: {"auth": login}}}))
        open_artifact(reference, tmp_path / "one", None)
        config.write_text(json.dumps({"credHelpers": {host: "of-this-test"}}))
        with pytest.raises(RemoteError, match="docker-credential-of-this-test of Docker's configuration does not run"):
            open_artifact(reference, tmp_path / "two", None)
        oci._found.cache_clear()
        helper = tmp_path / "bin" / "docker-credential-of-this-test"
        helper.parent.mkdir()
        answer = json.dumps({"ServerURL": host, "Username": USER, "Secret": PASSWORD})
        helper.write_text(f"#!/bin/sh\n[ \"$(cat)\" = {host} ] && echo '{answer}'\n")
        helper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
        open_artifact(reference, tmp_path / "two", None)


def test_a_token_is_fetched_where_the_registry_says(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = TokenServer(tmp_path)
    with Server(tokens) as server, registry(tmp_path, tokens.auth(server.url)) as host:
        reference = Reference.of(f"oci://{host}/served:1")
        with pytest.raises(RemoteError, match=r"answers 401.*GEMMILL_OCI_TOKEN"):
            push(path, reference, None)
        monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{host}={USER}:{PASSWORD}")
        before = len(server.requests)
        push(path, reference, None)
        assert len(server.requests) == before + 1, "a push needs one token"
        monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{host}={USER}:wrong")
        with pytest.raises(RemoteError, match=r"token answers 401 \('UNAUTHORIZED': 'unknown user'\)"):
            push(path, reference, None)
        monkeypatch.delenv("GEMMILL_OCI_TOKEN")
        open_artifact(reference, tmp_path / "store", None)
        monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{host}=no.such-token")
        with pytest.raises(RemoteError, match="answers 401"):
            push(path, reference, None)
