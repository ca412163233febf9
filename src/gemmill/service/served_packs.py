"""Packs in the state folder: built for problems, signed, and listed in an index."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from gemmill.library.arch import Gpu
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import GemmillError, PackError
from gemmill.library.files import make_private
from gemmill.library.problem import GemmProblem, Regime
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.runtime.pack_choice import REGRET, Conditions, PackChoice, kernels_for, supported
from gemmill.runtime.pack_tables import decisions_of, table_among
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.trust.signed_packs import PackFacts, PackIndex, sign_pack
from gemmill.service.bodies import KernelRequest, Texts, malformed, read_json
from gemmill.service.compiling.queue import CompileQueue
from gemmill.service.compiling.resolver import KeyedKernel, Resolver, Target, target, with_refusals
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.served_kernels import Kernels, Served, Signing
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

NAME = r"^[0-9A-Za-z_][0-9A-Za-z_.-]{0,99}\.pack$"
"""Pattern of valid pack names."""
LIFETIME = timedelta(days=7)
"""How long an index is valid."""
_OBJECTIVE: Regime = "sustained"
"""As `gemmill pack` has it by default."""
_INDEX_SECONDS = 3600.0
"""Age at which the index is made again; it is also made again when packs are added or removed."""


class Packs:
    """The packs in the state folder, and the builds in progress."""

    def __init__(
        self, state: Path, resolver: Resolver, kernels: Kernels, queue: CompileQueue, signing: Signing
    ) -> None:
        self.folder = state / "packs"
        self._resolver, self._kernels, self._queue, self._signing = resolver, kernels, queue, signing
        self.building: dict[str, asyncio.Task[None]] = {}
        """Builds by name of the pack; a failed build stays until the pack is built again."""
        self._index = 0.0, 0, b""
        """When the index was made, the modification time of the folder then, and the index."""

    def names(self) -> list[str]:
        """The names of all packs."""
        return sorted(path.name for path in self.folder.glob("*.pack") if re.fullmatch(NAME, path.name))

    def index(self) -> bytes:
        """The signed index of all packs; GemmillError if a pack is damaged."""
        made_at, modified, index = self._index
        changed = self.folder.stat().st_mtime_ns if self.folder.exists() else 10**9
        if modified != changed or time.monotonic() - made_at > _INDEX_SECONDS:
            packs = [Pack.open(self.folder / name) for name in self.names()]
            # The version is the modification time of the folder, which all servers that share it agree on.
            index = PackIndex.of(packs, LIFETIME, version=changed // 10**9).seal(self._signing.keys)
            self._index = time.monotonic(), changed, index
        return index

    def build(self, name: str, problems: Sequence[str], machine: Target, tenant: str, bits: str) -> None:
        """Start to build a pack in the background; it replaces a pack of the same name."""
        self.building[name] = asyncio.create_task(self._build(name, problems, machine, tenant, bits))

    async def _build(self, name: str, problems: Sequence[str], machine: Target, tenant: str, bits: str) -> None:
        registry = self._resolver.new_registry(machine.gpu)
        chosen = await asyncio.to_thread(with_refusals, lambda: _chosen(problems, registry, bits))
        kernels = [await self._resolver.keyed(kernel_name(config)) for config in chosen.configs]
        for kernel in kernels:
            self._resolver.check_target(kernel, machine)
        artifacts = [Artifact.from_bytes((await self._compiled(kernel, tenant)).blob) for kernel in kernels]
        await asyncio.to_thread(self._write, name, artifacts, chosen, registry.gpu, bits)
        del self.building[name]

    async def _compiled(self, keyed: KeyedKernel, tenant: str) -> Served:
        """The compiled kernel; waits while the queue is full. Refusal if it does not compile."""
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

    def _write(self, name: str, artifacts: Sequence[Artifact], chosen: PackChoice, gpu: Gpu, bits: str) -> PackFacts:
        decisions = decisions_of(artifacts, chosen.shipped)
        table = table_among(artifacts, decisions, chosen.times, gpu, _OBJECTIVE, bits)
        make_private(self.folder)
        path = self.folder / name
        write_pack(path, artifacts, decisions, table)
        return sign_pack(path, self._signing.keys) if self._signing.keys else PackFacts.of(Pack.open(path))


def _chosen(problems: Sequence[str], registry: Registry, bits: str) -> PackChoice:
    """The kernels for problems; GemmillError if one has an error or no kernel."""
    counts = Counter(map(GemmProblem.from_text, problems))
    under = Conditions(registry, _OBJECTIVE, REGRET, bits)
    rows = supported(counts, under)
    for problem in counts.keys() - rows.keys():
        registry.select(problem, bits=bits)  # raises the reason
    return kernels_for(rows, counts, under)


def suite_problems(suite: str) -> list[str]:
    """The problems of a built-in shape suite; Refusal if no suite has the name."""
    if suite not in (suites := shipped_suites()):
        raise Refusal(422, "malformed", f"Unknown suite {suite!r:.80}; expected one of {', '.join(suites)}.")
    try:
        return [str(shape.problem) for shape in load_shapes(suites[suite]).shapes]
    except GemmillError as error:
        raise Refusal(422, "malformed", f"Suite {suite}: {error}") from None


def failure(task: asyncio.Task[None]) -> Refusal | None:
    """Why a build failed; None if it has not failed."""
    if not task.done() or task.cancelled():
        return None
    error = task.exception()
    if isinstance(error, PackError):
        return Refusal(507, "full", str(error))
    return error if isinstance(error, Refusal) else Refusal(500, "internal", f"{type(error).__name__}: {error}")


class PackRequest(KernelRequest):
    """The body of ``POST /v1/packs``."""

    name: str = Field(pattern=NAME)
    problems: Texts | None = None
    suite: str | None = None


async def get_index(service: Service, _request: Request, _caller: Caller) -> Response:
    """Send the signed index of all packs."""
    try:
        index = await asyncio.to_thread(service.packs.index)
    except GemmillError as error:
        raise Refusal(500, "pack", str(error), "remove the pack from the server's state folder") from None
    return Response(index, headers={"Cache-Control": "no-cache"}, media_type="application/json")


async def get_pack(service: Service, request: Request, _: Caller) -> Response:
    """Send a pack or its signature; if its build is running or has failed, answer with an error."""
    name = str(request.path_params["name"])
    pack = name.removesuffix(".sig")
    if not re.fullmatch(NAME, pack):
        raise malformed(f"Invalid pack name {name!r:.120}; expected a name such as large.pack.")
    if (task := service.packs.building.get(pack)) is not None:
        raise failure(task) or Refusal(404, "building", f"{pack} is still being built.", retry_after=5)
    path = service.packs.folder / name
    if not path.is_file():
        raise not_found(f"pack {name}", "POST /v1/packs builds packs")
    return FileResponse(path, media_type="application/octet-stream")


async def post_pack(service: Service, request: Request, caller: Caller) -> Response:
    """Start to build a pack of the kernels for problems, or for a built-in suite."""
    body = await read_json(request, PackRequest)
    machine, name, problems = target(body), body.name, body.problems or []
    if body.suite is not None:
        problems += await asyncio.to_thread(suite_problems, body.suite)
    if not problems:
        raise malformed("Missing problems: pass problems, suite, or both.")
    if (task := service.packs.building.get(name)) is not None and not task.done():
        raise Refusal(409, "building", f"{name} is already being built.", retry_after=5)
    service.packs.build(name, problems, machine, caller.name, body.bits)
    return JSONResponse({"name": name, "state": "building"}, 202, {"Location": f"/v1/packs/{name}"})
