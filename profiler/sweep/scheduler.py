"""How to reach the dask scheduler of others: with certificates alone, for sweeps and for a server alike."""

from __future__ import annotations

import importlib
import socket
from typing import Any

from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.profiler.sweep.certificates import check_certificate, refuse_open

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
