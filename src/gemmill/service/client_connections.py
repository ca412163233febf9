"""Connections with timeouts and limits, which uvicorn lacks: it keeps an incomplete request forever.

The server closes a connection if its headers or body take too long, or if the client reads the response too slowly. It
refuses URLs and headers that are too long. At the limit of open connections, a new one replaces the connection that has
been idle the longest, so that idle connections cannot block other clients.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gemmill.service.audit import note
from gemmill.service.metrics import Metrics
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import BODY_TIMEOUTS, HEADER_BYTES, URL_BYTES

READ_TIMEOUTS = 3
"""How long a client may stop reading, in units of `--timeout`."""
_LARGE = 64 << 10
"""Larger writes are sent at once, since joining would copy them."""
_BUSY = Refusal(503, "busy", "The server has too many active connections.", retry_after=1)
_LONG_URL = Refusal(414, "too_large", f"The URL exceeds {URL_BYTES:,} bytes.")
_LONG_HEADERS = Refusal(431, "too_large", f"The headers exceed {HEADER_BYTES:,} bytes.")
_NO_HTTP = Refusal(400, "http", "The request is not valid HTTP.")


@dataclass
class Limits:
    """The limits of a server's connections, and the state that they share."""

    connections: int
    timeout: float
    metrics: Metrics
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    """Open connections without an active request, the one that has been idle the longest first."""
    open: int = 0

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol factory that uvicorn calls for each connection."""
        return cast("type[asyncio.Protocol]", partial(Connection, self))

    def admit(self) -> bool:
        """Whether one more connection may open; closes the oldest idle one if needed."""
        if self.open >= self.connections and self.idle:
            next(iter(self.idle)).end("crowded out")
        return self.open < self.connections


class _JoiningTransport:
    """A transport that joins small writes, so that headers and body of uvicorn take one system call.

    It sends on :meth:`flush`, after a large write, or in the next iteration of the event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Queue bytes to be sent."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        if len(data) > _LARGE:
            self.flush()

    def flush(self) -> None:
        """Send the queued bytes."""
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after the queued bytes are sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without sending the queued bytes."""
        self._parts = []
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """One client connection, with timeouts."""

    def __init__(self, limits: Limits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.url = b""
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._awaited = (0, "")
        """The number of the incoming request, and the part that is expected: headers, body, or none."""
        self._timed = self._awaited
        """The value of ``_awaited`` that the timer was started for."""
        self._counted = False
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit a new connection, or answer 503 and close it."""
        self._joined = _JoiningTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._joined))
        self.client = transport.get_extra_info("peername")[:2]  # uvicorn finds no address after a reset
        if not self._limits.admit():
            self._limits.metrics.closed.labels("no room").inc()
            self._answer(_BUSY)
            self._joined.close()
            return
        self._counted = True
        self._limits.open += 1
        self._limits.idle[self] = None
        self._limits.metrics.connections.set(self._limits.open)
        self._expect((0, "headers"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers of a closed connection."""
        self._cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._forget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; a request that arrives at once starts no timer."""
        if self.transport.is_closing() or self._is_refused:
            return
        previous = self._awaited
        if previous[1] != "body":
            self._header_bytes += len(data)
        super().data_received(data)
        awaited = self._awaited
        if awaited == previous and not awaited[1] and self in self._limits.idle:  # blank lines between requests
            awaited = awaited[0], "headers"
        if awaited != self._timed:
            self._expect(awaited)
        if awaited[1] == "headers" and len(self.url) > URL_BYTES:
            self._refuse(_LONG_URL, "long URL")
        elif awaited[1] != "body" and self._header_bytes > HEADER_BYTES:
            self._refuse(_LONG_HEADERS, "large headers")

    def on_message_begin(self) -> None:
        """Expect headers; with pipelining, several requests may arrive together."""
        self._awaited = self._awaited[0] + 1, "headers"
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Expect the body; the connection is no longer idle."""
        self._header_bytes = 0
        self._awaited = self._awaited[0], "body"
        self._limits.idle.pop(self, None)
        super().on_headers_complete()
        more: dict[str, Any] = cast("dict[str, Any]", self.scope)
        more["cycle"] = self.cycle
        if len(self.url) > URL_BYTES:
            more["refusal"] = _LONG_URL
        elif sum(len(name) + len(value) for name, value in self.headers) > HEADER_BYTES:
            more["refusal"] = _LONG_HEADERS

    def on_message_complete(self) -> None:
        """Expect nothing more of this request."""
        self._awaited = self._awaited[0], ""
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Send the rest of the response; without further requests, the connection is idle."""
        self._joined.flush()
        if self._counted and not self.pipeline:
            self._limits.idle[self] = None
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the timer of a slow reader."""
        self._writing = self.loop.call_later(READ_TIMEOUTS * self._limits.timeout, self.end, "slow reader")
        super().pause_writing()

    def resume_writing(self) -> None:
        """Cancel the timer of a slow reader."""
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP; uvicorn has logged them."""
        self._refuse(_NO_HTTP, "no HTTP")

    def _refuse(self, refusal: Refusal, reason: str) -> None:
        """Answer an incomplete request, then read what the client still sends until it closes the connection.

        If the server closed it, the unread bytes would reset the connection, and the client might not see the answer.
        """
        if self.cycle is not None and not self.cycle.response_complete:  # its answer would have to come first
            self.end(reason)
            return
        self._limits.metrics.closed.labels(reason).inc()
        self._is_refused = True
        self._answer(refusal)
        self._joined.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._expect((-1, "close"))

    def _answer(self, refusal: Refusal) -> None:
        """Write the response to a request of which neither method nor path is known."""
        data = refusal.to_bytes()
        self._joined.write(data)
        size = len(data) - data.index(b"\r\n\r\n") - 4
        note("request", None, client=self.client and self.client[0], status=refusal.status, bytes=size)

    def end(self, reason: str) -> None:
        """Close the connection at once, without sending the rest of the response."""
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
        if stage := awaited[1]:
            seconds = self._limits.timeout * (BODY_TIMEOUTS if stage == "body" else 1)
            self._timer = self.loop.call_later(seconds, self.end, f"slow {stage}")

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
