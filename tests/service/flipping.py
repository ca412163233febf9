"""A link to a server on which now and then a bit of what the server sends is another when it arrives."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer


class FlippingProxy(ThreadingTCPServer):
    """Passes on what comes, on the loopback interface.

    Args:
        port: of the server.
        flips: part of the pieces, as they are received, in which one bit is flipped.
    """

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, port: int, flips: float) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.target, self.flips = port, flips
        self.chance = random.Random(0)
        self.flipped = 0
        """Bits that were flipped."""


class _Passing(BaseRequestHandler):
    server: FlippingProxy

    def handle(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.server.target)) as to:
            threading.Thread(target=self._outward, args=[to], daemon=True).start()
            while data := bytearray(to.recv(1 << 16)):
                if self.server.chance.random() < self.server.flips:
                    data[self.server.chance.randrange(len(data))] ^= 1 << self.server.chance.randrange(8)
                    self.server.flipped += 1
                self.request.sendall(data)

    def _outward(self, to: socket.socket) -> None:
        with suppress(OSError):
            while data := self.request.recv(1 << 16):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
