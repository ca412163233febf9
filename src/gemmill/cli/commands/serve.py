"""serve: kernels for a fleet, over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import Jobs, StorePath, input_file
from gemmill.library.errors import InstallationError, SettingError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text
from gemmill.profiler.sweep.compilers import AT_A_TIME
from gemmill.runtime.compile.pool import default_jobs
from gemmill.runtime.storage.store import Store

serve_app = Application(
    """Serve kernels to a fleet: compile, keep, select and hand them out over HTTP. Needs gemmill's extra service.

    Without --tokens everybody who reaches the server may read and have compiled, so it listens on the loopback
    interface alone. SIGTERM ends it when requests at work are answered.

    \b
    Examples:
      gemmill serve
      gemmill serve token new pods --scopes read,compile --days 90 >> tokens
      gemmill serve --host 0.0.0.0 --tokens tokens --sign server.key --tls-cert cert.pem --tls-key key.pem
      gemmill serve --bucket s3://kernels/gemmill --tokens tokens
    """,
    invoke_without_command=True,
)
app.add_typer(serve_app, name="serve")
token_app = Application(
    """Make tokens for clients of a server.

    \b
    Examples:
      gemmill serve token new pods --scopes read,compile >> tokens
    """,
)
serve_app.add_typer(token_app, name="token")


def _count(says: str) -> Any:
    return typer.Option(min=1, metavar="N", help=says)


@dataclass(frozen=True)
class Places:
    """Where the server listens and keeps things."""

    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8470
    store: StorePath = None
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of manifests, uploads, packs, records and models; default: beside the store."
        ),
    ] = None
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="Bucket behind the disk: s3://, gs://, az://.")
    ] = ""


@dataclass(frozen=True)
class Rights:
    """Who may do what."""

    tokens: Annotated[Path | None, input_file("Tokens, and what each allows; read again when the file changes.")] = None
    sign: Annotated[
        list[Path], input_file("Private key that signs what is served; two while one replaces the other.")
    ] = field(default_factory=list)
    trust: Annotated[
        str,
        typer.Option(metavar="KEYS", help="Keys whose uploads are taken, beside its own: as GEMMILL_TRUSTED_KEYS."),
    ] = ""


@dataclass(frozen=True)
class Compilation:
    """Which processes compile what."""

    jobs: Jobs = None
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


@dataclass(frozen=True)
class Limits:
    """How much is taken at a time, and how long it may take."""

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


@dataclass(frozen=True)
class Tls:
    """Certificates."""

    tls_cert: Annotated[Path | None, input_file("The server's certificate: TLS.")] = None
    tls_key: Annotated[Path | None, input_file("The private key of --tls-cert.")] = None
    client_ca: Annotated[Path | None, input_file("Clients must show a certificate that one of these signed.")] = None


@serve_app.callback()
def serve(
    context: typer.Context, places: Places, rights: Rights, compilation: Compilation, limits: Limits, tls: Tls
) -> None:
    """Serve, unless a command follows."""
    if context.invoked_subcommand is not None:
        return
    if (tls.tls_cert is None) != (tls.tls_key is None) or (tls.client_ca and not tls.tls_cert):
        raise typer.BadParameter("--tls-cert and --tls-key go together, and --client-ca needs both")
    if rights.tokens is None and not _is_loopback(places.host):
        raise typer.BadParameter(f"--host {places.host} can be reached by others: name who may do what with --tokens")
    if compilation.accept_source and rights.tokens is None:
        raise typer.BadParameter("--accept-source: name who may send source, the scope source, with --tokens")
    if compilation.accept_source and compilation.scheduler:
        raise typer.BadParameter("--accept-source compiles on this machine, in confinement, and --scheduler on others")
    with _needing_the_extra():
        from gemmill.service.server import run
        from gemmill.service.service_options import Options
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Where the log is on the disk that is full, a line of it is lost; a warning that cannot be shown would be an error.
    warnings.showwarning = lambda message, *_, **__: logging.getLogger("gemmill").warning("%s", message)
    place = Store(places.store).path
    values: dict[str, Any] = {
        **vars(places),
        "state": places.state or place.with_name(f"{place.name}-service"),
        **vars(rights),
        "sign": tuple(rights.sign),
        **vars(compilation),
        "jobs": compilation.jobs or (AT_A_TIME if compilation.scheduler else default_jobs()),
        **vars(limits),
    }
    try:
        run(Options(**values, certificate=tls.tls_cert, key=tls.tls_key, client_ca=tls.client_ca), _say)
    except OSError as error:
        raise SettingError(os_error_text(error)) from None


@token_app.command(has_json=False)
def new(
    name: Annotated[str, typer.Argument(help="Whose it is; quotas are by name.")],
    scopes: Annotated[
        str, typer.Option(metavar="SCOPE,...", help="Of read, compile, source, write and admin.")
    ] = "read,compile",
    days: Annotated[int | None, typer.Option(min=1, max=36_500, help="Days until it expires.")] = None,
) -> None:
    """Print the line of a new token for the server's file on stdout, and the token itself, once, on stderr.

    \b
    Examples:
      gemmill serve token new pods --scopes read,compile --days 90 >> tokens
      gemmill serve token new ci --scopes read,write >> tokens
    """
    with _needing_the_extra():
        from gemmill.service.tokens import new_token
    expires = None if days is None else datetime.now(UTC).date() + timedelta(days)
    secret, token = new_token(name, scopes.split(","), expires)
    output.complain(f"the token of {name}, which is not shown again: {secret}")
    typer.echo(token.line())


@contextmanager
def _needing_the_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gemmill"):
            raise
        raise InstallationError(f"serving needs {error.name}: {install('service')}") from None


def _say(url: str) -> None:
    typer.echo(f"listening at {url}")
    sys.stdout.flush()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
