"""What `gemmill serve` is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

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


def _file(says: str, *names: str) -> Any:
    return typer.Option(*names, exists=True, dir_okay=False, metavar="FILE", help=says)


def _count(says: str) -> Any:
    return typer.Option(min=1, metavar="N", help=says)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `gemmill serve`, but for those that other commands have too."""

    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8470
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of manifests, uploads, packs, records and models; default: beside the store."
        ),
    ] = None
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="Bucket behind the disk: s3://, gs://, az://.")
    ] = ""
    tokens: Annotated[Path | None, _file("Tokens, and what each allows; read again when the file changes.")] = None
    sign: Annotated[list[Path], _file("Private key that signs what is served; two while one replaces the other.")] = (
        field(default_factory=list)
    )
    trust: Annotated[
        str,
        typer.Option(metavar="KEYS", help="Keys whose uploads are taken, beside its own: as GEMMILL_TRUSTED_KEYS."),
    ] = ""
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Compile on the workers of this dask scheduler, tls://..., --jobs at a time."
        ),
    ] = ""
    accept_source: Annotated[
        bool,
        typer.Option(
            "--accept-source",
            help="Compile edited source, too, for tokens with the scope source, in processes that are confined: needs "
            "Linux with Landlock.",
        ),
    ] = False
    queue: Annotated[int, _count("Kernels that may wait to be compiled.")] = 1000
    quota: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Compile-seconds an hour of each token.")] = (
        36_000
    )
    connections: Annotated[int, _count("Connections at a time.")] = 1000
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="Time for headers; 6 times as much for a body, 3 for a pause in reading."
        ),
    ] = 10
    drain: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time for requests at work after SIGTERM.")] = (
        20
    )
    certificate: Annotated[Path | None, _file("The server's certificate: TLS.", "--tls-cert")] = None
    key: Annotated[Path | None, _file("The private key of --tls-cert.", "--tls-key")] = None
    client_ca: Annotated[Path | None, _file("Clients must show a certificate that one of these signed.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ServeOptions):
    """What a server is started with."""

    store: Path | None = None
    """Folder of compiled kernels; None: the user's."""
    state: Path
    """Processes that share the store share it."""
    jobs: int = 1
    """Kernels that are compiled at a time."""
