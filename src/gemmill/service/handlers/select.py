"""Which kernel a problem goes to, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.runtime.select.choice import Choice
from gemmill.service.bodies import malformed, read_json
from gemmill.service.compiling.resolve import check_version, target
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_MEMBERS = {"problem": str, "gemmill": str, "headers": str, "gpu": dict, "sm_count": int}


async def select(service: Service, request: Request, _: Caller) -> Response:
    """The kernel of a problem, its key, why, and the runners-up."""
    body = await read_json(request, _MEMBERS)
    check_version(body.get("gemmill"), body.get("headers"))
    if not (problem := body.get("problem")):
        raise malformed("problem is not there; it is a line such as '4096x4096x4096 bf16 tn'")
    gpu = target(body.get("gpu"), None).gpu
    choice = await service.resolver.choice(problem, gpu, body.get("sm_count"))
    service.asked.note(gpu.name, choice)
    kernel = await service.resolver.keyed(choice.name)
    return JSONResponse({"problem": str(choice.problem), "kernel": choice.name, "key": kernel.key, **_told(choice)})


def _told(choice: Choice) -> dict[str, Any]:
    return {
        "why": choice.why,
        "source": choice.source,
        "swap_ab": choice.swap_ab,
        "us": None if math.isnan(choice.predicted_us) else choice.predicted_us,
        "runners_up": [{"kernel": name, "us": us} for name, us in choice.runners_up],
    }
