"""What a request is refused with: a status, a code that programs compare, a message and a way out for people."""

from __future__ import annotations

import math
from typing import Any

from starlette.responses import JSONResponse


class Refusal(Exception):
    """A request, or a kernel of one, that is not served.

    Args:
        status: of HTTP.
        code: what programs compare.
        message: the thing, the value and the rule.
        hint: the way out; empty where the message has it.
        retry_after: seconds after which to ask again; None where asking again changes nothing.
    """

    def __init__(
        self, status: int, code: str, message: str, hint: str = "", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.retry_after = None if retry_after is None else max(1, math.ceil(retry_after))

    def document(self) -> dict[str, Any]:
        """What stands under ``error``."""
        again = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {"code": self.code, "message": self.message, "hint": self.hint, **again}

    def response(self) -> JSONResponse:
        """The whole answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="gemmill", Basic realm="gemmill"'
        if self.status == 408:  # what is left of the body is not waited for; of one that is too large it is dropped
            headers["Connection"] = "close"
        return JSONResponse({"error": self.document()}, self.status, headers)


def not_found(what: str, hint: str = "") -> Refusal:
    """404: there is no such thing here."""
    return Refusal(404, "not_found", f"{what} is not here", hint)
