"""Connections with deadlines and bounds, which uvicorn has not: it keeps half a request for ever.

A connection is closed whose headers, body or reading of the answer take too long, or whose headers are too large. Where
there are as many connections as may be, the one that has waited longest without a request at work gives way, so that
those who open connections and say nothing keep nobody out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gemmill.service.metrics import Metrics
from gemmill.service.service_options import BODY_TIMEOUTS, HEADER_BYTES

READ_TIMEOUTS = 3
"""Timeouts that a client may pause while it reads."""
_LARGE = 64 << 10
"""Bytes that are not copied to be sent with what follows."""
_SAYS = b'{"error":{"code":"busy","message":"too many connections are at work","hint":"","retry_after":1}}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_SAYS), _SAYS)
)


@dataclass
class Limits:
    """Bounds of all connections of a server, and those that are open, in the order in which they were last at work."""

    connections: int
    timeout: float
    metrics: Metrics
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    """Those without a request at work, the one that has waited longest first."""
    open: int = 0

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes one of for each connection."""
        return cast("type[asyncio.Protocol]", partial(Connection, self))

    def admit(self) -> bool:
        """Whether there is room for one more, which another may have to make."""
        if self.open >= self.connections and self.idle:
            next(iter(self.idle)).end("crowded out")
        return self.open < self.connections


class _JoiningTransport:
    """A transport that sends together what is written together, as uvicorn writes headers and body: a system call less.

    What was written goes when :meth:`flush` says so, when it is much, or at the latest when the loop comes round.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send bytes, soon."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Send what was written."""
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._transport.write(data)

    def close(self) -> None:
        """Close it once all is sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        self._parts = []
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(self, limits: Limits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._awaited = (0, "")
        """The number of the request that is coming, and which part of it: headers, body, or none."""
        self._timed = self._awaited
        """What the timer is for."""
        self._counted = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        self._joined = _JoiningTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._joined))
        if not self._limits.admit():
            self._limits.metrics.closed.labels("no room").inc()
            self._joined.write(_BUSY)
            self._joined.close()
            return
        self._counted = True
        self._limits.open += 1
        self._limits.idle[self] = None
        self._limits.metrics.connections.set(self._limits.open)
        self._expect((0, "headers"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come. What came whole needs no timer."""
        if self.transport.is_closing():
            return
        before = self._awaited
        if before[1] != "body":
            self._header_bytes += len(data)
        super().data_received(data)
        awaited = self._awaited
        if awaited == before and not awaited[1] and self in self._limits.idle:  # line ends, which begin no request
            awaited = awaited[0], "headers"
        if awaited != self._timed:
            self._expect(awaited)
        if awaited[1] != "body" and self._header_bytes > HEADER_BYTES:
            self.end("large headers")

    def on_message_begin(self) -> None:
        """A request begins, perhaps behind another that came with it."""
        self._awaited = self._awaited[0] + 1, "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All headers of a request are there."""
        self._header_bytes = 0
        self._awaited = self._awaited[0], "body"
        self._limits.idle.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request is there."""
        self._awaited = self._awaited[0], ""
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is whole."""
        self._joined.flush()
        if self._counted and not self.pipeline:
            self._limits.idle[self] = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than is written."""
        self._writing = self.loop.call_later(READ_TIMEOUTS * self._limits.timeout, self.end, "slow reader")
        super().pause_writing()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def end(self, reason: str) -> None:
        """Close it at once, whatever is still to be written."""
        self._limits.metrics.closed.labels(reason).inc()
        self._forget()
        self.transport.abort()

    def _forget(self) -> None:
        self._limits.idle.pop(self, None)
        if self._counted:
            self._counted = False
            self._limits.open -= 1
            self._limits.metrics.connections.set(self._limits.open)

    def _expect(self, awaited: tuple[int, str]) -> None:
        self._cancel()
        self._timed = awaited
        if part := awaited[1]:
            seconds = self._limits.timeout * (BODY_TIMEOUTS if part == "body" else 1)
            self._timer = self.loop.call_later(seconds, self.end, f"slow {part}")

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
