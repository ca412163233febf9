"""Credentials of Docker's configuration: those of the host, or what is wrong with it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gemmill.runtime.storage.oci.credentials import Credentials, credentials_for
from gemmill.runtime.storage.remote.misses import Miss

HOST = "registry.example:5000"
LOGIN = {"auth": base64.b64encode(b"user:a:secret").decode()}
FOUND = Credentials("user", "a:secret")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the configuration, and a folder of programs in PATH."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "config.json"


@pytest.mark.parametrize(
    ("host", "content", "found"),
    [
        (HOST, {"auths": {HOST: LOGIN}}, FOUND),
        (HOST, {"auths": {f"https://{HOST}": LOGIN, "other": {}}}, FOUND),
        ("registry-1.docker.io", {"auths": {"https://index.docker.io/v1/": LOGIN}}, FOUND),
        (HOST, {"auths": {"registry.example": LOGIN}}, None),
        (HOST, {"auths": None, "credsStore": "nosuch"}, None),
        (HOST, {}, None),
    ],
)
def test_a_login_is_of_a_host(config: Path, host: str, content: Any, found: Credentials | None) -> None:
    config.write_text(json.dumps(content))
    assert credentials_for(host) == found


@pytest.mark.parametrize(
    ("named", "host", "found"),
    [
        (HOST, HOST, Credentials("", "token")),
        ("docker.io", "registry-1.docker.io", Credentials("", "token")),
        ("registry.example", HOST, FOUND),
        ("elsewhere", HOST, FOUND),
    ],
)
def test_a_token_is_only_for_its_registry(
    config: Path, monkeypatch: pytest.MonkeyPatch, named: str, host: str, found: Credentials
) -> None:
    config.write_text(json.dumps({"auths": {HOST: LOGIN}}))
    monkeypatch.setenv("GEMMILL_OCI_TOKEN", f"{named}=token")
    assert credentials_for(host) == found


def test_nobody_is_logged_in_without_a_file(config: Path) -> None:
    assert credentials_for(HOST) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"auths": [1]}', json.dumps({"auths": {HOST: {"auth": "?"}}})])
def test_a_configuration_that_is_none_is_named(config: Path, content: str) -> None:
    config.write_text(content)
    with pytest.raises(Miss, match=f"{config} cannot be used") as miss:
        credentials_for(HOST)
    assert miss.value.reason == "token"


def test_an_identity_token_is_not_taken_for_a_password(config: Path) -> None:
    login = {"auth": base64.b64encode(b"user:").decode(), "identitytoken": "x"}
    config.write_text(json.dumps({"auths": {HOST: login}}))
    with pytest.raises(Miss, match=f"config.json has an identity token for {HOST}.*set GEMMILL_OCI_TOKEN"):
        credentials_for(HOST)


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ('echo \'{"Username": "user", "Secret": "a:secret"}\'', FOUND),
        ("echo credentials not found in native keychain; exit 1", None),
        ("echo '{}'", "cannot be used: KeyError"),
        ("echo no", "cannot be used: JSONDecodeError"),
        ('echo \'{"Username": null, "Secret": "x"}\'', "cannot be used: RowError: Username is None"),
        ('echo \'{"Username": "<token>", "Secret": "x"}\'', "has an identity token for registry.example:5000"),
    ],
)
@pytest.mark.parametrize("content", [{"credHelpers": {HOST: "own"}}, {"auths": {HOST: {}}, "credsStore": "own"}])
def test_a_helper_answers(config: Path, content: Any, program: str, found: Credentials | str | None) -> None:
    config.write_text(json.dumps(content))
    (helper := config.with_name("docker-credential-own")).write_text(f"#!/bin/sh\n{program}\n")
    helper.chmod(0o755)
    if isinstance(found, str):
        with pytest.raises(Miss, match=found):
            credentials_for(HOST)
    else:
        assert credentials_for(HOST) == found
