"""The options of `gemmill serve`, and the limits of the service."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

BODY_BYTES = 1 << 20
"""Maximum size of a body, except kernels and records."""
RECORDS_BYTES = 64 << 20
"""Maximum size of the records in one request."""
ALL_BODIES_BYTES = 256 << 20
"""Maximum size of all request bodies in memory."""
BODY_TIMEOUTS = 6
"""Time limit for a body, in units of `--timeout`."""
HEADER_BYTES = 32 << 10
"""Maximum size of the request line and headers."""
URL_BYTES = 16 << 10
"""Maximum length of a URL."""
SOURCES_CHARACTERS = 64 << 20
"""Maximum length of all sources that wait to be compiled."""
ITEMS = 1000
"""Maximum number of kernels, problems and sources in one request."""
WAIT_SECONDS = 600.0
"""Maximum time that a request may wait for its kernels."""
COMPILE_SECONDS = 300.0
"""Time limit for a compilation."""
HOST_NAME = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,252}")
"""Names of servers."""


def _file(text: str, *names: str) -> Any:
    return typer.Option(*names, exists=True, dir_okay=False, metavar="FILE", help=text)


def _count(text: str) -> Any:
    return typer.Option(min=1, metavar="N", help=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options that only `gemmill serve` has."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1"
    allow_host: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Name that clients may use for this server, besides IP addresses, localhost, the machine's host name "
            "and --host. Repeatable.",
        ),
    ] = field(default_factory=list)
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 uses a free one.")] = (
        8470
    )
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for manifests, uploads, packs, records and models. Default: next to the store.",
        ),
    ] = None
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="Bucket that backs the store: s3://, gs:// or az://.")
    ] = ""
    tokens: Annotated[
        Path | None, _file("Tokens and their scopes. The server reads the file again when it changes.")
    ] = None
    sign: Annotated[list[Path], _file("Private key that signs manifests. Pass two while you replace a key.")] = field(
        default_factory=list
    )
    trust: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Public keys whose uploads the server also accepts, in the format of GEMMILL_TRUSTED_KEYS.",
        ),
    ] = ""
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Compile on the workers of this dask scheduler (tls://...), --jobs kernels at a time.",
        ),
    ] = ""
    accept_source: Annotated[
        bool,
        typer.Option(
            "--accept-source",
            help="Also compile edited sources, for tokens with the scope source, in sandboxed processes. Requires "
            "Linux with Landlock.",
        ),
    ] = False
    queue: Annotated[int, _count("Maximum number of kernels that wait to be compiled.")] = 1000
    quota: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Compile seconds per hour for each token.")] = (
        36_000
    )
    connections: Annotated[int, _count("Maximum number of open connections.")] = 1000
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Time limit for headers. A body may take 6 times as long; a client may stop reading 3 times as long.",
        ),
    ] = 10
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time limit for running requests after SIGTERM.")
    ] = 20
    certificate: Annotated[Path | None, _file("The server's certificate; enables TLS.", "--tls-cert")] = None
    key: Annotated[Path | None, _file("The private key of --tls-cert.", "--tls-key")] = None
    client_ca: Annotated[
        Path | None, _file("CA certificates; each client must present a certificate that one of them signed.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ServeOptions):
    """All options of a server."""

    store: Path | None = None
    """Folder of compiled kernels; None uses the user's store."""
    state: Path
    """Folder of the state; processes that share the store share it."""
    jobs: int = 1
    """Number of kernels compiled in parallel."""
