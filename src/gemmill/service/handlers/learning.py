"""Records in, models out."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.library.arch import GPUS, gpu_called
from gemmill.runtime import interpreter
from gemmill.runtime.select.models import FOLDER, REQUIRED, path_of
from gemmill.service.bodies import malformed, read_body
from gemmill.service.options import RECORDS_BYTES
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service

MODEL = "gemmill.model/1"
"""What a model's envelope says it is."""
_PROCESS = "from gemmill.service.learning.training import main; main()"


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
        command = interpreter.command(_PROCESS, gpu, str(service.options.state), *map(str, files))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    if process.returncode != 0 or not said:
        raise Refusal(500, "internal", f"the process that trains ended with {process.returncode}", "its log has more")
    found = json.loads(said.splitlines()[-1])
    if "error" in found:
        raise Refusal(422, "record", found["error"])
    return JSONResponse(found)


def _gpu(request: Request) -> str:
    try:
        return gpu_called(str(request.path_params["gpu"]), GPUS)
    except LookupError as error:
        raise malformed(f"gpu: {error.args[0]}") from None
