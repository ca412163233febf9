"""The server process: socket, signals and shutdown.

After SIGTERM or SIGINT, ``/readyz`` fails, the server refuses new and waiting compilations, and it completes the
running requests. Then the process exits with status 0, after ``Options.drain`` seconds at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import ssl
import stat
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
"""Open files of a server in addition to its connections."""
_BACKLOG = 2048
_NOTICE_SECONDS = 1.0
"""Time for which a server that shuts down accepts requests, so that load balancers see that /readyz fails."""


def run(options: Options, on_ready: Callable[[str], None]) -> None:
    """Run the server until SIGTERM or SIGINT.

    Args:
        options: options of the server.
        on_ready: called with the URL once the socket is open.

    Raises:
        SettingError: the server cannot listen on the address, or the options contradict each other.
        GemmillError: a file of keys, tokens or models is invalid.
    """
    _room_for(options.connections)
    service = Service(options)
    limits = Limits(options.connections, options.timeout, service.metrics)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingError(f"cannot listen on {options.host}:{options.port}: {os_error_text(error)}") from None
    config = uvicorn.Config(
        application(service),
        http=limits.protocol(),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the audit log has the address of the peer, whatever a client claims
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(options.drain),
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        ssl_ca_certs=str(options.client_ca) if options.client_ca else None,
        ssl_cert_reqs=2 if options.client_ca else 0,
    )
    _load_tls(config, options)
    host = f"[{options.host}]" if family == socket.AF_INET6 else options.host
    scheme = "https" if options.certificate else "http"
    # Connections inherit TCP_NODELAY; asyncio does not set it on the sockets of this listener.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        logging.getLogger(__name__).info("store %s, state %s", service.store.path, options.state)
        _Server(config, service, lambda: on_ready(f"{scheme}://{host}:{listener.getsockname()[1]}")).run([listener])


def _load_tls(config: uvicorn.Config, options: Options) -> None:
    """Read certificate and key; SettingError if they are not such. A key that others may read causes a warning."""
    try:
        config.load()
    except ssl.SSLError as error:
        files = ", ".join(str(path) for path in (options.certificate, options.key, options.client_ca) if path)
        raise SettingError(f"{files}: not a certificate and its private key in PEM: {error.reason or error}") from None
    if options.key and (mode := stat.S_IMODE(options.key.stat().st_mode)) & stat.S_IRWXO:
        warning = "%s: others may read this private key (mode %03o); run chmod 600 %s"
        logging.getLogger(__name__).warning(warning, options.key, mode, options.key)


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
        """Handle signals like uvicorn, but do not raise the signal again after the shutdown."""
        handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending:  # a second signal ends the process at once
            self.should_exit = self.force_exit = True
            return
        self._ending = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain)  # runs in the loop, not in the signal handler

    def _drain(self) -> None:
        self._service.drain()
        asyncio.get_running_loop().call_later(_NOTICE_SECONDS, self._exit)

    def _exit(self) -> None:
        self.should_exit = True


def _room_for(connections: int) -> None:
    """Raise the limit of open files of this process to what the connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = connections + _SPARE_FILES
    if soft < files:
        if hard < files:
            raise SettingError(
                f"{connections:,} connections need {files:,} open files, but the limit of this process is {hard:,}; "
                "lower --connections, or raise the limit (systemd: LimitNOFILE)"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
