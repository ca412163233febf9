"""What `gemmill serve` is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BODY_BYTES = 1 << 20
"""Most bytes of a body that is no kernel and no records."""
RECORDS_BYTES = 64 << 20
"""Most bytes of records in one request."""
ALL_BODIES_BYTES = 256 << 20
"""Most bytes of all bodies that are being read."""
BODY_TIMEOUTS = 6
"""Timeouts that a body may take."""
HEADER_BYTES = 32 << 10
"""Most bytes of a request's line and headers."""
SOURCES_CHARACTERS = 64 << 20
"""Most of all sources that wait to be compiled."""
ITEMS = 1000
"""Most kernels and problems of one request."""
WAIT_SECONDS = 600.0
"""The longest that an instantiation is waited for."""
COMPILE_SECONDS = 300.0
"""A compilation that takes longer is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a server is started with; every member is an option of the command, which says more."""

    host: str = "127.0.0.1"
    port: int = 8470
    store: Path | None = None
    """Folder of compiled kernels; None: the user's."""
    state: Path
    """Folder of manifests, uploads, packs, records and models; processes that share the store share it."""
    tokens: Path | None = None
    """File of tokens; None: whoever reaches the server may read and compile."""
    sign: tuple[Path, ...] = ()
    """Files of private keys that manifests are signed with."""
    trust: str = ""
    """Keys whose manifests are taken from uploads and from the bucket, beside the server's own."""
    bucket: str = ""
    """URL of a bucket behind the disk; empty: none."""
    jobs: int = 1
    """Kernels that are compiled at a time."""
    scheduler: str = ""
    """Address of a dask scheduler whose workers compile; empty: processes of this machine do."""
    accept_source: bool = False
    """Whether source is compiled that clients send, beside what configs emit."""
    queue: int = 1000
    """Kernels that wait to be compiled, at most."""
    quota: float = 36_000.0
    """Compile-seconds that a tenant may take in an hour."""
    connections: int = 1000
    """Connections at most."""
    timeout: float = 10.0
    """Seconds that a client has for its headers; six times as many for a body, three times for a pause in reading."""
    drain: float = 20.0
    """Seconds that requests at work have to end after SIGTERM."""
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """TLS: the server's certificate and key; whose certificates clients must show."""
