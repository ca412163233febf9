"""The process: its socket, its signals, and how it ends.

After SIGTERM or SIGINT ``/readyz`` fails and nothing more is queued; what waits to be compiled is refused, requests at
work are answered, and then the process ends with status 0, after ``Options.drain`` seconds in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from gemmill.library.errors import SettingError
from gemmill.library.files import os_error_text
from gemmill.service.application import application
from gemmill.service.client_connections import Limits
from gemmill.service.service import Service
from gemmill.service.service_options import Options

_SPARE_FILES = 128
"""Files that a server has open beside its connections."""
_BACKLOG = 2048
_NOTICE_SECONDS = 1.0
"""A server that is to end answers new requests for this long, so that what asks /readyz sends no more."""


def run(options: Options, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal says to end.

    Args:
        options: what to serve, and where.
        on_ready: told the URL once the socket is open.

    Raises:
        SettingError: the place cannot be listened at, or the options do not go together.
        GemmillError: a file of keys, tokens or models is wrong.
    """
    _room_for(options.connections)
    service = Service(options)
    limits = Limits(options.connections, options.timeout, service.metrics)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingError(f"{options.host}:{options.port} cannot be listened at: {os_error_text(error)}") from None
    config = uvicorn.Config(
        application(service),
        http=limits.protocol(),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who connects is of no account here
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(options.drain),
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        ssl_ca_certs=str(options.client_ca) if options.client_ca else None,
        ssl_cert_reqs=2 if options.client_ca else 0,
    )
    host = f"[{options.host}]" if family == socket.AF_INET6 else options.host
    scheme = "https" if options.certificate else "http"
    # Connections inherit it; asyncio sets it on sockets alone that say they are TCP, and these do not.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        logging.getLogger(__name__).info("store %s, state %s", service.store.path, options.state)
        _Server(config, service, lambda: on_ready(f"{scheme}://{host}:{listener.getsockname()[1]}")).run([listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._on_ready = service, on_ready
        self._ending = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._service.start()
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._service.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn has it, but the process does not die of the signal when all is done."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending:  # a second one does not wait
            self.should_exit = self.force_exit = True
            return
        self._ending = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)  # not between two steps of something else

    def _drain(self) -> None:
        self._service.drain()
        asyncio.get_running_loop().call_later(_NOTICE_SECONDS, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def _room_for(connections: int) -> None:
    """Raise the number of files that this process may have open to what connections take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft < wanted:
        if hard < wanted:
            raise SettingError(
                f"{connections:,} connections take {wanted:,} open files, and this process may have {hard:,}: lower "
                "--connections, or raise the limit (systemd: LimitNOFILE)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
