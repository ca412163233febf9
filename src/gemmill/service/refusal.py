"""Error responses: an HTTP status, a code for programs, and a message and a hint for people."""

from __future__ import annotations

import json
import math
from http import HTTPStatus
from typing import Any


class Refusal(Exception):
    """The error response to a request, or to one kernel of it.

    Args:
        status: HTTP status.
        code: a word for programs.
        message: what is wrong, with the value and the rule.
        hint: what to do; empty if the message says it.
        retry_after: seconds after which the client may retry; None if retrying does not help.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    def document(self) -> dict[str, Any]:
        """The value of ``error`` in the response."""
        retry = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {"code": self.code, "message": self.message, "hint": self.hint, **retry}

    def headers(self) -> list[tuple[str, str]]:
        """The headers of the response that depend on the error."""
        headers = [] if self.retry_after is None else [("Retry-After", str(self.retry_after))]
        if self.status == 401:  # one header for each scheme: Chromium ignores a header with two
            headers += [("WWW-Authenticate", f'{scheme} realm="gemmill"') for scheme in ("Basic", "Bearer")]
        if self.status == 408:  # the rest of the body may never arrive; after 413, uvicorn discards it
            headers.append(("Connection", "close"))
        return headers

    def to_bytes(self) -> bytes:
        """The response to a request that does not reach the application; the connection is closed after it."""
        body = json.dumps({"error": self.document()}).encode()
        headers = [
            *self.headers(),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        return f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n{lines}\r\n".encode() + body


def not_found(what: str, hint: str = "") -> Refusal:
    """404: the server does not have the thing."""
    return Refusal(404, "not_found", f"Not found: {what}.", hint)


def ending() -> Refusal:
    """503: the server is shutting down."""
    return Refusal(503, "ending", "The server is shutting down.", "retry, or use another server", retry_after=5)
