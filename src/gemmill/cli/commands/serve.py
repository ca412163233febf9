"""serve: a service that compiles and delivers kernels over HTTP."""

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

from gemmill.cli import completion, output
from gemmill.cli.app import Application, app
from gemmill.cli.options import CompileOptions
from gemmill.cli.output import UsageError, usage
from gemmill.library.errors import DeviceError, InstallationError, SettingError
from gemmill.library.extras import install
from gemmill.library.files import os_error_text
from gemmill.profiler.sweep.compilers import AT_A_TIME
from gemmill.profiler.sweep.scheduler import refuse_open
from gemmill.runtime.compile.pool import default_jobs
from gemmill.runtime.storage.store import Store
from gemmill.service.service_options import HOST_NAME, Options, ServeOptions

serve_app = Application(
    """Compile and deliver kernels over HTTP.

    The service compiles, stores, selects and delivers kernels for many machines. Clients set GEMMILL_REMOTE to its URL.
    Install gemmill with the extra `service`.

    Without --tokens, everyone who can connect may read and compile; the service then listens only on the loopback
    interface. After SIGTERM, it finishes the open requests and exits.

    \b
    Examples:
      gemmill serve
      gemmill serve token new pods --scopes read,compile --days 90 >> tokens
      gemmill serve --host 0.0.0.0 --allow-host kernels.example --tokens tokens --tls-cert cert.pem --tls-key key.pem
      gemmill serve --bucket s3://kernels/gemmill --tokens tokens --sign server.key
    """,
    invoke_without_command=True,
)
app.add_typer(serve_app, name="serve")
token_app = Application(
    """Make tokens for clients of the service.

    \b
    Examples:
      gemmill serve token new pods --scopes read,compile >> tokens
    """,
)
serve_app.add_typer(token_app, name="token")


@serve_app.callback()
def serve(context: typer.Context, options: ServeOptions, compiling: CompileOptions) -> None:
    """Start the service, unless a subcommand follows."""
    if context.invoked_subcommand is not None:
        return
    if (options.certificate is None) != (options.key is None) or (options.client_ca and not options.certificate):
        raise UsageError("--tls-cert needs --tls-key, --tls-key needs --tls-cert, and --client-ca needs both")
    if options.tokens is None and not _is_loopback(options.host):
        raise UsageError(
            f"--host is {options.host}, which other machines can reach; pass --tokens FILE to limit access"
        )
    if options.accept_source and options.tokens is None:
        raise UsageError("--accept-source needs --tokens FILE with a token that has the scope source")
    if options.accept_source and options.scheduler:
        raise UsageError("both --accept-source and --scheduler are given; pass only one")
    if options.scheduler:
        with usage(DeviceError):
            refuse_open(options.scheduler)
    if wrong := next((name for name in options.allow_host if not HOST_NAME.fullmatch(name)), None):
        raise UsageError(f"--allow-host {wrong!r} is not a host name; write it without https:// and port")
    with _needing_the_extra():
        from gemmill.service.server import run
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A log line that cannot be written is dropped, but a warning that cannot be shown raises: send warnings to the log.
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client. Quotas apply per name.")],
    scopes: Annotated[
        str,
        typer.Option(
            metavar="SCOPE,...",
            autocompletion=completion.scopes,
            help="Scopes: read, compile, source, write and admin.",
        ),
    ] = "read,compile",
    days: Annotated[
        int | None, typer.Option(min=1, max=36_500, metavar="N", help="Days until the token expires. Default: never.")
    ] = None,
) -> None:
    """Make a token for a client of the service.

    Prints the line for the service's --tokens file on stdout, and the token itself on stderr. The token is not shown
    again.

    \b
    Examples:
      gemmill serve token new pods --scopes read,compile --days 90 >> tokens
      gemmill serve token new ci --scopes read,write >> tokens
    """
    with _needing_the_extra():
        from gemmill.service.tokens import new_token
    expires = None if days is None else datetime.now(UTC).date() + timedelta(days)
    secret, token = new_token(name, scopes.split(","), expires)
    output.complain(f"token of {name}, shown only once: {secret}")
    typer.echo(token.line())


@contextmanager
def _needing_the_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gemmill"):
            raise
        raise InstallationError(f"gemmill serve needs {error.name}; {install('service')}") from None


def _print_url(url: str) -> None:
    typer.echo(f"listening at {url}")
    sys.stdout.flush()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
