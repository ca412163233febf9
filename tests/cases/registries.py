"""OCI registries on loopback: the distribution project's own program, and one that breaks its protocol in one way."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.cases.remotes import Request, Stop, http

PROGRAM = shutil.which("docker-registry")
needs_registry = pytest.mark.skipif(
    PROGRAM is None, reason="needs docker-registry (Debian: apt install docker-registry)"
)
USER, PASSWORD = "user", "U*U"
BCRYPT = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
"""A published hash of PASSWORD."""


@contextmanager
def registry(folder: Path, auth: object = None) -> Iterator[str]:
    """Run a registry that stores in a folder; yields HOST:PORT."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of this test"},
        **({"auth": auth} if auth else {}),
    }
    (file := folder / "registry.yml").write_text(json.dumps(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM or "", "serve", file], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until
                time.sleep(0.02)
        yield f"localhost:{port}"
    finally:
        process.kill()
        process.wait()


def basic(folder: Path) -> object:
    """The configuration of a registry that wants USER and PASSWORD."""
    (file := folder / "htpasswd").write_text(f"{USER}:{BCRYPT}\n")
    return {"htpasswd": {"realm": "here", "path": str(file)}}


class TokenServer:
    """Answers as a token server does: signed tokens, to push for USER alone.

    Args:
        folder: where its certificate is written.
    """

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, SHA256())
        )
        self._file = folder / "tokens.pem"
        self._file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def auth(self, url: str) -> object:
        """The configuration of a registry that accepts its tokens."""
        fixed = {"service": "kernels", "issuer": "tokens", "rootcertbundle": str(self._file)}
        return {"token": {"realm": f"{url}/token", **fixed}}

    def __call__(self, request: Request) -> Iterator[bytes | Stop]:
        query = parse_qs(urlsplit(request.path).query)
        is_user = request.headers.get("authorization") == f"Basic {_encoded(f'{USER}:{PASSWORD}')}"
        if "authorization" in request.headers and not is_user:
            yield http(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "unknown user"}]}')
            return
        kind, name, actions = query["scope"][0].split(":")
        granted = actions.split(",") if is_user else ["pull"]
        now = int(time.time())
        access = [{"type": kind, "name": name, "actions": granted}]
        claims = {"iss": "tokens", "sub": "", "aud": query["service"][0], "nbf": now - 9, "exp": now + 99, "iat": now}
        chain = base64.b64encode(self._certificate.public_bytes(Encoding.DER)).decode()
        parts = [{"typ": "JWT", "alg": "ES256", "x5c": [chain]}, {**claims, "jti": str(now), "access": access}]
        signed = ".".join(_url_encoded(json.dumps(part).encode()) for part in parts)
        r, s = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        token = f"{signed}.{_url_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"
        yield http(200, json.dumps({"token": token}).encode())


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _url_encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


Change = Callable[[Request, bytes], Iterable[bytes | Stop]]


class Artifact:
    """Answers as a registry with one artifact does, whose tag is ``1``.

    Args:
        manifest: its manifest.
        blobs: its blobs.
    """

    def __init__(self, manifest: bytes, *blobs: bytes) -> None:
        self.manifest, self.digest = manifest, hashlib.sha256(manifest).hexdigest()
        self.blobs = {hashlib.sha256(blob).hexdigest(): blob for blob in blobs}
        self.change: Change = lambda request, answer: [answer]
        """What is sent in place of an answer."""

    def __call__(self, request: Request) -> Iterator[bytes | Stop]:
        kind, _, name = urlsplit(request.path).path.removeprefix("/v2/kernels/served/").partition("/")
        digest = name.removeprefix("sha256:")
        answer = http(404)
        if kind == "manifests" and name in ("1", f"sha256:{self.digest}"):
            answer = http(200, self.manifest, Docker_Content_Digest=f"sha256:{self.digest}")
        elif kind == "blobs" and digest in self.blobs:
            answer = http(200, self.blobs[digest])
        if request.method == "HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        yield from self.change(request, answer)
