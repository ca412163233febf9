"""Connect to a dask scheduler, always with TLS and certificates; used by sweeps and the service."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path
from typing import Any

from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text

RESOURCE = "GPU"
"""The dask resource of workers that measure. Each has one, so that it runs one unit at a time. Workers without it
compile."""
_PROBE_SECONDS = 2.0


def dask() -> Any:
    """The package ``distributed``.

    Raises:
        DeviceError: it is not installed.
    """
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise DeviceError(f"a cluster requires dask distributed ({error}); {install('cluster')}") from error


def connected(scheduler: str) -> Any:
    """A client of the scheduler at an address, with the certificates of dask's settings.

    Raises:
        DeviceError: dask is not installed, the address does not use TLS, or the scheduler does not answer.
    """
    distributed = dask()
    refuse_open(scheduler)
    check_certificate()
    try:  # check the address first: a client with an invalid address cannot be closed
        distributed.comm.get_address_host_port(scheduler, strict=True)
    except ValueError as error:
        raise DeviceError(f"invalid address {scheduler!r:.200}; expected tls://host:8786: {error}") from error
    try:
        return distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        _failed.append(error)
        raise DeviceError(f"no dask scheduler answers at {scheduler}: {error}") from error


def listens(scheduler: str) -> bool:
    """Whether a server listens at an address; checked without a client, since failed clients are never freed."""
    try:
        place = dask().comm.get_address_host_port(scheduler, strict=True)
        socket.create_connection(place, _PROBE_SECONDS).close()
    except OSError:
        return False
    return True


_failed: list[BaseException] = []
"""Errors of clients that could not connect. They keep these clients alive: if a client is collected while another one
starts, dask (2026.8) deadlocks."""


_SETTINGS = "DASK_DISTRIBUTED__COMM__"
"""Prefix of the environment variables for dask's connection settings."""
_OWN = {
    "tls_ca_file": f"{_SETTINGS}TLS__CA_FILE",
    "tls_client_cert": f"{_SETTINGS}TLS__CLIENT__CERT",
    "tls_client_key": f"{_SETTINGS}TLS__CLIENT__KEY",
}
"""Settings of a client's certificate: attributes of dask's ``Security``, and their environment variables."""


def refuse_open(scheduler: str) -> None:
    """Raise DeviceError for the address of a scheduler without TLS."""
    if not scheduler.startswith("tls://"):
        raise DeviceError(
            f"the dask scheduler at {scheduler} does not use TLS, so anyone who reaches it can run code on it. Start "
            "scheduler and workers with certificates: dask scheduler --tls-ca-file CA --tls-cert CERT --tls-key KEY. "
            f"For this process, set {', '.join(_OWN.values())}, and pass the address tls://..."
        )


def check_certificate() -> None:
    """Raise DeviceError if dask's settings have no valid certificate for this process; the message names the
    variable."""
    security = importlib.import_module("distributed.security").Security()
    files = []
    for attribute, variable in _OWN.items():
        if not (value := getattr(security, attribute)):
            raise DeviceError(
                f"{variable} is not set; the dask scheduler requires a certificate: set {', '.join(_OWN.values())}"
            )
        if "\n" in value:  # the content of a file instead of its path
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
        raise DeviceError(
            f"invalid certificate: expected an authority, a certificate and its key in PEM ({error}){which}"
        ) from error
