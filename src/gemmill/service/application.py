"""The ASGI application: routes, authentication, error handling and the OpenAPI document."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from prometheus_client import Counter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gemmill.library.version import __version__
from gemmill.library.wording import one_of
from gemmill.service.audit import note
from gemmill.service.fleet_models import get_model, post_model, post_records
from gemmill.service.instantiate import instantiate, select
from gemmill.service.kernel_requests import get_blob, get_kernel, put_blob, put_kernel
from gemmill.service.metrics import Metrics
from gemmill.service.origins import host_names, refuse_foreign
from gemmill.service.pages import explorer, kernel_views, views
from gemmill.service.refusal import Refusal, ending
from gemmill.service.served_packs import get_index, get_pack, post_pack
from gemmill.service.service import Service
from gemmill.service.tokens import Caller, allowed

Handler = Callable[[Service, Request, Caller], Awaitable[Response]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route."""

    methods: tuple[str, ...]
    path: str
    scope: str
    """The scope that a token must have; empty if the endpoint needs no token."""
    handler: Handler
    says: str
    """The summary in the OpenAPI document."""


class Routes:
    """All endpoints as one ASGI application: routes, authenticates, calls the handler and turns errors into responses.

    It looks up an endpoint by method and path; the last part of a path may be a parameter. Starlette's router tries all
    routes in order, inside two layers of error handling that this class replaces: a third of the time of a hit.
    """

    def __init__(self, service: Service, endpoints: Sequence[Endpoint]) -> None:
        self._service = service
        self._hosts = host_names(service.options)
        self._unknown = _RouteMetrics(service.metrics, "unknown")
        """For the requests that no endpoint accepts."""
        self._by_path: dict[tuple[str, bool], dict[str, _Route]] = {}
        for endpoint in endpoints:
            folder, _, last = endpoint.path.rpartition("/")
            is_open = last.startswith("{")
            route = _Route(endpoint, last.strip("{}"), _RouteMetrics(service.metrics, endpoint.path))
            methods = self._by_path.setdefault((folder if is_open else endpoint.path, is_open), {})
            methods.update(dict.fromkeys(endpoint.methods, route))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        start = time.perf_counter()
        scope["service"], scope["metrics"] = self._service, self._unknown
        request, sent = Request(scope, receive), _Sent(send)
        try:
            response = await self._response(request)
            await response(scope, receive, sent)
        except ClientDisconnect:
            sent.status = 499
        except asyncio.CancelledError:  # by uvicorn, at the end of the drain period
            await _cut(request, sent)
        finally:
            _record(scope, sent, time.perf_counter() - start)

    async def _response(self, request: Request) -> Response:
        service, scope = self._service, request.scope
        try:
            if (refusal := scope.get("refusal")) is not None:  # the connection found a fault
                raise refusal
            refuse_foreign(scope, self._hosts)
            endpoint, parameter, scope["metrics"] = self._route(scope["path"], scope["method"])
            scope["path_params"] = {parameter: scope["path"].rpartition("/")[2]}
            caller = Caller("", ())
            if endpoint.scope:
                caller = self._caller(request)
                scope["who"] = caller.name
                allowed(caller, endpoint.scope)
            return await endpoint.handler(service, request, caller)
        except Refusal as refusal:
            service.metrics.refused.labels(refusal.code).inc()
            return refused(request, refusal)
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 (a bug must not affect other requests)
            _log.exception("%s %s", request.method, scope["metrics"].path)
            bug = f"Unexpected {type(error).__name__}; this is a bug in gemmill."
            return refused(request, Refusal(500, "internal", bug, "see the server's log for the traceback"))

    def _caller(self, request: Request) -> Caller:
        """The sender of a request; Refusal 401 without a valid token."""
        authorization = request.headers.get("authorization")
        try:
            return self._service.tokens.caller(authorization)
        except Refusal as refusal:
            if authorization is not None:
                note("refused_token", None, client=_address(request.scope), why=refusal.message)
            raise

    def _route(self, path: str, method: str) -> _Route:
        """The route of a request; Refusal if there is none."""
        folder, _, last = path.rpartition("/")
        methods = self._by_path.get((path, False)) or (self._by_path.get((folder, True)) if last else None)
        if methods is None:
            raise Refusal(404, "not_found", "Unknown path.", "/openapi.json lists all paths")
        if (route := methods.get(method)) is None:
            raise Refusal(405, "method", f"This path does not accept {method:.20}; use {one_of([*methods])}.")
        return route


class _Route(NamedTuple):
    """An endpoint, the name of its parameter, and the metrics of its requests."""

    endpoint: Endpoint
    parameter: str
    metrics: _RouteMetrics


class _RouteMetrics:
    """The metrics of the requests to one path."""

    def __init__(self, metrics: Metrics, path: str) -> None:
        self.path = path
        self._requests = metrics.requests
        self._seconds = metrics.request_seconds.labels(path)
        self._counters: dict[int, Counter] = {}

    def count(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._seconds.observe(seconds)
        counter = self._counters.get(status)
        if counter is None:
            counter = self._counters[status] = self._requests.labels(self.path, str(status))
        counter.inc()


class _Sent:
    """Sends a response, and notes its status and the size of its body."""

    __slots__ = ("_send", "bytes", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.bytes = 0, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.bytes += len(message.get("body", b""))
        await self._send(message)


def refused(request: Request, refusal: Refusal) -> Response:
    """The response of a refusal: a web page for browsers, JSON for programs."""
    if "text/html" in request.headers.get("accept", ""):
        response = views.refusal(refusal)
    else:
        response = JSONResponse({"error": refusal.document()}, refusal.status)
    for name, value in refusal.headers():
        response.headers.append(name, value)
    return response


def _record(scope: Scope, sent: _Sent, seconds: float) -> None:
    """Count a request, and write its line of the audit log."""
    scope["metrics"].count(sent.status, seconds)
    note(
        "request",
        scope.get("who"),
        client=_address(scope),
        method=scope["method"],
        path=scope["path"],
        status=sent.status,
        ms=round(seconds * 1e3, 3),
        bytes=0 if scope["method"] == "HEAD" else sent.bytes,
    )


def _address(scope: Scope) -> str | None:
    """The IP address of the client, or of its proxy."""
    client: tuple[str, int] | None = scope["client"]
    return client and client[0]


async def _cut(request: Request, sent: _Sent) -> None:
    """End a request that the server cannot complete before it exits."""
    cycle: RequestResponseCycle = request.scope["cycle"]
    if cycle.response_started or cycle.flow.write_paused:
        cycle.disconnected = True  # else uvicorn reports an incomplete response as a bug
        cycle.transport.abort()
        sent.status = sent.status or 503
    else:
        await refused(request, ending())(request.scope, request.receive, sent)


async def healthz(_service: Service, _request: Request, _caller: Caller) -> Response:
    """Answer 200 while the process runs."""
    return JSONResponse({"status": "ok"})


async def readyz(service: Service, _request: Request, _caller: Caller) -> Response:
    """Answer 200 while the server accepts requests, else 503 with the reason."""
    if service.store.problem is not None:
        await asyncio.to_thread(service.try_store)
    if why := service.readiness():
        raise Refusal(503, "not_ready", why, retry_after=5)
    return JSONResponse({"status": "ready"})


async def metrics(service: Service, _request: Request, _caller: Caller) -> Response:
    """Send the metrics in the text format of Prometheus."""
    service.metrics.tokens_sound.set(service.tokens.sound)
    return Response(service.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


_GET = ("GET", "HEAD")


async def openapi(_service: Service, _request: Request, _caller: Caller) -> Response:
    """Send the OpenAPI document."""
    return JSONResponse(_document())


ENDPOINTS = (
    Endpoint(_GET, "/v1/kernels/{key}", "read", get_kernel, "Download the signed manifest of a kernel."),
    Endpoint(_GET, "/v1/blobs/{sha256}", "read", get_blob, "Download a kernel; supports ETag and ranges."),
    Endpoint(("PUT",), "/v1/blobs/{sha256}", "write", put_blob, "Upload a kernel, before its manifest."),
    Endpoint(("PUT",), "/v1/kernels/{key}", "write", put_kernel, "Upload the manifest of a kernel."),
    Endpoint(("POST",), "/v1/instantiate", "compile", instantiate, "Get or compile kernels; answers JSON Lines."),
    Endpoint(("POST",), "/v1/select", "read", select, "Select the kernel for a problem."),
    Endpoint(_GET, "/v1/packs", "read", get_index, "Download the signed index of all packs."),
    Endpoint(("POST",), "/v1/packs", "compile", post_pack, "Build a pack for problems or a suite."),
    Endpoint(_GET, "/v1/packs/{name}", "read", get_pack, "Download a pack, or its signature NAME.sig."),
    Endpoint(("POST",), "/v1/records", "write", post_records, "Upload measurements, as JSON Lines."),
    Endpoint(_GET, "/v1/models/{gpu}", "read", get_model, "Download the signed model of a GPU."),
    Endpoint(("POST",), "/v1/models/{gpu}", "admin", post_model, "Train a model; publish it if it is not worse."),
    Endpoint(_GET, "/healthz", "", healthz, "Liveness."),
    Endpoint(_GET, "/readyz", "", readyz, "Readiness."),
    Endpoint(_GET, "/metrics", "read", metrics, "Metrics for Prometheus."),
    Endpoint(_GET, "/", "read", views.kernels, "Web page: kernels."),
    Endpoint(_GET, "/kernels/{kernel}", "read", kernel_views.kernel, "Web page: a kernel, by key or name."),
    Endpoint(_GET, "/drawings/{kernel}", "read", kernel_views.drawing, "Web page: how a kernel works, drawn."),
    Endpoint(_GET, "/problems", "read", views.problems, "Web page: which kernel is selected, and why."),
    Endpoint(_GET, "/explorer", "read", explorer.explorer, "Web page: the kernels of a model, by problem."),
    Endpoint(("POST",), "/explorer", "read", explorer.post_explorer, "Leads to the page of the problems of a form."),
    Endpoint(_GET, "/explorer.csv", "read", explorer.table, "The explorer's table, as CSV."),
    Endpoint(_GET, "/explorer.yaml", "read", explorer.suite, "The explorer's problems, as a suite."),
    Endpoint(_GET, "/queue", "read", views.queue, "Web page: queue and cache."),
    Endpoint(_GET, "/style.css", "", views.style, "Style sheet of the web pages."),
    Endpoint(_GET, "/openapi.json", "", openapi, "This document."),
)


def application(service: Service) -> Routes:
    """The ASGI application of a service; the caller runs :meth:`Service.start` and :meth:`Service.stop`."""
    return Routes(service, ENDPOINTS)


def _document() -> dict[str, Any]:
    """The OpenAPI document of all endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        for method in endpoint.methods:
            parameters = [
                {"name": word[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
                for word in endpoint.path.split("/")
                if word.startswith("{")
            ]
            operation: dict[str, Any] = {
                "summary": endpoint.says,
                "responses": {"default": {"description": "see docs"}},
            }
            if parameters:
                operation["parameters"] = parameters
            if endpoint.scope:
                operation["security"] = [{"token": [endpoint.scope]}]
            paths.setdefault(endpoint.path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "gemmill", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
