"""Endpoints that select and compile kernels, by name, problem or source."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.frozen import Frozen
from gemmill.runtime.select.choice import Choice
from gemmill.service.bodies import KernelRequest, Texts, malformed, read_json
from gemmill.service.compiling.queue import Job
from gemmill.service.compiling.resolver import KeyedKernel, Target, target
from gemmill.service.refusal import Refusal
from gemmill.service.served_kernels import Served
from gemmill.service.service_options import ITEMS, WAIT_SECONDS
from gemmill.service.tokens import Caller, allowed

if TYPE_CHECKING:
    from gemmill.service.service import Service


class SentSource(Frozen):
    """An edited source, and the name of the kernel that it was generated for."""

    kernel: str
    source: str


class InstantiateRequest(KernelRequest):
    """The body of ``POST /v1/instantiate``."""

    kernels: Texts | None = None
    problems: Texts | None = None
    sources: Annotated[list[SentSource], Field(max_length=ITEMS)] | None = None
    wait: float | None = Field(None, ge=0, le=WAIT_SECONDS)


class SelectRequest(KernelRequest):
    """The body of ``POST /v1/select``."""

    problem: str = Field(min_length=1)
    sm_count: int | None = None


_WAIT_SECONDS = 60.0
"""How long a request waits for its kernels by default."""


@dataclass
class Resolution:
    """The state of everything that one request asks for."""

    resolved: list[tuple[str | None, KeyedKernel]] = field(default_factory=list)
    """Kernels that exist or compile, each with its problem; None for a kernel requested by name or source."""
    failed: list[tuple[dict[str, str], Refusal]] = field(default_factory=list)
    """Items without a valid kernel, and kernels that the queue refused, each with the error."""
    ready: dict[str, Served] = field(default_factory=dict)
    """Compiled kernels, by name."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Queued and running compilations, by name of the kernel."""


async def instantiate(service: Service, request: Request, caller: Caller) -> Response:
    """Answer with JSON Lines; if every item must be retried later for the same reason, answer 429 or 503 instead."""
    body = await read_json(request, InstantiateRequest)
    machine = target(body)
    if body.sources:
        if not service.options.accept_source:
            raise Refusal(
                403,
                "no_source",
                "This server does not compile edited sources.",
                "use a server started with --accept-source, or compile locally: gemmill build FILE.cu",
            )
        allowed(caller, "source")
    items = [{"kernel": name} for name in body.kernels or ()]
    items += [{"problem": text} for text in body.problems or ()]
    items += [source.model_dump() for source in body.sources or ()]
    if not 0 < len(items) <= ITEMS:
        raise malformed(f"{len(items):,} kernels, problems and sources; a request must have 1 to {ITEMS:,}.")
    wait = _WAIT_SECONDS if body.wait is None else body.wait
    resolution = await resolve(service, items, machine, caller, body.bits)
    if not resolution.ready and not resolution.jobs and resolution.failed:
        statuses = {refusal.status for _, refusal in resolution.failed}
        if len(statuses) == 1 and statuses & {429, 503}:  # the client can only retry
            raise resolution.failed[0][1]
    return StreamingResponse(lines(resolution, wait), media_type="application/x-ndjson")


async def resolve(
    service: Service, items: list[dict[str, str]], machine: Target, caller: Caller, bits: str
) -> Resolution:
    """Resolve names, problems and sources; find the kernels that exist, and queue the others."""
    resolution = Resolution()
    for item in items:
        try:
            kernel = await _kernel_of(service, item, machine, bits)
            service.resolver.check_target(kernel, machine)
            resolution.resolved.append((item.get("problem"), kernel))
        except Refusal as refusal:
            resolution.failed.append(({key: text for key, text in item.items() if key != "source"}, refusal))
    for kernel in {kernel.name: kernel for _, kernel in resolution.resolved}.values():
        served = await service.kernels.find(kernel.key)
        (service.metrics.misses if served is None else service.metrics.hits).inc()
        if served is not None:
            resolution.ready[kernel.name] = served
            continue
        try:
            resolution.jobs[kernel.name] = await service.queue.submit(kernel, caller.name)
        except Refusal as refusal:
            service.metrics.refused.labels(refusal.code).inc()
            resolution.failed.append(({"kernel": kernel.name}, refusal))
    return resolution


async def _kernel_of(service: Service, item: dict[str, str], machine: Target, bits: str) -> KeyedKernel:
    """The kernel of an item: a problem, a source, or a name."""
    if (problem := item.get("problem")) is not None:
        choice = await service.resolver.choice(problem, machine.gpu, bits)
        service.requested_problems.note(machine.gpu, choice, bits)
        return await service.resolver.keyed(choice.name)
    if (source := item.get("source")) is not None:
        return await service.resolver.sent(item["kernel"], source)
    return await service.resolver.keyed(item["kernel"])


async def lines(resolution: Resolution, wait: float) -> AsyncIterator[bytes]:
    """Events as JSON Lines, each sent as it happens, until all kernels are done or ``wait`` seconds are over."""
    until = time.monotonic() + wait
    for problem, kernel in resolution.resolved:
        item_fields = {} if problem is None else {"problem": problem}
        yield _line("resolved", **item_fields, kernel=kernel.name, key=kernel.key)
    for item_fields, refusal in resolution.failed:
        yield _line("failed", **item_fields, error=refusal.document())
    for name, served in resolution.ready.items():
        yield _ready(name, served)
    for name, job in resolution.jobs.items():
        yield _line("queued" if job.state == "queued" else "compiling", kernel=name)
    ready, failed = len(resolution.ready), len(resolution.failed)
    waits: dict[asyncio.Future[Any], tuple[str, Job]] = {}
    for name, job in resolution.jobs.items():
        waits[job.result] = name, job
        if job.state == "queued":
            waits[asyncio.ensure_future(job.started.wait())] = name, job
    pending = len(resolution.jobs)
    try:
        while pending and (remaining := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waits, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                name, job = waits.pop(future)
                if future is not job.result:
                    if job.state == "compiling":
                        yield _line("compiling", kernel=name)
                    continue
                pending -= 1
                result = job.result.result()
                if isinstance(result, Refusal):
                    failed += 1
                    yield _line("failed", kernel=name, error=result.document())
                else:
                    ready += 1
                    yield _ready(name, result)
    finally:
        for future, (_, job) in waits.items():
            if future is not job.result:
                future.cancel()
    yield _line("done", ready=ready, failed=failed, pending=pending)


def _ready(name: str, served: Served) -> bytes:
    manifest = json.loads(served.envelope)
    return _line("ready", kernel=name, key=served.manifest.key, manifest=manifest)


def _line(event: str, **fields: object) -> bytes:
    return json.dumps({"event": event, **fields}, separators=(",", ":")).encode() + b"\n"


async def select(service: Service, request: Request, _: Caller) -> Response:
    """Answer with the kernel selected for a problem, its key, the reason, and the runners-up."""
    body = await read_json(request, SelectRequest)
    gpu = target(body).gpu
    choice = await service.resolver.choice(body.problem, gpu, body.bits, body.sm_count)
    service.requested_problems.note(gpu, choice, body.bits)
    kernel = await service.resolver.keyed(choice.name)
    return JSONResponse({"problem": str(choice.problem), "kernel": choice.name, "key": kernel.key, **_facts(choice)})


def _facts(choice: Choice) -> dict[str, Any]:
    return {
        "slices": choice.slices,
        "arithmetic": arithmetic_named(choice.kernel),
        "why": choice.why,
        "source": choice.source,
        "swap_ab": choice.swap_ab,
        "us": None if math.isnan(choice.predicted_us) else choice.predicted_us,
        "runners_up": [
            {"kernel": kernel.name, "slices": kernel.slices, "arithmetic": arithmetic_named(kernel), "us": us}
            for kernel, us in choice.runners_up
        ],
    }
