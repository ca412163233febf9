"""What a route is: a path, who may ask, what answers, and what OpenAPI says of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gemmill.library.wording import one_of
from gemmill.service.refusal import Refusal
from gemmill.service.tokens import Caller, allowed

if TYPE_CHECKING:
    from gemmill.service.service import Service

Handler = Callable[["Service", Request, Caller], Awaitable[Response]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route."""

    methods: tuple[str, ...]
    path: str
    scope: str
    """What a token must allow; empty: nobody is asked for one."""
    handler: Handler
    says: str
    """A sentence on what it does, for OpenAPI."""


class Routes:
    """All endpoints as an ASGI application: each by its method and all of its path but a last part in braces.

    Starlette's router would try one after the other, inside two layers that care for errors: a third of what a hit
    takes, for what :class:`Answering` does anyway.
    """

    def __init__(self, service: Service, endpoints: Sequence[Endpoint]) -> None:
        self._by_path: dict[tuple[str, bool], dict[str, tuple[str, Answering]]] = {}
        for endpoint in endpoints:
            folder, _, last = endpoint.path.rpartition("/")
            is_open = last.startswith("{")
            answering = Answering(service, endpoint)
            methods = self._by_path.setdefault((folder if is_open else endpoint.path, is_open), {})
            methods.update({method: (last.strip("{}"), answering) for method in endpoint.methods})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path, method = scope["path"], scope["method"]
        folder, _, last = path.rpartition("/")
        methods = self._by_path.get((path, False)) or (self._by_path.get((folder, True)) if last else None)
        if methods is None:
            nowhere = Refusal(404, "not_found", "there is no such path", "/openapi.json has all")
            await nowhere.response()(scope, receive, send)
        elif (found := methods.get(method)) is None:
            wrong = Refusal(405, "method", f"the path does not take this method, but {one_of([*methods])}")
            await wrong.response()(scope, receive, send)
        else:
            name, answering = found
            scope["path_params"] = {name: last}
            await answering(scope, receive, send)


class Answering:
    """An endpoint as an ASGI application: it authenticates, answers and counts; what is wrong becomes a Refusal."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service, self._endpoint = service, endpoint
        self._seconds = service.metrics.request_seconds.labels(endpoint.path)
        self._counters: dict[int, Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.perf_counter()
        scope["service"] = self._service
        request = Request(scope, receive)
        response = await self._response(request)
        if response is not None:
            await response(scope, receive, send)
            self._seconds.observe(time.perf_counter() - start)
            self._count(response.status_code)

    async def _response(self, request: Request) -> Response | None:
        """The answer; None where nobody waits for one any more."""
        service, endpoint = self._service, self._endpoint
        try:
            caller = Caller("", ())
            if endpoint.scope:
                caller = service.tokens.caller(request.headers.get("authorization"))
                allowed(caller, endpoint.scope)
            return await endpoint.handler(service, request, caller)
        except Refusal as refusal:
            service.metrics.refused.labels(refusal.code).inc()
            return refusal.response()
        except ClientDisconnect:
            self._count(499)
            return None
        except Exception as error:  # noqa: BLE001 (a bug costs one request)
            _log.exception("%s %s", request.method, endpoint.path)
            return Refusal(500, "internal", f"{type(error).__name__}: this is a bug in gemmill").response()

    def _count(self, status: int) -> None:
        counter = self._counters.get(status)
        if counter is None:
            counter = self._counters[status] = self._service.metrics.requests.labels(self._endpoint.path, str(status))
        counter.inc()
