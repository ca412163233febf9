"""The endpoints of the pages that list: kernels, problems, and queue and cache."""

from __future__ import annotations

import asyncio
import math
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from gemmill.library.arch import GPUS, Gpu
from gemmill.library.bits import ANY, BITS
from gemmill.library.problem import GemmProblem
from gemmill.service.pages.kernel_map import KernelMap
from gemmill.service.pages.listings import FILTERS
from gemmill.service.pages.rendering import rendered, template_text
from gemmill.service.refusal import Refusal
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_PER_PAGE = 100
_REFRESH_SECONDS = 5
_EXAMPLE = "4096x4096x4096 bf16 tn"


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
    return rendered("kernels", "Kernels", rows=shown, **context)


async def problems(service: Service, request: Request, _: Caller) -> Response:
    """The page that shows which kernel is selected for a problem, why, and the kernels of similar problems."""
    text = request.query_params.get("problem", "")[:4096]
    gpu = request.query_params.get("gpu", next(iter(GPUS)))[:100]
    bits = request.query_params.get("bits", ANY)[:100]
    content: dict[str, Any] = {"problem": text, "gpu": gpu, "gpus": [*GPUS], "bits": bits, "words": BITS}
    content["example"] = _EXAMPLE
    if not text:
        content |= {"requested": service.requested_problems.rows(), "now": time.monotonic()}
    try:
        row = service.requested_problems.gpu(gpu)
        content |= {"gpu": row.name, "gpus": [*dict.fromkeys((*GPUS, row.name))]}
        if text:
            choice = await service.resolver.choice(text, row, bits)
            keyed = await service.resolver.keyed(choice.name)
            content |= {
                "choice": choice,
                "ranked": [(choice.kernel, choice.predicted_us), *choice.runners_up],
                "here": await service.kernels.find(keyed.key) is not None,
                "map": await service.resolver.in_thread(lambda: _map(service, row, text, bits)),
            }
    except Refusal as refusal:
        content["error"] = refusal.message
    page = rendered("problems", "Problems", **content)
    page.status_code = 422 if "error" in content else 200
    return page


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
    return rendered("queue", "Queue and cache", **context)


def refusal(refusal: Refusal) -> Response:
    """The page of an error."""
    response = rendered("refusal", HTTPStatus(refusal.status).phrase, refusal=refusal)
    response.status_code = refusal.status
    return response


async def style(_service: Service, _request: Request, _caller: Caller) -> Response:
    """Send the style sheet."""
    return Response(template_text("style.css"), headers={"Cache-Control": "max-age=3600"}, media_type="text/css")


def _size(count: float) -> str:
    """A size in bytes as text, with a binary unit."""
    unit = min(3, max(0, int(math.log2(count)) // 10)) if count else 0
    return f"{count / 1024**unit:,.{1 if unit else 0}f} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def _map(service: Service, gpu: Gpu, text: str, bits: str) -> KernelMap:
    return KernelMap.of(service.resolver.registry(gpu), GemmProblem.from_text(text), bits)
