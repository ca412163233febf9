"""Whether the server is alive, ready, and at work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.service.refusal import Refusal
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service


async def healthz(_service: Service, _request: Request, _caller: Caller) -> Response:
    """200 while the process answers."""
    return JSONResponse({"status": "ok"})


async def readyz(service: Service, _request: Request, _caller: Caller) -> Response:
    """200 while it takes requests; 503 says why not."""
    if service.store.problem is not None:
        await asyncio.to_thread(service.try_store)
    if why := service.readiness():
        raise Refusal(503, "not_ready", why, retry_after=5)
    return JSONResponse({"status": "ready"})


async def metrics(service: Service, _request: Request, _caller: Caller) -> Response:
    """What Prometheus reads."""
    service.metrics.tokens_sound.set(service.tokens.sound)
    return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")
