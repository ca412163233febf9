"""What a warm server of kernels answers, beside a bare uvicorn application that answers the same bytes.

Starts `gemmill serve`, which signs and asks for tokens, has it compile one kernel, and starts a process of uvicorn
whose application holds the answers and does nothing else. In each round both take the same in turns, over 64
connections:

- open loop: requests are due at fixed times, 300 in a second, whether or not those before were answered; latency counts
  from when a request was due, so that a server that stalls pays for all that waited;
- closed loop: each connection asks again as soon as it is answered.

Clients and server share the machine, and the clients' own time counts in every latency. CPU is the server's, of a
request of the closed loop.

Reproduces docs/service/operators.md, "Figures".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.service.servers import TOKEN, Server, service, started  # noqa: E402

CONNECTIONS = 64
PROBLEM = "4096x4096x4096 bf16 tn"
TYPES = {"manifest": b"application/json", "blob": b"application/octet-stream"}
HEADS = ("bytes", "p50 ms", "p99 ms", "p99.9", "req/s", "MB/s", "CPU us", "of bare")
MOST_REQUESTS, MOST_SECONDS = 100_000, 60


class Connection(asyncio.Protocol):
    """One connection, over which one request at a time is asked."""

    def __init__(self) -> None:
        self._got = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A part of an answer."""
        self._got += data
        head = self._got.find(b"\r\n\r\n")
        if head < 0 or self._answer is None:
            return
        headers = bytes(self._got[:head]).lower()
        size = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._got) < head + 4 + size:
            return
        body, self._got = bytes(self._got[head + 4 :]), bytearray()
        if headers.startswith(b"http/1.1 200"):
            self._answer.set_result(body)
        else:
            self._answer.set_exception(RuntimeError(f"{headers!r} {body!r:.200}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("closed amid an answer"))

    async def ask(self, request: bytes) -> bytes:
        """The body of an answer; RuntimeError where its status is not 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[list[Connection]]:
    """Connections that are open, until the block ends."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    yield [connection for _, connection in made]
    for transport, _ in made:
        transport.close()


async def open_loop(port: int, request: bytes, rate: float, seconds: float) -> list[float]:
    """Milliseconds from when a request was due until it was answered."""
    took: list[float] = []

    async def ask(connection: Connection, first: int) -> None:
        for index in range(first, int(rate * seconds), CONNECTIONS):
            due = start + index / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.ask(request)
            took.append((time.perf_counter() - due) * 1000)

    async with connected(port) as connections:
        start = time.perf_counter() + 0.1
        await asyncio.gather(*(ask(connection, first) for first, connection in enumerate(connections)))
    return took


async def closed_loop(server: Server, request: bytes, count: int) -> tuple[float, float]:
    """Requests in a second, and CPU microseconds of the server for each."""
    left = iter(range(count))

    async def ask(connection: Connection) -> None:
        for _ in left:
            await connection.ask(request)

    async with connected(server.port) as connections:
        cpu, start = server.cpu_seconds(), time.perf_counter()
        await asyncio.gather(*map(ask, connections))
        seconds = time.perf_counter() - start
    return count / seconds, (server.cpu_seconds() - cpu) / count * 1e6


def prepared(server: Server) -> dict[str, tuple[str, bytes]]:
    """Have the server compile a kernel: path and body of its manifest and of its blob."""
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def ask(method: str, path: str, body: str | None = None) -> bytes:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request(method, path, body, headers)
        data = connection.getresponse().read()
        connection.close()
        return data

    asked = json.dumps({"problems": [PROBLEM], "wait": 300})
    [ready] = [
        event
        for event in map(json.loads, ask("POST", "/v1/instantiate", asked).splitlines())
        if event["event"] == "ready"
    ]
    kernel = f"/v1/kernels/{ready['key']}"
    manifest = ask("GET", kernel)
    blob = f"/v1/blobs/{json.loads(b64decode(json.loads(manifest)['payload']))['digest']}"
    return {"manifest": (kernel, manifest), "blob": (blob, ask("GET", blob))}


def bare(folder: Path) -> None:
    """Answer what the files of a folder hold, by an application of uvicorn that does nothing else."""
    import uvicorn

    answers = {
        json.loads((folder / f"{kind}.path").read_text()): ((folder / kind).read_bytes(), type_)
        for kind, type_ in TYPES.items()
    }

    async def application(scope: Any, _receive: Any, send: Any) -> None:
        body, type_ = answers[scope["path"]]
        headers = [(b"content-type", type_), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(
            application, http="httptools", loop="asyncio", lifespan="off", log_config=None, access_log=False
        )
        uvicorn.Server(config).run([listener])


@dataclass
class Result:
    """What was measured of one server and one path."""

    ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def row(self, size: int) -> dict[str, float]:
        """Figures of all rounds; an answer has so many bytes."""
        cuts, rate = quantiles(self.ms, n=1000), median(self.rates)
        latencies = {"p50_ms": cuts[499], "p99_ms": cuts[989], "p999_ms": cuts[998]}
        return {
            "bytes": size,
            **latencies,
            "requests_s": rate,
            "MB_s": rate * size / 1e6,
            "cpu_us": median(self.cpu_us),
        }


def measured(servers: dict[str, Server], answers: dict[str, tuple[str, bytes]], arguments: Any) -> list[dict[str, Any]]:
    """A row for each side and what is asked."""
    results = {(side, kind): Result() for kind in answers for side in servers}
    for _ in range(arguments.rounds):
        for (side, kind), result in results.items():
            path = answers[kind][0]
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
            result.ms += asyncio.run(open_loop(servers[side].port, request, arguments.rate, arguments.seconds))
            rate, cpu = asyncio.run(closed_loop(servers[side], request, arguments.requests))
            result.rates.append(rate)
            result.cpu_us.append(cpu)
    return [
        {"side": side, "kind": kind, **result.row(len(answers[kind][1]))} for (side, kind), result in results.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (%(default)s)")
    parser.add_argument("--rate", type=float, default=300, help="requests a second of the open loop (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10, help="of the open loop, in a round (%(default)s)")
    parser.add_argument("--requests", type=int, default=3000, help="of the closed loop, in a round (%(default)s)")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        bare(arguments.bare)
        return
    if arguments.seconds > MOST_SECONDS or max(arguments.requests, arguments.rate * arguments.seconds) > MOST_REQUESTS:
        parser.error(f"at most {MOST_REQUESTS:,} requests and {MOST_SECONDS} seconds in a round")
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as server:
        answers = prepared(server)
        for kind, (path, body) in answers.items():
            (Path(name) / kind).write_bytes(body)
            (Path(name) / f"{kind}.path").write_text(json.dumps(path))
        with started([sys.executable, __file__, "--bare", name], Path(name) / "bare.log") as other:
            rows = measured({"service": server, "bare": other}, answers, arguments)
    if arguments.json:
        versions = {"python": sys.version.split()[0], "cores": os.cpu_count(), "connections": CONNECTIONS}
        print(json.dumps({"rows": rows, **versions, "rate": arguments.rate}, indent=1))
        return
    print(
        f"{'':18}{'bytes':>8}{'p50 ms':>8}{'p99 ms':>8}{'p99.9':>8}{'req/s':>8}{'MB/s':>8}{'CPU us':>8}{'of bare':>9}"
    )
    for own, other_row in zip(rows[::2], rows[1::2], strict=True):
        for row in (own, other_row):
            share = f"{row['requests_s'] / other_row['requests_s']:>8.0%}"
            print(
                f"{row['kind']:10}{row['side']:8}{row['bytes']:>8,}{row['p50_ms']:>8.2f}{row['p99_ms']:>8.2f}"
                f"{row['p999_ms']:>8.2f}{row['requests_s']:>8,.0f}{row['MB_s']:>8.1f}{row['cpu_us']:>8.0f}{share}"
            )


if __name__ == "__main__":
    main()
