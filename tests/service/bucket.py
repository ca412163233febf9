"""What of S3 the service asks for, on the loopback interface: a bucket that fails and lies as a test says."""

from __future__ import annotations

import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bucket(ThreadingHTTPServer):
    """GET and PUT of objects in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.fails = 0.0
        """Part of the requests that fail."""
        self.flips = False
        """Whether blobs come back with a bit flipped."""
        self.chance = random.Random(0)


class Handler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = self.server.objects.get(self.path)
        if data is not None and self.server.flips and "/blobs/" in self.path:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.answer(404 if data is None else 200, data or b"")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.answer(200):
            self.server.objects[self.path.partition("?")[0]] = data

    def answer(self, status: int, data: bytes = b"") -> bool:
        failed = self.server.chance.random() < self.server.fails
        self.send_response(500 if failed else status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(data)
        return not failed

    def log_message(self, *_: object) -> None:
        pass
