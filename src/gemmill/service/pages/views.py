"""The endpoints of the web pages: kernels, one kernel, problems, and queue and cache."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import asdict, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gemmill.emitters.emit import emit
from gemmill.library.arch import GPUS, gpu_named
from gemmill.library.errors import DeviceError, ProblemError
from gemmill.library.problem import GemmProblem
from gemmill.library.version import __version__
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.storage.artifact import Artifact
from gemmill.service.kernel_requests import digest_in_path
from gemmill.service.pages.listings import FILTERS
from gemmill.service.refusal import Refusal
from gemmill.service.served_kernels import required
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_PER_PAGE = 100
_MAP = (16, 64, 256, 1024, 4096, 16384)
"""Values of M and N in the table of kernels by M and N."""
_NO_FACTS = ("boxes", "offsets")
"""Members of a LaunchSpec that the page omits, since they are tables."""
_REFRESH_SECONDS = 5
_EXAMPLE = "4096x4096x4096 bf16 tn"
_SAFE = {
    "Content-Security-Policy": "; ".join(
        ("default-src 'none'", "style-src 'self'", "img-src data:", "form-action 'self'", "frame-ancestors 'none'")
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers that forbid scripts, since the pages show names and problems from clients."""


async def kernels(service: Service, request: Request, _: Caller) -> Response:
    """The page that lists and filters the kernels of the store."""
    filters = {name: request.query_params.get(name, "")[:200] for name in ("words", *FILTERS)}
    rows, unread = await asyncio.to_thread(service.catalogue.rows, filters)
    text = request.query_params.get("page", "1")
    pages = max(1, math.ceil(len(rows) / _PER_PAGE))
    page = min(pages, max(1, int(text))) if text.isdecimal() and len(text) < 9 else 1
    choices = {field: service.catalogue.values(field) for field in FILTERS}
    shown = rows[(page - 1) * _PER_PAGE : page * _PER_PAGE]
    context = {"total": len(rows), "unread": unread, "page": page, "pages": pages, "filters": filters}
    context |= {"choices": choices, "labels": FILTERS}
    return _page("kernels", "Kernels", rows=shown, **context)


async def kernel(service: Service, request: Request, _: Caller) -> Response:
    """The page of one kernel: resources, launch, provenance and source."""
    key = digest_in_path(request, "key")
    served = required(await service.kernels.find(key), key)
    artifact = await asyncio.to_thread(Artifact.from_bytes, served.blob)
    source = None
    if not artifact.is_edited:
        source = (await service.resolver.in_thread(lambda: emit(artifact.config))).text
    facts = {
        "Resources": asdict(artifact.resources),
        "Launch": {name: x for name, x in asdict(artifact.launch).items() if name not in _NO_FACTS},
        "Provenance": asdict(artifact.provenance),
    }
    context = {"requested": service.requested_problems.rows(artifact.name), "now": time.monotonic()}
    return _page("kernel", artifact.name, manifest=served.manifest, facts=facts, source=source, **context)


async def problems(service: Service, request: Request, _: Caller) -> Response:
    """The page that shows which kernel is selected for a problem, why, and the kernels of similar problems."""
    text = request.query_params.get("problem", "")[:4096]
    gpu = request.query_params.get("gpu", next(iter(GPUS)))[:100]
    content: dict[str, Any] = {"problem": text, "gpu": gpu, "gpus": [*GPUS], "example": _EXAMPLE}
    if not text:
        content |= {"requested": service.requested_problems.rows(), "now": time.monotonic()}
    if text:
        try:
            row = gpu_named(gpu)
            choice = await service.resolver.choice(text, row)
            keyed = await service.resolver.keyed(choice.name)
            content |= {
                "choice": choice,
                "key": keyed.key,
                "here": await service.kernels.find(keyed.key) is not None,
                "map": await service.resolver.in_thread(lambda: _map(service.resolver.registry(row), text)),
            }
        except DeviceError as error:
            content["error"] = str(error)
        except Refusal as refusal:
            content["error"] = refusal.message
    return _page("problems", "Problems", **content)


async def queue(service: Service, request: Request, _: Caller) -> Response:
    """The page of running, waiting and finished compilations, with figures of the cache."""
    now = time.monotonic()
    jobs = [
        {"name": job.name, "tenant": job.tenant, "state": job.state, "seconds": now - job.since}
        for job in service.queue.jobs()
    ]
    finished = [{**job._asdict(), "ago": now - job.at} for job in reversed(service.queue.finished)]
    metrics = service.metrics
    count = metrics.value
    hits, misses = count(metrics.kernels, "hit"), count(metrics.kernels, "miss")
    figures = {
        "Kernels requested": f"{hits + misses:,.0f}",
        "Hit rate": f"{hits / (hits + misses):.1%}" if hits + misses else "no requests yet",
        "Compiled": f"{count(metrics.compiles, 'ok'):,.0f}",
        "Failed to compile": f"{count(metrics.compiles, 'failed'):,.0f}",
        "Shared compilations": f"{count(metrics.joined):,.0f}",
        "Kernel bytes sent": _size(count(metrics.sent_bytes)),
        "Kernels in the store": f"{count(metrics.store_kernels):,.0f}",
        "Store size": f"{_size(count(metrics.store_bytes))} of {_size(service.store.max_bytes)}",
        "Open connections": f"{count(metrics.connections):,.0f} of {service.options.connections:,}",
        "Packs": ", ".join(service.packs.names()) or "none",
    }
    refresh = _REFRESH_SECONDS if "refresh" in request.query_params else None
    context = {"jobs": jobs, "ended": finished, "figures": figures, "problem": service.readiness(), "refresh": refresh}
    return _page("queue", "Queue and cache", **context)


async def style(_service: Service, _request: Request, _caller: Caller) -> Response:
    """Send the style sheet."""
    return Response(_text("style.css"), headers={"Cache-Control": "max-age=3600"}, media_type="text/css")


def _size(count: float) -> str:
    """A size in bytes as text, with a binary unit."""
    unit = min(3, max(0, int(math.log2(count)) // 10)) if count else 0
    return f"{count / 1024**unit:,.{1 if unit else 0}f} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def _map(registry: Registry, text: str) -> list[tuple[int, list[tuple[int, Choice | None]]]]:
    """The kernels selected for problems that differ only in M and N: a row for each M."""
    filters = GemmProblem.from_text(text)

    def choice(m: int, n: int) -> Choice | None:
        try:
            return registry.select(replace(filters, m=m, n=n))
        except ProblemError:
            return None

    return [(m, [(n, choice(m, n)) for n in _MAP]) for m in _MAP]


def _page(template: str, title: str, **content: Any) -> Response:
    page = _environment().get_template(f"{template}.html")
    html = page.render(title=title, section=template, version=__version__, isnan=math.isnan, **content)
    return HTMLResponse(html, headers=_SAFE)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_text),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _text(name: str) -> str:
    return (resources.files("gemmill.service.pages") / "templates" / name).read_text(encoding="utf-8")
