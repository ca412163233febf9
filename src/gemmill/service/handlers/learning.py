"""Records in, models out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.library.arch import GPUS, gpu_called
from gemmill.runtime.select.models import FOLDER, REQUIRED, path_of
from gemmill.runtime.workers import Worker, WorkerError
from gemmill.service.bodies import malformed, read_body
from gemmill.service.options import RECORDS_BYTES
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

MODEL = "gemmill.model/1"
"""What a model's envelope says it is."""
_SEND_SECONDS = 60.0


async def post_records(service: Service, request: Request, caller: Caller) -> Response:
    """Take in measurements, as JSON Lines."""
    data = await read_body(request, RECORDS_BYTES)
    count, new = await asyncio.to_thread(service.records.take, caller.name, data)
    if new:
        service.metrics.uploads.labels("records").inc()
    return JSONResponse({"records": count, "new": new}, 201 if new else 200)


async def get_model(service: Service, request: Request, _: Caller) -> Response:
    """The model in force of a GPU, signed: its files by name, and its number, 0 of what ships."""
    gpu = _gpu(request)
    folder = service.models.folder(gpu)
    paths = [path_of(gpu, what, folder or FOLDER) for what in REQUIRED]
    if not all(path.is_file() for path in paths):
        raise not_found(f"a model of {gpu}")
    number = int(folder.name) if folder else 0
    files = {path.name: await asyncio.to_thread(path.read_text) for path in paths}
    payload = json.dumps({"gpu": gpu, "number": number, "files": files}, sort_keys=True).encode()
    envelope = service.signing.seal(MODEL, payload)
    return Response(
        envelope, headers={"ETag": f'"{number}"', "Cache-Control": "no-cache"}, media_type="application/json"
    )


async def post_model(service: Service, request: Request, _caller: Caller) -> Response:
    """Train a model of a GPU on all records, and publish it if it is no worse than the one in force."""
    gpu = _gpu(request)
    if service.training.locked():
        raise Refusal(503, "busy", "a model is being trained", retry_after=60)
    async with service.training:
        files = await asyncio.to_thread(service.records.files)
        if not files:
            raise Refusal(
                422, "record", "nobody has sent records", "POST /v1/records takes what `gemmill profile` wrote"
            )
        job = json.dumps({"gpu": gpu, "state": str(service.options.state), "files": [*map(str, files)]}).encode()
        worker = Worker("gemmill.service.learning.training")
        worker.send(gpu, job, _SEND_SECONDS)
        try:
            answer = json.loads(await asyncio.to_thread(worker.receive, None))
        except WorkerError as error:
            raise Refusal(500, "internal", f"the process that trains {error}", "the server's log has more") from None
        finally:
            worker.end()
        worker.kill()
    if "error" in answer:
        raise Refusal(422, "record", answer["error"])
    return JSONResponse(answer)


def _gpu(request: Request) -> str:
    try:
        return gpu_called(str(request.path_params["gpu"]), GPUS)
    except LookupError as error:
        raise malformed(f"gpu: {error.args[0]}") from None
