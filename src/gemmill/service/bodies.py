"""Bodies of requests: read within limits, and as JSON of known members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from gemmill.library.input.strict_json import parse
from gemmill.library.wording import suggest
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import ALL_BODIES_BYTES, BODY_BYTES, BODY_TIMEOUTS, ITEMS


async def read_body(request: Request, most: int = BODY_BYTES) -> bytes:
    """What a request carries.

    Raises:
        Refusal: it is more than ``most`` bytes, by its header or in truth (413), does not come in time (408), or other
            bodies take all the memory that they may (503).
        ClientDisconnect: the client has gone.
    """
    too_large = Refusal(413, "too_large", f"the body has more than {most:,} bytes", "send it in parts")
    service = request.scope["service"]
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and (len(stated) > 15 or int(stated) > most):
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUTS * service.options.timeout):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                service.body_bytes += len(part)
                if size > most:
                    raise too_large
                if service.body_bytes > ALL_BODIES_BYTES:
                    raise Refusal(503, "busy", "too many bytes of bodies are on their way", retry_after=1)
    except TimeoutError:
        raise Refusal(408, "slow", f"the body did not come in time; {size:,} bytes did", retry_after=1) from None
    finally:
        service.body_bytes -= size
    return b"".join(parts)


async def read_json(request: Request, members: Mapping[str, type]) -> dict[str, Any]:
    """A JSON object that has some of these members, each of its type or null; Refusal 422 names what is otherwise."""
    data = await read_body(request)
    try:
        found = parse(data)
        if b"\\u" in data:  # half of a surrogate pair, which is no text
            json.dumps(found, ensure_ascii=False).encode()
    except ValueError as error:
        raise malformed(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise malformed(f"the body is {found!r:.80}; it must be an object")
    for name, value in found.items():
        if name not in members:
            raise malformed(f"{name!r:.80} is no member of the request{suggest(name, members)}; it has {[*members]}")
        kind = members[name]
        if value is not None and not (isinstance(value, kind) or (kind is float and type(value) is int)):
            raise malformed(f"{name} is {value!r:.80}; it must be of type {kind.__name__}")
        if isinstance(value, list) and len(value) > ITEMS:
            raise malformed(f"{name} has {len(value):,} items; at most {ITEMS:,} are taken", "ask in several requests")
    return found


def texts(found: Mapping[str, Any], name: str) -> list[str]:
    """A member that is a list of texts; empty where it is not there."""
    values = found.get(name) or []
    for value in values:
        if not isinstance(value, str) or len(value) > 4096:
            raise malformed(f"{name} has {value!r:.80}; it must be a list of texts of at most 4,096 characters")
    return list(values)


def malformed(message: str, hint: str = "") -> Refusal:
    """422: the request says something that means nothing."""
    return Refusal(422, "malformed", message, hint)
