"""Packs of a state's folder: built from problems, signed, and listed in an index."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from gemmill.library.errors import GemmillError, PackError
from gemmill.library.files import make_private
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.trust.signed_packs import PackFacts, PackIndex, sign_pack
from gemmill.service.bodies import KernelRequest, Texts, malformed, read_json
from gemmill.service.compiling.queue import CompileQueue
from gemmill.service.compiling.resolver import KeyedKernel, Resolver, Target, target
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.served_kernels import Kernels, Served, Signing
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

NAME = r"^[0-9A-Za-z_][0-9A-Za-z_.-]{0,99}\.pack$"
"""What a pack may be called."""
LIFETIME = timedelta(days=7)
"""How long an index counts."""
_INDEX_SECONDS = 3600.0
"""An index is made anew after this long, and when packs come or go."""


class Packs:
    """Packs that are there, and those that are being built."""

    def __init__(
        self, state: Path, resolver: Resolver, kernels: Kernels, queue: CompileQueue, signing: Signing
    ) -> None:
        self.folder = state / "packs"
        self._resolver, self._kernels, self._queue, self._signing = resolver, kernels, queue, signing
        self.building: dict[str, asyncio.Task[None]] = {}
        """By name; those that have failed stay until they are built again."""
        self._index = 0.0, 0, b""
        """When it was made, the time of the folder then, and the index."""

    def names(self) -> list[str]:
        """What is there."""
        return sorted(path.name for path in self.folder.glob("*.pack") if re.fullmatch(NAME, path.name))

    def index(self) -> bytes:
        """The signed index of what is there. GemmillError where a pack is damaged."""
        made, at, index = self._index
        changed = self.folder.stat().st_mtime_ns if self.folder.exists() else 10**9
        if at != changed or time.monotonic() - made > _INDEX_SECONDS:
            packs = [Pack.open(self.folder / name) for name in self.names()]
            # The version is the time of the folder, so that servers which share it say the same.
            index = PackIndex.of(packs, LIFETIME, version=changed // 10**9).seal(self._signing.keys)
            self._index = time.monotonic(), changed, index
        return index

    def build(self, name: str, problems: Sequence[str], machine: Target, tenant: str) -> None:
        """Begin to build a pack, in place of one of its name, for as long as it takes."""
        self.building[name] = asyncio.create_task(self._build(name, problems, machine, tenant))

    async def _build(self, name: str, problems: Sequence[str], machine: Target, tenant: str) -> None:
        chosen: dict[str, KeyedKernel] = {}
        for problem in problems:
            keyed = await self._resolver.keyed((await self._resolver.choice(problem, machine.gpu)).name)
            self._resolver.check_target(keyed, machine)
            chosen[keyed.name] = keyed
        served = [await self._compiled(keyed, tenant) for keyed in chosen.values()]
        await asyncio.to_thread(self._write, name, [each.blob for each in served])
        del self.building[name]

    async def _compiled(self, keyed: KeyedKernel, tenant: str) -> Served:
        """A kernel, as soon as the queue takes it; Refusal where it does not compile."""
        while (served := await self._kernels.find(keyed.key)) is None:
            try:
                result = await (await self._queue.submit(keyed, tenant)).result
            except Refusal as refusal:
                if refusal.retry_after is None or self._queue.closing:
                    raise
                await asyncio.sleep(refusal.retry_after)
                continue
            if isinstance(result, Refusal):
                raise result
            return result
        return served

    def _write(self, name: str, blobs: Sequence[bytes]) -> PackFacts:
        make_private(self.folder)
        path = self.folder / name
        write_pack(path, map(Artifact.from_bytes, blobs))
        return sign_pack(path, self._signing.keys) if self._signing.keys else PackFacts.of(Pack.open(path))


def suite_problems(suite: str) -> list[str]:
    """The problems of a shape suite that ships; Refusal where there is none of the name."""
    if suite not in (suites := shipped_suites()):
        raise Refusal(422, "malformed", f"suite is {suite!r:.80}; there are {', '.join(suites)}")
    try:
        return [str(shape.problem) for shape in load_shapes(suites[suite]).shapes]
    except GemmillError as error:
        raise Refusal(422, "malformed", f"suite {suite}: {error}") from None


def failure(task: asyncio.Task[None]) -> Refusal | None:
    """Why a pack could not be built; None while it may still be."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    if isinstance(error, PackError):
        return Refusal(507, "full", str(error))
    return error if isinstance(error, Refusal) else Refusal(500, "internal", f"{type(error).__name__}: {error}")


class PackRequest(KernelRequest):
    """A pack to build."""

    name: str = Field(pattern=NAME)
    problems: Texts | None = None
    suite: str | None = None


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
    if not re.fullmatch(NAME, pack):
        raise malformed(f"{name!r:.120} is no name of a pack such as large.pack")
    if (task := service.packs.building.get(pack)) is not None:
        raise failure(task) or Refusal(404, "building", f"{pack} is being built", retry_after=5)
    path = service.packs.folder / name
    if not path.is_file():
        raise not_found(name, "POST /v1/packs builds packs")
    return FileResponse(path, media_type="application/octet-stream")


async def post_pack(service: Service, request: Request, caller: Caller) -> Response:
    """Begin to build a pack of the kernels that problems, or a suite that ships, go to."""
    body = await read_json(request, PackRequest)
    machine, name, problems = target(body), body.name, body.problems or []
    if body.suite is not None:
        problems += await asyncio.to_thread(suite_problems, body.suite)
    if not problems:
        raise malformed("problems and suite say nothing; a pack is for problems")
    if (task := service.packs.building.get(name)) is not None and not task.done():
        raise Refusal(409, "building", f"{name} is being built", retry_after=5)
    service.packs.build(name, problems, machine, caller.name)
    return JSONResponse({"name": name, "state": "building"}, 202, {"Location": f"/v1/packs/{name}"})
