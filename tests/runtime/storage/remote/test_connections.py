"""TLS: a server that shows no certificate of a trusted authority for its name is a miss, as is one that speaks none."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.cases.certificates import Authority
from tests.cases.remotes import HANG, Server, http

from gemmill.runtime.storage.remote.client import Remote


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """One that this process trusts."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


def context(certificate: Path, clients: Path | None = None) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(certificate)
    if clients is not None:
        found.load_verify_locations(clients)
        found.verify_mode = ssl.CERT_REQUIRED
    return found


def probed(server: Server, url: str | None = None, certificate: Path | None = None) -> str:
    """The reason why a remote does not answer; empty where it does."""
    miss = Remote(url or server.url, trusted=None, deadline=5, certificate=certificate).probe()
    return miss.reason if miss else ""


def test_a_certificate_must_be_signed_and_of_the_name(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with Server(lambda request: [http(404)], context(authority.issue("localhost"))) as server:
        assert probed(server) == ""
        assert probed(server, server.url.replace("localhost", "127.0.0.1")) == "tls"
        assert probed(server, server.url.replace("https", "http")) in ("closed", "garbage")
    with Server(lambda request: [http(404)], context(Authority(tmp_path / "other").issue("localhost"))) as server:
        miss = Remote(server.url, trusted=None, deadline=5).probe()
        assert miss is not None
        assert miss.reason == "tls"
        assert "set SSL_CERT_FILE to a file of trusted authorities" in miss.says


def test_a_server_without_tls_or_that_says_nothing(authority: Authority) -> None:
    with Server(lambda request: [HANG]) as server:
        miss = Remote(server.url.replace("http", "https"), trusted=None, deadline=0.5).probe()
        assert miss is not None
        assert miss.reason in ("timeout", "tls", "closed")


def test_a_client_shows_its_certificate(authority: Authority, tmp_path: Path) -> None:
    with Server(lambda request: [http(404)], context(authority.issue("localhost"), authority.file)) as server:
        assert probed(server) in ("tls", "closed")
        assert probed(server, certificate=authority.issue("client")) == ""
        assert probed(server, certificate=tmp_path / "missing.pem") == "tls"
