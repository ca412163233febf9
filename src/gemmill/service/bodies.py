"""Read the bodies of requests, within limits, and validate their JSON."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from gemmill.library.arch import Gpu, gpu_named
from gemmill.library.bits import ANY, fault_of
from gemmill.library.errors import DeviceError
from gemmill.library.frozen import Frozen
from gemmill.library.input.strict_json import parse
from gemmill.library.wording import suggest
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import ALL_BODIES_BYTES, BODY_BYTES, BODY_TIMEOUTS, ITEMS

Text = Annotated[str, Field(max_length=4096)]
"""A kernel name, or a problem as one line."""
Texts = Annotated[list[Text], Field(max_length=ITEMS)]
CudaVersion = Annotated[int, Field(ge=0, lt=1000)]
_BOUNDARY = re.compile(r'multipart/form-data;\s*boundary="?([^";\s]{1,70})"?')
_FIELD = re.compile(rb'[; ]name="([^"]*)"')
Body = TypeVar("Body", bound=Frozen)


async def read_body(request: Request, most: int = BODY_BYTES) -> bytes:
    """The body of a request.

    Raises:
        Refusal: the body, or its Content-Length, exceeds ``most`` bytes (413), it does not arrive in time (408), or the
            bodies of all requests use up their memory (503).
        ClientDisconnect: the client has disconnected.
    """
    too_large = Refusal(413, "too_large", f"The body exceeds {most:,} bytes.", "split it into several requests")
    service = request.scope["service"]
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and (len(stated) > 15 or int(stated) > most):
        raise too_large
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUTS * service.options.timeout):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                service.body_bytes += len(chunk)
                if size > most:
                    raise too_large
                if service.body_bytes > ALL_BODIES_BYTES:
                    raise Refusal(503, "busy", f"Request bodies exceed {ALL_BODIES_BYTES:,} bytes.", retry_after=1)
    except TimeoutError:
        raise Refusal(408, "slow", f"The body timed out after {size:,} bytes.", retry_after=1) from None
    finally:
        service.body_bytes -= size
    return b"".join(chunks)


def _checked_bits(text: str) -> str:
    if fault := fault_of(text):
        raise PydanticCustomError("bits", "{rule}", {"rule": fault.removeprefix(f"bits is {text!r:.80}; ")})
    return text


Bits = Annotated[Text, AfterValidator(_checked_bits)]
"""Which bits the selected kernels must give: a value of ``bits=`` (library/bits.py)."""


class GpuDescription(Frozen):
    """A GPU, as its driver reports it."""

    name: str = Field(pattern=r"^[0-9A-Za-z][0-9A-Za-z ()+._-]{0,99}$")
    arch: str | None = Field(None, pattern=r"^sm\d{2,3}[af]?$")
    sm_count: int | None = Field(None, ge=1, le=4096)


class KernelRequest(Frozen):
    """Members of all requests for kernels: the client's version of gemmill, the machine that runs the kernels, and the
    bits that those selected for problems must give."""

    gemmill: str | None = None
    headers: str | None = None
    gpu: GpuDescription | None = None
    driver_cuda: tuple[CudaVersion, CudaVersion] | None = None
    bits: Bits = ANY


async def read_json(request: Request, kind: type[Body]) -> Body:
    """The validated JSON of a request; Refusal 422 names the first invalid member."""
    data = await read_body(request)
    try:
        content = parse(data)
        if b"\\u" in data:  # rejects unpaired surrogates, which cannot be encoded
            json.dumps(content, ensure_ascii=False).encode()
    except ValueError as error:
        raise malformed(f"The body is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise malformed(f"The body must be a JSON object; found {content!r:.80}.")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        hint = suggest(place, kind.model_fields) if fault["type"] == "extra_forbidden" else ""
        raise malformed(f"Invalid {place[:80]} {fault['input']!r:.80}: {fault['msg']}{hint}") from None


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form, and the texts of its files, by name; Refusal 422 if the body is no form."""
    stated = request.headers.get("content-type", "")
    boundary = _BOUNDARY.fullmatch(stated)
    if boundary is None:
        raise malformed(f"Content-Type is {stated!r:.80}; it must be multipart/form-data with a boundary.")
    parts = (b"\r\n" + await read_body(request)).split(b"\r\n--" + boundary[1].encode("latin-1"))
    fields: dict[str, str] = {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if (name := _FIELD.search(head)) is None:
            raise malformed("A field of the form has no name.")
        try:
            fields[name[1].decode()] = content.decode()
        except ValueError as error:
            raise malformed(f"{name[1]!r:.80} is no text in UTF-8: {error}") from None
    return fields


def malformed(message: str, hint: str = "") -> Refusal:
    """422: the request is invalid."""
    return Refusal(422, "malformed", message, hint)


def known_gpu(name: str, hint: str = "") -> Gpu:
    """A GPU that gemmill has figures for; Refusal 422 for others."""
    try:
        return gpu_named(name)
    except DeviceError as error:
        raise malformed(f"Invalid gpu: {error}.", hint) from None
