"""A bucket on the loopback interface, moto's of S3, behind a front that fails and lies as a test says."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import Client

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

NAME = "kernels"
_OWNER = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=x/20261127/us-east-1/s3/aws4_request, SignedHeaders=, Signature="
}
"""Who may delete; moto checks no signature."""


class Bucket:
    """A bucket, in memory, and its server."""

    def __init__(self) -> None:
        # Half a second, which tests without a bucket do without.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self.port = self._server.port
        self.fails = 0.0
        """Part of the requests that fail, half of them after they have done what was asked."""
        self.flips = False
        """Whether blobs come back with a bit flipped."""
        self._chance = random.Random(0)
        self._client = Client(self._moto)
        self._client.post("/moto-api/reset")
        self._client.put(f"/{NAME}")

    def paths(self) -> list[str]:
        """What it holds."""
        return re.findall(r"<Key>(.*?)</Key>", self._client.get(f"/{NAME}?list-type=2").text)

    def remove(self, *paths: str) -> None:
        """Take objects away."""
        for path in paths:
            assert self._client.delete(f"/{NAME}/{path}", headers=_OWNER).status_code == 204

    def serve(self) -> None:
        """Answer requests, until :meth:`stop`."""
        self._server.serve_forever()

    def stop(self) -> None:
        """End :meth:`serve`."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, begin: StartResponse) -> Iterable[bytes]:
        if self._chance.random() < self.fails:
            if self._chance.random() < 0.5:
                b"".join(self._moto(environ, lambda *_: bytes))
            begin("503 Slow Down", [("Content-Length", "0")])
            return []
        answer: Iterable[bytes] = self._moto(environ, begin)
        if self.flips and environ["REQUEST_METHOD"] == "GET" and "/blobs/" in environ["PATH_INFO"]:
            data = b"".join(answer)
            return [data[:-1] + bytes([data[-1] ^ 1])] if data else []
        return answer


class _Silent(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 (werkzeug's name)
        pass
