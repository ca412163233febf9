"""Who may talk to the dask scheduler of a sweep: it runs what it is sent, so none but the sweep and its workers."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemmill.library.errors import DeviceError
from gemmill.library.extras import install
from gemmill.library.files import told

_SETTINGS = "DASK_DISTRIBUTED__COMM__"
"""What dask's settings of connections are called as environment variables."""
_OWN = {
    "tls_ca_file": f"{_SETTINGS}TLS__CA_FILE",
    "tls_client_cert": f"{_SETTINGS}TLS__CLIENT__CERT",
    "tls_client_key": f"{_SETTINGS}TLS__CLIENT__KEY",
}
"""What names the certificate of a client: members of dask's ``Security``, and environment variables."""


@contextmanager
def own_certificate() -> Iterator[tuple[Any, dict[str, str]]]:
    """A certificate for one sweep on this machine: dask's ``Security`` with it, and the environment of workers that
    are to have it too. Its key lies in a folder that others cannot enter, and goes with the block.

    Raises:
        DeviceError: the package that makes certificates is missing.
    """
    try:
        security = importlib.import_module("distributed.security").Security.temporary()
    except ImportError as error:
        raise DeviceError(f"dask's workers authenticate by certificates ({error}); {install('cluster')}") from error
    with tempfile.TemporaryDirectory(prefix="gemmill-tls-") as folder:
        files = {}
        for name, text in (("ca_file", security.tls_ca_file), ("worker__key", security.tls_worker_key)):
            path = Path(folder) / name
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(text)
            files[name] = str(path)
        files["worker__cert"] = files["ca_file"]  # it is its own authority
        environ = {f"{_SETTINGS}TLS__{name.upper()}": path for name, path in files.items()}
        yield security, environ | {f"{_SETTINGS}REQUIRE_ENCRYPTION": "True"}


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
            raise DeviceError(f"{variable}: {told(error)}") from error
    try:
        security.get_connection_args("client")
    except OSError as error:
        which = f": {', '.join(files)}" if files else ""
        raise DeviceError(f"not an authority, a certificate and its key, in PEM ({error}){which}") from error
