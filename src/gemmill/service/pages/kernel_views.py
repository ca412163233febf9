"""The endpoints that show one kernel: what it is, and how it works."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from gemmill.emitters.emit import emit, launch_spec
from gemmill.library.anatomy import kernel_page
from gemmill.library.anatomy.raster import Waves
from gemmill.library.anatomy.sheet import Kernel
from gemmill.library.arch import DEFAULT_GPU, Gpu
from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.config.edited import is_edited, plain_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.families.families import plan_of
from gemmill.library.files import is_sha256
from gemmill.library.input.group_sizes import sizes_of
from gemmill.library.legality.explanation import fields_in_words, resources_of
from gemmill.library.problem import GemmProblem
from gemmill.runtime.kernel_occupancy import assumed_occupancy, occupancy_of
from gemmill.runtime.select.waves import waves_of
from gemmill.runtime.storage.artifact import Artifact
from gemmill.service.bodies import malformed
from gemmill.service.pages.rendering import content_policy, facts, rendered
from gemmill.service.served_kernels import Served, required
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_TABLES = ("boxes", "offsets")
"""Members of a LaunchSpec that the page omits, since they are tables."""
_SCRIPT_DIGEST = base64.b64encode(hashlib.sha256(kernel_page.SCRIPT.encode()).digest()).decode()
_DRAWING = content_policy("style-src 'unsafe-inline'", f"script-src 'sha256-{_SCRIPT_DIGEST}'", "img-src data:")
"""Headers of a drawing, which has a script: that of its slider, and no other."""


class Shown(NamedTuple):
    """A kernel, compiled or not."""

    name: str
    config: GemmConfig
    served: Served | None
    artifact: Artifact | None


async def kernel(service: Service, request: Request, _: Caller) -> Response:
    """The page of one kernel: its fields, needs and source; of a compiled one also resources, launch and provenance."""
    shown = await _shown(service, str(request.path_params["kernel"]))
    config, artifact = shown.config, shown.artifact
    source = None
    if not is_edited(shown.name):
        source = (await service.resolver.in_thread(lambda: emit(config))).text
    arithmetic = arithmetic_of(config, 0)
    tables = {"Fields": fields_in_words(config), "Needs": facts(resources_of(config))}
    if source is not None:  # an edited source can change it
        tables["Arithmetic"] = {"class": str(arithmetic), "sums": arithmetic.in_words()}
    if artifact is not None:
        launch = {name: value for name, value in asdict(artifact.launch).items() if name not in _TABLES}
        tables |= {"Resources": facts(asdict(artifact.resources)), "Launch": facts(launch)}
        tables |= {"Provenance": facts(asdict(artifact.provenance))}
    requested = service.requested_problems.rows(shown.name)
    return rendered(
        "kernel", shown.name, shown=shown, tables=tables, source=source, requested=requested, now=time.monotonic()
    )


async def drawing(service: Service, request: Request, _: Caller) -> Response:
    """The picture of a kernel, as `gemmill draw` writes it: HTML, or SVG if the query has ``svg``."""
    shown = await _shown(service, str(request.path_params["kernel"]))
    problem = request.query_params.get("problem", "")[:4096]
    gpu = service.requested_problems.gpu(request.query_params.get("gpu", DEFAULT_GPU.name)[:100])
    slices = request.query_params.get("slices", "1")
    if not (slices.isdecimal() and len(slices) < 9):
        raise malformed(f"slices is {slices!r:.100}; it must be a number.")
    is_svg = "svg" in request.query_params
    write = kernel_page.as_svg if is_svg else kernel_page.as_html
    drawn = await service.resolver.in_thread(lambda: write(*_drawn(shown, problem, gpu, int(slices))))
    return Response(drawn, media_type="image/svg+xml" if is_svg else "text/html", headers=_DRAWING)


async def _shown(service: Service, key_or_name: str) -> Shown:
    """The kernel of a key or of a name. The name of an edited kernel only leads to the config that it was made from."""
    if is_sha256(key_or_name):
        served: Served | None = required(await service.kernels.find(key_or_name), key_or_name)
    else:
        keyed = await service.resolver.keyed(await service.resolver.in_thread(lambda: plain_name(key_or_name)))
        if is_edited(key_or_name):
            return Shown(key_or_name, keyed.config, None, None)
        served = await service.kernels.find(keyed.key)
    if served is None:
        return Shown(keyed.name, keyed.config, None, None)
    artifact = await asyncio.to_thread(Artifact.from_bytes, served.blob)
    return Shown(artifact.name, artifact.config, served, artifact)


def _drawn(shown: Shown, problem_text: str, gpu: Gpu, slices: int) -> tuple[Kernel, Waves | None]:
    """A kernel with what its drawing shows, and the waves of a problem."""
    config, waves = shown.config, None
    if shown.artifact is None:
        occupancy = assumed_occupancy(config, "this server does not have the kernel yet")
    else:
        occupancy = occupancy_of(shown.artifact)
    if problem_text:
        problem = GemmProblem.from_text(problem_text)
        waves = waves_of(config, problem, gpu, sizes_of(problem), slices)
        waves = waves.sharing_sms(occupancy.ctas)
    return Kernel(kernel_name(config), plan_of(config), launch_spec(config), occupancy), waves
