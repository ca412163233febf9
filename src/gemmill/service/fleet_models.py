"""Measurements that clients send, and the models that the service trains on them and publishes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gemmill.library.errors import RecordError
from gemmill.library.files import make_private, os_error_text, publish
from gemmill.library.records import read_records
from gemmill.runtime.select.model_file import path_of
from gemmill.runtime.workers import Worker, WorkerError
from gemmill.service.bodies import known_gpu, read_body
from gemmill.service.refusal import Refusal, not_found
from gemmill.service.service_options import RECORDS_BYTES
from gemmill.service.tokens import Caller

if TYPE_CHECKING:
    from gemmill.service.service import Service


class Models:
    """The published models, in the state folder."""

    def __init__(self, state: Path) -> None:
        self._path = state / "models"

    def folder(self, gpu: str) -> Path | None:
        """The folder of the newest model of a GPU, by its full name; None if none was published."""
        folders = [
            path
            for path in self._folder_of(gpu).glob("[0-9]*")
            if path.name.isdecimal() and path_of(gpu, path).is_file()
        ]
        return max(folders, key=lambda path: int(path.name), default=None)

    def place(self, gpu: str) -> tuple[Path, int]:
        """The folder and the number of the next model of a GPU."""
        current = self.folder(gpu)
        number = 1 if current is None else int(current.name) + 1
        return self._folder_of(gpu) / str(number), number

    def _folder_of(self, gpu: str) -> Path:
        return self._path / path_of(gpu).stem


STATE_BYTES = 4 << 30
"""Maximum size of all records together."""


class Records:
    """The measurements in the state folder: one file per upload, named by its digest so that none counts twice."""

    def __init__(self, state: Path) -> None:
        self._path = state / "records"

    def files(self) -> list[Path]:
        """All files of records."""
        return sorted(self._path.glob("*/*.jsonl"))

    def take(self, source: str, data: bytes) -> tuple[int, bool]:
        """Store JSON Lines of measurements; returns their number, and whether they are new.

        Raises:
            Refusal: a line is not a valid measurement, or the space for records is used up.
        """
        path = self._path / source / f"{hashlib.sha256(data).hexdigest()}.jsonl"
        if path.exists():
            return sum(1 for _ in read_records(path)), False
        if sum(file.stat().st_size for file in self.files()) + len(data) > STATE_BYTES:
            raise Refusal(
                507,
                "full",
                f"The records on the server would exceed {STATE_BYTES:,} bytes.",
                "ask the operator to archive old records",
            )
        unread = path.with_suffix(".unread")
        try:
            make_private(path.parent)
            publish(unread, [data])
            try:
                count = sum(1 for _ in read_records(unread))
                lines = sum(1 for line in data.splitlines() if line.strip())
                if count != lines:
                    raise Refusal(422, "record", f"{lines - count} of {lines} lines are truncated or not JSON.")
                unread.replace(path)
            except RecordError as error:
                raise Refusal(422, "record", str(error).replace(f"{unread}:", "line ")) from None
            finally:
                unread.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(507, "full", os_error_text(error), retry_after=60) from None
        return count, True


MODEL = "gemmill.model/1"
"""The type of a model's envelope."""
_SEND_SECONDS = 60.0


async def post_records(service: Service, request: Request, caller: Caller) -> Response:
    """Accept measurements, as JSON Lines."""
    data = await read_body(request, RECORDS_BYTES)
    count, new = await asyncio.to_thread(service.records.take, caller.name, data)
    if new:
        service.metrics.uploads.labels("records").inc()
    return JSONResponse({"records": count, "new": new}, 201 if new else 200)


async def get_model(service: Service, request: Request, _: Caller) -> Response:
    """Send the signed model in force of a GPU: its file by name, and its number (0: the model that ships)."""
    gpu = _gpu(request)
    folder = service.models.folder(gpu)
    path = path_of(gpu, folder)
    if not path.is_file():
        raise not_found(f"a model for {gpu}")
    number = int(folder.name) if folder else 0
    files = {path.name: await asyncio.to_thread(path.read_text)}
    payload = json.dumps({"gpu": gpu, "number": number, "files": files}, sort_keys=True).encode()
    envelope = service.signing.seal(MODEL, payload)
    return Response(
        envelope, headers={"ETag": f'"{number}"', "Cache-Control": "no-cache"}, media_type="application/json"
    )


async def post_model(service: Service, request: Request, _caller: Caller) -> Response:
    """Train a model of a GPU on all records; publish it if it is not worse than the one in force."""
    gpu = _gpu(request)
    if service.training.locked():
        raise Refusal(503, "busy", "The server is already training a model.", retry_after=60)
    async with service.training:
        files = await asyncio.to_thread(service.records.files)
        if not files:
            raise Refusal(
                422, "record", "No records to train on.", "send records of `gemmill profile` with POST /v1/records"
            )
        job = json.dumps({"gpu": gpu, "state": str(service.options.state), "files": [*map(str, files)]}).encode()
        worker = Worker("gemmill.service.model_training")
        worker.send(gpu, job, _SEND_SECONDS)
        try:
            answer = json.loads(await asyncio.to_thread(worker.receive, None))
        except WorkerError as error:
            raise Refusal(500, "internal", f"The training process {error}.", "see the server's log") from None
        finally:
            worker.end()
        worker.kill()
    if "error" in answer:
        raise Refusal(422, "record", answer["error"])
    return JSONResponse(answer)


def _gpu(request: Request) -> str:
    return known_gpu(str(request.path_params["gpu"])).name
