"""Packs: listed, built, fetched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from gemmill.library.errors import GemmillError
from gemmill.service.bodies import malformed, read_json, texts
from gemmill.service.compiling.resolve import check_version, target
from gemmill.service.packs.build import NAME, failure, suite_problems
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

_MEMBERS = {
    "name": str,
    "problems": list,
    "suite": str,
    "gemmill": str,
    "headers": str,
    "gpu": dict,
    "driver_cuda": list,
}


async def get_index(service: Service, _request: Request, _caller: Caller) -> Response:
    """The signed index of all packs."""
    try:
        index = await asyncio.to_thread(service.packs.index)
    except GemmillError as error:
        raise Refusal(500, "pack", str(error), "remove the pack from the server's state") from None
    return Response(index, headers={"Cache-Control": "no-cache"}, media_type="application/json")


async def get_pack(service: Service, request: Request, _: Caller) -> Response:
    """A pack, or its signature, or what became of it."""
    name = str(request.path_params["name"])
    pack = name.removesuffix(".sig")
    if not NAME.fullmatch(pack):
        raise malformed(f"{name!r:.120} is no name of a pack such as large.pack")
    if (task := service.packs.building.get(pack)) is not None:
        raise failure(task) or Refusal(404, "building", f"{pack} is being built", retry_after=5)
    path = service.packs.folder / name
    if not path.is_file():
        raise not_found(name, "POST /v1/packs builds packs")
    return FileResponse(path, media_type="application/octet-stream")


async def post_pack(service: Service, request: Request, caller: Caller) -> Response:
    """Begin to build a pack of the kernels that problems, or a suite that ships, go to."""
    body = await read_json(request, _MEMBERS)
    check_version(body.get("gemmill"), body.get("headers"))
    name, problems = body.get("name") or "", texts(body, "problems")
    if not NAME.fullmatch(name):
        raise malformed(f"name is {name!r:.120}; it must be such as large.pack")
    if (suite := body.get("suite")) is not None:
        problems += await asyncio.to_thread(suite_problems, suite)
    if not problems:
        raise malformed("problems and suite say nothing; a pack is for problems")
    if (task := service.packs.building.get(name)) is not None and not task.done():
        raise Refusal(409, "building", f"{name} is being built", retry_after=5)
    service.packs.build(name, problems, target(body.get("gpu"), body.get("driver_cuda")), caller.name)
    return JSONResponse({"name": name, "state": "building"}, 202, {"Location": f"/v1/packs/{name}"})
