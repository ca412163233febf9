"""The application: all routes, and what is said of them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.library.version import __version__
from gemmill.service.handlers import health, instantiate, kernels, learning, packs, select
from gemmill.service.pages import views
from gemmill.service.routes import Endpoint, Routes
from gemmill.service.service import Service
from gemmill.service.tokens import Caller

_GET = ("GET", "HEAD")


async def openapi(_service: Service, _request: Request, _caller: Caller) -> Response:
    """What there is to ask for, as OpenAPI."""
    return JSONResponse(_document())


ENDPOINTS = (
    Endpoint(_GET, "/v1/kernels/{key}", "read", kernels.get_kernel, "A kernel's signed manifest."),
    Endpoint(_GET, "/v1/blobs/{sha256}", "read", kernels.get_blob, "A kernel's bytes; ETag, ranges, immutable."),
    Endpoint(("PUT",), "/v1/blobs/{sha256}", "write", kernels.put_blob, "Send a kernel's bytes, before its manifest."),
    Endpoint(("PUT",), "/v1/kernels/{key}", "write", kernels.put_kernel, "Send a kernel's manifest."),
    Endpoint(("POST",), "/v1/instantiate", "compile", instantiate.instantiate, "Have kernels compiled: lines of JSON."),
    Endpoint(("POST",), "/v1/select", "read", select.select, "The kernel of a problem, and why."),
    Endpoint(_GET, "/v1/packs", "read", packs.get_index, "The signed index of packs."),
    Endpoint(("POST",), "/v1/packs", "compile", packs.post_pack, "Build a pack of problems or of a suite."),
    Endpoint(_GET, "/v1/packs/{name}", "read", packs.get_pack, "A pack; its signature as NAME.sig."),
    Endpoint(("POST",), "/v1/records", "write", learning.post_records, "Send measurements, as JSON Lines."),
    Endpoint(_GET, "/v1/models/{gpu}", "read", learning.get_model, "The signed model in force of a GPU."),
    Endpoint(("POST",), "/v1/models/{gpu}", "admin", learning.post_model, "Train a model, and publish it if no worse."),
    Endpoint(_GET, "/healthz", "", health.healthz, "Whether the process answers."),
    Endpoint(_GET, "/readyz", "", health.readyz, "Whether it takes requests."),
    Endpoint(_GET, "/metrics", "read", health.metrics, "Figures for Prometheus."),
    Endpoint(_GET, "/", "read", views.kernels, "For people: kernels."),
    Endpoint(_GET, "/kernels/{key}", "read", views.kernel, "For people: a kernel's source and resources."),
    Endpoint(_GET, "/problems", "read", views.problems, "For people: where problems go, and why."),
    Endpoint(_GET, "/queue", "read", views.queue, "For people: what the server is doing."),
    Endpoint(_GET, "/style.css", "", views.style, "The pages' style sheet."),
    Endpoint(_GET, "/openapi.json", "", openapi, "This document."),
)


def application(service: Service) -> Routes:
    """A server as an ASGI application, without what begins and ends with it (:meth:`Service.start`)."""
    return Routes(service, ENDPOINTS)


def _document() -> dict[str, Any]:
    """OpenAPI of the table of routes."""
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
