"""Bodies of requests: read within limits, and as JSON of known members."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError
from starlette.requests import Request

from gemmill.library.frozen import Frozen
from gemmill.library.input.strict_json import parse
from gemmill.library.wording import suggest
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import ALL_BODIES_BYTES, BODY_BYTES, BODY_TIMEOUTS, ITEMS

Text = Annotated[str, Field(max_length=4096)]
"""A name, or a problem in a line."""
Texts = Annotated[list[Text], Field(max_length=ITEMS)]
CudaVersion = Annotated[int, Field(ge=0, lt=1000)]
Body = TypeVar("Body", bound=Frozen)


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


class GpuDescription(Frozen):
    """A GPU, as its driver reports it."""

    name: str = Field(pattern=r"^[ -~]{1,100}$")
    arch: str | None = Field(None, pattern=r"^sm\d{2,3}[af]?$")
    sm_count: int | None = Field(None, ge=1, le=4096)


class KernelRequest(Frozen):
    """What requests of kernels have in common: which gemmill sends them, and for which machine."""

    gemmill: str | None = None
    headers: str | None = None
    gpu: GpuDescription | None = None
    driver_cuda: tuple[CudaVersion, CudaVersion] | None = None


async def read_json(request: Request, kind: type[Body]) -> Body:
    """The JSON of a request; Refusal 422 names what is otherwise than it must be."""
    data = await read_body(request)
    try:
        content = parse(data)
        if b"\\u" in data:  # half of a surrogate pair, which is no text
            json.dumps(content, ensure_ascii=False).encode()
    except ValueError as error:
        raise malformed(f"the body is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise malformed(f"the body is {content!r:.80}; it must be an object")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        hint = suggest(place, kind.model_fields) if fault["type"] == "extra_forbidden" else ""
        raise malformed(f"{place[:80]} is {fault['input']!r:.80}: {fault['msg']}{hint}") from None


def malformed(message: str, hint: str = "") -> Refusal:
    """422: the request says something that means nothing."""
    return Refusal(422, "malformed", message, hint)
