"""How to reach the dask scheduler of others: with certificates alone, for sweeps and for a server alike."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text

RESOURCE = "GPU"
"""What a dask worker that measures has one of; units ask for it, so that one runs at a time. Workers without it
compile."""
_PROBE_SECONDS = 2.0


def dask() -> Any:
    """The package.

    Raises:
        DeviceError: it is missing.
    """
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise DeviceError(f"a cluster needs dask distributed ({error}); {install('cluster')}") from error


def connected(scheduler: str) -> Any:
    """A client of the scheduler at an address, with the certificates of dask's settings.

    Raises:
        DeviceError: dask is missing, the address is one that anybody may talk to, or nobody answers.
    """
    distributed = dask()
    refuse_open(scheduler)
    check_certificate()
    try:  # a client that fails to connect to what is no address cannot be closed
        distributed.comm.get_address_host_port(scheduler, strict=True)
    except ValueError as error:
        raise DeviceError(f"{scheduler!r:.200} is no address such as tls://host:8786: {error}") from error
    try:
        return distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        _failed.append(error)
        raise DeviceError(f"no dask scheduler answers at {scheduler}: {error}") from error


def listens(scheduler: str) -> bool:
    """Whether anything does, at an address. To find out without a client, of which those that fail are kept."""
    try:
        place = dask().comm.get_address_host_port(scheduler, strict=True)
        socket.create_connection(place, _PROBE_SECONDS).close()
    except OSError:
        return False
    return True


_failed: list[BaseException] = []
"""Why clients could not connect, which keeps these clients: where one is collected while another starts, dask (2026.8)
holds a lock that it then waits for."""


_SETTINGS = "DASK_DISTRIBUTED__COMM__"
"""What dask's settings of connections are called as environment variables."""
_OWN = {
    "tls_ca_file": f"{_SETTINGS}TLS__CA_FILE",
    "tls_client_cert": f"{_SETTINGS}TLS__CLIENT__CERT",
    "tls_client_key": f"{_SETTINGS}TLS__CLIENT__KEY",
}
"""What names the certificate of a client: members of dask's ``Security``, and environment variables."""


def refuse_open(scheduler: str) -> None:
    """DeviceError for the address of a scheduler that does not ask who talks to it."""
    if not scheduler.startswith("tls://"):
        raise DeviceError(
            f"the dask scheduler at {scheduler} runs what anyone sends it who reaches it: give it and its workers "
            "certificates (dask scheduler --tls-ca-file CA --tls-cert CERT --tls-key KEY, dask worker likewise), name "
            f"those of this process in {', '.join(_OWN.values())}, and pass its address, tls://..."
        )


def check_certificate() -> None:
    """DeviceError where dask's settings do not name a certificate of this process that is one, and which variable
    does."""
    security = importlib.import_module("distributed.security").Security()
    files = []
    for attribute, variable in _OWN.items():
        if not (value := getattr(security, attribute)):
            says = "the dask scheduler asks who talks to it by certificates"
            raise DeviceError(f"{says}: name this process's in {', '.join(_OWN.values())}; {variable} is not set")
        if "\n" in value:  # it is what a file would hold
            continue
        files.append(f"{variable}={value}")
        try:
            Path(value).read_bytes()
        except OSError as error:
            raise DeviceError(f"{variable}: {os_error_text(error)}") from error
    try:
        security.get_connection_args("client")
    except OSError as error:
        which = f": {', '.join(files)}" if files else ""
        raise DeviceError(f"not an authority, a certificate and its key, in PEM ({error}){which}") from error
