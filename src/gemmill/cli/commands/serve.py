"""serve: kernels for a fleet, over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import CompileOptions
from gemmill.library.errors import InstallationError, SettingError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text
from gemmill.profiler.sweep.compilers import AT_A_TIME
from gemmill.runtime.compile.pool import default_jobs
from gemmill.runtime.storage.store import Store
from gemmill.service.service_options import Options, ServeOptions

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


@serve_app.callback()
def serve(context: typer.Context, options: ServeOptions, compiling: CompileOptions) -> None:
    """Serve, unless a command follows."""
    if context.invoked_subcommand is not None:
        return
    if (options.certificate is None) != (options.key is None) or (options.client_ca and not options.certificate):
        raise typer.BadParameter("--tls-cert and --tls-key go together, and --client-ca needs both")
    if options.tokens is None and not _is_loopback(options.host):
        raise typer.BadParameter(f"--host {options.host} can be reached by others: name who may do what with --tokens")
    if options.accept_source and options.tokens is None:
        raise typer.BadParameter("--accept-source: name who may send source, the scope source, with --tokens")
    if options.accept_source and options.scheduler:
        raise typer.BadParameter("--accept-source compiles on this machine, in confinement, and --scheduler on others")
    with _needing_the_extra():
        from gemmill.service.server import run
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Where the log is on the disk that is full, a line of it is lost; a warning that cannot be shown would be an error.
    warnings.showwarning = lambda message, *_, **__: logging.getLogger("gemmill").warning("%s", message)
    store = Store(compiling.store).path
    values: dict[str, Any] = {option.name: getattr(options, option.name) for option in fields(options)}
    values["state"] = options.state or store.with_name(f"{store.name}-service")
    jobs = compiling.jobs or (AT_A_TIME if options.scheduler else default_jobs())
    try:
        run(Options(**values, store=compiling.store, jobs=jobs), _print_url)
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


def _print_url(url: str) -> None:
    typer.echo(f"listening at {url}")
    sys.stdout.flush()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
